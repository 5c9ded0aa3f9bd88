"""Addresses of sessions."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from memformer_torch.serve.answers import Answer, SessionForm
from memformer_torch.serve.limits import Refusal
from memformer_torch.serve.schemas import NAME, Feed, Fork, NewSession, Sampled
from memformer_torch.serve.served import PROBLEMS, TheServed, TheService
from memformer_torch.serve.slots import num_slots, words
from memformer_torch.serve.store import Facts

Name = Annotated[str, Path(**NAME, description="Of the session.")]
Number = Annotated[int, Query(ge=0, lt=2**31)]
TEXT_OR_JSON = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Feed.model_json_schema()},
            "text/plain": {"schema": {"type": "string"}},
        },
    }
}
router = APIRouter(responses=PROBLEMS, tags=["sessions"], prefix="/sessions")


@router.post("", status_code=201)
async def create(service: TheService, body: NewSession | None = None) -> dict[str, Any]:
    """Begin a session; it is on the disk when this answers."""
    body = body or NewSession()
    return _tell(await service.sessions.create(body.name, body.scratch), service)


@router.get("")
async def every(service: TheService) -> dict[str, Any]:
    """All sessions, the one used last first."""
    return {"sessions": [_tell(facts, service) for facts in await service.sessions.list()]}


@router.get("/{name}")
async def one(name: Name, service: TheService) -> dict[str, Any]:
    """Where a session stands."""
    return _tell(await service.sessions.facts(name), service)


@router.delete("/{name}", status_code=204, response_class=Response)
async def delete(name: Name, service: TheService) -> Response:
    """Remove a session."""
    await service.sessions.delete(name)
    return Response(status_code=204)


@router.post("/{name}/feed", openapi_extra=TEXT_OR_JSON)
async def feed(name: Name, request: Request, service: TheService, stream: bool = False) -> Any:
    """Read on: text or ids as JSON, or a text as it is; what was read is on the disk when this answers."""
    operation = service.feed(name, await _given(request))
    return Answer(operation, SessionForm(operation), stream)


@router.post("/{name}/generate")
async def generate(name: Name, body: Sampled, served: TheServed, service: TheService) -> Any:
    """Go on; the session has read what it wrote, and is on the disk when this answers."""
    seed = served.seed(body)
    operation = service.generate(name, body.generation(seed))
    return Answer(operation, SessionForm(operation, seed), body.stream)


@router.post("/{name}/stop")
async def stop(name: Name, service: TheService) -> dict[str, bool]:
    """End what is being done with a session where it is; who asked for it is told what came of it."""
    await service.sessions.facts(name)
    return {"stopped": service.stop(name)}


@router.post("/{name}/fork", status_code=201)
async def fork(name: Name, service: TheService, body: Fork | None = None) -> dict[str, Any]:
    """Another session that stands where this one does, and goes its own way."""
    body = body or Fork()
    return _tell(await service.sessions.fork(name, body.name, body.scratch, body.replace), service)


@router.get("/{name}/slots")
async def slots(
    name: Name, service: TheService, first: Number = 0, limit: Annotated[int, Query(ge=0, le=100)] = 100
) -> dict[str, Any]:
    """What happened to the slots in each segment that was read, from one on."""
    span, records = await service.sessions.history(name, first, limit)
    return {"first": span and span[0], "last": span and span[1], "segments": records}


@router.get("/{name}/slots/{slot}")
async def slot(
    name: Name, slot: Annotated[int, Path(ge=0, lt=2**31)], served: TheServed, service: TheService
) -> dict[str, Any]:
    """The life of one slot: how much it changed in each segment, its type, and the words it took."""
    if slot >= num_slots(served.model):
        raise Refusal(404, f"this model has {num_slots(served.model)} slots, from 0 on")
    _, records = await service.sessions.history(name, 0, served.limits.max_history)
    return {"slot": slot, "segments": await asyncio.to_thread(lambda: [_moment(record, slot) for record in records])}


@router.get("/{name}/file", response_class=Response)
async def file(name: Name, service: TheService) -> Response:
    """The session as a file that `memformer generate --session` and `Session.load` read."""
    headers = {"content-disposition": f'attachment; filename="{name}.session"'}
    return Response(await service.sessions.file(name), media_type="application/octet-stream", headers=headers)


async def _given(request: Request) -> Any:
    """The text or ids of a request to read on."""
    content = await request.body()
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise Refusal(400, f"the text is not UTF-8 at byte {error.start}: convert it") from error
    try:
        feed = Feed.model_validate_json(content)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    if (feed.text is None) == (feed.ids is None):
        raise Refusal(422, "give either text or ids")
    return feed.ids if feed.text is None else feed.text


def _moment(record: dict[str, Any], slot: int) -> dict[str, Any]:
    found = {name: record[name][slot] for name in ("moved", "own")}
    return {"segment": record["segment"], **found, "type": record["types"][slot], "took": words(record, slot)}


def _tell(facts: Facts, service: TheService) -> dict[str, Any]:
    known, sessions = facts._asdict(), service.sessions
    return known | {"usable": known.pop("model") == sessions.fingerprint, "live": facts.name in sessions.live}
