"""Transformer-XL (Dai et al., 2019): each layer also attends to the inputs it had in earlier segments.

The memory is a first-in, first-out queue a layer. No gradient goes into it, so that what is older than the memory of
each layer, counted from its segment's start, is out of reach, and what is inside costs layers x slots x width a sequence.
"""

# Shape letters: B batch, T target tokens, Y layers, M memory slots, N keys, D width

from dataclasses import dataclass
from typing import NamedTuple

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from memformer_torch.nn.relative_attention import push, sinusoids, stack_layers, unfilled_slots
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


class TransformerXL(nn.Module, PyTorchModelHubMixin):
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
        return self._remember(segment, state, self._run(segment, state, self.config.num_layers - 1))

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

    def _hidden(self, segment: Segment, state: TransformerXLState) -> tuple[Tensor, TransformerXLState]:
        """What the target is predicted from, (B, T, D), and the state after the real inputs."""
        state = self._begin(segment, state)
        inputs = self._run(segment, state)
        return self.norm(inputs[-1]), self._remember(segment, state, inputs[:-1])

    def _begin(self, segment: Segment, state: TransformerXLState) -> TransformerXLState:
        self.check(segment, state)
        memory, length = state.memory.detach(), state.length
        if segment.reset is not None:
            memory = memory.masked_fill(segment.reset[:, None, None, None], 0)
            length = length.masked_fill(segment.reset, 0)
        return TransformerXLState(memory, length)

    def _run(self, segment: Segment, state: TransformerXLState, num_layers: int | None = None) -> list[Tensor]:
        """What goes into the first layer, and what comes out of each of the first `num_layers`; each (B, T, D)."""
        longest = int(state.length.max())
        memory = state.memory[:, :, self.config.memory_length - longest :]  # slots that no row has filled cost nothing
        empty = unfilled_slots(state.length, longest)
        unfilled = empty if empty.any() else None
        positions = sinusoids(longest + segment.target.shape[1], self.norm.weight)

        hidden = [self.dropout(self.embedding(decoder_input(segment)))]
        for index, layer in enumerate(self.layers[:num_layers]):
            hidden.append(layer(hidden[-1], [memory[:, index]], positions, unfilled))
        return hidden

    def _remember(self, segment: Segment, state: TransformerXLState, inputs: list[Tensor]) -> TransformerXLState:
        """The state after each row's real tokens; inputs of all layers, each (B, T, D)."""
        count = (segment.target != IGNORE).sum(1)
        memory = push(state.memory, torch.stack(inputs, dim=1).detach(), count)
        return TransformerXLState(memory, (state.length + count).clamp(max=self.config.memory_length))
