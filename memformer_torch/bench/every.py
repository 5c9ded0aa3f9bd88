"""`memformer bench all`: the paper's efficiency figures, one after another."""

import time
from pathlib import Path

from rich.console import Console

from memformer_torch.bench.ceiling import ceiling
from memformer_torch.bench.generate import generate
from memformer_torch.bench.gradients import gradients
from memformer_torch.bench.inference import inference
from memformer_torch.bench.length import length
from memformer_torch.bench.memory import memory
from memformer_torch.bench.peers import peers

BENCHES = {
    "gradients": gradients,
    "length": length,
    "memory": memory,
    "inference": inference,
    "generate": generate,
    "ceiling": ceiling,
    "peers": peers,
}


def every(quick: bool = False, out: Path = Path("runs/bench")) -> None:
    """Gradients, length, memory, inference, generate, ceiling and peers, one after another: minutes if quick, else an hour.

    Args:
        quick: Smaller sizes and fewer repeats.
        out: Folder for the JSON files and pictures, one of each a bench.
    """
    console = Console(markup=False)
    for name, bench in BENCHES.items():
        start = time.perf_counter()
        console.rule(name)
        bench(quick=quick, out=out / f"{name}.json")  # type: ignore[operator]  # all take these two
        console.print(f"{name}: {time.perf_counter() - start:.0f} s")
