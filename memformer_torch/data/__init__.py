"""Datasets by name: `load_corpus("digits")` gives documents of token ids, and `Stream` makes Segments of them.

The packages that single datasets need (scikit-learn, tokenizers, datasets) are imported when they are used.
"""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from memformer_torch.data import digits, enwik8, mnist, pydocs, synthetic, text, wikitext
from memformer_torch.data.corpus import Corpus, Documents
from memformer_torch.data.progress import Progress, progress_bar
from memformer_torch.data.stream import Stream
from memformer_torch.data.tokenizer import TextStream, Tokenizer, load_tokenizer
from memformer_torch.nn.sizes import check_type

DATASETS: dict[str, Callable[..., Corpus]] = {
    "digits": digits.load,
    "pydocs": pydocs.load,
    "mnist": mnist.load,
    "wikitext-2": partial(wikitext.load, "wikitext-2"),
    "wikitext-103": partial(wikitext.load, "wikitext-103"),
    "enwik8": enwik8.load,
    "text": text.load,
    "retention": partial(synthetic.load, "retention"),
    "recall": partial(synthetic.load, "recall"),
    "copy": partial(synthetic.load, "copy"),
}

__all__ = [
    "DATASETS",
    "Corpus",
    "Documents",
    "Progress",
    "Stream",
    "TextStream",
    "Tokenizer",
    "load_corpus",
    "load_tokenizer",
    "option_names",
    "progress_bar",
]


def load_corpus(
    name: str,
    *,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Corpus:
    """The corpus of this name.

    `root` (else $MEMFORMER_DATA) is where the folders of datasets are, `cache` where prepared ids are kept; only `download`
    lets a dataset that is not there come from the network. `options` are the dataset's own, as `option_names` lists them.
    """
    if name not in DATASETS:
        raise ValueError(f"there is no dataset {name!r}{_nearest(name, list(DATASETS))}: choose one of {', '.join(DATASETS)}")
    hints = _option_types(name)
    for option, value in options.items():
        if option not in option_names(name):
            known = ", ".join(option_names(name)) or "none"
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, option_names(name))}: it has {known}")
        check_type(f"data.{option}", value, hints[option])
    places = {"root": root, "cache": cache, "download": download, "progress": progress}
    taken = inspect.signature(DATASETS[name]).parameters
    return DATASETS[name](**{key: value for key, value in places.items() if key in taken}, **options)


def option_names(name: str) -> list[str]:
    """The options that a dataset has of its own."""
    common = ("root", "cache", "download", "progress")
    parameters = inspect.signature(DATASETS[name]).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in common]
    return own + (synthetic.option_names(name) if name in synthetic.TASKS else [])


def _option_types(name: str) -> dict[str, Any]:
    load = DATASETS[name]
    own = get_type_hints(load.func if isinstance(load, partial) else load)
    return own | (get_type_hints(synthetic.TASKS[name]) if name in synthetic.TASKS else {})


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""
