"""What is to be run: which rows, in which state, and how long they may take."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from memformer_torch.checkpoint import find_checkpoint
from memformer_torch.reproduce import tasks
from memformer_torch.reproduce.row import Results, Row
from memformer_torch.reproduce.work import count_model_flops, is_begun, train_row
from memformer_torch.train import TrainConfig

SECONDS_A_FLOP = 1.5e-10
"""Of training, a FLOP of one forward pass: what small models take on one core, until rows of the same family are measured."""


class Task(NamedTuple):
    """A row as it stands."""

    row: Row
    state: str
    """done, stale, interrupted, to do; or later: after rows that decide its settings."""
    share: float
    """Of its updates that are done."""


def run_folder(runs: Path, row: Row) -> Path:
    return runs / row.scale / row.experiment / row.name


def plan(rows: Callable[[Results], list[Row]], results: Results, runs: Path) -> list[Task]:
    """All rows, those included that are not known before others have a result: found by pretending that they have."""
    now = rows(results)
    found = {row.path: _look_at(row, results, runs) for row in now}
    pretended = results
    while True:
        pretended = pretended.pretend(row for row in now if results.get(row) is None)
        now = [row for row in rows(pretended) if row.path not in found]
        if not now:
            return list(found.values())
        found |= {row.path: Task(row, "later", 0.0) for row in now}


def _look_at(row: Row, results: Results, runs: Path) -> Task:
    if results.get(row) is not None:
        return Task(row, "done", 1.0)
    folder = run_folder(runs, row)
    begun = is_begun(row, folder) if row.work is train_row else tasks.is_begun(row, folder)
    if begun and (folder / "last.json").exists():
        updates = row.train["updates"] or 1  # a row may only read
        return Task(row, "interrupted", int(find_checkpoint(folder).name) / updates)
    return Task(row, "stale" if results.is_stale(row) else "to do", 0.0)


def estimate(rows: Sequence[Row], results: Results) -> dict[Path, float]:
    """Seconds that each row takes on one core: a guess, corrected by what rows of its family took, or of any."""
    factors: dict[str, list[float]] = {}
    for row in rows:
        if (found := results.get(row)) is not None and "seconds" in found:
            factors.setdefault(row.family, []).append(found["seconds"] / guess(row))
    every = [factor for family in factors.values() for factor in family] or [1.0]
    return {row.path: median(factors.get(row.family, every)) * guess(row) for row in rows}


def guess(row: Row) -> float:
    """Seconds by the FLOPs of all tokens that are trained on; what is not training says itself."""
    if row.work is not train_row:
        return row.seconds
    config, size = TrainConfig(**row.train), row.model["segment_length"]
    tokens = config.updates * config.accumulate * config.batch_size * config.horizon * size
    return SECONDS_A_FLOP * tokens * count_model_flops(row) / (row.length or row.segment or size)


def as_time(seconds: float) -> str:
    """For people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
