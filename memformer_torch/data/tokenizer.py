"""Text to ids and back: bytes or words here, BPE beside it. A tokenizer is defined by JSON, never by a pickle."""

import codecs
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

UNKNOWN, END = "<unk>", "<eos>"


class Tokenizer(ABC):
    kind: ClassVar[str]

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text."""

    @abstractmethod
    def token_bytes(self, token: int, previous: int | None) -> bytes:
        """The UTF-8 bytes that this id adds after the one before it; they may end inside a character."""

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """Everything that makes this tokenizer, as JSON holds it."""

    @staticmethod
    def safe_cut(text: str) -> int:
        """A late place where a text may be cut, so that the parts encode as the whole whatever follows; 0 if there is none."""
        return len(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; what is not UTF-8 shows as U+FFFD."""
        stream = TextStream(self)
        return stream.feed(ids) + stream.finish()

    @cached_property
    def fingerprint(self) -> str:
        canonical = json.dumps(self.definition(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path | str) -> None:
        Path(path).write_text(json.dumps(self.definition(), ensure_ascii=False, indent=0), encoding="utf-8")

    def check(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"id {token} is not in this vocabulary of {self.vocab_size} {self.kind}")
        return token


class TextStream:
    """Ids in, text out as soon as its characters are whole: no part of a UTF-8 character is ever shown.

    `before` are ids that the text goes on from: they are not shown, but may have begun a character or a word.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._previous: int | None = None
        self.feed(before)

    def feed(self, ids: Iterable[int] | int) -> str:
        """The text that has become whole with these ids."""
        return self._decoder.decode(b"".join(self._bytes([ids] if isinstance(ids, int) else ids)))

    def finish(self) -> str:
        """What is left at the end; a character that never became whole shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, ids: Iterable[int]) -> Iterator[bytes]:
        for token in map(int, ids):
            yield self._tokenizer.token_bytes(self._tokenizer.check(token), self._previous)
            self._previous = token


class Bytes(Tokenizer):
    kind = "bytes"
    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def token_bytes(self, token: int, previous: int | None) -> bytes:
        return bytes((token,))

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Words(Tokenizer):
    """Words between blanks, and `<eos>` for each line break. `words` in order of id; others become `<unk>`."""

    kind = "words"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        self._index = {word: index for index, word in enumerate(self.words)}
        if len(self._index) < len(self.words) or not {UNKNOWN, END} <= self._index.keys():
            raise ValueError(f"a vocabulary of words needs {UNKNOWN} and {END}, and each word once")
        self._unknown, self._end = self._index[UNKNOWN], self._index[END]

    @classmethod
    def from_counts(cls, counts: dict[str, int], vocab_size: int | None = None) -> "Words":
        """The most frequent first, equals in alphabetical order; `<unk>` and `<eos>` stand where their own counts put them."""
        if vocab_size is not None and vocab_size < 2:
            raise ValueError(f"vocab_size is {vocab_size}, but {UNKNOWN} and {END} alone need 2")
        counts = {UNKNOWN: 0, END: 0} | counts
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if vocab_size is not None:
            kept = {UNKNOWN, END, *[word for word in words if word not in (UNKNOWN, END)][: vocab_size - 2]}
            words = [word for word in words if word in kept]
        return cls(words)

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    @staticmethod
    def split(text: str) -> list[str]:
        return text.replace("\n", f" {END} ").split()

    def encode(self, text: str) -> np.ndarray:
        words = self.split(text)
        return np.fromiter((self._index.get(word, self._unknown) for word in words), np.int64, len(words))

    @staticmethod
    def safe_cut(text: str) -> int:
        blank = re.search(r"\s", text[::-1])  # all that `split` splits at: tabs too, and the blanks of other scripts
        return len(text) - blank.start() if blank else 0

    def token_bytes(self, token: int, previous: int | None) -> bytes:
        if token == self._end:
            return b"\n"
        return ("" if previous in (None, self._end) else " ").encode() + self.words[token].encode()

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": self.words}


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer that `save` wrote."""
    try:
        return from_definition(json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no tokenizer ({error}): write it with Tokenizer.save") from error


def from_definition(definition: dict[str, Any]) -> Tokenizer:
    kind = definition["kind"]
    if kind == "bytes":
        return Bytes()
    if kind == "words":
        return Words(definition["words"])
    if kind == "bpe":
        from memformer_torch.data.bpe import BPE  # it is built on this file

        return BPE(definition["tokenizer"])
    raise ValueError(f"unknown kind {kind!r}: choose bytes, words or bpe")
