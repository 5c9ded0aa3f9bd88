"""Images that trained models complete from their top half, beside the originals."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from memformer_torch.analysis import pictures
from memformer_torch.evaluate import complete
from memformer_torch.runs import open_run
from memformer_torch.types import PAD

NUM_IMAGES, TEMPERATURE = 12, 0.5


def draw_completions(path: Path, runs: Mapping[str, Path]) -> None:
    """The first test images, what is given of them, and what each run's best checkpoint makes of that; one row each."""
    rows: dict[str, np.ndarray] = {}
    for name, folder in runs.items():
        run = open_run(folder, "cpu", "best")
        assert run.corpus.image_shape is not None
        size = run.corpus.image_shape[0] * run.corpus.image_shape[1]
        whole = torch.from_numpy(run.corpus["test"].ids[: NUM_IMAGES * size].astype(np.int64)).view(NUM_IMAGES, size)
        given, unknown = whole.tensor_split([size // 2], dim=1)
        parts = {"test images": whole, "top half given": torch.cat([given, torch.full_like(unknown, PAD)], dim=1)}
        parts[name] = complete(run.model, given, size, TEMPERATURE)
        rows |= {label: ids.view(-1, *run.corpus.image_shape).numpy() for label, ids in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.image_rows(path, rows, run.corpus.vocab_size)
