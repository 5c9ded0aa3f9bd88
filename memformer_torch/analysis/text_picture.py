"""Text whose pieces stand on a ground as strong as their weight, as PNG (extra `[plots]`)."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from memformer_torch.analysis.pictures import new_figure
from memformer_torch.analysis.slot_pictures import COLOURS, save
from memformer_torch.analysis.token_text import Piece, visible

LINE = 92
"""Columns of a line."""
MOST_LINES = 40
Line = list[tuple[int, str, float]]
"""Column, text and weight of each piece."""


def coloured_text(path: Path, paragraphs: Sequence[tuple[str, Sequence[Piece]]]) -> None:
    """Texts under their headings; the strongest ground is that of the heaviest piece."""
    heaviest = max((piece.weight for _, parts in paragraphs for piece in parts), default=0.0) or 1.0
    rows: list[tuple[str, Line]] = []  # a heading, or a line
    for heading, parts in paragraphs:
        rows += [(heading, []), *(("", line) for line in lay_out(parts))]
    rows = rows if len(rows) <= MOST_LINES else [*rows[:MOST_LINES], ("…", [])]
    figure, axes = new_figure(figsize=(9, 0.25 * len(rows) + 0.1))
    from matplotlib.patches import Rectangle

    axes.set_axis_off()
    axes.set(xlim=(0, LINE), ylim=(len(rows), 0))
    for y, (heading, line) in enumerate(rows):
        axes.text(0, y + 0.5, heading, fontsize=9.5, fontweight="bold", va="center", parse_math=False)
        for x, text, weight in line:
            ground = (x, y + 0.06), columns(text), 0.88
            axes.add_patch(Rectangle(*ground, facecolor=COLOURS["take"], alpha=0.8 * weight / heaviest, linewidth=0))
            place = x + columns(text) / 2
            axes.text(
                place, y + 0.5, text, fontsize=11, family="monospace", ha="center", va="center_baseline", parse_math=False
            )
    save(figure, path)


def lay_out(parts: Sequence[Piece]) -> list[Line]:
    """Pieces in lines of at most LINE columns; a line break in the text is shown, and breaks the line."""
    lines: list[Line] = [[]]
    column = 0
    for piece in parts:
        text = visible(piece.text.strip(" "))[:LINE] or " "
        column += 1 if column and piece.text[0] == " " and piece.text.strip(" ") else 0
        if column + columns(text) > LINE:
            lines.append([])
            column = 0
        lines[-1].append((column, text, piece.weight))
        column += columns(text)
        if piece.text.endswith("\n"):
            lines.append([])
            column = 0
    return [line for line in lines if line]


def columns(text: str) -> int:
    """Columns that a text takes in a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
