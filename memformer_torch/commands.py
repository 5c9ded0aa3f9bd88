"""The commands that train, evaluate and look at data: what they print, and how they stop."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.data import option_names
from memformer_torch.distributed import World
from memformer_torch.evaluate import Evaluation
from memformer_torch.metrics import read_metrics
from memformer_torch.runs import build_corpus, choose_device, new_run, open_run, read_config
from memformer_torch.train import TrainConfig, Trainer, Watcher


def train(
    data: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    train: TrainConfig = TrainConfig(),  # noqa: B008  frozen
    out: Path | None = None,
    resume: Path | None = None,
    device: str = "auto",
) -> None:
    """Train a model; Ctrl-C writes a checkpoint first.

    For example: memformer train --config configs/digits.yaml --model.num_slots 32 --train.horizon 4

    With many processes: torchrun --nproc_per_node 2 -m memformer_torch train ...

    Args:
        data: Which data: --data.name, one of digits, pydocs, mnist, wikitext-2, wikitext-103, enwik8, text, retention, recall,
            copy; --data.root (or $MEMFORMER_DATA); and its own options, which `memformer data NAME` tells.
        model: Which model: --model.name, one of memformer (which it is if not said), decoder, lstm, rmt, transformer-xl,
            compressive; and the fields of its config, as --model.num_slots, which `memformer models --settings NAME` tells.
        train: How to train.
        out: Folder of the run; by default a new one under runs/.
        resume: Folder of a run to go on with; all settings are its own, and others are refused.
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    console = Console(markup=False, quiet=World.join(choose_device(device)).rank > 0)
    if resume is not None:
        _check_own(resume, {"data": data or {}, "model": model or {}, "train": _given(train)}, out)
        trainer = open_run(resume, device)
        console.print(f"Going on with {resume} at update {trainer.update:,} of {trainer.config.updates:,}")
    else:
        data = data or {}
        folder = out or Path("runs") / f"{data.get('name', 'run')}-{time.strftime('%Y%m%d-%H%M%S')}"
        trainer = new_run(folder, model or {}, data, train, device)
    _fit(trainer, console)


def _check_own(run: Path, given: dict[str, dict[str, Any]], out: Path | None) -> None:
    """Raise a ValueError for a setting that is not the run's own: it would be ignored."""
    own = read_config(run)
    for part, settings in given.items():
        for name, value in settings.items():
            there = repr(own[part][name]) if name in own[part] else "not set"
            if there != repr(value):
                raise ValueError(
                    f"{run} goes on with its own settings, and {part}.{name} is {there} there, not {value!r}: "
                    "leave it out, or begin a new run"
                )
    if out not in (None, run):
        raise ValueError(f"{run} goes on in its own folder: leave out --out {out}, or begin a new run")


def _given(config: TrainConfig) -> dict[str, Any]:
    """The settings that are not the defaults."""
    usual = asdict(TrainConfig())
    return {name: value for name, value in asdict(config).items() if value != usual[name]}


def _fit(trainer: Trainer, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    name = type(trainer.model).__name__
    console.print(f"{name}, {parameters:,} parameters, {trainer.corpus.name}, on {trainer.device}: {trainer.run}")
    with signals() as asked, Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=trainer.config.updates, completed=trainer.update)

        def on_update(update: int, line: dict[str, Any]) -> None:
            speed = f"{line['tokens_per_second']:,.0f} tokens/s"
            progress.update(bar, completed=update, description=f"loss {line['loss']:.3f}  {speed}")

        def on_evaluation(update: int, evaluation: Evaluation) -> None:
            console.print(f"update {update:>6,}: valid loss {evaluation.loss:.4f}, perplexity {evaluation.perplexity:.3f}")

        def on_sample(update: int, message: str) -> None:
            if message:
                printable = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in message)  # bytes may be any
                console.print(f"update {update:>6,}: {printable}", highlight=False)

        trainer.fit(Watcher(on_update, on_evaluation, lambda: bool(asked), on_sample))
    if trainer.update < trainer.config.updates:
        console.print(f"Stopped after update {trainer.update:,}. To go on: memformer train --resume {trainer.run}")
        raise SystemExit(128 + (asked or [signal.SIGTERM])[0])  # another process may have been asked
    if trainer.world.rank == 0:
        try:
            pictures.loss_curve(trainer.run / "loss.png", read_metrics(trainer.run))
        except ImportError as error:  # the run is whole without
            console.print(f"The loss is not drawn: {error}")
    console.print(f"Done. memformer evaluate {trainer.run} --split test")


@contextmanager
def signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask the loop to stop at the end of an update; a second one stops at once."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def evaluate(run: Path, split: str = "test", checkpoint: str = "best", json: bool = False, device: str = "auto") -> None:
    """Cross-entropy, perplexity and bits a token of a trained model on a split.

    Args:
        run: Folder of the run.
        split: train, valid or test.
        checkpoint: "best" (lowest validation loss) or "last".
        json: Print JSON.
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    trainer = open_run(run, device, checkpoint)
    console = Console(markup=False, stderr=json, quiet=trainer.world.rank > 0)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"reading {split}", total=trainer.corpus[split].num_tokens)
        found = trainer.evaluate(split, progress=lambda tokens: progress.advance(bar, tokens))
    record = {
        "run": str(run),
        "split": split,
        "checkpoint": checkpoint,
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits": found.bits,
        "seconds": round(found.seconds, 2),
    }
    if json and trainer.world.rank == 0:
        print(dumps(record))
    if json:
        return
    table = Table("split", "tokens", "loss (nats)", "perplexity", "bits a token", "tokens/s")
    speed = f"{found.tokens / found.seconds:,.0f}"
    table.add_row(split, f"{found.tokens:,}", f"{found.loss:.4f}", f"{found.perplexity:.3f}", f"{found.bits:.4f}", speed)
    console.print(table)


def data(name: str, root: Path | None = None, options: dict[str, Any] | None = None) -> None:
    """What a dataset holds: where it was found, its sizes, and a sample.

    Args:
        name: digits, pydocs, mnist, wikitext-2, wikitext-103, enwik8, text, retention, recall or copy.
        root: The folder that holds the datasets' folders; else $MEMFORMER_DATA.
        options: The dataset's own options, as {"path": "book.txt"} for text; in training they are --data.path and so on.
    """
    corpus = build_corpus({"name": name, "root": root} | (options or {}))
    console = Console(markup=False)
    table = Table("split", "documents", "tokens", title=f"{corpus.name}: {corpus.vocab_size:,} different tokens")
    for split, sizes in corpus.sizes().items():
        table.add_row(split, f"{sizes['documents']:,}", f"{sizes['tokens']:,}")
    console.print(table)
    for fact, value in corpus.facts.items():
        console.print(f"{fact}: {value}", highlight=False)
    own = ", ".join(f"--data.{option}" for option in option_names(name)) or "none"
    console.print(f"its own options in training: {own}", highlight=False)
    first = corpus["train"][0][: 28 * 28]
    console.print("The first training document begins:")
    if corpus.tokenizer is not None:
        console.print(corpus.tokenizer.decode(first[:200].tolist()), highlight=False)
    elif corpus.image_shape is not None:
        shades, (height, width) = " .:-=+*#%@", corpus.image_shape
        for row in first[: height * width].reshape(height, width):
            console.print("".join(2 * shades[int(v) * 9 // max(1, corpus.vocab_size - 1)] for v in row))
    else:
        console.print(str(first[:40].tolist()))
