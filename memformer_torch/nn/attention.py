"""Multi-head attention on torch's fused kernels, with rotary positions."""

# Shape letters: B batch, L queries, N keys, D width, H heads

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.past import Past


class Rotary(NamedTuple):
    """Rotation by position, as unit complex numbers: a pair of neighbouring channels is one complex number."""

    turn: Tensor
    """(1 or B, L, 1, D/H/2)"""

    @classmethod
    def at(cls, positions: Tensor, d_head: int, dtype: torch.dtype) -> "Rotary":
        """For integer positions (1 or B, L), in the frequencies of Su et al. (2021), for a model of this type."""
        dtype = torch.promote_types(dtype, torch.float32)  # half precision would blur the angles
        exponents = torch.arange(0, d_head, 2, device=positions.device, dtype=dtype) / d_head
        angles = positions[..., None, None] * 10_000.0**-exponents
        return cls(torch.polar(torch.ones_like(angles), angles))

    def rotate(self, x: Tensor) -> Tensor:
        """Turn x (B, L, H, D/H) so that a dot product depends on the distance between positions alone."""
        pairs = torch.view_as_complex(x.to(self.turn.dtype.to_real()).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turn).flatten(-2).to(x.dtype)  # one product, where sines and cosines take six


def split_heads(x: Tensor, num_heads: int, rotary: Rotary | None = None) -> Tensor:
    """(B, L, D) -> (B, H, L, D/H), turned by position."""
    x = x.unflatten(-1, (num_heads, -1))
    return (x if rotary is None else rotary.rotate(x)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D/H) -> (B, L, D)."""
    return x.transpose(1, 2).flatten(2)


def make_projection(d_model: int, parts: int, positioned: int = 0, position_bias: float = 0.0) -> nn.Linear:
    """D to so many times D, in one product; the first parts, which are turned by position, may have biases of this std.

    Of turned queries and keys that are the same for all tokens, a score depends on the distance alone: with such biases
    attention can go by position, whatever the tokens are.
    """
    linear = nn.Linear(d_model, parts * d_model, bias=position_bias > 0)
    if position_bias:
        with torch.no_grad():
            linear.bias.zero_()[: positioned * d_model].normal_(std=position_bias)
    return linear


class SelfAttention(nn.Module):
    """Tokens attend to tokens: all of them, or those before."""

    def __init__(self, d_model: int, num_heads: int, position_bias: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = make_projection(d_model, 3, 2, position_bias)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, rotary: Rotary, mask: Tensor | None = None, causal: bool = False, past: Past | None = None
    ) -> Tensor:
        """x (B, L, D); mask bool (B, 1, 1, L), True where a key may be seen; `past` goes before, and takes x in."""
        query_key, value = self.query_key_value(x).tensor_split([2 * x.shape[-1]], dim=-1)
        query, key = split_heads(query_key, 2 * self.num_heads, rotary).chunk(2, dim=1)  # both in one
        value = split_heads(value, self.num_heads)
        if past is not None:
            (key, value), mask, causal = past.append(key, value), past.mask, False
        hidden = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(merge_heads(hidden))


class CrossAttention(nn.Module):
    """Tokens attend to a context: the encoder's output or the memory's slots.

    The context's keys and values are made apart (`project`), so that one segment makes them once.
    """

    def __init__(self, d_model: int, num_heads: int, position_bias: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = make_projection(d_model, 1, 1, position_bias)
        self.key_value = make_projection(d_model, 2, 1, position_bias)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def project(self, context: Tensor, rotary: Rotary | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of a context (B, N, D), each (B, H, N, D/H)."""
        key, value = self.key_value(context).chunk(2, dim=-1)
        return split_heads(key, self.num_heads, rotary), split_heads(value, self.num_heads)

    def forward(
        self, x: Tensor, key_value: tuple[Tensor, Tensor], rotary: Rotary | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, L, D); mask bool (B, 1, 1, N), True where a key may be seen."""
        query = split_heads(self.query(x), self.num_heads, rotary)
        hidden = F.scaled_dot_product_attention(query, *key_value, attn_mask=mask)
        return self.out(merge_heads(hidden))
