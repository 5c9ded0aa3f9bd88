"""The part of a stream that a rollout is about."""

from typing import Any

import torch

from memformer_torch.data import Stream
from memformer_torch.losses import count_tokens
from memformer_torch.types import Segment


class Window:
    """The segments of a rollout, and the memories that are known before them; it slides by `stride` segments a rollout."""

    def __init__(self, stream: Stream, horizon: int, stride: int, device: torch.device) -> None:
        self.stream, self.horizon, self.stride, self.device = stream, horizon, stride, device
        self.segments: list[Segment] = []
        self.memories: list[Any] = []
        self._positions: list[dict[str, Any]] = []  # the stream's before each segment

    def fill(self) -> int:
        """Read the segments that are missing; how many tokens they have."""
        return self._read(self.horizon - len(self.segments))

    def slide(self) -> None:
        for part in (self.segments, self.memories, self._positions):
            del part[: self.stride]

    def position(self) -> dict[str, Any]:
        """The stream's, before the first segment that is kept."""
        return self._positions[0] if self._positions else self.stream.state_dict()

    def restore(self, position: dict[str, Any], memories: list[Any]) -> None:
        self.stream.load_state_dict(position)
        self.memories = memories
        self._read(len(memories) - 1)

    def _read(self, number: int) -> int:
        tokens = 0
        for _ in range(number):
            self._positions.append(self.stream.state_dict())
            segment = next(self.stream)
            tokens += int(count_tokens(segment.target))
            self.segments.append(segment.to(self.device))
        return tokens
