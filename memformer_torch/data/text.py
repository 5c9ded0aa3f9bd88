"""`text`: a file or a folder of a user's own, UTF-8; one file is one document.

How it is split, by what is found:
- files or folders named `train`, `valid` and `test` (with any ending): as they say, and what lies beside them is left out;
- three files or more: by file, in the order of a hash of their paths: 5 % (at least one) valid, 5 % (at least one) test;
- one or two files: each one's last tenth is cut off, half valid, half test, at line ends where there are any near.
A single file is one running text, so lanes are cut from it (`continuous`).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memformer_torch.data.cache import make_key
from memformer_torch.data.corpus import SPLITS, Corpus
from memformer_torch.data.files import check_utf8, files_digest, find_folder, read_pieces
from memformer_torch.data.prepare import Piece, Source, prepare
from memformer_torch.data.progress import Progress
from memformer_torch.data.tokenizer import Tokenizer


class Part(NamedTuple):
    """A document: the bytes [start, stop) of a file."""

    path: Path
    start: int
    stop: int


def load(
    *,
    path: Path | str | None = None,
    pattern: str = "**/*",
    tokenizer: str | Tokenizer = "bytes",
    vocab_size: int | None = None,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """`path` is the file or folder (without it, the folder `text` of root); `pattern` chooses files in a folder."""
    try:
        place = find_folder("text", root) if path is None else Path(path)
    except FileNotFoundError as error:
        raise FileNotFoundError("text needs a file or folder of yours: give its path, as --data.path novel.txt") from error
    found = find_texts(place, pattern)
    files = only_named(found)
    how, parts = split_files(files)
    source = Source(
        name="text",
        splits={split: lambda split=split: read(parts[split]) for split in SPLITS},  # type: ignore[misc]
        content=make_key(how, files_digest(files)),
        num_bytes={split: sum(part.stop - part.start for part in parts[split]) for split in SPLITS},
    )
    facts: dict[str, Any] = {"path": str(place), "files": len(files), "split": how}
    if len(files) < len(found):
        facts["left out"] = [name for name in found if name not in files]
    return prepare(source, tokenizer, vocab_size, cache, progress, continuous=len(files) == 1, facts=facts)


def find_texts(place: Path, pattern: str) -> dict[str, Path]:
    """The files by their name inside `place`, in order; hidden and empty ones are left out."""
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist: give the path of a text file or of a folder of them")
    if place.is_file():
        found = {place.name: place}
    elif Path(pattern).anchor:
        raise ValueError(f"pattern is {pattern!r}, but chooses files inside the folder: make it relative, as **/*.txt")
    else:
        found = {path.relative_to(place).as_posix(): path for path in place.glob(pattern) if path.is_file()}
        found = {name: found[name] for name in sorted(found) if not any(part[0] == "." for part in name.split("/"))}
    found = {name: path for name, path in found.items() if path.stat().st_size}
    if not found:
        raise ValueError(f"{place} holds no text: it has no file that fits {pattern!r} and is not empty")
    return found


def only_named(files: dict[str, Path]) -> dict[str, Path]:
    """Where files are named as the splits are, these alone: a README beside them must not change the split."""
    named = {name: path for name, path in files.items() if _first_name(name) in SPLITS}
    return named if {_first_name(name) for name in named} == set(SPLITS) else files


def split_files(files: dict[str, Path]) -> tuple[str, dict[str, list[Part]]]:
    """How the files are split, in words, and the documents of each split."""
    named = {name: _first_name(name) for name in files}
    if set(named.values()) == set(SPLITS):
        return "by name", {split: [_whole(files[name]) for name in files if named[name] == split] for split in SPLITS}
    if len(files) < 3:
        cuts = {name: _cuts(path) for name, path in files.items()}
        return "the last tenth of each file, half valid and half test", {
            split: [Part(path, *cuts[name][n : n + 2]) for name, path in files.items()] for n, split in enumerate(SPLITS)
        }
    order = sorted(files, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    few = max(1, round(len(files) / 20))
    chosen = {"valid": set(order[:few]), "test": set(order[few : 2 * few]), "train": set(order[2 * few :])}
    return "by file, in the order of a hash of the paths: 5 % valid, 5 % test", {
        split: [_whole(path) for name, path in files.items() if name in chosen[split]] for split in SPLITS
    }


def read(parts: list[Part]) -> Iterator[Piece]:
    for path, start, stop in parts:
        for data in check_utf8(path, read_pieces(path, start, stop), start):
            yield Piece(data, False)
        yield Piece(b"", True)


def _first_name(name: str) -> str:
    """Of a file in the folder or of the folder that it lies in, without ending."""
    return name.split("/")[0].split(".")[0]


def _whole(path: Path) -> Part:
    return Part(path, 0, path.stat().st_size)


def _cuts(path: Path) -> list[int]:
    size = path.stat().st_size
    first = _line_start(path, size * 18 // 20)
    return [0, first, max(first, _line_start(path, size * 19 // 20)), size]


def _line_start(path: Path, place: int) -> int:
    """The next start of a line; where none is near, the next start of a character."""
    near = b"".join(read_pieces(path, place, place + max(4, min(4096, path.stat().st_size // 100))))
    if b"\n" in near:
        return place + near.index(b"\n") + 1
    return place + next((n for n, byte in enumerate(near) if byte & 0xC0 != 0x80), len(near))
