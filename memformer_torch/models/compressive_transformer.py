"""Compressive Transformer (Rae et al., 2020): a Transformer-XL whose oldest memories are compressed before they are lost.

Each layer has two queues: `memory`, and behind it `compressed`, where one vector stands for `compression_ratio` memories.
Memories leave in whole groups of that size, as soon as the first of a group must: after t tokens, the smallest multiple of
the ratio that is at least t - memory_length have left, however the tokens came in segments. So a full memory holds between
memory_length - compression_ratio + 1 and memory_length tokens: exactly memory_length where the ratio divides the segments'
length too.
Positions count slots: the newest compressed memory stands one beyond the memory's first slot, filled or not.
"""

# Shape letters: B batch, T target tokens, Y layers, M memory slots, C compressed slots, E old memories, G groups, D width,
# H heads, L segment length

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from memformer_torch.nn.compression import (
    Compression,
    LayerwiseLinear,
    attention_reconstruction,
    autoencoding_reconstruction,
    most_attended,
)
from memformer_torch.nn.past import Cache, Places
from memformer_torch.nn.pretrained import Pretrained
from memformer_torch.nn.relative_attention import (
    begin_positions,
    begin_rows,
    extend_layers,
    push,
    sinusoids,
    stack_layers,
    unfilled_slots,
    windows,
)
from memformer_torch.nn.sizes import check_sizes
from memformer_torch.nn.vocabulary import LargeVocabularyOnly, VocabularyConfig, make_embedding
from memformer_torch.types import IGNORE, Output, Segment, TokenLosses, check_segment, check_state, decoder_input


@dataclass(frozen=True, kw_only=True)
class CompressiveTransformerConfig(VocabularyConfig):
    """Defaults are those of Transformer-XL, with as many tokens again in compressed form."""

    d_model: int = 128
    """Width of tokens and memories."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int = 256
    """Width inside the feed-forward branch."""
    num_layers: int = 8
    """Layers, each with memories of its own."""
    segment_length: int = 14
    """Most tokens in a source or a target."""
    memory_length: int = 224
    """Tokens a layer remembers as they are."""
    compressed_length: int = 56
    """Compressed memories a layer keeps; 0 means none, and a plain Transformer-XL."""
    compression_ratio: int = 4
    """Memories that one compressed memory stands for (c in the paper)."""
    compression: Literal["convolution", "mean", "max", "most_attended"] = "convolution"
    """How they become one; "most_attended" keeps those that this segment attended to most."""
    reconstruction: Literal["attention", "autoencoding", "none"] = "attention"
    """The auxiliary loss, which alone trains the convolution; the other compressions have nothing to train, and no loss."""
    dropout: float = 0.1
    """On embeddings and residual branches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, may_be_zero={"memory_length", "compressed_length"})
        if self.compressed_length and (not self.memory_length or self.memory_length % self.compression_ratio):
            raise ValueError(
                f"memory_length is {self.memory_length}, which compression_ratio {self.compression_ratio} does not divide: "
                "memories leave in whole groups of that size"
            )
        if self.compression not in ("convolution", "mean", "max", "most_attended"):
            raise ValueError(
                f'compression is {self.compression!r}, but must be "convolution", "mean", "max" or "most_attended"'
            )
        if self.reconstruction not in ("attention", "autoencoding", "none"):
            raise ValueError(f'reconstruction is {self.reconstruction!r}, but must be "attention", "autoencoding" or "none"')


class CompressiveTransformerState(NamedTuple):
    memory: Tensor
    """(B, Y, M, D): each layer's latest inputs, the newest last."""
    length: Tensor
    """int64 (B,): how many of them are filled and not yet compressed."""
    compressed: Tensor
    """(B, Y, C, D): what became of the memories before them, the newest last."""
    compressed_filled: Tensor
    """int64 (B,): how many of these are filled."""


class Context(NamedTuple):
    """What a segment's tokens may attend to beside themselves."""

    compressed: Tensor
    """(B, Y, c, D): without the slots that no row has filled."""
    memory: Tensor
    """(B, Y, m, D): likewise, while nothing is compressed."""
    unfilled: Tensor | None
    """bool (B, c + m), True where a row has nothing; None if all have all."""
    positions: Tensor
    """(N + 1, D): the sinusoids of all distances."""


class Compressed(NamedTuple):
    """Memories that left the memory, and what became of them."""

    old: Tensor
    """(B, Y, E, D)"""
    new: Tensor
    """(B, Y, G, D), with the graph of the compression."""
    groups: Tensor
    """int64 (B,): how many of the G are real."""


class CompressiveTransformerCache(NamedTuple):
    """A segment while it is decoded."""

    memory: Tensor
    """The state before the segment."""
    length: Tensor
    compressed: Tensor
    compressed_filled: Tensor
    keys: Tensor
    """(B, Y, H, C + M + L + 1, D/H): of the compressed and the memory, made once, and of the segment so far."""
    values: Tensor
    inputs: Tensor
    """(B, Y, L + 1, D): what the layers will remember."""


class CompressiveTransformer(nn.Module, Pretrained):
    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config.vocab_size, config.d_model, config.cutoffs)
        self.layers = stack_layers(config.num_layers, config.d_model, config.num_heads, config.d_ff, config.dropout)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        if config.compressed_length and config.compression != "most_attended":
            self.compression = Compression(config.compression, config.num_layers, config.d_model, config.compression_ratio)
        if self._is_trained and config.reconstruction == "autoencoding":
            self.decoder = LayerwiseLinear(config.num_layers, config.d_model, config.compression_ratio * config.d_model)

    @property
    def _is_trained(self) -> bool:
        """Whether there is a compression network and a loss for it."""
        config = self.config
        return config.compressed_length > 0 and config.compression == "convolution" and config.reconstruction != "none"

    def forward(self, segment: Segment, state: CompressiveTransformerState) -> Output:
        """Predict the segment's target: logits (B, T, V), the state after its real inputs, and the compression's loss.

        The loss is None where gradients are off: it is there to be differentiated.
        """
        hidden, state, auxiliary = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state, auxiliary)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: CompressiveTransformerState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state, auxiliary = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state, auxiliary)

    def advance(self, segment: Segment, state: CompressiveTransformerState) -> CompressiveTransformerState:
        """The state that `forward` gives, without the last layer, whose output nobody remembers, and without logits."""
        state = self._begin(segment, state)
        if not self.config.memory_length and not self.config.compressed_length:
            return state
        context = self._context(state, segment.target.shape[1])
        inputs = self._run(segment, context, self.config.num_layers - 1)
        return self._remember(state, context, inputs, segment.target != IGNORE)[0]

    def initial_state(self, batch_size: int) -> CompressiveTransformerState:
        """Nothing remembered."""
        config, weight = self.config, self.norm.weight
        return CompressiveTransformerState(
            weight.new_zeros(batch_size, config.num_layers, config.memory_length, config.d_model),
            weight.new_zeros(batch_size, dtype=torch.int64),
            weight.new_zeros(batch_size, config.num_layers, config.compressed_length, config.d_model),
            weight.new_zeros(batch_size, dtype=torch.int64),
        )

    def check(self, segment: Segment, state: CompressiveTransformerState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        config, batch_size = self.config, segment.source.shape[0]
        check_segment(segment, config.vocab_size, config.segment_length)
        if state is not None:
            memory = (batch_size, config.num_layers, config.memory_length, config.d_model)
            compressed = (batch_size, config.num_layers, config.compressed_length, config.d_model)
            check_state(state, memory=memory, length=(batch_size,), compressed=compressed, compressed_filled=(batch_size,))

    def begin(self, source: Tensor, state: CompressiveTransformerState) -> Cache:
        """Keys and values of what is remembered, and room for the segment's (see `nn.past`)."""
        num_slots, length = self.config.compressed_length + self.config.memory_length, self.config.segment_length
        state = self._begin(Segment(source, source.new_zeros(len(source), 1)), state)
        rows = begin_rows(self.layers, torch.cat(self._filled(state)[:2], dim=2), num_slots, length)
        positions = begin_positions(self.layers, num_slots + length, self.norm.weight)
        return Cache(CompressiveTransformerCache(*(member.clone() for member in state), *rows), (positions,))

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N) of the target: (B, N, D), from which what follows each is predicted."""
        compressed, memory, unfilled = self._filled(CompressiveTransformerState(*cache.rows[:4]))
        num_filled = compressed.shape[2] + memory.shape[2]
        return self.norm(extend_layers(self.layers, cache, self.embedding(inputs), places, num_filled, unfilled))

    def finish(self, cache: Cache) -> CompressiveTransformerState:
        """The state after the segment, all of whose inputs were read."""
        rows, length = cache.rows, self.config.segment_length
        state, inputs = CompressiveTransformerState(*rows[:4]), list(rows.inputs[:, :, :length].unbind(1))
        real = torch.ones(len(rows.inputs), length, dtype=torch.bool, device=rows.inputs.device)
        return self._remember(state, self._context(state, length), inputs, real)[0]

    def _hidden(
        self, segment: Segment, state: CompressiveTransformerState
    ) -> tuple[Tensor, CompressiveTransformerState, Tensor | None]:
        """What the target is predicted from, (B, T, D), the state after the real inputs, and the compression's loss."""
        state = self._begin(segment, state)
        context = self._context(state, segment.target.shape[1])
        hidden = self._run(segment, context)
        state, compressed = self._remember(state, context, hidden[:-1], segment.target != IGNORE)
        auxiliary = None
        if self._is_trained and torch.is_grad_enabled():
            auxiliary = self._reconstruction(segment, hidden[:-1], compressed)
        return self.norm(hidden[-1]), state, auxiliary

    def _begin(self, segment: Segment, state: CompressiveTransformerState) -> CompressiveTransformerState:
        self.check(segment, state)
        members = [member.detach() for member in state]
        if segment.reset is not None:
            members = [m.masked_fill(segment.reset.view(-1, *[1] * (m.dim() - 1)), 0) for m in members]
        return CompressiveTransformerState(*members)

    def _context(self, state: CompressiveTransformerState, length: int) -> Context:
        compressed, memory, unfilled = self._filled(state)
        positions = sinusoids(compressed.shape[2] + memory.shape[2] + length, self.norm.weight)
        return Context(compressed, memory, unfilled, positions)

    def _filled(self, state: CompressiveTransformerState) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is remembered without the slots that no row has filled, as in `Context`."""
        num_compressed = int(state.compressed_filled.max())
        # with compressed memories behind it the memory keeps all its slots, so that their distance is every row's
        num_memories = self.config.memory_length if num_compressed else int(state.length.max())
        empty = torch.cat(
            [unfilled_slots(state.compressed_filled, num_compressed), unfilled_slots(state.length, num_memories)], dim=1
        )
        return (
            state.compressed[:, :, self.config.compressed_length - num_compressed :],
            state.memory[:, :, self.config.memory_length - num_memories :],
            empty if empty.any() else None,
        )

    def _run(self, segment: Segment, context: Context, num_layers: int | None = None) -> list[Tensor]:
        """What goes into the first layer, and what comes out of each of the first `num_layers`; each (B, T, D)."""
        hidden = [self.dropout(self.embedding(decoder_input(segment)))]
        for index, layer in enumerate(self.layers[:num_layers]):
            memories = [context.compressed[:, index], context.memory[:, index]]
            hidden.append(layer(hidden[-1], memories, context.positions, context.unfilled))
        return hidden

    def _remember(
        self, state: CompressiveTransformerState, context: Context, inputs: list[Tensor], real: Tensor
    ) -> tuple[CompressiveTransformerState, Compressed | None]:
        """The state after each row's real tokens (bool (B, T)), and what was compressed for it.

        Inputs of all layers, each (B, T, D).
        """
        config, (memory, length, slots, filled) = self.config, state
        count = real.sum(1)
        new = torch.stack(inputs, dim=1).detach()
        ratio = config.compression_ratio if config.compressed_length else 1  # what nobody keeps need not leave in groups
        groups = ((length + count - config.memory_length).clamp(min=0) + ratio - 1) // ratio
        compressed = None
        if config.compressed_length and groups.any():
            compressed = self._compress(state, context, inputs, real, groups)
            slots = push(slots, compressed.new.detach().to(slots.dtype), groups)
        state = CompressiveTransformerState(
            push(memory, new, count),
            length + count - ratio * groups,
            slots,
            (filled + groups).clamp(max=config.compressed_length),
        )
        return state, compressed

    def _compress(
        self, state: CompressiveTransformerState, context: Context, inputs: list[Tensor], real: Tensor, groups: Tensor
    ) -> Compressed:
        ratio, queue, length = self.config.compression_ratio, state.memory, state.length
        if bool((length < ratio * groups).any()):  # some of the oldest are tokens of this very segment
            queue = torch.cat([queue, torch.stack(inputs, dim=1).detach()], dim=2)
        num_old = ratio * int(groups.max())
        old = windows(queue, self.config.memory_length - length, num_old)
        if self.config.compression != "most_attended":
            return Compressed(old, self.compression(old), groups)

        num_slots = context.compressed.shape[2] + context.memory.shape[2]
        usage = windows(self._usage(context, inputs, real)[..., None], num_slots - length, num_old)
        return Compressed(old, most_attended(old, usage[..., 0], groups, ratio), groups)

    def _usage(self, context: Context, inputs: list[Tensor], real: Tensor) -> Tensor:
        """How much each key was attended to in each layer, (B, Y, N)."""
        usage = []
        for index, (layer, x) in enumerate(zip(self.layers, inputs, strict=True)):
            memories = [context.compressed[:, index], context.memory[:, index]]
            attended = layer.usage(x, memories, context.positions, context.unfilled, real)
            usage.append(attended.detach())  # no_grad would leave autocast with cached weights that have no graph
        return torch.stack(usage, dim=1)

    def _reconstruction(self, segment: Segment, inputs: list[Tensor], compressed: Compressed | None) -> Tensor:
        if compressed is None:  # a zero that reaches the same weights: what is trained does not depend on the data
            trained = [weight for name, weight in self.named_parameters() if name.startswith(("compression.", "decoder."))]
            return torch.stack([weight.sum() for weight in trained]).sum() * 0
        old, new, groups = compressed
        if self.config.reconstruction == "autoencoding":
            return autoencoding_reconstruction(self.decoder, old, new, groups)
        return attention_reconstruction(self.layers, inputs, segment.target != IGNORE, old, new, groups)
