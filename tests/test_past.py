"""Decoding token by token equals one pass over the segment, for every model, however the inputs come."""

import pytest
import torch

from memformer_torch.nn.past import Places, join_rows, put_rows, take_rows
from memformer_torch.types import BOS, PAD, Segment, decoder_input
from tests.test_contract import BATCH, LENGTH, VOCAB, build, every_model

SEGMENTS = 6


def uniform(start, end):
    return Places(torch.arange(start, end)[None], end)


def document(batch_size=BATCH):
    """Segments of full length from a document's start."""
    ids = torch.randint(VOCAB, (SEGMENTS, batch_size, LENGTH))
    begin = torch.full((batch_size, LENGTH), PAD)
    begin[:, 0] = BOS
    return [Segment(source, target) for source, target in zip([begin, *ids], ids, strict=False)]


def assert_states_equal(found, expected):
    for name, ours, theirs in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@every_model
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4], [2], [1, 4]], ids=str)
@torch.no_grad()
def test_pieces_equal_one_pass(name, cuts):
    model = build(name).eval()
    state = theirs = model.initial_state(BATCH)
    for segment in document():
        cache, inputs = model.begin(segment.source, state), decoder_input(segment)
        hidden = [
            model.extend(cache, inputs[:, start:end], uniform(start, end))
            for start, end in zip([0, *cuts], [*cuts, LENGTH], strict=True)
        ]
        output = model(segment, theirs)
        torch.testing.assert_close(model.embedding.logits(torch.cat(hidden, dim=1)), output.logits, atol=1e-10, rtol=0)
        state, theirs = model.finish(cache), output.state
        assert_states_equal(state, theirs)


@every_model
@torch.no_grad()
def test_rows_at_places_of_their_own(name):
    """Each call gives each row a random number of inputs, none at all among them; the rest of the call is padding."""
    model = build(name).eval()
    state = theirs = model.initial_state(BATCH)
    for segment in document():
        cache, inputs = model.begin(segment.source, state), decoder_input(segment)
        logits = model(segment, theirs).logits
        done = torch.zeros(BATCH, dtype=torch.int64)
        while done.min() < LENGTH:
            count = torch.minimum(torch.randint(0, 4, (BATCH,)), LENGTH - done)
            width = max(1, int(count.max()))
            steps = torch.arange(width)
            index = torch.where(steps < count[:, None], done[:, None] + steps, LENGTH)
            given = torch.nn.functional.pad(inputs, (0, 1), value=PAD).gather(1, index)
            hidden = model.extend(cache, given, Places(index, int((done + count).max())))
            found = model.embedding.logits(hidden)
            for row in range(BATCH):
                new = slice(int(done[row]), int(done[row] + count[row]))
                torch.testing.assert_close(found[row, : count[row]], logits[row, new], atol=1e-10, rtol=0)
            done += count
        state, theirs = model.finish(cache), model.advance(segment, theirs)
        assert_states_equal(state, theirs)


@every_model
@torch.no_grad()
def test_rows_of_different_documents_share_a_cache(name):
    """Rows 0 and 1 are two segments into a document, row 2 begins one: joined, extended, taken apart."""
    model = build(name).eval()
    old, new = document(2), document(1)
    state = model.initial_state(2)
    for segment in old[:2]:
        state = model.advance(segment, state)
    fresh = model.initial_state(1)
    caches = [model.begin(old[2].source, state), model.begin(new[0].source, fresh)]
    cache = caches[0]._replace(rows=join_rows([cache.rows for cache in caches]))
    inputs = torch.cat([decoder_input(old[2]), decoder_input(new[0])])
    logits = model.embedding.logits(model.extend(cache, inputs, uniform(0, LENGTH)))
    torch.testing.assert_close(logits[:2], model(old[2], state).logits, atol=1e-10, rtol=0)
    torch.testing.assert_close(logits[2:], model(new[0], fresh).logits, atol=1e-10, rtol=0)

    apart = cache._replace(rows=take_rows(cache.rows, torch.tensor([2])))
    assert_states_alike(model, model.finish(apart), model.advance(new[0], fresh), new[1])
    both = cache._replace(rows=put_rows(cache.rows, torch.tensor([0]), take_rows(cache.rows, torch.tensor([1]))))
    copied = model.finish(both)
    after = model.advance(old[2], state)
    second = type(after)(*(member[[1, 1]] for member in after))
    assert_states_alike(model, type(copied)(*(member[:2] for member in copied)), second, old[3])


def assert_states_alike(model, found, expected, segment):
    """A state that may have grown for another row's sake gives the same."""
    segment = Segment(*(ids[:1].expand(len(expected[0]), -1) for ids in segment[:2]))
    torch.testing.assert_close(model(segment, found).logits, model(segment, expected).logits, atol=1e-10, rtol=0)
