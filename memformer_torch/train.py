"""Training: rollouts from a stream, gradients from one of three methods, and everything needed to go on after a stop."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.checkpoint import (
    find_checkpoint,
    load_facts,
    load_tensors,
    load_weights,
    pack_memories,
    pack_optimizer,
    point_to,
    save_checkpoint,
    unpack_memories,
    unpack_optimizer,
)
from memformer_torch.data import Corpus, Stream
from memformer_torch.distributed import World, share_model, unshard
from memformer_torch.evaluate import Evaluation, evaluate
from memformer_torch.metrics import Metrics, summary_writer
from memformer_torch.nn.sizes import check_types
from memformer_torch.samples import Draw, Sampler
from memformer_torch.window import Window

METHODS = {"bptt": bptt, "checkpointed": checkpointed, "mrbp": mrbp}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Defaults are the paper's appendix B but for the sizes of a run, which are a laptop's."""

    updates: int = 1000
    """Optimizer updates."""
    batch_size: int = 32
    """Lanes: sequences side by side; processes share them equally."""
    horizon: int = 8
    """Segments in a rollout: how far gradients reach back."""
    stride: int | None = None
    """Segments by which the rollout moves on; None is the horizon. With fewer, each segment is in horizon / stride rollouts,
    and mrbp takes memories of the rollout before instead of computing them again: its gradients are then not exact."""
    method: Literal["mrbp", "bptt", "checkpointed"] = "mrbp"
    """How gradients are computed; all give the same."""
    accumulate: int = 1
    """Rollouts an update."""
    learning_rate: float = 1e-3
    """Largest rate, reached after the warm-up."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """What share of the rate, or multiple of it, parameters get whose names begin so, as {"writer.": 0.1}; all others get it
    as it is."""
    warm_up: int = 100
    """Updates over which the rate rises linearly from 0."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate goes on: down to 0 in one of two ways, or not at all."""
    weight_decay: float = 0.01
    """AdamW's, on matrices; norms, biases, forgetting vectors and learned states have none."""
    max_gradient_norm: float = 1.0
    """Gradients are scaled down to this length."""
    precision: Literal["32", "bf16-mixed"] = "32"
    """Numbers in the matrix products; weights, state and optimizer are float32 in any case."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """What processes share beside the work: "fsdp" weights and optimizer, "ddp", which is "auto", nothing."""
    continuous: bool | None = None
    """Ignore where documents end; None leaves it to the data."""
    evaluate_every: int = 200
    """Updates between evaluations on the validation split."""
    evaluate_tokens: int | None = None
    """Most tokens of an evaluation during training; None reads the whole split."""
    checkpoint_every: int = 200
    """Updates between checkpoints."""
    sample_every: int | None = None
    """Updates between samples in the run's folder: a text continued, or lower halves of images; None takes none."""
    log_every: int = 10
    """Updates between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write the numbers of metrics.jsonl for TensorBoard too."""
    seed: int = 0
    """Of weights, dropout and the order of documents."""

    def __post_init__(self) -> None:
        check_types(self, "train.")
        positive = ("updates", "batch_size", "horizon", "accumulate", "evaluate_every", "checkpoint_every", "log_every")
        for name in (*positive, "sample_every", "evaluate_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"train.{name} is {value}, but must be at least 1")
        if self.stride is not None and not 1 <= self.stride <= self.horizon:
            raise ValueError(f"train.stride is {self.stride}, but must be from 1 to train.horizon, {self.horizon}")
        if not (self.learning_rate > 0 and self.max_gradient_norm > 0 and min(self.weight_decay, self.warm_up) >= 0):
            raise ValueError("train.learning_rate and max_gradient_norm must be above 0, weight_decay and warm_up not below")
        if self.seed < 0:
            raise ValueError(f"train.seed is {self.seed}, but must be at least 0")
        if any(not 0 <= share < math.inf for share in self.shares.values()):
            raise ValueError(f"train.shares is {dict(self.shares)}, but a share must be a number from 0 on")


class Watcher(NamedTuple):
    """What the loop tells the outside, and asks it."""

    on_update: Callable[[int, dict[str, Any]], None] = lambda update, line: None
    on_evaluation: Callable[[int, Evaluation], None] = lambda update, evaluation: None
    should_stop: Callable[[], bool] = lambda: False
    on_sample: Callable[[int, str], None] = lambda update, message: None


class Trainer:
    """The parts of a run, and its position; `fit` takes it to the end, `save` and `resume` over a stop."""

    def __init__(self, run: Path, model: Any, corpus: Corpus, config: TrainConfig, world: World, draw: Draw) -> None:
        self.run, self.corpus, self.config, self.world, self.device = run, corpus, config, world, world.device
        self.model = model.to(self.device)
        self.ranks = share_model(model, config.strategy, world, find_unused=config.horizon == 1)
        self.optimizer = make_optimizer(model, config)
        self.window = Window(self._stream("train", loop=True), config.horizon, config.stride or config.horizon, self.device)
        self.metrics = Metrics(run, config.tensorboard)
        self.sampler = None
        if config.sample_every is not None:
            self.sampler = Sampler(run / "samples", corpus, draw, config.seed, getattr(model.config, "max_length", None))
        self.update, self.best, self.tokens = 0, math.inf, 0

    def fit(self, watcher: Watcher = Watcher()) -> None:  # noqa: B008  it holds nothing
        """Train until `config.updates`, or until asked to stop; either ends with a checkpoint."""
        config, stop = self.config, False
        self.model.train()
        while self.update < config.updates and not stop:
            start = time.perf_counter()
            loss, norm, tokens = self._step()
            self.update += 1
            tokens, stop = self.world.sum(torch.tensor([tokens, watcher.should_stop()])).tolist()
            self.tokens += tokens
            if self.update % config.log_every == 0 or self.update == config.updates:
                line = {"update": self.update, "loss": loss.item(), "gradient_norm": norm.item(), "tokens": self.tokens}
                self._log(line)
                watcher.on_update(self.update, line | {"tokens_per_second": tokens / (time.perf_counter() - start)})
            better = False
            if self.update % config.evaluate_every == 0 or self.update == config.updates:
                evaluation = self.evaluate("valid", config.evaluate_tokens)
                self._log({"update": self.update, "valid_loss": evaluation.loss, "valid_perplexity": evaluation.perplexity})
                watcher.on_evaluation(self.update, evaluation)
                better = evaluation.loss < self.best
                self.best = min(self.best, evaluation.loss)
            if config.sample_every is not None and self.update % config.sample_every == 0:
                self._sample(watcher)
            if better or stop or self.update % config.checkpoint_every == 0 or self.update == config.updates:
                self.save(better)
        self.metrics.close()

    def evaluate(self, split: str, max_tokens: int | None = None, progress: Callable[[int], None] | None = None) -> Evaluation:
        with self._autocast():
            return evaluate(self.model, self._stream(split, loop=False), self.device, max_tokens, progress, self.world.sum)

    def _sample(self, watcher: Watcher) -> None:
        """All ranks take it, since each may have a shard of the weights alone, and the first writes."""
        assert self.sampler is not None
        with self._autocast():
            ids = self.sampler.take(self.model)
        if self.world.rank == 0:
            watcher.on_sample(self.update, self.sampler.write(self.update, ids))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16-mixed")

    def _stream(self, split: str, loop: bool) -> Stream:
        config = self.config
        continuous = self.corpus.continuous if config.continuous is None else config.continuous
        return Stream(
            self.corpus[split],
            batch_size=config.batch_size,
            segment_length=self.model.config.segment_length,
            loop=loop,
            seed=config.seed,
            continuous=continuous,
            rank=self.world.rank,
            world=self.world.size,
        )

    def _step(self) -> tuple[Tensor, Tensor, int]:
        """One update: mean loss, length of the gradient before clipping, tokens read anew."""
        config, window, losses, tokens = self.config, self.window, [], 0
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * group["share"] * share_of_rate(self.update, config)
        for rollout in range(config.accumulate):
            tokens += window.fill()
            if not window.memories:
                window.memories.append(self.model.initial_state(len(window.segments[0].source)))
            ranks = self.ranks
            if ranks and rollout + 1 < config.accumulate:
                ranks = ranks._replace(backward=None)  # gradients add up locally until the last
            with self._autocast():
                loss, _ = METHODS[config.method](
                    self.model, window.segments, window.memories[0], ranks=ranks, memories=window.memories
                )
            window.slide()
            losses.append(loss)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if config.accumulate > 1:
            torch._foreach_div_([parameter.grad for parameter in parameters], config.accumulate)
        norm = unshard(clip_grad_norm_(parameters, config.max_gradient_norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).mean(), norm, tokens

    def save(self, best: bool = False) -> None:
        """Write a checkpoint, and make it the last, and the best if it is. All ranks call it, and the first writes."""
        weights, tensors = (
            self.world.whole(self.model.state_dict()),
            self.world.whole(pack_optimizer(self.optimizer, self.model)),
        )
        random = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            random["device"] = torch.get_device_module(self.device).get_rng_state()
        parts = self.world.gather((random, self.window.memories))
        if self.world.rank == 0:
            self.metrics.flush()
            self._write(weights, tensors, parts, best)
        self.world.wait()  # a process that ends takes the others with it

    def _write(self, weights: dict[str, Tensor], tensors: dict[str, Tensor], parts: list[Any], best: bool) -> None:
        tensors |= pack_memories([memories for _, memories in parts])
        tensors |= {f"random.{rank}.{name}": value for rank, part in enumerate(parts) for name, value in part[0].items()}
        facts = {
            "best": self.best,
            "tokens": self.tokens,
            "stream": self.window.position(),
            "corpus": self.corpus.fingerprint,
            "threads": torch.get_num_threads(),
            "processes": self.world.size,
        }
        folder = save_checkpoint(self.run, self.update, weights, tensors, facts)
        if best:
            point_to(self.run, "best", folder)  # first: what goes on from the last one believes that its best is kept
        point_to(self.run, "last", folder)

    def resume(self) -> None:
        """Go on from the last checkpoint, as if the run had never stopped; without one, from the start."""
        if self.config.tensorboard:
            summary_writer()
        if (self.run / "last.json").exists():
            self._load()
        if self.world.rank == 0:
            self.metrics.go_back(self.update)

    def load_weights(self, which: str) -> tuple[Path, dict[str, Any]]:
        """Those of the `last` or `best` checkpoint, once it is found to be whole and of this data."""
        folder = find_checkpoint(self.run, which)
        facts = load_facts(folder)
        if facts["corpus"] != self.corpus.fingerprint:
            raise ValueError(f"{self.run} was trained on other data: its {self.corpus.name} had another content or settings")
        load_weights(self.model, folder)
        return folder, facts

    def _load(self) -> None:
        folder, facts = self.load_weights("last")
        tensors = load_tensors(folder / "training.safetensors")
        unpack_optimizer(self.optimizer, self.model, tensors)
        memories = unpack_memories(self.model.initial_state(1), tensors, self.world.lanes(self.config.batch_size))
        self.window.restore(facts["stream"], memories)
        self.update, self.best, self.tokens = facts["update"], facts["best"], facts["tokens"]
        rank, size = self.world.rank, self.world.size
        if facts["processes"] == size:
            torch.set_rng_state(tensors[f"random.{rank}.cpu"])
            if f"random.{rank}.device" in tensors and self.device.type != "cpu":
                torch.get_device_module(self.device).set_rng_state(tensors[f"random.{rank}.device"])
        else:
            torch.manual_seed(self.config.seed + rank + size * self.update)

    def _log(self, line: dict[str, Any]) -> None:
        if self.world.rank == 0:
            self.metrics.add(line)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone: not on norms, biases, forgetting vectors, tokens and states that are learned."""
    groups: dict[tuple[float, bool], list[Tensor]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1 and "weight" in name.rpartition(".")[2]
        groups.setdefault((find_share(name, config.shares), is_matrix), []).append(parameter)
    names = [name for name, _ in model.named_parameters()]
    if unknown := [begin for begin in config.shares if not any(name.startswith(begin) for name in names)]:
        known = ", ".join(dict.fromkeys(f"{name.partition('.')[0]}." for name in names if "." in name))
        raise ValueError(f"train.shares: no parameter's name begins with {unknown[0]!r}: here they begin with {known}")
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": config.weight_decay if is_matrix else 0.0, "share": share}
            for (share, is_matrix), parameters in groups.items()
        ],
        lr=config.learning_rate,
        fused=True,  # one kernel for all, where the default takes a dozen a weight
    )


def find_share(name: str, shares: Mapping[str, float]) -> float:
    """Of the learning rate, for the parameter of this name. AdamW moves every number by about the rate, whatever its size and
    however much hangs on it: where that is too fast, a share is what it takes."""
    return next((share for begin, share in shares.items() if name.startswith(begin)), 1.0)


def share_of_rate(update: int, config: TrainConfig) -> float:
    """The learning rate at an update, over the largest."""
    if update < config.warm_up:
        return (update + 1) / config.warm_up
    done = (update - config.warm_up) / max(1, config.updates - config.warm_up)
    if config.schedule == "linear":
        return 1 - done
    return 1.0 if config.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * done))
