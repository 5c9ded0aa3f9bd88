"""What the arrays of a document's slots say: typical slots, shares, ways home, and the numbers that a report quotes."""

# Shape letters: T segments, K slots, D width

from typing import Any, NamedTuple

import numpy as np

from memformer_torch.analysis.slots import TYPES, Slots

PAPER = {"keep": (0.60, 0.80), "take": (0.05, 0.10)}
"""Shares in the middle of a document, as the paper has them; nearly all take at the start."""


class Place(NamedTuple):
    """A slot in a segment."""

    slot: int
    segment: int


def middle(found: Slots) -> range:
    """The middle half of the segments that hold something of the document."""
    number = len(found) - 1
    start = 1 + number // 4
    return range(start, max(start + 1, 1 + -(-3 * number // 4)))


def shares(types: np.ndarray) -> np.ndarray:
    """The share of each of TYPES: of types (T, K), (T, 3)."""
    return np.stack([(types == index).mean(-1) for index in range(len(TYPES))], axis=-1)


def typical(found: Slots) -> dict[str, Place | None]:
    """A slot of each type, if the document has one after its start; of its segment's slots of that type the one with the median
    share of attention on itself. All are of one segment of the middle half if one has all types; else each is where it may be,
    as near to the centre as can be."""
    present, rows = shares(found.types) > 0, middle(found)
    centre = (rows[0] + rows[-1]) / 2
    order = sorted(range(1, len(found)), key=lambda t: (t not in rows, -present[t].sum(), abs(t - centre)))
    places: dict[str, Place | None] = dict.fromkeys(TYPES)
    for index, name in enumerate(TYPES):
        for segment in order:
            if present[segment, index]:
                places[name] = Place(_median_slot(found, segment, index), segment)
                break
    return places


def _median_slot(found: Slots, segment: int, index: int) -> int:
    own, slots = found.own[segment].mean(0), np.flatnonzero(found.types[segment] == index)
    return int(slots[np.argsort(own[slots], kind="stable")[(len(slots) - 1) // 2]])


def writing_place(found: Slots) -> Place:
    """The typical slot that takes; if none does, the one in the document's middle that keeps least."""
    place = typical(found)["take"]
    if place is not None:
        return place
    rows = middle(found)
    row, slot = np.unravel_index(found.own[rows[0] : rows[-1] + 1].mean(1).argmin(), (len(rows), found.num_slots))
    return Place(int(slot), rows[0] + int(row))


def eventful_slot(found: Slots) -> int:
    """The slot whose share of attention on itself changes most in the middle of the document."""
    rows = middle(found)
    return int(found.own[rows[0] : rows[-1] + 1].mean(1).std(0).argmax())


def usual_types(found: Slots) -> np.ndarray:
    """The type that each slot has most often in the middle of the document, (K,); of two equally often the first."""
    rows = middle(found)
    counts = [(found.types[rows[0] : rows[-1] + 1] == index).sum(0) for index in range(len(TYPES))]
    return np.stack(counts).argmax(0)


def angles_home(found: Slots) -> np.ndarray:
    """Between each slot and its terminal state v_bias / |v_bias|, (T + 1, K), in radians."""
    assert found.memory is not None
    home, slots = _unit(found.bias), _unit(found.memory)
    return 2 * np.arctan2(np.linalg.norm(slots - home, axis=-1), np.linalg.norm(slots + home, axis=-1))


def way_home(angle: float, length: float, steps: int) -> np.ndarray:
    """The angle to the terminal state of a slot that only forgets, m <- (m + v) / |m + v|, before and after each of so many
    steps; it stays in the plane of slot and terminal state, so that its angle and |v| say everything."""
    found = [angle]
    for _ in range(steps):
        found.append(float(np.arctan2(np.sin(found[-1]), np.cos(found[-1]) + length)))
    return np.array(found)


def half_life(angle: float, length: float, most: int = 10_000) -> int | None:
    """Segments until such a slot is half way home; None if that takes longer than `most`."""
    below = np.flatnonzero(way_home(angle, length, most) <= angle / 2)
    return int(below[0]) if len(below) else None


def path_on_plane(found: Slots, slot: int) -> tuple[np.ndarray, float]:
    """A slot's way through the document in two dimensions, (T + 1, 2), and the share of its variance that these show.

    Up is its terminal state; across is the first principal component of the rest.
    """
    assert found.memory is not None
    home, points = _unit(found.bias[slot]), found.memory[:, slot].astype(np.float64)
    up = points @ home
    rest = points - up[:, None] * home
    centred = rest - rest.mean(0)
    across = np.linalg.svd(centred, full_matrices=False)[2][0]
    total = centred.var(0).sum() + up.var()
    shown = (centred @ across).var() + up.var()
    return np.stack([rest @ across, up], axis=-1), float(shown / total) if total > 0 else 1.0


def numbers(found: Slots) -> dict[str, Any]:
    """What the table and the captions quote."""
    rows, usual, heads = middle(found), usual_types(found), found.own.mean(1)
    part = slice(rows[0], rows[-1] + 1)
    where = {
        "start": slice(0, 1),
        "first": slice(1, 2),
        "middle": part,
        "last": slice(len(found) - 1, len(found)),
    }
    record: dict[str, Any] = {"segments": len(found), "tokens": int((found.source >= 0).sum()), "slots": found.num_slots}
    record["middle_segments"] = [rows[0], rows[-1]]
    record["thresholds"] = {"take": float(found.thresholds[0]), "keep": float(found.thresholds[1])}
    record["when"] = {
        name: {
            **dict(zip(TYPES, map(float, shares(found.types[at]).mean(0)), strict=True)),
            "heads_that_keep": float((found.own[at] >= found.thresholds[1]).mean()),
            "own": float(heads[at].mean()),
            "moved_degrees": float(np.degrees(found.moved[at]).mean()),
            "entropy": float(found.entropy[at].mean()),
        }
        for name, at in where.items()
    }
    record["types"] = {}
    for index, name in enumerate(TYPES):
        chosen = found.types[part] == index
        lengths = found.forgetting_length[usual == index]
        record["types"][name] = {
            "slots": int((usual == index).sum()),
            "moved_degrees": float(np.degrees(found.moved[part][chosen]).mean()) if chosen.any() else None,
            "forgetting_length": float(lengths.mean()) if len(lengths) else None,
            "forgetting_cosine": float(found.forgetting_cosine[part][chosen].mean()) if chosen.any() else None,
        }
    return record


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
