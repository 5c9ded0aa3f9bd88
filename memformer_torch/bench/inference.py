"""`memformer bench inference`: what a segment and a token cost at the sizes of Table 2."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.bench.flops import Sizes, count_flops, segment_flops
from memformer_torch.bench.memory import full_state, make_model, random_segment, without_head
from memformer_torch.bench.record import environment, write_json
from memformer_torch.bench.timing import take_turns
from memformer_torch.lanes import Lanes, Window
from memformer_torch.types import Segment

BASE, RIVAL = "Memformer 4+16", "Transformer-XL 1024"
TABLE: dict[str, tuple[str, dict[str, int], float]] = {
    "Transformer-XL 1600": ("transformer-xl", {"memory_length": 1600}, 250),
    RIVAL: ("transformer-xl", {"memory_length": 1024}, 168),
    "Transformer-XL 512": ("transformer-xl", {"memory_length": 512}, 94),
    "Transformer-XL 256": ("transformer-xl", {"memory_length": 256}, 58),
    "Transformer-XL 128": ("transformer-xl", {"memory_length": 128}, 39),
    "Transformer-XL 32": ("transformer-xl", {"memory_length": 32}, 26),
    "Compressive 512+512": ("compressive", {"memory_length": 512, "compressed_length": 512}, 172),
    BASE: ("memformer", {}, 54),
    "Memformer 4+12": ("memformer", {"num_decoder_layers": 12}, 48),
    "Memformer, 512 slots": ("memformer", {"num_slots": 512}, 35),
    "Memformer, no memory": ("memformer", {"num_slots": 0}, 31),
}
"""The rows of Table 2: model, what is not as in `PRESETS`, the paper's FLOPs in billions."""
QUICK = (RIVAL, "Compressive 512+512", BASE)
BOTH, GENERATION = ("without_head", "with_head"), ("with_head",)


def inference(
    batch_sizes: list[int] = [1],  # noqa: B006  jsonargparse reads it, nothing writes it
    d_model: int = 512,
    repeats: int = 5,
    device: str = "cpu",
    quick: bool = False,
    out: Path = Path("runs/bench/inference.json"),
) -> None:
    """FLOPs and time a segment of every row of Table 2, and a generated token of Transformer-XL 1024 against Memformer.

    Segments have 128 tokens, memories are full, gradients are off; with the head, all 267,735 words get their probability.
    FLOPs are counted, two a multiply-add; models take turns, times are medians. A token's cost is a 128th of a whole segment,
    generated token by token through caches.

    Args:
        batch_sizes: Sequences side by side; 16 takes some 16 times as long as 1, and 10 GB.
        d_model: Width of all models; the feed-forward branch is four times as wide, a head 64.
        repeats: Measurements of each.
        device: Where to run.
        quick: Transformer-XL 1024, Compressive and Memformer alone, once.
        out: The JSON file to write; the picture goes beside it.
    """
    chosen = {label: row for label, row in TABLE.items() if not quick or label in QUICK}
    if quick:
        repeats = 1
    console, where = Console(markup=False), torch.device(device)
    pictures.new_figure()  # an error now, not after the runs
    models = {label: make_model(name, d_model, where, **changes) for label, (name, changes, _) in chosen.items()}
    record: dict[str, Any] = {"segments": {}, "generation": {}}
    two, length = {label: models[label] for label in (RIVAL, BASE)}, models[BASE].config.segment_length
    with Progress(console=console, transient=True) as progress:
        calls = len(BOTH) * len(models) + len(GENERATION) * len(two)
        task = progress.add_task("measuring", total=len(batch_sizes) * (repeats + 2) * calls)
        measure = partial(_measure, repeats=repeats, advance=partial(progress.advance, task))
        for batch_size in batch_sizes:
            record["segments"][batch_size] = measure(models, step, BOTH, batch_size, parts=1)
            record["generation"][batch_size] = measure(two, generate, GENERATION, batch_size, parts=length)

    for batch_size in batch_sizes:
        console.print(*_segment_tables(record["segments"][batch_size], batch_size))
        console.print(_token_table(record["generation"][batch_size], batch_size))
    record["slot"] = _cost_of_a_slot(models[RIVAL].config)
    console.print(_summary(record, batch_sizes[0]))
    command = f"memformer bench inference --batch_sizes {batch_sizes} --d_model {d_model} --repeats {repeats} --device {device}"
    facts = {"command": command + (" --quick" if quick else ""), "seed": 0, "runs": repeats}
    configs = {label: asdict(model.config) for label, model in models.items()}
    write_json(out, facts | record | {"configs": configs, "paper": {n: row[2] for n, row in chosen.items()}} | environment())
    ratios = {label: _ratios(record["segments"][batch_sizes[0]], label) for label in models}
    pictures.grouped_bars(out.with_suffix(".png"), ratios, "relative to Memformer 4+16")
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


@torch.no_grad()
def step(model: Any, segment: Segment, state: Any, head: bool) -> None:
    """One forward pass."""
    with nullcontext() if head else without_head(model):
        model(segment, state)


@torch.no_grad()
def generate(model: Any, segment: Segment, state: Any, head: bool) -> None:
    """A whole segment behind the source, token by token; without the head, which ids are chosen means nothing."""
    lanes = Lanes(model, len(segment.source))
    lanes.state, lanes.window = state, Window(segment.source, lanes.window.inputs)
    lanes.window.inputs[:, 0] = segment.source[:, -1]
    with nullcontext() if head else without_head(model):
        for _ in range(lanes.length):
            lanes.append(lanes.next_logits().argmax(-1) % model.config.vocab_size)


def _measure(
    models: dict[str, Any],
    run: Callable[..., None],
    heads: tuple[str, ...],
    batch_size: int,
    parts: int,
    repeats: int,
    advance: Callable[[], None],
) -> dict[str, dict[str, Any]]:
    """FLOPs and seconds of one of a run's parts, by model and head."""
    given = {name: (model, random_segment(model, batch_size), full_state(model, batch_size)) for name, model in models.items()}
    rows: dict[str, dict[str, Any]] = {name: {} for name in models}
    for head in heads:
        calls = {name: partial(run, *arguments, head == "with_head") for name, arguments in given.items()}
        for name, call in calls.items():
            rows[name][head] = {"flops": count_flops(call) // parts}
            advance()
        for name, taken in take_turns(calls, repeats, advance).items():
            rows[name][head]["seconds"] = {what: value / parts for what, value in taken._asdict().items()}
    return rows


def _ratios(rows: dict[str, Any], label: str) -> dict[str, float]:
    """What a row of Table 2 costs, relative to Memformer: here without the head, and in the paper."""
    row, base = rows[label]["without_head"], rows[BASE]["without_head"]
    return {
        "FLOPs": row["flops"] / base["flops"],
        "time": row["seconds"]["median"] / base["seconds"]["median"],
        "FLOPs in the paper": TABLE[label][2] / TABLE[BASE][2],
    }


def _cost_of_a_slot(config: Any) -> dict[str, float]:
    """What one more memory costs Transformer-XL, here and by the paper's column; and a token that remembers nothing."""
    few, many = 32, 1600
    length = config.segment_length

    def flops(slots: int) -> int:
        known = type(config)(**asdict(config) | {"memory_length": slots})
        return segment_flops("transformer-xl", known, Sizes(1, length, length, slots), head=False)

    here, paper = flops(many) - flops(few), 1e9 * (TABLE["Transformer-XL 1600"][2] - TABLE["Transformer-XL 32"][2])
    return {"flops": here / (many - few), "paper": paper / (many - few), "token": flops(0) / length}


def _segment_tables(rows: dict[str, Any], batch_size: int) -> Iterator[Table]:
    flops = Table("GFLOP", "here", "x", "paper", "x", "x : x", "+ head", "x")
    flops.title = f"a segment of each of {batch_size} sequences; x is relative to {BASE}"
    times = Table("milliseconds", "here", "x", "+ head", "x", title="the same: median (fastest to slowest)")
    base = rows[BASE]["with_head"]
    for label, row in rows.items():
        ratio, bare, whole = _ratios(rows, label), row["without_head"], row["with_head"]
        flops.add_row(
            label,
            f"{bare['flops'] / 1e9:.1f}",
            f"{ratio['FLOPs']:.2f}",
            f"{TABLE[label][2]}",
            f"{ratio['FLOPs in the paper']:.2f}",
            f"{ratio['FLOPs'] / ratio['FLOPs in the paper']:.2f}",
            f"{whole['flops'] / 1e9:.1f}",
            f"{whole['flops'] / base['flops']:.2f}",
        )
        head_ratio = whole["seconds"]["median"] / base["seconds"]["median"]
        both = _milliseconds(bare["seconds"]), _milliseconds(whole["seconds"])
        times.add_row(label, both[0], f"{ratio['time']:.2f}", both[1], f"{head_ratio:.2f}")
    yield flops
    yield times


def _token_table(rows: dict[str, Any], batch_size: int) -> Table:
    table = Table("", "MFLOP", "milliseconds", title=f"a generated token with head, batch size {batch_size}")
    for label, row in rows.items():
        table.add_row(label, f"{row['with_head']['flops'] / 1e6:.1f}", _milliseconds(row["with_head"]["seconds"]))
    return table


def _summary(record: dict[str, Any], batch_size: int) -> str:
    ratio, tokens, slot = _ratios(record["segments"][batch_size], RIVAL), record["generation"][batch_size], record["slot"]
    rival, base = (tokens[label]["with_head"]["seconds"]["median"] for label in (RIVAL, BASE))
    return (
        f"At batch size {batch_size} a segment costs {RIVAL} {ratio['FLOPs']:.2f} times the FLOPs of {BASE} and "
        f"{ratio['time']:.2f} times the time, a generated token {rival / base:.2f} times the time; the paper's columns give "
        f"{ratio['FLOPs in the paper']:.1f}, its text 3.2. One more memory costs Transformer-XL {slot['flops'] / 1e6:.0f} M "
        f"FLOPs a segment here, {slot['paper'] / 1e6:.0f} M in the paper's column; a token of its segment costs "
        f"{slot['token'] / 1e6:.0f} M here."
    )


def _milliseconds(seconds: dict[str, float]) -> str:
    return f"{1e3 * seconds['median']:.0f} ({1e3 * seconds['fastest']:.0f}-{1e3 * seconds['slowest']:.0f})"
