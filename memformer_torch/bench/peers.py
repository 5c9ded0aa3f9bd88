"""`memformer bench peers`: an update and a forward pass against other public implementations, at equal shapes and work."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.bench import peer_worker
from memformer_torch.bench.record import environment, write_json

PAIRS = {"our memformer": "memformer", "our rmt": "recurrent-memory-transformer-pytorch"}
"""Ours -> the peer that implements the same paper; both as in `peer_worker`."""
REQUIREMENTS = {
    "memformer": ["memformer==0.3.1", "einops==0.8.2"],
    "recurrent-memory-transformer-pytorch": [
        "recurrent-memory-transformer-pytorch==0.7.0",
        "hyper-connections==0.4.11",
        "torch-einops-utils==0.2.0",
        "einops==0.8.2",
        "packaging==26.3",  # imported, but not among its requirements
    ],
}
"""What a peer needs beside torch: the extra `[peers]`."""
COMPARED = {
    "all": "Random ids and weights, float32, one thread, a process each; no dropout. Width, heads, layers, feed-forward "
    "multiply-adds, slots, batch, segments and their length are equal. An update is the gradients of the mean loss over all "
    "segments, with a loss on every one, and a step of AdamW; bptt keeps one graph over all, mrbp one segment's at a time. A "
    "forward is the loss of one segment, without gradients. A ratio is the peer's seconds over ours, turn by turn.",
    "our memformer": "Fused attention, rotary positions, one embedding for encoder, decoder and logits, no classification "
    "tokens. The writer is linear in slots: a slot sees itself and the tokens, then a bias and a norm.",
    "memformer": "Attention in single steps, learned relative positions, three embeddings. The writer scores every slot with "
    "every slot, quadratic in slots, masks all but its own, then runs a GRU cell and a feed-forward branch over the slots: "
    "more parameters and multiply-adds than ours. bptt and mrbp are loops around its forward pass, with a target for every "
    "segment; 'its own mrbp' is its function memory_replay_backprop, which has a loss on the last segment alone: less work, "
    "so it is not compared with ours.",
    "our rmt": "Fused attention, rotary positions, GELU. The last layer has no queries where the memory is read: with much "
    "more memory than tokens it does nearly half the work. mrbp's first pass computes the memory alone, and not for the last "
    "segment.",
    "recurrent-memory-transformer-pytorch": "Fused attention (use_flash_attn), absolute positions, GEGLU of two thirds the "
    "width (equal multiply-adds), a learned mix with the first layer's values. Switched off for equal work: Transformer-XL's "
    "memories, hyper-connections (one residual stream), the embedding's smaller gradient. bptt and mrbp are its own; mrbp's "
    "first pass computes logits and loss too, for all segments.",
}
"""What is measured, and what each contestant computes."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    d_model: int
    num_slots: int
    batch_size: int
    num_segments: int
    num_heads: int
    num_encoder_layers: int
    """Memformer's; the other has as many layers as encoder and decoder together."""
    num_decoder_layers: int
    segment_length: int = 64
    vocab_size: int = 256

    @property
    def sizes(self) -> dict[str, int]:
        return asdict(self) | {"d_ff": 4 * self.d_model}  # which one peer cannot change

    def __str__(self) -> str:
        return f"width {self.d_model}, {self.num_slots:,} slots"


_NARROW, _WIDE = {"d_model": 128, "num_heads": 4}, {"d_model": 512, "num_heads": 8}
_MANY, _SOME = {"num_encoder_layers": 4, "num_decoder_layers": 8}, {"num_encoder_layers": 2, "num_decoder_layers": 4}
FULL = {
    "our memformer": [
        Shape(**_NARROW, **_MANY, num_slots=64, batch_size=8, num_segments=4),
        Shape(**_NARROW, **_MANY, num_slots=1024, batch_size=2, num_segments=4),
        Shape(**_WIDE, **_MANY, num_slots=64, batch_size=2, num_segments=2),
        Shape(**_WIDE, **_MANY, num_slots=1024, batch_size=1, num_segments=2),
    ],
    "our rmt": [  # 1,024 memory tokens stand twice in its sequence: at width 512 an update would take minutes
        Shape(**_NARROW, **_SOME, num_slots=64, batch_size=4, num_segments=4),
        Shape(**_NARROW, **_SOME, num_slots=1024, batch_size=1, num_segments=2),
        Shape(**_WIDE, **_SOME, num_slots=64, batch_size=1, num_segments=2),
    ],
}
QUICK = {
    "our memformer": [
        Shape(**_NARROW, **_SOME, num_slots=64, batch_size=2, num_segments=2),
        Shape(**_NARROW, **_SOME, num_slots=1024, batch_size=1, num_segments=2),
    ],
    "our rmt": [Shape(**_NARROW, **_SOME, num_slots=64, batch_size=1, num_segments=2)],
}
"""By what of ours is measured."""


def peers(
    quick: bool = False,
    repeats: int | None = None,
    install: bool = False,
    python: Path = Path(".venv-peers/bin/python"),
    device: str = "cpu",
    out: Path = Path("runs/bench/peers.json"),
) -> None:
    """Time and memory of a training update and a forward pass: ours, and other public implementations of the same models.

    Each contestant is a process of its own with one thread; they take turns, so that one computes at a time. The peers live
    in an environment apart from ours; one that is not there or does not run has a row that says why. Writes a picture beside
    the JSON.

    Args:
        quick: Smaller models, and fewer shapes.
        repeats: Turns of each; 5, or 3 if quick.
        install: Make the peers' environment first, from the network, at the place of `python`.
        python: The interpreter that has the peers.
        device: Where to run.
        out: The JSON file to write.
    """
    console, shapes, repeats = Console(markup=False), QUICK if quick else FULL, repeats or (3 if quick else 5)
    if install:
        for name, reason in install_peers(python).items():
            console.print(f"{name} does not install: {reason}")
    measured = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=sum(map(len, shapes.values())))
        for ours, peer in PAIRS.items():
            for shape in shapes[ours]:
                found = compare((ours, peer), shape, repeats, python, device)
                measured.append({"shape": str(shape), "sizes": shape.sizes, **found})
                progress.advance(task)

    console.print(*map(_table, measured))
    command = f"memformer bench peers{' --quick' if quick else ''} --repeats {repeats} --device {device}"
    record = {"command": command, "seed": 0, "runs": repeats, "compared": COMPARED, "measured": measured}
    write_json(out, record | environment() | {"threads_a_worker": 1})
    pictures.times_against_peers(out.with_suffix(".png"), _ratios(measured))
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def install_peers(python: Path) -> dict[str, str]:
    """Make an environment with this torch and the peers; returns what does not install, and why."""
    folder, reasons = python.parent.parent, {}
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    ours = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "numpy")]
    for name, requirements in REQUIREMENTS.items():
        # our torch is asked for each time: another would bring other kernels
        command = [str(python), "-m", "pip", "install", "--quiet", *ours, *requirements]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reasons[name] = _last_line(done.stderr)
    return reasons


def compare(names: tuple[str, str], shape: Shape, repeats: int, python: Path, device: str) -> dict[str, Any]:
    """Both contestants at one shape: what each is, its seconds and memory by task, and the ratios; or why not."""
    contestants: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers = {}
        for name in names:
            try:
                worker = stack.enter_context(Worker(name, shape, python, device))
                contestants[name] = worker.describe()
                workers[name] = worker
            except WorkerError as error:
                contestants[name] = {"fails": str(error)}
        for name, costs in time_in_turns(workers, repeats).items():
            contestants[name]["costs"] = costs
    ours, theirs = (contestants[name].get("costs", {}) for name in names)
    ratios = {}
    for task, their in theirs.items():
        if "turns" in their and "turns" in ours.get(task, {}):
            ratios[task] = _spread([one / other for one, other in zip(their["turns"], ours[task]["turns"], strict=True)])
    return {"ours": names[0], "peer": names[1], "contestants": contestants, "peer_over_ours": ratios}


def time_in_turns(workers: Mapping[str, Any], repeats: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Seconds and resident bytes by contestant and task; to describe itself, a worker has run all before."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in workers}
    for task in dict.fromkeys(task for worker in workers.values() for task in worker.tasks):
        turns: dict[str, list[float]] = {name: [] for name, worker in workers.items() if task in worker.tasks}
        for _ in range(repeats):
            for name in list(turns):
                try:
                    turns[name].append(workers[name].ask("seconds", task))
                except WorkerError as error:
                    found[name][task] = {"fails": str(error)}
                    del turns[name]
        for name, taken in turns.items():
            found[name][task] = _spread(taken) | {"turns": taken}
    # last, as what is measured gives its free memory back, and the next turn would have to fetch it again
    for name, costs in found.items():
        for task, cost in costs.items():
            with suppress(WorkerError):
                cost["resident"] = workers[name].ask("resident_bytes", task)
    return found


class WorkerError(Exception):
    """A contestant that cannot go on, and why."""


class Worker:
    """A process that computes when it is asked, and waits without using the processor otherwise."""

    def __init__(self, name: str, shape: Shape, python: Path, device: str) -> None:
        environment, command = dict(os.environ, OMP_NUM_THREADS="1"), [sys.executable, "-m", peer_worker.__name__]
        if name in PAIRS.values():
            if not python.exists():
                raise WorkerError(f"not installed: there is no {python}; `memformer bench peers --install` makes it")
            environment["PYTHONSAFEPATH"] = "1"  # this folder's files are no modules of theirs
            command = [str(python), peer_worker.__file__]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the worker
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self._send({"name": name, "sizes": shape.sizes, "device": device})

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.kill()
        self.process.communicate()  # closes the pipes
        self.errors.close()

    def describe(self) -> dict[str, Any]:
        """What the contestant is; from now on `tasks` are known."""
        about = self.ask("describe")
        self.tasks: list[str] = about.pop("tasks")
        return about

    def ask(self, *request: str) -> Any:
        self._send(request)
        answer = self.process.stdout.readline()  # type: ignore[union-attr]
        if not answer:
            self.process.wait()
            self.errors.seek(0)
            raise WorkerError(_last_line(self.errors.read()))
        return json.loads(answer)

    def _send(self, request: Any) -> None:
        with suppress(BrokenPipeError):  # it has ended: reading will say why
            print(json.dumps(request), file=self.process.stdin, flush=True)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _ratios(measured: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, float]]]:
    """By shape and peer, then by task."""
    return {f"{row['peer']}\n{row['shape']}": row["peer_over_ours"] for row in measured if row["peer_over_ours"]}


def _table(row: Mapping[str, Any]) -> Table:
    sizes, contestants = row["sizes"], row["contestants"]
    layers = f"{sizes['num_encoder_layers'] + sizes['num_decoder_layers']} layers"
    table = Table("", "ours", "peer", "peer / ours", "spread", "memory: ours", "peer")
    table.title = f"{row['peer']}: {row['shape']}, {layers}, {sizes['batch_size']} x {sizes['num_segments']} segments"
    both = [contestants[row[side]] for side in ("ours", "peer")]
    table.add_row("weights", *(f"{found['parameters'] / 1e6:.2f} M" if "parameters" in found else "" for found in both))
    flops = [f"{found['forward_flops'] / 1e9:.2f} G" if "forward_flops" in found else "" for found in both]
    table.add_row("FLOPs of a forward", *flops)
    for task in dict.fromkeys(task for found in both for task in found.get("costs", {})):
        costs, ratio = [found.get("costs", {}).get(task, {}) for found in both], row["peer_over_ours"].get(task)
        times = [f"{1e3 * cost['median']:.1f} ms" if "median" in cost else "" for cost in costs]
        shown = [f"{ratio['median']:.2f}", f"{ratio['least']:.2f} to {ratio['most']:.2f}"] if ratio else ["", ""]
        table.add_row(task, *times, *shown, *(_added(cost) for cost in costs))
    table.caption = "\n".join(f"{name}: {reason}" for name, found in contestants.items() for reason in _reasons(found))
    return table


def _added(cost: Mapping[str, Any]) -> str:
    """What a task takes beside libraries and weights."""
    resident = cost.get("resident")
    return f"+{(resident['peak'] - resident['before']) / 1e6:.0f} MB" if resident else ""


def _reasons(found: Mapping[str, Any]) -> list[str]:
    """Why something of a contestant has no time."""
    parts = [found, *found.get("gradients", {}).values(), *found.get("costs", {}).values()]
    return [part["fails"] for part in parts if "fails" in part]
