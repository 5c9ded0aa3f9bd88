"""How far a long preparation has come."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the bytes done and the bytes there are in all."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on the terminal: `with progress_bar() as progress: load_corpus("enwik8", progress=progress)`."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Bars(*columns, console=Console(markup=False, stderr=True))  # standard output is for results
    tasks = {}
    with bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=max(done, total))

        yield show
