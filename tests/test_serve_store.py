"""The store: what was committed is there, whole; what had no room is not."""

import sqlite3

import pytest

from memformer_torch.serve.store import NoRoomError, Store


def record(segment, number=5):
    return {"segment": segment, "moved": [0.5] * number}


def test_what_was_committed_is_there(tmp_path):
    store = Store(tmp_path / "s")
    first = store.commit("a", "model", 7, b"state", [record(0), record(1)])
    store.commit("b", "model", 0, b"other")
    later = store.commit("a", "model", 9, b"more", [record(2)])
    store.close()
    store = Store(tmp_path / "s")
    assert store.facts("a") == later
    assert (later.position, later.size, later.created) == (9, 4, first.created)
    assert later.updated >= first.updated
    assert later.digest != first.digest
    assert store.state("a") == b"more"
    assert [facts.name for facts in store.sessions()] == ["a", "b"]
    assert store.span("a") == (0, 2)
    assert store.span("b") is None
    assert store.records("a", 1, 5) == [record(1), record(2)]
    assert len(store) == 2


def test_history_is_bounded(tmp_path):
    store = Store(tmp_path / "s")
    store.commit("a", "m", 0, b"", [record(n) for n in range(7)], most_records=3)
    assert store.span("a") == (4, 6)
    store.commit("a", "m", 0, b"", [record(7)], most_records=3)
    assert store.span("a") == (5, 7)


def test_copies_and_deletions(tmp_path):
    store = Store(tmp_path / "s")
    store.commit("a", "m", 3, b"state", [record(0)])
    copy = store.copy("a", "b", scratch=True)
    assert (copy.position, copy.scratch, copy.digest) == (3, True, store.facts("a").digest)
    store.commit("a", "m", 4, b"changed", [record(1)])
    assert store.state("b") == b"state"
    assert store.span("b") == (0, 0)
    store.copy("a", "b")
    assert (store.state("b"), store.span("b"), store.facts("b").scratch) == (b"changed", (0, 1), False)
    store.delete("a")
    assert store.span("a") is None
    for call in (store.facts, store.state, store.delete, lambda name: store.copy(name, "b")):
        with pytest.raises(KeyError):
            call("a")
    assert store.state("b") == b"changed"  # which a copy of nothing did not replace


def test_scratch_is_forgotten(tmp_path):
    store = Store(tmp_path / "s")
    store.commit("kept", "m", 0, b"")
    store.commit("page", "m", 0, b"", scratch=True)
    store.commit("page", "m", 1, b"")
    assert store.forget_scratch(60) == 0
    assert store.forget_scratch(-60) == 1
    assert [facts.name for facts in store.sessions()] == ["kept"]


def test_no_room(tmp_path):
    store = Store(tmp_path / "s", max_bytes=200_000)
    store.commit("a", "m", 1, b"x" * 50_000, [record(0)])
    with pytest.raises(NoRoomError, match="nothing was saved"):
        store.commit("a", "m", 2, b"y" * 400_000, [record(1)])
    with pytest.raises(NoRoomError):
        list(map(store.copy, "a" * 9, "bcdefghij"))
    assert store.facts("a").position == 1
    assert store.state("a") == b"x" * 50_000
    assert store.span("a") == (0, 0)
    store.delete("b")
    store.commit("a", "m", 3, b"z" * 50_000)
    assert store.state("a") == b"z" * 50_000


def test_not_a_file_of_sessions(tmp_path):
    (tmp_path / "text").write_text("some text that is no database" * 100)
    with pytest.raises(ValueError, match=r"text cannot hold sessions.*--data"):
        Store(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE things (name TEXT)")
    other.close()
    with pytest.raises(ValueError, match="not a file of sessions"):
        Store(tmp_path / "other")
    with pytest.raises(ValueError, match="cannot hold sessions"):
        Store(tmp_path / "missing" / "s")


def test_one_server_a_file(tmp_path):
    store = Store(tmp_path / "s")
    with pytest.raises(ValueError, match="another server uses it"):
        Store(tmp_path / "s")
    store.close()
    Store(tmp_path / "s").close()
