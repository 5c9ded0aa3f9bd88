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
from memformer_torch.reproduce.table import SEEDS, Table, Variant, with_shares

SIZES = {
    "cpu": replace(
        table1.CPU,
        # Half a row a segment, as in the paper: of whole rows the pixel above is in the source, and one slot is enough.
        width={**table1.CPU.width, "segment_length": 7},
        # The paper's horizon: over the 28 segments of an image gradients explode, and seeds differ by more than slots do.
        budget=replace(
            table1.CPU.budget,
            train={**table1.CPU.budget.train, "updates": 1000, "horizon": 8, "batch_size": 28, "accumulate": 4},
        ),
    ),
    "paper": table1.PAPER,
}
HORIZONS = (1, 2, 4, 8, 16, 32)
SLOTS = (1, 2, 4, 8, 16, 32, 64)


def slots_table(scale: str) -> Table:
    sizes = SIZES[scale]
    models = {number: {**table1.memformer(sizes, sizes.ablated), "num_slots": number} for number in SLOTS}
    variants = [
        Variant(
            label=f"{number} slot{'s' if number > 1 else ''}",
            slug=f"slots-{number}",
            model=model,
            train=with_shares(sizes.shares, model),
            seeds=_seeds(sizes, number in (1, sizes.slots[64])),
        )
        for number, model in models.items()
    ]
    return _table("slots", scale, variants, horizon_table(scale))


def horizon_table(scale: str) -> Table:
    """All read as many segments of the same lanes an update, and differ in where gradients are cut."""
    sizes, longest = SIZES[scale], max(HORIZONS)
    train = sizes.budget.train
    usual = train["horizon"]
    lanes = train["batch_size"] * usual * train.get("accumulate", 1) // longest
    model = table1.memformer(sizes, sizes.ablated)
    cut = {
        horizon: {"horizon": horizon, "batch_size": lanes, "accumulate": longest // horizon}
        for horizon in HORIZONS
        if horizon != usual  # which is as it is everywhere
    }
    variants = [
        Variant(
            label=f"horizon {horizon}",
            slug=f"horizon-{horizon}",
            model=model,
            here=f"{horizon * model['segment_length']} tokens",
            train={**with_shares(sizes.shares, model), **cut.get(horizon, {})},
            seeds=_seeds(sizes, horizon == usual),
        )
        for horizon in HORIZONS
    ]
    return _table("horizon", scale, variants, table1.table(scale))


def _seeds(sizes: table1.Sizes, is_usual: bool) -> int:
    """So many of the usual setting, and of one slot, that there is a spread to compare gaps with."""
    return SEEDS if is_usual else sizes.seeds


def _table(experiment: str, scale: str, variants: list[Variant], base: Table) -> Table:
    sizes, taken = SIZES[scale], table1.table(scale)
    segment = sizes.width["segment_length"]
    return replace(
        taken, experiment=experiment, variants=variants, budget=sizes.budget, segment=segment, contenders=(), base=base
    )


def report(title: str, label: str, table: Table, results: Results) -> Report:
    names = [variant.slug for variant in table.variants]  # from the smallest number on
    places = {slug: int(slug.rpartition("-")[2]) for slug in names}
    worst = [Order(slug, names[0]) for slug in names[2:]]
    scores = Scores.of(table, results, names[-1], [*[Order(more, less) for less, more in pairwise(names)], *worst])
    notes = [
        "Model and learning rate are those of Table 1's smaller Memformer, and rows that are also elsewhere are taken from "
        "there. The paper draws curves, and gives no numbers."
    ]
    if table.scale == "cpu":
        notes += [
            f"Segments have {table.segment} pixels, half a row, as in the paper, and unlike Table 1 at this scale: of whole "
            "rows the pixel above is in the source, and less has to be remembered (docs/notes.md)."
        ]
    return Report(
        title=title,
        grids=[scores.grid(title), scores.orders_grid()],
        notes=[*notes, *scores.notes(results)],
        draw=partial(scores.draw_curve, label, places),
        brief=scores.brief(title, names),
        summary=scores.summary(),
    )


def _experiment(table: Callable[[str], Table], title: str, label: str, scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name=chosen.experiment, rows=chosen.rows, report=partial(report, title, label, chosen))


horizon = partial(_experiment, horizon_table, "Appendix C: the time horizon", "segments in a rollout")
slots = partial(_experiment, slots_table, "Appendix C: the size of the memory", "slots")
