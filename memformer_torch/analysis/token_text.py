"""Ids as people read them, with what each weighs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from memformer_torch.data.tokenizer import TextStream, Tokenizer
from memformer_torch.types import BOS

START = "⟨start⟩"
CLASSIFICATION = "[cls]"
VISIBLE = str.maketrans({"\n": "↵", "\t": "⇥", " ": "␣"})


class Piece(NamedTuple):
    text: str
    weight: float


def token_texts(source: np.ndarray, tokenizer: Tokenizer | None) -> list[list[str]]:
    """What each id of (T, S) adds to the text, without padding; "" inside a character that is not whole yet.

    Without a tokenizer, an id is shown as the number that it is.
    """
    stream = None if tokenizer is None else TextStream(tokenizer)
    return [list(_texts(row, stream)) for row in source.tolist()]


def _texts(row: Sequence[int], stream: TextStream | None) -> Iterator[str]:
    for token in row:
        if token == BOS:
            yield START
        elif token >= 0:
            yield f" {token}" if stream is None else stream.feed(token)


def label(text: str) -> str:
    """A token's text as one visible word, without the blanks around it."""
    return visible(text.strip() or text) or "·"


def visible(text: str) -> str:
    """Blanks and control characters by signs."""
    return "".join(c if c.isprintable() else "·" for c in text.translate(VISIBLE))


def pieces(texts: Sequence[str], weights: Sequence[float]) -> list[Piece]:
    """Texts with their weights; an id without a text of its own belongs to the one after it."""
    found, waiting = [], 0.0
    for text, weight in zip(texts, weights, strict=True):
        waiting += float(weight)
        if text:
            found.append(Piece(text, waiting))
            waiting = 0.0
    return [*found, Piece("\ufffd", waiting)] if waiting else found


def words(texts: Sequence[str], weights: Sequence[float]) -> list[Piece]:
    """The words that tokens of any kind make, each with the sum of its tokens' weights; blanks alone are one too."""
    found: list[Piece] = []
    for text, weight in pieces(texts, weights):
        if found and not (text[0].isspace() or found[-1].text[-1].isspace() or found[-1].text == START):
            found[-1] = Piece(found[-1].text + text, found[-1].weight + weight)
        else:
            found.append(Piece(text, weight))
    return found


def top_words(texts: Sequence[str], weights: Sequence[float], number: int, least: float = 0.02) -> list[Piece]:
    """The words that weigh most, a word that occurs several times counted together, and none below `least`."""
    total: dict[str, float] = {}
    for text, weight in words(texts, weights):
        total[label(text)] = total.get(label(text), 0.0) + weight
    ranked = sorted(total.items(), key=lambda item: -item[1])[:number]
    return [Piece(text, weight) for text, weight in ranked if weight >= least]
