"""What a run logs: lines of metrics.jsonl, and where asked for the same numbers for TensorBoard (extra `[tensorboard]`)."""

import json
from pathlib import Path
from typing import Any

from memformer_torch.checkpoint import write_durably


class Metrics:
    """The log of a run, of which one process writes."""

    def __init__(self, run: Path, tensorboard: bool) -> None:
        self.run, self.tensorboard = run, tensorboard
        self._last = 0  # update that was logged
        self._writer: Any = None

    def add(self, line: dict[str, Any]) -> None:
        with (self.run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.tensorboard:
            if self._writer is None:  # points after the last update are of a run that was killed: TensorBoard drops them
                self._writer = summary_writer()(self.run / "tensorboard", purge_step=self._last + 1)
            for name, value in line.items():
                if name != "update":
                    self._writer.add_scalar(name, value, line["update"])
        self._last = line["update"]

    def flush(self) -> None:
        """What was logged is on its way to the disk: a checkpoint that follows knows no point that could be lost."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def go_back(self, update: int) -> None:
        """Drop what was logged after an update, from which the run goes on."""
        lines = [line for line in read_metrics(self.run) if line["update"] <= update]
        write_durably(self.run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self._last = update


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last one that was cut off is left out."""
    path = run / "metrics.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def summary_writer() -> Any:
    """TensorBoard's class, or an error that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("train.tensorboard needs tensorboard: pip install 'memformer-torch[tensorboard]'") from error
    return SummaryWriter
