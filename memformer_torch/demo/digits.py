"""Two models on handwritten digits side by side: the same Memformer with its memory and without."""

import io
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.bench.record import environment, write_json
from memformer_torch.evaluate import complete
from memformer_torch.runs import new_run, open_run, read_config
from memformer_torch.train import TrainConfig, Trainer, Watcher
from memformer_torch.types import PAD
from memformer_torch.workers import Ended, Parent, Workers

DATA = {"name": "digits"}
SIZES = {
    "name": "memformer",
    "d_model": 64,
    "num_heads": 4,
    "d_ff": 128,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "segment_length": 8,  # one row of pixels: what is further up is in the memory, or nowhere
    "num_cls_tokens": 4,
    "dropout": 0.0,
}
MODELS: dict[str, dict[str, Any]] = {"Memformer": SIZES | {"num_slots": 8}, "without memory": SIZES | {"num_slots": 0}}
TRAIN = TrainConfig(
    batch_size=16, horizon=8, learning_rate=3e-3, warm_up=30, evaluate_every=100, checkpoint_every=100, log_every=5
)
SIDE, LEVELS, NUM_IMAGES, NUM_PRINTED = 8, 17, 10, 3
TEMPERATURE = 0.5
SHADES = " ░▒▓█"


def digits(updates: int = 450, seed: int = 0, out: Path = Path("runs/digits")) -> None:
    """Train a Memformer and the same model without memory on handwritten digits, side by side.

    Each digit of 8 x 8 pixels is a sequence of 64 tokens, read in segments of one row. Prints the test perplexity of both, and
    draws test digits that each completes from their top half, here and in OUT/digits.png. OUT then holds two runs for
    `memformer evaluate`; runs of this demo that are there already are replaced.

    Args:
        updates: Training updates of each.
        seed: Seed of weights and data.
        out: Folder for what the demo writes.
    """
    console, start = Console(markup=False), time.perf_counter()
    torch.set_num_threads(1)  # one for each model, here as in training: a seed is one run
    config = replace(TRAIN, updates=updates, seed=seed)
    pictures.new_figure()  # an error now, not after the training
    folders = begin_runs(out, config)
    train_side_by_side(folders, updates, console)

    with _quiet():
        runs = {name: open_run(folder, "cpu", "best") for name, folder in folders.items()}
    found = {name: run.evaluate("test") for name, run in runs.items()}
    images = complete_images(runs, seed)
    table = Table("model", "test perplexity", "bits a pixel", title="Handwritten digits, predicted pixel by pixel")
    for name, evaluation in found.items():
        table.add_row(name, f"{evaluation.perplexity:.3f}", f"{evaluation.bits:.3f}")
    console.print(table)
    console.print(as_text(images), highlight=False)
    pictures.image_rows(out / "digits.png", images, LEVELS)
    seconds = time.perf_counter() - start
    record = {
        "command": f"memformer demo digits --updates {updates} --seed {seed}",
        "seed": seed,
        "runs": 1,
        "models": MODELS,
        "training": asdict(config),
        "checkpoint": "best",
        "seconds": round(seconds, 1),
        "test_perplexity": {name: evaluation.perplexity for name, evaluation in found.items()},
        **environment(),
    }
    write_json(out / "digits.json", record)
    console.print(f"Written: {out / 'digits.json'}, {out / 'digits.png'} ({seconds:.0f} s)")
    command = Path(sys.argv[0]).with_name("memformer")  # by the path of the one that runs, which need not be on PATH
    console.print(f"See its memory on a page: {command} explore {folders['Memformer']}", soft_wrap=True, highlight=False)


def begin_runs(out: Path, config: TrainConfig) -> dict[str, Path]:
    """A new run of each model, in place of one of this demo; a folder of anything else is an error, and nothing is changed."""
    folders = {name: out / name.lower().replace(" ", "-") for name in MODELS}
    for name, folder in folders.items():
        if folder.exists() and any(folder.iterdir()) and not _is_own(folder, MODELS[name], config):
            raise ValueError(f"{folder} is there already, and is not a run of this demo: choose another --out")
    for name, folder in folders.items():
        if folder.exists():
            shutil.rmtree(folder)
        with _quiet():
            new_run(folder, MODELS[name], DATA, config, "cpu")
    return folders


def _is_own(folder: Path, model: dict[str, Any], config: TrainConfig) -> bool:
    """Whether a folder holds a run of this demo, of whatever seed and length."""
    try:
        found = read_config(folder)
        train = TrainConfig(**found["train"])
    except (ValueError, TypeError):
        return False
    same = replace(train, updates=config.updates, seed=config.seed) == config
    return same and found["data"] == DATA and found["model"] == model


def train_side_by_side(folders: Mapping[str, Path], updates: int, console: Console) -> None:
    """Train runs at the same time, a process and a bar each; an end of this process is the end of all."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, Workers() as workers:
        bars = {name: progress.add_task(f"{name:14}  loss  -.---", total=updates) for name in folders}
        for name, folder in folders.items():
            workers.start(name, _train, folder)
        while workers:
            for name, message in workers.messages():
                if not isinstance(message, Ended):
                    update, loss = message
                    progress.update(bars[name], completed=update, description=f"{name:14}  loss {loss:6.3f}")
                elif message.exitcode:
                    raise ChildProcessError(f"training {folders[name]} ended with exit code {message.exitcode}")


def _train(parent: Parent, folder: Path) -> None:
    with _quiet():
        trainer = open_run(folder, "cpu")
    trainer.fit(Watcher(lambda update, line: parent.send((update, line["loss"])), should_stop=parent.should_stop))


def _quiet() -> redirect_stderr[io.StringIO]:
    """Without the bars of loading, which run through those of training: digits load at once."""
    return redirect_stderr(io.StringIO())


def complete_images(runs: Mapping[str, Trainer], seed: int) -> dict[str, np.ndarray]:
    """The first test digits, what is given of them, and what each model makes of that: (N, 8, 8) each, PAD where unknown."""
    corpus = next(iter(runs.values())).corpus
    whole = torch.from_numpy(corpus["test"].ids[: NUM_IMAGES * SIDE**2].astype(np.int64)).view(NUM_IMAGES, SIDE**2)
    given, unknown = whole.tensor_split([SIDE**2 // 2], dim=1)
    rows = {"test digits": whole, "top half given": torch.cat([given, torch.full_like(unknown, PAD)], dim=1)}
    rows |= {name: complete(run.model, given, SIDE**2, TEMPERATURE, seed) for name, run in runs.items()}
    return {name: ids.view(-1, SIDE, SIDE).numpy() for name, ids in rows.items()}


def as_text(rows: Mapping[str, np.ndarray]) -> str:
    """The first images of each row in shades of text, a column a row; what is not given is dotted."""
    lines = ["  ".join(f"{name:^{2 * SIDE}}" for name in rows)]
    for index in range(NUM_PRINTED):
        lines += ["", *("  ".join(_shades(images[index, y].tolist()) for images in rows.values()) for y in range(SIDE))]
    return "\n".join(lines)


def _shades(levels: list[int]) -> str:
    return "".join(2 * (SHADES[level * len(SHADES) // LEVELS] if level != PAD else "·") for level in levels)
