"""Sessions of a run, and what all these commands share."""

import codecs
import io
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from memformer_torch.data import Tokenizer
from memformer_torch.runs import open_model
from memformer_torch.sampling import Sampling
from memformer_torch.session import Session

PIECE = 1 << 13
"""Bytes of a file that are fed at once: few enough to stop soon when asked to."""
STANDARD_INPUT = Path("-")


def open_session(run: Path, session: Path | None, checkpoint: str, device: str) -> Session:
    """A session of a run on text: a new one, or one that was saved."""
    model, tokenizer, shape = open_model(run, device, checkpoint, quiet=not watched())
    if tokenizer is None and shape is not None:
        raise ValueError(f"{run} was trained on images, not on text: memformer generate {run} --images out.png")
    if tokenizer is None:
        raise ValueError(f"{run} was trained on ids that are neither text nor images: feed ids to a memformer_torch.Session")
    return Session(model, tokenizer) if session is None else load_session(session, model, tokenizer)


def load_session(path: Path, model: Any, tokenizer: Tokenizer | None) -> Session:
    session = Session.load(path, model, tokenizer)
    if session.batch_size > 1:
        raise ValueError(f"{path} holds {session.batch_size} documents: save one by Session.take([0]).save")
    return session


def feed_file(session: Session, path: Path, start: int = 0) -> Iterator[tuple[int, float]]:
    """Feed a UTF-8 file of any size, by pieces: yields how many of its bytes are read, and each piece's log-probability."""
    decoder, done = codecs.getincrementaldecoder("utf-8")(), start
    with open_bytes(path) as file:
        if start:
            file.seek(start)
        data = b"begin"
        while data:
            data, problem = file.read(PIECE), None
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                text, problem = error.object[: error.start].decode(), error
            score = session.feed(text)
            done += len(text.encode())
            yield done, score
            if problem is not None:
                raise ValueError(f"{path} is not UTF-8 at byte {done} ({problem.reason}): convert it") from problem


def open_bytes(path: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb")


def watched() -> bool:
    """Whether somebody sees a bar move."""
    return sys.stderr.isatty()


def check_place(path: Path | None) -> None:
    """Raise a ValueError if a file cannot be written there: hours of work may come before."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{path} cannot be written: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")


def sampling_options(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None, repetition_penalty: float
) -> dict[str, Any]:
    """For `Session.generate`; a ValueError if there is something wrong with one, before the work."""
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    options["repetition_penalty"] = repetition_penalty
    Sampling(**options)
    return options


def write(text: str) -> None:
    """To standard output at once; a terminal gets nothing that could drive it."""
    if sys.stdout.isatty():
        text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a model of bytes writes any character, and the encoding may lack some
    sys.stdout.write(text)
    sys.stdout.flush()
