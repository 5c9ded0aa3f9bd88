"""What is said of an experiment: grids of text and a picture, on the screen, as Markdown, and in brief."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from memformer_torch.reproduce.row import Results, Row


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Lines of text under column heads."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that is said of an experiment's results; drawn from JSON alone, so that it is the same everywhere."""

    title: str
    grids: Sequence[Grid]
    notes: Sequence[str]
    draw: Callable[[Path], None]
    """Writes the picture."""
    brief: Grid
    """For the README."""
    summary: str = ""
    """One sentence below it."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What `memformer reproduce NAME` runs and says."""

    name: str
    rows: Callable[[Results], list[Row]]
    """Those that can be run, given the results that exist: some rows decide on others' settings."""
    report: Callable[[Results], Report]
    draw_samples: Callable[[Results, Path, Path], None] | None = None
    """Called with the folder of runs and the file to write; writes nothing while there is no run to draw with."""


def print_report(report: Report, console: Console) -> None:
    for grid in report.grids:
        screen = Table(*grid.columns, title=grid.title)
        for line in grid.lines:
            screen.add_row(*line)
        console.print(screen)
    for note in report.notes:
        console.print(note, highlight=False)


def find_pictures(folder: Path, name: str) -> list[Path]:
    """What was drawn of an experiment: its results, and samples if there are any."""
    return [path for path in (folder / f"{name}.png", folder / f"{name}-samples.png") if path.exists()]


def as_markdown(report: Report, command: str, pictures: Sequence[Path]) -> str:
    """For a file in the folder of the pictures."""
    parts = [f"# {report.title}", f"Written by `{command}` from the JSON files beside it."]
    for grid in report.grids:
        parts += [f"## {grid.title}", grid_markdown(grid)]
    parts += [*[f"![{report.title}]({path.name})" for path in pictures], *report.notes]
    return "\n\n".join(parts) + "\n"


def grid_markdown(grid: Grid) -> str:
    lines = [grid.columns, ["---"] * len(grid.columns), *grid.lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
