"""`memformer bench ceiling`: how much of this machine's rate of matrix products an update reaches, and where the rest goes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from memformer_torch.analysis import pictures
from memformer_torch.backprop import bptt, mrbp
from memformer_torch.bench.flops import count_flops
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import Seconds, take_turns
from memformer_torch.losses import segment_loss
from memformer_torch.models import PRESETS
from memformer_torch.models.memformer import Memformer, MemformerConfig
from memformer_torch.train import TrainConfig, make_optimizer
from memformer_torch.types import Segment

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
OUTSIDE = "Python and dispatch"
OPTIMIZER = "Optimizer."  # begins the names of what an optimizer does
KINDS = {
    "attention kernels": r"aten::_?scaled_dot_product",
    "matrix products": r"aten::(mm|addmm|bmm|baddbmm)$",
    "dropout": r"aten::(native_dropout|dropout|bernoulli)",
    "norms": r"aten::\w*norm",
    "activations": r"aten::gelu",
    "softmax and loss": r"aten::(_?(log_)?softmax|_log_softmax|nll_loss|cross_entropy)",
    "copies": r"aten::(copy|cat|stack|contiguous|clone|gather|scatter|index|embedding|pad|constant_pad|fill|zero|_to_copy)",
    "arithmetic": r"aten::(add|mul|div|sub|sum|where|masked|neg|eq|ne|ge|lt|all|any|cos|sin|pow|bitwise|clamp|sqrt|arange)",
}
"""Kind -> the profiler's names of it, the first that fits; what fits none (views, the graph's nodes) goes with Python."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    preset: str
    batch_size: int
    num_segments: int
    fields: dict[str, Any] = field(default_factory=dict)
    """Instead of the preset's."""

    @property
    def config(self) -> MemformerConfig:
        return MemformerConfig(**{"vocab_size": 256, **PRESETS[self.preset]["memformer"], **self.fields})


FULL = [Shape(preset="image", batch_size=32, num_segments=8), Shape(preset="text", batch_size=2, num_segments=2)]
_FEW = {"num_encoder_layers": 2, "num_decoder_layers": 4}
QUICK = [Shape(preset="image", batch_size=16, num_segments=2), Shape(preset="text", batch_size=1, num_segments=2, fields=_FEW)]


def ceiling(
    quick: bool = False,
    repeats: int | None = None,
    device: str = "cpu",
    out: Path = Path("runs/bench/ceiling.json"),
) -> None:
    """The share of this machine's rate of float32 matrix products that Memformer reaches, at the paper's two shapes.

    The rate is measured in the same run, in turns with the model: of one large product, and of the model's own products,
    of the same sizes and in the same order, alone. FLOPs are those that are computed, what MRBP computes twice too; "useful"
    are those of one forward and backward. An update is gradient method, clipping and AdamW. Writes a picture beside the JSON.

    Args:
        quick: Smaller batches, and fewer layers at the larger shape.
        repeats: Turns of each; 5, or 2 if quick.
        device: Where to run.
        out: The JSON file to write.
    """
    console, shapes, size, repeats = (
        Console(markup=False),
        QUICK if quick else FULL,
        1024 if quick else 2048,
        repeats or (2 if quick else 5),
    )
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(shapes) * 7 * (repeats + 1))
        for shape in shapes:
            rows += measure(shape, size, repeats, torch.device(device), lambda: progress.advance(task))

    console.print(*_tables(rows, size))
    command = f"memformer bench ceiling{' --quick' if quick else ''} --repeats {repeats} --device {device}"
    record = {"command": command, "seed": 0, "runs": repeats, "dtype": "float32", "large_product": [size, size, size]}
    write_json(out, record | {"rows": rows} | environment())
    names = [f"width {row['config']['d_model']}: {row['task']}" for row in rows]
    pictures.shares_of_time(
        out.with_suffix(".png"),
        {name: row["share_of_time"] for name, row in zip(names, rows, strict=True)},
        {name: row["share_of_large"] for name, row in zip(names, rows, strict=True)},
        "FLOPs a second, of those of one large product",
    )
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def measure(
    shape: Shape, size: int, repeats: int, device: torch.device, progress: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """One row for a forward and for an update by each method."""
    torch.manual_seed(0)
    model = Memformer(shape.config).to(device).train()
    calls = _calls(model, shape, device)
    products = {task: record_products(call) for task, call in calls.items()}
    flops = {task: count_flops(call) for task, call in calls.items()}

    left, right = torch.randn(2, size, size, device=device)
    contestants: dict[str, Callable[[], Any]] = {"large": lambda: left @ right}
    for task, call in calls.items():
        contestants |= {task: call, f"products of {task}": products[task]}
    times = take_turns(contestants, repeats, progress)
    large = 2 * size**3 / times["large"].median
    rows = []
    for task, call in calls.items():
        alone = count_flops(products[task])
        rate, own = flops[task] / times[task].median, alone / times[f"products of {task}"].median
        useful = flops["forward" if task == "forward" else "bptt"]
        rows.append({
            "preset": shape.preset,
            "config": asdict(shape.config),
            "batch_size": shape.batch_size,
            "num_segments": 1 if task == "forward" else shape.num_segments,
            "task": task,
            "seconds": times[task]._asdict(),
            "flops": flops[task],
            "useful_flops": useful,
            "flops_in_products": alone,
            "flops_a_second": rate,
            "large_product": _rates(2 * size**3, times["large"]),
            "own_products": _rates(alone, times[f"products of {task}"]),
            "share_of_large": rate / large,
            "useful_share_of_large": useful / times[task].median / large,
            "share_of_own": rate / own,
            "share_of_time": where_time_goes(call),
        })  # fmt: skip
    return rows


def _calls(model: Memformer, shape: Shape, device: torch.device) -> dict[str, Callable[[], Any]]:
    size = (shape.num_segments + 1, shape.batch_size, model.config.segment_length)
    ids = torch.randint(model.config.vocab_size, size, generator=torch.Generator().manual_seed(0)).to(device)
    segments = [Segment(source, target) for source, target in pairwise(ids)]
    config = TrainConfig()
    optimizer = make_optimizer(model, config)
    parameters = list(model.parameters())

    def forward() -> None:
        model.eval()
        with torch.no_grad():
            segment_loss(model, segments[0], model.initial_state(shape.batch_size))

    def update(method: Callable[..., Any]) -> None:
        model.train()
        optimizer.zero_grad()
        method(model, segments, model.initial_state(shape.batch_size))
        with record_function(f"{OPTIMIZER}clip"):
            clip_grad_norm_(parameters, config.max_gradient_norm)
        optimizer.step()

    return {"forward": forward, "bptt": partial(update, bptt), "mrbp": partial(update, mrbp)}


class _Products(TorchDispatchMode):
    """Notes every product of matrices with the sizes and strides of its factors, which decide how fast it is."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.noted.append((func, tuple((tuple(a.shape), a.stride(), a.device) for a in args)))
        return func(*args, **(kwargs or {}))


def record_products(call: Callable[[], Any]) -> Callable[[], None]:
    """What computes the call's products of matrices again, in their order and on random numbers, and nothing else."""
    with _Products() as mode:
        call()
    factors: dict[Any, tuple[Tensor, ...]] = {}
    for _, layouts in mode.noted:
        if layouts not in factors:
            factors[layouts] = tuple(_random(*layout) for layout in layouts)

    def again() -> None:
        for func, layouts in mode.noted:
            func(*factors[layouts])

    return again


def _random(shape: Sequence[int], stride: Sequence[int], device: torch.device) -> Tensor:
    room = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(room, device=device).as_strided(shape, stride)


def where_time_goes(call: Callable[[], Any]) -> dict[str, float]:
    """The share of each kind of operation in a call's time, largest first; the profiler slows down what is small."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function(OUTSIDE):
        call()
    shares: dict[str, float] = {}
    for event in profiled.events() or []:
        kind = _kind(event)
        shares[kind] = shares.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: share / total for kind, share in sorted(shares.items(), key=lambda item: -item[1])}


def _kind(event: Any) -> str:
    around = event
    while around is not None:
        if around.name.startswith(OPTIMIZER):
            return "optimizer and clipping"
        around = around.cpu_parent
    return next((kind for kind, names in KINDS.items() if re.match(names, event.name)), OUTSIDE)


def _rates(flops: int, seconds: Seconds) -> dict[str, float]:
    """FLOPs a second."""
    return {"median": flops / seconds.median, "least": flops / seconds.slowest, "most": flops / seconds.fastest}


def _tables(rows: Sequence[Mapping[str, Any]], size: int) -> Iterator[Table]:
    title = f"GFLOP a second: the model's, of one product of {size} x {size}, of its own products alone; shares of these"
    rates = Table("", "ms", "spread", "GFLOP", "a second", "large", "own", "of large", "useful", "of own", title=title)
    goes = Table("", "where the time goes (profiled)")
    for row in rows:
        name, seconds = f"width {row['config']['d_model']}\n{row['task']}", row["seconds"]
        speeds = (row["flops_a_second"], row["large_product"]["median"], row["own_products"]["median"])
        rates.add_row(
            name,
            f"{1e3 * seconds['median']:.0f}",
            f"{1e3 * seconds['fastest']:.0f}-{1e3 * seconds['slowest']:.0f}",
            f"{row['flops'] / 1e9:.1f}",
            *(f"{speed / 1e9:.1f}" for speed in speeds),
            *(f"{row[share]:.0%}" for share in ("share_of_large", "useful_share_of_large", "share_of_own")),
        )
        goes.add_row(name, ", ".join(f"{kind} {share:.0%}" for kind, share in row["share_of_time"].items()))
    yield rates
    yield goes
