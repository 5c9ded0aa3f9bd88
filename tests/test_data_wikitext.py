"""WikiText is cut at titles, and each line ends in `<eos>`."""

import sys
from types import SimpleNamespace

import pytest

from memformer_torch.data import load_corpus
from memformer_torch.data.wikitext import articles

FIRST = " \n = One = \n \n a b \n = formula = \n c \n = d = \n \n = = Part = = \n \n d \n \n"
SECOND = " = Two <unk> = \n \n a \n = no title \n \n"
FILES = {"train": FIRST + SECOND, "valid": SECOND, "test": FIRST}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))
    for name in ("wikitext-2", "wikitext-103"):
        (tmp_path / name).mkdir()
    for split, text in FILES.items():
        (tmp_path / "wikitext-2" / f"{split}.txt").write_text(text)
        (tmp_path / "wikitext-103" / f"wiki.{split}.tokens").write_text(text)
    return tmp_path


def test_articles_begin_at_titles_between_blank_lines():
    lines = (FIRST + SECOND).encode().splitlines(keepends=True)
    assert list(articles(lines)) == [FIRST.encode(), SECOND.encode()]
    assert list(articles([])) == []


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103"])
def test_words_with_an_end_for_each_line(root, name):
    corpus = load_corpus(name, root=root)
    for split, text in FILES.items():
        assert corpus[split].num_tokens == len(text.split()) + text.count("\n")
    assert [len(part) for part in corpus.splits.values()] == [2, 1, 1]
    assert corpus.tokenizer.decode(corpus["train"][1]) == "= Two <unk> =\n\na\n= no title\n\n"
    assert corpus.tokenizer.words[:2] == ["<eos>", "="]
    assert "note" not in corpus.facts


def test_a_part_of_the_training_text_is_taken_without_its_cut_line_and_said_so(root):
    train = root / "wikitext-103" / "wiki.train.tokens"
    train.unlink()
    cut = (FILES["train"] + " a wor").encode()
    (train.parent / f"wiki.train.first-{len(cut)}-bytes.tokens").write_bytes(cut)
    corpus = load_corpus("wikitext-103", root=root)
    assert corpus["train"].num_tokens == len(FILES["train"].split()) + FILES["train"].count("\n")
    assert "only a part" in corpus.facts["note"]
    (root / "wikitext-2" / "train.txt").rename(root / "wikitext-2" / "wiki.train.first-9-bytes.tokens")
    with pytest.raises(FileNotFoundError, match=r"wikitext-2 holds no wiki\.train\.tokens or train\.txt"):
        load_corpus("wikitext-2", root=root)


def test_text_that_is_not_utf8_is_named_with_its_byte(root):
    path = root / "wikitext-2" / "valid.txt"
    path.write_bytes(b" = T = \n \n caf\xe9 \n")
    with pytest.raises(ValueError, match=r"valid\.txt is not UTF-8 at byte 14"):
        load_corpus("wikitext-2", root=root)


def test_downloaded_rows_become_the_same_tokens(root, monkeypatch):
    def load_dataset(name, config, split):
        assert (name, config) == ("Salesforce/wikitext", "wikitext-2-v1")
        lines = FILES["valid" if split == "validation" else split].splitlines(keepends=True)
        return [{"text": "" if line == " \n" else line} for line in lines]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    downloaded = load_corpus("wikitext-2", root=root / "none", download=True)
    assert downloaded.sizes() == load_corpus("wikitext-2", root=root).sizes()


@pytest.mark.parametrize("name", ["mnist", "wikitext-2", "wikitext-103", "enwik8"])
def test_missing_data_says_both_ways_and_never_asks_the_network(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())  # any use of it would fail
    with pytest.raises(FileNotFoundError) as caught:
        load_corpus(name, root=tmp_path)
    for part in (str(tmp_path / name), "root or $MEMFORMER_DATA", "download=True", "memformer-torch[datasets]"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("MEMFORMER_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"neither root nor \$MEMFORMER_DATA is set"):
        load_corpus(name)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'memformer-torch\[datasets\]'"):
        load_corpus(name, root=tmp_path, download=True)
    assert not (tmp_path / "cache").exists()


def test_the_environment_says_where_data_is(root, monkeypatch):
    monkeypatch.setenv("MEMFORMER_DATA", str(root))
    assert load_corpus("wikitext-2").facts["folder"] == str(root / "wikitext-2")
