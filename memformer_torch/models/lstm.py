"""Baseline: an LSTM, whose state is a hidden and a cell vector a layer."""

# Shape letters: B batch, Y layers, T target tokens, N new inputs, D width, U hidden units

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from memformer_torch.nn.past import Cache, Places
from memformer_torch.nn.pretrained import Pretrained
from memformer_torch.nn.sizes import check_sizes
from memformer_torch.nn.vocabulary import LargeVocabularyOnly, VocabularyConfig, make_embedding
from memformer_torch.types import IGNORE, Output, Segment, TokenLosses, check_segment, check_state, decoder_input


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(VocabularyConfig):
    """Defaults are the paper's image model (Table 1, 4 layers of 512)."""

    d_model: int = 128
    """Width of the token embedding, at the input and at the output."""
    hidden_size: int = 512
    """Units a layer."""
    num_layers: int = 4
    """Layers."""
    segment_length: int = 14
    """Most target tokens in one step."""
    dropout: float = 0.1
    """On embeddings and on each layer's output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self)


class LSTMState(NamedTuple):
    hidden: Tensor
    """(B, Y, U)."""
    cell: Tensor
    """(B, Y, U)."""


class LSTM(nn.Module, Pretrained):
    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config.vocab_size, config.d_model, config.cutoffs)
        self.lstm = nn.LSTM(
            config.d_model,
            config.hidden_size,
            config.num_layers,
            batch_first=True,
            dropout=config.dropout if config.num_layers > 1 else 0.0,  # torch drops between layers, and warns if it cannot
        )
        self.out = nn.Linear(config.hidden_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("bias_ih"):  # the forget gates start open (Jozefowicz et al. 2015)
                nn.init.ones_(parameter.data[config.hidden_size : 2 * config.hidden_size])

    def forward(self, segment: Segment, state: LSTMState) -> Output:
        """Predict the segment's target: logits (B, T, V) and the state after its inputs."""
        hidden, state = self._hidden(segment, state)
        return Output(self.embedding.logits(hidden), state)

    @LargeVocabularyOnly
    def token_losses(self, segment: Segment, state: LSTMState) -> TokenLosses:
        """What `forward` gives, as the losses (B, T) of the target's tokens: with `cutoffs`, no full logits are built."""
        hidden, state = self._hidden(segment, state)
        return TokenLosses(self.embedding.losses(hidden, segment.target), state)

    def advance(self, segment: Segment, state: LSTMState) -> LSTMState:
        """The state that `forward` gives, without the output layer."""
        return self._read(segment, state)[0]

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros."""
        zeros = self.out.weight.new_zeros(batch_size, self.config.num_layers, self.config.hidden_size)
        return LSTMState(zeros, zeros.clone())

    def check(self, segment: Segment, state: LSTMState | None = None) -> None:
        """Raise a ValueError for a segment or state that this model cannot take."""
        check_segment(segment, self.config.vocab_size, self.config.segment_length)
        if state is not None:
            shape = (segment.source.shape[0], self.config.num_layers, self.config.hidden_size)
            check_state(state, hidden=shape, cell=shape)

    def begin(self, source: Tensor, state: LSTMState) -> Cache:
        """A copy of the state, which the inputs change (see `nn.past`)."""
        self.check(Segment(source, torch.full_like(source, IGNORE)), state)
        return Cache(LSTMState(*(member.clone() for member in state)))

    def extend(self, cache: Cache, inputs: Tensor, places: Places) -> Tensor:
        """Read inputs (B, N): (B, N, D), from which what follows each is predicted."""
        real = places.at < self.config.segment_length
        if inputs.shape[1] == 1:
            return self.out(self._step(inputs[:, 0], real, cache.rows))[:, None]
        after, hidden = self._recur(inputs, real.sum(1).expand(len(inputs)), cache.rows)
        for old, new in zip(cache.rows, after, strict=True):
            old.copy_(new)
        return self.out(hidden)

    def finish(self, cache: Cache) -> LSTMState:
        """The state after the segment."""
        return LSTMState(*cache.rows)

    def _hidden(self, segment: Segment, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """What the target is predicted from, (B, T, D), and the state after the inputs."""
        state, hidden = self._read(segment, state)
        return self.out(self.dropout(hidden)), state

    def _read(self, segment: Segment, state: LSTMState) -> tuple[LSTMState, Tensor]:
        """The state after the inputs, and the last layer's output (B, T, U)."""
        self.check(segment, state)
        if segment.reset is not None:
            reset = segment.reset[:, None, None]
            state = LSTMState(*(member.masked_fill(reset, 0) for member in state))
        return self._recur(decoder_input(segment), (segment.target != IGNORE).sum(1), state)

    def _recur(self, inputs: Tensor, num_inputs: Tensor, state: LSTMState) -> tuple[LSTMState, Tensor]:
        """The same from inputs (B, N), of which each sample's first `num_inputs` (B,) are real."""
        before = [member.transpose(0, 1).contiguous() for member in state]  # torch wants layers first
        x = self.dropout(self.embedding(inputs))
        with torch.autocast(x.device.type, enabled=False):  # what is carried on without end keeps its precision
            if num_inputs.min() == x.shape[1]:
                hidden, after = self.lstm(x, before)
            else:
                lengths = num_inputs.clamp(min=1).cpu()  # torch refuses 0: such a sample reads one input, forgotten below
                packed, after = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), before)
                hidden, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
                after = [torch.where((num_inputs > 0)[:, None], new, old) for new, old in zip(after, before, strict=True)]
        return LSTMState(*(member.transpose(0, 1) for member in after)), hidden

    def _step(self, inputs: Tensor, real: Tensor, state: LSTMState) -> Tensor:
        """Read one input (B,) into the state, in place, where it is real (B or 1, 1); the last layer's output (B, U).

        `nn.LSTM` gives the same, but on a CPU lays out its weights at every call, which takes ten times as long as the step.
        """
        x = self.embedding(inputs)
        with torch.autocast(x.device.type, enabled=False):
            for hidden, cell, weights in zip(state.hidden.unbind(1), state.cell.unbind(1), self.lstm.all_weights, strict=True):
                x, new_cell = torch.lstm_cell(x, (hidden, cell), *weights)
                hidden.copy_(torch.where(real, x, hidden))
                cell.copy_(torch.where(real, new_cell, cell))
        return x
