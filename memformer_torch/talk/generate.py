"""`memformer generate`: a text that goes on, or images."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from memformer_torch.analysis import pictures
from memformer_torch.commands import signals
from memformer_torch.runs import build_corpus, open_model, read_config
from memformer_torch.session import Session
from memformer_torch.talk.opening import (
    STANDARD_INPUT,
    check_place,
    feed_file,
    open_session,
    sampling_options,
    watched,
    write,
)
from memformer_torch.types import PAD

COLUMNS = 10
"""Images side by side."""


def generate(
    run: Path,
    prompt: str | None = None,
    file: Path | None = None,
    max_tokens: int | None = 256,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | None = None,
    seed: int | None = None,
    session: Path | None = None,
    save: Path | None = None,
    images: Path | None = None,
    number: int = 10,
    draw: bool = False,
    checkpoint: str = "best",
    device: str = "auto",
) -> None:
    """Go on with a text, or complete images, by a trained model.

    The text comes on standard output as it is made, and nothing else does; Ctrl-C ends it. What it goes on with is --prompt,
    --file, or standard input if that is not a terminal. For example:

    memformer generate runs/books --prompt "It was" --temperature 0.8 --top_p 0.95

    memformer generate runs/books --file book.txt --save book.session

    memformer generate runs/books --session book.session --prompt "In the end"

    A run on images completes the upper halves of test images, or draws new ones:

    memformer generate runs/digits --images digits.png

    Args:
        run: Folder of the run.
        prompt: Text to go on with, of any length.
        file: File with the text to go on with, UTF-8, of any size; "-" is standard input.
        max_tokens: Most tokens of a text; "null" goes on until Ctrl-C.
        temperature: Below 1 likely tokens become likelier; 0 always takes the likeliest.
        top_k: Only the k likeliest tokens.
        top_p: Only the likeliest tokens that together have this probability.
        min_p: Only tokens with at least this share of the likeliest one's probability.
        repetition_penalty: Above 1, tokens of the last one to two segments become less likely.
        stop: Text that ends it; it is not printed.
        seed: Of the random numbers: the same seed gives the same text.
        session: Saved session to go on from, before the prompt.
        save: File for the session as it is at the end.
        images: PNG file for images, of a run on images.
        number: How many images.
        draw: Draw images from nothing instead of completing test images; this does without the data.
        checkpoint: "best" (lowest validation loss) or "last".
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    sampling = sampling_options(temperature, top_k, top_p, min_p, repetition_penalty) | {"seed": seed}
    check_place(save)
    if prompt is not None and file is not None:
        raise ValueError("both --prompt and --file are given: leave one out")
    if images is not None:
        for option, value in {"prompt": prompt, "file": file, "stop": stop, "session": session, "save": save}.items():
            if value is not None:
                raise ValueError(f"--{option} is for text, and --images for images: leave one out")
        generate_images(run, images, number, draw, checkpoint, device, partial(Session.generate, **sampling))
        return
    if draw:
        raise ValueError("--draw is for images: say which file to write, for example --images out.png")
    reader = open_session(run, session, checkpoint, device)
    if prompt is not None:
        reader.feed(prompt)
    elif file is not None or (sys.stdin is not None and not sys.stdin.isatty()):
        for _ in feed_file(reader, file or STANDARD_INPUT):
            pass
    with signals() as asked:
        for piece in reader.generate(max_tokens, **sampling, stop=() if stop is None else stop):
            write(piece)
            if asked:
                break
        if sys.stdout.isatty():
            write("\n")
        if save is not None:
            reader.save(save)
    if asked:
        raise SystemExit(128 + asked[0])


def generate_images(
    run: Path, path: Path, number: int, draw: bool, checkpoint: str, device: str, go_on: Callable[..., Iterator[Any]]
) -> None:
    """Complete the upper halves of test images, or draw new ones, all side by side."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"--images is {path}, but images are written as PNG: give a name that ends in .png")
    if number < 1:
        raise ValueError(f"--number is {number}, but must be at least 1")
    check_place(path)
    pictures.new_figure()  # without matplotlib an error now, not after the work
    model, _, shape = open_model(run, device, checkpoint, quiet=not watched())
    if shape is None:
        raise ValueError(f"--images is given, but {run} was not trained on images: leave it out")
    height, width = shape
    rows, given = {}, torch.zeros(number, 0, dtype=torch.int64)
    if not draw:
        whole = _test_images(run, number)
        given, unknown = whole.tensor_split([height // 2 * width], dim=1)
        rows = {"test images": whole, "upper half given": torch.cat([given, torch.full_like(unknown, PAD)], dim=1)}
    session, missing = Session(model, batch_size=len(given)), height * width - given.shape[1]
    session.feed(given)
    with Progress(console=Console(markup=False, stderr=True), transient=True, disable=not watched()) as progress:
        pixels = list(progress.track(go_on(session, missing), total=missing, description="drawing"))
    made = torch.tensor(pixels).view(missing, len(given)).T
    rows["drawn" if draw else "completed"] = torch.cat([given, made], dim=1)
    arrays = {name: ids.reshape(-1, height, width).numpy() for name, ids in rows.items()}
    pictures.image_rows(path, arrays, model.config.vocab_size, COLUMNS)
    print(f"Written: {path}", file=sys.stderr)


def _test_images(run: Path, number: int) -> torch.Tensor:
    try:
        documents = build_corpus(read_config(run)["data"], quiet=not watched())["test"]
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"to complete test images needs the data of {run}, to --draw does not: {error}") from error
    chosen = [documents[index] for index in range(min(number, len(documents)))]
    return torch.from_numpy(np.stack(chosen).astype(np.int64))
