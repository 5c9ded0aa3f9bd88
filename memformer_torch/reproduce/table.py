"""A table of models that are trained alike: variants to rows, with learning rates that are tuned first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memformer_torch.reproduce.row import Results, Row, Work
from memformer_torch.reproduce.work import train_row

SEEDS = 3
"""Of rows that matter most."""
MOST_SEEDS = 10
"""That are looked for."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of the paper's table, for any number of seeds."""

    label: str
    slug: str
    model: Mapping[str, Any]
    here: str = ""
    """What is smaller here than the label says."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the table's budget; never the number of tokens."""
    paper: Mapping[str, float] = field(default_factory=dict)
    seeds: int = 1
    after: str = ""
    """The slug of another variant, whose weights of the same seed this one starts from; its rows wait for those."""

    @property
    def family(self) -> str:
        return self.model["name"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long everything is trained, and how a learning rate is found."""

    train: Mapping[str, Any]
    """Fields of TrainConfig."""
    rates: tuple[float, ...]
    """The learning rates that are tried; a single one is taken as it is."""
    tuning: Mapping[str, Any] = field(default_factory=dict)
    """What differs in the short runs that decide on a rate."""
    finals: int = 1
    """Of so many of the best rates in short runs, that which is best after a whole one is taken: what is fastest at first may
    not last."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Variants of which those of a family share a rate: that with the lowest validation loss of the family's first variant, in
    short runs with all rates, then in whole runs with the best of them."""

    experiment: str
    scale: str
    data: Mapping[str, Any]
    budget: Budget
    variants: Sequence[Variant]
    length: int | None = None
    """As in `Row`, with `segment`."""
    segment: int | None = None
    contenders: Sequence[str] = ()
    """Variants of which the best, by validation loss, gets `SEEDS` seeds."""
    work: Work = train_row
    seconds: float = 600.0
    """As in `Row`."""
    base: "Table | None" = None
    """Another table that is trained alike: its learning rates are taken, and those of its rows that are the same."""

    def __getitem__(self, slug: str) -> Variant:
        return next(variant for variant in self.variants if variant.slug == slug)

    @property
    def tuned(self) -> "Table":
        """Where learning rates come from."""
        return self if self.base is None else self.base.tuned

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(variant.family for variant in self.variants))

    def rows(self, results: Results) -> list[Row]:
        """Those that can be run by now: tuning rows, finals of families whose short runs are done, and all others of families
        that are tuned."""
        rows = [row for family in self.families for row in self.tuning_rows(family)]
        rows += [row for family in self.families for row in self.final_rows(family, results)]
        for variant in self.variants:
            rows += [row for row in self.seeds(variant, results, range(variant.seeds)) if row not in rows]
        if (best := self._best(results)) is not None:
            rows += self.seeds(best, results, range(best.seeds, SEEDS))
        return rows

    def seeds(self, variant: Variant, results: Results, seeds: Sequence[int]) -> list[Row]:
        """A variant's rows, if its family is tuned."""
        train = {**self.budget.train, **variant.train}
        base = self.base
        while base is not None:
            for other in base.variants:
                if (other.model, {**base.budget.train, **other.train}) == (variant.model, train):
                    return base.seeds(other, results, seeds)
            base = base.base
        rate = self.rate(variant.family, results)
        if rate is None:
            return []
        is_tuned_on = self.base is None and variant == self._first(variant.family)
        finals = self.final_rows(variant.family, results) if is_tuned_on else []
        won = {row.seed: row for row in finals if row.train["learning_rate"] == rate}
        rows = [self._row(variant, slug=variant.slug, seed=seed, train={**train, "learning_rate": rate}) for seed in seeds]
        if variant.after:
            before = {row.seed: row for row in self.seeds(self[variant.after], results, seeds) if results.get(row) is not None}
            rows = [replace(row, train={**row.train, "start": before[row.seed].name}) for row in rows if row.seed in before]
        return [won.get(row.seed, row) for row in rows]

    def tuning_rows(self, family: str) -> list[Row]:
        """A short run a rate; none where there is nothing to choose."""
        if self.base is not None:
            return self.base.tuning_rows(family)
        first = self._first(family)
        train = {**self.budget.train, **first.train, **self.budget.tuning}
        return [
            self._row(first, slug=f"{family}-rate-{rate:g}", train={**train, "learning_rate": rate}, tuning=True)
            for rate in self.budget.rates
            if len(self.budget.rates) > 1
        ]

    def final_rows(self, family: str, results: Results) -> list[Row]:
        """A whole run of the family's first variant for each of the best rates, once all short runs have a result; none where
        there is one rate to take."""
        if self.base is not None:
            return self.base.final_rows(family, results)
        rows = self.tuning_rows(family)
        losses = _losses_by_rate(rows, results)
        if len(losses) < len(rows) or self.budget.finals == 1:
            return []
        first, best = self._first(family), sorted(losses, key=lambda rate: losses[rate])[: self.budget.finals]
        train = {**self.budget.train, **first.train}
        return [
            self._row(first, slug=f"{first.slug}-rate-{rate:g}", train={**train, "learning_rate": rate})
            for rate in sorted(best)
        ]

    def rate(self, family: str, results: Results) -> float | None:
        """The family's rate, once all that were tried have a result."""
        if len(self.budget.rates) == 1:
            return self.budget.rates[0]
        rows = self.final_rows(family, results) or self.tuning_rows(family)
        losses = _losses_by_rate(rows, results)
        return min(losses, key=lambda rate: losses[rate]) if len(losses) == len(rows) else None

    def found(self, results: Results) -> dict[str, list[dict[str, Any]]]:
        """The results of each variant, by slug, whatever number of seeds there is."""
        found = {}
        for variant in self.variants:
            rows = self.seeds(variant, results, range(MOST_SEEDS))
            found[variant.slug] = [result for row in rows if (result := results.get(row)) is not None]
        return found

    def _first(self, family: str) -> Variant:
        return next(variant for variant in self.variants if variant.family == family)

    def _best(self, results: Results) -> Variant | None:
        """Of the contenders, once all have a result."""
        losses = {}
        for slug in self.contenders:
            for row in self.seeds(self[slug], results, [0]):
                if (found := results.get(row)) is not None:
                    losses[slug] = found["valid"]["loss"]
        if not losses or len(losses) < len(self.contenders):
            return None
        return self[min(losses, key=lambda slug: losses[slug])]

    def _row(self, variant: Variant, **others: Any) -> Row:
        return Row(
            experiment=self.experiment,
            scale=self.scale,
            family=variant.family,
            label=variant.label,
            work=self.work,
            seconds=self.seconds,
            data=self.data,
            model=variant.model,
            length=self.length,
            segment=self.segment,
            paper=variant.paper,
            **others,
        )


def _losses_by_rate(rows: Sequence[Row], results: Results) -> dict[float, float]:
    """On validation, of those that have a result."""
    return {row.train["learning_rate"]: found["valid"]["loss"] for row in rows if (found := results.get(row)) is not None}


def with_shares(shares: Mapping[str, float], model: Mapping[str, Any]) -> dict[str, Any]:
    """What a Memformer is trained with besides, if it has a memory: shares of the learning rate for the memory's parts."""
    return {"shares": dict(shares)} if shares and model["num_slots"] else {}
