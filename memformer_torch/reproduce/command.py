"""`memformer reproduce`: what it prints, and how it ends."""

import os
import sys
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.checkpoint import write_durably
from memformer_torch.reproduce.experiments import find_experiment
from memformer_torch.reproduce.plan import Task, as_time, estimate
from memformer_torch.reproduce.report import Experiment, as_markdown, find_pictures, print_report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.runner import Runner
from memformer_torch.runs import build_corpus

WIDTH = 160
"""Of what is printed into a file, where tables have no window to fit."""


def reproduce(
    name: str,
    scale: Literal["cpu", "paper"] = "cpu",
    workers: int | None = None,
    only: str = "",
    runs: Path = Path("runs/reproduce"),
    out: Path = Path("results/quality"),
    list: bool = False,
    render: bool = False,
) -> None:
    """Run an experiment of the paper row by row, and say what was found.

    Rows that have a result are skipped, interrupted ones go on where they were; Ctrl-C stops after an update, with a
    checkpoint. Learning rates are tuned first, in short runs. Everything found is drawn into OUT as Markdown and PNG.

    Args:
        name: Which experiment: table1, table2, horizon or slots of the paper; retention, recall or capacity, which are our own.
        scale: "cpu" is small enough for two cores and some hours; "paper" has the paper's own sizes and budget.
        workers: Rows at a time, each with one thread; by default one a core, at the paper's scale one an accelerator.
        only: Run only the row of this name, with or without its experiment, or rows whose name contains this.
        runs: Folder for runs.
        out: Folder for results, one JSON a row; those of the paper's scale go into its folder "paper".
        list: Only list the rows, their states and what they may cost.
        render: Only draw what is there.
    """
    experiment = find_experiment(name, scale)
    console = Console(markup=False, width=None if sys.stdout.isatty() else WIDTH)
    results = Results(out if scale == "cpu" else out / "paper")
    number = default_workers(scale) if workers is None else workers
    if number < 1:
        raise ValueError(f"workers is {number}, but must be at least 1")
    runner = Runner(experiment.rows, results, runs, number, only)
    tasks = runner.tasks()
    if not tasks:
        raise ValueError(f"{name} has no row whose name contains {only!r}: see memformer reproduce {name} --list")
    if list:
        print_tasks(tasks, results, number, console)
        return
    pictures.new_figure()  # an error now, not after the runs
    if render:
        draw(experiment, results, runs, console, scale)
        return
    check(tasks, only)
    outcome = runner.run(console)
    if outcome.signal is not None:
        console.print(f"Stopped. The same command goes on: {as_command(name, scale, workers, only, runs, out)}", soft_wrap=True)
        raise SystemExit(128 + outcome.signal)
    draw(experiment, results, runs, console, scale)
    if outcome.failures:
        left = sum(task.state != "done" for task in runner.tasks())
        names = ", ".join(outcome.failures)
        console.print(f"Failed: {names}. Without a result: {left} rows.", style="red", soft_wrap=True, highlight=False)
        raise SystemExit(1)


def check(tasks: list[Task], only: str) -> None:
    """That there is something to run, and data for it: an error now, and text is prepared once."""
    if all(task.state == "later" for task in tasks):
        raise ValueError(f"all rows named {only!r} wait for rows that decide on their settings: run those first, or all")
    for data in {repr(task.row.data): task.row.settings()["data"] for task in tasks if task.state != "done"}.values():
        if data:
            build_corpus(data)


def default_workers(scale: str) -> int:
    if scale == "paper" and torch.accelerator.is_available():
        return torch.accelerator.device_count()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_command(name: str, scale: str, workers: int | None, only: str, runs: Path, out: Path) -> str:
    given = {"scale": scale, "workers": workers, "only": only, "runs": runs, "out": out}
    usual = {"scale": "cpu", "workers": None, "only": "", "runs": Path("runs/reproduce"), "out": Path("results/quality")}
    changed = [f"--{option} {value}" for option, value in given.items() if value != usual[option]]
    return " ".join([f"memformer reproduce {name}", *changed])


def print_tasks(tasks: list[Task], results: Results, workers: int, console: Console) -> None:
    """Rows with their states, and what they took or may take."""
    costs = estimate([task.row for task in tasks], results)
    table = Table("row", "state", "rate", "one core", title=f"{tasks[0].row.scale} scale" if tasks else None)
    left = 0.0
    for row, state, share in tasks:
        cost = costs[row.path]
        found = results.get(row)
        left += 0 if state == "done" else (1 - share) * cost
        taken = as_time(found["seconds"]) if found is not None and "seconds" in found else f"about {as_time(cost)}"
        rate = f"{row.train['learning_rate']:g}" if "learning_rate" in row.train and state != "later" else ""
        words = f"interrupted, {share:.0%} done" if state == "interrupted" else state
        table.add_row(row.full_name, words, rate, taken)
    console.print(table)
    done = sum(task.state == "done" for task in tasks)
    console.print(f"{done} of {len(tasks)} rows are done; about {as_time(left / workers)} left, {workers} at a time.")


def draw(experiment: Experiment, results: Results, runs: Path, console: Console, scale: str) -> None:
    """Table, orders and picture of all results that there are."""
    if not any(results.get(row) is not None for row in experiment.rows(results)):
        console.print(f"Nothing to draw: {experiment.name} has no result in {results.folder}.", highlight=False)
        return
    report, folder = experiment.report(results), results.folder
    print_report(report, console)
    folder.mkdir(parents=True, exist_ok=True)
    report.draw(folder / f"{experiment.name}.png")
    if experiment.draw_samples is not None:
        try:
            experiment.draw_samples(results, runs, folder / f"{experiment.name}-samples.png")
        except (ValueError, OSError) as error:  # the data or the runs may be on another machine
            console.print(f"No samples are drawn: {error}", highlight=False)
    command = f"memformer reproduce {experiment.name}" + (f" --scale {scale}" if scale != "cpu" else "")
    pictures = find_pictures(folder, experiment.name)
    file = folder / f"{experiment.name}.md"
    write_durably(file, as_markdown(report, command, pictures))
    stale = [row.name for row in experiment.rows(results) if results.is_stale(row)]
    if stale:
        console.print(f"Left out, since their settings are not those of now: {', '.join(stale)}", highlight=False)
    console.print(f"Written: {', '.join(map(str, [file, *pictures]))}", soft_wrap=True, highlight=False)
