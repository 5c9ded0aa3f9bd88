"""Folders that are prepared once: whole or not at all, by one process even when several start together, and verified.

The name of a cached folder holds a key of everything it was made from, so it is never out of date; a list of its files' digests
tells whether it is still what was written. Old folders may be deleted at any time.
"""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # not on Windows: two processes may then do the same work twice, but never mix it
    fcntl = None  # type: ignore[assignment]

SEAL = "seal.json"


def cache_folder(cache: Path | str | None = None) -> Path:
    """The argument, else $MEMFORMER_CACHE, else memformer-torch in $XDG_CACHE_HOME or ~/.cache."""
    chosen = cache or os.environ.get("MEMFORMER_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memformer-torch"


def make_key(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(cache: Path | str | None, name: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of this name and key; `build` fills a new one where there is none, or where it is not what was written."""
    root = cache_folder(cache)
    folder = root / f"{name}-{key[:20]}"
    if intact(folder, key):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if intact(folder, key):  # another process has written it meanwhile
            return folder
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)  # of a writer that was killed
        try:
            part.mkdir()
            build(part)
            _seal(part, key)
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        flush(root)
    return folder


def intact(folder: Path, key: str) -> bool:
    """Whether the folder is as it was sealed: every byte is read, which costs less than a second a gigabyte."""
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        return seal["key"] == key and all(
            (folder / name).stat().st_size == size and file_digest(folder / name) == digest
            for name, (size, digest) in seal["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


class ArrayWriter:
    """A one-dimensional .npy file that is written piece by piece; its length is filled in at the end."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype, self.length = dtype, 0
        self._file = path.open("wb")
        self._file.write(self._header())

    def write(self, array: np.ndarray) -> None:
        self.length += len(array)
        self._file.write(np.ascontiguousarray(array.astype(self.dtype, copy=False)).data)

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def _header(self) -> bytes:
        # 128 bytes whatever the length, so that it can be written again in place
        shape = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': ({self.length},), }}"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + shape.encode().ljust(117) + b"\n"


def _seal(folder: Path, key: str) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        flush(path)
    record = {"key": key, "files": {path.name: (path.stat().st_size, file_digest(path)) for path in files}}
    (folder / SEAL).write_text(json.dumps(record, indent=1), encoding="utf-8")
    flush(folder / SEAL)
    flush(folder)


def flush(path: Path) -> None:
    """To the disk, so that a rename never becomes visible before what it names."""
    if path.is_dir() and fcntl is None:
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if fcntl else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes. The system drops the lock when its holder dies, so none is ever stale."""
    with path.open("a") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
