"""How many slots does it take to keep things apart? Recall's task and recipe, with every number of slots of appendix C.

Images of the size that trains here ask little of a memory: one slot, as wide as a token, carries nearly all that is made of the
past. Pairs that have to be found again by their keys ask for more.
"""

from functools import partial
from pathlib import Path
from typing import Any

from memformer_torch.analysis import pictures
from memformer_torch.reproduce.appendix import SLOTS
from memformer_torch.reproduce.plan import as_time
from memformer_torch.reproduce.recall import DISTANCES, MEMFORMER, RECIPE, as_reached
from memformer_torch.reproduce.report import Experiment, Grid, Report
from memformer_torch.reproduce.retention import accuracies, as_share
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.table import SEEDS, Budget, Table, Variant
from memformer_torch.reproduce.tasks import task_row

PAIRS = 8
FARTHEST = RECIPE["distractors"]
"""Segments of noise in training, of which the picture tells."""


def table(scale: str) -> Table:
    """The same at both scales: the paper has no such experiment."""
    train = RECIPE | {"pairs": PAIRS, "updates": 2000, "read": {str(PAIRS): DISTANCES}}
    variants = [
        Variant(
            label=f"{number} slot{'s' if number > 1 else ''}",
            slug=f"slots-{number}",
            model=MEMFORMER | {"decoder_reads": "encoder+memory", "num_slots": number},
            seeds=SEEDS,  # a run may stay on the plateau before binding, whatever it has room for
        )
        for number in SLOTS
    ]
    budget = Budget(train=train, rates=(2e-3,))
    return Table(experiment="capacity", scale=scale, data={}, budget=budget, variants=variants, work=task_row, seconds=400.0)


def report(table: Table, results: Results) -> Report:
    all_runs = table.found(results)
    found = {variant.model["num_slots"]: runs for variant in table.variants if (runs := all_runs[variant.slug])}
    title = f"Accuracy of {PAIRS} pairs by slots and segments of noise"
    columns = ("slots", "numbers of state", *[f"noise {distance}" for distance in DISTANCES], "seeds")
    lines = [
        [
            str(number),
            f"{runs[0]['state_floats']:,}",
            *[as_share(accuracies(runs, str(PAIRS), distance)) for distance in DISTANCES],
            str(len(runs)),
        ]
        for number, runs in found.items()
    ]
    reached = "; ".join(f"{number} slots: {', '.join(map(as_reached, runs))}" for number, runs in found.items())
    return Report(
        title="Capacity: how many slots pairs take",
        grids=[Grid(title=title, columns=columns, lines=lines)],
        notes=[
            f"The task and the recipe are recall's (`memformer reproduce recall`), with at most {PAIRS} pairs and "
            f"{FARTHEST} segments of noise after each four of them, and at most {table.budget.train['updates']:,} "
            "updates. Chance is 1/16; to know the values but not whose they are gives 1/8. Every run begins with four pairs, "
            "without noise, on a plateau; one that does not leave it in time tells nothing of what there is room for.",
            "Made after `slots` had shown no difference on images. The most updates were 1,000 at first, and were raised for "
            "all rows after a run of 16 slots was still on the plateau by then.",
            f"The hardest documents that training came to, by seed: {reached}.",
            f"Machine time, one core a run: {as_time(sum(run['seconds'] for runs in found.values() for run in runs))}.",
        ],
        draw=partial(_draw, found),
        brief=Grid(title=title, columns=columns, lines=lines),
        summary=f"Accuracy; noise: segments of it after each four of the {PAIRS} pairs, of which training had at most "
        f"{FARTHEST}. Chance is 0.0625.",
    )


def _draw(found: dict[int, list[dict[str, Any]]], path: Path) -> None:
    curve = {number: accuracies(runs, str(PAIRS), FARTHEST) for number, runs in found.items()}
    pictures.scores_by_number(path, curve, "slots", f"accuracy, {PAIRS} pairs, {FARTHEST} segments of noise")


def capacity(scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name="capacity", rows=chosen.rows, report=partial(report, chosen))
