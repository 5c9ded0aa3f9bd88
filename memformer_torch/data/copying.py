"""The copy task: a string, a delimiter, then the same string again, which alone is a target."""

# Shape letters: B batch, N symbols of the string, L tokens a segment

from dataclasses import dataclass

import torch
from torch import Tensor

from memformer_torch.types import BOS, IGNORE, PAD, Segment


@dataclass(frozen=True, kw_only=True)
class Copy:
    num_symbols: int = 16
    """Symbols that strings are made of; the delimiter is one more token."""
    segment_length: int = 8
    """Tokens a segment; a document is cut into segments wherever its string ends."""
    predict_all: bool = False
    """Make every token a target: for models that read their targets alone."""

    def __post_init__(self) -> None:
        if self.num_symbols < 2 or self.segment_length < 1:
            raise ValueError("copy needs at least 2 symbols and 1 token a segment")

    @property
    def vocab_size(self) -> int:
        return self.num_symbols + 1

    @property
    def delimiter(self) -> int:
        return self.num_symbols

    def rollout(self, batch_size: int, length: int, generator: torch.Generator) -> list[Segment]:
        """A whole document of strings of this length, as steps."""
        if length < 1:
            raise ValueError(f"length is {length}: a string to copy has at least 1 symbol")
        string = torch.randint(self.num_symbols, (batch_size, length), generator=generator)  # (B, N)
        document = torch.cat([string, torch.full_like(string[:, :1], self.delimiter), string], dim=1)
        tail = -document.shape[1] % self.segment_length
        document = torch.nn.functional.pad(document, (0, tail), value=IGNORE)
        texts = document.split(self.segment_length, dim=1)
        begin = torch.full_like(texts[0], PAD)
        begin[:, 0] = BOS
        nothing = torch.full_like(begin[:, :1], IGNORE)
        num_told = 0 if self.predict_all else (length + 1) // self.segment_length  # segments that end before the copy begins
        targets = [nothing] * num_told + list(texts[num_told:])
        return [Segment(source, target) for source, target in zip([begin, *texts], targets, strict=False)]

    def answers(self, segments: list[Segment]) -> list[Tensor]:
        """For each step bool (B, T): where its target repeats the string."""
        begun = torch.zeros(len(segments[0].target), 1, dtype=torch.bool)
        masks = []
        for source, target, _ in segments:
            begun = begun | (source == self.delimiter).any(1, keepdim=True)
            after = (target == self.delimiter).cumsum(1) > 0
            masks.append((begun | after) & (target != self.delimiter) & (target != IGNORE))
        return masks
