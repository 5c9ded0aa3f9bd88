"""Cross-entropy as a sum and a count, so that a mean over many segments is one over their tokens."""

from torch import Tensor
from torch.nn import functional as F

from memformer_torch.types import IGNORE


def cross_entropy_sum(logits: Tensor, target: Tensor) -> Tensor:
    """Sum over the real target tokens of -log softmax(logits)[token]; logits (B, T, V), target (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="sum")


def count_tokens(target: Tensor) -> Tensor:
    """How many target tokens are real."""
    return (target != IGNORE).sum()
