"""The figures of a document's slots: each drawn to a PNG, with a caption that states its numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memformer_torch.analysis import slot_pictures as pictures
from memformer_torch.analysis.slot_findings import (
    PAPER,
    angles_home,
    eventful_slot,
    half_life,
    middle,
    numbers,
    path_on_plane,
    typical,
    writing_place,
)
from memformer_torch.analysis.slot_pictures import VERBS
from memformer_torch.analysis.slot_report import Part, details_html, table_html, text_html
from memformer_torch.analysis.slots import TYPES, Slots
from memformer_torch.analysis.text_picture import coloured_text
from memformer_torch.analysis.token_text import CLASSIFICATION, Piece, pieces, top_words

MOST_TOKENS = 400
"""Of the text around a writing slot's segment that is shown."""
MOST_WORDS = 5


class Figures:
    """Draws into a folder.

    `texts` holds what each token of a segment adds to the text, and `unit` says what these are; `image` (height, width) are the
    ids of a document that is one, in `levels` of grey.
    """

    def __init__(
        self,
        folder: Path,
        found: Slots,
        texts: Sequence[Sequence[str]],
        unit: str = "words",
        image: np.ndarray | None = None,
        levels: int = 0,
        slot: int | None = None,
    ) -> None:
        if found.tokens is None or found.memory is None:
            raise ValueError("the figures need the weights on tokens and the memory: collect them too")
        self.folder, self.found, self.tokens, self.texts = folder, found, found.tokens, texts
        self.unit, self.image, self.levels = unit, image, levels
        self.slot = eventful_slot(found) if slot is None else slot
        self.chosen_because = (
            "the one whose attention on itself changes most in the middle half" if slot is None else "the one asked for"
        )
        self.numbers = numbers(found)

    def draw(self) -> list[Part]:
        """All of them."""
        return [self.types(), self.shares(), self.words(), self.forgetting(), self.home(), self.life()]

    def types(self) -> Part:
        places, path = typical(self.found), self.folder / "three-types.png"
        pictures.three_types(path, self.found, self.texts, places)
        said = []
        for name, place in places.items():
            if place is None:
                said.append(f"No slot {VERBS[name]} in this document after its start.")
            else:
                own = self.found.own[place.segment, :, place.slot].mean()
                said.append(f"Slot {place.slot} {VERBS[name]}: {own:.1%} on itself in segment {place.segment}.")
        caption = (
            f"{' '.join(said)} {self._thresholds()} A row is a head of the writer; the weights of a row add up to 1. Columns "
            f"are the slot itself, then tokens ({self.unit}). Of each type it is the slot with the median weight on itself, in "
            "a segment near the middle."
        )
        return Part(title="Three typical slots", caption=caption, picture=path, alt=" ".join(said))

    def shares(self) -> Part:
        path, when = self.folder / "shares.png", self.numbers["when"]
        pictures.shares_over_time(path, self.found)
        first, last = self.numbers["middle_segments"]
        here = ", ".join(f"{when['middle'][name]:.1%} {name}" for name in TYPES)
        start = ", ".join(f"{when['start'][name]:.1%} {name}" for name in TYPES)
        begun = ", ".join(f"{when['first'][name]:.1%} {name}" for name in TYPES)
        keep, take = PAPER["keep"], PAPER["take"]
        caption = (
            f"This model: in the middle half (segments {first} to {last}) {here}; at the start, where it reads BOS alone, "
            f"{start}; in the first segment with something of the document {begun}. The paper, for its model of WikiText-103: "
            f"{keep[0]:.0%} to {keep[1]:.0%} keep and {take[0]:.0%} to {take[1]:.0%} take in the middle of a document, and "
            f"nearly all take at the beginning; it states no thresholds. {self._thresholds()} Counting each head of a slot by "
            f"itself, {when['middle']['heads_that_keep']:.1%} keep in this model's middle half."
        )
        alt = f"Stacked shares of keeping, mixing and taking slots over {len(self.found)} segments; middle half: {here}."
        return Part(title="How many keep, mix and take, segment by segment", caption=caption, picture=path, alt=alt)

    def words(self) -> Part:
        title, (slot, segment) = "What one writing slot attends to", writing_place(self.found)
        own, path = self.found.own[segment, :, slot].mean(), self.folder / "words.png"
        about = "that takes" if own <= self.found.thresholds[0] else "that keeps least (none takes in the middle)"
        if self.image is not None:
            weights = self.tokens[1:, :, slot, : self.found.source.shape[1]].mean(1)[self.found.source[1:] >= 0]
            pictures.attention_on_image(path, self.image, weights.reshape(self.image.shape), self.levels, slot)
            caption = (
                f"The weights that slot {slot}, one {about}, gave the pixels when they were read, mean over the heads: "
                f"{weights.sum() / (len(self.found) - 1):.1%} of its attention; the rest went to itself and {CLASSIFICATION}."
            )
            return Part(title=title, caption=caption, picture=path, alt=caption)
        paragraphs = [self._paragraph(slot, near) for near in self._around(segment)]
        coloured_text(path, paragraphs)
        top = _listed(self._taken(slot)[segment]) or "none has 2 %"
        heaviest = max(piece.weight for _, parts in paragraphs for piece in parts)
        caption = (
            f"Slot {slot}, one {about}: {own:.1%} on itself in segment {segment}, where most weight is on: {top}. "
            f"The stronger the ground, the more weight, mean over the heads; the strongest here is {heaviest:.1%}."
        )
        alt = f"The text around segment {segment}, coloured by the attention of slot {slot}. Most weight: {top}."
        return Part(title=title, caption=caption, picture=path, alt=alt, more=text_html(paragraphs))

    def forgetting(self) -> Part:
        title = "Forgetting vectors by type"
        if not self.found.forgets:
            return Part(title=title, caption="This model was trained without forgetting: no vector is added to a slot.")
        path, by_type = self.folder / "forgetting.png", self.numbers["types"]
        pictures.forgetting_lengths(path, self.found)
        said = "; ".join(
            f"{name}: " + (f"{row['slots']} slots, mean {row['forgetting_length']:.3f}" if row["slots"] else "no slot")
            for name, row in by_type.items()
        )
        caption = (
            f"Lengths of v_bias by the type that a slot has most often in the middle half. {said}. A slot's own length is 1. "
            "The paper names 3.20 for a slot that takes and 1.15 for some others, on a scale that it does not state: compare "
            f"the order, not the numbers. {self._nearness()}"
        )
        return Part(title=title, caption=caption, picture=path, alt=f"Lengths of forgetting vectors by type. {said}.")

    def home(self) -> Part:
        title, found = "Slots on their way to the terminal state", self.found
        if not found.forgets or not found.on_sphere:
            missing = "forgetting" if not found.forgets else "the norm that keeps slots on a sphere"
            return Part(title=title, caption=f"This model was trained without {missing}: a slot has no terminal state.")
        rows = middle(found)
        at, path = rows[len(rows) // 2], self.folder / "home.png"
        angles = angles_home(found)[at]
        near, far = ((int(slot), float(angles[slot])) for slot in (angles.argmin(), angles.argmax()))
        pictures.ways_home(path, found, near, far, self.slot)
        halves = {slot: half_life(angle, float(found.forgetting_length[slot])) for slot, angle in (near, far)}
        said = " and ".join(
            f"slot {slot} ({np.degrees(angle):.0f} degrees away, half way home "
            + ("never)" if halves[slot] is None else f"after {halves[slot]} segments)")
            for slot, angle in (near, far)
        )
        shown = path_on_plane(found, self.slot)[1]
        caption = (
            f"Left: of the slots before segment {at}, the nearest to its terminal state T = v_bias / |v_bias| and the "
            f"furthest: {said}, if they only forgot, m <- (m + v_bias) / |m + v_bias|, with all weight on themselves. Such a "
            "slot stays in the plane of itself and T, which is the plane drawn; each slot has a T of its own, turned to point "
            f"up. Right: what slot {self.slot}, {self.chosen_because}, really did; up is its T, across the first principal "
            f"component of the rest. This shows {shown:.0%} of its variance; points inside the circle lie in front of or "
            "behind the page."
        )
        alt = f"Unit circles with the ways of {said}, and of slot {self.slot}."
        return Part(title=title, caption=caption, picture=path, alt=alt)

    def life(self) -> Part:
        found, slot, path = self.found, self.slot, self.folder / "life.png"
        taken = self._taken(slot)
        pictures.life(path, found, slot, [words[:3] for words in taken], self.unit)
        own, moved = found.own[:, :, slot].mean(1), np.degrees(found.moved[:, slot])
        counts = ", ".join(f"{(found.types[:, slot] == index).sum()} {name}" for index, name in enumerate(TYPES))
        caption = (
            f"Slot {slot}, {self.chosen_because}, over {len(found)} segments: {counts}. On itself {own.min():.1%} to "
            f"{own.max():.1%}, moved {moved.min():.1f} to {moved.max():.1f} degrees a segment. Below, the {self.unit} with "
            f"most weight, where it took most. {self._thresholds()}"
        )
        rows = [
            (str(t), f"{own[t]:.1%}", TYPES[found.types[t, slot]], f"{moved[t]:.1f}°", _listed(taken[t]))
            for t in range(len(found))
        ]
        table = table_html(("segment", "on itself", "type", "moved", f"{self.unit} taken (weight)"), rows, words=4)
        alt = f"Attention on itself, angle moved and {self.unit} taken of slot {slot} by segment."
        more = details_html(f"All {len(found)} segments of slot {slot} as a table", table)
        return Part(title="A slot's life", caption=caption, picture=path, alt=alt, more=more)

    def _thresholds(self) -> str:
        take, keep = self.found.thresholds
        return (
            f"A slot keeps if {keep:.0%} or more of its attention (mean over the heads) is on itself, takes if {take:.0%} or "
            "less is, and mixes between."
        )

    def _nearness(self) -> str:
        cosines = {name: row["forgetting_cosine"] for name, row in self.numbers["types"].items()}
        said = ", ".join(f"{cosine:.2f} where they {name}" for name, cosine in cosines.items() if cosine is not None)
        return (
            f"The mean cosine between slots and v_bias in the middle half is {said}: near 1 a slot is at home, and holds "
            "little of the document however much it keeps itself."
        )

    def _around(self, segment: int) -> list[int]:
        """The segment, and its neighbours as far as they are not too long."""
        chosen, size = [segment], len(self.texts[segment])
        for near in (segment + 1, segment - 1):
            if 1 <= near < len(self.found) and size + len(self.texts[near]) <= MOST_TOKENS:
                chosen.append(near)
                size += len(self.texts[near])
        return sorted(chosen)

    def _paragraph(self, slot: int, segment: int) -> tuple[str, list[Piece]]:
        texts, weights = self._row(slot, segment)
        heading = f"segment {segment}: {self.found.own[segment, :, slot].mean():.0%} on itself"
        return heading, pieces(texts, weights)

    def _taken(self, slot: int) -> list[list[Piece]]:
        """The words that weigh most in each segment."""
        return [top_words(*self._row(slot, segment), MOST_WORDS) for segment in range(len(self.found))]

    def _row(self, slot: int, segment: int) -> tuple[list[str], Any]:
        """A segment's texts, classification tokens among them, and the slot's weights on them."""
        size, texts = self.found.source.shape[1], self.texts[segment]
        weights = self.tokens[segment, :, slot].mean(0)
        ends = [f" {CLASSIFICATION}"] * (len(weights) - size)
        return [*texts, *ends], np.concatenate([weights[: len(texts)], weights[size:]])


def _listed(words: Sequence[Piece]) -> str:
    return " · ".join(f"{word.text} {word.weight:.0%}" for word in words)
