"""Appendix C: perplexity against the time horizon and the number of slots, of the smaller Memformer of Table 1."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import log

from scipy.stats import spearmanr

from memformer_torch.reproduce import table1
from memformer_torch.reproduce.orders import Order
from memformer_torch.reproduce.report import Experiment, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.scores import Scores, median_perplexity, perplexities
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
ENOUGH = 8
"""Runs, for a trend over them to be told."""
NO_MEMORY = "without-memory"
"""Beside the numbers of slots, to tell what the first of them is worth."""


def slots_table(scale: str) -> Table:
    sizes = SIZES[scale]
    labels = {0: "no memory (not in the paper's figure)", 1: "1 slot"}
    models = {number: {**table1.memformer(sizes, sizes.ablated), "num_slots": number} for number in (0, *SLOTS)}
    variants = [
        Variant(
            label=labels.get(number, f"{number} slots"),
            slug=f"slots-{number}" if number else NO_MEMORY,
            model=model,
            train=with_shares(sizes.shares, model),
            seeds=SEEDS if number else sizes.seeds,  # gaps between numbers of slots are small
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
            seeds=SEEDS if horizon == usual else sizes.seeds,
        )
        for horizon in HORIZONS
    ]
    return _table("horizon", scale, variants, table1.table(scale))


def _table(experiment: str, scale: str, variants: list[Variant], base: Table) -> Table:
    sizes, taken = SIZES[scale], table1.table(scale)
    segment = sizes.width["segment_length"]
    return replace(
        taken, experiment=experiment, variants=variants, budget=sizes.budget, segment=segment, contenders=(), base=base
    )


def report(title: str, label: str, table: Table, results: Results) -> Report:
    names = [variant.slug for variant in table.variants if variant.slug != NO_MEMORY]  # from the smallest number on
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
        brief=scores.brief(title, [variant.slug for variant in table.variants]),
        summary=" ".join([scores.summary(), *_trend(scores, label, places), *_worth_of_the_first(scores, names)]),
    )


def _trend(scores: Scores, label: str, places: Mapping[str, int]) -> list[str]:
    """Whether perplexity falls with the number, over all runs together: it may, where no two numbers differ beyond noise."""
    points = [(place, score) for slug, place in places.items() for score in perplexities(scores.found[slug])]
    if len(points) < ENOUGH or len({score for _, score in points}) == 1:
        return []
    correlation, chance = spearmanr(*zip(*points, strict=True))
    chance = "p < 0.001" if chance < 0.001 else f"p = {chance:.3f}"
    return [f"Over all {len(points)} runs, the rank correlation of {label} and perplexity is {correlation:.2f} ({chance})."]


def _worth_of_the_first(scores: Scores, names: Sequence[str]) -> list[str]:
    """What share of the nats that most slots save, over none, is saved by the first alone; here and in the paper's Table 1."""
    runs = [scores.found.get(slug, []) for slug in (NO_MEMORY, names[0], names[-1])]
    if not all(runs):
        return []
    paper = table1.table("paper")
    papers = [paper[slug].paper["perplexity"] for slug in (table1.NO_MEMORY, "memory-1", table1.ABLATED)]
    here, there = (log(none / one) / log(none / most) for none, one, most in (map(median_perplexity, runs), papers))
    return [
        f"Of the nats a token that {names[-1].rpartition('-')[2]} slots save, the first alone saves {here:.0%} "
        f"({there:.0%} in the paper's Table 1)."
    ]


def _experiment(table: Callable[[str], Table], title: str, label: str, scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name=chosen.experiment, rows=chosen.rows, report=partial(report, title, label, chosen))


horizon = partial(_experiment, horizon_table, "Appendix C: the time horizon", "segments in a rollout")
slots = partial(_experiment, slots_table, "Appendix C: the size of the memory", "slots")
