"""Pictures of results (extra `[plots]`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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
    """Accuracy against distance on a logarithmic axis, one line a name; what training saw is shaded."""
    figure, axes = new_figure(figsize=(7, 3.6))
    for name, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), marker="o", label=name)
    axes.axvspan(min(min(curve) for curve in curves.values()), trained, alpha=0.12, label=f"seen in training (up to {trained})")
    axes.axhline(chance, linestyle=":", color="grey", label="chance")
    axes.set(xlabel="distracting segments between value and question", ylabel="accuracy", ylim=(0, 1.05))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="center right", fontsize="small")
    figure.savefig(path, dpi=120)


def loss_curve(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Training and validation loss against updates, from the lines of metrics.jsonl."""
    figure, axes = new_figure(figsize=(7, 3.6))
    for name, label in (("loss", "training"), ("valid_loss", "validation")):
        points = [(line["update"], line[name]) for line in lines if name in line]
        axes.plot(*zip(*points, strict=True), label=label, marker="o" if name == "valid_loss" else None)
    axes.set(xlabel="update", ylabel="cross-entropy a token (nats)")
    axes.legend()
    figure.savefig(path, dpi=120)


def image_rows(path: Path, rows: Mapping[str, Any], levels: int) -> None:
    """Rows of images, one a name: arrays (N, height, width) of whole numbers below `levels`."""
    figure, _ = new_figure(figsize=(7, 0.8 * len(rows) + 0.3))
    figure.clear()
    axes = figure.subplots(len(rows), len(next(iter(rows.values()))), squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for place, image in zip(line, images, strict=True):
            place.imshow(image, cmap="gray_r", vmin=0, vmax=levels - 1)
            place.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
    figure.savefig(path, dpi=120)
