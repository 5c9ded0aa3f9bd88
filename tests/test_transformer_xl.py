"""Transformer-XL against its equations in plain loops, its theoretical range, and what its memory promises."""

import math

import pytest
import torch

from memformer_torch.backprop import bptt, mrbp
from memformer_torch.models.transformer_xl import TransformerXL, TransformerXLConfig
from memformer_torch.nn.past import Places
from memformer_torch.types import BOS, IGNORE, PAD, Segment, decoder_input

VOCAB = 11
SMALL = {"vocab_size": VOCAB, "d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 2, "segment_length": 4, "dropout": 0.0}


def build(dtype=torch.float64, **changes):
    """A model whose biases and norms have moved from where they start."""
    torch.manual_seed(0)
    model = TransformerXL(TransformerXLConfig(**SMALL | changes)).to(dtype)
    shake(model)
    return model


def shake(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)


def cut(ids, length):
    """Steps whose inputs are ids (B, n), piece by piece; the last target is made up."""
    ids = torch.cat([ids, ids[:, :1]], dim=1)
    starts = range(0, ids.shape[1] - 1, length)
    return [Segment(ids[:, start : start + 1], ids[:, start + 1 : start + 1 + length]) for start in starts]


def padded_steps(counts, length=4, seed=0):
    """Random steps in which row b has counts[step][b] real targets."""
    generator, steps = torch.Generator().manual_seed(seed), []
    for row_counts in counts:
        target = torch.randint(VOCAB, (len(row_counts), length), generator=generator)
        source = torch.randint(VOCAB, (len(row_counts), 3), generator=generator)
        source[0, 2], source[-1, 1:] = BOS, PAD
        target[torch.arange(length) >= torch.tensor(row_counts)[:, None]] = IGNORE
        steps.append(Segment(source, target))
    return steps


def run(model, steps, state=None):
    state, logits = model.initial_state(len(steps[0].source)) if state is None else state, []
    for step in steps:
        output = model(step, state)
        logits.append(output.logits)
        state = output.state
    return logits, state


def random_ids(length, batch_size=2, seed=1):
    return torch.randint(VOCAB, (batch_size, length), generator=torch.Generator().manual_seed(seed))


# The model once more, from the papers' equations: one row, one query, one key at a time


def plain_norm(norm, x):
    variance = ((x - x.mean()) ** 2).mean()
    return (x - x.mean()) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def plain_position(distance, width):
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def plain_layer(layer, tokens, memories):
    """Outputs, and the attention each memory and token got; memories are pairs: a vector, its slots before the first token."""
    attention, width = layer.attention, len(tokens[0])
    key_weight, value_weight = attention.key_value.weight.chunk(2)
    d_head, outputs, usage = width // attention.num_heads, [], torch.zeros(len(memories) + len(tokens), dtype=torch.float64)
    for i, token in enumerate(tokens):
        seen = [(vector, i + back) for vector, back in memories] + [(tokens[j], i - j) for j in range(i + 1)]
        taken = []
        for head in range(attention.num_heads):
            rows = slice(head * d_head, (head + 1) * d_head)
            query = attention.query.weight[rows] @ plain_norm(layer.norm_attention, token)
            u, v = attention.content_bias[head].flatten(), attention.position_bias[head].flatten()
            scores = []
            for vector, distance in seen:
                key = key_weight[rows] @ plain_norm(layer.norm_attention, vector)
                relative = attention.position.weight[rows] @ plain_position(distance, width)
                scores.append(((query + u) @ key + (query + v) @ relative) / math.sqrt(d_head))
            weights = torch.stack(scores).softmax(0)
            usage[: len(seen)] += weights.detach()
            values = [value_weight[rows] @ plain_norm(layer.norm_attention, vector) for vector, _ in seen]
            taken.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        x = token + attention.out.weight @ torch.cat(taken)
        outputs.append(x + layer.feed_forward(plain_norm(layer.norm_feed_forward, x)))
    return outputs, usage


def plain_embed(model, ids):
    return [model.embedding(token[None, None])[0, 0] for token in ids]


def plain_xl(model, ids, memory):
    """Logits of a row's real inputs (n,), and each layer's memory, a list of vectors, after them."""
    inputs, new_memory = plain_embed(model, ids), []
    for layer, old in zip(model.layers, memory, strict=True):
        new_memory.append((old + inputs)[max(len(old + inputs) - model.config.memory_length, 0) :])
        if inputs:
            inputs, _ = plain_layer(layer, inputs, [(vector, len(old) - k) for k, vector in enumerate(old)])
    return [model.embedding.weight @ plain_norm(model.norm, x) for x in inputs], new_memory


@pytest.mark.parametrize("memory_length", [0, 3, 6, 30])
@torch.no_grad()
def test_the_equations_of_the_paper(memory_length):
    model = build(memory_length=memory_length)
    steps = padded_steps([[4, 4], [4, 2], [0, 4], [3, 1], [4, 4]])
    state, plain = model.initial_state(2), [[[] for _ in model.layers] for _ in range(2)]
    for step in steps:
        logits, state, auxiliary = model(step, state)
        assert auxiliary is None
        for row, count in enumerate((step.target != IGNORE).sum(1).tolist()):
            wanted, plain[row] = plain_xl(model, decoder_input(step)[row, :count], plain[row])
            assert state.length[row] == len(plain[row][0])
            if count:
                torch.testing.assert_close(logits[row, :count], torch.stack(wanted), rtol=1e-9, atol=1e-9)
            for index, memory in enumerate(plain[row]):
                if memory:
                    ours = state.memory[row, index, memory_length - len(memory) :]
                    torch.testing.assert_close(ours, torch.stack(memory), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("num_layers", "length", "memory_length"),
    [(1, 5, 3), (2, 4, 4), (2, 4, 1), (2, 3, 0), (3, 4, 6), (3, 2, 7), (4, 3, 3), (2, 1, 5)],
)
@torch.no_grad()
def test_the_range_is_what_the_theory_says(num_layers, length, memory_length):
    """Each layer reaches to its segment's start less the memory length: a token there counts, none before does."""
    num_tokens = num_layers * (length + memory_length) + 2 * length
    model = build(num_layers=num_layers, segment_length=length, memory_length=memory_length)
    ids = random_ids(num_tokens)
    logits, _ = run(model, cut(ids, length))
    for step in range(len(logits) - 2, len(logits)):
        bound = (step + 1) * length - 1
        for _ in range(num_layers):
            bound = bound // length * length - memory_length
        assert bound > 0, "the test must have something beyond the bound"
        changed = ids.clone()
        changed[:, :bound] = (ids[:, :bound] + 1) % VOCAB
        beyond = run(model, cut(changed, length))[0][step]
        assert torch.equal(beyond, logits[step])
        changed = ids.clone()
        changed[:, bound] = (ids[:, bound] + 1) % VOCAB
        at_bound = run(model, cut(changed, length))[0][step]
        assert ((at_bound - logits[step])[:, -1].abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("length", [1, 3, 5, 13])
@torch.no_grad()
def test_segments_are_the_whole_sequence_while_the_memory_covers_it(length):
    """With the weights of a model that was made for another memory length; and one slot less is too few."""
    ids, whole = random_ids(13), build(segment_length=13, memory_length=0)
    wanted = whole(cut(ids, 13)[0], whole.initial_state(2)).logits
    history = 12 // length * length  # of the last segment
    for memory_length in {history, max(history - 1, 0), 40}:
        model = TransformerXL(TransformerXLConfig(**SMALL | {"segment_length": 13, "memory_length": memory_length})).double()
        model.load_state_dict(whole.state_dict())
        pieces = torch.cat(run(model, cut(ids, length))[0], dim=1)
        assert torch.allclose(pieces, wanted, rtol=1e-10, atol=1e-10) == (memory_length >= history)


@torch.no_grad()
def test_what_is_not_filled_is_not_attended_to():
    """A row that has read nothing, in a batch with one that has: zeros in the memory would be seen."""
    model = build(memory_length=6)
    first, second = padded_steps([[4, 0], [4, 4]])
    state = model(first, model.initial_state(2)).state
    assert state.length.tolist() == [4, 0]
    wanted = model(second, state).logits
    alone = model(Segment(*(ids[1:] for ids in second[:2])), model.initial_state(1)).logits
    torch.testing.assert_close(wanted[1:], alone, rtol=1e-12, atol=1e-12)
    for row, length in enumerate(state.length.tolist()):
        state.memory[row, :, : 6 - length] = 1e3
    assert torch.equal(model(second, state).logits, wanted)


def test_no_gradient_goes_into_the_memory():
    model = build(memory_length=6)
    first, second = cut(random_ids(8), 4)
    state = model(first, model.initial_state(2)).state
    assert not any(member.requires_grad for member in state)
    state.memory.requires_grad_()
    model(second, state).logits.square().sum().backward()
    assert state.memory.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_memory_teaches_the_weights_that_read_it():
    """No gradient into the memory, but one for the keys and values made of it: the state must count in W_K, W_V, W_R."""
    model = build(memory_length=6, num_layers=1)
    (step,) = cut(random_ids(1), 1)
    state = model.initial_state(2)
    found = []
    for length in (0, 6):
        model.zero_grad()
        memory = torch.randn(state.memory.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        model(step, state._replace(memory=memory, length=state.length + length)).logits.square().sum().backward()
        found.append(model.layers[0].attention.key_value.weight.grad.clone())
    assert not found[0][:8].any(), "a token alone has nothing to choose from"
    assert found[1][:8].any()


@pytest.mark.parametrize("memory_length", [0, 3, 9])
@pytest.mark.parametrize("gradients", [True, False])
def test_advance_is_forward_to_the_bit_without_the_last_layer(memory_length, gradients, monkeypatch):
    model = build(torch.float32, memory_length=memory_length, dropout=0.4)
    state = model.initial_state(2)
    for step in padded_steps([[4, 4], [4, 2], [0, 4], [4, 4]]):
        torch.manual_seed(3)
        wanted = model(step, state).state
        torch.manual_seed(3)
        with monkeypatch.context() as patch, torch.set_grad_enabled(gradients):
            patch.setattr(model.layers[-1], "forward", None)
            patch.setattr(model.norm, "forward", None)
            state = model.advance(step, state)
        assert all(map(torch.equal, state, wanted))


@torch.no_grad()
def test_a_reset_forgets():
    model = build(memory_length=6)
    steps = padded_steps([[4, 4], [4, 4]])
    state = run(model, steps)[1]
    step = padded_steps([[4, 3]], seed=5)[0]
    ours = model(step._replace(reset=torch.tensor([False, True])), state)
    kept, fresh = model(step, state), model(step, model.initial_state(2))
    for row, wanted in enumerate((kept, fresh)):
        torch.testing.assert_close(ours.logits[row], wanted.logits[row], rtol=1e-12, atol=1e-12)
        for ours_member, member in zip(ours.state, wanted.state, strict=True):
            torch.testing.assert_close(ours_member[row], member[row], rtol=1e-12, atol=1e-12)


def test_replay_gives_the_gradients_of_bptt():
    model = build(torch.float32, memory_length=6, dropout=0.2)
    steps = padded_steps([[4, 4], [4, 2], [0, 4], [3, 1]])
    steps[2] = steps[2]._replace(reset=torch.tensor([True, False]))
    found = []
    for method in (bptt, mrbp):
        torch.manual_seed(1)
        model.zero_grad()
        loss, state = method(model, steps, model.initial_state(2))
        found.append([loss, *state, *(parameter.grad for parameter in model.parameters())])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory_length", -1), ("num_layers", 0), ("d_model", 9), ("num_heads", 3), ("dropout", 1.0), ("segment_length", 0)],
)
def test_bad_configs_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        TransformerXLConfig(**SMALL | {field: value})


def test_a_state_of_another_memory_length_is_refused():
    with pytest.raises(ValueError, match=r"state\.memory"):
        build(memory_length=6)(cut(random_ids(4), 4)[0], build(memory_length=5).initial_state(2))
    with pytest.raises(ValueError, match="segment_length"):
        build(memory_length=6).check(cut(random_ids(5), 5)[0])


# Each piece of a call: the places of its inputs, the same for both rows or each its own, where 4 is padding
PIECES = {
    "at once": [[[0, 1, 2, 3]]],
    "one by one": [[[0]], [[1]], [[2]], [[3]]],
    "apart": [[[4, 4], [0, 1]], [[0, 4], [2, 3]], [[1, 2], [4, 4]], [[3], [4]]],
    "one apart": [[[0], [4]], [[1], [0]], [[2], [1]], [[3], [2]], [[4], [3]]],
}
every_way = pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)


def assert_decoding_is_one_pass(model, pieces):
    """From states of all ages in which rows have different lengths, with something in the slots that are not filled."""
    state = model.initial_state(2)
    for before, step in zip(padded_steps([[4, 0], [4, 2], [3, 4], [4, 4], [4, 1]]), padded_steps([[4, 4]] * 5), strict=True):
        output, cache = model(step, state), model.begin(step.source, state)
        inputs, logits = decoder_input(step), torch.zeros(2, 5, VOCAB, dtype=torch.float64)
        for piece in pieces:
            index = torch.tensor(piece)
            rows = index.expand(2, -1)
            given = torch.nn.functional.pad(inputs, (0, 1), value=PAD).gather(1, rows)
            hidden = model.extend(cache, given, Places(index, 1 + int(index[index < 4].max())))
            logits.scatter_(1, rows[..., None].expand(-1, -1, VOCAB), model.embedding.logits(hidden))
        torch.testing.assert_close(logits[:, :4], output.logits, rtol=1e-10, atol=1e-10)
        for name, ours, wanted in zip(output.state._fields, model.finish(cache), output.state, strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
        state = model(before, state).state
        spoil(*state[:2])


def spoil(slots, filled):
    for row, count in enumerate(filled.tolist()):
        slots[row, :, : slots.shape[2] - count] = 1e3


@every_way
@pytest.mark.parametrize("memory_length", [0, 3, 9])
@torch.no_grad()
def test_decoding_is_one_pass(memory_length, pieces):
    assert_decoding_is_one_pass(build(memory_length=memory_length), pieces)


@torch.no_grad()
def test_decoding_projects_only_new_inputs(monkeypatch):
    """A token costs a token's projections, and the distances none; nor does it write into the state that it began from."""
    model = build(memory_length=6)
    state = run(model, padded_steps([[4, 4], [4, 4]]))[1]
    before = [member.clone() for member in state]
    (step,), widths = padded_steps([[4, 4]]), []
    cache = model.begin(step.source, state)
    for layer in model.layers:
        monkeypatch.setattr(layer.attention, "position", None)
        layer.attention.key_value.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    for place in range(4):
        model.extend(cache, decoder_input(step)[:, place : place + 1], Places(torch.tensor([[place]]), place + 1))
    assert widths == [1] * 8
    assert all(map(torch.equal, state, before))
