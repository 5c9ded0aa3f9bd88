"""What is served, and how the functions behind the addresses get at it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Depends, Request

from memformer_torch.data.tokenizer import Tokenizer
from memformer_torch.serve.guard import Notes
from memformer_torch.serve.limits import Limits, Refusal
from memformer_torch.serve.schemas import Problem, Sampled
from memformer_torch.serve.service import Service
from memformer_torch.serve.store import Store

PROBLEMS: Any = {status: {"model": Problem} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503, 507)}


@dataclass(kw_only=True)
class Served:
    name: str
    model: Any
    tokenizer: Tokenizer | None
    image_shape: tuple[int, int] | None
    store: Store
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    hosts: set[str] | None = None
    """Names by which the server may be called; None means any."""
    images: Callable[[], Any] | None = None
    """Gives the documents of test images, for a model of images."""

    @property
    def kind(self) -> Literal["text", "image", "ids"]:
        return "text" if self.tokenizer is not None else "image" if self.image_shape is not None else "ids"

    def seed(self, body: Sampled) -> int:
        """The seed that was given, or a new one; a Refusal for what is asked too much."""
        if body.max_tokens > self.limits.max_output:
            raise Refusal(422, f"max_tokens is {body.max_tokens:,}, but may be at most {self.limits.max_output:,}")
        if self.tokenizer is None and body.generation(0).stop_texts:
            raise Refusal(400, "this model knows no text: stop at ids")
        return secrets.randbelow(2**32) if body.seed is None else body.seed  # a page's numbers hold 53 bits


def _served(request: Request) -> Served:
    return request.app.state.served


def _service(request: Request) -> Service:
    return request.app.state.service


def _notes(request: Request) -> Notes:
    return request.app.state.notes


TheServed = Annotated[Served, Depends(_served)]
TheService = Annotated[Service, Depends(_service)]
TheNotes = Annotated[Notes, Depends(_notes)]
