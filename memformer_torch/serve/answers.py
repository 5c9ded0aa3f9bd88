"""Operations as answers: JSON once all is done, or server-sent events as it happens."""

import asyncio
import json
import logging
import math
import time
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from memformer_torch.serve.jobs import Event
from memformer_torch.serve.limits import Refusal
from memformer_torch.serve.service import Operation, Outcome

BETWEEN_PROGRESS = 0.05
"""Seconds: a page cannot show more."""
BETWEEN_SENDS = 0.02
"""Seconds in which tokens of a stream are gathered: to send each by itself takes longer than to make it."""

logger = logging.getLogger(__name__)


class Form(Protocol):
    """How an operation is told."""

    def event(self, event: Event) -> dict[str, Any] | None:
        """A piece of a stream, if this is worth one."""

    def last(self, outcome: Outcome) -> list[dict[str, Any]]:
        """The last pieces of a stream."""

    def whole(self, outcome: Outcome, text: str, ids: list[int]) -> dict[str, Any]:
        """All at once."""


class CompletionForm:
    """OpenAI's; `ids` beside the text are our own."""

    def __init__(self, number: str, model: str, usage: bool, seed: int) -> None:
        self._head = {"id": f"cmpl-{number}", "object": "text_completion", "created": int(time.time()), "model": model}
        self._usage, self._seed = usage, seed

    def event(self, event: Event) -> dict[str, Any] | None:
        if event.token is None and not event.text:
            return None
        return self._choice(event.text, [] if event.token is None else [event.token], None)

    def last(self, outcome: Outcome) -> list[dict[str, Any]]:
        pieces = [self._choice("", [], _finish(outcome))]
        return [*pieces, self._head | {"choices": [], "usage": usage(outcome)}] if self._usage else pieces

    def whole(self, outcome: Outcome, text: str, ids: list[int]) -> dict[str, Any]:
        return self._choice(text, ids, _finish(outcome)) | {"usage": usage(outcome), "seed": self._seed}

    def _choice(self, text: str, ids: list[int], finish: str | None) -> dict[str, Any]:
        return self._head | {"choices": [{"index": 0, "text": text, "ids": ids, "logprobs": None, "finish_reason": finish}]}


class SessionForm:
    """How far the reading has come, what is written, and what happens to the slots."""

    def __init__(self, operation: Operation, seed: int | None = None) -> None:
        self._operation, self._seed, self._told = operation, seed, 0.0

    def event(self, event: Event) -> dict[str, Any] | None:
        slots = {} if event.slots is None else {"slots": event.slots}
        if event.read is None:
            return {"text": event.text, "ids": [] if event.token is None else [event.token]} | slots
        if time.monotonic() - self._told < BETWEEN_PROGRESS and event.read < self._operation.total:
            return None
        self._told = time.monotonic()
        return {"read": event.read, "total": self._operation.total} | slots

    def last(self, outcome: Outcome) -> list[dict[str, Any]]:
        seed = {} if self._seed is None else {"seed": self._seed}
        found = {"finish_reason": outcome.reason, "log_probability": _finite(outcome.log_probability), "usage": usage(outcome)}
        return [found | seed | {"saved": True, "session": outcome.session}]

    def whole(self, outcome: Outcome, text: str, ids: list[int]) -> dict[str, Any]:
        return ({} if self._seed is None else {"text": text, "ids": ids}) | self.last(outcome)[0]


class Answer(Response):
    """Tells an operation to who asked for it, and gives it up when that one leaves."""

    def __init__(self, operation: Operation, form: Form, stream: bool) -> None:
        super().__init__()
        self._operation, self._form, self._stream = operation, form, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_until_disconnect(receive))
        leaving.add_done_callback(lambda _: self._operation.give_up())
        try:
            await (self._tell_stream if self._stream else self._tell_whole)(scope, receive, send)
        finally:
            self._operation.give_up()
            leaving.cancel()

    async def _tell_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        text, ids, last = [], [], None
        async for found in self._operation.news():
            for each in found:
                if isinstance(each, Event):
                    text.append(each.text)
                    ids += [] if each.token is None else [each.token]
                else:
                    last = each
        answer = JSONResponse(self._form.whole(last, "".join(text), ids)) if isinstance(last, Outcome) else refuse(last)
        await answer(scope, receive, send)

    async def _tell_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        async for found in self._operation.news():
            if not begun and isinstance(found[0], Exception):  # there is still time for a status of its own
                await refuse(found[0])(scope, receive, send)
                return
            pieces = [piece for each in found for piece in self._pieces(each)]
            if not begun:
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                begun = True
            if pieces:
                await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
            if isinstance(found[-1], Event):
                await asyncio.sleep(BETWEEN_SENDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _pieces(self, each: Event | Outcome | Exception) -> list[bytes]:
        if isinstance(each, Event):
            piece = self._form.event(each)
            return [] if piece is None else [_data(piece)]
        if isinstance(each, Outcome):
            return [*map(_data, self._form.last(each)), b"data: [DONE]\n\n"]
        return [_data(error_body(*_status(each)[:2]))]


def refuse(error: Any) -> JSONResponse:
    """An error as an answer."""
    status, reason, retry_after = _status(error)
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return JSONResponse(error_body(status, reason), status, headers)


def error_body(status: int, reason: str) -> dict[str, Any]:
    return {"error": {"message": reason, "code": status}}


def usage(outcome: Outcome) -> dict[str, int]:
    read, written = outcome.read, outcome.written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _status(error: Any) -> tuple[int, str, int | None]:
    if isinstance(error, Refusal):
        return error.status, error.reason, error.retry_after
    logger.error("a request failed", exc_info=error)
    return 500, f"an error in the server ({type(error).__name__}): see what it printed", None


def _finish(outcome: Outcome) -> str:
    return "stop" if outcome.reason == "stopped" else outcome.reason


def _finite(score: float | None) -> float | None:
    """JSON knows no other numbers."""
    return score if score is not None and math.isfinite(score) else None


def _data(piece: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(piece, separators=(",", ":")).encode() + b"\n\n"


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
