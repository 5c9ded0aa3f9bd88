"""The LSTM: torch's recurrence on the contract's seam."""

import pytest
import torch

from memformer_torch.models.lstm import LSTM, LSTMConfig
from memformer_torch.nn.past import Places
from memformer_torch.types import BOS, IGNORE, Segment

TINY = {"vocab_size": 11, "d_model": 8, "hidden_size": 12, "num_layers": 2, "segment_length": 6}


def tiny(**changes):
    return LSTM(LSTMConfig(**TINY | changes)).double().eval()


def plain_step(model, inputs, hidden, cell):
    """The recurrence written out for one sample: input ids; hidden and cell (layers, units); logits and the new two."""
    lstm, logits = model.lstm, []
    hidden, cell = list(hidden), list(cell)
    for i in inputs:
        x = (model.embedding.bos if i == BOS else model.embedding.weight[i]) * model.config.d_model**0.5
        for layer in range(model.config.num_layers):
            weights = [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            gates = weights[0] @ x + weights[1] @ hidden[layer] + weights[2] + weights[3]
            enter, forget, new, leave = gates.chunk(4)
            cell[layer] = torch.sigmoid(forget) * cell[layer] + torch.sigmoid(enter) * torch.tanh(new)
            x = hidden[layer] = torch.sigmoid(leave) * torch.tanh(cell[layer])
        logits.append(model.embedding.weight @ (model.out.weight @ x + model.out.bias))
    return logits, torch.stack(hidden), torch.stack(cell)


@pytest.mark.parametrize("lengths", [[6, 6, 6], [6, 3, 0], [2, 0, 1]])
def test_it_is_the_recurrence_up_to_the_last_real_input(lengths):
    model = tiny()
    state = model.initial_state(3)
    source = torch.tensor([[BOS], [4], [5]])
    with torch.no_grad():
        state = state._replace(hidden=torch.randn_like(state.hidden), cell=torch.randn_like(state.cell))
        target = torch.randint(11, (3, 6))
        target[torch.arange(6) >= torch.tensor(lengths)[:, None]] = IGNORE
        output = model(Segment(source, target), state)
        for row, length in enumerate(lengths):
            inputs = [source[row].item(), *target[row, :-1].tolist()][:length]
            logits, hidden, cell = plain_step(model, inputs, state.hidden[row], state.cell[row])
            for n, wanted in enumerate(logits):
                torch.testing.assert_close(output.logits[row, n], wanted, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(output.state.hidden[row], hidden, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(output.state.cell[row], cell, rtol=1e-10, atol=1e-10)


def test_one_layer_takes_dropout_without_a_warning():
    model = LSTM(LSTMConfig(**TINY | {"num_layers": 1, "dropout": 0.5}))
    segment = Segment(torch.full((2, 1), BOS), torch.randint(11, (2, 6)))
    one, other = model(segment, model.initial_state(2)).logits, model(segment, model.initial_state(2)).logits
    assert not torch.allclose(one, other)


def test_forget_gates_start_open():
    for layer in range(2):
        bias = getattr(tiny().lstm, f"bias_ih_l{layer}")
        assert (bias[12:24] == 1).all()
        assert (bias[:12].abs() < 1).all()
        assert (bias[24:].abs() < 1).all()


def test_advance_leaves_out_the_output_layer():
    model, called = tiny(), []
    model.out.register_forward_hook(lambda module, *_: called.append(module))
    segment = Segment(torch.full((2, 1), BOS), torch.randint(11, (2, 6)))
    model.advance(segment, model.initial_state(2))
    assert not called
    model(segment, model.initial_state(2))
    assert called


def test_bad_sizes_are_refused():
    for field in ("hidden_size", "num_layers"):
        with pytest.raises(ValueError, match=f"{field} is 0, but must be at least 1"):
            LSTMConfig(**TINY | {field: 0})


@torch.no_grad()
def test_a_sample_without_an_input_stays_where_it_is():
    model = tiny()
    state = model.initial_state(3)
    state = state._replace(hidden=torch.randn_like(state.hidden), cell=torch.randn_like(state.cell))
    before = [member.clone() for member in state]
    cache = model.begin(torch.full((3, 1), 4), state)
    model.extend(cache, torch.full((3, 2), 4), Places(torch.tensor([[0, 6], [6, 6], [0, 1]]), 2))
    for given, old, new in zip(state, before, model.finish(cache), strict=True):
        assert torch.equal(given, old), "the state that was given is left alone"
        assert torch.equal(new[1], old[1])
        assert not torch.isclose(new[[0, 2]], old[[0, 2]]).any()
