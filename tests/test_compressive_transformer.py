"""Compressive Transformer against its equations in plain loops; what is compressed when; and that the compression learns."""

import math

import pytest
import torch

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.losses import cross_entropy_sum
from memformer_torch.models.compressive_transformer import CompressiveTransformer, CompressiveTransformerConfig
from memformer_torch.models.transformer_xl import TransformerXL, TransformerXLConfig
from memformer_torch.nn.compression import most_attended
from memformer_torch.types import IGNORE, decoder_input
from tests.test_transformer_xl import (
    SMALL,
    VOCAB,
    assert_decoding_is_one_pass,
    cut,
    every_way,
    padded_steps,
    plain_embed,
    plain_layer,
    plain_norm,
    random_ids,
    run,
    shake,
)

LENGTHS = {"memory_length": 6, "compressed_length": 3, "compression_ratio": 2}
KINDS = [
    {"compression": "convolution", "reconstruction": "attention"},
    {"compression": "convolution", "reconstruction": "autoencoding"},
    {"compression": "convolution", "reconstruction": "none"},
    {"compression": "mean"},
    {"compression": "max"},
    {"compression": "most_attended"},
]
LEARNING = KINDS[:2]
COUNTS = [[4, 4], [4, 2], [0, 4], [3, 1], [4, 4], [4, 0], [1, 4]]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
every_learning_kind = pytest.mark.parametrize("kind", LEARNING, ids=lambda kind: kind["reconstruction"])


def build(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = CompressiveTransformer(CompressiveTransformerConfig(**SMALL | LENGTHS | changes)).to(dtype)
    shake(model)
    return model


def is_compression(name):
    return name.startswith(("compression.", "decoder."))


# The model once more, from the paper's equations: one row, one query, one key at a time


def plain_compress(model, index, group, usage):
    """What one layer makes of old memories: a list of vectors."""
    config, size = model.config, model.config.compression_ratio
    pieces = [torch.stack(group[start : start + size]) for start in range(0, len(group), size)]
    if config.compression == "convolution":
        weight, bias = model.compression.convolution.weight[index], model.compression.convolution.bias[index, 0]
        d_model = config.d_model
        return [sum(piece[k] @ weight[k * d_model : (k + 1) * d_model] for k in range(size)) + bias for piece in pieces]
    if config.compression == "most_attended":
        by_usage = sorted(range(len(group)), key=lambda k: -usage[k])
        return [group[k] for k in sorted(by_usage[: len(pieces)])]
    return [piece.mean(0) if config.compression == "mean" else piece.max(0).values for piece in pieces]


def plain_content(layer, token, memories):
    """attn(h, m) of Algorithm 2: by content alone."""
    attention, d_head = layer.attention, len(token) // layer.attention.num_heads
    query = attention.query.weight @ plain_norm(layer.norm_attention, token)
    normed = [plain_norm(layer.norm_attention, memory) for memory in memories]
    keys, values = ([part @ memory for memory in normed] for part in attention.key_value.weight.chunk(2))
    heads = []
    for rows in (slice(start, start + d_head) for start in range(0, len(token), d_head)):
        weights = torch.stack([query[rows] @ key[rows] / math.sqrt(d_head) for key in keys]).softmax(0)
        heads.append(sum(weight * value[rows] for weight, value in zip(weights, values, strict=True)))
    return torch.cat(heads)


def plain_errors(model, index, inputs, old, new):
    """The squared errors whose mean over the batch, summed over layers, is the auxiliary loss."""
    if model.config.reconstruction == "attention":
        layer = model.layers[index]
        return [(plain_content(layer, x, old) - plain_content(layer, x, new)) ** 2 for x in inputs]
    weight, bias = model.decoder.weight[index], model.decoder.bias[index, 0]
    decoded = torch.stack([vector @ weight + bias for vector in new]).reshape(len(old), -1)
    return [(decoded - torch.stack(old)) ** 2]


def plain_row(model, ids, row):
    """Logits of a row's real inputs; its state (each layer's memories and compressed, as lists) is changed in place."""
    config, inputs, errors = model.config, plain_embed(model, ids), []
    for index, (layer, (memory, compressed)) in enumerate(zip(model.layers, row, strict=True)):
        context = [(vector, config.memory_length + len(compressed) - k) for k, vector in enumerate(compressed)]
        context += [(vector, len(memory) - k) for k, vector in enumerate(memory)]
        outputs, usage = plain_layer(layer, inputs, context) if inputs else ([], [])
        usage = usage[len(compressed) :]
        memory += inputs
        num_groups = math.ceil(max(len(memory) - config.memory_length, 0) / config.compression_ratio)
        old, memory[:] = memory[: num_groups * config.compression_ratio], memory[num_groups * config.compression_ratio :]
        if old:
            new = plain_compress(model, index, old, usage)
            compressed[:] = (compressed + new)[-config.compressed_length :]
            if config.compression == "convolution" and config.reconstruction != "none":
                errors.append(plain_errors(model, index, inputs, old, new))
        inputs = outputs
    return [model.embedding.weight @ plain_norm(model.norm, x) for x in inputs], errors


@every_kind
@pytest.mark.parametrize(
    "lengths", [LENGTHS, {"memory_length": 3, "compressed_length": 2, "compression_ratio": 3}], ids=["6+3x2", "3+2x3"]
)
def test_the_equations_of_the_paper(kind, lengths):
    model = build(**kind, **lengths)
    state, rows = model.initial_state(2), [[([], []) for _ in model.layers] for _ in range(2)]
    for step in padded_steps(COUNTS):
        logits, state, auxiliary = model(step, state)
        errors = [[] for _ in model.layers]
        with torch.no_grad():
            for b, count in enumerate((step.target != IGNORE).sum(1).tolist()):
                wanted, row_errors = plain_row(model, decoder_input(step)[b, :count], rows[b])
                if count:
                    torch.testing.assert_close(logits[b, :count], torch.stack(wanted), rtol=1e-9, atol=1e-9)
                for index, (memory, compressed) in enumerate(rows[b]):
                    assert (state.length[b], state.compressed_filled[b]) == (len(memory), len(compressed))
                    for slots, vectors in ((state.memory, memory), (state.compressed, compressed)):
                        if vectors:
                            ours = slots[b, index, slots.shape[2] - len(vectors) :]
                            torch.testing.assert_close(ours, torch.stack(vectors), rtol=1e-9, atol=1e-9)
                for index, found in enumerate(row_errors):
                    errors[index] += [error.reshape(-1, model.config.d_model) for error in found]
        if kind in LEARNING:
            wanted = sum(torch.cat(found).mean() for found in errors) if errors[0] else torch.zeros((), dtype=torch.float64)
            torch.testing.assert_close(auxiliary.detach(), wanted, rtol=1e-9, atol=1e-12)
        else:
            assert auxiliary is None
    assert state.compressed_filled.tolist() == [model.config.compressed_length] * 2, "the test must fill both queues"


@pytest.mark.parametrize("ratio", [1, 2, 3, 6])
@torch.no_grad()
def test_memories_leave_in_whole_groups_however_they_came(ratio):
    """After t tokens, the smallest multiple of the ratio that is at least t - memory_length have left."""
    model = build(compression_ratio=ratio, compressed_length=50, segment_length=7)
    for length in (1, 3, 4, 7):
        state, read = model.initial_state(2), 0
        for step in cut(random_ids(21), length):
            state = model.advance(step, state)
            read += step.target.shape[1]
            gone = math.ceil(max(read - 6, 0) / ratio) * ratio
            assert state.compressed_filled.tolist() == [gone // ratio] * 2
            assert state.length.tolist() == [read - gone] * 2
            assert read < 6 or 6 - ratio < read - gone <= 6


@torch.no_grad()
def test_rows_at_different_places_do_not_notice_each_other():
    """One row has compressed memories, one has not, one starts afresh: each is as alone."""
    model, counts = build(), [[4, 1, 4], [4, 1, 4], [4, 0, 4], [3, 2, 2], [4, 4, 4]]
    steps = padded_steps(counts)
    steps[3] = steps[3]._replace(reset=torch.tensor([False, False, True]))
    logits, state = run(model, steps)
    for row in range(3):
        alone = []
        for step, count in zip(steps, counts, strict=True):
            if count[row]:
                reset = None if step.reset is None else step.reset[row : row + 1]
                alone.append(step._replace(source=step.source[[row]], target=step.target[[row], : count[row]], reset=reset))
        pieces, state_alone = run(model, alone)
        kept = [batch[row, : count[row]] for batch, count in zip(logits, counts, strict=True) if count[row]]
        torch.testing.assert_close(torch.cat(kept), torch.cat(pieces, dim=1)[0], rtol=1e-11, atol=1e-11)
        for member, member_alone in zip(state, state_alone, strict=True):
            torch.testing.assert_close(member[row], member_alone[0], rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_what_is_not_filled_is_not_attended_to():
    model = build(compressed_length=6)
    steps = padded_steps([[4, 4], [4, 1], [4, 4]])
    state = run(model, steps[:2])[1]
    wanted = model(steps[2], state).logits
    assert state.compressed_filled.tolist() == [1, 0]
    for row in range(2):
        state.memory[row, :, : 6 - state.length[row]] = 1e3
        state.compressed[row, :, : 6 - state.compressed_filled[row]] = 1e3
    assert torch.equal(model(steps[2], state).logits, wanted)


@torch.no_grad()
def test_compression_reaches_further_back_and_no_further():
    """One layer: memory_length + ratio * compressed_length tokens before the segment, counted in whole groups."""
    model = build(num_layers=1, memory_length=4, compressed_length=3, compression_ratio=2)
    ids = random_ids(24)
    wanted = run(model, cut(ids, 4))[0][-1]
    for position in range(4, 20):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCAB
        moved = (run(model, cut(changed, 4))[0][-1] - wanted).abs().amax((1, 2))
        assert bool((moved > 1e-9).all()) if position >= 20 - 4 - 6 else not moved.any()


@torch.no_grad()
def test_without_compressed_slots_it_is_transformer_xl():
    ours = build(compressed_length=0, compression_ratio=4)
    theirs = TransformerXL(TransformerXLConfig(**SMALL, memory_length=6)).double()
    theirs.load_state_dict(ours.state_dict())
    steps = padded_steps(COUNTS)
    (logits, state), (wanted, wanted_state) = run(ours, steps), run(theirs, steps)
    assert all(map(torch.equal, logits, wanted))
    assert all(map(torch.equal, state, wanted_state))


@every_kind
@pytest.mark.parametrize("gradients", [True, False])
def test_advance_is_forward_to_the_bit_without_the_last_layer(kind, gradients, monkeypatch):
    model = build(torch.float32, dropout=0.4, **kind)
    state = model.initial_state(2)
    for step in padded_steps(COUNTS):
        torch.manual_seed(3)
        wanted = model(step, state).state
        assert not any(member.requires_grad for member in wanted)
        torch.manual_seed(3)
        with monkeypatch.context() as patch, torch.set_grad_enabled(gradients):
            patch.setattr(model.layers[-1], "forward", None)
            patch.setattr(model.norm, "forward", None)
            state = model.advance(step, state)
        assert all(map(torch.equal, state, wanted))


@every_kind
def test_replay_gives_the_gradients_of_bptt(kind):
    model = build(torch.float32, dropout=0.2, **kind)
    steps = padded_steps(COUNTS)
    steps[3] = steps[3]._replace(reset=torch.tensor([True, False]))
    found = []
    for method in (bptt, mrbp, checkpointed):
        torch.manual_seed(1)
        model.zero_grad()
        loss, state = method(model, steps, model.initial_state(2))
        found.append([loss, *state, *(p.grad for p in model.parameters() if p.grad is not None)])
    trained = {name for name, p in model.named_parameters() if is_compression(name) and p.grad is not None}
    assert bool(trained) == (kind in LEARNING)
    for wanted, *others in zip(*found, strict=True):
        for ours in others:
            torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_no_gradient_goes_into_the_memories():
    model = build()
    *before, step = padded_steps([[4, 4], [4, 4], [4, 3]])
    state = run(model, before)[1]
    state.memory.requires_grad_()
    state.compressed.requires_grad_()
    output = model(step, state)
    (output.logits.square().sum() + output.auxiliary).backward()
    assert state.memory.grad is None
    assert state.compressed.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters())


@every_learning_kind
def test_the_auxiliary_loss_trains_the_compression_and_nothing_else(kind):
    model = build(**kind)
    *before, step = padded_steps([[4, 4], [4, 4], [4, 3]])
    output = model(step, run(model, before)[1])
    names, parameters = zip(*model.named_parameters(), strict=True)
    for loss, wanted in ((output.auxiliary, True), (cross_entropy_sum(output.logits, step.target), False)):
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            assert (gradient is not None) == (is_compression(name) == wanted), name
            if gradient is not None and wanted:
                assert gradient.flatten(1).any(1).all(), f"every layer of {name} must learn"


@every_learning_kind
def test_training_the_compression_lowers_its_loss(kind):
    """On a batch that it is trained on, and on one that it is not; the rest of the model has no part in it."""
    torch.manual_seed(0)
    sizes = SMALL | {"d_model": 16, "memory_length": 16, "segment_length": 16, "compressed_length": 8, "compression_ratio": 2}
    model = CompressiveTransformer(CompressiveTransformerConfig(**sizes, **kind))
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if is_compression(name)], lr=3e-3)

    def loss(seed):
        first, second = cut(random_ids(32, batch_size=16, seed=seed), 16)
        return model(second, model.advance(first, model.initial_state(16))).auxiliary

    before = loss(0).item()
    for seed in range(1, 101):
        optimizer.zero_grad()
        loss(seed).backward()
        optimizer.step()
    assert loss(0).item() < 0.5 * before


@every_learning_kind
def test_where_nothing_is_compressed_the_loss_is_a_zero_that_can_be_differentiated(kind):
    model = build(**kind)
    auxiliary = model(cut(random_ids(4), 4)[0], model.initial_state(2)).auxiliary
    assert auxiliary == 0
    auxiliary.backward()
    assert all(not p.grad.any() for name, p in model.named_parameters() if is_compression(name))
    with torch.no_grad():
        assert model(cut(random_ids(4), 4)[0], model.initial_state(2)).auxiliary is None


def test_the_most_attended_stay_in_their_order():
    old = torch.arange(6.0).expand(3, 1, -1)[..., None]
    usage = torch.tensor([[0.1, 0.9, 0.2, 0.3, 0.8, 0.7], [0.1, 0.2, 0.9, 0.3, 5.0, 5.0], [9.0] * 6])[:, None]
    kept = most_attended(old, usage, torch.tensor([3, 2, 0]), ratio=2)[:, 0, :, 0].tolist()
    assert kept[0] == [1, 4, 5]
    assert kept[1][:2] == [2, 3], "the last two are not old yet in this row"


@torch.no_grad()
def test_other_lengths_when_evaluated():
    """No weight depends on how much is kept: with room for everything it is the whole sequence."""
    trained, ids = build(), random_ids(12)
    config = CompressiveTransformerConfig(**SMALL | LENGTHS | {"memory_length": 12, "compressed_length": 7})
    model = CompressiveTransformer(config).double()
    model.load_state_dict(trained.state_dict())
    whole = CompressiveTransformer(CompressiveTransformerConfig(**SMALL | LENGTHS | {"segment_length": 12})).double()
    whole.load_state_dict(trained.state_dict())
    wanted = whole(cut(ids, 12)[0], whole.initial_state(2)).logits
    torch.testing.assert_close(torch.cat(run(model, cut(ids, 4))[0], dim=1), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_length", -1),
        ("compressed_length", -1),
        ("compression_ratio", 0),
        ("compression_ratio", 4),  # does not divide a memory of 6
        ("memory_length", 0),  # a group has nowhere to wait
        ("compression", "median"),
        ("reconstruction", "bptt"),
        ("num_heads", 3),
        ("dropout", -0.1),
    ],
)
def test_bad_configs_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        CompressiveTransformerConfig(**SMALL | LENGTHS | {field: value})


def test_a_state_of_other_lengths_is_refused():
    with pytest.raises(ValueError, match=r"state\.compressed"):
        build()(cut(random_ids(4), 4)[0], build(compressed_length=4).initial_state(2))


@every_way
@every_kind
@torch.no_grad()
def test_decoding_is_one_pass(kind, pieces):
    assert_decoding_is_one_pass(build(**kind), pieces)


@every_way
@pytest.mark.parametrize("memory_length", [0, 3, 9])
@torch.no_grad()
def test_decoding_is_one_pass_without_compression(memory_length, pieces):
    assert_decoding_is_one_pass(build(memory_length=memory_length, compressed_length=0), pieces)


@every_way
@pytest.mark.parametrize("compression", ["mean", "most_attended"])
@torch.no_grad()
def test_decoding_is_one_pass_where_groups_take_from_the_segment(compression, pieces):
    assert_decoding_is_one_pass(
        build(memory_length=3, compressed_length=2, compression_ratio=3, compression=compression), pieces
    )
