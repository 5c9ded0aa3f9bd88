"""Decoding token by token: what a layer has seen of the segment so far, for samples that stand at different places in theirs.

A model that decodes offers three methods beside `forward`:

    cache = model.begin(source, state)               everything about a segment that its target does not change
    hidden = model.extend(cache, inputs, places)     reads inputs (B, N) into the cache; what follows each is predicted from it
    state = model.finish(cache)                      the state after the segment, once all its inputs are read

so that a segment costs what one pass over it costs, however its tokens come.
"""

# Shape letters: B batch, N new inputs, L segment length, H heads, D width

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

Rows = TypeVar("Rows", bound=tuple[Tensor, ...])


class Cache(NamedTuple):
    rows: Any
    """A NamedTuple of tensors, batch first: `extend` writes into them."""
    shared: tuple[Tensor, ...] = ()
    """What all samples have in common."""


class Places(NamedTuple):
    """Where in their segments new inputs stand."""

    at: Tensor
    """int64 (1, N), the same for all samples and all real; or (B, N), where a row may end in padding, which stands at L."""
    end: int
    """1 + the last real place of all samples."""

    def behind(self, num_before: int) -> "Places":
        """The same with something before the segment."""
        return Places(self.at + num_before, self.end + num_before)

    def put(self, buffer: Tensor, new: Tensor) -> None:
        """Write new (B, ..., N, D) at its places into buffer (B, ..., L + 1 or more, D), in place."""
        if len(self.at) == 1:
            buffer[..., self.end - new.shape[-2] : self.end, :] = new
            return
        index = self.at.view(len(new), *[1] * (new.dim() - 3), -1, 1)
        buffer.scatter_(-2, index.expand_as(new), new.to(buffer.dtype))

    def mask(self) -> Tensor | None:
        """Who sees whom, bool (B or 1, 1, N, end): an input sees itself and what stands before. None if it sees all."""
        if self.at.shape == (1, 1):
            return None
        return (torch.arange(self.end, device=self.at.device) <= self.at[..., None])[:, None]


class Past(NamedTuple):
    """Keys and values of one layer: those of the segment so far, to which new ones are added."""

    keys: Tensor
    """(B, H, L + 1, D/H)"""
    values: Tensor
    places: Places
    mask: Tensor | None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to the last new one."""
        self.places.put(self.keys, key)
        self.places.put(self.values, value)
        return self.keys[:, :, : self.places.end], self.values[:, :, : self.places.end]


def take_rows(rows: Rows, index: Tensor) -> Rows:
    """A copy of some samples."""
    return _rebuild(rows, [member[index] for member in rows])


def put_rows(rows: Rows, index: Tensor, new: Rows) -> Rows:
    """Some samples replaced; a member that has grown is made as large as the largest."""
    members = []
    for old, part in zip(rows, new, strict=True):
        old, part = _same_size([old, part])
        old[index] = part
        members.append(old)
    return _rebuild(rows, members)


def join_rows(parts: list[Rows]) -> Rows:
    """Samples side by side; members that grow are filled up to the largest."""
    return _rebuild(parts[0], [torch.cat(_same_size(list(members))) for members in zip(*parts, strict=True)])


def _same_size(members: list[Tensor]) -> list[Tensor]:
    if all(member.shape[1:] == members[0].shape[1:] for member in members):
        return members
    sizes = [max(sizes) for sizes in zip(*(member.shape[1:] for member in members), strict=True)]
    return [_fill_up(member, sizes) for member in members]


def _fill_up(member: Tensor, sizes: list[int]) -> Tensor:
    missing = [(0, size - has) for size, has in zip(sizes, member.shape[1:], strict=True)]
    return F.pad(member, [number for pair in reversed(missing) for number in pair])


def _rebuild(like: Rows, members: list[Tensor]) -> Rows:
    return type(like)(*members) if hasattr(like, "_fields") else type(like)(members)
