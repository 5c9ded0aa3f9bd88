"""`memformer bench step`: what one step of every model costs at equal width and depth."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch.backprop import bptt
from memformer_torch.bench.bytes import peak_bytes, state_bytes
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import take_turns, time_by_kind
from memformer_torch.models import MODELS
from memformer_torch.types import Segment

VOCAB_SIZE = 256


def step(
    d_model: int = 128,
    num_layers: int = 12,
    segment_length: int = 56,
    memory_length: int = 224,
    batch_size: int = 8,
    repeats: int = 7,
    device: str = "cpu",
    out: Path = Path("runs/bench/step.json"),
) -> None:
    """Time and bytes of a forward pass and of a training step, for every model at equal width and depth.

    Contestants take turns inside one run; memories are full; times are medians. A third of Memformer's layers encode.

    Args:
        d_model: Width of all models; the feed-forward branch is twice as wide, the LSTM as wide.
        num_layers: Layers of all models.
        segment_length: Tokens a step.
        memory_length: Tokens that Transformer-XL and Compressive remember and that the decoder has read.
        batch_size: Sequences side by side.
        repeats: Measurements of each.
        device: Where to run.
        out: The JSON file to write.
    """
    console = Console(markup=False)
    where = torch.device(device)
    configs = _configs(d_model, num_layers, segment_length, memory_length)
    forward: dict[str, Callable[[], Any]] = {}
    training: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    ids = torch.randint(VOCAB_SIZE, (batch_size, segment_length), generator=torch.Generator().manual_seed(0)).to(where)
    segment = Segment(ids, ids.flip(1))
    for name, config in configs.items():
        torch.manual_seed(0)
        model = MODELS[name][1](config).to(where)
        state = _full_state(model, segment, memory_length)
        forward[name] = partial(_forward, model, segment, state)
        training[name] = partial(_train, model, segment, state)
        rows[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "state_bytes": state_bytes(state),
            "config": asdict(config),
        }

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=2 * len(configs) * (repeats + 1))
        forward_times = take_turns(forward, repeats, lambda: progress.advance(task))
        training_times = take_turns(training, repeats, lambda: progress.advance(task))
    for name, row in rows.items():
        row["forward_seconds"], row["training_seconds"] = forward_times[name]._asdict(), training_times[name]._asdict()
        row["forward_bytes"], row["training_bytes"] = peak_bytes(forward[name]), peak_bytes(training[name])
        row["training_time_by_kind"] = time_by_kind(training[name])

    console.print(*_tables(rows))
    sizes = {"d_model": d_model, "num_layers": num_layers, "segment_length": segment_length, "memory_length": memory_length}
    command = "memformer bench step " + " ".join(f"--{name} {value}" for name, value in sizes.items())
    command += f" --batch_size {batch_size} --repeats {repeats} --device {device}"
    write_json(out, {"command": command, "seed": 0, "runs": repeats, "rows": rows, **environment()})
    console.print(f"Written: {out}")


@torch.no_grad()
def _forward(model: Any, segment: Segment, state: Any) -> None:
    model.eval()(segment, state)


def _train(model: Any, segment: Segment, state: Any) -> None:
    bptt(model.train(), [segment], state)


def _configs(d_model: int, num_layers: int, segment_length: int, memory_length: int) -> dict[str, Any]:
    if num_layers < 3:
        raise ValueError(f"num_layers is {num_layers}, but Memformer needs at least 3: a third of them encode")
    common = {"vocab_size": VOCAB_SIZE, "d_model": d_model, "segment_length": segment_length}
    attention = common | {"num_heads": max(1, d_model // 32), "d_ff": 2 * d_model}
    stacked = attention | {"num_layers": num_layers}
    encoders = num_layers // 3
    fields: dict[str, dict[str, Any]] = {
        "memformer": attention | {"num_encoder_layers": encoders, "num_decoder_layers": num_layers - encoders},
        "transformer-xl": stacked | {"memory_length": memory_length},
        "compressive": stacked | {"memory_length": memory_length, "compressed_length": memory_length // 4},
        "decoder": stacked | {"max_length": memory_length + 2 * segment_length},
        "lstm": common | {"num_layers": num_layers, "hidden_size": d_model},
        "rmt": stacked,
    }
    return {name: MODELS[name][0](**values) for name, values in fields.items()}


@torch.no_grad()
def _full_state(model: Any, segment: Segment, memory_length: int) -> Any:
    """The state after enough segments to fill every memory."""
    state = model.eval().initial_state(len(segment.source))
    for _ in range(-(-memory_length // segment.target.shape[1])):
        state = model.advance(segment, state)
    return state


def _tables(rows: dict[str, dict[str, Any]]) -> Iterator[Table]:
    costs = Table("model", "weights", "state", "forward", "training", "peak: forward", "training", title="one step")
    shares = Table("model", "where a training step's time goes")
    for name, row in rows.items():
        costs.add_row(
            name,
            f"{row['parameters'] / 1e6:.2f} M",
            _megabytes(row["state_bytes"]),
            _milliseconds(row["forward_seconds"]),
            _milliseconds(row["training_seconds"]),
            _megabytes(row["forward_bytes"]),
            _megabytes(row["training_bytes"]),
        )
        largest = list(row["training_time_by_kind"].items())[:4]
        shares.add_row(name, ", ".join(f"{kind} {share:.0%}" for kind, share in largest))
    yield costs
    yield shares


def _milliseconds(seconds: dict[str, float]) -> str:
    return f"{1e3 * seconds['median']:.0f} ms"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
