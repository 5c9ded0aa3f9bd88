"""Memory replay back-propagation is exact: its gradients, loss, state and generator are those of BPTT."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch import IGNORE, Memformer, MemformerConfig, Output, Segment, bptt, checkpointed, mrbp
from memformer_torch.bench.bytes import peak_bytes, state_bytes
from tests.conftest import random_segment, tiny_memformer

METHODS = {"bptt": bptt, "checkpointed": checkpointed, "mrbp": mrbp}


class Result(NamedTuple):
    gradients: dict[str, Tensor | None]
    loss: Tensor
    state: tuple[Tensor, ...]
    random: float


def run(method, model, segments, state=None, seed=3, **arguments) -> Result:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    state = model.initial_state(len(segments[0].source)) if state is None else state
    loss, final = method(model, segments, state, **arguments)
    assert not loss.requires_grad
    assert not any(member.requires_grad for member in final)
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return Result(gradients, loss, final, torch.rand(()).item())


def relative_difference(ours: Result, theirs: Result) -> float:
    """Largest over tensors: over the larger of the tensor's own largest gradient and 1e-3 of the largest of all."""
    assert [n for n, g in ours.gradients.items() if g is None] == [n for n, g in theirs.gradients.items() if g is None]
    pairs = [(g, theirs.gradients[n]) for n, g in ours.gradients.items() if g is not None and g.numel()]
    largest = max(their.abs().max() for _, their in pairs)
    assert largest > 0
    return max(((our - their).abs().max() / torch.maximum(their.abs().max(), 1e-3 * largest)).item() for our, their in pairs)


def assert_same(ours: Result, theirs: Result, tolerance: float) -> None:
    assert relative_difference(ours, theirs) <= tolerance
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=tolerance, atol=tolerance)
    for our, their in zip(ours.state, theirs.state, strict=True):
        torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance)
    assert ours.random == theirs.random  # the generator stands where it would have stood


def rollout(horizon, **changes) -> list[Segment]:
    """Padded and unequal segments; resets after the first."""
    sizes = [(6, 6), (3, 5), (6, 2), (4, 6)]
    return [random_segment(3, *sizes[t % 4], padded=True, reset=t > 0, begin=t == 0, **changes) for t in range(horizon)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("horizon", [1, 2, 8])
@pytest.mark.parametrize("changes", [{}, {"decoder_reads": "encoder+memory"}, {"num_slots": 0}])
def test_bptt_is_a_plain_loop(dtype, tolerance, horizon, changes):
    """Forward through all segments, summed cross-entropy over their tokens, one backward: written out."""
    model, segments = tiny_memformer(dtype, **changes), rollout(horizon)
    ours = run(bptt, model, segments)

    model.zero_grad(set_to_none=True)
    state, total, count = model.initial_state(3), torch.zeros((), dtype=dtype), 0
    for segment in segments:
        logits, state, _ = model(segment, state)
        for b in range(3):
            for n, token in enumerate(segment.target[b].tolist()):
                if token != IGNORE:
                    total = total - F.log_softmax(logits[b, n], dim=-1)[token]
                    count += 1
    (total / count).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    theirs = Result(gradients, (total / count).detach(), tuple(m.detach() for m in state), ours.random)
    assert_same(ours, theirs, tolerance)


@pytest.mark.parametrize("method", ["checkpointed", "mrbp"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("horizon", [1, 2, 8])
@pytest.mark.parametrize("changes", [{}, {"decoder_reads": "encoder+memory"}, {"num_slots": 0}])
def test_gradients_equal_bptt(method, dtype, tolerance, horizon, changes):
    """With dropout, resets, padding, unequal segments and a learned initial memory."""
    model, segments = tiny_memformer(dtype, dropout=0.1, **changes).train(), rollout(horizon)
    assert_same(run(METHODS[method], model, segments), run(bptt, model, segments), tolerance)


@given(
    method=st.sampled_from(["checkpointed", "mrbp"]),
    batch=st.integers(1, 4),
    slots=st.integers(0, 4),
    layers=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=5),
    dropout=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_gradients_equal_bptt_for_any_shape(method, batch, slots, layers, lengths, dropout):
    model = tiny_memformer(num_slots=slots, num_encoder_layers=layers[0], num_decoder_layers=layers[1], dropout=dropout).train()
    segments = [random_segment(batch, s, t, padded=padded, reset=reset) for s, t, padded, reset in lengths]
    segments[0].target[0, 0] = 1  # at least one token
    assert_same(run(METHODS[method], model, segments), run(bptt, model, segments), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_dropout_draws_anew_each_segment_and_each_rollout(method):
    model = tiny_memformer(dropout=0.5).train()
    same = [random_segment()] * 2
    first, again, other = (run(METHODS[method], model, same, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.loss, other.loss)
    torch.manual_seed(3)
    seed, state, losses = int(torch.randint(2**62, ())), model.initial_state(3), []  # the one number a rollout takes
    for index, segment in enumerate(same):
        torch.manual_seed(seed + index)  # each segment has masks of its own
        logits, state, _ = model(segment, state)
        losses.append(F.cross_entropy(logits.flatten(0, 1), segment.target.flatten()))
    assert first.loss.item() == pytest.approx(sum(losses).item() / 2, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_cross_segments_and_not_resets(method):
    """The writer learns only from what later segments need; a reset of every sample cuts that off."""
    model = tiny_memformer()

    def writer_gradient(segments):
        gradient = run(METHODS[method], model, segments).gradients["writer.query_key_value.weight"]
        return 0.0 if gradient is None else gradient.abs().max().item()

    first, second = random_segment(), random_segment()
    assert writer_gradient([first, second]) > 1e-6
    assert writer_gradient([first, second._replace(reset=torch.ones(3, dtype=torch.bool))]) == 0
    assert writer_gradient([first]) == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_requires_gradient_receives_it(method):
    model, segments = tiny_memformer(), rollout(3)
    leaf = model.initial_state(3).memory.detach().requires_grad_()
    run(METHODS[method], model, segments, type(model.initial_state(3))(leaf))
    assert leaf.grad is not None
    reference = leaf.detach().clone().requires_grad_()
    run(bptt, model, segments, type(model.initial_state(3))(reference))
    torch.testing.assert_close(leaf.grad, reference.grad, rtol=1e-10, atol=1e-12)
    assert leaf.grad.abs().max() > 0


@pytest.mark.parametrize("method", ["checkpointed", "mrbp"])
@pytest.mark.parametrize("trained", ["writer", "forgetting", "decoder", "encoder", "embedding"])
def test_a_frozen_part(method, trained):
    """Only one part learns; with the writer alone, the last segment's own loss needs no gradient at all."""
    model, segments = tiny_memformer(dropout=0.1).train(), rollout(3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    state = model.initial_state(3)._replace(memory=model.initial_state(3).memory.detach())
    ours, theirs = (run(m, model, segments, state) for m in (METHODS[method], bptt))
    assert_same(ours, theirs, 1e-10)
    assert {n for n, g in ours.gradients.items() if g is not None} <= {n for n, _ in model.named_parameters() if trained in n}


@pytest.mark.parametrize("method", ["checkpointed", "mrbp"])
def test_bf16_autocast(method):
    model, segments = tiny_memformer(torch.float32, dropout=0.1).train(), rollout(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = (run(m, model, segments) for m in (METHODS[method], bptt))
    assert relative_difference(ours, theirs) <= 2e-2
    assert ours.state[0].dtype == torch.float32
    plain = run(METHODS[method], model, segments)
    assert 1e-4 < relative_difference(ours, plain) < 0.5  # autocast was on, and gradients still mean the same


class Recurrent(nn.Module):
    """A user's own model: two float members, one counter, an auxiliary loss, no `advance`, no `check`."""

    class State(NamedTuple):
        fast: Tensor
        steps: Tensor
        slow: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.mix = nn.Embedding(11, 8), nn.GRUCell(8, 8), nn.Linear(16, 8)
        self.head, self.dropout = nn.Linear(8, 11), nn.Dropout(0.2)

    def initial_state(self, batch_size):
        zeros = torch.zeros(batch_size, 8, dtype=torch.float64)
        return self.State(zeros, torch.zeros(batch_size, dtype=torch.int64), zeros)

    def forward(self, segment, state):
        fast, steps, slow = state
        logits = []
        for n in range(segment.target.shape[1]):
            previous = segment.source[:, -1] if n == 0 else segment.target[:, n - 1]
            fast = self.cell(self.dropout(self.embed(previous)), fast)
            logits.append(self.head(fast + slow))
        slow = torch.tanh(self.mix(torch.cat([fast, slow], -1))) / (1 + steps[:, None])
        return Output(torch.stack(logits, 1), self.State(fast, steps + 1, slow), slow.square().mean())


@pytest.mark.parametrize("method", ["checkpointed", "mrbp"])
@pytest.mark.parametrize("horizon", [1, 2, 8])
def test_a_users_own_model_with_a_state_of_several_tensors(method, horizon):
    model, segments = Recurrent().double().train(), [random_segment() for _ in range(horizon)]
    ours, theirs = run(METHODS[method], model, segments), run(bptt, model, segments)
    assert_same(ours, theirs, 1e-10)
    assert ours.state[1].tolist() == [horizon] * 3


@pytest.mark.parametrize("method", METHODS)
def test_auxiliary_is_differentiated_as_a_mean_and_not_reported(method):
    model, segments = Recurrent().double().eval(), [random_segment() for _ in range(3)]
    ours = run(METHODS[method], model, segments)
    model.zero_grad()
    state, losses, auxiliaries = model.initial_state(3), [], []
    for segment in segments:
        logits, state, auxiliary = model(segment, state)
        losses.append(F.cross_entropy(logits.flatten(0, 1), segment.target.flatten()))
        auxiliaries.append(auxiliary)
    (sum(losses) / 3 + sum(auxiliaries) / 3).backward()
    torch.testing.assert_close(ours.loss, sum(losses).detach() / 3)
    torch.testing.assert_close(ours.gradients["mix.weight"], model.mix.weight.grad)


@pytest.mark.parametrize("method", METHODS)
def test_a_callable_for_backward_scales_the_loss_alone(method):
    model, segments = tiny_memformer(dropout=0.1).train(), rollout(3)

    def scaled(tensors, gradients):
        torch.autograd.backward([tensors[0] * 1024, *tensors[1:]], gradients)

    plain, ours = run(bptt, model, segments), run(METHODS[method], model, segments, backward=scaled)
    unscaled = ours._replace(gradients={n: None if g is None else g / 1024 for n, g in ours.gradients.items()})
    assert_same(unscaled, plain, 1e-10)


def test_gradients_add_up():
    """As with any backward in torch: `.grad` is added to, not replaced."""
    model, segments = tiny_memformer(), rollout(2)
    once = run(mrbp, model, segments)
    mrbp(model, segments, model.initial_state(3))
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, 2 * once.gradients[name])


class Counted(Memformer):
    def __init__(self, config):
        super().__init__(config)
        self.calls = []

    def forward(self, segment, state):
        self.calls.append("forward")
        return super().forward(segment, state)

    def advance(self, segment, state):
        self.calls.append("advance")
        return super().advance(segment, state)


def test_one_backward_a_segment_and_advance_for_all_but_the_last():
    model = Counted(tiny_memformer().config).double()

    def backward(tensors, gradients):
        model.calls.append("backward")
        torch.autograd.backward(tensors, gradients)

    mrbp(model, rollout(3), model.initial_state(3), backward=backward)
    assert model.calls == ["advance"] * 2 + ["forward", "backward"] * 3


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_window_slides_over_memories_that_are_known(method, stride):
    """With equal weights and no dropout exact, resets inside; `mrbp` advances over new segments alone."""
    model, segments, horizon = Counted(tiny_memformer().config).double(), rollout(10), 4
    states, memories = [model.initial_state(3)], [model.initial_state(3)]
    with torch.no_grad():
        for segment in segments:
            states.append(model.advance(segment, states[-1]))
    for start in range(0, len(segments) - horizon + 1, stride):
        window = segments[start : start + horizon]
        theirs = run(bptt, model, window, states[start])
        model.calls.clear()
        ours = run(METHODS[method], model, window, memories[0], memories=memories)
        assert_same(ours, theirs, 1e-10)
        if method == "mrbp":
            assert model.calls.count("advance") == (horizon - 1 if start == 0 else stride - 1)
        assert len(memories) == horizon + 1
        for known, state in zip(memories, states[start : start + horizon + 1], strict=True):
            torch.testing.assert_close(known.memory, state.memory, rtol=1e-10, atol=1e-10)
            assert not known.memory.requires_grad
        del memories[:stride]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_known_may_be_old(method):
    """`mrbp` takes a known memory as it is, and leaves the one that the weights of today make; others compute anew."""
    model, segments = tiny_memformer(), rollout(3)
    memories, old = [model.initial_state(3)], [model.initial_state(3)]
    old.append(type(old[0])(F.normalize(torch.randn(3, 5, 16, dtype=torch.float64), dim=-1)))
    fresh = run(bptt, model, segments, memories[0], memories=memories)
    known = list(old)
    ours = run(METHODS[method], model, segments, known[0], memories=known)
    if method == "mrbp":
        assert relative_difference(ours, fresh) > 1e-3
        torch.testing.assert_close(known[1].memory, memories[1].memory)
        torch.testing.assert_close(known[2].memory, model.advance(segments[1], old[1]).memory)
        assert (known[2].memory - memories[2].memory).abs().max() > 1e-3
    else:
        assert_same(ours, fresh, 1e-10)
        torch.testing.assert_close(known, memories)


@pytest.mark.parametrize("method", METHODS)
def test_memories_that_do_not_fit(method):
    model, segments = tiny_memformer(), rollout(2)
    state, generator = model.initial_state(3), torch.get_rng_state()
    cases = [
        ([model.initial_state(3)], "must be the state itself"),
        ([state] * 3, "3 states for 2 segments"),
        ([state, model.initial_state(2)], "need"),
    ]
    for memories, message in cases:
        given = list(memories)
        with pytest.raises(ValueError, match=message):
            METHODS[method](model, segments, state, memories=given)
        assert all(map(lambda a, b: a is b, given, memories))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("method", METHODS)
def test_a_rollout_of_many_updates_carries_the_detached_state(method):
    model = tiny_memformer()
    state = model.initial_state(3)
    for _ in range(3):
        _, state = METHODS[method](model, rollout(2), state)  # a graph left over would fail the second time
    assert state.memory.shape == (3, 5, 16)


@pytest.mark.parametrize("method", METHODS)
def test_bad_rollouts(method):
    model, padding = tiny_memformer(), random_segment()._replace(target=torch.full((3, 6), IGNORE))
    fewer = Segment(padding.source[:2], padding.source[:2])
    bad = {"segments is empty": [], "no target token": [padding, padding], "batches of 2 and 3": [random_segment(), fewer]}
    state, generator = model.initial_state(3), torch.get_rng_state()
    for message, segments in bad.items():
        with pytest.raises(ValueError, match=message):
            METHODS[method](model, segments, state)
    with pytest.raises(ValueError, match="state is None"):
        METHODS[method](model, [fewer], None)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_bytes_held_for_backward():
    """At the paper's image shape, batch 16: a quarter of BPTT at most, and no growth with the horizon but the replay buffer."""
    model = Memformer(MemformerConfig(vocab_size=256))
    buffer = state_bytes(model.initial_state(16))

    def held(method, horizon):
        segments = [random_segment(16, 14, 14, 256) for _ in range(horizon)]
        model.zero_grad(set_to_none=True)
        return peak_bytes(lambda: method(model, segments, model.initial_state(16)))

    through_time, replayed, longer = held(bptt, 8), held(mrbp, 8), held(mrbp, 32)
    assert replayed <= 0.25 * through_time
    assert longer - 32 * buffer <= 1.15 * (replayed - 8 * buffer)
    assert longer - replayed <= 1.01 * 24 * buffer
