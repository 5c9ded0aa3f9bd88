"""enwik8 is read packed or not, split by place, and refused when it is not whole."""

import gzip
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from memformer_torch.data import enwik8, load_corpus

TEXT = ("<page> été 日本 </page>\n" * 5000).encode()[:100_000]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))
    starts = [n for n, byte in enumerate(TEXT) if byte < 0x80]  # bounds between characters, as in the real file
    first, second = (max(n for n in starts if n <= place) for place in (90_000, 95_000))
    sizes = {"train": first, "valid": second - first, "test": len(TEXT) - second}
    monkeypatch.setattr(enwik8, "SIZES", sizes)
    monkeypatch.setattr(enwik8, "PIECE", 777)
    (tmp_path / "enwik8").mkdir()
    return tmp_path


def write(root, kind: str, text: bytes = TEXT):
    folder = root / "enwik8"
    if kind == "zip":
        with zipfile.ZipFile(folder / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", text)
    else:
        (folder / ("enwik8.gz" if kind == "gz" else "enwik8")).write_bytes(gzip.compress(text) if kind == "gz" else text)
    return folder


@pytest.mark.parametrize("kind", ["plain", "gz", "zip"])
def test_bytes_by_place(root, kind):
    write(root, kind)
    corpus = load_corpus("enwik8", root=root)
    assert np.concatenate([part.ids for part in corpus.splits.values()]).tobytes() == TEXT
    assert {name: size["tokens"] for name, size in corpus.sizes().items()} == enwik8.SIZES
    assert corpus.continuous
    assert corpus["train"].ids.dtype == np.uint8


def test_bpe_decodes_to_the_same_text(root):
    write(root, "gz")
    corpus = load_corpus("enwik8", root=root, tokenizer="bpe", vocab_size=300)
    assert "".join(corpus.tokenizer.decode(part.ids) for part in corpus.splits.values()) == TEXT.decode()
    assert corpus["train"].num_tokens < enwik8.SIZES["train"] / 2


@pytest.mark.parametrize("kind", ["plain", "gz", "zip"])
@pytest.mark.parametrize("text", [TEXT[:-1], TEXT + b"x", TEXT[:50_000]])
def test_another_size_is_refused(root, kind, text):
    folder = write(root, kind, text)
    with pytest.raises(ValueError, match=f"{folder}/enwik8.* is not enwik8, which has 100000 bytes"):
        load_corpus("enwik8", root=root)


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_a_truncated_file_is_refused(root, kind):
    path = write(root, kind) / f"enwik8.{kind}"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"enwik8\.{kind} is not enwik8"):
        load_corpus("enwik8", root=root)


def test_the_download_is_the_original_file(root, monkeypatch):
    source = write(root, "zip") / "enwik8.zip"

    def download(address):
        assert address == enwik8.ADDRESS
        return str(source)

    hub = SimpleNamespace(DownloadManager=lambda: SimpleNamespace(download=download))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    corpus = load_corpus("enwik8", root=root / "none", download=True)
    assert corpus["test"].num_tokens == enwik8.SIZES["test"]
