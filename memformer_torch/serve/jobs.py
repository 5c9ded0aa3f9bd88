"""What the engine is given to do, and what it tells of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from memformer_torch.data.tokenizer import Tokenizer
from memformer_torch.lanes import Lanes
from memformer_torch.sampling import Sampling
from memformer_torch.session import TextWriter

Reason = Literal["read", "length", "stop", "stopped", "cancelled", "failed"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is asked for; see `Session.generate`."""

    max_tokens: int
    seed: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """Something that happened to a job."""

    read: int | None = None
    """Tokens read so far of those given."""
    token: int | None = None
    """A token more; None where it only ended the text."""
    text: str = ""
    """What has become certain of the text."""
    slots: dict[str, Any] | None = None
    """The record of a segment that ended here."""


def no_ids() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


@dataclass(eq=False, kw_only=True)
class Job:
    """A document that is to be read on, and then continued."""

    lanes: Lanes | None = None
    """Where it stands; None for a new one. It stays as it is, and a copy goes on."""
    ids: Tensor = field(default_factory=no_ids)
    """To be read first."""
    tail: Tensor = field(default_factory=no_ids)
    """To be scored after that, but not read: it may not be whole."""
    generation: Generation | None = None
    keep: bool = False
    """Whether the document at the end is wanted."""
    watch: bool = False
    """Whether events tell what happens to the slots."""
    on_event: Callable[[Event | None], None] = lambda event: None
    """Told each event, and None at the end."""

    stopped: bool = False
    """Asked to end where it is."""
    cancelled: bool = False
    """Asked to end, and nobody wants to know how."""
    since: float = field(default_factory=time.monotonic)

    read: int = 0
    """Tokens read so far, of the ids."""
    score: float = 0.0
    """Their log-probability, in nats."""
    tail_score: float = 0.0
    written: int = 0
    """Tokens written so far."""
    result: Lanes | None = None
    """The document at the end."""
    reason: Reason | None = None
    """Why it ended."""
    error: Exception | None = None

    _generator: torch.Generator | None = None
    _writer: TextWriter | None = None

    @property
    def leaves(self) -> bool:
        return self.stopped or self.cancelled

    @property
    def asked(self) -> Generation:
        assert self.generation is not None
        return self.generation

    def begin(self, tokenizer: Tokenizer | None, lanes: Lanes) -> None:
        """Before the first token is drawn."""
        self._generator = torch.Generator().manual_seed(self.asked.seed)
        if tokenizer is not None:
            before = [token for token in lanes.recent()[0].tolist() if token >= 0]
            self._writer = TextWriter(tokenizer, before, list(self.asked.stop_texts))

    def draw(self) -> float:
        """A number in [0, 1), as `Session.generate` draws it for this seed."""
        if self.asked.sampling.temperature == 0:
            return 0.0
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def spell(self, token: int, slots: dict[str, Any] | None) -> Event:
        """What one token more tells; sets `reason` where it is the last."""
        self.written += 1
        text, writer = "", self._writer
        if token in self.asked.stop_ids:
            self.reason = "stop"
        elif writer is not None:
            text, ended = writer.write(token)
            self.reason = "stop" if ended else None
        shown = token if self.reason is None else None
        if self.reason is None and self.written == self.asked.max_tokens:
            self.reason = "length"
        if self.reason is not None and writer is not None:
            text += writer.rest()
        return Event(token=shown, text=text, slots=slots)
