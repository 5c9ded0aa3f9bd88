"""Cross-entropy as a sum and a count, so that a mean over many segments is one over their tokens."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from memformer_torch.types import IGNORE, Segment


def segment_loss(model: Any, segment: Segment, state: Any) -> tuple[Tensor, Any, Tensor | None]:
    """The sum of a segment's losses, the state after it, and the model's auxiliary loss.

    A model that has `token_losses(segment, state) -> TokenLosses` is asked for these, and need never build full logits.
    """
    if hasattr(model, "token_losses"):
        losses, state, auxiliary = model.token_losses(segment, state)
        return losses.sum(), state, auxiliary
    logits, state, auxiliary = model(segment, state)
    return cross_entropy_sum(logits, segment.target), state, auxiliary


def cross_entropy_sum(logits: Tensor, target: Tensor) -> Tensor:
    """Sum over the real target tokens of -log softmax(logits)[token]; logits (B, T, V), target (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="sum")


def count_tokens(target: Tensor) -> Tensor:
    """How many target tokens are real."""
    return (target != IGNORE).sum()
