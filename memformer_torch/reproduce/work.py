"""A row that trains a model on a corpus, resumed where it was stopped; and what its result says."""

import io
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import asdict
from math import exp, inf
from pathlib import Path
from typing import Any

from memformer_torch.bench.flops import Sizes, head_flops, segment_flops
from memformer_torch.bench.record import write_json
from memformer_torch.models import MODELS
from memformer_torch.reproduce.row import Reporter, Row
from memformer_torch.runs import new_run, open_run, read_config
from memformer_torch.train import TrainConfig, Trainer, Watcher

FAR = 1 << 20
"""Tokens after which every memory is full."""
TIMES = 4
"""An update's cost a token, relative to evaluation's: forward twice (MRBP's two passes) and backward."""


class Stopped(Exception):  # noqa: N818  nothing went wrong
    """Asked to stop while a split was read."""


def train_row(row: Row, folder: Path, report: Reporter, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    """Train, then read the test split with the weights of the lowest validation loss; a tuning row reads no test split."""
    start = time.perf_counter()
    with redirect_stderr(io.StringIO()):  # loading has bars of its own, which would run through those of the rows
        trainer = begin(row, folder)
    clock = Clock(folder / "seconds.json", start)
    updates, config = trainer.config.updates, trainer.config
    tokens = 0 if row.tuning else trainer.corpus["test"].num_tokens
    an_update = TIMES * config.batch_size * config.horizon * trainer.model.config.segment_length
    total = updates + tokens / an_update

    def on_update(update: int, line: dict[str, Any]) -> None:
        clock.save()
        report(update, total, f"loss {line['loss']:.3f}")

    report(trainer.update, total, "")
    trainer.fit(Watcher(on_update, should_stop=should_stop))
    clock.save()
    if trainer.update < updates:
        return None
    measured: dict[str, Any] = {"valid": score(trainer.best) | {"most_tokens": config.evaluate_tokens}, "test": None}
    if not row.tuning:
        if trainer.best == inf:
            raise ValueError("training diverged: no validation loss was a number")
        trainer.load_weights("best")
        done = 0

        def on_tokens(number: int) -> None:
            nonlocal done
            done += number
            if should_stop():
                raise Stopped
            report(updates + done / an_update, total, "reading the test split")

        try:
            evaluation = trainer.evaluate("test", progress=on_tokens)
        except Stopped:
            return None
        finally:
            clock.save()
        measured["test"] = score(evaluation.loss) | {"tokens": evaluation.tokens}
    facts = {"updates": updates, "tokens": trainer.tokens, "seconds": clock.seconds, **sizes(row, trainer.model), **measured}
    return row.result(**facts, configs={"model": asdict(trainer.model.config), "train": asdict(config)})


def begin(row: Row, folder: Path) -> Trainer:
    """The row's run where it was left; a folder of other settings is begun again, and one that is no run is an error."""
    config = TrainConfig(**row.train, seed=row.seed)
    device = "auto" if row.scale == "paper" else "cpu"  # at cpu scale a seed is the same run on every machine
    if is_begun(row, folder):
        return open_run(folder, device)
    clear(folder, "config.yaml", "vocabulary.json")
    settings = row.settings()
    return new_run(folder, settings["model"], settings["data"], config, device)


def clear(folder: Path, *first: str) -> None:
    """Remove a run of other settings, known by the files that runs begin with; a folder that is no run is an error."""
    if not folder.exists():
        return
    names = [path.name for path in folder.iterdir()]
    if names and not any(name.startswith(first) for name in names):
        raise ValueError(f"{folder} is there already, and is not a run: choose another --runs")
    shutil.rmtree(folder)


def is_begun(row: Row, folder: Path) -> bool:
    """Whether a folder holds a run of the row's settings, wherever it was stopped."""
    if not (folder / "config.yaml").exists():
        return False
    found = read_config(folder)
    try:
        config = TrainConfig(**found["train"])  # a field that is newer than the run has its default
    except (ValueError, TypeError):  # one that is no more
        return False
    settings = row.settings()
    same = all(found[part] == settings[part] for part in ("data", "model"))
    return same and config == TrainConfig(**row.train, seed=row.seed)


def score(loss: float) -> dict[str, float]:
    """Where a loss is infinite, since training diverged, the largest whose perplexity is a number."""
    loss = min(loss, 700.0)
    return {"loss": loss, "perplexity": exp(loss)}


class Clock:
    """Seconds that a row has taken, those before an interruption included, whether or not their work was kept."""

    def __init__(self, path: Path, start: float) -> None:
        self._path, self._start = path, start
        try:
            self._before = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            self._before = 0.0

    @property
    def seconds(self) -> float:
        return round(self._before + time.perf_counter() - self._start, 1)

    def save(self) -> None:
        write_json(self._path, {"seconds": self.seconds})


def sizes(row: Row, model: Any) -> dict[str, Any]:
    """Parameters, with and without the vocabulary's; the numbers of a sequence's state; FLOPs at batch 1."""
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}
    state = sum(member.numel() for member in model.initial_state(1) if member.is_floating_point())
    if hasattr(model.config, "max_length"):  # a cache that grows: at its full length, keys and values of every layer
        state = 2 * model.config.num_layers * model.config.max_length * model.config.d_model
    segments, unit = read_sizes(row, model.config)
    return {
        "parameters": sum(number for name, number in parameters.items() if not name.startswith("embedding.")),
        "parameters_with_embedding": sum(parameters.values()),
        "state_floats": state,
        "flops": {
            "of": unit,
            "model": count_model_flops(row),
            "head": sum(head_flops(model.config, size.target) for size in segments),
        },
    }


def read_sizes(row: Row, config: Any) -> tuple[list[Sizes], str]:
    """The segments over which FLOPs are counted, and their name."""
    size = row.segment or config.segment_length
    if row.length is None:
        return [Sizes(1, size, size, min(FAR, getattr(config, "max_length", FAR) - size))], f"a segment of {size} tokens"
    starts = range(0, row.length, size)
    return [Sizes(1, size, min(size, row.length - start), start) for start in starts], f"a document of {row.length} tokens"


def count_model_flops(row: Row) -> int:
    """A forward pass without the head, which is the same for all models of one width; needs neither model nor data."""
    settings: Mapping[str, Any] = {"name": "memformer", **row.model}
    cutoffs = settings.get("cutoffs", ())
    config = MODELS[settings["name"]][0](
        vocab_size=max(cutoffs, default=0) + 1, **{key: value for key, value in settings.items() if key != "name"}
    )
    return sum(segment_flops(settings["name"], config, size, head=False) for size in read_sizes(row, config)[0])
