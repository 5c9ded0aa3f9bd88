"""Arrays of slots to PNG (extra `[plots]`). No model is known here."""

# Shape letters: T segments, S source tokens, C classification tokens, H heads, K slots

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memformer_torch.analysis.pictures import new_figure
from memformer_torch.analysis.slot_findings import PAPER, Place, half_life, middle, path_on_plane, shares, usual_types, way_home
from memformer_torch.analysis.slots import TYPES, Slots
from memformer_torch.analysis.token_text import CLASSIFICATION, Piece, label

COLOURS = {"keep": "#0072B2", "mix": "#B9BDC2", "take": "#D55E00"}
"""Told apart with any colour vision."""
VERBS = {"keep": "keeps itself", "mix": "mixes", "take": "takes from tokens"}
START = "segment (0: the document's start, BOS alone)"
MOST_LABELS = 48
"""Columns that are all labelled; of more, only those that weigh most."""


def three_types(path: Path, found: Slots, texts: Sequence[Sequence[str]], places: Mapping[str, Place | None]) -> None:
    """The attention of a typical slot of each type, a row a head: on itself, then on the tokens."""
    assert found.tokens is not None
    heads, size = found.own.shape[1], found.source.shape[1]
    heights = [0.2 if places[name] is None else 1.0 for name in TYPES]
    figure, _ = new_figure(figsize=(9, 0.4 + (1.3 + 0.2 * heads) * sum(heights)))
    figure.clear()
    colours = _weight_colours()
    for axes, name in zip(figure.subplots(len(TYPES), 1, height_ratios=heights), TYPES, strict=True):
        place = places[name]
        if place is None:
            axes.set_axis_off()
            axes.text(0, 0.5, f"No slot {VERBS[name]} in this document after its start.", va="center", color="dimgrey")
            continue
        slot, segment = place
        own, tokens = found.own[segment, :, slot], found.tokens[segment, :, slot]
        tokens = np.concatenate([tokens[:, : len(texts[segment])], tokens[:, size:]], axis=1)  # without padding
        names = [*map(label, texts[segment]), *[CLASSIFICATION] * (found.tokens.shape[3] - size)]
        _weights(axes, own, tokens, names, colours, COLOURS[name])
        title = f"Slot {slot} {VERBS[name]}: {own.mean():.0%} of its attention is on itself (segment {segment})"
        axes.set_title(title, fontsize=10, loc="left")
    if any(places.values()):
        bar = figure.colorbar(colours, ax=figure.axes, label="attention", shrink=0.6, aspect=30)
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "5%", "20%", "50%", "100%"])
    save(figure, path)


def _weight_colours() -> Any:
    """Weights from 0 to 1, small ones spread so that they are seen."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    return ScalarMappable(PowerNorm(0.5, vmin=0, vmax=1), "Blues")


def _weights(axes: Any, own: np.ndarray, tokens: np.ndarray, names: Sequence[str], colours: Any, frame: str) -> None:
    """A row a head (H,): the slot itself in a frame, a gap, then the tokens (H, columns)."""
    from matplotlib.patches import Rectangle

    heads, number = tokens.shape
    wide = max(1.0, number / 20)  # of the slot itself, and of the gap half as much
    edges, rows = 1.5 * wide + np.arange(number + 1), np.arange(heads + 1)
    options = {"cmap": colours.cmap, "norm": colours.norm}
    axes.pcolormesh([0, wide], rows, own[:, None], **options)
    axes.pcolormesh(edges, rows, tokens, **options)
    axes.add_patch(Rectangle((0, 0), wide, heads, fill=False, edgecolor=frame, linewidth=3, clip_on=False, zorder=3))
    axes.add_patch(Rectangle((edges[0], 0), number, heads, fill=False, edgecolor="black", linewidth=0.8, zorder=3))
    axes.set(xlim=(0, edges[-1]), ylim=(heads, 0))
    shown = _labelled(tokens.mean(0))
    upright = all(len(names[column]) == 1 for column in shown)
    ticks, words = [wide / 2, *(edges[column] + 0.5 for column in shown)], ["itself", *(_short(names[c]) for c in shown)]
    axes.set_xticks(ticks, words, rotation=0 if upright else 90, fontsize=8, parse_math=False)
    axes.set_yticks(np.arange(heads) + 0.5, [f"head {head + 1}" for head in range(heads)], fontsize=8)
    axes.tick_params(length=0)
    axes.set_frame_on(False)


def _labelled(weights: np.ndarray) -> list[int]:
    """Columns that are labelled: all, or where there are many those that weigh most, apart from one another."""
    if len(weights) <= MOST_LABELS:
        return list(range(len(weights)))
    apart, chosen = -(-len(weights) // MOST_LABELS), list[int]()
    for column in map(int, np.argsort(-weights)):
        if len(chosen) < MOST_LABELS // 3 and all(abs(column - other) >= apart for other in chosen):
            chosen.append(column)
    return sorted(chosen)


def shares_over_time(path: Path, found: Slots) -> None:
    """The share of each type segment by segment, stacked; beside it the mean of the middle, and the paper's ranges."""
    figure, _ = new_figure(figsize=(9, 3.9))
    figure.clear()
    axes, side = figure.subplots(1, 2, width_ratios=[5, 1.5], sharey=True)
    share, rows = shares(found.types), middle(found)
    edges, bottom = np.arange(len(found) + 1) - 0.5, np.zeros(len(found))
    for index, name in enumerate(TYPES):
        top = bottom + share[:, index]
        axes.stairs(top, edges, baseline=bottom, fill=True, color=COLOURS[name], label=VERBS[name], linewidth=0)
        bottom = top
    for x in (rows[0] - 0.5, rows[-1] + 0.5):
        axes.axvline(x, color="black", linestyle="--", linewidth=1)
    axes.text((rows[0] + rows[-1]) / 2, 1.02, "middle half", ha="center", fontsize=8)
    axes.set(xlabel=START, ylabel="share of the slots", xlim=(edges[0], edges[-1]), ylim=(0, 1.08))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    here = dict(zip(TYPES, share[rows[0] : rows[-1] + 1].mean(0), strict=True))
    paper = {name: sum(ends) / 2 for name, ends in PAPER.items()}
    paper = {"keep": paper["keep"], "mix": 1 - paper["keep"] - paper["take"], "take": paper["take"]}
    ranges = {name: "{:.0%} to {:.0%}".format(*PAPER[name]) if name in PAPER else "the rest" for name in TYPES}
    _bar(side, 0, here, {name: f"{value:.0%}" for name, value in here.items()})
    _bar(side, 1, paper, ranges)
    side.set_xticks([0, 1], ["this model,\nmiddle half", "paper, middle\n(about)"], fontsize=8)
    side.tick_params(left=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    save(figure, path)


def _bar(axes: Any, place: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
    bottom = 0.0
    for name, value in values.items():
        axes.bar(place, value, bottom=bottom, color=COLOURS[name], linewidth=0, width=0.8)
        if value >= 0.05:
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9}
            axes.text(place, bottom + value / 2, texts[name], ha="center", va="center", fontsize=8, bbox=ground)
        bottom += value


def attention_on_image(path: Path, image: np.ndarray, weights: np.ndarray, levels: int, slot: int) -> None:
    """An image, and beside it the weight that a slot gave each of its pixels as it was read; both (height, width)."""
    figure, _ = new_figure(figsize=(7.5, 3.4))
    figure.clear()
    left, right = figure.subplots(1, 2)
    left.imshow(image, cmap="gray_r", vmin=0, vmax=levels - 1)
    left.set_title("The image", fontsize=10)
    shown = right.imshow(weights, cmap="Blues", vmin=0)
    right.set_title(f"What slot {slot} took", fontsize=10)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
    bar = figure.colorbar(shown, ax=right, label="attention when the pixel was read")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    save(figure, path)


def forgetting_lengths(path: Path, found: Slots) -> None:
    """The lengths of the forgetting vectors, one dot a slot, by the type that it has most often in the document's middle."""
    figure, axes = new_figure(figsize=(7.5, 3.5))
    usual, names = usual_types(found), []
    for index, name in enumerate(TYPES):
        slots = np.flatnonzero(usual == index)
        names.append(f"mostly {VERBS[name]}\n({len(slots)} slots)" if len(slots) else f"mostly {VERBS[name]}\n(none)")
        if len(slots):
            lengths, places = found.forgetting_length[slots], np.arange(len(slots)) * 0.618 % 1  # spread, the same each time
            axes.scatter(index + 0.5 * (places - 0.5), lengths, s=24, color=COLOURS[name], edgecolor="black", linewidth=0.4)
            axes.plot([index - 0.32, index + 0.32], 2 * [np.median(lengths)], color="black", linewidth=2, zorder=3)
            axes.text(index + 0.34, np.median(lengths), f"{np.median(lengths):.3f}", va="center", fontsize=9)
    axes.set_xticks(range(len(TYPES)), names)
    axes.set(xlim=(-0.5, len(TYPES) - 0.4), ylabel="|v_bias|  (a slot's own length is 1)")
    axes.set_ylim(0, 1.1 * found.forgetting_length.max())
    axes.set_title("Forgetting vectors: a dot is a slot, the line their median", fontsize=10, loc="left")
    axes.grid(axis="y", alpha=0.3)
    save(figure, path)


def ways_home(path: Path, found: Slots, near: tuple[int, float], far: tuple[int, float], slot: int, steps: int = 24) -> None:
    """Left: two slots (each a number and its angle to the terminal state) that only forget. Right: a slot's real way."""
    figure, _ = new_figure(figsize=(9, 5))
    figure.clear()
    figure.get_layout_engine().set(h_pad=0.1)
    left, right = figure.subplots(1, 2)
    for side, colour, (number, angle) in ((1, COLOURS["take"], near), (-1, COLOURS["keep"], far)):
        length = float(found.forgetting_length[number])
        way, half = way_home(angle, length, steps), half_life(angle, length)
        left.plot(side * np.sin(way), np.cos(way), marker="o", markersize=4, color=colour, linewidth=1, zorder=3)
        left.plot([0, side * np.sin(angle)], [0, np.cos(angle)], color=colour, linewidth=1.2)
        left.plot(side * np.sin(angle), np.cos(angle), marker="o", markersize=11, color=colour, zorder=4)
        after = "never" if half is None else f"after {half} segments"
        text = f"slot {number}, {np.degrees(angle):.0f}° from T\n|v_bias| {length:.3f}\nhalf way home {after}"
        left.text(side * 0.62, -1.08, text, ha="center", va="top", fontsize=8.5, color=colour)
    left.set_title(f"Two slots that only forget, {steps} segments\n(plane of slot and terminal state T)", fontsize=10)
    points, explained = path_on_plane(found, slot)
    right.plot(*points.T, color="grey", linewidth=0.8, zorder=2)
    shown = right.scatter(*points.T, c=np.arange(len(points)), cmap="cividis", s=24, zorder=3, edgecolor="black", linewidth=0.3)
    for name, point, down in (("start", points[0], -12), ("end", points[-1], 7)):
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.7}
        right.annotate(name, point, textcoords="offset points", xytext=(8, down), fontsize=9, bbox=ground, zorder=6)
    right.set_title(f"What slot {slot} really did\n(across: first principal component, {explained:.0%} shown)", fontsize=10)
    figure.colorbar(shown, ax=right, label="segments read", shrink=0.6)
    turn = np.linspace(0, 2 * np.pi, 200)
    for axes in (left, right):
        axes.plot(np.sin(turn), np.cos(turn), color="black", linewidth=0.8, alpha=0.6, zorder=1)
        axes.plot(0, 1, marker="*", markersize=15, color="black", zorder=5)
        axes.annotate("T = v_bias / |v_bias|", (0, 1), textcoords="offset points", xytext=(0, 10), ha="center", fontsize=9)
        axes.set(aspect="equal", xlim=(-1.2, 1.2), ylim=(-1.45, 1.2), xticks=[], yticks=[])
        axes.set_frame_on(False)
    save(figure, path)


def life(path: Path, found: Slots, slot: int, taken: Sequence[Sequence[Piece]], unit: str) -> None:
    """A slot over the whole document: attention on itself, angle moved, and what it took (`unit`) where it took most."""
    own, edges, (low, high) = found.own[:, :, slot], np.arange(len(found) + 1) - 0.5, found.thresholds
    words = {t: " · ".join(_short(word.text, 10) for word in taken[t]) for t in _events(own.mean(1), taken)}
    tall = min(1.6, max(0.6, 0.055 * max(map(len, words.values()), default=0)))
    figure, _ = new_figure(figsize=(9, 4.6 + tall))
    figure.clear()
    above, moved, below = figure.subplots(3, 1, sharex=True, height_ratios=[1.8, 1.2, tall])
    above.axhspan(high, 1, color=COLOURS["keep"], alpha=0.18, label=f"keeps (from {high:.0%})")
    above.axhspan(0, low, color=COLOURS["take"], alpha=0.18, label=f"takes (up to {low:.0%})")
    for head in range(own.shape[1]):
        above.stairs(own[:, head], edges, baseline=None, color="grey", linewidth=0.7, label=None if head else "each head")
    above.stairs(own.mean(1), edges, baseline=None, color="black", linewidth=1.8, label="mean of its heads")
    above.set(ylabel="attention on itself", ylim=(0, 1))
    above.set_title(f"The life of slot {slot}", fontsize=11)
    above.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    colours = [COLOURS[TYPES[index]] for index in found.types[:, slot]]
    moved.bar(range(len(found)), np.degrees(found.moved[:, slot]), color=colours, width=0.9)
    moved.set(ylabel="moved (degrees)")
    below.set(ylabel=f"{unit} taken".replace(" ", "\n"), yticks=[], ylim=(0, 1), xlabel=START)
    below.set_xlim(edges[0] - len(found) / 100, edges[-1])
    for segment, text in words.items():
        below.text(segment, 0.97, text, rotation=90, ha="center", va="top", fontsize=7.5, parse_math=False, clip_on=True)
    below.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*above.get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside upper center")
    save(figure, path)


def _events(own: np.ndarray, taken: Sequence[Sequence[Piece]], most: int = 40) -> list[int]:
    """Segments in which a slot took most, far enough apart to be labelled."""
    apart, chosen = len(own) / most, list[int]()
    for segment in map(int, np.argsort(own, kind="stable")):
        if taken[segment] and all(abs(segment - other) >= apart for other in chosen):
            chosen.append(segment)
    return chosen


def _short(text: str, most: int = 14) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def save(figure: Any, path: Path) -> None:
    """As PNG; a character that the font lacks is drawn as a box, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(path, dpi=130, metadata={"Software": None})
