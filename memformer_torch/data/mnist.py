"""`mnist`: handwritten digits of 28x28 pixels in 256 levels, one image a document, from the four original IDX files.

The last 5,000 of the 60,000 training images are held out as valid; test are the 10,000 test images.
"""

# Shape letters: N images

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from memformer_torch.data.corpus import Corpus, Documents, fingerprint
from memformer_torch.data.files import find_file, find_folder

NAMES = {"train": "train", "test": "t10k"}


def load(
    *,
    size: int = 28,
    num_valid: int = 5000,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    download: bool = False,
) -> Corpus:
    """`size` 14 gives the means of 2x2 pixels, rounded (halves up), in the same 256 levels."""
    if size not in (28, 14):
        raise ValueError(f"size is {size}, but MNIST comes in 28, or 14 (means of 2x2 pixels)")
    folder = find_folder("mnist", root, cache, download, fetch)
    images = {split: read_images(folder, prefix) for split, prefix in NAMES.items()}
    if not 0 < num_valid < len(images["train"]):
        raise ValueError(f"num_valid is {num_valid}: hold out at least 1 and fewer than the {len(images['train'])} images")
    rows = {split: (shrink(part) if size == 14 else part).reshape(len(part), -1) for split, part in images.items()}
    splits = {
        "train": Documents.of_rows(rows["train"][:-num_valid]),
        "valid": Documents.of_rows(rows["train"][-num_valid:]),
        "test": Documents.of_rows(rows["test"]),
    }
    return Corpus(
        name="mnist",
        splits=splits,
        vocab_size=256,
        fingerprint=fingerprint(splits, "mnist", size),
        image_shape=(size, size),
        facts={
            "folder": str(folder),
            "training images": len(images["train"]),
            "test images": len(images["test"]),
            "split": f"the last {num_valid:,} training images are valid",
        },
    )


def shrink(images: np.ndarray) -> np.ndarray:
    """(N, 28, 28) to (N, 14, 14): means of 2x2 pixels, rounded, halves up."""
    blocks = images.reshape(-1, 14, 2, 14, 2)
    return ((blocks.sum(axis=(2, 4), dtype=np.uint16) + 2) // 4).astype(np.uint8)


def read_images(folder: Path, prefix: str) -> np.ndarray:
    """The images (N, 28, 28) of the training or test files, with their labels checked against them."""
    images = read_idx(find_file(folder, *[f"{prefix}-images{dot}idx3-ubyte{end}" for end in ("", ".gz") for dot in "-."]), 3)
    path = find_file(folder, *[f"{prefix}-labels{dot}idx1-ubyte{end}" for end in ("", ".gz") for dot in "-."])
    labels = read_idx(path, 1)
    if len(labels) != len(images):
        raise ValueError(f"{path} holds {len(labels)} labels for {len(images)} images: the files do not belong together")
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{folder} holds images of {images.shape[1:]} pixels, but MNIST's are 28x28")
    return images


def read_idx(path: Path, num_axes: int) -> np.ndarray:
    """An IDX file of bytes, packed by gzip or not."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): fetch it again") from error
    header, magic = 4 + 4 * num_axes, 0x0800 + num_axes
    if len(data) < header:
        raise ValueError(f"{path} is truncated: {len(data)} bytes do not even hold the header of {header}: fetch it again")
    found, *shape = struct.unpack(f">{1 + num_axes}I", data[:header])
    if found != magic:
        raise ValueError(f"{path} begins with the magic number {found:#x}, not {magic:#x}: it is not the file its name says")
    if len(data) - header != math.prod(shape):
        raise ValueError(
            f"{path} is truncated or overlong: {len(data) - header} bytes of data where {shape} needs {math.prod(shape)}: "
            "fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def fetch(datasets: Any, folder: Path) -> None:
    """The same four files, from `ylecun/mnist` at Hugging Face."""
    for split, prefix in NAMES.items():
        rows = datasets.load_dataset("ylecun/mnist", split=split)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", np.stack([np.asarray(image) for image in rows["image"]]))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.asarray(rows["label"]))
