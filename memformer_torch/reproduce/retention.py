"""Is a value still known after thousands of segments? Memformer, without its parts, and the baselines, at equal state."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from memformer_torch.analysis import pictures
from memformer_torch.reproduce.plan import as_time
from memformer_torch.reproduce.report import Experiment, Grid, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.table import SEEDS, Budget, Table, Variant
from memformer_torch.reproduce.tasks import task_row

DISTANCES = tuple(2**n for n in range(13))
SHOWN = (1, 8, 64, 1024, 4096)
MOST_DISTRACTORS = 8  # in training
LENGTH = 4
WIDTH = {"d_model": 64, "segment_length": LENGTH, "dropout": 0.2}
ATTENTION = WIDTH | {"num_heads": 4, "d_ff": 128}
TWO = ATTENTION | {"num_layers": 2}
MEMFORMER = {
    "name": "memformer",
    **ATTENTION,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "num_slots": 8,
    "num_cls_tokens": 4,
    "bias_length": 1.5,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "memformer": ("Memformer, 8 slots", MEMFORMER),
    "without-memory": ("Memformer w/o memory", MEMFORMER | {"num_slots": 0}),
    "without-forgetting": ("Memformer w/o forgetting", MEMFORMER | {"forgetting": False}),
    "without-forgetting-and-norm": (
        "Memformer w/o forgetting, w/o norm",
        MEMFORMER | {"forgetting": False, "memory_norm": False},
    ),
    "lstm": ("LSTM, 2 layers of 128", {"name": "lstm", **WIDTH, "num_layers": 2, "hidden_size": 128}),
    "rmt": ("Recurrent Memory Transformer, 8 tokens", {"name": "rmt", **TWO, "num_memory_tokens": 8}),
    "transformer-xl": ("Transformer-XL, memory 4", {"name": "transformer-xl", **TWO, "memory_length": 4}),
    "transformer-xl-64": ("Transformer-XL, memory 64", {"name": "transformer-xl", **TWO, "memory_length": 64}),
    "compressive": (
        "Compressive, 2 + 2",
        {"name": "compressive", **TWO, "memory_length": 2, "compressed_length": 2, "compression_ratio": 2},
    ),
    "compressive-64": (
        "Compressive, 32 + 32",
        {"name": "compressive", **TWO, "memory_length": 32, "compressed_length": 32, "compression_ratio": 4},
    ),
}
RECIPE = {
    "task": "retention",
    "options": {"segment_length": LENGTH},
    "distractors": MOST_DISTRACTORS,
    "updates": 1500,
    "batch_size": 64,
    "warm_up": 50,
    "look_every": 50,
    "look_at": (8, 256),
    "read": {"1": DISTANCES},
}
NOTE = (
    f"Trained with at most {MOST_DISTRACTORS} distracting segments of {LENGTH} tokens; chance is 1/8. Every row has at most "
    f"{RECIPE['updates']} updates of {RECIPE['batch_size']} documents, and stops before once a separate reading of 8 and of "
    "256 distractors has no mistake, twice in a row; the weights that did best on that reading are read. The loss is that of "
    "the answer alone, for all models. The first of each name has a state of 512 numbers, as Memformer has; the others show "
    "what a larger memory changes: a range, not more. Transformer-XL reaches back memory times layers, 8 and 128 tokens (2 and "
    "32 segments); Compressive's compressed part reaches further by its ratio. The most updates were 900 at first, and were "
    "raised for all rows after one of Memformer's three seeds had 0.91 at 1,024 segments by then."
)


def table(scale: str) -> Table:
    """The same at both scales: the paper has no such experiment."""
    variants = [
        Variant(label=label, slug=slug, model=model, seeds=SEEDS if slug == "memformer" else 1)
        for slug, (label, model) in VARIANTS.items()
    ]
    return Table(
        experiment="retention",
        scale=scale,
        data={},
        budget=Budget(train=RECIPE, rates=(1e-3, 2e-3, 4e-3), tuning={"updates": 450}),
        variants=variants,
        work=task_row,
        seconds=150.0,
    )


def report(table: Table, results: Results) -> Report:
    found = table.found(results)
    rates = {family: table.rate(family, results) for family in table.families}
    columns = (
        "model",
        "parameters",
        "numbers of state",
        *[f"at {distance:,}" for distance in SHOWN],
        "seeds",
        "updates",
        "time",
    )
    lines = [_line(variant, found[variant.slug]) for variant in table.variants if found[variant.slug]]
    chosen = ", ".join(f"{family} {rate:g}" for family, rate in rates.items() if rate is not None)
    grid = ", ".join(f"{rate:g}" for rate in table.budget.rates)
    title = "Is the value still known after this many segments? Median accuracy, and the least"
    spent = sum(run["seconds"] for runs in found.values() for run in runs)
    return Report(
        title="Retention: a value held across distracting segments",
        grids=[Grid(title=title, columns=columns, lines=lines)],
        notes=[
            NOTE,
            f"Learning rates, of {grid}, by that reading after at most {table.budget.tuning['updates']} updates: {chosen}.",
            f"Machine time of the rows above, one core each: {as_time(spent)}.",
        ],
        draw=partial(_draw, table, found),
        brief=Grid(title=title, columns=columns[:-2], lines=[line[:-2] for line in lines]),
        summary="Accuracy: the median over seeds, and in brackets the least where seeds differ. Chance is 0.125. The most "
        "updates were raised from 900 to 1,500, for all rows, after one of Memformer's seeds had 0.91 at 1,024 by then.",
    )


def as_share(shares: Sequence[float]) -> str:
    """Median, and the least where they differ."""
    least = f" ({min(shares):.3f})" if min(shares) < max(shares) else ""
    return f"{median(shares):.3f}{least}"


def accuracies(runs: Sequence[dict[str, Any]], pairs: str, distance: int) -> list[float]:
    return [run["accuracy"][pairs][str(distance)] for run in runs]


def _line(variant: Variant, runs: Sequence[dict[str, Any]]) -> list[str]:
    return [
        variant.label,
        f"{runs[0]['parameters']:,}",
        f"{runs[0]['state_floats']:,}",
        *[as_share(accuracies(runs, "1", distance)) for distance in SHOWN],
        str(len(runs)),
        f"{median(run['updates'] for run in runs):,.0f}",
        as_time(median(run["seconds"] for run in runs)),
    ]


def _draw(table: Table, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    curves = {
        variant.label: {distance: median(accuracies(found[variant.slug], "1", distance)) for distance in DISTANCES}
        for variant in table.variants
        if found[variant.slug]
    }
    pictures.accuracy_by_distance(path, curves, 1 / 8, MOST_DISTRACTORS)


def retention(scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name="retention", rows=chosen.rows, report=partial(report, chosen))
