"""What the page's map shows of a segment: how much each slot changed, its type and the tokens it took."""

from typing import Any

import torch
from torch import Tensor

from memformer_torch.analysis.look import look
from memformer_torch.analysis.slots import TYPES, slot_types
from memformer_torch.analysis.token_text import token_texts, top_words
from memformer_torch.data.tokenizer import Tokenizer
from memformer_torch.types import Segment

MOST_TOKENS = 8
"""Tokens of a segment that are named as what a slot took: those it attends to most."""
LEAST_SHARE = 0.01
"""Of a slot's attention, for a token to be named."""


def num_slots(model: Any) -> int:
    """How many slots a model has to show."""
    return getattr(model.config, "num_slots", 0)


def describe(model: Any, tokenizer: Tokenizer | None, source: Tensor, state: Any) -> list[dict[str, Any]]:
    """A record of the write of each segment (B, S), which is read whole from these states; JSON can hold it.

    `moved` is the angle that each slot turned by, in radians; `own` the share of attention it gave itself; `types` says what
    that makes of it; `took` has, for each slot, the places and shares of the tokens it attended to most.
    """
    seen = look(model, Segment(source, torch.zeros_like(source[:, :1])), state)
    own, moved = seen.own.mean(1), seen.moved
    types = slot_types(seen.own.cpu().double().numpy())
    shares, places = seen.tokens.mean(1)[..., : source.shape[1]].topk(min(MOST_TOKENS, source.shape[1]))  # (B, K, MOST_TOKENS)
    records = []
    for row in range(len(source)):
        took = [
            [[place, round(share, 3)] for place, share in zip(*slot, strict=True) if share >= LEAST_SHARE]
            for slot in zip(places[row].tolist(), shares[row].tolist(), strict=True)
        ]
        records.append(
            {
                "tokens": token_texts(source[row : row + 1].cpu().numpy(), tokenizer)[0],
                "moved": [round(angle, 4) for angle in moved[row].tolist()],
                "own": [round(share, 3) for share in own[row].tolist()],
                "types": [TYPES[kind] for kind in types[row]],
                "took": took,
            }
        )
    return records


def words(record: dict[str, Any], slot: int) -> list[tuple[str, float]]:
    """What a slot took of a segment, as words and shares, the largest first."""
    shares = dict(record["took"][slot])
    weights = [shares.get(place, 0.0) for place in range(len(record["tokens"]))]
    return [(text, round(share, 3)) for text, share in top_words(record["tokens"], weights, MOST_TOKENS, LEAST_SHARE)]
