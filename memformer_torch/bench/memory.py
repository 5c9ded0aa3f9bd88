"""`memformer bench memory`: bytes held at inference against the size of the memory (section 4.1, the figure's right half)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from memformer_torch.analysis import pictures
from memformer_torch.bench.bytes import peak_bytes, state_bytes
from memformer_torch.bench.record import environment, write_json
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.types import Segment

VOCABULARY: dict[str, Any] = {"vocab_size": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
"""WikiText-103's words, in clusters."""
PAPER = 8.1
SIZES = {"transformer-xl": "memory_length", "memformer": "num_slots"}


def memory(
    memory_sizes: list[int] = [64, 128, 256, 512, 1024, 2048],  # noqa: B006  jsonargparse reads it, nothing writes it
    batch_size: int = 16,
    d_model: int = 512,
    device: str = "cpu",
    quick: bool = False,
    out: Path = Path("runs/bench/memory.json"),
) -> None:
    """Bytes that Transformer-XL (16 layers) and Memformer (4 + 16) hold at inference, by the size of their memory.

    The models are those of WikiText-103, with its adaptive embedding; segments have 128 tokens, gradients are off, memories
    are full. The vocabulary's output is left out: its logits would be the same for both, and larger than all else. The peak is
    of one step, above the weights: the state that goes in, and all tensors alive at once, the new state among them. Scratch
    space inside a kernel is not seen.

    Args:
        memory_sizes: Tokens that Transformer-XL remembers a layer, and slots of Memformer.
        batch_size: Sequences side by side.
        d_model: Width of both; the feed-forward branch is four times as wide, a head 64.
        device: Where to run.
        quick: Batch size 2, at 64, 512 and 2,048.
        out: The JSON file to write; the picture goes beside it.
    """
    if quick:
        memory_sizes, batch_size = [64, 512, 2048], 2
    console, where = Console(markup=False), torch.device(device)
    pictures.new_figure()  # an error now, not after the runs
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(memory_sizes) * len(SIZES))
        for size in memory_sizes:
            row: dict[str, Any] = {"memory_size": size}
            for name, field in SIZES.items():
                row[name] = _measure(make_model(name, d_model, where, **{field: size}), batch_size)
                progress.advance(task)
            xl, memformer = (row[name] for name in SIZES)
            row["ratio"] = {what: xl[what] / memformer[what] for what in ("state_bytes", "peak_bytes", "total_bytes")}
            rows.append(row)

    console.print(_table(rows))
    last = rows[-1]["ratio"]
    console.print(
        f"At {rows[-1]['memory_size']:,} memories and batch size {batch_size}, Memformer's state is {last['state_bytes']:.1f}, "
        f"its peak above the weights {last['peak_bytes']:.1f} and the total {last['total_bytes']:.1f} times below "
        f"Transformer-XL's; the paper says {PAPER}, of a large memory that it does not name."
    )
    command = f"memformer bench memory --memory_sizes {memory_sizes} --batch_size {batch_size} --d_model {d_model}"
    record = {"command": f"{command} --device {device}", "seed": 0, "runs": 1, "paper_ratio": PAPER, "rows": rows}
    write_json(out, record | environment())
    panels = {
        label: {name: {row["memory_size"]: row[name][what] / 1e6 for row in rows} for name in SIZES}
        for label, what in (("state, MB", "state_bytes"), ("peak above the weights, MB", "peak_bytes"))
    }
    pictures.log_lines(out.with_suffix(".png"), panels, "memories")
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def make_model(name: str, d_model: int, device: torch.device, **changes: Any) -> Any:
    """A model of Table 2, or a narrower one of its shape."""
    wide = {"d_model": d_model, "num_heads": max(1, d_model // 64), "d_ff": 4 * d_model}
    torch.manual_seed(0)
    config = MODELS[name][0](**VOCABULARY | PRESETS["text"][name] | wide | changes)
    return MODELS[name][1](config).to(device).eval()


def full_state(model: Any, batch_size: int) -> Any:
    """A state in which every memory is filled, with noise: what a step costs does not depend on what is remembered."""
    config, state = model.config, model.initial_state(batch_size)
    filled = {"length": "memory_length", "compressed_filled": "compressed_length"}
    members: dict[str, Tensor] = {}
    for name, member in state._asdict().items():
        count = getattr(config, filled.get(name, ""), 0)
        members[name] = torch.randn_like(member) if member.is_floating_point() else torch.full_like(member, count)
    return type(state)(**members)


def random_segment(model: Any, batch_size: int) -> Segment:
    """Ids as frequent as words are: about 1 / rank."""
    shape = (batch_size, 2 * model.config.segment_length)
    ranks = model.config.vocab_size ** torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source, target = (ranks.long() - 1).to(next(model.parameters()).device).chunk(2, dim=1)
    return Segment(source, target)


@contextmanager
def without_head(model: Any) -> Iterator[None]:
    """The model then hands out what it predicts from in place of logits."""
    with patch.object(model.embedding, "logits", lambda hidden: hidden):
        yield


@torch.no_grad()
def _measure(model: Any, batch_size: int) -> dict[str, Any]:
    state, segment = full_state(model, batch_size), random_segment(model, batch_size)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    with without_head(model):
        peak = state_bytes(state) + peak_bytes(lambda: model(segment, state))
    return {
        "state_bytes": state_bytes(state),
        "peak_bytes": peak,
        "weights_bytes": weights,
        "total_bytes": weights + peak,
        "config": asdict(model.config),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "memories", "", "Transformer-XL", "Memformer", "ratio", "(paper)", title="MB held at inference; total: peak and weights"
    )
    labels = {"state_bytes": "state", "peak_bytes": "peak", "total_bytes": "total"}
    for row in rows:
        for what, ratio in row["ratio"].items():
            paper = f"({PAPER})" if row is rows[-1] and what == "total_bytes" else ""
            megabytes = (f"{row[name][what] / 1e6:,.1f}" for name in SIZES)
            table.add_row(f"{row['memory_size']:,}", labels[what], *megabytes, f"{ratio:.2f}", paper)
        table.add_section()
    return table
