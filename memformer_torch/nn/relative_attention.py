"""Attention with relative positions over a memory of earlier segments (Dai et al., 2019), and that memory's slots.

Slots are aligned to the right: the newest stands last, so that one distance between slots holds for every row of a batch,
however much of its memory is filled.
"""

# Shape letters: B batch, T current tokens, M slots, N keys (slots, then current tokens), D width, H heads, Y layers, L segment

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.attention import merge_heads, split_heads
from memformer_torch.nn.feed_forward import FeedForward
from memformer_torch.nn.past import Cache, Places


def sinusoids(num_keys: int, like: Tensor) -> Tensor:
    """R of section 3.3 for the distances N - 1 down to -1: (N + 1, D), with width, type and device of `like`."""
    dtype = torch.promote_types(like.dtype, torch.float32)  # half precision would blur the angles
    distances = torch.arange(num_keys - 1, -2, -1, device=like.device, dtype=dtype)
    exponents = torch.arange(0, like.shape[-1], 2, device=like.device, dtype=dtype) / like.shape[-1]
    angles = distances[:, None] * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


def unfilled_slots(filled: Tensor, num_slots: int) -> Tensor:
    """bool (B, M), True where a slot is still empty; filled (B,) counts from the right."""
    return torch.arange(num_slots, device=filled.device) < num_slots - filled[:, None]


def windows(x: Tensor, start: Tensor, size: int) -> Tensor:
    """x[b, :, start[b] : start[b] + size] for each row b, of x (B, Y, M, D); past the end, the last one again."""
    first = int(start[0])
    if first + size <= x.shape[2] and bool((start == first).all()):
        return x[:, :, first : first + size]
    index = start[:, None] + torch.arange(size, device=x.device)
    return x.take_along_dim(index.clamp(max=x.shape[2] - 1)[:, None, :, None], dim=2)


def push(slots: Tensor, new: Tensor, count: Tensor) -> Tensor:
    """Slots (B, Y, M, D) after the first count[b] of new (B, Y, T, D) came in at the right; the oldest fall out."""
    size, arrived = slots.shape[2], new.shape[2]
    if bool((count == arrived).all()):  # no row is padded: copy only what stays
        return torch.cat([slots[:, :, arrived:], new[:, :, max(arrived - size, 0) :]], dim=2)
    return windows(torch.cat([slots, new], dim=2), count, size).contiguous()


class Sight(NamedTuple):
    """Which keys new inputs see, the same in all layers: of the slots only the latest, which some row has filled."""

    places: Places
    """Among all slots and the segment."""
    num_keys: int
    """N: what stands last of all up to the last new input."""
    unseen: Tensor | None
    """bool (B or 1, 1, T, N); None if all see all."""
    columns: Tensor | None
    """int64 (B, T, N): a key's distance, among those from N - 1 down to -1; None if the places are the same for all."""

    @classmethod
    def at(cls, places: Places, num_slots: int, num_filled: int, unfilled: Tensor | None) -> "Sight":
        """All slots, the latest that some row has filled, and which of these are empty all the same, bool (B, num_filled)."""
        near = places.behind(num_filled)
        seen, columns = near.mask(), None
        unseen = None if seen is None else ~seen
        if unfilled is not None:
            empty = F.pad(unfilled, (0, places.end))[:, None, None]
            unseen = empty if unseen is None else unseen | empty
        if len(places.at) > 1:
            columns = (near.end - 1 - near.at)[..., None] + torch.arange(near.end, device=near.at.device)
            columns = columns.clamp(0, near.end)  # what is out of range is not seen, or is padding's
        return cls(places.behind(num_slots), near.end, unseen, columns)


class RelativePast(NamedTuple):
    """One layer's slots and segment so far, to which new inputs are added."""

    keys: Tensor
    """(B, H, M + L + 1, D/H)"""
    values: Tensor
    positions: Tensor
    """(H, D/H, M + L + 1): projected distances, from M + L - 1 down to -1."""
    sight: Sight

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values that are in sight."""
        places, num_keys = self.sight.places, self.sight.num_keys
        places.put(self.keys, key)
        places.put(self.values, value)
        window = slice(places.end - num_keys, places.end)
        return self.keys[:, :, window], self.values[:, :, window]


class RelativeAttention(nn.Module):
    """Tokens attend to the memory and to themselves and the tokens before, by content and by distance (section 3.3):

    score_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(D/H)
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (d_model // num_heads) ** -0.5
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.position = nn.Linear(d_model, d_model, bias=False)  # W_R
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, 1, d_model // num_heads))  # u
        self.position_bias = nn.Parameter(torch.zeros(num_heads, 1, 1, d_model // num_heads))  # v
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, unfilled: Tensor | None = None) -> Tensor:
        """x (B, T, D), which is the end of context (B, N, D); positions (N + 1, D); unfilled bool (B, N - T)."""
        key, value = self.key_value(context).chunk(2, dim=-1)
        taken = self.weights(x, key, positions, unfilled) @ self._heads(value)
        return self.out(taken.permute(1, 2, 0, 3).flatten(2))

    def weights(self, x: Tensor, key: Tensor, positions: Tensor, unfilled: Tensor | None) -> Tensor:
        """The share each key (B, N, D) has in each token's attention, (H, B, T, N).

        Not the fused kernel: for a bias that needs gradients it falls back to slower code, and without gradients it gains
        nothing over a whole step here; one path keeps a state the same to the bit with gradients and without.
        """
        query = self._heads(self.query(x))  # (H, B, T, D/H)
        content, position = (query + self.content_bias) * self.scale, (query + self.position_bias) * self.scale
        bias = self._relative(position, self.project_positions(positions))
        scores = torch.baddbmm(bias.flatten(0, 1), content.flatten(0, 1), self._heads(key).flatten(0, 1).transpose(1, 2))
        scores = scores.unflatten(0, bias.shape[:2])

        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores[..., -length:].masked_fill_(later, -math.inf)
        if unfilled is not None:
            scores[..., :-length].masked_fill_(unfilled[:, None], -math.inf)
        return scores.softmax(-1)

    def project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context (B, N, D), each (B, H, N, D/H)."""
        key, value = self.key_value(context).chunk(2, dim=-1)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def project_positions(self, positions: Tensor) -> Tensor:
        """W_R R: (N + 1, D) -> (H, D/H, N + 1)."""
        return self.position(positions).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)

    def extend(self, x: Tensor, past: RelativePast) -> Tensor:
        """What `forward` gives for x (B, T, D) behind the past, which takes it in.

        Here the fused kernel gains: it reads the keys where they lie, which a product of batches would copy first.
        """
        key, value = past.append(*self.project(x))
        sight, query = past.sight, self._heads(self.query(x))
        position, projected = (query + self.position_bias) * self.scale, past.positions[..., -sight.num_keys - 1 :]
        if sight.columns is None:
            bias = self._relative(position, projected)
        else:
            scores = torch.bmm(position.flatten(1, 2), projected).view(*query.shape[:3], -1)
            bias = scores.gather(-1, sight.columns.expand(len(scores), -1, -1, -1))
        bias = bias.transpose(0, 1)
        if sight.unseen is not None:
            bias = bias.masked_fill_(sight.unseen, -math.inf)
        content = (query + self.content_bias).transpose(0, 1)
        return self.out(merge_heads(F.scaled_dot_product_attention(content, key, value, attn_mask=bias)))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (H, B, L, D/H): heads come first, so that the batch shares one matrix of projected distances."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(2, 0, 1, 3)

    def _relative(self, query: Tensor, projected: Tensor) -> Tensor:
        """query_i . projected_{i-j}, (H, B, T, N), from query (H, B, T, D/H) and projected distances (H, D/H, N + 1).

        One product gives each token its scores with all distances, and row i must move T - 1 - i to the left (the
        relative shift of appendix B). With the extra column of distance -1 that is a view: rows of N in those of N + 1.
        """
        length, num_keys = query.shape[2], projected.shape[2] - 1
        scores = torch.bmm(query.flatten(1, 2), projected).view(*query.shape[:2], -1)
        return scores[..., length - 1 : length - 1 + length * num_keys].unflatten(-1, (length, num_keys))


class RelativeLayer(nn.Module):
    """A pre-norm block whose attention also sees memories: inputs that the same layer had in earlier segments."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention, self.attention = nn.LayerNorm(d_model), RelativeAttention(d_model, num_heads)
        self.norm_feed_forward, self.feed_forward = nn.LayerNorm(d_model), FeedForward(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memories: Sequence[Tensor], positions: Tensor, unfilled: Tensor | None) -> Tensor:
        """x (B, T, D); memories, oldest first, each (B, M, D); positions (N + 1, D); unfilled bool (B, N - T)."""
        context = self.norm_attention(torch.cat([*memories, x], dim=1))
        x = x + self.dropout(self.attention(context[:, -x.shape[1] :], context, positions, unfilled))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))

    def extend(self, x: Tensor, past: RelativePast) -> Tensor:
        """What `forward` gives for x (B, T, D) behind the past, which takes it in."""
        x = x + self.attention.extend(self.norm_attention(x), past)
        return x + self.feed_forward(self.norm_feed_forward(x))

    def usage(self, x: Tensor, memories: Sequence[Tensor], positions: Tensor, unfilled: Tensor | None, real: Tensor) -> Tensor:
        """How much attention each key gets from the real tokens (bool (B, T)), over all heads: (B, N)."""
        context = self.norm_attention(torch.cat([*memories, x], dim=1))
        key = F.linear(context, self.attention.key_value.weight[: x.shape[-1]])
        weights = self.attention.weights(context[:, -x.shape[1] :], key, positions, unfilled)
        return (weights.sum(0) * real[..., None]).sum(1)

    def content_attention(self, x: Tensor, memories: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k / sqrt(D/H)) v of Rae et al. (2020), Algorithm 2: no positions, no gradient for this layer's weights.

        x (B, T, D); memories (B, M, D); mask bool (B, 1, 1, M), True where a memory may be seen.
        """
        num_heads = self.attention.num_heads
        query = split_heads(F.linear(self._norm_detached(x), self.attention.query.weight.detach()), num_heads)
        key_value = F.linear(self._norm_detached(memories), self.attention.key_value.weight.detach())
        key, value = (split_heads(part, num_heads) for part in key_value.chunk(2, dim=-1))
        return merge_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))

    def _norm_detached(self, x: Tensor) -> Tensor:
        norm = self.norm_attention
        return F.layer_norm(x, norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps)


def stack_layers(num_layers: int, d_model: int, num_heads: int, d_ff: int, dropout: float) -> Sequence[RelativeLayer]:
    """A `ModuleList` of layers, typed as what is in it."""
    layers = nn.ModuleList(RelativeLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
    return cast(Sequence[RelativeLayer], layers)


def begin_rows(layers: Sequence[RelativeLayer], memories: Tensor, num_slots: int, length: int) -> tuple[Tensor, ...]:
    """Room for a segment behind the memories, which are (B, Y, m, D), the latest of M slots; the last place is for padding.

    Returns keys and values (B, Y, H, M + L + 1, D/H), with those of the memories in place, and inputs (B, Y, L + 1, D).
    """
    projected = [layer.attention.project(layer.norm_attention(memories[:, y])) for y, layer in enumerate(layers)]
    room = (0, 0, num_slots - memories.shape[2], length + 1)
    keys, values = (F.pad(torch.stack(part, dim=1), room) for part in zip(*projected, strict=True))
    return keys, values, memories.new_zeros(*memories.shape[:2], length + 1, memories.shape[3])


def begin_positions(layers: Sequence[RelativeLayer], num_keys: int, like: Tensor) -> Tensor:
    """All layers' projected distances, (Y, H, D/H, N + 1)."""
    positions = sinusoids(num_keys, like)
    return torch.stack([layer.attention.project_positions(positions) for layer in layers])


def extend_layers(
    layers: Sequence[RelativeLayer], cache: Cache, x: Tensor, places: Places, num_filled: int, unfilled: Tensor | None
) -> Tensor:
    """The last layer's output for new embeddings x (B, T, D), which go into the cache; see `Sight.at`."""
    keys, values, inputs = cache.rows[-3:]  # of `begin_rows`
    sight = Sight.at(places, keys.shape[3] - inputs.shape[2], num_filled, unfilled)
    for y, layer in enumerate(layers):
        places.put(inputs[:, y], x)
        x = layer.extend(x, RelativePast(keys[:, y], values[:, y], cache.shared[0][y], sight))
    return x
