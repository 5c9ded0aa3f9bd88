"""How many pairs can the memory bind, and for how long? Memformer with both wirings of its decoder.

A memory that binds, and a way to it over the encoder, are hardly learned at once: the paper's wiring is also started from the
weights of a decoder that reads the memory, and is asked a segment ahead, so that the encoder knows what to look up.

Three things decide whether binding is learned at all; docs/notes.md says how they were found, and what else was tried.
The first two are about parameters that are small: AdamW moves a number by the learning rate, whatever its size.

- The embedding's table, of std 1/sqrt(d), gets a share of the rate as large: keys stay apart from one another.
- The forgetting vectors begin short, and get so small a share that they stay so: what a slot holds then lasts.
- Queries and keys have biases, so that a value soon attends to the token before it, which is its key.
"""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from memformer_torch.analysis import pictures
from memformer_torch.reproduce.plan import as_time
from memformer_torch.reproduce.report import Experiment, Grid, Report
from memformer_torch.reproduce.retention import accuracies, as_share
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.table import SEEDS, Budget, Table, Variant
from memformer_torch.reproduce.tasks import task_row

PAIRS = (1, 2, 4, 8, 16)
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64)
SHOWN = (8, 64)  # in brief: the farthest of training, and eight times that
MOST_DISTRACTORS = 8  # in training, after each segment of pairs
LENGTH = 9
MEMFORMER: dict[str, Any] = {
    "name": "memformer",
    "d_model": 64,
    "num_heads": 4,
    "d_ff": 128,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "segment_length": LENGTH,
    "num_slots": 32,
    "bias_length": 0.01,
    "position_bias": 1.0,
    "dropout": 0.0,
}
RECIPE: dict[str, Any] = {
    "task": "recall",
    "options": {"segment_length": LENGTH, "pairs_per_segment": 4},
    "first_pairs": 4,
    "pairs": 16,
    "distractors": MOST_DISTRACTORS,
    "updates": 3000,
    "shares": {"embedding.": 0.125, "forgetting.": 0.005},
    "batch_size": 64,
    "look_every": 200,
    "look_at": (0, 8, 64),
    "read": {str(pairs): DISTANCES for pairs in PAIRS},
}
NOTE = (
    f"Pairs of one of 16 keys and 16 values, four a segment of {LENGTH} tokens; after each such segment as many segments "
    "of noise as the column says; then up to four keys are asked for. Trained with at most "
    f"{MOST_DISTRACTORS} segments of noise, on documents that grow as they are learned. Chance is 1/16; to know "
    "the values but not whose they are gives 1 over the number of pairs. What comes after encoder+memory was trained as that "
    "before, for as many updates besides. Read without forgetting: the weights of encoder+memory as they are, but no "
    "forgetting vector is added at a write."
)
SHORTER_NOTE = "With bias_length 0.001 forgetting vectors begin a tenth as long, and get a tenth of their share of the rate."


VARIANTS = [
    Variant(
        label="encoder+memory",
        slug="encoder-and-memory",
        model=MEMFORMER | {"decoder_reads": "encoder+memory"},
        seeds=SEEDS,
    ),
    Variant(
        label="encoder+memory, read without forgetting",
        slug="read-without-forgetting",
        model=MEMFORMER | {"decoder_reads": "encoder+memory", "forgetting": False},
        train={"updates": 0},
        seeds=SEEDS,
        after="encoder-and-memory",
    ),
    Variant(
        label="encoder+memory, bias_length 0.001",
        slug="shorter-vectors",
        model=MEMFORMER | {"decoder_reads": "encoder+memory", "bias_length": 0.001},
        train={"shares": {**RECIPE["shares"], "forgetting.": 0.0005}},
    ),
    Variant(
        label="encoder",
        slug="encoder",
        model=MEMFORMER | {"decoder_reads": "encoder"},
        seeds=SEEDS,
    ),
    Variant(
        label="encoder, after encoder+memory",
        slug="encoder-after-memory",
        model=MEMFORMER | {"decoder_reads": "encoder"},
        seeds=SEEDS,
        after="encoder-and-memory",
    ),
    Variant(
        label="encoder, after encoder+memory, asked a segment ahead",
        slug="encoder-asked-ahead",
        model=MEMFORMER | {"decoder_reads": "encoder"},
        train={"options": {**RECIPE["options"], "announce": True}},
        after="encoder-and-memory",
    ),
]


def table(scale: str) -> Table:
    """The same at both scales: the paper has no such experiment."""
    budget = Budget(train=RECIPE, rates=(2e-3,))
    return Table(experiment="recall", scale=scale, data={}, budget=budget, variants=VARIANTS, work=task_row, seconds=1500.0)


def report(table: Table, results: Results) -> Report:
    found = table.found(results)
    columns = ("decoder_reads", "pairs", *[f"{distance}" for distance in DISTANCES], "seeds")
    lines = [
        [variant.label, str(pairs)]
        + [as_share(accuracies(found[variant.slug], str(pairs), distance)) for distance in DISTANCES]
        + [str(len(found[variant.slug]))]
        for variant in table.variants
        if found[variant.slug]
        for pairs in PAIRS
    ]
    title = "Accuracy by pairs and segments of noise: median, and the least"
    runs = [run for runs in found.values() for run in runs]
    reached = "; ".join(
        f"{variant.label}: {', '.join(as_reached(run) for run in found[variant.slug])}"
        for variant in table.variants
        if found[variant.slug]
    )
    return Report(
        title="Recall: pairs, then a key",
        grids=[Grid(title=title, columns=columns, lines=lines)],
        notes=[
            NOTE,
            *([SHORTER_NOTE] if found["shorter-vectors"] else []),
            f"The hardest documents that training came to, by seed, in pairs and segments of noise after each four: {reached}.",
            f"Machine time, one core a run: {as_time(sum(run['seconds'] for run in runs))}.",
        ],
        draw=partial(_draw, table, found),
        brief=_brief(title, table, found),
        summary="Median accuracy, and in brackets the least where seeds differ. Noise: segments of it after each segment of "
        f"pairs; training had at most {MOST_DISTRACTORS}. Chance is 0.0625.",
    )


def _brief(title: str, table: Table, found: dict[str, list[dict[str, Any]]]) -> Grid:
    columns = ("decoder_reads", "noise", *[f"{pairs} pair{'s' if pairs > 1 else ''}" for pairs in PAIRS], "seeds")
    lines = [
        [variant.label, str(distance)]
        + [as_share(accuracies(found[variant.slug], str(pairs), distance)) for pairs in PAIRS]
        + [str(len(found[variant.slug]))]
        for variant in table.variants
        if found[variant.slug]
        for distance in SHOWN
    ]
    return Grid(title=title, columns=columns, lines=lines)


def as_reached(run: dict[str, Any]) -> str:
    return f"{run['reached']['pairs']} pairs, {run['reached']['distractors']} of noise"


def _draw(table: Table, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    runs = {variant.label: found[variant.slug] for variant in table.variants if found[variant.slug]}
    panels = {
        label: {
            f"{pairs} pair{'s' if pairs > 1 else ''}": {
                distance: median(accuracies(seeds, str(pairs), distance)) for distance in DISTANCES
            }
            for pairs in PAIRS
        }
        for label, seeds in runs.items()
    }
    trained = {label: max(run["reached"]["distractors"] for run in seeds) for label, seeds in runs.items()}
    pictures.accuracy_panels(path, panels, trained, 1 / 16, "segments of noise after each segment of pairs")


def recall(scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name="recall", rows=chosen.rows, report=partial(report, chosen))
