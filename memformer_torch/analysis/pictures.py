"""Pictures of results (extra `[plots]`).

Legends say loc="best", which is what they have by default: then matplotlib does not warn where a busy machine takes long.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def new_figure(**options: Any) -> tuple[Any, Any]:
    """A figure and its axes, without a screen; an error that says how to get matplotlib if it is not there."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'memformer-torch[plots]'") from error
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def accuracy_by_distance(path: Path, curves: Mapping[str, Mapping[int, float]], chance: float, trained: int) -> None:
    """Accuracy against distance on a logarithmic axis, one line a name, the first on top; what training saw is shaded."""
    figure, axes = new_figure(figsize=(7, 3.6 + 0.12 * len(curves)))
    for number, (name, curve) in enumerate(curves.items()):
        first = {"linewidth": 3, "markersize": 8} if number == 0 else {}
        axes.plot(list(curve), list(curve.values()), marker="o", label=name, zorder=3 - number / len(curves), **first)
    axes.axvspan(min(min(curve) for curve in curves.values()), trained, alpha=0.12, label=f"seen in training (up to {trained})")
    axes.axhline(chance, linestyle=":", color="grey", label="chance")
    axes.set(xlabel="distracting segments between value and question", ylabel="accuracy", ylim=(0, 1.05))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)


def accuracy_panels(
    path: Path,
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    trained: Mapping[str, int],
    chance: float,
    distance: str,
) -> None:
    """A panel a name, in each accuracy against distance, the same lines in all; what training came to is shaded."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, _ = new_figure(figsize=(4.5 * columns, 0.5 + 2.7 * rows))
    figure.clear()
    places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (title, curves) in zip(places.flat, panels.items(), strict=False):
        for number, (name, curve) in enumerate(curves.items()):
            colour = f"{0.8 - 0.8 * number / max(1, len(curves) - 1):.2f}"  # from light to dark
            axes.plot(list(curve), list(curve.values()), marker="o", color=colour, label=name)
        axes.axvspan(0, trained[title], alpha=0.12, label="seen in training")
        axes.axhline(chance, linestyle=":", color="C3", label="chance")
        axes.set_title(title, fontsize="medium")
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(0, 1.05)
    for axes in places.flat[len(panels) :]:
        axes.remove()
    for axes in places.flat[len(panels) - columns : len(panels)]:
        axes.tick_params(labelbottom=True)  # the lowest of its column, be it in the last row or not
    figure.supxlabel(distance, fontsize="medium")
    figure.supylabel("accuracy", fontsize="medium")
    figure.legend(*places[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=7, fontsize="small")
    figure.savefig(path, dpi=120)


def loss_curve(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Training and validation loss against updates, from the lines of metrics.jsonl."""
    figure, axes = new_figure(figsize=(7, 3.6))
    for name, label in (("loss", "training"), ("valid_loss", "validation")):
        points = [(line["update"], line[name]) for line in lines if name in line]
        axes.plot(*zip(*points, strict=True), label=label, marker="o" if name == "valid_loss" else None)
    axes.set(xlabel="update", ylabel="cross-entropy a token (nats)")
    axes.legend(loc="best")
    figure.savefig(path, dpi=120)


def image_rows(path: Path, rows: Mapping[str, Any], levels: int, columns: int | None = None) -> None:
    """Rows of images, one a name: arrays (N, height, width) of whole numbers below `levels`; below 0 is what is not known.

    With `columns` there are at most so many side by side, and the others in rows below.
    """
    number = len(next(iter(rows.values())))
    columns = min(number, columns or number)
    lines = [(name, images[start : start + columns]) for start in range(0, number, columns) for name, images in rows.items()]
    figure, _ = new_figure(figsize=(7, 0.66 * len(lines) + 0.2))
    figure.clear()
    axes = figure.subplots(len(lines), columns, squeeze=False)
    for line, (name, images) in zip(axes, lines, strict=True):
        for place in line[len(images) :]:
            place.set_axis_off()
        for place, image in zip(line, images, strict=False):
            place.set_facecolor("#cfe0f3")  # seen through what is not known
            place.imshow(np.ma.masked_less(image, 0), cmap="gray_r", vmin=0, vmax=levels - 1)
            place.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
    figure.savefig(path, dpi=120)


def cost_by_position(path: Path, curves: Mapping[str, Mapping[int, tuple[float, float]]]) -> None:
    """Tokens a second and bytes of state (on a logarithmic axis) against position, one line a name."""
    figure, _ = new_figure(figsize=(9, 3.6))
    figure.clear()
    speed, size = figure.subplots(1, 2)
    for index, (axes, label) in enumerate([(speed, "tokens a second"), (size, "bytes of state")]):
        for name, curve in curves.items():
            axes.plot(list(curve), [point[index] for point in curve.values()], marker="o", label=name)
        axes.set(xlabel="tokens read", ylabel=label, xscale="log")
        axes.set_xticks(list(curve), [f"{position:,}" for position in curve])
        axes.set_xticks([], minor=True)
        axes.legend(loc="best", fontsize="small")
    speed.set_ylim(bottom=0)
    size.set_yscale("log")
    figure.savefig(path, dpi=120)


def endless_reading(path: Path, points: Sequence[Mapping[str, float]], read: int) -> None:
    """Resident memory and time a token against position; after the first `read` tokens it generates."""
    figure, _ = new_figure(figsize=(9, 3.6))
    figure.clear()
    memory, seconds = figure.subplots(1, 2)
    position = [point["position"] / 1000 for point in points]
    memory.plot(position, [point["resident"] / 1e6 for point in points])
    memory.set(ylabel="resident memory (MB)")
    for label, generated in (("reading", False), ("generating", True)):
        chosen = [point for point in points if (point["position"] > read) == generated]
        times = [1000 * point["seconds_a_token"] for point in chosen]
        seconds.plot([point["position"] / 1000 for point in chosen], times, label=label)
    seconds.set(ylabel="milliseconds a token", yscale="log")
    seconds.legend(loc="best")
    for axes in (memory, seconds):
        axes.axvline(read / 1000, linestyle=":", color="grey")
        axes.set(xlabel="thousand tokens read")
    memory.set_ylim(0, 1.3 * memory.get_ylim()[1])
    figure.savefig(path, dpi=120)


def log_lines(path: Path, panels: Mapping[str, Mapping[str, Mapping[int, float]]], label: str) -> None:
    """Panels side by side, by what they measure, each with one line a name; both axes are logarithmic."""
    figure, _ = new_figure(figsize=(4.5 * len(panels), 3.6))
    figure.clear()
    for axes, (what, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, curve in curves.items():
            axes.loglog(list(curve), list(curve.values()), marker="o", label=name)
        axes.set(xlabel=label, ylabel=what)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)


def grouped_bars(path: Path, groups: Mapping[str, Mapping[str, float]], label: str) -> None:
    """Groups of bars below one another, each with one bar a name."""
    names = list(next(iter(groups.values())))
    figure, axes = new_figure(figsize=(7, 0.42 * len(groups) + 1))
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [place + index * height for place in range(len(groups))]
        axes.barh(places, [group[name] for group in groups.values()], height, label=name)
    axes.set(xlabel=label, yticks=[place + 0.4 - height / 2 for place in range(len(groups))])
    axes.set_yticklabels(groups)
    axes.invert_yaxis()
    axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)


def cost_by_horizon(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Share of BPTT's bytes and speed against the number of segments, a line a gradient method, a row of axes a shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    figure, _ = new_figure(figsize=(9, 3.2 * len(shapes)))
    figure.clear()
    for shape, pair in zip(shapes, figure.subplots(len(shapes), 2, squeeze=False), strict=True):
        for axes, key, label in zip(
            pair, ("share_of_bytes", "speed"), ("share of BPTT's bytes", "speed, BPTT's is 1"), strict=True
        ):
            for method in dict.fromkeys(row["method"] for row in rows):
                chosen = [row for row in rows if row["shape"] == shape and row["method"] == method]
                axes.plot([row["horizon"] for row in chosen], [row[key] for row in chosen], marker="o", label=method)
            axes.set(title=shape, xlabel="segments in a rollout", ylabel=label, ylim=(0, 1.1))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)


def times_against_peers(path: Path, ratios: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """How many times as long as ours peers take, by group and task, with the spread over turns."""
    tasks = list(dict.fromkeys(task for group in ratios.values() for task in group))
    figure, axes = new_figure(figsize=(8, 1 + 0.8 * max(1, len(ratios))))
    height = 0.8 / max(1, len(tasks))
    for index, task in enumerate(tasks):
        places = [place - 0.4 + (index + 0.5) * height for place, group in enumerate(ratios.values()) if task in group]
        bars = [group[task] for group in ratios.values() if task in group]
        medians = [bar["median"] for bar in bars]
        spread = [[bar["median"] - bar["least"] for bar in bars], [bar["most"] - bar["median"] for bar in bars]]
        axes.barh(places, medians, height, xerr=spread, label=task, error_kw={"elinewidth": 1, "capsize": 2})
    axes.axvline(1, linestyle=":", color="grey")
    axes.set_yticks(range(len(ratios)), list(ratios), fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="the peer's time over ours", xlim=(0, None))
    if tasks:
        axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)


def shares_of_time(path: Path, shares: Mapping[str, Mapping[str, float]], marks: Mapping[str, float], mark: str) -> None:
    """Where time goes: one bar a name, stacked by part and as long as 1; a line across each where its mark is."""
    figure, axes = new_figure(figsize=(9, 1.6 + 0.45 * len(shares)))
    parts, names, left = (
        list(dict.fromkeys(part for bar in shares.values() for part in bar)),
        list(shares),
        np.zeros(len(shares)),
    )
    for index, part in enumerate(parts):
        widths = np.array([bar.get(part, 0.0) for bar in shares.values()])
        axes.barh(names, widths, left=left, label=part, color=f"C{index}" if index < 10 else "lightgrey")
        left += widths
    for place, name in enumerate(names):
        axes.plot(2 * [marks[name]], [place - 0.4, place + 0.4], color="black", linewidth=2, label=mark if place == 0 else None)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set(xlim=(0, 1), xlabel="share of the time")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(path, dpi=120)


def scores_by_cost(path: Path, dots: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]], cost: str, score: str) -> None:
    """A dot a name at its cost and its median score, with the spread of its scores; a colour a group, names at the side."""
    names = [(float(np.median(point[1])), name, point[0], group) for group in dots for name, point in dots[group].items()]
    figure, axes = new_figure(figsize=(9, max(4, 0.26 * len(names))))
    colours = {group: f"C{index % 10}" for index, group in enumerate(dots)}
    for group, points in dots.items():
        costs, scores = [point[0] for point in points.values()], [point[1] for point in points.values()]
        _errorbars(axes, costs, scores, color=colours[group], label=group, linestyle="none")
    for line, (median, name, place, group) in enumerate(sorted(names, reverse=True)):
        axes.annotate(
            name,
            (place, median),
            (1.04, 0.98 - 0.96 * line / max(1, len(names) - 1)),  # in the order of scores, so that lines hardly cross
            textcoords="axes fraction",
            va="center",
            fontsize="x-small",
            color=colours[group],
            arrowprops={"arrowstyle": "-", "color": colours[group], "alpha": 0.3, "linewidth": 0.7, "relpos": (0, 0.5)},
        )
    axes.set(xlabel=cost, ylabel=score, xscale="log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter("{x:,.0f}")
    axes.tick_params(axis="x", which="minor", pad=axes.xaxis.get_major_ticks()[0].get_pad(), length=4)
    if dots:  # above, where no line from a dot to its name runs through it
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(dots), fontsize="small", frameon=False)
    figure.savefig(path, dpi=120)


def scores_by_number(path: Path, curve: Mapping[int, Sequence[float]], number: str, score: str) -> None:
    """Median scores with their spread against a number, on a logarithmic axis."""
    figure, axes = new_figure(figsize=(7, 3.6))
    _errorbars(axes, list(curve), list(curve.values()))
    axes.set(xlabel=number, ylabel=score)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(path, dpi=120)


def _errorbars(axes: Any, places: Sequence[float], scores: Sequence[Sequence[float]], **options: Any) -> None:
    """Medians, with bars from the least to the most."""
    medians = [float(np.median(row)) for row in scores]
    spread = [[median - min(row) for median, row in zip(medians, scores, strict=True)]]
    spread += [[max(row) - median for median, row in zip(medians, scores, strict=True)]]
    axes.errorbar(places, medians, yerr=spread, marker="o", capsize=3, **options)
