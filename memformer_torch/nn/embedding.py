"""Token embedding, tied to the output."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.types import BOS, IGNORE


class Embedding(nn.Module):
    """Ids to vectors of about unit variance, and back to logits with the same table.

    The table has std 1/sqrt(d), which suits the output; at the input it is multiplied by sqrt(d).
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.scale = d_model**0.5
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) / self.scale)
        self.bos = nn.Parameter(torch.randn(d_model) / self.scale)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, D); what stands for padding does not matter."""
        vectors = F.embedding(ids.clamp(min=0), self.weight)
        return torch.where((ids == BOS)[..., None], self.bos, vectors) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, V)."""
        return F.linear(hidden, self.weight)

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """-log p(target), (B, L), and 0 where it is `IGNORE`."""
        logits = self.logits(hidden).flatten(0, 1)
        return F.cross_entropy(logits, target.flatten(), ignore_index=IGNORE, reduction="none").view_as(target)
