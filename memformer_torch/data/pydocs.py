"""`pydocs`: the documents that Python's own help is made of, about 80 of together half a megabyte.

The split is by a hash of the topic's name: about a tenth valid, a tenth test. The texts are those of the running Python.
"""

import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path

from memformer_torch.data.cache import make_key
from memformer_torch.data.corpus import SPLITS, Corpus
from memformer_torch.data.prepare import Piece, Source, prepare
from memformer_torch.data.progress import Progress
from memformer_torch.data.tokenizer import Tokenizer


def load(
    *,
    tokenizer: str | Tokenizer = "bytes",
    vocab_size: int | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Corpus:
    from pydoc_data.topics import topics

    texts = {name: topics[name].encode() for name in sorted(topics)}
    names = {split: [name for name in texts if split_of(name) == split] for split in SPLITS}

    def pieces(split: str) -> Iterator[Piece]:
        return (Piece(texts[name], True) for name in names[split])

    source = Source(
        name="pydocs",
        splits={split: lambda split=split: pieces(split) for split in SPLITS},  # type: ignore[misc]
        content=make_key([(name, hashlib.sha256(text).hexdigest()) for name, text in texts.items()]),
        num_bytes={split: sum(len(texts[name]) for name in names[split]) for split in SPLITS},
    )
    facts = {"from": f"Python {platform.python_version()}", "topics": len(texts), "split": "by hash of the topic's name"}
    return prepare(source, tokenizer, vocab_size, cache, progress, facts=facts)


def split_of(name: str) -> str:
    """`valid` or `test` for about a tenth of all names each, fixed for ever."""
    return {0: "valid", 1: "test"}.get(int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10, "train")
