"""Baseline: a decoder-only Transformer that attends to everything it has read.

The state is the cache of all keys and values, so it grows with the sequence; segment by segment gives what one pass gives.
"""

# Shape letters: B batch, Y layers, H heads, N tokens read so far, T target tokens, L segment length, D width

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.attention import Rotary
from memformer_torch.nn.block import extend_blocks, stack_blocks
from memformer_torch.nn.past import Cache, Places
from memformer_torch.nn.pretrained import Pretrained
from memformer_torch.nn.sizes import check_sizes
from memformer_torch.nn.vocabulary import LargeVocabularyOnly, VocabularyConfig, make_embedding
from memformer_torch.types import IGNORE, Output, Segment, TokenLosses, check_segment, check_state, decoder_input


@dataclass(frozen=True, kw_only=True)
class TransformerDecoderConfig(VocabularyConfig):
    """Defaults are the paper's image model (Table 1, 8 layers), which sees a whole image of 784 pixels."""

    d_model: int = 128
    """Width of tokens."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int = 256
    """Width inside the feed-forward branch."""
    num_layers: int = 8
    """Layers."""
    segment_length: int = 14
    """Most target tokens in one step; as many as `max_length` read a sequence in one pass."""
    max_length: int = 784
    """Most tokens of a document: what the cache may grow to."""
    dropout: float = 0.1
    """On embeddings and residual branches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self)


class TransformerDecoderState(NamedTuple):
    keys: Tensor
    """(B, Y, H, N, D/H): every layer's, turned to their positions; a sample's first `length` are real, the rest zeros."""
    values: Tensor
    """(B, Y, H, N, D/H)."""
    length: Tensor
    """int64 (B,): tokens that a sample has read; N is the largest."""


class TransformerDecoderCache(NamedTuple):
    """A state with room for a segment."""

    keys: Tensor
    """(B, Y, H, N + L + 1, D/H): a sample's segment begins at its `length`."""
    values: Tensor
    length: Tensor
    """int64 (B,): tokens that a sample had read before the segment."""


class _Last(NamedTuple):
    """What the last layer's output takes, and the state does not."""

    x: Tensor
    """(B, T, D): the last layer's input."""
    key_value: tuple[Tensor, Tensor]
    """Each (B, H, N + T, D/H)."""
    rotary: Rotary
    mask: Tensor | None
    """bool (T, N + T) or (B, 1, T, N + T); None if nothing was read before: then the kernel's own causal mask does."""


class TransformerDecoder(nn.Module, Pretrained):
    def __init__(self, config: TransformerDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config.vocab_size, config.d_model, config.cutoffs)
        self.blocks = stack_blocks(config.num_layers, config.d_model, config.num_heads, config.d_ff, config.dropout)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, segment: Segment, state: TransformerDecoderState) -> Output:
        """Predict the segment's target: logits (B, T, V) and the state after its inputs."""
        hidden, state = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: TransformerDecoderState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state)

    def advance(self, segment: Segment, state: TransformerDecoderState) -> TransformerDecoderState:
        """The state that `forward` gives; of the last layer it takes the keys and values alone."""
        return self._read(segment, state)[0]

    def initial_state(self, batch_size: int) -> TransformerDecoderState:
        """Nothing read: an empty cache."""
        d_head = self.config.d_model // self.config.num_heads
        empty = self.norm.weight.new_zeros(batch_size, self.config.num_layers, self.config.num_heads, 0, d_head)
        length = torch.zeros(batch_size, dtype=torch.int64, device=empty.device)
        return TransformerDecoderState(empty, empty.clone(), length)

    def check(self, segment: Segment, state: TransformerDecoderState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        check_segment(segment, self.config.vocab_size, self.config.segment_length)
        if state is None:
            return
        batch_size, num_heads = segment.source.shape[0], self.config.num_heads
        cache = (batch_size, self.config.num_layers, num_heads, -1, self.config.d_model // num_heads)
        check_state(state, keys=cache, values=cache, length=(batch_size,))
        longest = int((_length_before(segment, state) + _num_inputs(segment)).max())
        if longest > self.config.max_length:
            raise ValueError(
                f"a document reaches {longest} tokens, but max_length is {self.config.max_length}: "
                "reset at or before that length, or raise max_length"
            )

    def begin(self, source: Tensor, state: TransformerDecoderState) -> Cache:
        """Make room for a segment (see `nn.past`); whoever extends it sees to it that its inputs keep to `max_length`."""
        self.check(Segment(source, torch.full_like(source, IGNORE)), state)
        room = (0, 0, 0, self.config.segment_length + 1)
        return Cache(TransformerDecoderCache(F.pad(state.keys, room), F.pad(state.values, room), state.length.clone()))

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N): (B, N, D), from which what follows each is predicted."""
        keys, values, length = cache.rows
        shortest, longest = torch.stack([length.min(), length.max()]).tolist()
        before = length[:1] if shortest == longest else length  # places that are the same for all samples stay so
        places = Places(before[:, None] + places.at, longest + places.end)
        rotary = Rotary.at(places.at, keys.shape[-1], self.norm.weight.dtype)
        return self.norm(extend_blocks(self.blocks, self.embedding(inputs), keys, values, rotary, places, places.mask()))

    def finish(self, cache: Cache) -> TransformerDecoderState:
        """The state after the segment."""
        keys, values, length = cache.rows
        length = length + self.config.segment_length
        column = torch.arange(int(length.max()), device=length.device)
        keys, values = keys[..., : len(column), :], values[..., : len(column), :]
        unread = (column >= length[:, None])[:, None, None, :, None]
        if unread.any():  # where padding may have stood
            keys, values = keys.masked_fill(unread, 0), values.masked_fill(unread, 0)
        return TransformerDecoderState(keys, values, length)

    def _hidden(self, segment: Segment, state: TransformerDecoderState) -> tuple[Tensor, TransformerDecoderState]:
        """What the target is predicted from, (B, T, D), and the state after the inputs."""
        state, last = self._read(segment, state)
        x = self.blocks[-1](last.x, last.key_value, last.rotary, last.mask, causal=last.mask is None)
        return self.norm(x), state

    def _read(self, segment: Segment, state: TransformerDecoderState) -> tuple[TransformerDecoderState, _Last]:
        self.check(segment, state)
        length, num_new = _length_before(segment, state), segment.target.shape[1]
        shortest, longest = torch.stack([length.min(), length.max()]).tolist()
        keys, values = state.keys[..., :longest, :], state.values[..., :longest, :]  # a reset may have left less
        if segment.reset is not None and longest:  # a mask alone would let through what is not a number
            gone = segment.reset[:, None, None, None, None]
            keys, values = keys.masked_fill(gone, 0), values.masked_fill(gone, 0)

        steps = torch.arange(num_new, device=length.device)
        rotary = Rotary.at(length[:, None] + steps, keys.shape[-1], self.norm.weight.dtype)
        mask = _mask(length, shortest, longest, num_new) if longest else None

        x = self.dropout(self.embedding(decoder_input(segment)))
        caches = []
        for layer, block in enumerate(self.blocks):
            key, value = block.project(x, rotary)
            key, value = torch.cat([keys[:, layer], key], dim=2), torch.cat([values[:, layer], value], dim=2)
            caches.append((key, value))
            if layer + 1 < len(self.blocks):
                x = block(x, (key, value), rotary, mask, causal=mask is None)

        keys, values = (torch.stack(layers, dim=1) for layers in zip(*caches, strict=True))
        num_inputs = _num_inputs(segment)
        if shortest < longest or num_inputs.min() < num_new:
            keys, values = (_left_align(cache, longest, length, num_inputs) for cache in (keys, values))
        return TransformerDecoderState(keys, values, length + num_inputs), _Last(x, (key, value), rotary, mask)


def _length_before(segment: Segment, state: TransformerDecoderState) -> Tensor:
    return state.length if segment.reset is None else state.length.masked_fill(segment.reset, 0)


def _num_inputs(segment: Segment) -> Tensor:
    """How many inputs of each sample are real, (B,): as many as its targets."""
    return (segment.target != IGNORE).sum(1)


def _mask(length: Tensor, shortest: int, longest: int, num_new: int) -> Tensor:
    """Who sees whom; padding needs no mask, since it ends a segment: the order hides it from what is real."""
    mask = torch.ones(num_new, longest + num_new, dtype=torch.bool, device=length.device).tril(longest)
    if shortest == longest:
        return mask
    real = torch.arange(longest, device=length.device) < length[:, None]
    return mask & F.pad(real, (0, num_new), value=True)[:, None, None]


def _left_align(cache: Tensor, num_old: int, length: Tensor, num_inputs: Tensor) -> Tensor:
    """Drop what is not real: from (B, Y, H, num_old + T, D/H) each sample's first `length` and, of the new, `num_inputs`."""
    after = (length + num_inputs)[:, None]
    column = torch.arange(int(after.max()), device=cache.device)
    index = torch.where(column < length[:, None], column, column - length[:, None] + num_old)
    index = index.clamp(max=cache.shape[3] - 1)[:, None, None, :, None]
    kept = cache.gather(3, index.expand(-1, *cache.shape[1:3], -1, cache.shape[4]))
    return kept.masked_fill((column >= after)[:, None, None, :, None], 0)
