"""The model: the paper's claims about one step and about many."""

import pytest
import torch

from memformer_torch import BOS, IGNORE, PAD, Memformer, MemformerConfig, Segment, mrbp
from tests import plain
from tests.conftest import TINY, random_segment, tiny_memformer

VARIANTS = {
    "paper": {},
    "decoder reads memory": {"decoder_reads": "encoder+memory"},
    "no memory": {"num_slots": 0},
    "no forgetting": {"forgetting": False},
    "no forgetting, no norm": {"forgetting": False, "memory_norm": False},
    "single-head writer": {"num_writer_heads": 1},
    "temperature 1": {"temperature": 1.0},
    "no classification tokens": {"num_cls_tokens": 0},
    "three classification tokens": {"num_cls_tokens": 3},
    "position biases": {"position_bias": 1.0},
}


def assert_close(ours, theirs, tolerance=1e-9):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_papers_equations(variant):
    """Every variant against the plain version, over three steps with padding, a reset and a document's start."""
    model = tiny_memformer(**VARIANTS[variant])
    state = model.initial_state(3)
    memory = state.memory
    steps = [
        random_segment(padded=True, begin=True),
        random_segment(source=4, target=5, reset=True),
        random_segment(padded=True),
    ]
    with torch.no_grad():
        for segment in steps:
            logits, state, _ = model(segment, state)
            expected, memory = plain.plain_step(model, segment, memory)
            assert_close(state.memory, memory)
            for row, want in zip(logits, expected, strict=True):
                assert_close(row[: len(want)], want)


def test_ablations_change_the_computation():
    """Each switch really does something: no two variants with equal weights give equal logits at the second step."""
    segments = [random_segment(), random_segment()]
    results = {}
    for name, changes in VARIANTS.items():
        torch.manual_seed(1)
        model = tiny_memformer(**changes)
        state = model.advance(segments[0], model.initial_state(3))
        results[name] = model(segments[1], state).logits.sum().item()
    assert len(set(results.values())) == len(VARIANTS)


@pytest.mark.parametrize("changes", [{}, {"decoder_reads": "encoder+memory"}])
def test_a_token_cannot_see_its_future(changes):
    model, segment = tiny_memformer(**changes), random_segment()
    before = model(segment, model.initial_state(3)).logits
    for n in range(6):
        target = segment.target.clone()
        target[:, n] = (target[:, n] + 1) % 11
        after = model(Segment(segment.source, target), model.initial_state(3)).logits
        assert torch.equal(after[:, : n + 1], before[:, : n + 1])
        assert n == 5 or not torch.allclose(after[:, n + 1], before[:, n + 1])


def test_samples_of_a_batch_do_not_mix():
    model, segment = tiny_memformer(), random_segment()
    other = Segment(segment.source.clone(), segment.target.clone())
    other.source[1], other.target[1] = (other.source[1] + 1) % 11, (other.target[1] + 1) % 11
    state = model.initial_state(3)
    changed = state._replace(memory=torch.cat([state.memory[:1], -state.memory[1:2], state.memory[2:]]))
    ours, theirs = model(segment, state), model(other, changed)
    for row in (0, 2):
        assert_close(ours.logits[row], theirs.logits[row], 1e-12)
        assert_close(ours.state.memory[row], theirs.state.memory[row], 1e-12)
    assert not torch.allclose(ours.logits[1], theirs.logits[1])


def test_the_memory_reaches_any_distance():
    """The token at the very start still moves the logits 50 segments later, and its gradient arrives."""
    model = tiny_memformer()
    first, rest = random_segment(1), [random_segment(1) for _ in range(50)]
    other = Segment((first.source + 1) % 11, first.target)
    logits = []
    for segment in (first, other):
        state = model.advance(segment, model.initial_state(1))
        for following in rest[:-1]:
            state = model.advance(following, state)
        logits.append(model(rest[-1], state).logits)
    assert not torch.equal(*logits)


def test_initial_memory_is_the_bias_on_the_sphere():
    model = tiny_memformer()
    bias = model.forgetting.bias
    assert_close(model.initial_state(2).memory, (bias / bias.norm(dim=-1, keepdim=True)).expand(2, -1, -1))


def test_reset_equals_a_fresh_start_and_changes_the_state_only():
    model, first, segment = tiny_memformer(), random_segment(), random_segment()
    state = model.advance(first, model.initial_state(3))
    reset = torch.tensor([False, True, False])
    output = model(segment._replace(reset=reset), state)
    kept, fresh = model(segment, state), model(segment, model.initial_state(3))
    for row, expected in enumerate((kept, fresh, kept)):
        assert_close(output.logits[row], expected.logits[row], 1e-12)
        assert_close(output.state.memory[row], expected.state.memory[row], 1e-12)


def test_no_gradient_crosses_a_reset():
    model, segment = tiny_memformer(), random_segment()._replace(reset=torch.tensor([False, True, False]))
    memory = model.initial_state(3).memory.detach().requires_grad_()
    model(segment, type(model.initial_state(3))(memory)).logits.sum().backward()
    assert memory.grad is not None
    assert (memory.grad[1] == 0).all()
    assert (memory.grad[[0, 2]] != 0).any()
    model.zero_grad()
    model(segment, type(model.initial_state(3))(memory)).logits[1].sum().backward()
    assert (model.forgetting.bias.grad != 0).any()  # the initial memory learns from it instead


def test_padding_changes_nothing():
    """A batch of unequal rows gives each row what it gets alone, unpadded: logits and state, over two steps."""
    model = tiny_memformer()
    steps = [random_segment(padded=True), random_segment(padded=True)]
    state = model.initial_state(3)
    alone = [model.initial_state(1)] * 3
    for segment in steps:
        output = model(segment, state)
        state = output.state
        for row in range(3):
            source, target = (ids[row : row + 1] for ids in (segment.source, segment.target))
            source, target = source[source != PAD][None], target[target != IGNORE][None]
            own = Segment(source, target) if target.numel() else Segment(source, torch.zeros(1, 1, dtype=torch.int64))
            single = model(own, alone[row])
            alone[row] = single.state
            assert_close(output.logits[row, : target.shape[1]], single.logits[0, : target.shape[1]])
            assert_close(output.state.memory[row], single.state.memory[0])


def test_the_first_decoder_input_is_the_last_real_source_id():
    model = tiny_memformer()
    target = torch.tensor([[3, 4]])
    short, same_end = torch.tensor([[1, 2, PAD]]), torch.tensor([[5, 2, PAD]])
    with torch.no_grad():
        for layer in model.decoder:  # blind to the source: what is left of it is the first input
            layer.source.out.weight.zero_()
    a, b, c = (model(Segment(s, target), model.initial_state(1)).logits for s in (short, same_end, torch.tensor([[2, 1, PAD]])))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


@pytest.mark.parametrize("changes", [{}, {"decoder_reads": "encoder+memory"}, {"num_slots": 0}])
def test_advance_is_the_state_of_forward_bit_for_bit(changes):
    model = tiny_memformer(torch.float32, dropout=0.3, **changes).train()
    segment, state = random_segment(padded=True, reset=True), model.initial_state(3)
    torch.manual_seed(5)
    full = model(segment, state).state
    torch.manual_seed(5)
    quick = model.advance(segment, state)
    assert torch.equal(full.memory, quick.memory)
    if model.config.num_slots:
        torch.manual_seed(6)
        assert not torch.equal(model.advance(segment, state).memory, quick.memory)  # dropout was on


def test_state_stays_on_the_sphere_and_never_grows():
    model = tiny_memformer(torch.float32).eval()
    state = model.initial_state(2)
    shapes, moved = {state.memory.shape}, []
    with torch.no_grad():
        for _ in range(1000):
            new = model.advance(random_segment(2), state)
            moved.append((new.memory - state.memory).abs().max().item())
            state = new
            shapes.add(state.memory.shape)
    assert shapes == {(2, 5, 16)}
    assert_close(state.memory.norm(dim=-1), torch.ones(2, 5), 1e-5)
    assert min(moved) > 1e-4  # it is still being written


def test_dropout_is_on_in_training_only():
    model = tiny_memformer(dropout=0.5)
    segment, state = random_segment(), model.initial_state(3)
    model.train()
    assert not torch.equal(model(segment, state).logits, model(segment, state).logits)
    model.eval()
    assert torch.equal(model(segment, state).logits, model(segment, state).logits)


def test_input_and_output_share_one_table():
    model = tiny_memformer()
    assert model(random_segment(), model.initial_state(3)).logits.shape == (3, 6, 11)
    assert [name for name, p in model.named_parameters() if 11 in p.shape] == ["embedding.weight"]
    assert 0.8 < Memformer(MemformerConfig(vocab_size=500)).embedding(torch.arange(500)[None]).std() < 1.2


def test_paper_sizes():
    """Table 1's model: 128 wide, 4 heads of 32, 4 + 8 layers, 64 slots: the defaults."""
    config = MemformerConfig(vocab_size=256)
    assert (config.d_model, config.d_model // config.num_heads, config.d_ff) == (128, 32, 256)
    assert (config.num_encoder_layers, config.num_decoder_layers, config.num_slots) == (4, 8, 64)
    assert Memformer(config).initial_state(3).memory.shape == (3, 64, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 15}, "num_heads 2 does not divide"),
        ({"num_writer_heads": 3}, "num_writer_heads 3 does not divide"),
        ({"num_writer_heads": 0}, "num_writer_heads 0"),
        ({"d_model": 6}, "even"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"num_slots": -1}, "num_slots"),
        ({"dropout": 1.0}, "dropout"),
        ({"d_ff": 0}, "d_ff"),
        ({"decoder_reads": "memory"}, "decoder_reads"),
        ({"decoder_reads": "encoder+memory", "num_slots": 0}, "num_slots"),
        ({"position_bias": -1.0}, "position_bias is -1.0"),
    ],
)
def test_bad_config(changes, message):
    with pytest.raises(ValueError, match=message):
        MemformerConfig(**(TINY | changes))


def ids(*rows):
    return torch.tensor(rows)


GOOD = ids([1, 2, 3])


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment(ids([1, 11]), GOOD), "source holds ids from 1 to 11; allowed are 0 to 10"),
        (Segment(ids([1, -3]), GOOD), "source holds ids"),
        (Segment(ids([1, IGNORE]), GOOD), "source holds ids"),
        (Segment(GOOD, ids([1, 99])), "target holds ids from 1 to 99"),
        (Segment(GOOD, ids([1, BOS])), "target holds ids"),
        (Segment(GOOD, ids([1, PAD])), "target holds ids"),
        (Segment(ids([1] * 7), GOOD), "7 source tokens, but segment_length is 6"),
        (Segment(GOOD, ids([1] * 7)), "7 target tokens, but segment_length is 6"),
        (Segment(ids([PAD, PAD]), GOOD), "all padding"),
        (Segment(ids([1, PAD, 2]), GOOD), "padding stands before"),
        (Segment(GOOD, ids([IGNORE, 2])), "padding stands before"),
        (Segment(GOOD, ids([1], [2])), "batch size"),
        (Segment(GOOD.float(), GOOD), "int64"),
        (Segment(GOOD[0], GOOD), "shape"),
        (Segment(GOOD[:, :0], GOOD), "empty"),
        (Segment(GOOD, GOOD, torch.tensor([1])), "reset"),
        (Segment(GOOD, GOOD, torch.tensor([True, False])), "reset"),
    ],
)
def test_bad_segment(segment, message):
    model = tiny_memformer()
    state, generator = model.initial_state(1), torch.get_rng_state()
    good = Segment(GOOD, GOOD)
    for call in (
        lambda: model(segment, state),
        lambda: model.advance(segment, state),
        lambda: mrbp(model, [segment, good], state),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match=message):
        mrbp(model, [good, segment, good], state)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("shape", [(2, 5, 16), (1, 5, 8), (1, 4, 16), (5, 16)])
def test_bad_state(shape):
    model = tiny_memformer()
    state = model.initial_state(1)._replace(memory=torch.zeros(shape, dtype=torch.float64))
    for call in (model, model.advance, lambda segment, state: mrbp(model, [segment], state)):
        with pytest.raises(ValueError, match=r"state\.memory has shape"):
            call(Segment(GOOD, GOOD), state)
    with pytest.raises(ValueError, match="memory"):
        model(Segment(GOOD, GOOD), (state.memory,))
