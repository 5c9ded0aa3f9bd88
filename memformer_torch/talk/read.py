"""`memformer read`: files of any size in constant memory."""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from json import dumps
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from memformer_torch.commands import signals
from memformer_torch.evaluate import Evaluation
from memformer_torch.session import Session
from memformer_torch.talk.opening import STANDARD_INPUT, check_place, feed_file, open_session, watched


def read(
    run: Path,
    files: list[Path],
    session: Path | None = None,
    save: Path | None = None,
    start: int = 0,
    json: bool = False,
    checkpoint: str = "best",
    device: str = "auto",
) -> None:
    """Read text of any size by a trained model, in constant memory: how well it predicts it, and how little it then holds.

    Files are read one after another, as one document. Ctrl-C stops, saves the session if --save is given, and says how to go
    on. For example, to ask after a book:

    memformer read runs/books book.txt --save book.session

    memformer generate runs/books --session book.session --prompt "In the end"

    Args:
        run: Folder of the run.
        files: UTF-8 files; "-" is standard input.
        session: Saved session to go on from.
        save: File for the session as it is at the end.
        start: Byte of the first file to begin at.
        json: Print JSON.
        checkpoint: "best" (lowest validation loss) or "last".
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    check_place(save)
    num_bytes = count_bytes(files, start)
    reader = open_session(run, session, checkpoint, device)
    before, begin, score = reader.position, time.perf_counter(), 0.0
    index, done, problem = 0, start, None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(markup=False, stderr=True), transient=True, disable=not watched())
    with signals() as asked, bars as progress:
        bar = progress.add_task("reading", total=num_bytes)
        try:
            for index, done, new, more in feed_files(reader, files, start):  # noqa: B007  where it stops
                score += more
                speed = (reader.position - before) / (time.perf_counter() - begin)
                progress.update(bar, advance=new, description=f"{files[index].name}  {speed:,.0f} tokens/s")
                if asked:
                    break
        except (ValueError, OSError) as error:  # what was read may still be saved
            problem = error
        tokens, seconds = reader.position - before, time.perf_counter() - begin
        if save is not None:
            reader.save(save)
    if problem is not None:
        kept = "" if save is None else f", and are in {save}"
        raise ValueError(f"{problem} ({tokens:,} tokens before it were read{kept})") from problem
    if asked:
        print(_how_to_go_on(run, files[index:], done, tokens, save), file=sys.stderr)
        raise SystemExit(128 + asked[0])
    if tokens == 0:
        raise ValueError(f"there is no text in {', '.join(map(str, files))}")
    found, speed = Evaluation(loss=-score / tokens, tokens=tokens, seconds=seconds), tokens / seconds
    if json:
        record = {"run": str(run), "checkpoint": checkpoint, "files": [str(path) for path in files], "tokens": tokens}
        record |= {"loss": found.loss, "perplexity": found.perplexity, "bits": found.bits, "seconds": round(seconds, 2)}
        record |= {"tokens_per_second": round(speed, 1), "position": reader.position}
        print(dumps(record | {"state_bytes": reader.state_bytes, "grows": reader.grows}))
        return
    table = Table("tokens", "perplexity", "bits a token", "tokens/s", "state in bytes")
    state = f"{reader.state_bytes:,}{', growing' if reader.grows else ''}"
    table.add_row(f"{tokens:,}", f"{found.perplexity:.3f}", f"{found.bits:.4f}", f"{speed:,.0f}", state)
    Console(markup=False).print(table)


def count_bytes(files: Sequence[Path], start: int) -> int | None:
    """How many there are to read, None if that is not known; a file that is not there is an error before the work."""
    sizes = [0 if path == STANDARD_INPUT else path.stat().st_size for path in files]
    if not 0 <= start <= sizes[0]:
        where = "standard input is read from where it is" if files[0] == STANDARD_INPUT else f"{files[0]} has {sizes[0]} bytes"
        raise ValueError(f"--start is {start}, but {where}")
    return None if STANDARD_INPUT in files else sum(sizes) - start


def feed_files(session: Session, files: Sequence[Path], start: int) -> Iterator[tuple[int, int, int, float]]:
    """For each piece its file's index, how many bytes of that are read, how many are new, and the log-probability."""
    for index, path in enumerate(files):
        before = start if index == 0 else 0
        for done, score in feed_file(session, path, before):
            yield index, done, done - before, score
            before = done


def _how_to_go_on(run: Path, files: Sequence[Path], done: int, tokens: int, save: Path | None) -> str:
    stopped = f"Stopped at byte {done} of {files[0]}, after {tokens:,} tokens."
    if save is None:
        return f"{stopped} Nothing was kept: that needs --save."
    if files[0] == STANDARD_INPUT:
        return f"{stopped} To go on with what comes after: --session {shlex.quote(str(save))}"
    options = ["--start", str(done), "--session", str(save), "--save", str(save)]
    return f"{stopped} To go on: {shlex.join(['memformer', 'read', str(run), *map(str, files), *options])}"
