"""`memformer bench gradients`: what BPTT, gradient checkpointing and MRBP cost (appendix A)."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.bench.bytes import peak_bytes, state_bytes
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import take_turns
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.types import Segment

METHODS = {"bptt": bptt, "checkpointed": checkpointed, "mrbp": mrbp}
PAPER = {"bptt": (1.0, 1.0), "checkpointed": (9885 / 16177, 0.48), "mrbp": (7229 / 16177, 0.90)}  # memory, speed


def gradients(
    batch_size: int = 16,
    horizons: list[int] = [1, 8, 32],  # noqa: B006  jsonargparse reads it, nothing writes it
    repeats: int = 5,
    device: str = "cpu",
    out: Path = Path("runs/bench/gradients.json"),
) -> None:
    """Peak bytes and speed of the three gradient methods, at the paper's image model.

    Bytes are those of all tensors alive beside weights, optimizer and input: what is recomputed, the gradients and the
    replay buffer count. Methods take turns inside one run; times are medians.

    Args:
        batch_size: Sequences side by side.
        horizons: Segments in a rollout.
        repeats: Measurements of each.
        device: Where to run.
        out: The JSON file to write.
    """
    console = Console()
    where = torch.device(device)
    config_class, model_class = MODELS["memformer"]
    config = config_class(**PRESETS["image"]["memformer"])
    torch.manual_seed(0)
    model = model_class(config).to(where).train()
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(horizons) * len(METHODS) * (repeats + 1))
        for horizon in horizons:
            calls = {name: _call(method, model, horizon, batch_size, where) for name, method in METHODS.items()}
            times = take_turns(calls, repeats, lambda: progress.advance(task))
            buffer = horizon * state_bytes(model.initial_state(batch_size))
            for name, call in calls.items():
                model.zero_grad(set_to_none=True)
                cost: dict[str, Any] = {"peak_bytes": peak_bytes(call), "replay_buffer_bytes": buffer}
                rows.append({"horizon": horizon, "method": name} | cost | {"seconds": times[name]._asdict()})

    table = Table("", "method", "peak MB", "share", "(paper)", "buffer", "seconds", "speed", "(paper)")
    table.title = "segments, and what each method holds and takes; share and speed are relative to BPTT"
    for row in rows:
        base = next(r for r in rows if r["horizon"] == row["horizon"] and r["method"] == "bptt")
        paper = PAPER[row["method"]]
        table.add_row(
            str(row["horizon"]),
            row["method"],
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['peak_bytes'] / base['peak_bytes']:.2f}",
            f"({paper[0]:.2f})",
            f"{row['replay_buffer_bytes'] / 1e6:.1f}",
            f"{row['seconds']['median']:.2f}",
            f"{base['seconds']['median'] / row['seconds']['median']:.2f}",
            f"({paper[1]:.2f})",
        )
    console.print(table)
    command = f"memformer bench gradients --batch_size {batch_size} --horizons {horizons} --repeats {repeats} --device {device}"
    write_json(out, {"command": command, "seed": 0, "runs": repeats, "config": asdict(config), "rows": rows, **environment()})
    console.print(f"Written: {out}")


def _call(method: Callable[..., Any], model: Any, horizon: int, batch_size: int, device: torch.device) -> Callable[[], Any]:
    generator, shape = torch.Generator().manual_seed(0), (horizon + 1, batch_size, model.config.segment_length)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator).to(device)
    segments = [Segment(source, target) for source, target in pairwise(ids)]
    return lambda: method(model, segments, model.initial_state(batch_size))
