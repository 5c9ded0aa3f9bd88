"""`memformer bench loop`: what training costs beside the gradient method itself."""

import gc
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch import train
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import Seconds
from memformer_torch.data import Stream
from memformer_torch.runs import new_run
from memformer_torch.train import TrainConfig, Trainer, Watcher
from memformer_torch.types import Segment

AROUND = ("stream", "transfer", "clip", "log", "rest")


def loop(settings: Path = Path("configs/digits.yaml"), repeats: int = 15, out: Path = Path("runs/bench/loop.json")) -> None:
    """What the loop around the gradient method costs: an update by the trainer, and the bare one, in turns on the CPU.

    The bare update is gradient method, clipping and optimizer, on segments that are made already. A turn is as many updates
    as one line of metrics. Times are medians of CPU time, in which other processes do not count; give torch one thread.
    Evaluations and checkpoints are left out.

    Args:
        settings: The config of a run.
        repeats: Turns of each.
        out: The JSON file to write.
    """
    console = Console(markup=False)
    config = yaml.safe_load(settings.read_text(encoding="utf-8"))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as progress:
        trainer = new_run(Path(folder), config["model"], config["data"], TrainConfig(**config["train"]), "cpu")
        task = progress.add_task("measuring", total=repeats + 1)
        turns = measure(trainer, repeats, lambda: progress.advance(task))

    length = trainer.config.log_every
    seconds = {name: _seconds([getattr(turn, name) / length for turn in turns]) for name in ("trainer", "bare")}
    parts = {part: _seconds([turn.parts[part] / turn.trainer for turn in turns]) for part in turns[0].parts}
    around = _seconds([sum(turn.parts[part] for part in AROUND) / turn.trainer for turn in turns])
    beside = _seconds([1 - turn.bare / turn.trainer for turn in turns])

    table = Table("", "share of an update", "least", "most", title="an update by part, measured in place")
    for part, share in {**parts, f"around: {', '.join(AROUND)}": around, "trainer against bare": beside}.items():
        table.add_row(part, *(f"{100 * value:.2f} %" for value in share))
    console.print(table)
    console.print(*(f"{name}: {1e3 * taken.median:.1f} ms of CPU an update" for name, taken in seconds.items()), sep="\n")
    command = f"memformer bench loop --settings {settings} --repeats {repeats}"
    record = {
        "command": command,
        "seed": trainer.config.seed,
        "runs": repeats,
        "updates_a_run": length,
        "config": config,
        "cpu_seconds_an_update": {name: taken._asdict() for name, taken in seconds.items()},
        "share_by_part": {part: share._asdict() for part, share in parts.items()},
        "share_around": around._asdict(),
        "share_beside_bare": beside._asdict(),
    }
    write_json(out, record | environment())
    console.print(f"Written: {out}")


class Turn(NamedTuple):
    trainer: float
    bare: float
    parts: dict[str, float]
    """Seconds of the trainer's turn by part; they add up to it."""


def measure(trainer: Trainer, repeats: int, progress: Callable[[], None] = lambda: None) -> list[Turn]:
    """Let the trainer and the bare update take turns, after one of each that does not count."""
    length = trainer.config.log_every
    trainer.config = replace(trainer.config, updates=2**40, schedule="constant", evaluate_every=2**40, checkpoint_every=2**40)
    bare, clock, turns = _bare_updates(trainer, length), Counter[str](), []
    begun, calls = 0.0, 0

    def between() -> bool:  # the trainer asks after each update whether to stop
        nonlocal begun, calls
        if calls % length == 0:
            ended = thread_time()
            parts = dict(clock)
            taken = _run(bare, length)
            if calls > length:  # the first turns warm up
                rest = ended - begun - sum(parts.values())
                turns.append(Turn(ended - begun, taken, parts | {"rest": rest}))
            progress()
            gc.collect()
            clock.clear()
            begun = thread_time()
        calls += 1
        return len(turns) == repeats

    with _timed(trainer, clock):
        trainer.fit(Watcher(should_stop=between))
    return turns


def _run(updates: Iterator[None], count: int) -> float:
    gc.collect()
    start = thread_time()
    for _ in range(count):
        next(updates)
    return thread_time() - start


def _bare_updates(trainer: Trainer, count: int) -> Iterator[None]:
    """Updates of a model of its own, again and again on the first `count` rollouts of the stream."""
    config, corpus, model = trainer.config, trainer.corpus, deepcopy(trainer.model).train()
    sizes = {"batch_size": config.batch_size, "segment_length": model.config.segment_length}
    stream = Stream(corpus["train"], **sizes, loop=True, seed=config.seed, continuous=corpus.continuous)
    optimizer, method = train.make_optimizer(model, config), train.METHODS[config.method]
    rollouts = [[next(stream) for _ in range(config.horizon)] for _ in range(count)]
    clip, parameters = torch.nn.utils.clip_grad_norm_, list(model.parameters())
    state = model.initial_state(config.batch_size)

    def updates() -> Iterator[None]:
        nonlocal state
        for segments in cycle(rollouts):
            _, state = method(model, segments, state)
            clip(parameters, config.max_gradient_norm)
            optimizer.step()
            optimizer.zero_grad()
            yield

    return updates()


@contextmanager
def _timed(trainer: Trainer, clock: Counter[str]) -> Iterator[None]:
    """Adds up on the clock what the parts of the trainer take."""
    method = trainer.config.method
    parts: list[tuple[str, Any, str]] = [
        ("stream", Stream, "__next__"),
        ("stream", Stream, "state_dict"),
        ("transfer", Segment, "to"),
        ("clip", train, "clip_grad_norm_"),
        ("optimizer", trainer.optimizer, "step"),
        ("optimizer", trainer.optimizer, "zero_grad"),
        ("log", trainer, "_log"),
    ]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(train.METHODS, {method: _clocked(train.METHODS[method], "gradient method", clock)}))
        for part, owner, name in parts:
            stack.enter_context(patch.object(owner, name, _clocked(getattr(owner, name), part, clock)))
        yield


def _clocked(function: Callable[..., Any], part: str, clock: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        start = thread_time()
        result = function(*arguments, **named)
        clock[part] += thread_time() - start  # type: ignore[assignment]
        return result

    return call


def _seconds(values: list[float]) -> Seconds:
    return Seconds(statistics.median(values), min(values), max(values))
