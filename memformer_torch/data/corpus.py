"""What every dataset gives: for each split, documents of token ids; with the vocabulary they are written in."""

# Shape letters: N tokens of a split, C documents

import hashlib
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memformer_torch.data.tokenizer import Tokenizer

SPLITS = ("train", "valid", "test")


class Documents:
    """The documents of a split, one after another in one array, which may be memory-mapped.

    `ids` (N,) are unsigned; document i is `ids[offsets[i]:offsets[i + 1]]`, with `offsets` (C + 1,).
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids = np.asarray(ids)  # a plain view: numpy's memmap class makes every slice several times slower
        self.offsets = np.asarray(offsets, np.int64)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids) or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"offsets must rise from 0 to {len(self.ids)}, the number of ids")

    @classmethod
    def of(cls, documents: Iterable[Any]) -> "Documents":
        """Documents in memory, from any sequences of ids."""
        arrays = [np.asarray(document, np.int64) for document in documents]
        ids = np.concatenate([np.zeros(0, np.int64), *arrays])
        if len(ids) and ids.min() < 0:
            raise ValueError(f"documents hold the id {ids.min()}: special ids do not belong into a document")
        return cls(ids.astype(smallest_dtype(int(ids.max(initial=0)) + 1)), np.cumsum([0, *map(len, arrays)]))

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> "Documents":
        """Documents of equal length, one a row."""
        return cls(rows.reshape(-1), np.arange(len(rows) + 1) * rows.shape[1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def release(self) -> None:
        """Let go of a mapped array's pages, which else count as this process's; the system keeps them while it has room."""
        base: Any = self.ids
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            base.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    name: str
    splits: Mapping[str, Documents]
    """`train`, `valid` and `test`."""
    vocab_size: int
    fingerprint: str
    """Of all contents and settings: equal fingerprints, equal ids."""
    tokenizer: Tokenizer | None = None
    """None where tokens are no text."""
    continuous: bool = False
    """Whether the splits are one running text, so that lanes can only be filled by cutting it (`Stream(continuous=True)`)."""
    image_shape: tuple[int, int] | None = None
    """Height and width where a document is an image, row by row."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was found, for display."""

    def __getitem__(self, split: str) -> Documents:
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r}: choose one of {', '.join(self.splits)}")
        return self.splits[split]

    def sizes(self) -> dict[str, dict[str, int]]:
        """Documents and tokens of each split."""
        return {name: {"documents": len(part), "tokens": part.num_tokens} for name, part in self.splits.items()}


def smallest_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds every id of a vocabulary."""
    return np.min_scalar_type(max(vocab_size - 1, 0))


def fingerprint(splits: Mapping[str, Documents], *settings: Any) -> str:
    """A digest of the documents themselves, for corpora that are held in memory."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, part in splits.items():
        digest.update(f"{name} {part.ids.dtype} {len(part)} ".encode())
        digest.update(part.offsets.tobytes())
        digest.update(np.ascontiguousarray(part.ids).data)
    return digest.hexdigest()
