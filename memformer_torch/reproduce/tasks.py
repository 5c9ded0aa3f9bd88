"""Rows that train on a task drawn afresh for every update, and are read far beyond what training showed.

Documents grow as they are learned: first more distractors, then more pairs, each time the hardest are known. The
loss is that of the answers alone, since neither noise nor questions can be predicted. Every `look_every` updates a separate
reading is looked at; the weights that do best there count, and training ends once nothing is wrong, twice in a row. Models
that read their targets alone are given everything as targets: all are asked for the same.
"""

# Shape letters: B batch, T target tokens

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from memformer_torch.backprop import mrbp
from memformer_torch.checkpoint import (
    find_checkpoint,
    load_facts,
    load_tensors,
    load_weights,
    pack_optimizer,
    point_to,
    save_checkpoint,
    unpack_optimizer,
    write_durably,
)
from memformer_torch.data.recall import Recall
from memformer_torch.data.retention import Retention
from memformer_torch.demo.retention import measure_retention
from memformer_torch.losses import count_tokens
from memformer_torch.reproduce.row import Reporter, Row
from memformer_torch.reproduce.work import Clock, clear, sizes
from memformer_torch.runs import build_model
from memformer_torch.train import find_share
from memformer_torch.types import IGNORE, Segment, TokenLosses

SETTINGS = "settings.json"
UPDATE = 30
"""Distractors that are read in about the time of an update."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a task is trained and read; the fields of a row's `train`."""

    task: str
    """retention or recall."""
    options: Mapping[str, Any]
    """Fields of the task, without its number of pairs."""
    first_pairs: int = 1
    """Pairs that training begins with."""
    pairs: int = 1
    """Most pairs in training, and those that are looked at."""
    distractors: int = 8
    """Most distracting segments in training."""
    updates: int
    """The most; 0 only reads, with the weights of `start`."""
    batch_size: int
    learning_rate: float
    shares: Mapping[str, float] = field(default_factory=dict)
    """As in TrainConfig: parameters that are small need a small share, or they are lost within a few updates."""
    warm_up: int = 100
    learned: float = 0.1
    """A loss of the hardest documents below this makes them harder."""
    look_every: int = 100
    look_at: tuple[int, ...] = (8, 64)
    """Distractors of the readings that are looked at."""
    start: str = ""
    """The row whose best weights training starts from, parts that only its model has left out; none: fresh ones."""
    read: Mapping[str, tuple[int, ...]]
    """For each number of pairs, as a string: at how many distractors accuracy is measured in the end."""

    def of(self, pairs: int, everything: bool) -> Retention | Recall:
        """The task with this many pairs; with `everything` as targets, or questions alone."""
        if self.task == "retention":
            return Retention(**self.options, predict_all=everything)
        queries = min(pairs, (self.options["segment_length"] - 1) // 2)
        options = {**self.options, "pairs_per_segment": min(pairs, self.options["pairs_per_segment"])}
        return Recall(**options, num_pairs=pairs, num_queries=queries, predict_all=everything)


@dataclass
class Level:
    """The hardest documents that are drawn."""

    pairs: int = 1
    distractors: int = 0

    def draw(self, recipe: Recipe, generator: torch.Generator) -> tuple[int, int]:
        """Pairs and distractors of the next documents: mostly the most pairs; once all is learned, mostly many distractors."""
        draws = 3 if self == Level(recipe.pairs, recipe.distractors) else 1
        distractors = int(torch.randint(self.distractors + 1, (draws,), generator=generator).max())
        fewer, share = torch.randint(1, self.pairs + 1, (), generator=generator), torch.rand((), generator=generator)
        return (self.pairs if share < 0.7 else int(fewer)), distractors

    def learn(self, recipe: Recipe, pairs: int, distractors: int, loss: float) -> None:
        """Harder, if the hardest were just learned: one distractor more, then one pair up to four, then two."""
        if loss >= recipe.learned or (pairs, distractors) != (self.pairs, self.distractors):
            return
        if self.distractors < recipe.distractors:
            self.distractors += 1
        elif self.pairs < recipe.pairs:
            self.pairs = min(recipe.pairs, self.pairs + (1 if self.pairs < 4 else 2))


class AnswersOnly(nn.Module):
    """A model with the losses of the answers alone, whatever else is a target."""

    def __init__(self, model: Any, task: Retention | Recall, segments: Sequence[Segment]) -> None:
        super().__init__()
        self.model, self.task = model, task
        targets, answers = (
            sum(int(count(segment.target)) for segment in segments)
            for count in (count_tokens, lambda target: task.answers(target).sum())
        )
        self.scale = targets / answers  # the mean over all targets is then that over the answers

    def token_losses(self, segment: Segment, state: Any) -> TokenLosses:
        logits, state, auxiliary = self.model(segment, state)
        target = segment.target
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="none")
        return TokenLosses(self.scale * losses.view_as(target) * self.task.answers(target), state, auxiliary)

    def advance(self, segment: Segment, state: Any) -> Any:
        return self.model.advance(segment, state)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """One group of parameters a share of the rate."""
    groups: dict[float, list[nn.Parameter]] = {1.0: []}  # the order of groups is that of a checkpoint
    for name, parameter in model.named_parameters():
        groups.setdefault(find_share(name, recipe.shares), []).append(parameter)
    parts = [{"params": parameters, "share": share} for share, parameters in groups.items()]
    return torch.optim.AdamW(parts, recipe.learning_rate, weight_decay=0.01, fused=True)


class TaskRun:
    """A model on its way through a recipe, as it is saved."""

    def __init__(self, row: Row, recipe: Recipe) -> None:
        self.recipe = recipe
        torch.manual_seed(row.seed)
        self.everything = row.model["name"] != "memformer"
        self.model = build_model(dict(row.model), recipe.of(1, False).vocab_size)
        self.optimizer = make_optimizer(self.model, recipe)
        self.generator = torch.Generator().manual_seed(row.seed)
        self.level = Level(recipe.first_pairs)
        self.update, self.tokens, self.best, self.perfect = 0, 0, -1.0, 0

    def step(self) -> float:
        """One update: its loss."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * group["share"] * min(1.0, (self.update + 1) / recipe.warm_up)
        pairs, distractors = self.level.draw(recipe, self.generator)
        task = recipe.of(pairs, self.everything)
        segments = draw(task, recipe.batch_size, distractors, self.generator)
        model = AnswersOnly(self.model, task, segments)
        loss, _ = mrbp(model, segments, self.model.initial_state(recipe.batch_size))
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.update += 1
        self.tokens += recipe.batch_size * recipe.options["segment_length"] * (len(segments) - 1)
        self.level.learn(recipe, pairs, distractors, loss.item())
        return loss.item()

    def look(self) -> bool:
        """Whether a separate reading is better than any before, or as good; `perfect` counts those without a mistake."""
        task = self.recipe.of(self.recipe.pairs, self.everything)
        found = [accuracy(self.model, task, distance, 256, seed=1) for distance in self.recipe.look_at]
        mean = sum(found) / len(found)
        self.perfect = self.perfect + 1 if mean == 1 else 0
        better, self.best = mean >= self.best, max(mean, self.best)
        return better

    def start_from(self, folder: Path) -> None:
        """The best weights of another run, which may have parts that this model has not, but not the other way round."""
        if not (folder / "best.json").exists():
            again = f"remove {folder.name}.json of the results, and run it again"
            raise ValueError(f"{folder} holds no weights to start from: {again}")
        best, own = find_checkpoint(folder, "best"), self.model.state_dict()
        load_facts(best)  # they are what was written
        weights = load_tensors(best / "weights.safetensors")
        self.model.load_state_dict({name: weights[name] for name in own})
        if not self.recipe.updates:  # then it is their training that counts
            self.level = Level(**load_facts(find_checkpoint(folder, "last"))["level"])

    def save(self, folder: Path, best: bool) -> None:
        random = {"random.torch": torch.get_rng_state(), "random.task": self.generator.get_state()}
        facts = {"level": asdict(self.level), "tokens": self.tokens, "best": self.best, "perfect": self.perfect}
        tensors = pack_optimizer(self.optimizer, self.model) | random
        checkpoint = save_checkpoint(folder, self.update, self.model.state_dict(), tensors, facts)
        if best:
            point_to(folder, "best", checkpoint)
        point_to(folder, "last", checkpoint)

    def load(self, folder: Path) -> None:
        checkpoint = find_checkpoint(folder)
        facts = load_facts(checkpoint)
        load_weights(self.model, checkpoint)
        tensors = load_tensors(checkpoint / "training.safetensors")
        unpack_optimizer(self.optimizer, self.model, tensors)
        torch.set_rng_state(tensors["random.torch"])
        self.generator.set_state(tensors["random.task"])
        self.update, self.level, self.tokens = facts["update"], Level(**facts["level"]), facts["tokens"]
        self.best, self.perfect = facts["best"], facts["perfect"]


def task_row(row: Row, folder: Path, report: Reporter, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    """Train by the recipe, then read with the weights that did best on the way."""
    start, recipe = time.perf_counter(), Recipe(**row.train)
    run = TaskRun(row, recipe)
    if is_begun(row, folder):
        run.load(folder)
    else:
        if recipe.start:
            run.start_from(folder.with_name(recipe.start))
        clear(folder, SETTINGS)
        folder.mkdir(parents=True)
        write_durably(folder / SETTINGS, json.dumps(row.settings()))
        if recipe.start:
            run.save(folder, run.look())  # it may be the best already, or all that is read
    clock = Clock(folder / "seconds.json", start)
    lengths = [distance for distances in recipe.read.values() for distance in distances]
    total = recipe.updates + sum(lengths) / UPDATE
    run.model.train()
    while run.update < recipe.updates and run.perfect < 2:
        loss = run.step()
        if run.update % 10 == 0:
            words = f"loss {loss:.3f}, {run.level.pairs} pairs, {run.level.distractors} distractors"
            report(run.update, total, words)
        looked = run.update % recipe.look_every == 0 or run.update == recipe.updates
        better = run.look() if looked else False
        stop = should_stop()
        if looked or stop:
            run.save(folder, better)
            clock.save()
        if stop:
            return None

    facts = {"updates": run.update, "tokens": run.tokens, **sizes(row, run.model)}
    facts |= {"reached": asdict(run.level), "valid": {"loss": 1 - run.best}}
    if row.tuning:
        return row.result(**facts, seconds=clock.seconds)
    best = find_checkpoint(folder, "best")
    load_facts(best)
    load_weights(run.model, best)
    found: dict[str, dict[int, float]] = {}
    done = float(recipe.updates)
    for pairs, distances in recipe.read.items():
        found[pairs], task = {}, recipe.of(int(pairs), run.everything)
        for distance, share in read(run.model, task, distances):
            if should_stop():
                return None
            found[pairs][distance] = share
            done += distance / UPDATE
            report(done, total, f"read {pairs} pairs over {distance:,} distractors")
    return row.result(**facts, seconds=clock.seconds, accuracy=found, chance=1 / task.num_values)


def is_begun(row: Row, folder: Path) -> bool:
    """Whether a folder holds a run of the row's settings, with a checkpoint to go on from."""
    try:
        found = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return found == row.settings() and (folder / "last.json").exists()


def draw(task: Any, batch_size: int, distractors: int, generator: torch.Generator) -> list[Segment]:
    """A batch of documents as steps."""
    if isinstance(task, Retention):
        values = torch.randint(task.num_values, (batch_size,), generator=generator)
        return task.rollout(values, distractors, generator)
    return task.rollout(batch_size, distractors, generator)


def read(model: Any, task: Any, distances: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Accuracy at each number of distractors; of one value, asked on the side of one long reading."""
    if isinstance(task, Retention):
        return measure_retention(model, task, distances, batch_size=256)
    return ((distance, accuracy(model, task, distance, batch_size=512)) for distance in distances)


@torch.no_grad()
def accuracy(model: Any, task: Any, distractors: int, batch_size: int, seed: int = 0) -> float:
    """The share of right answers; documents are drawn apart from those of training."""
    training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(2**31 + seed)
    state, right, asked = model.initial_state(batch_size), 0, 0
    for segment in draw(task, batch_size, distractors, generator):
        answers = task.answers(segment.target)
        if answers.any():
            output = model(segment, state)
            state = output.state
            right += int((output.logits.argmax(-1) == segment.target)[answers].sum())
            asked += int(answers.sum())
        else:
            state = model.advance(segment, state)
    model.train(training)
    return right / asked
