"""The experiments, by name."""

from collections.abc import Callable

from memformer_torch.reproduce.appendix import horizon, slots
from memformer_torch.reproduce.capacity import capacity
from memformer_torch.reproduce.recall import recall
from memformer_torch.reproduce.report import Experiment
from memformer_torch.reproduce.retention import retention
from memformer_torch.reproduce.table1 import table1
from memformer_torch.reproduce.table2 import table2
from memformer_torch.runs import nearest

EXPERIMENTS: dict[str, Callable[[str], Experiment]] = {
    "retention": retention,
    "recall": recall,
    "table1": table1,
    "table2": table2,
    "horizon": horizon,
    "slots": slots,
    "capacity": capacity,
}
"""Name -> the experiment at a scale."""


def find_experiment(name: str, scale: str) -> Experiment:
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ValueError(f"there is no experiment {name!r}{nearest(name, EXPERIMENTS)}: choose one of {known}")
    return EXPERIMENTS[name](scale)
