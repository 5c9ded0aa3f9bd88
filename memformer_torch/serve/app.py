"""The server: an OpenAI-style API, named sessions, and the page."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response

from memformer_torch.serve import model_routes, session_routes
from memformer_torch.serve.answers import refuse
from memformer_torch.serve.engine import Engine
from memformer_torch.serve.guard import Guard, Notes
from memformer_torch.serve.limits import Refusal
from memformer_torch.serve.served import Served
from memformer_torch.serve.service import Service
from memformer_torch.serve.sessions import Sessions
from memformer_torch.session_file import fingerprint

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
WEEK = 7 * 24 * 3600.0
REASONS = {404: "there is nothing at this address", 405: "this address does not know that method"}


def make_app(served: Served) -> FastAPI:
    """The application; its engine runs while it does."""
    engine = Engine(served.model, served.tokenizer, served.limits)
    sessions = Sessions(served.store, engine, fingerprint(served.model), served.limits)
    service, notes, files = Service(engine, sessions, served.limits), Notes(), _files()
    guard = Middleware(
        Guard, token=served.token, hosts=served.hosts, max_body=served.limits.max_body, open_paths=set(files), notes=notes
    )
    app = FastAPI(
        title="memformer explore",
        version=version("memformer-torch"),
        docs_url=None,
        redoc_url=None,
        lifespan=lambda app: _life(served, service),
        middleware=[guard],
        exception_handlers=HANDLERS,
    )
    app.state.served, app.state.service, app.state.notes = served, service, notes
    for address, path in files.items():
        app.add_api_route(address, _file(path), methods=["GET"], include_in_schema=False)
    app.include_router(model_routes.router)
    app.include_router(session_routes.router)
    return app


@asynccontextmanager
async def _life(served: Served, service: Service) -> AsyncIterator[None]:
    engine = service.engine
    engine.post = asyncio.get_running_loop().call_soon_threadsafe
    engine.start()
    served.store.forget_scratch(WEEK)
    yield
    engine.stop_all()
    await service.finish()
    await asyncio.to_thread(engine.close)
    service.sessions.close()


def _files() -> dict[str, Path]:
    """The page's files by their addresses."""
    found = {f"/{path.name}": path for path in PAGE.iterdir() if path.suffix in KINDS}
    return found | {"/": found.pop("/index.html"), "/docs": found.pop("/docs.html")}


def _file(path: Path) -> Callable[[], Any]:
    content, kind = path.read_bytes(), f"{KINDS[path.suffix]}; charset=utf-8"

    async def file() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return file


def _http_error(_: Request, error: Any) -> JSONResponse:
    return refuse(Refusal(error.status_code, REASONS.get(error.status_code, str(error.detail))))


def _invalid(_: Request, error: Any) -> JSONResponse:
    """The first thing that is wrong with a request."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return refuse(Refusal(400, f"the JSON is broken: {first.get('ctx', {}).get('error', first['msg'])}"))
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return refuse(Refusal(422, f"{where or 'the body'}: {first['msg']}"))


HANDLERS: Any = {
    Refusal: lambda _, error: refuse(error),
    HTTPException: _http_error,
    RequestValidationError: _invalid,
    Exception: lambda _, error: refuse(error),
}
