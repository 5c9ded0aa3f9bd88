"""A user's own files become documents, split the same way every time, or are refused with their name."""

import os

import pytest

from memformer_torch.data import load_corpus


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))


def write(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def documents(corpus) -> dict[str, list[str]]:
    return {split: [corpus.tokenizer.decode(document) for document in part] for split, part in corpus.splits.items()}


def everything(corpus) -> list[str]:
    return sorted(text for texts in documents(corpus).values() for text in texts)


def test_one_file_is_cut_at_line_ends_near_the_last_tenth(tmp_path):
    text = "".join(f"line {n} é\n" for n in range(2000))
    path = write(tmp_path, {"a.txt": text}) / "a.txt"
    corpus = load_corpus("text", path=path)
    parts = [part for split in documents(corpus).values() for part in split]
    assert len(parts) == 3
    assert "".join(parts) == text
    assert all(part.endswith("\n") for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]
    assert corpus.continuous


@pytest.mark.parametrize("size", [*range(30, 50), 1000])
def test_a_file_without_lines_is_cut_between_characters(tmp_path, size):
    text = "日" * size
    corpus = load_corpus("text", path=write(tmp_path, {"a.txt": text}) / "a.txt")
    assert "".join(part for split in documents(corpus).values() for part in split) == text
    assert "\ufffd" not in "".join(corpus.tokenizer.decode(part.ids) for part in corpus.splits.values())


def test_a_folder_is_split_by_file_the_same_way_every_time(tmp_path):
    files = {f"{'sub/' if n % 2 else ''}{n}.md": f"document {n}" for n in range(40)} | {".hidden": "no", "empty.txt": ""}
    first = load_corpus("text", path=write(tmp_path / "one", files))
    again = load_corpus("text", path=write(tmp_path / "two", dict(reversed(files.items()))))
    assert documents(first) == documents(again)
    assert first.fingerprint == again.fingerprint
    assert [len(part) for part in first.splits.values()] == [36, 2, 2]
    assert everything(first) == sorted(f"document {n}" for n in range(40))
    assert not first.continuous


@pytest.mark.parametrize("names", [("train.txt", "valid.txt", "test.txt"), ("train/a", "valid/b", "test/c")])
def test_splits_that_have_names_are_kept(tmp_path, names):
    corpus = load_corpus("text", path=write(tmp_path / "named", {name: f"this is {name}" for name in names}))
    assert documents(corpus) == {name[: name.index("/" if "/" in name else ".")]: [f"this is {name}"] for name in names}


@pytest.mark.parametrize("extra", ["README", "vocab.txt", "data.md", "more/info.json", "test_notes.txt"])
def test_splits_that_have_names_are_kept_whatever_lies_beside_them(tmp_path, extra):
    files = {f"{split}.txt": f"this is {split}" for split in ("train", "valid", "test")}
    plain = load_corpus("text", path=write(tmp_path / "plain", files))
    corpus = load_corpus("text", path=write(tmp_path / "named", files | {extra: "something else"}))
    assert documents(corpus) == {split: [f"this is {split}"] for split in ("train", "valid", "test")}
    assert corpus.fingerprint == plain.fingerprint
    assert (corpus.facts["files"], corpus.facts["left out"]) == (3, [extra])
    assert "left out" not in plain.facts


def test_a_name_need_not_be_utf8(tmp_path):
    folder = write(tmp_path / "names", {f"{n}.txt": f"document {n}" for n in range(4)})
    try:
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("document 4", encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    assert everything(load_corpus("text", path=folder)) == [f"document {n}" for n in range(5)]


def test_two_files_give_to_every_split(tmp_path):
    folder = write(tmp_path / "pair", {"a": "a" * 100, "b": "b" * 200})
    assert documents(load_corpus("text", path=folder)) == {
        "train": ["a" * 90, "b" * 180], "valid": ["a" * 5, "b" * 10], "test": ["a" * 5, "b" * 10],
    }  # fmt: skip


def test_the_folder_text_of_root_and_a_pattern(tmp_path):
    write(tmp_path / "text", {f"{n}.txt": f"{n}" for n in range(3)} | {"picture.png": "\x00"})
    corpus = load_corpus("text", root=tmp_path, pattern="*.txt")
    assert everything(corpus) == ["0", "1", "2"]


@pytest.mark.parametrize("tokenizer", ["bytes", "words", "bpe"])
@pytest.mark.parametrize(("before", "bad"), [(0, b"\xff"), (5, b"\xe6\x97"), ((1 << 20) - 1, b"\xe6\x97A"), (3 << 20, b"\x80")])
def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path, tokenizer, before, bad):
    folder = write(tmp_path / "bad", {f"{n}.txt": "good" for n in range(4)})
    for n in range(4):  # whatever split it falls into
        (folder / f"{n}.txt").write_bytes(b"x" * before + bad)
    with pytest.raises(ValueError, match=rf"\d\.txt is not UTF-8 at byte {before} .*: convert it, or leave it out"):
        load_corpus("text", path=folder, tokenizer=tokenizer)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("files", "path", "error", "message"),
    [
        ({}, "none", FileNotFoundError, "none does not exist"),
        ({"d/empty": ""}, "d", ValueError, "holds no text"),
        ({"d/a": "ab"}, "d", ValueError, "the valid split of text is empty: give more text"),
    ],
)
def test_nothing_to_read(tmp_path, files, path, error, message):
    write(tmp_path, files)
    with pytest.raises(error, match=message):
        load_corpus("text", path=tmp_path / path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "chars"}, "there is no tokenizer 'chars': choose bytes, words or bpe"),
        ({"pattern": "/abs/*.txt"}, r"pattern is '/abs/\*\.txt', but chooses files inside the folder: make it relative"),
        ({"vocab_size": 9}, "vocab_size is 9, but only words and bpe"),
        ({"tokeniser": "bytes"}, r"text has no option 'tokeniser' \(did you mean tokenizer\?\)"),
    ],
)
def test_bad_options(tmp_path, options, message):
    folder = write(tmp_path / "some", {"a": "text " * 99})
    with pytest.raises(ValueError, match=message):
        load_corpus("text", path=folder, **options)
