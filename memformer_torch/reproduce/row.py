"""A row is one run of one experiment, and its result a JSON file under OUT, the folder of results.

- OUT/table1/memformer-seed-0.json is a result at cpu scale,
- OUT/table1/tuning/memformer-rate-0.001-seed-0.json that of a short run which decides on a learning rate;
- OUT/paper/table1/... are those at the paper's scale, which never mix with the others.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from memformer_torch.bench.record import environment

Reporter = Callable[[float, float, str], None]
"""Called with what is done, what there is to do in all, and a few words."""


class Work(Protocol):
    """How a row is run, in a worker process: the result, or None if it was asked to stop, and can go on from its folder."""

    __name__: str

    def __call__(
        self, row: "Row", folder: Path, report: Reporter, should_stop: Callable[[], bool], /
    ) -> dict[str, Any] | None: ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """Everything that decides a result, and what the paper says of it."""

    experiment: str
    family: str
    """Rows that share a learning rate."""
    label: str
    """As in the paper's table."""
    slug: str
    """A label for files."""
    work: Work
    """What is done: `train_row` for all that trains on a corpus. A function of a module, since another process calls it."""
    scale: str = "cpu"
    seed: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainConfig, without the seed."""
    length: int | None = None
    """Tokens of the document over which FLOPs are counted; None counts one segment, when memories are full."""
    segment: int | None = None
    """Tokens of a segment in that count, for models that need not be trained segment by segment; None takes the model's."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's `perplexity`, and `flops` in billions."""
    seconds: float = 600.0
    """A first guess of what it takes, where it is not `train_row` whose FLOPs tell."""
    tuning: bool = False
    """Whether it only helps to choose a learning rate; the test split is then not looked at."""

    @property
    def name(self) -> str:
        """Of the run's folder and the result, below the experiment's."""
        return f"{'tuning/' if self.tuning else ''}{self.slug}-seed-{self.seed}"

    @property
    def full_name(self) -> str:
        return f"{self.experiment}/{self.name}"

    @property
    def path(self) -> Path:
        return Path(f"{self.full_name}.json")

    def settings(self) -> dict[str, Any]:
        """What decides the numbers, as JSON gives it back: a result counts as long as this is what the row says."""
        settings = {"work": self.work.__name__, "data": self.data, "model": self.model, "train": self.train, "seed": self.seed}
        return json.loads(json.dumps(settings))

    def result(self, **measured: Any) -> dict[str, Any]:
        """A result's JSON: which row it is of, what was measured, with which versions."""
        return {
            "command": f"memformer reproduce {self.experiment} --scale {self.scale} --only {self.name}",
            "experiment": self.experiment,
            "scale": self.scale,
            "family": self.family,
            "label": self.label,
            "tuning": self.tuning,
            "settings": self.settings(),
            "paper": dict(self.paper),
            **measured,
            **environment(),
        }


class Results:
    """The results that exist under a folder, found by row."""

    def __init__(self, folder: Path, pretended: frozenset[Path] = frozenset()) -> None:
        self.folder, self._pretended = folder, pretended

    def get(self, row: Row) -> dict[str, Any] | None:
        """The row's result, if it is of the settings that the row has now."""
        if row.path in self._pretended:
            return {"valid": {"loss": 0.0}, "test": {"loss": 0.0, "perplexity": 1.0}}
        record = self._read(row)
        return record if record is not None and record["settings"] == row.settings() else None

    def is_stale(self, row: Row) -> bool:
        """Whether there is a result, but of other settings."""
        return self.get(row) is None and self._read(row) is not None

    def pretend(self, rows: Iterable[Row]) -> "Results":
        """The same, as if these rows had a result: for finding out what will come after them."""
        return Results(self.folder, self._pretended | {row.path for row in rows})

    def _read(self, row: Row) -> dict[str, Any] | None:
        path = self.folder / row.path
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            record["settings"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a result ({error!r}): remove it, and the row is run again") from error
        return record
