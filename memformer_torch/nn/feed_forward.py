"""The feed-forward branch of a Transformer block."""

from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, d_ff)
        self.out = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.expand(x)))
