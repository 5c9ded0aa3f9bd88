"""`retention`, `recall` and `copy` as corpora: documents drawn once from a seed, so that they train like any other data.

A document's length varies with how hard it is: its number of distractors (0 to `max_difficulty`), or the length of the string
to copy (1 to `max_difficulty`). Cut with the task's own `segment_length`, documents give the very segments that its `rollout`
gives with `predict_all`: in a document every token is a target, noise too.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from memformer_torch.data.copying import Copy
from memformer_torch.data.corpus import Corpus, Documents, fingerprint
from memformer_torch.data.recall import Recall
from memformer_torch.data.retention import Retention
from memformer_torch.types import IGNORE, Segment

Draw = Callable[[int, int, torch.Generator], list[Segment]]
TASKS: dict[str, Any] = {"retention": Retention, "recall": Recall, "copy": Copy}


def load(
    name: str,
    *,
    num_train: int = 8192,
    num_valid: int = 512,
    num_test: int = 512,
    max_difficulty: int = 8,
    seed: int = 0,
    **options: Any,
) -> Corpus:
    """`options` are the fields of the task."""
    task = TASKS[name](predict_all=True, **options)
    if min(num_train, num_valid, num_test, max_difficulty) < 1:
        raise ValueError("num_train, num_valid, num_test and max_difficulty must be at least 1")
    sizes = {"train": num_train, "valid": num_valid, "test": num_test}
    splits = {
        split: draw_documents(task, size, max_difficulty, seed=3 * seed + number)
        for number, (split, size) in enumerate(sizes.items())
    }
    return Corpus(
        name=name,
        splits=splits,
        vocab_size=task.vocab_size,
        fingerprint=fingerprint(splits, name, task),
        facts={"task": repr(task), "difficulty": f"up to {max_difficulty}", "split": f"drawn with seed {seed}"},
    )


def draw_documents(task: Any, number: int, max_difficulty: int, seed: int) -> Documents:
    """This many documents of mixed difficulty, in a mixed order."""
    generator = torch.Generator().manual_seed(seed)
    easiest = 1 if isinstance(task, Copy) else 0
    difficulties = torch.randint(easiest, max_difficulty + 1, (number,), generator=generator)
    documents: list[np.ndarray | None] = [None] * number
    for difficulty in range(easiest, max_difficulty + 1):
        places = (difficulties == difficulty).nonzero().flatten().tolist()
        if places:
            tokens = torch.cat([segment.target for segment in _draw(task)(len(places), difficulty, generator)], dim=1).numpy()
            for place, row in zip(places, tokens, strict=True):
                documents[place] = row[row != IGNORE]
    return Documents.of(documents)


def _draw(task: Any) -> Draw:
    if not isinstance(task, Retention):
        return task.rollout

    def draw(batch_size: int, difficulty: int, generator: torch.Generator) -> list[Segment]:
        values = torch.randint(task.num_values, (batch_size,), generator=generator)
        return task.rollout(values, difficulty, generator)

    return draw


def option_names(name: str) -> list[str]:
    """The fields of a task, which `load` takes beside its own arguments."""
    return [field.name for field in fields(TASKS[name]) if field.name != "predict_all"]
