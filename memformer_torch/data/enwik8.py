"""`enwik8`: the first 100,000,000 bytes of a Wikipedia dump: 90 million train, 5 million valid, 5 million test.

One running text, so lanes are cut from it (`continuous`). The file may be `enwik8`, `enwik8.gz` or `enwik8.zip`.
"""

import gzip
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from memformer_torch.data.corpus import Corpus
from memformer_torch.data.files import PIECE, check_utf8, files_digest, find_file, find_folder
from memformer_torch.data.prepare import Piece, Source, prepare
from memformer_torch.data.progress import Progress
from memformer_torch.data.tokenizer import Tokenizer

SIZES = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
ADDRESS = "http://mattmahoney.net/dc/enwik8.zip"


def load(
    *,
    tokenizer: str | Tokenizer = "bytes",
    vocab_size: int | None = None,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    path = find_file(find_folder("enwik8", root, cache, download, fetch), "enwik8", "enwik8.gz", "enwik8.zip")
    source = Source(
        name="enwik8",
        splits={split: lambda split=split: read(path, split) for split in SIZES},  # type: ignore[misc]
        content=files_digest({"enwik8": path}),
        num_bytes=SIZES,
    )
    facts = {"file": str(path), "split": "by place: 90 / 5 / 5 million bytes"}
    return prepare(source, tokenizer, vocab_size, cache, progress, continuous=True, facts=facts)


def read(path: Path, split: str) -> Iterator[Piece]:
    """The bytes of one split, which is one document; its bounds fall between characters."""
    names = list(SIZES)
    start = sum(SIZES[name] for name in names[: names.index(split)])
    for data in check_utf8(path, _range(path, start, start + SIZES[split], last=split == names[-1]), start):
        yield Piece(data, False)
    yield Piece(b"", True)


def _range(path: Path, start: int, stop: int, last: bool) -> Iterator[bytes]:
    total = sum(SIZES.values())
    wrong = f"{path} is not enwik8, which has {total} bytes unpacked: fetch it again"
    try:
        with _open(path) as file:
            place = 0
            while place < stop and (piece := file.read(min(PIECE, (start if place < start else stop) - place))):
                place += len(piece)
                if place > start:
                    yield piece
            if place < stop or (last and file.read(1)):
                raise ValueError(wrong)
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"{wrong} ({error})") from error


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open("enwik8") as file:
            yield file
    else:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]


def fetch(datasets: Any, folder: Path) -> None:
    """The original file, by Hugging Face's downloader: no faithful copy of it is a dataset there."""
    shutil.copyfile(datasets.DownloadManager().download(ADDRESS), folder / "enwik8.zip")
