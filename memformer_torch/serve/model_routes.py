"""Addresses of the model and of the server itself."""

import asyncio
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import PlainTextResponse

from memformer_torch.serve import metrics
from memformer_torch.serve.answers import Answer, CompletionForm
from memformer_torch.serve.limits import Refusal
from memformer_torch.serve.schemas import Completion
from memformer_torch.serve.served import PROBLEMS, TheNotes, TheServed, TheService
from memformer_torch.serve.slots import num_slots

router = APIRouter(responses=PROBLEMS)


@router.post("/v1/completions", tags=["completions"])
async def completions(body: Completion, served: TheServed, service: TheService) -> Any:
    """Continue a prompt; with `stream`, server-sent events that end with [DONE]."""
    seed = served.seed(body)
    usage = body.stream_options is not None and body.stream_options.include_usage
    form = CompletionForm(secrets.token_hex(8), served.name, usage, seed)
    return Answer(service.complete(body.prompt, body.generation(seed)), form, body.stream)


@router.get("/v1/models", tags=["model"])
async def models(served: TheServed) -> dict[str, Any]:
    """The one model there is, as OpenAI lists models."""
    return {"object": "list", "data": [{"id": served.name, "object": "model", "created": 0, "owned_by": "memformer"}]}


@router.get("/model", tags=["model"])
async def model(served: TheServed) -> dict[str, Any]:
    """What the page needs to know."""
    model, limits = served.model, served.limits
    return {
        "id": served.name,
        "model": type(model).__name__,
        "kind": served.kind,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "precision": str(next(model.parameters()).dtype).removeprefix("torch."),
        "segment_length": model.config.segment_length,
        "num_slots": num_slots(model),
        "vocab_size": model.config.vocab_size,
        "image_shape": served.image_shape,
        "limits": {"input": limits.max_input, "output": limits.max_output, "body": limits.max_body},
    }


@router.get("/images/{index}", tags=["model"])
async def image(index: Annotated[int, Path(ge=0, lt=2**31)], served: TheServed) -> dict[str, Any]:
    """A test image, for models of images whose data is at hand."""
    if served.image_shape is None or served.images is None:
        raise Refusal(404, "this is no model of images")
    try:
        documents = await asyncio.to_thread(served.images)
    except (ValueError, OSError, ImportError) as error:
        raise Refusal(404, f"the test images are not at hand: {error}") from error
    if index >= len(documents):
        raise Refusal(404, f"there are {len(documents)} test images, from 0 on")
    return {"index": index, "count": len(documents), "pixels": documents[index].tolist()}


@router.get("/healthz", tags=["server"])
async def healthz() -> dict[str, str]:
    """Whether the server is up."""
    return {"status": "ok"}


@router.get("/metrics", tags=["server"], response_class=PlainTextResponse)
async def prometheus(service: TheService, notes: TheNotes) -> PlainTextResponse:
    """Counts, in Prometheus' text format."""
    return PlainTextResponse(metrics.text(service, notes), media_type=metrics.KIND)
