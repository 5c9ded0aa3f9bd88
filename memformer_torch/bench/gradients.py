"""`memformer bench gradients`: what BPTT, gradient checkpointing and MRBP cost (appendix A)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.bench.bytes import peak_bytes, state_bytes
from memformer_torch.bench.flops import count_flops
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import take_turns
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.types import Segment

METHODS = {"bptt": bptt, "checkpointed": checkpointed, "mrbp": mrbp}
PAPER = {"bptt": (1.0, 1.0), "checkpointed": (9885 / 16177, 0.48), "mrbp": (7229 / 16177, 0.90)}  # memory, speed
WORDS = {"vocab_size": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
SHAPES: dict[str, tuple[dict[str, Any], int]] = {  # Memformer's sizes, sequences side by side
    "image": (PRESETS["image"]["memformer"], 16),
    "text": (PRESETS["text"]["memformer"] | WORDS, 1),
}


def gradients(
    shapes: list[str] = ["image", "text"],  # noqa: B006  jsonargparse reads it, nothing writes it
    horizons: list[int] = [1, 2, 4, 8, 16, 32],  # noqa: B006
    repeats: int = 5,
    quick: bool = False,
    device: str = "cpu",
    out: Path = Path("runs/bench/gradients.json"),
) -> None:
    """Peak bytes and speed of the three gradient methods at the paper's two sizes.

    "image" is its MNIST model (4 + 8 layers, batch 16), "text" its WikiText-103 model (4 + 16 layers, 1,024 slots, 267,735
    words) with the batch cut to 1. Bytes are those of all tensors alive beside weights, optimizer and input: what is
    recomputed, the gradients and the replay buffer count. Methods take turns inside one run; times are medians. "allowed" is
    the speed that the count of FLOPs allows.

    Args:
        shapes: Which sizes: image, text.
        horizons: Segments in a rollout.
        repeats: Measurements of each.
        quick: Few horizons, few repeats.
        device: Where to run.
        out: The JSON file to write; a picture stands beside it.
    """
    unknown = set(shapes) - set(SHAPES)
    if unknown or not shapes:
        raise ValueError(f"shapes is {shapes}, but may hold {' and '.join(SHAPES)}")
    console, rows = Console(markup=False), []
    if quick:
        horizons, repeats = [1, 4], 2
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(shapes) * len(horizons) * len(METHODS) * (repeats + 1))
        for shape in shapes:
            sizes, batch_size = SHAPES[shape]
            model = _build(sizes, device)
            for horizon in horizons:
                found = _measure(model, horizon, batch_size, repeats, lambda: progress.advance(task))
                rows += [{"shape": shape, "horizon": horizon} | row for row in found]
    _add_ratios(rows)
    _print(console, rows)
    command = f"memformer bench gradients --shapes {shapes} --horizons {horizons} --repeats {repeats} --device {device}"
    configs = {shape: asdict(_config(SHAPES[shape][0])) | {"batch_size": SHAPES[shape][1]} for shape in shapes}
    write_json(out, {"command": command, "seed": 0, "runs": repeats, "configs": configs, "rows": rows, **environment()})
    pictures.cost_by_horizon(out.with_suffix(".png"), rows)
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def _config(sizes: dict[str, Any]) -> Any:
    return MODELS["memformer"][0](**sizes)


def _build(sizes: dict[str, Any], device: str) -> Any:
    torch.manual_seed(0)
    return MODELS["memformer"][1](_config(sizes)).to(device).train()


def _measure(model: Any, horizon: int, batch_size: int, repeats: int, progress: Callable[[], None]) -> Sequence[dict[str, Any]]:
    calls = {name: _call(method, model, horizon, batch_size) for name, method in METHODS.items()}
    model.zero_grad(set_to_none=True)
    flops = {name: count_flops(call) for name, call in calls.items()}
    times = take_turns(calls, repeats, progress)
    rows = []
    for name, call in calls.items():
        model.zero_grad(set_to_none=True)  # so that gradients count as made here
        rows.append({
            "method": name,
            "peak_bytes": peak_bytes(call),
            "replay_buffer_bytes": horizon * state_bytes(model.initial_state(batch_size)),
            "seconds": times[name]._asdict(),
            "flops": flops[name],
        })  # fmt: skip
    return rows


def _call(method: Callable[..., Any], model: Any, horizon: int, batch_size: int) -> Callable[[], Any]:
    generator, shape = torch.Generator().manual_seed(0), (horizon + 1, batch_size, model.config.segment_length)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator).to(next(model.parameters()).device)
    segments = [Segment(source, target) for source, target in pairwise(ids)]
    return lambda: method(model, segments, model.initial_state(batch_size))


def _add_ratios(rows: list[dict[str, Any]]) -> None:
    """What each method holds and how fast it is, relative to BPTT, and how fast its FLOPs let it be."""
    for row in rows:
        base = next(r for r in rows if r["method"] == "bptt" and (r["shape"], r["horizon"]) == (row["shape"], row["horizon"]))
        row["share_of_bytes"] = row["peak_bytes"] / base["peak_bytes"]
        row["speed"] = base["seconds"]["median"] / row["seconds"]["median"]
        row["allowed_speed"] = base["flops"] / row["flops"]


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("segments", "method", "MB", "share (paper)", "s", "speed (paper)", "allowed")
    table.title = "What each method holds and takes, relative to BPTT"
    for row in rows:
        paper = PAPER[row["method"]]
        table.add_row(
            f"{row['shape']}, {row['horizon']}",
            row["method"],
            f"{row['peak_bytes'] / 1e6:,.1f}",
            f"{row['share_of_bytes']:.2f} ({paper[0]:.2f})",
            f"{row['seconds']['median']:.2f}",
            f"{row['speed']:.2f} ({paper[1]:.2f})",
            f"{row['allowed_speed']:.2f}",
            end_section=row["method"] == "mrbp",
        )
    console.print(table)
