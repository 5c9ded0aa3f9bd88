"""What stands before every request: who may ask, from where, and how much; and a note of each."""

import hmac
import time
from collections import Counter, defaultdict
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memformer_torch.serve.answers import refuse
from memformer_torch.serve.limits import Refusal

OPEN = {"/healthz", "/docs", "/openapi.json"}
"""Answered without a token, as are the page's own files: they hold nothing of anybody's."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Notes:
    """What `/metrics` tells of requests."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.begun = time.time()


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: set[str] | None,
        max_body: int,
        open_paths: set[str],
        notes: Notes,
    ) -> None:
        """`hosts` are the names by which the server may be called; None means any."""
        self.app, self.token, self.hosts, self.max_body, self.notes = app, token, hosts, max_body, notes
        self.open_paths = OPEN | open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._check(scope)
        except Refusal as refusal:
            answer = refuse(refusal)
            if refusal.status == 401:
                answer.headers["www-authenticate"] = "Bearer"
            await answer(scope, receive, note)
        else:
            await self.app(scope, self._limited(receive), note)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.notes.requests[path, status] += 1
            self.notes.seconds[path] += time.perf_counter() - begin

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and _hostname(host) not in self.hosts:
            raise Refusal(403, f"this server is not called {host[:100]!r}")  # a page elsewhere whose name leads here
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "pages of other servers may not ask this one")
        if self.token is not None and scope["path"] not in self.open_paths:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                raise Refusal(401, "a token is needed: send the header Authorization: Bearer TOKEN")
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > 18 or int(length) > self.max_body):
            raise Refusal(413, self._too_large())

    def _limited(self, receive: Receive) -> Receive:
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_body:
                raise HTTPException(413, self._too_large())
            return message

        return limited

    def _too_large(self) -> str:
        return f"a request may have {self.max_body:,} bytes: send a long text in several"


def _hostname(host: str) -> str:
    """Without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
