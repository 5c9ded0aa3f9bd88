"""From logits to the next ids."""

# Shape letters: B rows, V vocabulary, R recent tokens

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_TEMPERATURE, SMALLEST_PENALTY = 1e-300, 1e-30
"""Smaller ones (and penalties above the inverse) do what these do: they would overflow to NaN."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest id."""
    top_k: int | None = None
    """Only the k likeliest ids."""
    top_p: float | None = None
    """Only the likeliest ids that together have this probability; at least one."""
    min_p: float | None = None
    """Only ids with at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Divides positive logits of ids among the recent ones (the segment at hand and the one before), multiplies negative."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}, but must be 0 or above")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, but must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must be above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}, but must be from 0 to 1")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}, but must be above 0")

    def choose(self, logits: Tensor, recent: Tensor, uniform: Tensor) -> Tensor:
        """An id a row, (B,): logits (B, V), recent ids (B, R; negative ones do not count), numbers in [0, 1) (B,)."""
        if self.repetition_penalty != 1:
            logits = self._penalize(logits, recent)
        if self.temperature == 0:
            return logits.argmax(-1)
        shares = self.probabilities(logits).cumsum(-1)
        wanted = uniform.to(shares)[:, None] * shares[:, -1:]
        return torch.searchsorted(shares, wanted, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, V), with 0 for what is left out; what remains need not add up to 1."""
        below = logits.double() - logits.amax(-1, keepdim=True)  # at most 0: overflow is then -inf, which softmax takes
        shares = (below / max(self.temperature, SMALLEST_TEMPERATURE)).softmax(-1)
        kept = torch.ones_like(shares, dtype=torch.bool)
        if self.top_k is not None or self.top_p is not None:
            order = shares.argsort(dim=-1, descending=True, stable=True)
            ranked = shares.gather(-1, order)
            if self.top_k is not None:
                ranked[:, self.top_k :] = 0
            if self.top_p is not None:
                before = ranked.cumsum(-1) - ranked
                ranked[before >= self.top_p * ranked.sum(-1, keepdim=True)] = 0
            kept.scatter_(-1, order, ranked > 0)
        if self.min_p is not None:
            kept &= shares >= self.min_p * shares.amax(-1, keepdim=True)
        return shares * kept

    def _penalize(self, logits: Tensor, recent: Tensor) -> Tensor:
        seen = torch.zeros(len(logits), logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
        seen.scatter_(1, torch.where(recent < 0, logits.shape[1], recent).clamp(max=logits.shape[1]), True)
        penalty = min(max(self.repetition_penalty, SMALLEST_PENALTY), 1 / SMALLEST_PENALTY)
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(seen[:, :-1], penalized, logits)
