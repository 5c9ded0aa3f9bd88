"""Slot analysis: its arrays are the paper's equations and the model's own memory, and what is counted is what was built."""

import dataclasses
import math
import threading
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from memformer_torch import BOS, LSTM, PAD, LSTMConfig, Segment, Session
from memformer_torch.analysis import slots as arrays
from memformer_torch.analysis.look import angle, look
from memformer_torch.analysis.slot_findings import (
    angles_home,
    eventful_slot,
    half_life,
    middle,
    numbers,
    path_on_plane,
    shares,
    typical,
    usual_types,
    way_home,
    writing_place,
)
from memformer_torch.analysis.slots import KEEP, TAKE, TYPES, Slots, bytes_a_segment, collect, load, slot_types, watch
from memformer_torch.analysis.token_text import START, label, pieces, token_texts, top_words, words
from memformer_torch.data.tokenizer import Bytes, Words
from memformer_torch.models.memformer import MemformerState
from tests import plain
from tests.conftest import random_segment, tiny_memformer

VARIANTS = {
    "as it is": {},
    "no classification token": {"num_cls_tokens": 0},
    "four of them": {"num_cls_tokens": 4},
    "single head": {"num_writer_heads": 1},
    "four heads": {"num_writer_heads": 4},
    "no forgetting": {"forgetting": False},
    "no forgetting, no norm": {"forgetting": False, "memory_norm": False},
    "no norm": {"memory_norm": False},
    "reads memory": {"decoder_reads": "encoder+memory"},
    "adaptive": {"cutoffs": [4, 8]},
    "sharp": {"temperature": 0.05},
    "dropout": {"dropout": 0.3},
}
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
cases = pytest.mark.parametrize(
    "case", [{}, {"padded": True}, {"padded": True, "reset": True, "begin": True}], ids=["full", "padded", "reset"]
)


def random_state(model, batch_size=3):
    memory = torch.randn(batch_size, model.config.num_slots, model.config.d_model, dtype=model.cls_tokens.dtype)
    return MemformerState(F.normalize(memory, dim=-1))


def before(model, segment, state):
    """The memory that a step starts from."""
    if segment.reset is None:
        return state.memory
    return torch.where(segment.reset[:, None, None], model.initial_state(len(state.memory)).memory, state.memory)


def implied_memory(model, segment, state, seen):
    """The next memory that the weights imply: eq. 8 and forgetting, from the encoder's tokens."""
    slots = before(model, segment, state) * model.config.d_model**0.5
    value = F.linear(model._encode(segment.source, slots).tokens, model.writer.query_key_value.weight[-model.config.d_model :])
    width = model.config.d_model // model.writer.num_heads
    heads = []
    for head in range(model.writer.num_heads):
        part = slice(head * width, (head + 1) * width)
        heads.append(seen.own[:, head, :, None] * slots[..., part] + seen.tokens[:, head] @ value[..., part])
    memory = torch.cat(heads, dim=-1) / model.config.d_model**0.5
    memory = memory + model.forgetting.bias if model.config.forgetting else memory
    return memory / memory.norm(dim=-1, keepdim=True) if model.config.memory_norm else memory


@variants
@cases
@torch.no_grad()
def test_weights_sum_to_one_and_imply_the_models_memory(changes, case):
    model = tiny_memformer(**changes).eval()
    segment, state = random_segment(**case), random_state(model)
    seen = look(model, segment, state)
    assert seen.own.shape == (3, model.writer.num_heads, 5)
    assert seen.tokens.shape == (3, model.writer.num_heads, 5, 6 + model.config.num_cls_tokens)
    assert torch.allclose(seen.own + seen.tokens.sum(-1), torch.ones_like(seen.own), rtol=0, atol=1e-12)
    padding = F.pad(segment.source == PAD, (0, model.config.num_cls_tokens))[:, None, None]
    assert (seen.tokens.masked_select(padding) == 0).all()
    assert (seen.tokens.masked_select(~padding) > 0).any()
    expected = model.advance(segment, state).memory
    assert (seen.state.memory == expected).all()
    assert (implied_memory(model, segment, state, seen) - expected).abs().max() < 1e-10
    assert (seen.entropy + seen.own.xlogy(seen.own) + seen.tokens.xlogy(seen.tokens).sum(-1)).abs().max() < 1e-10


@variants
@torch.no_grad()
def test_single_precision_is_the_models_too(changes):
    model = tiny_memformer(torch.float32, **changes).eval()
    segment, state = random_segment(padded=True, begin=True), random_state(model)
    seen = look(model, segment, state)
    difference = implied_memory(model, segment, state, seen) - model.advance(segment, state).memory
    assert difference.abs().max() < 1e-6 * max(1, float(seen.state.memory.abs().max()))
    assert torch.allclose(seen.own + seen.tokens.sum(-1), torch.ones_like(seen.own), rtol=0, atol=1e-6)


def plain_weights(scores):
    """Softmax by the loops of the plain version: the average of unit vectors."""
    return plain.softmax_average(scores, list(torch.eye(len(scores), dtype=scores[0].dtype)))


@pytest.mark.parametrize("changes", [{}, {"num_writer_heads": 1, "num_cls_tokens": 4}, {"num_cls_tokens": 0}])
@torch.no_grad()
def test_weights_are_the_papers_equations(changes):
    """Writing (eq. 4 to 7) and reading (eq. 1 to 3), with loops over samples, layers, heads, slots and tokens."""
    model = tiny_memformer(**changes)
    config, scale = model.config, math.sqrt(model.config.d_model)
    segment, state = random_segment(batch_size=2, padded=True, begin=True), random_state(model, 2)
    seen = look(model, segment, state, reading="tokens")
    w_query, w_key, _ = model.writer.query_key_value.weight.chunk(3)
    for b, row in enumerate(segment.source.tolist()):
        source = [token for token in row if token != PAD]
        places = [*range(len(source)), *range(len(row), len(row) + config.num_cls_tokens)]  # without padding
        table = [model.embedding.bos if token == BOS else model.embedding.weight[token] for token in source]
        x = torch.stack([*(scale * vector for vector in table), *model.cls_tokens])
        positions = [*range(-len(source), 0), *([0] * config.num_cls_tokens)]
        slots = scale * state.memory[b]
        for y, layer in enumerate(model.encoder):
            x = x + plain.self_attend(plain.layer_norm(x, layer.norm_attention), layer.attention, positions, causal=False)
            asking = plain.layer_norm(x, layer.norm_read)
            width = config.d_model // config.num_heads
            for g in range(config.num_heads):
                part = slice(g * width, (g + 1) * width)
                for i, place in enumerate(places):
                    query = (layer.read.query.weight @ asking[i])[part]
                    keys = [(layer.read.key_value.weight[: config.d_model] @ slot)[part] for slot in slots]
                    weights = plain_weights([query @ key / math.sqrt(width) for key in keys])
                    assert (seen.reading[b, y, g, place] - weights).abs().max() < 1e-10
            x = x + plain.cross_attend(asking, slots, layer.read)
            x = x + plain.feed_forward(plain.layer_norm(x, layer.norm_feed_forward), layer.feed_forward)
        tokens = plain.layer_norm(x, model.norm_encoder)
        width = config.d_model // model.writer.num_heads
        for h in range(model.writer.num_heads):
            part = slice(h * width, (h + 1) * width)
            for k, slot in enumerate(slots):
                query = (w_query @ slot)[part]
                scores = [query @ (w_key @ key)[part] / math.sqrt(width) / config.temperature for key in (slot, *tokens)]
                weights = plain_weights(scores)
                assert abs(seen.own[b, h, k] - weights[0]) < 1e-10
                assert (seen.tokens[b, h, k, places] - weights[1:]).abs().max() < 1e-10


@cases
@torch.no_grad()
def test_who_is_read(case):
    model, segment = tiny_memformer(num_cls_tokens=2), random_segment(**case)
    state = random_state(model)
    each, mean = look(model, segment, state, "tokens").reading, look(model, segment, state).reading
    real = F.pad(segment.source != PAD, (0, 2), value=True)
    assert each.shape == (3, 2, 2, 8, 5)
    assert torch.allclose(each.sum(-1), real[:, None, None].double().expand(-1, 2, 2, -1), atol=1e-12)
    for b in range(3):
        assert torch.allclose(each[b][:, :, real[b]].mean(2), mean[b], atol=1e-12)


@torch.no_grad()
def test_distance_and_forgetting():
    model = tiny_memformer()
    segment, state = random_segment(), random_state(model)
    seen = look(model, segment, state)
    cosine = (state.memory * seen.state.memory).sum(-1)
    assert torch.allclose(seen.moved.cos(), cosine, atol=1e-12)
    found = collect(model, range(11))
    assert np.allclose(found.forgetting_length, 0.1)
    assert np.allclose(found.bias, model.forgetting.bias.numpy())
    left = implied_memory(tiny_like(model, forgetting=False, memory_norm=False), segment, state, seen)
    assert torch.allclose(seen.forgetting_cosine, F.cosine_similarity(left, model.forgetting.bias, dim=-1), atol=1e-12)
    assert (collect(tiny_like(model, forgetting=False), range(11)).forgetting_length == 0).all()


def tiny_like(model, **changes):
    """The same weights, with another config."""
    other = tiny_memformer(**changes)
    other.load_state_dict(model.state_dict())
    return other


def test_small_angles_are_exact():
    for small in (0.0, 1e-12, 1e-5, 1.0, math.pi):
        one = torch.tensor([1.0, 0.0], dtype=torch.float64)
        other = torch.tensor([math.cos(small), math.sin(small)], dtype=torch.float64)
        assert float(angle(one, 3 * other)) == pytest.approx(small, rel=1e-9, abs=1e-15)


def forced(**changes):
    """Slot 0 gives itself all attention, slot 1 none: slots lie along axes on which own scores are +16 c^2 and -16 c^2."""
    model = tiny_memformer(num_writer_heads=1, num_slots=2, **changes)
    with torch.no_grad():
        model.norm_encoder.weight.mul_(1e-3)  # tokens score next to nothing
        axes = torch.eye(16, dtype=torch.float64)
        model.forgetting.bias.copy_(0.1 * axes[:2])
        signs = torch.full((16,), -1.0, dtype=torch.float64)
        signs[0] = 1
        w_query, w_key, w_value = model.writer.query_key_value.weight.chunk(3)
        w_query.copy_(10 * axes)
        w_key.copy_(10 * torch.diag(signs))
        w_value.copy_(axes.roll(1, 0))
    return model


def test_a_slot_forced_to_keep_is_counted_as_keeping():
    found = collect(forced(forgetting=False), torch.arange(25) % 11)
    assert (found.own[:, 0, 0] == 1).all()
    assert (found.types[:, 0] == TYPES.index("keep")).all()
    assert found.moved[:, 0].max() < 1e-15
    assert found.entropy[:, 0, 0].max() < 1e-15
    assert np.allclose(found.memory[:, 0], found.memory[0, 0], atol=1e-15)


def test_a_slot_forced_to_take_is_counted_as_taking():
    found = collect(forced(forgetting=False), torch.arange(25) % 11)
    assert found.own[0, 0, 1] < 1e-15
    assert found.types[0, 1] == TYPES.index("take")
    assert found.moved[0, 1] > 0.1
    assert found.tokens[0, 0, 1].sum() == pytest.approx(1)


def test_a_slot_that_keeps_and_forgets_goes_the_way_home():
    """With all weight on itself, what the model does is what the picture draws."""
    model = forced()
    with torch.no_grad():
        state = MemformerState(F.normalize(torch.eye(2, 16, dtype=torch.float64) + 0.2, dim=-1))
        model.forgetting.bias[0] = -0.07 * torch.eye(16, dtype=torch.float64)[0]
        home = F.normalize(model.forgetting.bias[0], dim=-1)
        expected = way_home(float(angle(state.memory[0], home)), 0.07, 12)
        memory = state.memory[None]
        for step in range(12):
            assert float(angle(memory[0, 0], home)) == pytest.approx(expected[step], abs=1e-9)
            memory = model.forgetting(memory)


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.49), st.floats(0.5, 1))
def test_types_partition_the_slots(seed, take, keep):
    own = np.random.default_rng(seed).random((4, 2, 9)) ** np.array([0.1, 1, 9, 1])[:, None, None]
    types, share = slot_types(own, keep, take), own.mean(1)
    assert np.allclose(shares(types).sum(-1), 1)
    assert ((share >= keep) == (types == 0)).all()
    assert ((share <= take) == (types == 2)).all()
    assert ((types == 1) == ~((types == 0) | (types == 2))).all()


def test_thresholds():
    own = np.array([[KEEP, TAKE, (KEEP + TAKE) / 2, 1, 0]])
    assert slot_types(own).tolist() == [0, 2, 1, 0, 2]
    for keep, take in ((0.2, 0.8), (0.5, 0.5), (1.1, 0), (0.5, -0.1)):
        with pytest.raises(ValueError, match="0 <= take < keep <= 1"):
            slot_types(own, keep, take)
    model = tiny_memformer()
    assert (collect(model, range(11), keep=1e-9, take=0).types == 0).all()
    assert (collect(model, range(11), keep=1, take=1 - 1e-9).types == 2).all()


@torch.no_grad()
def test_a_document_is_read_as_a_session_reads_it():
    model, ids = tiny_memformer(dropout=0.5), torch.randint(11, (3 * 6 + 2,))
    model.train()
    found = collect(model, ids)
    assert model.training
    assert not model.writer._forward_hooks
    assert found.source[0].tolist() == [BOS, *[PAD] * 5]
    assert found.source[1:4].ravel().tolist() == ids[:18].tolist()
    assert found.source[4].tolist() == [*ids[18:].tolist(), *[PAD] * 4]
    assert len(found) == 5
    assert found.memory.shape == (6, 5, 16)
    assert (found.memory[0] == model.initial_state(1).memory[0].numpy()).all()
    session = Session(model)
    for part in range(3):
        session.feed(ids[6 * part : 6 * part + 6])
        assert np.allclose(session.state.memory[0], found.memory[part + 1], atol=1e-12)
    for t, row in enumerate(torch.from_numpy(found.source)):
        state = MemformerState(torch.from_numpy(found.memory[t : t + 1]))
        after = model.eval().advance(Segment(row[None], row[None, :1].clamp(min=0)), state)
        assert np.allclose(after.memory[0], found.memory[t + 1], atol=1e-12)


def test_summaries_take_little_and_say_the_same():
    model, ids = tiny_memformer(), np.arange(60, dtype=np.uint8) % 11
    whole, summary = collect(model, ids), collect(model, ids, tokens=False, memory=False, dtype=np.float32)
    assert summary.tokens is None
    assert summary.memory is None
    for name in ("own", "entropy", "moved", "reading", "forgetting_cosine"):
        assert getattr(summary, name).dtype == np.float32
        assert np.allclose(getattr(summary, name), getattr(whole, name), atol=1e-6)
    for found, size in ((whole, bytes_a_segment(model, dtype=np.float64)), (summary, bytes_a_segment(model, False, False))):
        kept = [found.own, found.entropy, found.moved, found.reading, found.forgetting_cosine, found.tokens, found.memory]
        assert sum(array[:11].nbytes for array in kept if array is not None) == 11 * size
    assert sum(1 for _ in watch(model, ids)) == len(whole) == 11


def test_what_cannot_be_collected(monkeypatch):
    model = tiny_memformer()
    with pytest.raises(ValueError, match="the document is empty"):
        collect(model, [])
    with pytest.raises(ValueError, match="has 11 segments, but max_segments is 10"):
        collect(model, [1] * 60, max_segments=10)
    assert len(collect(model, [1] * 54, max_segments=10)) == 10
    with pytest.raises(ValueError, match="has no memory"):
        collect(tiny_memformer(num_slots=0), [1])
    with pytest.raises(ValueError, match="this model is a LSTM"):
        collect(LSTM(LSTMConfig(vocab_size=5)), [1])
    with pytest.raises(ValueError, match="allowed are 0 to 10"):
        collect(model, [1, 11])
    monkeypatch.setattr(arrays, "MOST_BYTES", 10_000)
    with pytest.raises(ValueError, match="leave out tokens, memory"):
        collect(model, [1] * 60)
    model.writer.query_key_value.weight.data[0] = math.nan
    with pytest.raises(ValueError, match="memory is not finite"):
        look(model, random_segment(), model.initial_state(3))


@pytest.mark.parametrize("part", ["writer", "read", "forgetting"])
def test_a_model_that_does_something_else_is_noticed(part):
    """The arrays cannot drift from the model: what they imply is compared with what it did."""
    model = tiny_memformer()
    module = model.encoder[1].read if part == "read" else getattr(model, part)
    if part == "forgetting":
        model._write = lambda slots, encoded: 1.001 * type(model)._write(model, slots, encoded)
    else:
        module.register_forward_hook(lambda module, given, output: 1.001 * output)
    with pytest.raises(RuntimeError, match="from the model's"):
        look(model, random_segment(), model.initial_state(3))


def test_other_threads_are_not_seen():
    model, segment = tiny_memformer().eval(), random_segment()
    state, alone = model.initial_state(3), look(model, segment, model.initial_state(3))

    def disturb(*_):
        handle.remove()
        other = threading.Thread(target=model.advance, args=(random_segment(), state))
        other.start()
        other.join()

    handle = model.writer.register_forward_pre_hook(disturb)
    seen = look(model, segment, state)
    assert (seen.own == alone.own).all()
    assert (seen.reading == alone.reading).all()


def test_a_saved_file_is_what_was_found(tmp_path):
    found = collect(tiny_memformer(), torch.arange(20) % 11)
    found.save(tmp_path / "slots.npz")
    again = load(tmp_path / "slots.npz")
    assert list(tmp_path.iterdir()) == [tmp_path / "slots.npz"]
    for field in dataclasses.fields(Slots):
        one, other = getattr(found, field.name), getattr(again, field.name)
        assert one.dtype == other.dtype
        assert (one == other).all(), field.name
    with np.load(tmp_path / "slots.npz", allow_pickle=False) as file:
        assert set(file.files) == {field.name for field in dataclasses.fields(Slots)}
    dataclasses.replace(found, tokens=None, memory=None).save(tmp_path / "less.npz")
    assert load(tmp_path / "less.npz").tokens is None


def test_a_damaged_file_is_one_clear_error(tmp_path):
    found = collect(tiny_memformer(), torch.arange(20) % 11)
    good = tmp_path / "slots.npz"
    found.save(good)
    data = good.read_bytes()
    flipped = bytearray(data)
    with zipfile.ZipFile(good) as archive:
        flipped[archive.getinfo("tokens.npy").header_offset + 200] ^= 0xFF
    damaged = {"cut": data[:-100], "half": data[: len(data) // 2], "flipped": bytes(flipped), "empty": b"", "text": b"slots"}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    contents = dict(vars(found))
    np.save(tmp_path / "single.npy", found.own)
    np.savez(tmp_path / "other.npz", weights=found.own)
    np.savez(tmp_path / "unknown.npz", **contents, more=found.own)
    np.savez(tmp_path / "pickled.npz", **(contents | {"own": np.array([{}], dtype=object)}))
    for name in ("own", "tokens", "memory", "types", "reading"):
        np.savez(tmp_path / f"shape of {name}.npz", **(contents | {name: contents[name][1:]}))
    np.savez(tmp_path / "types.npz", **(contents | {"types": contents["types"] + 3}))
    paths = [path for path in tmp_path.iterdir() if path != good]
    assert len(paths) == 5 + 4 + 5 + 1
    for path in paths:
        with pytest.raises(ValueError, match="is damaged, or not a file of slots") as raised:
            load(path)
        assert "\n" not in str(raised.value), path.name
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")


def built(own, **changes):
    """Slots with given weights on themselves (T, K), one head, and the rest on one token."""
    own = np.asarray(own, float)[:, None]
    found = collect(tiny_memformer(num_writer_heads=1, num_slots=own.shape[2]), [1] * 6 * (len(own) - 1))
    types = slot_types(own)
    return dataclasses.replace(found, own=own, types=types, **changes)


def test_typical_slots_are_of_the_middle():
    start, mixed, rest = [0, 0, 0, 0], [0.95, 0.85, 0.5, 0.1], [0.9, 0.9, 0.9, 0.9]
    found = built([start, rest, rest, rest, mixed, rest, rest, rest, [0, 0, 0, 0]])
    assert list(middle(found)) == [3, 4, 5, 6]
    assert {name: (place.slot, place.segment) for name, place in typical(found).items()} == {
        "keep": (1, 4),  # the median of two is the lower
        "mix": (2, 4),
        "take": (3, 4),
    }
    assert writing_place(found) == typical(found)["take"]
    assert eventful_slot(found) == 3
    assert usual_types(found).tolist() == [0, 0, 0, 0]
    found = built([start, rest, [0.5, 0.9, 0.9, 0.9], rest, [0.85, 0.9, 0.9, 0.9], rest, rest, rest, rest])
    places = typical(found)
    assert places["take"] is None  # the start does not count
    assert places["mix"] == (0, 2)  # outside the middle half, since there is none in it
    assert writing_place(found) == (0, 4)  # keeps least, where none takes


@pytest.mark.parametrize("number", [2, 3, 4, 5, 9, 40])
def test_the_middle_of_a_document_of_any_length(number):
    rows = middle(built(np.zeros((number, 1))))
    assert rows[0] >= 1
    assert rows[-1] <= number - 1
    assert len(rows) <= number // 2 + 1


def test_numbers_are_those_of_the_arrays():
    found = collect(tiny_memformer(), torch.arange(50) % 11)
    record = numbers(found)
    rows = [*middle(found)]
    assert record["middle_segments"] == [rows[0], rows[-1]]
    assert (record["segments"], record["tokens"], record["slots"]) == (10, 50, 5)
    for name, at in {"start": [0], "first": [1], "middle": rows, "last": [9]}.items():
        row = record["when"][name]
        assert [row[kind] for kind in TYPES] == pytest.approx([(found.types[at] == i).mean() for i in range(3)])
        assert row["own"] == pytest.approx(found.own[at].mean())
        assert row["heads_that_keep"] == (found.own[at] >= KEEP).mean()
        assert row["moved_degrees"] == pytest.approx(180 / math.pi * found.moved[at].mean())
    assert sum(row["slots"] for row in record["types"].values()) == 5


def test_ways_home():
    assert (np.diff(way_home(3.0, 0.1, 500)) < 0).all()
    assert way_home(3.0, 0.1, 500)[-1] < 1e-6
    assert half_life(3.0, 0.1) > half_life(1.0, 0.1) > half_life(1.0, 0.5)  # far away is hard to forget, a long vector easy
    assert half_life(1.0, 0.0, most=10) is None
    found = collect(tiny_memformer(), torch.arange(50) % 11)
    assert np.allclose(angles_home(found)[0], 0, atol=1e-7)
    points, shown = path_on_plane(found, 2)
    assert np.allclose(points[0], (0, 1), atol=1e-9)
    assert np.allclose(points[:, 1], np.cos(angles_home(found)[:, 2]), atol=1e-9)
    assert (np.linalg.norm(points, axis=1) <= 1 + 1e-9).all()
    assert 0 < shown <= 1


def test_texts_of_tokens():
    source = np.array([[BOS, PAD, PAD], [ord("a"), 0xC3, 0xB6], [ord(" "), ord("b"), 0xC3], [0xB6, ord("\n"), PAD]])
    texts = token_texts(source, Bytes())
    assert texts == [[START], ["a", "", "ö"], [" ", "b", ""], ["ö", "\n"]]
    assert pieces(texts[1], [0.1, 0.2, 0.3]) == [("a", 0.1), ("ö", 0.5)]
    assert pieces(texts[2], [0.1, 0.2, 0.3])[-1] == ("\ufffd", 0.3)  # its end is in the next segment
    assert words(texts[1], [0.25, 0.25, 0.5]) == [("aö", 1.0)]
    assert [label(text) for text in (" a", "\n", " ", "\x1b", "a b")] == ["a", "↵", "␣", "·", "a␣b"]
    tokenizer = Words(["<unk>", "<eos>", "cat", "the"])
    texts = token_texts(np.array([[3, 2, 1, 3, 2, PAD]]), tokenizer)
    assert texts == [["the", " cat", "\n", "the", " cat"]]
    assert top_words(texts[0], [0.1, 0.3, 0.2, 0.15, 0.005], 2) == [("cat", pytest.approx(0.305)), ("the", 0.25)]
    assert token_texts(np.array([[7, 12, PAD]]), None) == [[" 7", " 12"]]
    assert [word.text for word in words([" 7", " 12"], [1, 1])] == [" 7", " 12"]
