"""The real files give the published counts. Skipped where they are absent: set $MEMFORMER_DATA to where they are."""

import hashlib
import os
from pathlib import Path

import pytest

from memformer_torch.data import load_corpus

ROOT = Path(os.environ.get("MEMFORMER_DATA") or Path(__file__).parents[2] / "shared" / "data")


def load(name: str, cache: Path, **options):
    if not (ROOT / name).is_dir():
        pytest.skip(f"{name} is not in {ROOT}: set $MEMFORMER_DATA to where it is")
    return load_corpus(name, root=ROOT, cache=cache, **options)


def tokens(corpus) -> list[int]:
    return [part.num_tokens for part in corpus.splits.values()]


def test_wikitext_2(tmp_path):
    corpus = load("wikitext-2", tmp_path)
    assert tokens(corpus) == [2_088_628, 217_646, 245_569]
    assert [len(part) for part in corpus.splits.values()] == [600, 60, 60]
    assert corpus.vocab_size == 33_278
    text = (ROOT / "wikitext-2" / "test.txt").read_text(encoding="utf-8")
    decoded = corpus.tokenizer.decode(corpus["test"].ids)
    # every word of test is in train's vocabulary, so none is lost
    assert decoded.split("\n") == [" ".join(line.split()) for line in text.split("\n")]


def test_wikitext_103(tmp_path):
    corpus = load("wikitext-103", tmp_path)
    assert tokens(corpus)[1:] == [217_646, 245_569]
    assert [len(part) for part in corpus.splits.values()][1:] == [60, 60]
    if "note" in corpus.facts:
        assert "first-2883584-bytes" in corpus.facts["files"]
    else:
        assert (tokens(corpus)[0], corpus.vocab_size) == (103_227_021, 267_735)


def test_mnist(tmp_path):
    corpus = load("mnist", tmp_path)
    assert (corpus.facts["training images"], corpus.facts["test images"]) == (60_000, 10_000)
    assert tokens(corpus) == [55_000 * 784, 5_000 * 784, 10_000 * 784]
    assert max(int(part.ids.max()) for part in corpus.splits.values()) == 255


def test_enwik8(tmp_path):
    corpus = load("enwik8", tmp_path)
    assert tokens(corpus) == [90_000_000, 5_000_000, 5_000_000]
    digest = hashlib.md5(usedforsecurity=False)
    for part in corpus.splits.values():
        digest.update(part.ids.data)
    assert digest.hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"


def test_tiny_shakespeare_as_a_users_own_text(tmp_path):
    path = ROOT / "tiny-shakespeare" / "input.txt"
    if not path.is_file():
        pytest.skip(f"{path} is absent: set $MEMFORMER_DATA")
    corpus = load_corpus("text", path=path, cache=tmp_path, tokenizer="bpe", vocab_size=512)
    assert "".join(corpus.tokenizer.decode(part.ids) for part in corpus.splits.values()) == path.read_text(encoding="utf-8")
