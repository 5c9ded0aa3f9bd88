"""Samples during training: the beginning of validation documents, and what the model makes of them."""

# Shape letters: B documents, N tokens that are given

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memformer_torch.data import Corpus
from memformer_torch.evaluate import complete

TEXT_LENGTH = 192
"""Tokens of a text, the first third of which is given."""
NUM_IMAGES = 8
"""Images, the upper half of which is given."""
TEMPERATURE = 0.8

Draw = Callable[[Path, Mapping[str, Any], int], None]
"""`draw(path, rows, levels)`: rows of images by name, (B, height, width) each, as a picture."""


class Sampler:
    """Continues one text, or completes images; always the same beginnings, by the same random numbers."""

    def __init__(self, folder: Path, corpus: Corpus, draw: Draw, seed: int, max_length: int | None = None) -> None:
        self.folder, self.corpus, self.draw, self.seed = folder, corpus, draw, seed
        self._has_explained = False
        documents = corpus["valid"]
        if corpus.image_shape is not None:
            height, width = corpus.image_shape
            length, given = height * width, height // 2 * width
            chosen = [documents[index] for index in range(min(NUM_IMAGES, len(documents)))]
        elif corpus.tokenizer is not None:
            length, given = TEXT_LENGTH, TEXT_LENGTH // 3
            # the first that is long enough, else the longest
            chosen = [documents[int(np.diff(documents.offsets).clip(max=given).argmax())][:length]]
        else:
            raise ValueError(f"train.sample_every is set, but {corpus.name} is neither text nor images: leave it out")
        self.documents = torch.from_numpy(np.stack(chosen).astype(np.int64))
        self.length = min(length, max_length or length)  # a model may not be able to read more
        self.given = self.documents[:, : min(given, self.length // 2)]  # (B, N)

    def take(self, model: Any) -> Tensor:
        """What is given with the model's own continuation."""
        return complete(model, self.given, self.length, TEMPERATURE, self.seed)

    def write(self, update: int, ids: Tensor) -> str:
        """Leave a sample in the folder; what to show of it."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{update:06d}"
        return self._write_text(path, ids[0]) if self.corpus.image_shape is None else self._draw_images(path, ids)

    def _write_text(self, path: Path, ids: Tensor) -> str:
        assert self.corpus.tokenizer is not None
        given, continued = (self.corpus.tokenizer.decode(part.tolist()) for part in ids.tensor_split([self.given.shape[1]]))
        text = f"--- given\n{given}\n--- continued\n{continued}\n"
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
        return text

    def _draw_images(self, path: Path, ids: Tensor) -> str:
        assert self.corpus.image_shape is not None
        completed = torch.zeros_like(self.documents)
        completed[:, : self.length] = ids
        rows = {"original": self.documents, "lower half\ncompleted": completed}
        images = {name: row.reshape(-1, *self.corpus.image_shape).numpy() for name, row in rows.items()}
        try:
            self.draw(path.with_suffix(".png"), images, self.corpus.vocab_size)
        except ImportError as error:  # no reason to lose a run
            message = "" if self._has_explained else f"samples are not drawn: {error}"
            self._has_explained = True
            return message
        return f"sample: {path.with_suffix('.png')}"
