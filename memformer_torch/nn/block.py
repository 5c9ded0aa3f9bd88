"""The block of a decoder-only Transformer."""

# Shape letters: B batch, Y blocks, L queries, N keys, D width, H heads

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.attention import Rotary, merge_heads, split_heads
from memformer_torch.nn.feed_forward import FeedForward
from memformer_torch.nn.past import Past, Places


class Block(nn.Module):
    """Attention and feed-forward, pre-norm.

    Keys and values are made apart (`project`), so that a state can keep them, and so that only some tokens need queries.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(d_model)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.norm_feed_forward, self.feed_forward = nn.LayerNorm(d_model), FeedForward(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)

    def project(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens (B, N, D), each (B, H, N, D/H)."""
        key, value = self.key_value(self.norm_attention(x)).chunk(2, dim=-1)
        return split_heads(key, self.num_heads, rotary), split_heads(value, self.num_heads)

    def forward(
        self, x: Tensor, key_value: tuple[Tensor, Tensor], rotary: Rotary, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """x (B, L, D); mask bool (L, N) or (B, 1, L, N), True where a key may be seen."""
        query = split_heads(self.query(self.norm_attention(x)), self.num_heads, rotary)
        hidden = F.scaled_dot_product_attention(query, *key_value, attn_mask=mask, is_causal=causal)
        x = x + self.dropout(self.out(merge_heads(hidden)))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


def stack_blocks(num_layers: int, d_model: int, num_heads: int, d_ff: int, dropout: float) -> Sequence[Block]:
    """A `ModuleList` of blocks, typed as what is in it."""
    return cast(Sequence[Block], nn.ModuleList(Block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)))


def extend_blocks(
    blocks: Sequence[Block],
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    rotary: Rotary,
    places: Places,
    mask: Tensor | None = None,
) -> Tensor:
    """Read new tokens x (B, L, D) through all blocks, into keys and values (B, Y, H, N, D/H) at their places."""
    for layer, block in enumerate(blocks):
        past = Past(keys[:, layer], values[:, layer], places, mask)
        x = block(x, past.append(*block.project(x, rotary)), rotary, mask)
    return x
