"""The recall task: key/value pairs are shown, distracting segments follow, then keys are asked for.

    [key value key value noise] [noise ...] ... [key value key value noise] [noise ...] ... [ASK key value key value]

Values, keys and noise have tokens of their own, so that no distractor looks like a pair. Only the questions are targets: the
rest cannot be predicted.
"""

# Shape letters: B batch, P pairs, Q queries, L tokens a segment

from dataclasses import dataclass

import torch
from torch import Tensor

from memformer_torch.types import BOS, IGNORE, PAD, Segment


@dataclass(frozen=True, kw_only=True)
class Recall:
    num_pairs: int = 4
    """Pairs a document shows, each with another key."""
    num_queries: int = 4
    """Keys asked for, none twice."""
    pairs_per_segment: int = 4
    """Pairs shown in one segment; the next ones follow after distractors."""
    num_keys: int = 16
    num_values: int = 16
    num_noise: int = 16
    """Tokens that distractors are made of."""
    segment_length: int = 12
    """Tokens a segment."""
    announce: bool = False
    """Ask a segment ahead, with noise where the values will stand, [ASK key noise key noise]: an encoder then knows what will
    be asked for."""
    predict_all: bool = False
    """Make every token a target: for models that read their targets alone."""

    def __post_init__(self) -> None:
        if min(self.num_pairs, self.num_queries, self.pairs_per_segment, self.num_noise) < 1 or self.num_values < 2:
            raise ValueError("recall needs at least 1 pair, query, pair a segment and noise token, and 2 values")
        if not self.num_queries <= self.num_pairs <= self.num_keys:
            raise ValueError(f"{self.num_queries} queries, {self.num_pairs} pairs, {self.num_keys} keys: they may not fall")
        if self.segment_length < max(3, 2 * self.pairs_per_segment):
            raise ValueError(
                f"segment_length is {self.segment_length}, but {self.pairs_per_segment} pairs and a query need "
                f"{max(3, 2 * self.pairs_per_segment)}: raise it, or lower pairs_per_segment"
            )

    @property
    def vocab_size(self) -> int:
        return self.num_values + self.num_keys + self.num_noise + 1

    @property
    def ask_token(self) -> int:
        return self.vocab_size - 1

    def noise(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """A distracting segment (B, L)."""
        first = self.num_values + self.num_keys
        return torch.randint(first, first + self.num_noise, (batch_size, self.segment_length), generator=generator)

    def pairs(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """(B, P, 2): keys, all different, and their values."""
        keys = torch.rand(batch_size, self.num_keys, generator=generator).argsort(1)[:, : self.num_pairs] + self.num_values
        values = torch.randint(self.num_values, keys.shape, generator=generator)
        return torch.stack([keys, values], dim=2)

    def rollout(self, batch_size: int, num_distractors: int, generator: torch.Generator) -> list[Segment]:
        """A whole document as steps, with `num_distractors` segments of noise after each segment of pairs."""
        pairs = self.pairs(batch_size, generator)
        order = torch.rand(batch_size, self.num_pairs, generator=generator).argsort(1)[:, : self.num_queries]
        queries = pairs.gather(1, order[:, :, None].expand(-1, -1, 2))  # (B, Q, 2)
        texts: list[Tensor] = []
        for shown in pairs.split(self.pairs_per_segment, dim=1):
            texts.append(self.noise(batch_size, generator))
            texts[-1][:, : 2 * shown.shape[1]] = shown.flatten(1)
            texts += [self.noise(batch_size, generator) for _ in range(num_distractors)]
        begin = torch.full_like(texts[0], PAD)
        begin[:, 0] = BOS
        nothing = torch.full_like(begin[:, :1], IGNORE)
        targets = [nothing] * len(texts)
        for asked in queries.split((self.segment_length - 1) // 2, dim=1):
            places = slice(1, 1 + 2 * asked.shape[1])
            if self.announce:
                texts.append(self._asking(generator, asked[..., 0], slice(1, places.stop, 2)))
                targets.append(nothing)
            texts.append(self._asking(generator, asked.flatten(1), places))
            targets.append(texts[-1])
        texts[-1][:, places.stop :] = IGNORE
        targets = texts if self.predict_all else targets
        return [Segment(source, target) for source, target in zip([begin, *texts], targets, strict=False)]

    def _asking(self, generator: torch.Generator, what: Tensor, places: slice) -> Tensor:
        text = self.noise(len(what), generator)
        text[:, 0] = self.ask_token
        text[:, places] = what
        return text

    def answers(self, target: Tensor) -> Tensor:
        """bool (B, L): where a target holds a value that the memory must give."""
        return (target[:, :1] == self.ask_token) & (target >= 0) & (target < self.num_values)
