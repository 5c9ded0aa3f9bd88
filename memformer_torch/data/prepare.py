"""Text of any size to cached token ids, in bounded memory: a source's bytes come in pieces and go out as ids."""

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memformer_torch.data.bpe import BPE
from memformer_torch.data.cache import ArrayWriter, cached, make_key
from memformer_torch.data.corpus import Corpus, Documents, smallest_dtype
from memformer_torch.data.progress import Progress
from memformer_torch.data.tokenizer import Bytes, Tokenizer, Words, load_tokenizer

FORMAT = 1
"""Goes up when the same source and settings would give other files."""
BPE_SAMPLE = 32 << 20
"""Bytes of train, taken evenly from it, that merges are learned from."""
LONGEST = 4 << 20
"""Characters without a place to cut after which a text is cut anyway, so that memory stays bounded."""


class Piece(NamedTuple):
    data: bytes
    last: bool
    """Whether a document ends here."""


Pieces = Callable[[], Iterator[Piece]]


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    splits: Mapping[str, Pieces]
    """For each split a function that begins to read it."""
    content: str
    """A digest of everything that is read, and of how it is split."""
    num_bytes: Mapping[str, int]
    """How many bytes each split holds."""


def prepare(
    source: Source,
    tokenizer: str | Tokenizer,
    vocab_size: int | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
    **about: Any,
) -> Corpus:
    """The corpus of a source, from the cache if it is there. `tokenizer` is `bytes`, `words`, `bpe` or one at hand."""
    if isinstance(tokenizer, str) and tokenizer not in ("bytes", "words", "bpe"):
        raise ValueError(f"there is no tokenizer {tokenizer!r}: choose bytes, words or bpe")
    if vocab_size is not None and tokenizer not in ("words", "bpe"):
        raise ValueError(f"vocab_size is {vocab_size}, but only words and bpe are built to a size: leave it out")
    settings = tokenizer if isinstance(tokenizer, str) else tokenizer.fingerprint
    key = make_key(FORMAT, source.name, source.content, settings, vocab_size)

    def build(folder: Path) -> None:
        chosen = _build_tokenizer(source, tokenizer, vocab_size, progress)
        chosen.save(folder / "tokenizer.json")
        for split in source.splits:
            _write_split(folder, source, split, chosen, progress)

    folder = cached(cache, source.name, key, build)
    built = load_tokenizer(folder / "tokenizer.json")
    splits = {
        split: Documents(_map(folder / f"{split}.npy"), np.load(folder / f"{split}.offsets.npy")) for split in source.splits
    }
    return Corpus(name=source.name, splits=splits, vocab_size=built.vocab_size, tokenizer=built, fingerprint=key, **about)


def text_pieces(pieces: Iterable[Piece], safe_cut: Callable[[str], int]) -> Iterator[tuple[str, bool]]:
    """Pieces of text that encode as the whole document does, with whether a document ends."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    for data, last in pieces:
        text = rest + decoder.decode(data, final=last)
        cut = len(text) if last else safe_cut(text)
        if cut == 0 and len(text) > LONGEST:
            cut = len(text)
        yield text[:cut], last
        rest = text[cut:]
        if last:
            decoder.reset()


def _build_tokenizer(
    source: Source, tokenizer: str | Tokenizer, vocab_size: int | None, progress: Progress | None
) -> Tokenizer:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer == "bytes":
        return Bytes()
    if tokenizer == "words":
        counts: Counter[str] = Counter()
        for text, _ in text_pieces(_watched(source, "train", "counting words", progress), Words.safe_cut):
            counts.update(Words.split(text))
        return Words.from_counts(counts, vocab_size)
    every = math.ceil(source.num_bytes["train"] / BPE_SAMPLE)
    train = text_pieces(_watched(source, "train", "learning merges", progress), BPE.safe_cut)
    sample = (text for number, (text, _) in enumerate(train) if number % every == 0)
    return BPE.train(sample) if vocab_size is None else BPE.train(sample, vocab_size)


def _write_split(folder: Path, source: Source, split: str, tokenizer: Tokenizer, progress: Progress | None) -> None:
    pieces = _watched(source, split, f"encoding {split}", progress)
    offsets = [0]
    with ArrayWriter(folder / f"{split}.npy", smallest_dtype(tokenizer.vocab_size)) as writer:
        if isinstance(tokenizer, Bytes):  # as they are: there is nothing to decode
            parts = ((np.frombuffer(data, np.uint8), last) for data, last in pieces)
        else:
            parts = ((tokenizer.encode(text), last) for text, last in text_pieces(pieces, tokenizer.safe_cut))
        for ids, last in parts:
            writer.write(ids)
            if last:
                offsets.append(writer.length)
    if offsets[-1] == 0:
        raise ValueError(f"the {split} split of {source.name} is empty: give more text")
    np.save(folder / f"{split}.offsets.npy", np.asarray(offsets, np.int64))


def _watched(source: Source, split: str, stage: str, progress: Progress | None) -> Iterator[Piece]:
    done = 0
    for piece in source.splits[split]():
        yield piece
        done += len(piece.data)
        if progress is not None:
            progress(f"{source.name}: {stage}", done, source.num_bytes[split])


def _map(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")
