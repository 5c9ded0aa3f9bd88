"""Byte-level BPE by the `tokenizers` package: every text can be encoded, and decodes to itself."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from memformer_torch.data.tokenizer import Tokenizer

NEAR = 256
"""Characters from a text's end in which a single blank is the place to cut, even if another one comes later: what pieces a
large text is cut into decides which of them merges are learned from."""


class BPE(Tokenizer):
    kind = "bpe"

    def __init__(self, description: dict[str, Any]) -> None:
        self._description = description
        try:
            self._tokenizer = _package().Tokenizer.from_str(json.dumps(description))
        except ImportError:
            raise
        except Exception as error:  # the package has no narrower class
            raise ValueError(f"not a description of the package tokenizers: {error}") from error
        byte_of = {character: byte for byte, character in _byte_characters()}
        vocabulary = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        self._bytes = [bytes(byte_of[character] for character in token) for token, _ in vocabulary]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = 8192) -> "BPE":
        """Merges learned from these texts; few texts may give fewer than `vocab_size`."""
        if vocab_size < 256:
            raise ValueError(f"vocab_size is {vocab_size}, but BPE starts from the 256 bytes: give at least 256")
        package = _package()
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = _pre_tokenizer()
        alphabet = [character for _, character in _byte_characters()]
        trainer = package.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(json.loads(tokenizer.to_str()))

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> np.ndarray:
        parts = self._tokenizer.encode_batch_fast(list(self._parts(text)), add_special_tokens=False)
        return np.concatenate([np.zeros(0, np.int64), *(np.asarray(part.ids, np.int64) for part in parts)])

    def _parts(self, text: str, size: int = 1 << 16) -> Iterator[str]:
        """Parts that encode as the whole does, for the package to share out among its threads."""
        start = 0
        while start < len(text):
            part = text[start : start + size]
            if start + size < len(text):
                part = part[: self.safe_cut(part)] or text[start:]
            yield part
            start += len(part)

    @staticmethod
    def safe_cut(text: str) -> int:
        # a single blank between two words begins the second one, so that no merge ever crosses the place before it
        if match := re.search(r"\S (?=\S)", text[:-NEAR:-1]):
            return len(text) - match.end()
        # any other blank ends a word too (U+001C to U+001F are blanks to Python, but not to the package)
        match = re.search(r"[^\S\x1c-\x1f](?=\S)", text[::-1])
        start = len(text) - match.end() if match else 0
        # behind it the package says where words end; the last two characters may still become one, as in 're
        words = _pre_tokenizer().pre_tokenize_str(text[start:])
        ends = [start + end for _, (_, end) in words if start + end <= len(text) - 2]
        return max((end for end in ends if not text[end - 1].isspace()), default=start)

    def token_bytes(self, token: int, previous: int | None) -> bytes:
        return self._bytes[token]

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokenizer": self._description}


def _package() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("BPE needs the package tokenizers: pip install tokenizers, or choose bytes or words") from error
    return tokenizers


def _pre_tokenizer() -> Any:
    """What cuts a text into the words that merges never cross."""
    return _package().pre_tokenizers.ByteLevel(add_prefix_space=False)


def _byte_characters() -> Iterator[tuple[int, str]]:
    """How byte-level BPE writes each byte as one visible character: itself where it is one, else from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    yield from ((byte, chr(byte)) for byte in visible)
    yield from ((byte, chr(256 + n)) for n, byte in enumerate(hidden))
