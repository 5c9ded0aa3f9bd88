"""The perplexities of a table's variants: medians and spreads, beside the paper's, and the paper's orders among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memformer_torch.analysis import pictures
from memformer_torch.reproduce.orders import Order, Verdict, count_verdicts, find_noise, judge
from memformer_torch.reproduce.plan import as_time
from memformer_torch.reproduce.report import Grid
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.table import Table, Variant

COLUMNS = (
    "row in the paper",
    "here",
    "parameters",
    "MFLOP (x)",
    "paper: GFLOP (x)",
    "perplexity",
    "seeds",
    "paper",
    "tokens",
    "time",
)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """A table's perplexities on the test split, and what is found of the paper's orders."""

    table: Table
    base: str
    """The variant that costs are compared to."""
    found: Mapping[str, list[dict[str, Any]]]
    noise: float | None
    verdicts: Sequence[Verdict]

    @classmethod
    def of(cls, table: Table, results: Results, base: str, orders: Sequence[Order]) -> "Scores":
        found = table.found(results)
        scores = {slug: perplexities(runs) for slug, runs in found.items()}
        others = table.base.found(results).values() if table.base else ()  # trained alike, so they tell of the noise too
        noise = find_noise([*scores.values(), *map(perplexities, others)])
        return cls(table=table, base=base, found=found, noise=noise, verdicts=judge(orders, scores, noise))

    def grid(self, title: str) -> Grid:
        """One line a variant; FLOPs also relative to those of `base`, here and in the paper."""
        return self._filled(title, COLUMNS, self.table.variants)

    def brief(self, title: str, slugs: Sequence[str]) -> Grid:
        """Some of the lines, without what training took."""
        return self._filled(title, COLUMNS[:-2], [variant for variant in self.table.variants if variant.slug in slugs])

    def _filled(self, title: str, columns: Sequence[str], variants: Sequence[Variant]) -> Grid:
        """Without columns in which nothing stands: the paper has not all numbers of all tables."""
        lines = [self._line(variant, self.table[self.base])[: len(columns)] for variant in variants]
        kept = [index for index in range(len(columns)) if any(line[index] for line in lines)]
        return Grid(
            title=title, columns=[columns[index] for index in kept], lines=[[line[index] for index in kept] for line in lines]
        )

    def _line(self, variant: Variant, base: Variant) -> list[str]:
        runs, bases, paper = self.found[variant.slug], self.found[base.slug], variant.paper
        paper_flops = f"{paper['flops']:g} ({paper['flops'] / base.paper['flops']:.2f})" if "flops" in paper else ""
        paper_score = as_perplexity(paper["perplexity"]) if "perplexity" in paper else ""
        if not runs:
            return [variant.label, variant.here, "", "", paper_flops, "", "0", paper_score, "", ""]
        flops = runs[0]["flops"]["model"]
        share = f" ({flops / bases[0]['flops']['model']:.2f})" if bases else ""
        return [
            variant.label,
            variant.here,
            f"{runs[0]['parameters']:,}",
            f"{flops / 1e6:,.1f}{share}",
            paper_flops,
            as_spread(perplexities(runs)),
            str(len(runs)),
            paper_score,
            f"{runs[0]['tokens'] / 1e6:.1f} M",
            as_time(median(run["seconds"] for run in runs)),
        ]

    def orders_grid(self) -> Grid:
        lines = []
        for (better, worse), gap, says in self.verdicts:
            papers = [self.table[slug].paper.get("perplexity") for slug in (worse, better)]
            paper = f"{papers[0] - papers[1]:.3f}" if papers[0] and papers[1] else ""
            names = [self.table[slug].label for slug in (better, worse)]
            lines.append([*names, paper, "" if gap is None else f"{gap:+.3f}", says])
        columns = ("lower perplexity in the paper", "than", "paper's gap", "gap here", "found")
        noise = "" if self.noise is None else f" (noise {self.noise:.3f})"
        return Grid(title=f"The paper's orders{noise}", columns=columns, lines=lines)

    def dearer_grid(self, slugs: Sequence[str]) -> Grid:
        """Those of the variants that cost as many FLOPs as `base` or more, in the paper or not: is each of them worse?"""
        flops = {slug: runs[0]["flops"]["model"] for slug, runs in self.found.items() if runs}
        dearer = [slug for slug in slugs if flops.get(slug, 0) >= flops.get(self.base, float("inf"))]
        scores = {slug: perplexities(runs) for slug, runs in self.found.items()}
        lines = []
        for (_, slug), gap, says in judge([Order(self.base, slug) for slug in dearer], scores, self.noise):
            variant = self.table[slug]
            share = f"{flops[slug] / flops[self.base]:.2f}"
            lines.append([variant.label, variant.here, share, as_spread(scores[slug]), f"{gap:+.3f}", says])
        columns = ("row", "here", "FLOPs (x)", "perplexity", "above it by", "found")
        title = f"{self.table[self.base].label} against what costs as much or more"
        return Grid(title=title, columns=columns, lines=lines)

    def summary(self) -> str:
        return count_verdicts(self.verdicts)

    def notes(self, results: Results) -> list[str]:
        """Budget, learning rates, noise, time: what a reader must know to believe the numbers."""
        budget, tuned = self.table.budget, self.table.tuned
        seen = [run["tokens"] for runs in self.found.values() for run in runs] or [0]
        tokens = " to ".join(dict.fromkeys(f"{number / 1e6:.1f} M" for number in (min(seen), max(seen))))
        notes = [
            f"Every row is trained on {tokens} tokens in "
            f"{budget.train['updates']:,} updates, and read with the weights of its lowest validation loss. "
            "Parameters and FLOPs are without the vocabulary's embedding and output, which are the same for all. "
            f"FLOPs are counted, two a multiply-add, at batch 1, over {self._unit()}; "
            f"x is relative to {self.table[self.base].label}."
        ]
        if len(budget.rates) > 1:
            rates = {family: self.table.rate(family, results) for family in self.table.families}
            chosen = ", ".join(f"{family} {_as_rate(rate, budget.rates)}" for family, rate in rates.items())
            grid = ", ".join(f"{rate:g}" for rate in budget.rates)
            how = f"{tuned.budget.tuning['updates']:,} updates of its first row"
            how += f" in {tuned.experiment}" if tuned is not self.table else ""
            if budget.finals > 1:
                how += f" and, among the best {budget.finals}, after all {tuned.budget.train['updates']:,}"
            notes.append(
                f"The learning rate of each family is that of {grid} with the lowest validation loss after {how}: {chosen}."
            )
        of_all = budget.train.get("shares", {})
        if of_all:
            notes.append(f"In all models alike, parts get a multiple of that rate: {_as_parts(of_all)} (docs/notes.md).")
        own = [variant.train["shares"] for variant in self.table.variants if "shares" in variant.train]
        if own:
            parts = _as_parts({name: share for name, share in own[0].items() if name not in of_all})
            notes.append(
                f"Memformer's memory gets only a share of that rate: {parts}. The baselines have no such parts; "
                "the shares were found in short runs, by validation loss (docs/notes.md)."
            )
        others = f" here and in {self.table.base.experiment}" if self.table.base else ""
        noise = "not known, since no row has two seeds" if self.noise is None else f"{self.noise:.4f}"
        notes.append(
            "An order is claimed only where medians differ by more than the noise, which is the largest spread over seeds of a "
            f"row{others}: {noise}. {self.summary()}"
        )
        final = [run["seconds"] for runs in self.found.values() for run in runs]
        tried = [
            row
            for family in self.table.families
            for row in (*self.table.tuning_rows(family), *self.table.final_rows(family, results))
        ]
        tuning = [
            found["seconds"]
            for row in tried
            if (found := results.get(row)) is not None and not any(found in runs for runs in self.found.values())
        ]
        notes.append(f"Machine time, one core a row: {as_time(sum(final))} of training, {as_time(sum(tuning))} of tuning.")
        return notes

    def _unit(self) -> str:
        return next((runs[0]["flops"]["of"] for runs in self.found.values() if runs), "one document")

    def draw_curve(self, label: str, places: Mapping[str, int], path: Path) -> None:
        """Perplexity with its spread over seeds against a number that each variant has."""
        curve = {place: perplexities(self.found[slug]) for slug, place in places.items() if self.found[slug]}
        pictures.scores_by_number(path, curve, label, "test perplexity")

    def draw_by_flops(self, path: Path) -> None:
        """A dot a variant, with its spread over seeds, against FLOPs; one colour a family."""
        dots: dict[str, dict[str, tuple[float, Sequence[float]]]] = {}
        for variant in self.table.variants:
            if runs := self.found[variant.slug]:
                dots.setdefault(variant.family, {})[variant.slug] = runs[0]["flops"]["model"] / 1e6, perplexities(runs)
        pictures.scores_by_cost(path, dots, f"MFLOP, {self._unit()}", "test perplexity")


def perplexities(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [run["test"]["perplexity"] for run in runs]


def median_perplexity(runs: Sequence[Mapping[str, Any]]) -> float:
    return median(perplexities(runs))


def as_perplexity(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def as_spread(scores: Sequence[float]) -> str:
    """Median, and least to most where there are several."""
    if len(scores) == 1:
        return as_perplexity(scores[0])
    return f"{as_perplexity(median(scores))} ({as_perplexity(min(scores))} to {as_perplexity(max(scores))})"


def _as_parts(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name.rstrip('.')} {share:g}" for name, share in shares.items())


def _as_rate(rate: float | None, rates: Sequence[float]) -> str:
    if rate is None:
        return "not yet"
    return f"{rate:g}{' (the end of the grid)' if rate in (min(rates), max(rates)) else ''}"
