"""Transformer-XL (Dai et al., 2019): each layer also attends to the inputs it had in earlier segments.

The memory is a first-in, first-out queue a layer. No gradient goes into it, so that what is older than the memory of
each layer, counted from its segment's start, is out of reach, and what is inside costs layers x slots x width a sequence.
"""

# Shape letters: B batch, T target tokens, Y layers, M memory slots, L segment length, N keys, D width, H heads

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
)
from memformer_torch.nn.sizes import check_sizes
from memformer_torch.nn.vocabulary import LargeVocabularyOnly, VocabularyConfig, make_embedding
from memformer_torch.types import IGNORE, Output, Segment, TokenLosses, check_segment, check_state, decoder_input


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(VocabularyConfig):
    """Defaults are the paper's image model (Table 1)."""

    d_model: int = 128
    """Width of tokens and memories."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int = 256
    """Width inside the feed-forward branch."""
    num_layers: int = 8
    """Layers, each with a memory of its own."""
    segment_length: int = 14
    """Most tokens in a source or a target."""
    memory_length: int = 224
    """Tokens a layer remembers; 0 means none. No weight depends on it: it may differ when a model is evaluated."""
    dropout: float = 0.1
    """On embeddings and residual branches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, may_be_zero={"memory_length"})


class TransformerXLState(NamedTuple):
    memory: Tensor
    """(B, Y, M, D): each layer's latest inputs, the newest last."""
    length: Tensor
    """int64 (B,): how many of them are filled."""


class TransformerXLCache(NamedTuple):
    """A segment while it is decoded."""

    memory: Tensor
    """The state before the segment."""
    length: Tensor
    keys: Tensor
    """(B, Y, H, M + L + 1, D/H): of the memory, made once, and of the segment so far."""
    values: Tensor
    inputs: Tensor
    """(B, Y, L + 1, D): what the layers will remember."""


class TransformerXL(nn.Module, Pretrained):
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config.vocab_size, config.d_model, config.cutoffs)
        self.layers = stack_layers(config.num_layers, config.d_model, config.num_heads, config.d_ff, config.dropout)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, segment: Segment, state: TransformerXLState) -> Output:
        """Predict the segment's target: logits (B, T, V) and the state after its real inputs."""
        hidden, state = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: TransformerXLState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state)

    def advance(self, segment: Segment, state: TransformerXLState) -> TransformerXLState:
        """The state that `forward` gives, without the last layer, whose output nobody remembers, and without logits."""
        state = self._begin(segment, state)
        if not self.config.memory_length:
            return state
        return self._remember(state, self._run(segment, state, self.config.num_layers - 1), _count(segment))

    def initial_state(self, batch_size: int) -> TransformerXLState:
        """Nothing remembered."""
        config, weight = self.config, self.norm.weight
        return TransformerXLState(
            weight.new_zeros(batch_size, config.num_layers, config.memory_length, config.d_model),
            weight.new_zeros(batch_size, dtype=torch.int64),
        )

    def check(self, segment: Segment, state: TransformerXLState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        config, batch_size = self.config, segment.source.shape[0]
        check_segment(segment, config.vocab_size, config.segment_length)
        if state is not None:
            memory = (batch_size, config.num_layers, config.memory_length, config.d_model)
            check_state(state, memory=memory, length=(batch_size,))

    def begin(self, source: Tensor, state: TransformerXLState) -> Cache:
        """Keys and values of the memory, and room for the segment's (see `nn.past`)."""
        config = self.config
        state = self._begin(Segment(source, source.new_zeros(len(source), 1)), state)
        rows = begin_rows(self.layers, self._filled(state)[0], config.memory_length, config.segment_length)
        positions = begin_positions(self.layers, config.memory_length + config.segment_length, self.norm.weight)
        return Cache(TransformerXLCache(*(member.clone() for member in state), *rows), (positions,))

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N) of the target: (B, N, D), from which what follows each is predicted."""
        memory, unfilled = self._filled(TransformerXLState(*cache.rows[:2]))
        return self.norm(extend_layers(self.layers, cache, self.embedding(inputs), places, memory.shape[2], unfilled))

    def finish(self, cache: Cache) -> TransformerXLState:
        """The state after the segment, all of whose inputs were read."""
        rows, length = cache.rows, self.config.segment_length
        inputs = list(rows.inputs[:, :, :length].unbind(1))
        return self._remember(TransformerXLState(*rows[:2]), inputs, torch.full_like(rows.length, length))

    def _hidden(self, segment: Segment, state: TransformerXLState) -> tuple[Tensor, TransformerXLState]:
        """What the target is predicted from, (B, T, D), and the state after the real inputs."""
        state = self._begin(segment, state)
        inputs = self._run(segment, state)
        return self.norm(inputs[-1]), self._remember(state, inputs[:-1], _count(segment))

    def _begin(self, segment: Segment, state: TransformerXLState) -> TransformerXLState:
        self.check(segment, state)
        memory, length = state.memory.detach(), state.length
        if segment.reset is not None:
            memory = memory.masked_fill(segment.reset[:, None, None, None], 0)
            length = length.masked_fill(segment.reset, 0)
        return TransformerXLState(memory, length)

    def _run(self, segment: Segment, state: TransformerXLState, num_layers: int | None = None) -> list[Tensor]:
        """What goes into the first layer, and what comes out of each of the first `num_layers`; each (B, T, D)."""
        memory, unfilled = self._filled(state)
        positions = sinusoids(memory.shape[2] + segment.target.shape[1], self.norm.weight)

        hidden = [self.dropout(self.embedding(decoder_input(segment)))]
        for index, layer in enumerate(self.layers[:num_layers]):
            hidden.append(layer(hidden[-1], [memory[:, index]], positions, unfilled))
        return hidden

    def _filled(self, state: TransformerXLState) -> tuple[Tensor, Tensor | None]:
        """The memory (B, Y, m, D) without the slots that no row has filled; bool (B, m) where a row has nothing, if one has."""
        longest = int(state.length.max())
        empty = unfilled_slots(state.length, longest)
        return state.memory[:, :, self.config.memory_length - longest :], empty if empty.any() else None

    def _remember(self, state: TransformerXLState, inputs: list[Tensor], count: Tensor) -> TransformerXLState:
        """The state after each row's first count[b] tokens; inputs of all layers, each (B, T, D)."""
        memory = push(state.memory, torch.stack(inputs, dim=1).detach(), count)
        return TransformerXLState(memory, (state.length + count).clamp(max=self.config.memory_length))


def _count(segment: Segment) -> Tensor:
    """How many tokens of each row are real, (B,)."""
    return (segment.target != IGNORE).sum(1)
