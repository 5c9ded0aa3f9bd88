"""`memformer bench length`: FLOPs and time against the length of what is read (section 4.1, the figure's left half)."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from memformer_torch.analysis import pictures
from memformer_torch.bench.flops import count_flops
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import take_turns
from memformer_torch.models import MODELS
from memformer_torch.types import BOS, PAD, Segment

VOCAB_SIZE, SEGMENT, SHORTEST = 256, 128, 128


def length(
    d_model: int = 256,
    longest: int = 8192,
    repeats: int = 3,
    device: str = "cpu",
    quick: bool = False,
    out: Path = Path("runs/bench/length.json"),
) -> None:
    """FLOPs and time to read a sequence, by its length, for four models of as many parameters.

    All read in segments of 128 tokens, with gradients off, predict every token of 256 ids, and carry their state: the decoder a
    cache of everything, the others as many memories as four times the width. FLOPs are counted, times are medians of runs in
    turns; the slope is that of a line through the logarithms, for lengths from an eighth of the longest on.

    Args:
        d_model: Width of all models; the feed-forward branch is four times as wide, a head 64.
        longest: The last of the lengths, which double from 128.
        repeats: Measurements of each.
        device: Where to run.
        quick: Width 128, up to 2,048 tokens, twice.
        out: The JSON file to write; the picture goes beside it.
    """
    if quick:
        d_model, longest, repeats = 128, 2048, 2
    console, where = Console(markup=False), torch.device(device)
    pictures.new_figure()  # an error now, not after the runs
    lengths = [SHORTEST << n for n in range((longest // SHORTEST).bit_length())]
    ids = torch.randint(VOCAB_SIZE, (1, lengths[-1]), generator=torch.Generator().manual_seed(0)).to(where)
    models = make_models(d_model, lengths[-1], where)
    with Progress(console=console, transient=True) as progress:
        rows = _measure(models, ids, lengths, repeats, progress)
    console.print(*_tables(rows))
    console.print(", ".join(f"{name} {row['parameters'] / 1e6:.2f} M" for name, row in rows.items()), "parameters.")
    found = rows["memformer"]["slope"]
    console.print(f"Memformer's slope is {found['flops']:.3f} in FLOPs and {found['seconds']:.3f} in time: 1 is linear.")
    command = f"memformer bench length --d_model {d_model} --longest {longest} --repeats {repeats} --device {device}"
    write_json(out, {"command": command, "seed": 0, "runs": repeats, "rows": rows, **environment()})
    panels = {
        "FLOPs": {name: row["flops"] for name, row in rows.items()},
        "seconds": {name: {n: t["median"] for n, t in row["seconds"].items()} for name, row in rows.items()},
    }
    pictures.log_lines(out.with_suffix(".png"), panels, "tokens read")
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def make_configs(d_model: int, longest: int) -> dict[str, Any]:
    """Four models whose depths are chosen so that they have as many parameters, within 3 %."""
    wide = {"vocab_size": VOCAB_SIZE, "d_model": d_model, "num_heads": max(1, d_model // 64), "d_ff": 4 * d_model}
    wide["segment_length"], slots = SEGMENT, 4 * d_model
    fields: dict[str, dict[str, Any]] = {
        "decoder": {"num_layers": 10, "max_length": longest},
        "transformer-xl": {"num_layers": 9, "memory_length": slots},
        "compressive": {"num_layers": 7, "memory_length": slots // 2, "compressed_length": slots // 2},
        "memformer": {"num_encoder_layers": 2, "num_decoder_layers": 5, "num_slots": slots},
    }
    return {name: MODELS[name][0](**wide | values) for name, values in fields.items()}


def make_models(d_model: int, longest: int, device: torch.device) -> dict[str, Any]:
    """The models of these configs, all from one seed."""
    models = {}
    for name, config in make_configs(d_model, longest).items():
        torch.manual_seed(0)
        models[name] = MODELS[name][1](config).to(device).eval()
    return models


@torch.no_grad()
def read(model: Any, ids: Tensor) -> None:
    """Predict a document (1, N), segment by segment."""
    state = model.initial_state(1)
    source = torch.full_like(ids[:, :SEGMENT], PAD)
    source[:, 0] = BOS
    for target in ids.split(SEGMENT, dim=1):
        state = model(Segment(source, target), state).state
        source = target


def _measure(models: Mapping[str, Any], ids: Tensor, lengths: list[int], repeats: int, progress: Progress) -> dict[str, Any]:
    """What each model costs at each length; lengths take turns too, since a slope compares them."""
    calls = {f"{name} {n}": partial(read, model, ids[:, :n]) for n in lengths for name, model in models.items()}
    order = cycle([n for n in lengths for _ in models])
    task = progress.add_task("measuring", total=(repeats + 2) * len(models) * sum(lengths))
    flops = {}
    for name, call in calls.items():
        flops[name] = count_flops(call)
        progress.advance(task, next(order))
    seconds = take_turns(calls, repeats, lambda: progress.advance(task, next(order)))

    rows = {}
    for name, model in models.items():
        counted = {n: flops[f"{name} {n}"] for n in lengths}
        taken = {n: seconds[f"{name} {n}"] for n in lengths}
        rows[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "flops": counted,
            "seconds": {n: each._asdict() for n, each in taken.items()},
            "slope": {"flops": slope(counted), "seconds": slope({n: each.median for n, each in taken.items()})},
            "config": asdict(model.config),
        }
    return rows


def slope(values: Mapping[int, float]) -> float:
    """By which power of the length a cost grows, over lengths from an eighth of the longest on."""
    points = [(tokens, value) for tokens, value in values.items() if 8 * tokens >= max(values)]
    tokens, costs = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(tokens, costs, 1)[0])


def _tables(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    for what, title in (("flops", "GFLOP to read a sequence"), ("seconds", "seconds to read it: median (slowest - fastest)")):
        table = Table("tokens", *rows, title=title)
        for tokens in next(iter(rows.values()))[what]:
            table.add_row(f"{tokens:,}", *(_cell(row[what][tokens]) for row in rows.values()))
        table.add_row("slope", *(f"{row['slope'][what]:.3f}" for row in rows.values()))
        yield table


def _cell(cost: Any) -> str:
    if isinstance(cost, int):
        return f"{cost / 1e9:,.2f}"
    return f"{cost['median']:.2f} ({cost['slowest'] - cost['fastest']:.2f})"
