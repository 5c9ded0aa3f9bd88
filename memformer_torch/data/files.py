"""Where a dataset's files are, and how they are read: in pieces, whatever their size."""

import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from memformer_torch.data.cache import cache_folder, cached, file_digest, intact, make_key

PIECE = 1 << 20
"""Bytes that are read at once."""


def find_folder(
    name: str,
    root: Path | str | None,
    cache: Path | str | None = None,
    download: bool = False,
    fetch: Callable[[Any, Path], None] | None = None,
) -> Path:
    """The folder of this dataset's files.

    It is `root`/name, or $MEMFORMER_DATA/name; else what an earlier download left in the cache; else, if `download` asks for
    it, `fetch` is called with the package `datasets` and a folder to fill.
    """
    root = root or os.environ.get("MEMFORMER_DATA")
    if root and (Path(root) / name).is_dir():
        return Path(root) / name
    key = make_key("download", name)
    earlier = cache_folder(cache) / f"{name}-{key[:20]}"
    if fetch and intact(earlier, key):
        return earlier
    if fetch and download:
        package = _datasets()
        return cached(cache, name, key, lambda folder: fetch(package, folder))
    looked = f"in {Path(root) / name}" if root else "anywhere, as neither root nor $MEMFORMER_DATA is set"
    how = f"put its files into a folder {name} under root or $MEMFORMER_DATA"
    if fetch:
        how += ", or have it fetched: --data.download true, in Python download=True (pip install 'memformer-torch[datasets]')"
    raise FileNotFoundError(f"{name} was not found {looked}: {how}")


def find_file(folder: Path, *patterns: str) -> Path:
    """The first file of the folder that fits the earliest pattern."""
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            return path
    raise FileNotFoundError(f"{folder} holds no {' or '.join(patterns)}: complete the folder, or remove it and download again")


def files_digest(paths: dict[str, Path]) -> str:
    """Of the bytes of all files and the names they go by; size and time alone would miss an edit."""
    return make_key(*[(name, file_digest(path)) for name, path in paths.items()])


def read_pieces(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes [start, stop) of a file."""
    with path.open("rb") as file:
        file.seek(start)
        left = (path.stat().st_size if stop is None else stop) - start
        while left > 0 and (piece := file.read(min(PIECE, left))):
            left -= len(piece)
            yield piece


def check_utf8(path: Path, pieces: Iterable[bytes], start: int = 0) -> Iterator[bytes]:
    """The same pieces, which begin at this byte of the file; a ValueError at the first byte that is not UTF-8."""
    decoder, done = codecs.getincrementaldecoder("utf-8")(), start
    try:
        for piece in pieces:
            pending = len(decoder.getstate()[0])
            decoder.decode(piece)
            done += len(piece)
            yield piece
        pending = len(decoder.getstate()[0])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 at byte {done - pending + error.start} ({error.reason}): convert it, or leave it out"
        ) from error


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("download needs the package datasets: pip install 'memformer-torch[datasets]'") from error
    return datasets
