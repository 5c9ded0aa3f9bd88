"""Memformer: reads an endless sequence segment by segment through a fixed number of memory slots (section 3).

One step is `M_{t+1}, O_t = Model(x_t, M_t)` of Algorithm 1: encode the source with the memory, write the memory, decode
the target from the encoder's output.
"""

# Shape letters: B batch, S source tokens, C classification tokens, T target tokens, K slots, D width

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.attention import CrossAttention, Rotary, SelfAttention
from memformer_torch.nn.feed_forward import FeedForward
from memformer_torch.nn.memory import Forgetting, MemoryWriter
from memformer_torch.nn.past import Cache, Past, Places
from memformer_torch.nn.pretrained import Pretrained
from memformer_torch.nn.sizes import check_sizes
from memformer_torch.nn.vocabulary import LargeVocabularyOnly, VocabularyConfig, make_embedding
from memformer_torch.types import PAD, Output, Segment, TokenLosses, check_segment, check_state, decoder_input


@dataclass(frozen=True, kw_only=True)
class MemformerConfig(VocabularyConfig):
    """Defaults are the paper's image model (Table 1, 4 encoder + 8 decoder layers)."""

    d_model: int = 128
    """Width of tokens and slots."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int = 256
    """Width inside the feed-forward branch."""
    num_encoder_layers: int = 4
    """Layers that read the segment and the memory."""
    num_decoder_layers: int = 8
    """Layers that predict the next segment."""
    segment_length: int = 14
    """Most tokens in a source or a target."""
    num_slots: int = 64
    """Memory slots a sequence (k in the paper); 0 removes the memory: no writer, no reader."""
    temperature: float = 0.25
    """Divides the writer's attention logits; below 1 it sharpens them (tau in the paper)."""
    dropout: float = 0.1
    """On embeddings and residual branches."""
    num_cls_tokens: int = 1
    """Learned vectors appended to the source, which the encoder and the writer see."""
    num_writer_heads: int | None = None
    """Heads of the writer; None means `num_heads`, 1 is the paper's "w/o multi-head"."""
    forgetting: bool = True
    """Add the learned bias at each write; False is the paper's "w/o forgetting"."""
    memory_norm: bool = True
    """Bring slots back to length 1 at each write; False, without forgetting, drops the whole mechanism."""
    decoder_reads: Literal["encoder", "encoder+memory"] = "encoder"
    """What the decoder attends to: the encoder's output, or the newly written slots too."""
    bias_length: float = 0.1
    """Length that the forgetting vectors start with; a slot's is 1. A slot that is left alone is forgotten in about 1 / length
    segments: shorter ones hold longer, longer ones make holding something take rewriting it."""
    position_bias: float = 0.0
    """Std that learned biases of queries and keys start with, by which attention can go by position alone; 0: none. With 1 a
    value is found by its key sooner. Values get a bias too, which begins at 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, may_be_zero={"num_slots", "num_cls_tokens"})
        if self.num_writer_heads is not None and (self.num_writer_heads < 1 or self.d_model % self.num_writer_heads):
            raise ValueError(f"d_model is {self.d_model}, which num_writer_heads {self.num_writer_heads} does not divide")
        for name in ("temperature", "bias_length"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be a number above 0")
        if not 0 <= self.position_bias < inf:
            raise ValueError(f"position_bias is {self.position_bias}, but must be a number from 0 on")
        if self.decoder_reads == "encoder+memory" and not self.num_slots:
            raise ValueError('decoder_reads="encoder+memory" needs num_slots above 0')


class MemformerState(NamedTuple):
    memory: Tensor
    """(B, K, D): one vector of length 1 a slot."""


class Encoded(NamedTuple):
    """A source as the encoder leaves it."""

    tokens: Tensor
    """(B, S + C, D): with the classification tokens, for the writer."""
    mask: Tensor | None
    """bool (B, 1, 1, S + C), True where a token is real; None if all are."""
    source: Tensor
    """(B, S, D): without them, for the decoder."""
    source_mask: Tensor | None
    source_rotary: Rotary


class Context(NamedTuple):
    """What a decoder layer attends to beside the target: keys and values, each (B, H, ..., D/H)."""

    source: tuple[Tensor, Tensor]
    source_mask: Tensor | None
    slots: tuple[Tensor, Tensor] | None


class MemformerCache(NamedTuple):
    """A segment while it is decoded, all layers' keys and values made once; Y decoder layers."""

    memory: Tensor
    """(B, K, D): already that after the segment, which the target does not change."""
    source_keys: Tensor
    """(B, Y, H, S, D/H)"""
    source_values: Tensor
    source_mask: Tensor
    """bool (B, 1, 1, S)"""
    slot_keys: Tensor
    """(B, Y, H, K, D/H); without slots unless the decoder reads them."""
    slot_values: Tensor
    keys: Tensor
    """(B, Y, H, L + 1, D/H): of the target so far."""
    values: Tensor


class EncoderLayer(nn.Module):
    def __init__(self, config: MemformerConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.norm_attention = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, config.num_heads, config.position_bias)
        if config.num_slots:
            self.norm_read, self.read = nn.LayerNorm(d_model), CrossAttention(d_model, config.num_heads)
        self.norm_feed_forward, self.feed_forward = nn.LayerNorm(d_model), FeedForward(d_model, config.d_ff)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, slots: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x), rotary, mask))
        if slots.shape[1]:
            x = x + self.dropout(self.read(self.norm_read(x), self.read.project(slots)))  # section 3.3, eq. 1 to 3
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: MemformerConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.norm_attention = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, config.num_heads, config.position_bias)
        self.norm_source = nn.LayerNorm(d_model)
        self.source = CrossAttention(d_model, config.num_heads, config.position_bias)
        if config.decoder_reads == "encoder+memory":
            self.norm_read, self.read = nn.LayerNorm(d_model), CrossAttention(d_model, config.num_heads)
        self.norm_feed_forward, self.feed_forward = nn.LayerNorm(d_model), FeedForward(d_model, config.d_ff)
        self.dropout = nn.Dropout(config.dropout)

    def project(self, encoded: Encoded, slots: Tensor | None) -> Context:
        read = None if slots is None else self.read.project(slots)
        return Context(self.source.project(encoded.source, encoded.source_rotary), encoded.source_mask, read)

    def forward(self, x: Tensor, rotary: Rotary, context: Context, past: Past | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x), rotary, causal=True, past=past))
        x = x + self.dropout(self.source(self.norm_source(x), context.source, rotary, context.source_mask))
        if context.slots is not None:
            x = x + self.dropout(self.read(self.norm_read(x), context.slots))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


class Memformer(nn.Module, Pretrained):
    def __init__(self, config: MemformerConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embedding = make_embedding(config.vocab_size, d_model, config.cutoffs)
        self.cls_tokens = nn.Parameter(torch.randn(config.num_cls_tokens, d_model))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm_encoder = nn.LayerNorm(d_model)
        if config.num_slots:
            self.writer = MemoryWriter(d_model, config.num_writer_heads or config.num_heads, config.temperature)
            self.forgetting = Forgetting(
                config.num_slots, d_model, config.bias_length, add_bias=config.forgetting, normalize=config.memory_norm
            )
        layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.decoder = cast(Sequence[DecoderLayer], layers)
        self.norm_decoder = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, segment: Segment, state: MemformerState) -> Output:
        """Predict the segment's target: logits (B, T, V) and the state after its source."""
        hidden, state = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: MemformerState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state)

    def advance(self, segment: Segment, state: MemformerState) -> MemformerState:
        """The critical path alone: the state that `forward` gives, without decoding."""
        return self._encode_and_write(segment, state)[0]

    def initial_state(self, batch_size: int) -> MemformerState:
        """M_0 = v_bias / |v_bias|, the same for every sample; it is learned, so it requires gradient."""
        if not self.config.num_slots:
            return MemformerState(self.cls_tokens.new_zeros(batch_size, 0, self.config.d_model))
        return MemformerState(self.forgetting.initial().expand(batch_size, -1, -1))

    def check(self, segment: Segment, state: MemformerState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        check_segment(segment, self.config.vocab_size, self.config.segment_length)
        if state is not None:
            check_state(state, memory=(segment.source.shape[0], self.config.num_slots, self.config.d_model))

    def begin(self, source: Tensor, state: MemformerState) -> Cache:
        """Encode and write: all of a segment but its target (see `nn.past`)."""
        config, batch_size = self.config, len(source)
        state, encoded = self._encode_and_write(Segment(source, source.new_zeros(batch_size, 1)), state)
        contexts = [layer.project(encoded, self._decoder_slots(state)) for layer in self.decoder]
        source_keys, source_values = (torch.stack(part, dim=1) for part in zip(*(c.source for c in contexts), strict=True))
        d_head = config.d_model // config.num_heads
        slots = [c.slots or 2 * [source_keys.new_empty(batch_size, config.num_heads, 0, d_head)] for c in contexts]
        slot_keys, slot_values = (torch.stack(part, dim=1) for part in zip(*slots, strict=True))
        mask = encoded.source_mask
        if mask is None:
            mask = torch.ones_like(source, dtype=torch.bool)[:, None, None]
        size = (batch_size, len(self.decoder), config.num_heads, config.segment_length + 1, d_head)
        keys, values = source_keys.new_zeros(size), source_keys.new_zeros(size)
        memory = state.memory
        return Cache(MemformerCache(memory, source_keys, source_values, mask, slot_keys, slot_values, keys, values))

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N) of the target: (B, N, D), from which what follows each is predicted."""
        rows, mask, rotary = cache.rows, places.mask(), self._rotary(places.at)
        source_mask = None if rows.source_mask.all() else rows.source_mask
        x = self.embedding(inputs)
        for index, layer in enumerate(self.decoder):
            slots = (rows.slot_keys[:, index], rows.slot_values[:, index]) if rows.slot_keys.shape[3] else None
            context = Context((rows.source_keys[:, index], rows.source_values[:, index]), source_mask, slots)
            x = layer(x, rotary, context, Past(rows.keys[:, index], rows.values[:, index], places, mask))
        return self.norm_decoder(x)

    def finish(self, cache: Cache) -> MemformerState:
        """The state after the segment."""
        return MemformerState(cache.rows.memory)

    def _hidden(self, segment: Segment, state: MemformerState) -> tuple[Tensor, MemformerState]:
        """What the target is predicted from, (B, T, D), and the state after the source."""
        state, encoded = self._encode_and_write(segment, state)
        return self._decode(segment, encoded, state), state

    def _encode_and_write(self, segment: Segment, state: MemformerState) -> tuple[MemformerState, Encoded]:
        self.check(segment, state)
        memory = state.memory
        if segment.reset is not None:
            memory = torch.where(segment.reset[:, None, None], self.initial_state(len(memory)).memory, memory)
        slots = memory * self.config.d_model**0.5
        encoded = self._encode(segment.source, slots)
        if self.config.num_slots:
            memory = self._write(slots, encoded)
        return MemformerState(memory), encoded

    def _encode(self, source: Tensor, slots: Tensor) -> Encoded:
        """Read the source and the memory (section 3.3)."""
        (batch_size, length), num_cls = source.shape, self.config.num_cls_tokens
        real = source != PAD
        positions, mask = torch.arange(-length, 0, device=source.device)[None], None
        if not real.all():
            positions = positions + (length - real.sum(1, keepdim=True))  # the last real token stands at -1
            mask = F.pad(real, (0, num_cls), value=True)[:, None, None]
        rotary = self._rotary(F.pad(positions, (0, num_cls)))  # classification tokens are not turned

        x = torch.cat([self.embedding(source), self.cls_tokens.expand(batch_size, -1, -1)], dim=1)
        x = self.dropout(x)
        for layer in self.encoder:
            x = layer(x, slots, rotary, mask)
        x = self.norm_encoder(x)
        return Encoded(
            x, mask, x[:, :length].contiguous(), None if mask is None else mask[..., :length], self._rotary(positions)
        )

    def _write(self, slots: Tensor, encoded: Encoded) -> Tensor:
        """The next memory (section 3.4): each slot takes from itself and the tokens, then forgets a little."""
        taken = self.writer(slots, encoded.tokens, encoded.mask)
        return self.forgetting(taken / self.config.d_model**0.5)

    def _decode(self, segment: Segment, encoded: Encoded, state: MemformerState) -> Tensor:
        """Read the target, (B, T, D), with the encoder's output (section 3.1)."""
        rotary = self._rotary(torch.arange(segment.target.shape[1], device=segment.target.device)[None])
        slots = self._decoder_slots(state)
        x = self.dropout(self.embedding(decoder_input(segment)))
        for layer in self.decoder:
            x = layer(x, rotary, layer.project(encoded, slots))
        return self.norm_decoder(x)

    def _decoder_slots(self, state: MemformerState) -> Tensor | None:
        """The newly written slots, where the decoder reads them."""
        return state.memory * self.config.d_model**0.5 if self.config.decoder_reads == "encoder+memory" else None

    def _rotary(self, positions: Tensor) -> Rotary:
        return Rotary.at(positions, self.config.d_model // self.config.num_heads, self.cls_tokens.dtype)
