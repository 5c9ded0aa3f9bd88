"""The decoder: everything read is seen, in one pass or in pieces, through a cache that holds no more than it must."""

import pytest
import torch

from memformer_torch.models import transformer_decoder
from memformer_torch.models.transformer_decoder import TransformerDecoder, TransformerDecoderConfig
from memformer_torch.nn.past import Places, join_rows
from memformer_torch.types import BOS, IGNORE, Segment
from tests import plain

TINY = {"vocab_size": 11, "d_model": 16, "num_heads": 2, "d_ff": 24, "num_layers": 3, "segment_length": 12, "max_length": 12}


def tiny(**changes):
    return TransformerDecoder(TransformerDecoderConfig(**TINY | changes)).double().eval()


def text(batch_size=2, length=12, seed=0):
    return torch.randint(11, (batch_size, length), generator=torch.Generator().manual_seed(seed))


def pieces(ids, sizes):
    """A text (B, L) as segments of these sizes."""
    whole = torch.cat([torch.full((len(ids), 1), BOS), ids], dim=1)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [Segment(whole[:, e - n : e - n + 1], ids[:, e - n : e]) for e, n in zip(ends, sizes, strict=True)]


def plain_logits(model, ids):
    """The model written out for one document (L,): loops over positions and heads."""
    vectors = [model.embedding.bos, *model.embedding.weight[ids[:-1]]]
    x, positions = torch.stack(vectors) * model.config.d_model**0.5, list(range(len(ids)))
    for block in model.blocks:
        normed = plain.layer_norm(x, block.norm_attention)
        key, value = (normed @ weight.T for weight in block.key_value.weight.chunk(2))
        query = normed @ block.query.weight.T
        x = x + plain.attend(query, key, value, block.num_heads, positions, positions, causal=True) @ block.out.weight.T
        x = x + plain.feed_forward(plain.layer_norm(x, block.norm_feed_forward), block.feed_forward)
    return plain.layer_norm(x, model.norm) @ model.embedding.weight.T


@pytest.mark.parametrize("sizes", [[12], [4, 4, 4], [1] * 12, [5, 1, 6]])
def test_it_is_a_transformer_however_it_is_fed(sizes):
    model, ids = tiny(), text()
    state, logits = model.initial_state(2), []
    with torch.no_grad():
        for segment in pieces(ids, sizes):
            output = model(segment, state)
            logits.append(output.logits)
            state = output.state
        ours = torch.cat(logits, dim=1)
        for row in range(2):
            torch.testing.assert_close(ours[row], plain_logits(model, ids[row]), rtol=1e-10, atol=1e-10)
    assert state.length.tolist() == [12, 12]


def test_the_cache_is_as_long_as_its_longest_sample_and_zero_behind_the_others():
    model, ids = tiny(), text(3, 6)
    ids[0, 2:], ids[1, 5:], ids[2, 0:] = IGNORE, IGNORE, IGNORE
    state = model.advance(Segment(torch.full((3, 1), BOS), ids), model.initial_state(3))
    assert state.length.tolist() == [2, 5, 0]
    assert state.keys.shape == state.values.shape == (3, 3, 2, 5, 8)
    for cache in (state.keys, state.values):
        assert cache[0, :, :, :2].all()
        assert not cache[0, :, :, 2:].any()
        assert not cache[2].any()

    reset = torch.tensor([False, True, False])
    state = model.advance(Segment(torch.full((3, 1), 4), text(3, 1), reset), state)
    assert state.length.tolist() == [3, 1, 1]
    assert state.keys.shape[3] == 3, "what a reset frees is given back"


def test_max_length_is_a_limit_that_a_reset_lifts():
    model = tiny()
    *segments, last = pieces(text(2, 12), [5, 5, 2])
    state = model.initial_state(2)
    for segment in segments:
        state = model.advance(segment, state)
    assert model.advance(last, state).length.tolist() == [12, 12]
    longer = Segment(last.source, text(2, 3))
    for call in (model, model.advance, model.check):
        with pytest.raises(ValueError, match=r"reaches 13 tokens, but max_length is 12: reset .* or raise max_length"):
            call(longer, state)
    with pytest.raises(ValueError, match="max_length"):
        model(longer._replace(reset=torch.tensor([True, False])), state)
    assert model(longer._replace(reset=torch.tensor([True, True])), state).state.length.tolist() == [3, 3]
    longer.target[:, 2] = IGNORE  # padding is not read
    assert model(longer, state).state.length.tolist() == [12, 12]


def test_equal_samples_take_the_plain_path(monkeypatch):
    """No sample is moved, and every layer's attention is one call of the fused kernel."""
    monkeypatch.setattr(transformer_decoder, "_left_align", None)
    model = tiny()
    state = model.initial_state(2)
    for index, segment in enumerate(pieces(text(), [4, 4, 4])):
        reset = torch.tensor([index == 2] * 2)
        with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            state = model(segment._replace(reset=reset), state).state
        counts = {event.key: event.count for event in profile.key_averages()}
        assert counts["aten::_scaled_dot_product_flash_attention_for_cpu"] == 3
    with pytest.raises(TypeError):  # the patch does bite where samples differ
        model(Segment(torch.full((2, 1), 1), torch.tensor([[1, 2], [1, IGNORE]])), state)


def test_advance_leaves_out_what_the_state_does_not_need():
    model, called = tiny(), []
    for name in ("query", "out", "feed_forward"):
        getattr(model.blocks[-1], name).register_forward_hook(lambda module, *_: called.append(module))
    segment = pieces(text(), [12])[0]
    model.advance(segment, model.initial_state(2))
    assert not called
    model(segment, model.initial_state(2))
    assert len(called) == 3


def test_defaults_are_the_papers():
    config = TransformerDecoderConfig(vocab_size=256)
    assert (config.num_layers, config.d_model, config.max_length, config.segment_length) == (8, 128, 784, 14)
    with pytest.raises(ValueError, match="max_length"):
        TransformerDecoderConfig(vocab_size=256, max_length=0)


@torch.no_grad()
def test_one_more_token_moves_nothing():
    """Samples of equal length: one fused call a layer, without a mask, and no copy of what was read."""
    model = tiny(segment_length=4)
    first, second, _ = pieces(text(), [4, 4, 4])
    cache = model.begin(second.source, model.advance(first, model.initial_state(2)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        model.extend(cache, second.source, Places(torch.tensor([[0]]), 1))
    events = profile.key_averages(group_by_input_shape=True)
    assert sum(e.count for e in events if e.key == "aten::_scaled_dot_product_flash_attention_for_cpu") == 3
    assert not {"aten::scatter_", "aten::le", "aten::pad"} & {event.key for event in events}
    copied = [event.input_shapes[0] for event in events if event.key == "aten::copy_"]
    assert all(5 not in shape for shape in copied), "four were read before, and this is the fifth"


@torch.no_grad()
def test_samples_of_different_length_share_a_cache():
    """Fed in any portions, with padding, they give what each gives alone; the state holds zeros behind the shorter."""
    model, ids = tiny(segment_length=4), text(3, 8)
    states = [model.initial_state(1) for _ in range(3)]
    for row in (1, 2):
        states[row] = model.advance(Segment(torch.tensor([[BOS]]), ids[row : row + 1, :4]), states[row])
    source = torch.stack([torch.tensor([BOS]), ids[1, 3:4], ids[2, 3:4]])
    alone = [Segment(source[row : row + 1], ids[row : row + 1, 4:]) for row in range(3)]
    caches = [model.begin(segment.source, state) for segment, state in zip(alone, states, strict=True)]
    outputs = [model(segment, state) for segment, state in zip(alone, states, strict=True)]

    cache = caches[0]._replace(rows=join_rows([cache.rows for cache in caches]))
    inputs = torch.cat([source, ids[:, 4:]], dim=1)
    calls = [[[0, 1], [0, 4], [4, 4]], [[2, 4], [1, 4], [0, 4]], [[3, 4], [2, 3], [1, 2]], [[4, 4], [4, 4], [3, 4]]]
    for index in torch.tensor(calls):
        places = Places(index, int(index[index < 4].max()) + 1)
        logits = model.embedding.logits(model.extend(cache, inputs.gather(1, index), places))
        for row, real in enumerate(index < 4):
            theirs = outputs[row].logits[0, index[row, real]]
            torch.testing.assert_close(logits[row, real], theirs, rtol=1e-10, atol=1e-10)
    state = model.finish(cache)
    for ours, theirs in zip(state, join_rows([output.state for output in outputs]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert state.length.tolist() == [4, 8, 8]


def test_a_full_document_may_begin_a_segment():
    """Whether something still fits is asked where it is read."""
    model = tiny(segment_length=6)
    state = model.initial_state(2)
    for segment in pieces(text(), [6, 6]):
        state = model.advance(segment, state)
    assert state.length.tolist() == 2 * [model.config.max_length]
    assert model.begin(segment.target, state).rows.length.tolist() == state.length.tolist()
