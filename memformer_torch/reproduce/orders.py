"""Which of the paper's orders hold here: an order is claimed only where the gap exceeds what seeds alone make."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

HOLDS, FAILS, NOISE, ONE_SEED, MISSING = "holds", "does not hold", "within noise", "not known (one seed)", "not measured"


class Order(NamedTuple):
    """Two rows of which the paper's table says that the first has the lower perplexity."""

    better: str
    worse: str


class Verdict(NamedTuple):
    order: Order
    gap: float | None
    """The worse one's median above the better one's, here."""
    says: str


def find_noise(scores: Sequence[Sequence[float]]) -> float | None:
    """The largest spread, most less least, over the seeds of a row; None where no row has two."""
    return max((max(row) - min(row) for row in scores if len(row) > 1), default=None)


def judge(orders: Sequence[Order], scores: Mapping[str, Sequence[float]], noise: float | None) -> list[Verdict]:
    """What is found of each order; lower scores are better."""
    verdicts = []
    for order in orders:
        better, worse = scores.get(order.better), scores.get(order.worse)
        if not better or not worse:
            verdicts.append(Verdict(order, None, MISSING))
            continue
        gap = median(worse) - median(better)
        if noise is None:
            says = ONE_SEED
        elif abs(gap) <= noise:
            says = NOISE
        else:
            says = HOLDS if gap > 0 else FAILS
        verdicts.append(Verdict(order, gap, says))
    return verdicts


def count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """One sentence."""
    numbers = {says: sum(verdict.says == says for verdict in verdicts) for says in (HOLDS, FAILS, NOISE, ONE_SEED, MISSING)}
    found = ", ".join(f"{says} {number}" for says, number in numbers.items() if number)
    return f"Of {len(verdicts)} orders in the paper: {found}."
