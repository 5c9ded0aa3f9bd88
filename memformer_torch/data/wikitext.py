"""`wikitext-2` and `wikitext-103`: Wikipedia's good articles by words, with `<eos>` a line; one article is one document.

The files are `train.txt` or `wiki.train.tokens`, and so on. Where WikiText-103's train file is absent, a part of it named
`wiki.train.first-N-bytes.tokens` is taken, without its last line, which is cut; `facts` says so.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memformer_torch.data.corpus import SPLITS, Corpus
from memformer_torch.data.files import check_utf8, files_digest, find_file, find_folder
from memformer_torch.data.prepare import Piece, Source, prepare
from memformer_torch.data.progress import Progress
from memformer_torch.data.tokenizer import Tokenizer


def load(
    name: str,
    *,
    tokenizer: str | Tokenizer = "words",
    vocab_size: int | None = None,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    folder = find_folder(name, root, cache, download, lambda datasets, folder: fetch(datasets, folder, name))
    paths = {split: find_file(folder, *patterns(name, split)) for split in SPLITS}
    source = Source(
        name=name,
        splits={split: lambda path=path: read(path) for split, path in paths.items()},  # type: ignore[misc]
        content=files_digest(paths),
        num_bytes={split: path.stat().st_size for split, path in paths.items()},
    )
    facts = {"folder": str(folder), "files": ", ".join(path.name for path in paths.values()), "split": "as published"}
    if is_part(paths["train"]):
        facts["note"] = (
            f"{paths['train'].name} is only a part of the training text: perplexities are not comparable with published ones"
        )
    return prepare(source, tokenizer, vocab_size, cache, progress, facts=facts)


def patterns(name: str, split: str) -> list[str]:
    names = [f"wiki.{split}.tokens", f"{split}.txt"]
    return [*names, "wiki.train.first-*-bytes.tokens"] if (name, split) == ("wikitext-103", "train") else names


def is_part(path: Path) -> bool:
    return ".first-" in path.name


def read(path: Path) -> Iterator[Piece]:
    with path.open("rb") as file:
        lines: Iterable[bytes] = check_utf8(path, file)
        if is_part(path):
            lines = (line for line in lines if line.endswith(b"\n"))
        for article in articles(lines):
            yield Piece(article, True)


def articles(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, joined by article. A title stands between blank lines; a formula may begin and end with `=` too."""
    article: list[bytes] = []
    for line in lines:
        after_title = article and is_title(article[-1]) and not line.strip() and not b"".join(article[-2:-1]).strip()
        if after_title and any(map(bytes.strip, article[:-1])):
            yield b"".join(article[:-1])
            article = article[-1:]
        article.append(line)
    if article:
        yield b"".join(article)


def is_title(line: bytes) -> bool:
    """` = Title = `, but not ` = = Section = = `."""
    return line.startswith(b" = ") and not line.startswith(b" = = ") and line.rstrip().endswith(b" =")


def fetch(datasets: Any, folder: Path, name: str) -> None:
    """The same three files, from `Salesforce/wikitext` at Hugging Face, which keeps a row for each line."""
    for split in SPLITS:
        rows = datasets.load_dataset("Salesforce/wikitext", f"{name}-v1", split="validation" if split == "valid" else split)
        with (folder / f"wiki.{split}.tokens").open("w", encoding="utf-8", newline="") as file:
            for row in rows:
                file.write(row["text"] if row["text"].endswith("\n") else " \n")
