"""The seam that data, models and gradient methods share: a `Segment` goes in with a state, an `Output` comes out.

A state is a `NamedTuple` of tensors, batch first. It is explicit: passed in, handed back, never kept on a model.
"""

# Shape letters: B batch, S source tokens, T target tokens, V vocabulary

from typing import Any, NamedTuple

import torch
from torch import Tensor

IGNORE = -100
"""Pads the end of a target: no loss, and nothing real depends on it."""
PAD = -1
"""Pads the end of a source."""
BOS = -2
"""Begins a document: an input vector of the model's own, outside every vocabulary and never predicted."""

State = tuple[Tensor, ...]


class Segment(NamedTuple):
    """One step of a batch: the segment that is read and the segment that follows it."""

    source: Tensor
    """int64 (B, S): what the encoder reads; ids, `BOS` or, at the end, `PAD`; at least one that is not `PAD`."""
    target: Tensor
    """int64 (B, T): what is to be predicted; ids or, at the end, `IGNORE`."""
    reset: Tensor | None = None
    """bool (B,): samples whose state is replaced by the initial one before the step; None means no sample's."""

    def to(self, device: torch.device | str) -> "Segment":
        reset = None if self.reset is None else self.reset.to(device)
        return Segment(self.source.to(device), self.target.to(device), reset)


class Output(NamedTuple):
    """What a model makes of a segment."""

    logits: Tensor
    """(B, T, V): position n has seen target[:, :n], the source and the state, nothing else."""
    state: Any
    """The state after the segment: a NamedTuple of the model's own."""
    auxiliary: Tensor | None = None
    """A scalar loss of the model's own, whose mean over segments the gradient methods add to what they differentiate."""


class TokenLosses(NamedTuple):
    """What a model makes of a segment where only its losses are wanted: an `Output` without the logits."""

    losses: Tensor
    """(B, T): -log p of each target token, 0 where it is `IGNORE`."""
    state: Any
    """As in `Output`."""
    auxiliary: Tensor | None = None
    """As in `Output`."""


def check_segment(segment: Segment, vocab_size: int, max_length: int | None = None) -> None:
    """Raise a ValueError unless the segment obeys the contract for this vocabulary and length."""
    source, target, reset = segment
    for name, ids in (("source", source), ("target", target)):
        if ids.dim() != 2 or ids.dtype != torch.int64:
            raise ValueError(f"{name} must be int64 of shape (batch, tokens), not {ids.dtype} {tuple(ids.shape)}")
        if max_length is not None and ids.shape[1] > max_length:
            raise ValueError(
                f"segment has {ids.shape[1]} {name} tokens, but segment_length is {max_length}: "
                "split it, or raise segment_length"
            )
    if source.shape[0] != target.shape[0]:
        raise ValueError(f"source has batch size {source.shape[0]}, but target has {target.shape[0]}")
    if 0 in (*source.shape, *target.shape):
        raise ValueError("segment is empty: give at least one sample, one source and one target token (BOS starts a document)")
    if reset is not None and (reset.dtype != torch.bool or reset.shape != source.shape[:1]):
        raise ValueError(f"reset must be bool of shape ({source.shape[0]},), not {reset.dtype} {tuple(reset.shape)}")

    source_pad, target_pad = source == PAD, target == IGNORE
    problems = torch.stack([  # all questions in one transfer from the device
        ((source >= vocab_size) | ((source < 0) & ~source_pad & (source != BOS))).any(),
        ((target >= vocab_size) | ((target < 0) & ~target_pad)).any(),
        source_pad[:, 0].any(),
        (source_pad[:, :-1] & ~source_pad[:, 1:]).any() | (target_pad[:, :-1] & ~target_pad[:, 1:]).any(),
    ]).tolist()  # fmt: skip
    if problems[0] or problems[1]:
        name, ids, allowed = ("source", source, "PAD or BOS") if problems[0] else ("target", target, "IGNORE")
        raise ValueError(
            f"{name} holds ids from {int(ids.min())} to {int(ids.max())}; allowed are 0 to {vocab_size - 1} and {allowed}: "
            "use the tokenizer the model was trained with, or raise vocab_size"
        )
    if problems[2]:
        raise ValueError("a source is all padding: every source needs one real id (BOS starts a document)")
    if problems[3]:
        raise ValueError("padding stands before a real id: PAD and IGNORE may only end a source or target")


def check_state(state: State, **shapes: tuple[int, ...]) -> None:
    """Raise a ValueError unless the state's members are these, with these shapes; -1 stands for any size."""
    if not isinstance(state, tuple) or getattr(state, "_fields", None) != tuple(shapes):
        raise ValueError(f"state must have the members {', '.join(shapes)}: start from model.initial_state(batch_size)")
    for (name, wanted), tensor in zip(shapes.items(), state, strict=True):
        given = tuple(tensor.shape)
        if len(given) != len(wanted) or any(w not in (-1, g) for g, w in zip(given, wanted, strict=True)):
            raise ValueError(
                f"state.{name} has shape {given}, but this model and batch need {wanted}: "
                "start from model.initial_state(batch_size)"
            )


def decoder_input(segment: Segment) -> Tensor:
    """The target moved right by one, (B, T): the last real source id, then target[:, :-1]; `IGNORE` stands as `PAD`."""
    last = (segment.source != PAD).sum(1, keepdim=True) - 1
    inputs = torch.cat([segment.source.gather(1, last), segment.target[:, :-1]], dim=1)
    return inputs.masked_fill(inputs == IGNORE, PAD)
