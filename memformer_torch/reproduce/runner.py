"""Rows in worker processes: bars, stops, failures. Which rows there are is asked anew whenever one has ended."""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.progress import Task as Bar
from rich.text import Text

from memformer_torch.bench.record import write_json
from memformer_torch.commands import signals
from memformer_torch.reproduce.plan import Task, as_time, estimate, plan, run_folder
from memformer_torch.reproduce.row import Reporter, Results, Row
from memformer_torch.workers import Ended, Parent, Workers

try:
    import fcntl
except ImportError:  # not on Windows: nothing keeps two commands from running the same row there
    fcntl = None  # type: ignore[assignment]

LOOK_EVERY = 0.2
"""Seconds after which a signal is noticed at the latest."""
SAY_EVERY = 60.0
"""Seconds between lines about a row, where there is no terminal to draw bars on."""


class Progressed(NamedTuple):
    done: float
    total: float
    words: str


class Done(NamedTuple):
    result: dict[str, Any] | None
    """None if it was asked to stop."""


class Failed(NamedTuple):
    reason: str


class Outcome(NamedTuple):
    """How it ended."""

    failures: dict[str, str]
    """Row -> why, in a line."""
    signal: int | None
    """That asked for a stop."""


class Running(NamedTuple):
    row: Row
    bar: TaskID
    place: int
    """Among the workers, from 0 on."""


class Runner:
    """Runs what `rows` asks for and has no result, `num_workers` at a time; only those whose name is `only` or, if none is,
    contains it."""

    def __init__(
        self, rows: Callable[[Results], list[Row]], results: Results, runs: Path, num_workers: int, only: str = ""
    ) -> None:
        self.rows, self.results, self.runs, self.num_workers, self.only = rows, results, runs, num_workers, only
        self.failures: dict[str, str] = {}
        self._running: dict[str, Running] = {}
        self._ended: set[str] = set()  # they are not begun twice
        self._left: dict[str, float] = {}  # seconds of each row that is not done
        self._num_rows = 0
        self._said = time.monotonic()

    def tasks(self) -> list[Task]:
        tasks = plan(self.rows, self.results, self.runs)
        exactly = [task for task in tasks if self.only in (task.row.name, task.row.full_name)]
        return exactly or [task for task in tasks if self.only in task.row.full_name]

    def run(self, console: Console) -> Outcome:
        """Until nothing is left to run, or a signal comes: each row then ends its update and writes a checkpoint."""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeLeft())
        self.console = console
        with signals() as asked, Progress(*columns, console=console) as self.bars, Workers() as workers:
            self._whole = self.bars.add_task("all rows")
            self._start(workers)
            while workers:
                if asked:
                    workers.stop()
                    console.print("Stopping: each row ends its update and writes a checkpoint. Once more stops at once.")
                    while workers:
                        self._listen(workers, stopping=True)
                elif self._listen(workers):
                    self._start(workers)
            self.bars.remove_task(self._whole)
        return Outcome(self.failures, asked[0] if asked else None)

    def _start(self, workers: Workers) -> None:
        """Begin as many rows as there are workers free."""
        tasks = self.tasks()
        costs = estimate([task.row for task in tasks], self.results)
        self._num_rows = len(tasks)
        self._left = {task.row.name: (1 - task.share) * costs[task.row.path] for task in tasks if task.state != "done"}
        for task in tasks:
            row, name = task.row, str(task.row.path)
            if task.state in ("done", "later") or name in self._running or name in self._ended:
                continue
            if len(workers) >= self.num_workers:
                break
            place = min(set(range(self.num_workers)) - {running.place for running in self._running.values()})
            self._running[name] = Running(row, self.bars.add_task(row.name, total=None), place)
            workers.start(name, work, row, run_folder(self.runs, row), place)
        self._show_whole()

    def _listen(self, workers: Workers, stopping: bool = False) -> bool:
        """Hear what workers say; whether one has ended."""
        ended = False
        for name, message in workers.messages(LOOK_EVERY):
            row, bar, _ = self._running[name]
            if isinstance(message, Progressed):
                words = f"{row.name}  {message.words}"
                self.bars.update(bar, completed=message.done, total=message.total, description=words)
            elif isinstance(message, Failed):
                self._fail(row, message.reason)
            elif isinstance(message, Done) and message.result is not None:
                write_json(self.results.folder / row.path, message.result)
                self._say(row, message.result)
            elif isinstance(message, Done) and not stopping:
                self._fail(row, "its process was asked to stop; the same command goes on with it")
            elif isinstance(message, Ended):
                if message.exitcode and not stopping:
                    self._fail(row, f"its process ended with exit code {message.exitcode}")
                self.bars.remove_task(bar)
                del self._running[name]
                self._ended.add(name)
                ended = True
        self._show_whole()
        if not self.console.is_terminal and time.monotonic() - self._said >= SAY_EVERY:
            self._say_where()
        return ended

    def _say_where(self) -> None:
        """The bars as lines, for a log."""
        self._said = time.monotonic()
        for bar in self.bars.tasks:
            words = f"{bar.description}  {bar.percentage:.0f} %  {TimeLeft().render(bar)}"
            self.console.print(words.rstrip(), highlight=False, soft_wrap=True)

    def _say(self, row: Row, result: dict[str, Any]) -> None:
        split = "valid" if row.tuning else "test"
        perplexity = (result.get(split) or {}).get("perplexity")
        found = "" if perplexity is None else f", {split} perplexity {perplexity:.4g}"
        self.console.print(f"{row.name}: done{found}, {as_time(result.get('seconds', 0.0))}", highlight=False)

    def _fail(self, row: Row, reason: str) -> None:
        self.failures[row.name] = reason
        self.console.print(f"{row.name} failed: {reason}", style="red", highlight=False, soft_wrap=True)

    def _show_whole(self) -> None:
        """Time left of everything, rows included that are known only when others have ended."""
        left = dict(self._left)
        for row, bar, _ in self._running.values():
            seen = self.bars.tasks[self.bars.task_ids.index(bar)]
            if seen.time_remaining is not None:
                left[row.name] = seen.time_remaining
        done = self._num_rows - len(left)
        text = as_time(sum(left.values()) / self.num_workers)
        words = f"all rows  {done} of {self._num_rows}"
        self.bars.update(self._whole, completed=done, total=self._num_rows, description=words, left=text)


class TimeLeft(ProgressColumn):
    """What the task says, or else by its speed so far."""

    def render(self, task: Bar) -> Text:
        left = task.time_remaining
        text = task.fields.get("left") or (None if left is None else as_time(left))
        return Text("" if text is None else f"about {text} left", style="progress.remaining")


def work(parent: Parent, row: Row, folder: Path, place: int) -> None:
    """In a worker: run a row, and say what became of it. A failure's traceback is left beside the folder."""
    if row.scale == "paper" and torch.accelerator.is_available():
        torch.accelerator.set_device_index(place % torch.accelerator.device_count())
    error_file = folder.with_name(folder.name + ".error.txt")

    def report(done: float, total: float, words: str) -> None:
        parent.send(Progressed(done, total, words))

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder, report, parent.should_stop):
            result = None
            if not parent.should_stop():
                error_file.unlink(missing_ok=True)
                result = row.work(row, folder, report, parent.should_stop)
        parent.send(Done(result))
    except Exception as error:
        error_file.write_text(traceback.format_exc(), encoding="utf-8")
        parent.send(Failed(f"{' '.join(str(error).split()) or type(error).__name__} ({error_file})"))


@contextmanager
def alone(folder: Path, report: Reporter, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Wait until no other process has the row: one that a killed command has left writes a last checkpoint first."""
    with folder.with_name(folder.name + ".lock").open("a") as file:
        while fcntl is not None and not should_stop():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(0, 1, "waits for another process")
                time.sleep(LOOK_EVERY)
        yield
