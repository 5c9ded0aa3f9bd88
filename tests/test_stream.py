"""The stream reads every token once, lanes carry on where they were, and a saved position resumes exactly."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from memformer_torch.data import Documents, Stream
from memformer_torch.losses import cross_entropy_sum
from memformer_torch.types import BOS, IGNORE, PAD, check_segment
from tests.conftest import tiny_memformer

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any)
SIZES = st.integers(1, 5)


def numbered(lengths) -> Documents:
    """Documents whose ids are their places in the whole text, so that a token can be told from every other."""
    return Documents.of(np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]))


def begin(length: int) -> list[int]:
    return [BOS, *[PAD] * (length - 1)]


def pairs(segments) -> Counter:
    """How often each row (source, target, reset) occurs, idle rows left out."""
    rows = Counter()
    for source, target, reset in segments:
        rows.update(zip(map(tuple, source.tolist()), map(tuple, target.tolist()), reset.tolist(), strict=True))
    return Counter({row: count for row, count in rows.items() if row[1][0] != IGNORE})


def same(left, right) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def union(segments):
    return tuple(torch.cat(parts) for parts in zip(*segments, strict=True))


@given(LENGTHS, SIZES, SIZES)
def test_documents_give_the_same_steps_at_every_batch_size(lengths, batch_size, length):
    documents = numbered(lengths)
    expected = Counter()
    for document in documents:
        source = begin(length)
        for start in range(0, len(document), length):
            target = document[start : start + length].tolist()
            target += [IGNORE] * (length - len(target))
            expected[tuple(source), tuple(target), start == 0] += 1
            source = target
    stream = Stream(documents, batch_size=batch_size, segment_length=length)
    segments = list(stream)
    assert pairs(segments) == expected
    assert len(segments) == len(stream)


@given(LENGTHS, SIZES, SIZES, st.booleans())
def test_every_token_is_predicted_once_and_lanes_carry_on(lengths, batch_size, length, continuous):
    documents = numbered(lengths)
    segments = list(Stream(documents, batch_size=batch_size, segment_length=length, continuous=continuous))
    predicted = torch.cat([target[target != IGNORE] for _, target, _ in segments])
    assert predicted.sort().values.tolist() == list(range(sum(lengths)))
    before = None
    for segment in segments:
        check_segment(segment, vocab_size=sum(lengths), max_length=length)
        for lane, reset in enumerate(segment.reset.tolist()):
            expected = begin(length) if reset else before[lane].tolist()
            assert segment.source[lane].tolist() == expected
        before = segment.target


@given(LENGTHS, SIZES, SIZES)
def test_continuous_lanes_are_contiguous_and_reset_once(lengths, batch_size, length):
    total = sum(lengths)
    assume(total >= batch_size)
    segments = list(Stream(numbered(lengths), batch_size=batch_size, segment_length=length, continuous=True))
    lanes = torch.cat([target for _, target, _ in segments], dim=1)
    assert [token for lane in lanes.tolist() for token in lane if token != IGNORE] == list(range(total))
    counts = (lanes != IGNORE).sum(1)
    assert counts.max() - counts.min() <= 1
    assert segments[0].reset.all()
    # a lane may have nothing left in the last step alone
    assert not any(segment.reset.any() for segment in segments[1:-1])


@given(LENGTHS, SIZES, SIZES, st.integers(0, 30), st.booleans(), st.booleans(), st.integers(0, 3))
def test_resumed_equals_uninterrupted(lengths, batch_size, length, steps, loop, continuous, seed):
    settings = {"batch_size": batch_size, "segment_length": length, "loop": loop, "continuous": continuous, "seed": seed}
    assume(not loop or (sum(lengths) if continuous else np.count_nonzero(lengths)) >= batch_size)
    stream = Stream(numbered(lengths), **settings)
    for _ in range(steps):
        next(stream, None)
    state = json.loads(json.dumps(stream.state_dict()))
    resumed = Stream(numbered(lengths), **settings)
    next(resumed, None)
    resumed.load_state_dict(state)
    for _ in range(30):
        expected, got = next(stream, None), next(resumed, None)
        assert (expected is None) == (got is None)
        assert expected is None or same(expected, got)


@given(LENGTHS, st.sampled_from([(2, 2), (4, 2), (3, 3), (6, 2)]), SIZES, st.booleans())
def test_ranks_together_read_the_union_batch(lengths, lanes, length, loop):
    batch_size, world = lanes
    assume(not loop or np.count_nonzero(lengths) >= batch_size)
    settings = {"batch_size": batch_size, "segment_length": length, "loop": loop}
    whole = Stream(numbered(lengths), **settings)
    ranks = [Stream(numbered(lengths), rank=rank, world=world, **settings) for rank in range(world)]
    for _ in range(20):
        expected, shares = next(whole, None), [next(rank, None) for rank in ranks]
        assert all((share is None) == (expected is None) for share in shares)
        if expected is not None:
            assert same(expected, union(shares))
            assert all(json.dumps(rank.state_dict()) == json.dumps(whole.state_dict()) for rank in ranks)


def test_a_position_saved_by_two_ranks_resumes_in_one():
    documents = numbered([7, 3, 9, 4, 5])
    settings = {"batch_size": 4, "segment_length": 2, "loop": True}
    ranks = [Stream(documents, rank=rank, world=2, **settings) for rank in range(2)]
    for _ in range(9):
        [next(rank) for rank in ranks]
    alone = Stream(documents, **settings)
    alone.load_state_dict(ranks[1].state_dict())
    for _ in range(20):
        assert same(next(alone), union([next(rank) for rank in ranks]))


def test_a_looping_stream_reads_every_document_once_an_epoch_in_new_orders():
    documents = numbered([5] * 8)
    orders = {}
    for seed in (0, 0, 1):
        stream = Stream(documents, batch_size=4, segment_length=5, loop=True, seed=seed)
        firsts = torch.cat([next(stream).target[:, 0] for _ in range(6)]).tolist()  # 2 steps an epoch
        epochs = [tuple(firsts[n : n + 8]) for n in range(0, 24, 8)]
        assert all(sorted(epoch) == list(range(0, 40, 5)) for epoch in epochs)
        assert len(set(epochs)) == 3
        assert orders.setdefault(seed, epochs) == epochs
        assert stream.epoch == 3.0
    assert orders[0] != orders[1]
    plain = Stream(documents, batch_size=4, segment_length=5, loop=True, shuffle=False)
    assert torch.cat([next(plain).target[:, 0] for _ in range(4)]).tolist() == [*range(0, 40, 5)] * 2


def test_epochs_do_not_wait_for_the_slowest_lane():
    stream = Stream(numbered([9, 1, 1]), batch_size=2, segment_length=1, loop=True, shuffle=False)
    rows = torch.cat([next(stream).target for _ in range(9)], dim=1)
    assert rows[0].tolist() == list(range(9))
    assert rows[1].tolist() == [9, 10, *range(7)]  # the next epoch begins in the free lane


def test_the_longest_come_first_so_that_lanes_end_together():
    assert len(Stream(numbered([1] * 12 + [12]), batch_size=2, segment_length=1)) == 12  # 18 in the order given


@pytest.mark.parametrize("batch_size", [2, 5])
def test_perplexity_does_not_depend_on_the_batch_size(batch_size):
    generator = np.random.default_rng(0)
    documents = Documents.of([generator.integers(11, size=size) for size in (13, 6, 1, 20, 7)])
    model = tiny_memformer()

    def total(size: int) -> float:
        state, loss = model.initial_state(size), torch.zeros((), dtype=torch.float64)
        for segment in Stream(documents, batch_size=size, segment_length=6):
            output = model(segment, state)
            state = output.state
            loss += cross_entropy_sum(output.logits, segment.target)
        return loss.item()

    with torch.no_grad():
        assert total(batch_size) == pytest.approx(total(1), rel=1e-12)


def test_unsigned_ids_are_not_wrapped():
    stream = Stream(Documents.of([[255, 0, 255]]), batch_size=1, segment_length=2)
    assert [segment.target.tolist() for segment in stream] == [[[255, 0]], [[255, IGNORE]]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3, "world": 2}, "3, which 2 processes cannot share"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 4, "loop": True}, "2 documents cannot fill 4 lanes: lower batch_size, or set continuous"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        Stream(numbered([4, 0, 3]), **({"batch_size": 1, "segment_length": 2} | changes))


def test_nothing_to_read():
    with pytest.raises(ValueError, match="no token"):
        Stream(Documents.of([[], []]), batch_size=1, segment_length=2)


@pytest.mark.parametrize("change", [{"segment_length": 3}, {"seed": 1}, {"batch_size": 1}, {"continuous": True}])
def test_a_position_of_another_stream_is_refused(change):
    settings = {"batch_size": 2, "segment_length": 2, "loop": True, "seed": 0, "continuous": False}
    stream = Stream(numbered([5, 6]), **(settings | change))
    with pytest.raises(ValueError, match=f"stream with {next(iter(change))} .* resume with the same"):
        stream.load_state_dict(Stream(numbered([5, 6]), **settings).state_dict())
    with pytest.raises(ValueError, match="num_tokens"):
        Stream(numbered([5, 7]), **settings).load_state_dict(Stream(numbered([5, 6]), **settings).state_dict())


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages of one file are counted by /proc")
def test_a_mapped_text_does_not_stay_resident(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(32 << 20, dtype=np.uint8))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    stream = Stream(Documents(ids, np.array([0, len(ids)])), batch_size=2, segment_length=4096, continuous=True)
    total = sum(int(segment.target.sum()) for segment in stream)
    assert total == (32 << 20) // 256 * sum(range(256))  # pages that were let go come back when read
    mapped = Path("/proc/self/smaps").read_text().split(str(tmp_path / "ids.npy"))[1]
    resident = next(int(line.split()[1]) for line in mapped.splitlines() if line.startswith("Rss:"))
    assert resident < 16 << 10  # kB, of 32 MB that were read
