"""`memformer inspect`: what the slots of a trained model do while it reads."""

import codecs
import sys
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from memformer_torch.analysis.look import check
from memformer_torch.analysis.pictures import new_figure
from memformer_torch.analysis.slot_figures import Figures
from memformer_torch.analysis.slot_findings import PAPER, middle
from memformer_torch.analysis.slot_report import table_html, write_report
from memformer_torch.analysis.slots import KEEP, MOST_BYTES, TAKE, TYPES, Slots, bytes_a_segment, collect, slot_types
from memformer_torch.analysis.token_text import token_texts
from memformer_torch.data import Tokenizer
from memformer_torch.runs import build_corpus, open_model, read_config
from memformer_torch.session import LONGEST_TAIL
from memformer_torch.talk import opening
from memformer_torch.talk.opening import open_bytes, watched

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A table: its columns, its rows."""


class Given(NamedTuple):
    """What is read."""

    name: str
    ids: np.ndarray
    more: bool
    """Whether there was more, which is left out."""


def inspect(
    run: Path,
    input: Path | None = None,
    document: int | None = None,
    out: Path | None = None,
    slot: int | None = None,
    max_segments: int = 256,
    keep: float = KEEP,
    take: float = TAKE,
    json: bool = False,
    checkpoint: str = "best",
    device: str = "auto",
) -> None:
    """See what the slots of a trained Memformer do while it reads: the paper's analysis of the memory writer, for your model.

    Writes slots.npz (all numbers, by name), pictures, and report.html, which holds everything it shows and opens without a
    network. For example:

    memformer inspect runs/books --input book.txt

    memformer inspect runs/digits --document 7 --out seven

    Args:
        run: Folder of the run.
        input: UTF-8 file to read, of a run on text; "-" is standard input.
        document: Instead of a file, a document of the run's own test split, from 0 on: an image, of a run on images.
        out: Folder for what is written; by default RUN/inspect.
        slot: The slot whose life is told; by default the one that changes most between keeping and taking.
        max_segments: Most segments that are read: of a longer text, the first ones.
        keep: A slot keeps if it gives itself this share of its attention or more.
        take: A slot takes if it gives itself this share or less; between the two it mixes.
        json: Print JSON.
        checkpoint: "best" (lowest validation loss) or "last".
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    if input is not None and document is not None:
        raise ValueError("both --input and --document are given: leave one out")
    if max_segments < 2:
        raise ValueError(f"--max_segments is {max_segments}, but must be at least 2: the first is the document's start")
    slot_types(np.zeros((1, 1)), keep, take)
    folder = run / "inspect" if out is None else out
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out is {folder}, which is a file: give a folder")
    new_figure()  # without matplotlib an error now, not after the work

    model, tokenizer, shape = open_model(run, device, checkpoint, quiet=not watched())
    check(model)
    if slot is not None and not 0 <= slot < model.config.num_slots:
        raise ValueError(f"--slot is {slot}, but the slots are 0 to {model.config.num_slots - 1}")
    given = _read(run, input, document, model, tokenizer, shape, max_segments)
    found = _collect(model, given.ids, keep, take)

    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / "slots.npz")
    image = None if shape is None else given.ids.reshape(shape)
    unit = "words" if tokenizer is not None else "ids" if shape is None else "grey levels"
    figures = Figures(folder, found, token_texts(found.source, tokenizer), unit, image, model.config.vocab_size, slot)
    parts, tables = figures.draw(), (_times(figures.numbers), _types(figures.numbers))
    title, about = f"What the slots of {run.name} do", _about(run, checkpoint, model, given, found)
    write_report(folder / "report.html", title, about, "\n".join(table_html(*table) for table in tables), parts)
    if json:
        print(dumps({"run": str(run), "checkpoint": checkpoint, "read": given.name, "more": given.more, **figures.numbers}))
    else:
        _print(tables, f"{len(given.ids):,} tokens of {given.name}, {len(found):,} segments, {found.num_slots} slots")
    print(f"Written: {folder / 'report.html'}, with slots.npz and pictures beside it", file=sys.stderr)


def read_ids(path: Path, tokenizer: Tokenizer, most: int) -> tuple[np.ndarray, bool]:
    """The first ids of a UTF-8 file of any size, at most so many, and whether there are more; cut as a session cuts them."""
    decoder, parts, count, tail, done = codecs.getincrementaldecoder("utf-8")(), [np.zeros(0, np.int64)], 0, "", 0
    with open_bytes(path) as file:
        data = b"begin"
        while data and count <= most:
            data = file.read(opening.PIECE)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} is not UTF-8 at byte {done + error.start} ({error.reason}): convert it") from error
            done, text = done + len(text.encode()), tail + text
            cut = tokenizer.safe_cut(text) if data else len(text)
            cut = len(text) if len(text[cut:].encode()) > LONGEST_TAIL else cut
            parts.append(tokenizer.encode(text[:cut]).astype(np.int64))
            tail, count = text[cut:], count + len(parts[-1])
    return np.concatenate(parts)[:most], count > most


def _read(
    run: Path,
    path: Path | None,
    document: int | None,
    model: Any,
    tokenizer: Tokenizer | None,
    shape: tuple[int, int] | None,
    max_segments: int,
) -> Given:
    """A file or a test document, as far as it is to be read; what is left out is said."""
    limit = min(max_segments, max(2, MOST_BYTES // bytes_a_segment(model)))
    most = (limit - 1) * model.config.segment_length
    if path is None:
        whole = _test_document(run, document or 0)
        given = Given(f"test document {document or 0}", np.asarray(whole[:most]).astype(np.int64), len(whole) > most)
    elif tokenizer is None:
        trained = "images, not on text" if shape is not None else "ids that are no text"
        raise ValueError(f"{run} was trained on {trained}: choose one of its test documents by --document N, from 0 on")
    else:
        given = Given(str(path), *read_ids(path, tokenizer, most))
    if not len(given.ids):
        raise ValueError(f"there is nothing to read in {given.name}")
    if given.more and shape is not None:
        raise ValueError(f"--max_segments is {max_segments}, but the image has more: raise it")
    if given.more:
        way = "raise --max_segments" if limit == max_segments else "more would not fit into memory"
        print(f"Only the first {limit:,} segments of {given.name} are read: {way}", file=sys.stderr)
    return given


def _test_document(run: Path, number: int) -> np.ndarray:
    try:
        documents = build_corpus(read_config(run)["data"], quiet=not watched())["test"]
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"a test document needs the data of {run}, a text of your own is --input FILE: {error}") from error
    if not 0 <= number < len(documents):
        raise ValueError(f"--document is {number}, but the test split of {run} has {len(documents)}, from 0 on")
    return documents[number]


def _collect(model: Any, ids: np.ndarray, keep: float, take: float) -> Slots:
    if model.cls_tokens.device.type != "mps":  # which lacks double precision
        model = model.double()  # so that the attention is the model's to the last digits
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    number = 1 - (-len(ids) // model.config.segment_length)
    with Progress(*columns, console=Console(markup=False, stderr=True), transient=True, disable=not watched()) as progress:
        bar = progress.add_task("segments", total=number)
        options: dict[str, Any] = {"dtype": np.float32, "progress": lambda: progress.advance(bar)}
        return collect(model, ids, keep=keep, take=take, max_segments=number, **options)


def _about(run: Path, checkpoint: str, model: Any, given: Given, found: Slots) -> str:
    config, heads = model.config, model.writer.num_heads
    return (
        f"The {checkpoint} checkpoint of {run} read {len(given.ids):,} tokens of {given.name} in {len(found):,} segments of at "
        f"most {config.segment_length}{', and left out the rest' if given.more else ''}. It has {config.num_slots} slots of "
        f"width {config.d_model}, written with {heads} head{'s' if heads > 1 else ''} at temperature {config.temperature:g}. "
        "Start is segment 0, where it reads BOS alone; first is the first segment with something of the document, and middle "
        f"the middle half, segments {middle(found)[0]} to {middle(found)[-1]}. Moved is the angle between a slot before "
        "and after a segment; entropy that of the writer's attention. All numbers are in slots.npz, beside this file."
    )


def _times(record: dict[str, Any]) -> Rows:
    """Shares and means by time."""
    rows: list[tuple[str, ...]] = []
    for name in TYPES:
        paper = "{:.0%} to {:.0%}".format(*PAPER[name]) if name in PAPER else ""
        rows.append((f"slots that {name}", *(f"{column[name]:.1%}" for column in record["when"].values()), paper))
    rows.append(("their heads that keep", *(f"{column['heads_that_keep']:.1%}" for column in record["when"].values()), ""))
    rows.append(("attention on itself", *(f"{column['own']:.1%}" for column in record["when"].values()), ""))
    rows.append(("moved (degrees)", *(f"{column['moved_degrees']:.2f}" for column in record["when"].values()), ""))
    rows.append(("entropy (nats)", *(f"{column['entropy']:.2f}" for column in record["when"].values()), ""))
    return ("", *record["when"], "paper, middle"), rows


def _types(record: dict[str, Any]) -> Rows:
    """Means by type, in the middle half."""

    def shown(value: float | None, pattern: str) -> str:
        return "" if value is None else format(value, pattern)

    rows: list[tuple[str, ...]] = [
        (
            name,
            str(row["slots"]),
            shown(row["moved_degrees"], ".2f"),
            shown(row["forgetting_length"], ".3f"),
            shown(row["forgetting_cosine"], ".2f"),
        )
        for name, row in record["types"].items()
    ]
    return ("middle half", "slots, mostly", "moved (degrees)", "|v_bias|", "cosine to v_bias"), rows


def _print(tables: tuple[Rows, ...], title: str) -> None:
    for number, (columns, rows) in enumerate(tables):
        table = Table(*columns, title=None if number else title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        Console(markup=False).print(table)
