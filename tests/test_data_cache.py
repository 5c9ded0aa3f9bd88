"""What is prepared is written once, whole or not at all, and noticed when it is no longer what was written."""

import errno
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from memformer_torch.data import load_corpus
from memformer_torch.data.cache import ArrayWriter, cache_folder, cached, make_key

KEY = make_key("test")
BUILDER = """
import sys, time
from pathlib import Path
from memformer_torch.data.cache import cached

root, key, wait = sys.argv[1:]

def build(folder):
    with (Path(root) / "log").open("a") as log:
        log.write("built\\n")
    (folder / "ids").write_text("half")
    print("building", flush=True)
    time.sleep(float(wait))
    (folder / "ids").write_text("whole")

print("ready", flush=True)
sys.stdin.readline()
print(cached(root, "words", key, build))
"""


def start(root: Path, wait: float) -> subprocess.Popen:
    """Another process that is ready to build, and begins when it is told to."""
    command = [sys.executable, "-c", BUILDER, str(root), KEY, str(wait)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def text_corpus(tmp_path: Path, text: str = "one two three\n" * 50, **options):
    (tmp_path / "a.txt").write_text(text)
    return load_corpus("text", path=tmp_path / "a.txt", cache=tmp_path / "cache", **options)


def test_two_processes_that_start_together_write_once(tmp_path):
    processes = [start(tmp_path, 0.5) for _ in range(2)]
    for process in processes:
        go(process)
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len({output[-1] for output in outputs}) == 1
    assert (Path(outputs[0][-1]) / "ids").read_text() == "whole"
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_killed_writer_leaves_neither_a_lock_nor_half_a_folder(tmp_path):
    process = start(tmp_path, 600)
    go(process)
    assert process.stdout.readline() == "building\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    folder = cached(tmp_path, "words", KEY, lambda folder: (folder / "other").write_text("mine"))
    assert sorted(path.name for path in folder.iterdir()) == ["other", "seal.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", folder.name, f"{folder.name}.lock"]


def test_a_failed_build_leaves_nothing_and_may_be_tried_again(tmp_path, monkeypatch):
    def full(self, array):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ArrayWriter, "write", full)
        with pytest.raises(OSError, match="No space left"):
            text_corpus(tmp_path)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert text_corpus(tmp_path)["train"].num_tokens > 0


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["train.npy", "valid.offsets.npy", "tokenizer.json", "seal.json"])
@pytest.mark.parametrize("damage", [damage_flip, damage_cut, Path.unlink])
def test_a_damaged_cache_is_built_again(tmp_path, name, damage):
    before = [part.ids.tolist() for part in text_corpus(tmp_path).splits.values()]
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    intact = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    assert [part.ids.tolist() for part in text_corpus(tmp_path).splits.values()] == before
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == intact


def test_the_key_sees_an_edit_that_keeps_size_and_time(tmp_path):
    text_corpus(tmp_path)
    times = os.stat(tmp_path / "a.txt")
    edited = "one two threX\n" * 50
    (tmp_path / "a.txt").write_text(edited)
    os.utime(tmp_path / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    corpus = load_corpus("text", path=tmp_path / "a.txt", cache=tmp_path / "cache")
    assert corpus.tokenizer.decode(corpus["train"].ids[:14]) == edited[:14]


def test_the_second_time_nothing_is_encoded(tmp_path, monkeypatch):
    first = text_corpus(tmp_path, tokenizer="words")
    monkeypatch.setattr(ArrayWriter, "write", None)
    second = text_corpus(tmp_path, tokenizer="words")
    assert second["train"].ids.tolist() == first["train"].ids.tolist()
    assert second.fingerprint == first.fingerprint
    assert not second["train"].ids.flags.owndata  # mapped, not read


def test_settings_have_caches_of_their_own(tmp_path):
    kinds = [("bytes", None), ("words", None), ("words", 3), ("bpe", 260), ("bpe", 261)]
    corpora = [text_corpus(tmp_path, tokenizer=kind, vocab_size=size) for kind, size in kinds]
    assert len({corpus.fingerprint for corpus in corpora}) == len(kinds)
    assert [corpus.vocab_size for corpus in corpora[:4]] == [256, 5, 3, 260]
    assert [corpus["train"].ids.dtype for corpus in corpora[:4]] == [np.uint8, np.uint8, np.uint8, np.uint16]


def test_a_tokenizer_at_hand_is_taken_as_it_is(tmp_path):
    words = text_corpus(tmp_path, tokenizer="words").tokenizer
    other = text_corpus(tmp_path, text="two two nine\n" * 50, tokenizer=words)
    assert other.tokenizer.fingerprint == words.fingerprint
    assert other.tokenizer.decode(other["train"].ids[:4]) == "two two <unk>\n"


def test_arrays_of_any_length_are_npy_files(tmp_path):
    for length in (0, 1, 1000):
        with ArrayWriter(tmp_path / "ids.npy", np.dtype(np.uint16)) as writer:
            for piece in np.array_split(np.arange(length), 3):
                writer.write(piece)
        assert np.load(tmp_path / "ids.npy").tolist() == list(range(length))


@pytest.mark.parametrize("tokenizer", ["bytes", "words"])
def test_a_large_text_is_prepared_in_bounded_memory(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("memformer_torch.data.files.PIECE", 1 << 15)
    size = 6 << 20
    (tmp_path / "large.txt").write_bytes((b"so it goes " * 90 + b"\n") * (size // 991))
    load_corpus("text", path=tmp_path / "large.txt", cache=tmp_path / "warm")  # whatever is loaded only once
    tracemalloc.start()
    load_corpus("text", path=tmp_path / "large.txt", cache=tmp_path / "cache", tokenizer=tokenizer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 2


def test_progress_is_told_to_the_end(tmp_path):
    calls: dict[str, list] = {}
    text_corpus(tmp_path, tokenizer="words", progress=lambda stage, *counts: calls.setdefault(stage, []).append(counts))
    stages = ("counting words", "encoding train", "encoding valid", "encoding test")
    assert list(calls) == [f"text: {stage}" for stage in stages]
    for counts in calls.values():
        assert [done for done, _ in counts] == sorted(done for done, _ in counts)
        assert counts[-1][0] == counts[-1][1]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMFORMER_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "memformer-torch"
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"


def test_seals_are_json(tmp_path):
    folder = cached(tmp_path, "words", KEY, lambda folder: (folder / "ids").write_text("x"))
    assert json.loads((folder / "seal.json").read_text())["files"]["ids"][0] == 1
