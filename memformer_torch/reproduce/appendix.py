"""Appendix C: perplexity against the time horizon and the number of slots, of the smaller Memformer of Table 1."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from memformer_torch.reproduce import table1
from memformer_torch.reproduce.orders import Order
from memformer_torch.reproduce.report import Experiment, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.scores import Scores
from memformer_torch.reproduce.table import Table, Variant, with_shares

HORIZONS = {"cpu": (1, 2, 4, 8, 14, 16, 32), "paper": (1, 2, 4, 8, 16, 32)}  # 14 is in Table 1: an image, at cpu scale
SLOTS = (1, 2, 4, 8, 16, 32, 64)


def horizon_table(scale: str) -> Table:
    """As many segments an update for all: the longer a rollout, the fewer side by side."""
    base, sizes = table1.table(scale), table1.SCALES[scale]
    segments = base.budget.train["batch_size"] * base.budget.train["horizon"]
    model = table1.memformer(sizes, sizes.ablated)
    variants = [
        Variant(
            label=f"horizon {horizon}",
            slug=f"horizon-{horizon}",
            model=model,
            here=f"{segments // horizon} sequences",
            train={**with_shares(sizes.shares, model), "horizon": horizon, "batch_size": segments // horizon},
            seeds=sizes.seeds,
        )
        for horizon in HORIZONS[scale]
    ]
    return replace(base, experiment="horizon", variants=variants, contenders=(), base=base)


def slots_table(scale: str) -> Table:
    base, sizes = table1.table(scale), table1.SCALES[scale]
    models = {number: {**table1.memformer(sizes, sizes.ablated), "num_slots": number} for number in SLOTS}
    variants = [
        Variant(
            label=f"{number} slot{'s' if number > 1 else ''}",
            slug=f"slots-{number}",
            model=model,
            train=with_shares(sizes.shares, model),
            seeds=sizes.seeds,
        )
        for number, model in models.items()
    ]
    return replace(base, experiment="slots", variants=variants, contenders=(), base=base)


def report(title: str, label: str, table: Table, results: Results) -> Report:
    names = [variant.slug for variant in table.variants]  # from the smallest number on
    places = {slug: int(slug.rpartition("-")[2]) for slug in names}
    worst = [Order(slug, names[0]) for slug in names[2:]]
    scores = Scores.of(table, results, names[-1], [*[Order(more, less) for less, more in pairwise(names)], *worst])
    note = (
        "All other settings, the learning rate among them, are those of Table 1's smaller Memformer, and rows that are also in "
        "that table are taken from it. The paper draws curves, and gives no numbers."
    )
    return Report(
        title=title,
        grids=[scores.grid(title), scores.orders_grid()],
        notes=[note, *scores.notes(results)],
        draw=partial(scores.draw_curve, label, places),
        brief=scores.brief(title, names),
        summary=scores.summary(),
    )


def _experiment(table: Callable[[str], Table], title: str, label: str, scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name=chosen.experiment, rows=chosen.rows, report=partial(report, title, label, chosen))


horizon = partial(_experiment, horizon_table, "Appendix C: the time horizon", "segments in a rollout")
slots = partial(_experiment, slots_table, "Appendix C: the size of the memory", "slots")
