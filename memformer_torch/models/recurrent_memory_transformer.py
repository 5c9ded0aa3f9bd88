"""Baseline: Recurrent Memory Transformer (Bulatov et al. 2022), decoder-only.

Memory vectors stand before the segment, where its tokens read them, and again behind it, where they are written:

    [memory; inputs; memory]  ->  [...; hidden of the inputs; the next memory]
"""

# Shape letters: B batch, Y layers, T target tokens, N new inputs, M memory tokens, L = M + T + M, D width, H heads

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
class RecurrentMemoryTransformerConfig(VocabularyConfig):
    """Defaults are the sizes of the other image models."""

    d_model: int = 128
    """Width of tokens and memory."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int = 256
    """Width inside the feed-forward branch."""
    num_layers: int = 8
    """Layers."""
    segment_length: int = 14
    """Most target tokens in one step."""
    num_memory_tokens: int = 8
    """Vectors that are carried from segment to segment."""
    dropout: float = 0.1
    """On embeddings and residual branches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self)


class RecurrentMemoryTransformerState(NamedTuple):
    memory: Tensor
    """(B, M, D)."""


class RecurrentMemoryTransformerCache(NamedTuple):
    """A segment while it is decoded, L for T = `segment_length`."""

    memory: Tensor
    """(B, M, D): that before the segment."""
    keys: Tensor
    """(B, Y, H, L, D/H): the memory read, the inputs, the memory written, whose first place is padding's until then."""
    values: Tensor


class _Last(NamedTuple):
    """What the last layer's output at the inputs takes, and the state does not."""

    x: Tensor
    """(B, L, D): the last layer's input."""
    key_value: tuple[Tensor, Tensor]
    """Each (B, H, L, D/H)."""
    rotary: Rotary
    mask: Tensor
    """bool (1 or B, 1, L, L), True where a key may be seen."""


class RecurrentMemoryTransformer(nn.Module, Pretrained):
    """The memory is the last layer's output where it is written, after a layer norm of its own.

    So it has the scale of an embedding, however many segments are read.
    """

    def __init__(self, config: RecurrentMemoryTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config.vocab_size, config.d_model, config.cutoffs)
        self.initial_memory = nn.Parameter(torch.randn(config.num_memory_tokens, config.d_model))
        self.blocks = stack_blocks(config.num_layers, config.d_model, config.num_heads, config.d_ff, config.dropout)
        self.norm, self.norm_memory = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, segment: Segment, state: RecurrentMemoryTransformerState) -> Output:
        """Predict the segment's target: logits (B, T, V) and the state after its inputs."""
        hidden, state = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: RecurrentMemoryTransformerState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state)

    def advance(self, segment: Segment, state: RecurrentMemoryTransformerState) -> RecurrentMemoryTransformerState:
        """The state that `forward` gives; the last layer computes it where the memory is written, and nowhere else."""
        return self._read_and_write(segment, state)[0]

    def initial_state(self, batch_size: int) -> RecurrentMemoryTransformerState:
        """The same for every sample; it is learned, so it requires gradient."""
        return RecurrentMemoryTransformerState(self.initial_memory.expand(batch_size, -1, -1))

    def check(self, segment: Segment, state: RecurrentMemoryTransformerState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        check_segment(segment, self.config.vocab_size, self.config.segment_length)
        if state is not None:
            check_state(state, memory=(segment.source.shape[0], self.config.num_memory_tokens, self.config.d_model))

    def begin(self, source: Tensor, state: RecurrentMemoryTransformerState) -> Cache:
        """Read the memory (see `nn.past`)."""
        self.check(Segment(source, torch.full_like(source, IGNORE)), state)
        config, memory = self.config, state.memory.clone()
        length = config.segment_length + 2 * config.num_memory_tokens
        size = (len(memory), config.num_layers, config.num_heads, length, config.d_model // config.num_heads)
        rows = RecurrentMemoryTransformerCache(memory, memory.new_zeros(size), memory.new_zeros(size))
        self._extend(rows, memory, self._memory_places(0))
        return Cache(rows)

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N): (B, N, D), from which what follows each is predicted."""
        places = places.behind(self.config.num_memory_tokens)
        return self.norm(self._extend(cache.rows, self.embedding(inputs), places, places.mask()))

    def finish(self, cache: Cache) -> RecurrentMemoryTransformerState:
        """Write the memory: the state after the segment."""
        places = self._memory_places(self.config.num_memory_tokens + self.config.segment_length)
        return RecurrentMemoryTransformerState(self.norm_memory(self._extend(cache.rows, cache.rows.memory, places)))

    def _extend(self, rows: RecurrentMemoryTransformerCache, x: Tensor, places: Places, mask: Tensor | None = None) -> Tensor:
        rotary = self._rotary_at(places.at - self.config.num_memory_tokens)  # places count from the first memory token
        return extend_blocks(self.blocks, x, rows.keys, rows.values, rotary, places, mask)

    def _memory_places(self, start: int) -> Places:
        end = start + self.config.num_memory_tokens
        return Places(torch.arange(start, end, device=self.initial_memory.device)[None], end)

    def _hidden(
        self, segment: Segment, state: RecurrentMemoryTransformerState
    ) -> tuple[Tensor, RecurrentMemoryTransformerState]:
        """What the target is predicted from, (B, T, D), and the state after the inputs."""
        state, last = self._read_and_write(segment, state)
        inputs = slice(self.config.num_memory_tokens, -self.config.num_memory_tokens)
        return self.norm(self._finish(last, inputs)), state

    def _read_and_write(
        self, segment: Segment, state: RecurrentMemoryTransformerState
    ) -> tuple[RecurrentMemoryTransformerState, _Last]:
        self.check(segment, state)
        memory, real = state.memory, segment.target != IGNORE
        if segment.reset is not None:
            memory = torch.where(segment.reset[:, None, None], self.initial_memory, memory)

        x = torch.cat([memory, self.dropout(self.embedding(decoder_input(segment))), memory], dim=1)
        rotary, mask = self._rotary(real.shape[1]), self._mask(real)
        for block in self.blocks[:-1]:
            x = block(x, block.project(x, rotary), rotary, mask)
        last = _Last(x, self.blocks[-1].project(x, rotary), rotary, mask)

        # Written first, and apart from the inputs, so that `advance` draws the dropout masks of `forward`.
        written = self.norm_memory(self._finish(last, slice(-self.config.num_memory_tokens, None)))
        memory = torch.where(real[:, :1, None], written, memory)  # without an input there is nothing to write
        return RecurrentMemoryTransformerState(memory), last

    def _finish(self, last: _Last, span: slice) -> Tensor:
        """The last layer's output at some positions."""
        rotary = Rotary(last.rotary.turn[:, span])
        return self.blocks[-1](last.x[:, span], last.key_value, rotary, last.mask[:, :, span])

    def _rotary(self, num_inputs: int) -> Rotary:
        """Read at -M..-1, inputs at 0..T-1, write from `segment_length` on: a shorter or padded segment moves nothing."""
        device, num_memory = self.initial_memory.device, self.config.num_memory_tokens
        write = torch.arange(num_memory, device=device) + self.config.segment_length
        return self._rotary_at(torch.cat([torch.arange(-num_memory, num_inputs, device=device), write])[None])

    def _rotary_at(self, positions: Tensor) -> Rotary:
        return Rotary.at(positions, self.config.d_model // self.config.num_heads, self.initial_memory.dtype)

    def _mask(self, real: Tensor) -> Tensor:
        """Who sees whom, from which inputs are real (B, T): everything sees itself and what is of lower or equal order."""
        if real.all():
            real = real[:1]  # one mask for all samples
        num_inputs, num_memory = real.shape[1], (self.config.num_memory_tokens, 0)
        order = torch.arange(1, num_inputs + 1, device=real.device).where(real, num_inputs + 2)  # padding: after the write
        order = F.pad(F.pad(order, num_memory, value=0), num_memory[::-1], value=num_inputs + 1)
        return order[:, None, :, None] >= order[:, None, None, :]
