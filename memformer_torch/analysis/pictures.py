"""Pictures of results (extra `[plots]`)."""

from collections.abc import Mapping
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
    axes.set(xscale="log", xlabel="distracting segments between value and question", ylabel="accuracy", ylim=(0, 1.05))
    axes.set_xscale("log", base=2)
    axes.legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=120)
