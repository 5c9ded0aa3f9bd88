"""The contract that every model obeys: one table of models, one suite of claims."""

import pytest
import torch

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.models.compressive_transformer import CompressiveTransformer, CompressiveTransformerConfig
from memformer_torch.models.lstm import LSTM, LSTMConfig
from memformer_torch.models.memformer import Memformer, MemformerConfig
from memformer_torch.models.recurrent_memory_transformer import RecurrentMemoryTransformer, RecurrentMemoryTransformerConfig
from memformer_torch.models.transformer_decoder import TransformerDecoder, TransformerDecoderConfig
from memformer_torch.models.transformer_xl import TransformerXL, TransformerXLConfig
from memformer_torch.types import BOS, IGNORE, PAD, Segment
from tests.test_backprop import Result, relative_difference

VOCAB, LENGTH, BATCH = 11, 5, 4

ENDS = {"vocab_size": VOCAB, "d_model": 16, "segment_length": LENGTH}
WIDE = ENDS | {"num_heads": 2, "d_ff": 24}
MEMFORMER = WIDE | {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_slots": 3}

# name: config, model, and how many numbers a sample's state holds after n tokens
TABLE = {
    "memformer": (MemformerConfig(**MEMFORMER), Memformer, lambda n: 3 * 16),
    "memformer, decoder reads memory": (
        MemformerConfig(**MEMFORMER, decoder_reads="encoder+memory"),
        Memformer,
        lambda n: 3 * 16,
    ),
    "memformer, no memory": (MemformerConfig(**MEMFORMER | {"num_slots": 0}), Memformer, lambda n: 0),
    "decoder": (TransformerDecoderConfig(**WIDE, num_layers=2), TransformerDecoder, lambda n: 2 * 2 * n * 16),
    "lstm": (LSTMConfig(**ENDS, num_layers=2, hidden_size=12), LSTM, lambda n: 2 * 2 * 12),
    "rmt": (
        RecurrentMemoryTransformerConfig(**WIDE, num_layers=2, num_memory_tokens=3),
        RecurrentMemoryTransformer,
        lambda n: 3 * 16,
    ),
    "transformer-xl": (TransformerXLConfig(**WIDE, num_layers=2, memory_length=8), TransformerXL, lambda n: 2 * 8 * 16),
    "compressive": (
        CompressiveTransformerConfig(**WIDE, num_layers=2, memory_length=6, compressed_length=3, compression_ratio=2),
        CompressiveTransformer,
        lambda n: 2 * (6 + 3) * 16,
    ),
}
BASELINES = [name for name in TABLE if not name.startswith("memformer")]
STOPPING = ("transformer-xl", "compressive")  # they carry a past that they do not differentiate
CARRYING = [name for name in TABLE if name != "memformer, no memory"]
every_model = pytest.mark.parametrize("name", TABLE)
every_baseline = pytest.mark.parametrize("name", BASELINES)


def build(name, dtype=torch.float64, **changes):
    """The model without dropout, or in training with it."""
    config, model_class, _ = TABLE[name]
    model = model_class(type(config)(**vars(config) | changes)).to(dtype)
    return model.train("dropout" in changes)


def stream(num_steps, padded=False, resets=False, batch_size=BATCH, seed=0):
    """Documents, cut: each source is what was predicted before, BOS at a document's start."""
    generator = torch.Generator().manual_seed(seed)
    begin = torch.full((LENGTH,), PAD)
    begin[0] = BOS
    source, segments = begin.repeat(batch_size, 1), []
    for step in range(num_steps):
        target = torch.randint(VOCAB, (batch_size, LENGTH), generator=generator)
        if padded:
            lengths = torch.randint(LENGTH + 1, (batch_size, 1), generator=generator)
            lengths[step % batch_size] = 0
            target[torch.arange(LENGTH) >= lengths] = IGNORE
        reset = torch.rand(batch_size, generator=generator) < 0.4 if resets else None
        if reset is not None:
            reset[step % batch_size] = step > 0
            source = torch.where(reset[:, None], begin, source)
        segments.append(Segment(source, target, reset))
        source = torch.where(target[:, :1] == IGNORE, source, target.masked_fill(target == IGNORE, PAD))
    return segments


def run(model, segments, state):
    """Logits of each step, and the last state."""
    logits = []
    for segment in segments:
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    return logits, state


def assert_close(ours, theirs, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def sample(state, row):
    """A sample's own part of a state: what stands in slots that are not filled is nobody's."""
    members = {field: member[row] for field, member in zip(state._fields, state, strict=True)}
    if "keys" in members:  # the oldest first
        members |= {field: members[field][:, :, : members["length"]] for field in ("keys", "values")}
    elif "length" in members:  # the newest last
        members["memory"] = members["memory"].flip(1)[:, : members["length"]]
    if "compressed" in members:
        members["compressed"] = members["compressed"].flip(1)[:, : members["compressed_filled"]]
    return list(members.values())


def warm(model, num_steps=2, **options):
    """A state that has read something, without a graph."""
    state = model.initial_state(BATCH)
    with torch.no_grad():
        for segment in stream(num_steps, seed=7, **options):
            state = model.advance(segment, state)
    return type(state)(*(member.detach().clone() for member in state))


def with_gradient(state):
    return type(state)(*(member.clone().requires_grad_(member.is_floating_point()) for member in state))


def change(ids):
    return torch.where(ids >= 0, (ids + 1) % VOCAB, ids)


@every_model
def test_a_token_cannot_see_its_future(name):
    model = build(name)
    state, segment = warm(model), stream(1)[0]
    before = model(segment, state).logits
    assert before.shape == (BATCH, LENGTH, VOCAB)
    for n in range(LENGTH):
        target = segment.target.clone()
        target[:, n] = change(target[:, n])
        after = model(segment._replace(target=target), state).logits
        assert_close(after[:, : n + 1], before[:, : n + 1], 1e-12)
        moved = (after - before).abs().amax(-1)[:, n + 1 :]
        assert (moved > 1e-6).all(), "what follows must see it"


@every_model
def test_samples_of_a_batch_do_not_mix(name):
    model = build(name)
    segment, state = stream(3, padded=True)[2], with_gradient(warm(model, padded=True))
    other = Segment(segment.source.clone(), segment.target.clone())
    other.source[1], other.target[1] = change(other.source[1]), change(other.target[1])
    changed = type(state)(*(member.detach().clone() for member in state))
    for member in changed:
        if member.is_floating_point():
            member[1] *= -1
    ours, theirs = model(segment, state), model(other, changed)
    assert (segment.target[1] != IGNORE).any()
    for row in (0, 2, 3):
        assert_close(ours.logits[row], theirs.logits[row], 1e-12)
        assert_close(sample(ours.state, row), sample(theirs.state, row), 1e-12)
    assert not torch.allclose(ours.logits[1], theirs.logits[1])

    ours.logits[1].sum().backward()
    for member in state:
        if member.grad is not None:
            assert not member.grad[[0, 2, 3]].any()


@every_model
def test_a_state_goes_in_and_comes_out_and_stays_nowhere_else(name):
    model = build(name)
    segment, state = stream(1, resets=True)[0], warm(model)
    given, attributes = [member.clone() for member in state], set(model.__dict__)
    first = model(segment, state)
    model(stream(1, seed=3)[0], state)
    again = model(segment, state)
    assert torch.equal(first.logits, again.logits)
    assert all(map(torch.equal, first.state, again.state))
    assert all(map(torch.equal, given, state))
    assert set(model.__dict__) == attributes
    assert all(len(member) == BATCH for member in state)


@every_model
def test_a_reset_is_a_fresh_start(name):
    model = build(name)
    first, second = stream(2, seed=1)
    reset = torch.tensor([False, True, False, True])
    for options in ({}, {"padded": True}):  # samples of equal and of unequal length
        state = warm(model, **options)
        ours = run(model, [first._replace(reset=reset), second], state)
        fresh, kept = (run(model, [first, second], s) for s in (model.initial_state(BATCH), state))
        for row in range(BATCH):
            wanted = fresh if reset[row] else kept
            assert_close([logits[row] for logits in ours[0]], [logits[row] for logits in wanted[0]])
            assert_close(sample(ours[1], row), sample(wanted[1], row))
    broken = type(state)(*(member * torch.nan if member.is_floating_point() else member for member in state))
    kept = model(first._replace(reset=reset), broken)  # what was there is gone, not weighed with 0
    assert all(kept.logits[row].isfinite().all() for row in range(BATCH) if reset[row])
    everything = torch.ones(BATCH, dtype=torch.bool)
    ours, fresh = model(first._replace(reset=everything), state), model(first, model.initial_state(BATCH))
    assert torch.equal(ours.logits, fresh.logits)
    assert all(map(torch.equal, ours.state, fresh.state))


@every_model
def test_no_gradient_crosses_a_reset(name):
    model = build(name)
    state = with_gradient(warm(model))
    reset = torch.tensor([False, True, False, True])
    logits, after = model(stream(1)[0]._replace(reset=reset), state)[:2]
    (logits.square().sum() + sum(m.square().sum() for m in after if m.is_floating_point())).backward()
    for member in state:
        if member.grad is not None:
            assert not member.grad[reset].any()
        if member.requires_grad and member.numel() and name not in STOPPING:
            assert all(gradient.any() for gradient in member.grad[~reset]), "elsewhere it does flow"


@every_model
def test_padding_changes_nothing(name):
    """Unequal samples of a batch, over steps, against each sample alone and unpadded."""
    model, segments = build(name), stream(4, padded=True)
    logits, batch_state = run(model, segments, model.initial_state(BATCH))
    for row in range(BATCH):
        state = model.initial_state(1)
        for step, segment in enumerate(segments):
            source, target = segment.source[row], segment.target[row]
            num_targets = int((target != IGNORE).sum())
            if num_targets == 0 and name in BASELINES:
                continue  # nothing was read
            alone = Segment(source[source != PAD][None], target[: max(num_targets, 1)][None])
            output = model(alone, state)
            assert_close(output.logits[0, :num_targets], logits[step][row, :num_targets])
            state = output.state
        assert_close(sample(state, 0), sample(batch_state, row))


@every_baseline
def test_nothing_read_leaves_the_state(name):
    model = build(name)
    segment = stream(1)[0]
    segment.target[1] = IGNORE
    for state in (model.initial_state(BATCH), warm(model), warm(model, padded=True)):
        after = model.advance(segment, state)
        assert all(map(torch.equal, sample(after, 1), sample(state, 1)))
        assert not all(map(torch.equal, sample(after, 0), sample(state, 0)))
        nothing = segment._replace(target=torch.full_like(segment.target, IGNORE))
        output = model(nothing, state)
        assert output.logits.isfinite().all()
        assert all(all(map(torch.equal, sample(output.state, row), sample(state, row))) for row in range(BATCH))


@every_model
def test_padding_gets_no_gradient(name):
    """What stands where nothing is real has no part in the loss, and makes no NaN."""
    model = build(name)
    segments = stream(2, padded=True)
    segments[0] = segments[0]._replace(target=torch.full_like(segments[0].target, IGNORE))
    bptt(model, segments, model.initial_state(BATCH))
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_baseline
def test_of_the_source_only_the_last_real_id_counts(name):
    model = build(name)
    state, segment = warm(model), stream(2)[1]
    cut = segment._replace(source=segment.source[:, -1:])
    padded = segment._replace(source=torch.cat([segment.source[:, -1:], torch.full((BATCH, 3), PAD)], dim=1))
    logits = [model(s, state).logits for s in (segment, cut, padded)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    other = segment._replace(source=change(segment.source))
    assert not torch.allclose(model(other, state).logits[:, 0], logits[0][:, 0])


@every_model
@pytest.mark.parametrize("padded", [False, True])
def test_advance_gives_the_state_of_forward_bit_for_bit(name, padded, monkeypatch):
    """With dropout on, from one seed; and it computes no logits."""
    model = build(name, torch.float32, dropout=0.3)
    state = warm(model, padded=padded)
    for segment in stream(3, padded=padded, resets=True):
        torch.manual_seed(5)
        wanted = model(segment, state).state
        torch.manual_seed(5)
        with monkeypatch.context() as patch:
            patch.setattr(type(model.embedding), "logits", None)
            ours = model.advance(segment, state)
        assert type(ours) is type(wanted)
        assert all(map(torch.equal, ours, wanted))
        torch.manual_seed(6)
        if name in CARRYING:
            assert not all(map(torch.equal, model.advance(segment, state), wanted)), "dropout is on"
        state = type(wanted)(*(member.detach() for member in wanted))


@pytest.mark.parametrize("name", ["decoder", "lstm"])
@pytest.mark.parametrize("padded", [False, True])
def test_segments_give_what_one_pass_gives(name, padded):
    model, segments = build(name, segment_length=8 * LENGTH), stream(8, padded=padded)
    logits, state = run(model, segments, model.initial_state(BATCH))
    for row in range(BATCH):
        reals = [segment.target[row] != IGNORE for segment in segments]
        text = torch.cat([segment.target[row, real] for segment, real in zip(segments, reals, strict=True)])[None]
        whole = model(Segment(torch.tensor([[BOS]]), text), model.initial_state(1))
        pieces = torch.cat([piece[row, real] for piece, real in zip(logits, reals, strict=True)])
        assert_close(pieces, whole.logits[0])
        assert_close(sample(state, row), sample(whole.state, 0))


@every_model
def test_the_state_is_as_large_as_the_formula_says(name):
    model = build(name, torch.float32)
    state = model.initial_state(BATCH)
    for step, segment in enumerate(stream(6), start=1):
        state = model.advance(segment, state)
        size = sum(member.nbytes for member in state if member.is_floating_point())
        assert size == BATCH * 4 * TABLE[name][2](step * LENGTH)


def gradients(method, model, segments, state):
    """From one seed; the gradients of the incoming state are among them."""
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    state = with_gradient(state)
    loss, final = method(model, segments, state)
    found = dict(model.named_parameters()) | dict(zip(state._fields, state, strict=True))
    return Result({key: tensor.grad for key, tensor in found.items()}, loss, final, torch.rand(()).item())


@every_model
@pytest.mark.parametrize("horizon", [1, 2, 4])
@pytest.mark.parametrize("method", [mrbp, checkpointed])
def test_replay_gives_the_gradients_of_bptt(name, horizon, method):
    model = build(name, torch.float32, dropout=0.1)
    state, segments = warm(model, padded=True), stream(horizon, padded=True, resets=True)
    wanted, ours = (gradients(each, model, segments, state) for each in (bptt, method))
    assert relative_difference(ours, wanted) < 1e-5
    assert_close(ours.loss, wanted.loss, 1e-5)
    assert_close(ours.state, wanted.state, 1e-5)
    assert ours.random == wanted.random, "the generator must be left at one place"
    assert not any(member.requires_grad for member in ours.state)


@pytest.mark.parametrize("name", CARRYING)
def test_the_state_carries_what_was_read(name):
    """A token two segments back, which no input of the step shows, moves its logits."""
    model, (first, second, third) = build(name), stream(3)
    target = first.target.clone()
    target[:, 0] = change(target[:, 0])
    logits = [
        run(model, steps, model.initial_state(BATCH))[0][2]
        for steps in ([first, second, third], [first._replace(target=target), second._replace(source=target), third])
    ]
    assert ((logits[0] - logits[1]).abs().amax((1, 2)) > 1e-9).all()


@every_model
def test_under_autocast_the_state_keeps_its_precision(name):
    model = build(name, torch.float32, dropout=0.1)
    state, segments = warm(model), stream(2) + stream(2, padded=True, resets=True)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, ours = (gradients(each, model, segments, state) for each in (bptt, mrbp))
    assert relative_difference(ours, wanted) < 2e-2
    assert [member.dtype for member in ours.state] == [member.dtype for member in state]
    assert [member.dtype for member in wanted.state] == [member.dtype for member in state]


@every_model
def test_a_document_may_begin_with_bos(name):
    model = build(name)
    segment = stream(1)[0]
    other = segment._replace(source=segment.source.masked_fill(segment.source == BOS, 3))
    begin, other = (model(s, model.initial_state(BATCH)) for s in (segment, other))
    assert not torch.allclose(begin.logits, other.logits)
    begin.logits[:, 1:].square().sum().backward()
    assert model.embedding.bos.grad.any()


def bad_inputs(model):
    """What, the segment that must be refused, and the state it comes with."""
    good, state = stream(1)[0], model.initial_state(BATCH)
    return {
        "target id too large": (good._replace(target=torch.full_like(good.target, VOCAB)), state),
        "source id too large": (good._replace(source=torch.full_like(good.source, VOCAB)), state),
        "BOS as a target": (good._replace(target=torch.full_like(good.target, BOS)), state),
        "target too long": (good._replace(target=torch.zeros(BATCH, LENGTH + 1, dtype=torch.int64)), state),
        "no sample": (Segment(good.source[:0], good.target[:0]), model.initial_state(0)),
        "ids of another type": (good._replace(target=good.target.float()), state),
        "reset of another shape": (good._replace(reset=torch.ones(BATCH + 1, dtype=torch.bool)), state),
        "state of another batch": (good, model.initial_state(BATCH - 1)),
        "state of another kind": (good, (torch.zeros(BATCH),)),
    }


@every_model
def test_bad_input_is_refused_before_anything_changes(name):
    model = build(name, torch.float32, dropout=0.1)
    generator = torch.get_rng_state()
    for what, (segment, state) in bad_inputs(model).items():
        with pytest.raises(ValueError, match=r"segment|state|source|target|reset"):
            model.check(segment, state)
        for call in (model, model.advance):
            with pytest.raises(ValueError, match=r"segment|state|source|target|reset"):
                call(segment, state)
        for method in (bptt, checkpointed, mrbp):
            segments = [segment] if "state" in what else [stream(1)[0], segment]
            with pytest.raises(ValueError, match=r"segment|state|source|target|reset"):
                method(model, segments, state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


@every_model
def test_bad_sizes_are_refused(name):
    config = TABLE[name][0]
    wrong = {"d_model": 0, "segment_length": 0, "vocab_size": 0, "dropout": 1.0}
    if hasattr(config, "num_heads"):
        wrong |= {"num_heads": 3, "d_ff": -1}
    for field, value in wrong.items():
        with pytest.raises(ValueError, match=field):
            type(config)(**vars(config) | {field: value})
    if hasattr(config, "num_heads"):
        with pytest.raises(ValueError, match="even"):
            type(config)(**vars(config) | {"d_model": 6, "num_heads": 2})


def test_the_suite_covers_every_model():
    from memformer_torch.models import MODELS

    assert {model for _, model in MODELS.values()} <= {model for _, model, _ in TABLE.values()}
