"""MNIST's IDX files are read exactly or refused with their path."""

import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from memformer_torch.data import load_corpus
from memformer_torch.data.mnist import shrink, write_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28)).astype(np.uint8)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, images in (("train", IMAGES[:5]), ("t10k", IMAGES[5:])):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(len(images)))
    return tmp_path


def pack(path):
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_images_are_documents_and_the_last_training_ones_are_held_out(root, packed):
    if packed:
        for path in sorted((root / "mnist").iterdir()):
            pack(path)
    corpus = load_corpus("mnist", root=root, num_valid=2)
    assert [part.ids.tolist() for part in corpus.splits.values()] == [
        part.reshape(-1).tolist() for part in (IMAGES[:3], IMAGES[3:5], IMAGES[5:])
    ]
    assert {len(document) for part in corpus.splits.values() for document in part} == {784}
    assert (corpus.facts["training images"], corpus.facts["test images"], corpus.vocab_size) == (5, 2, 256)


def test_small_images_are_means_rounded_half_up(root):
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, :2, :8] = [[1, 0, 1, 1, 255, 255, 255, 255], [0, 0, 0, 0, 255, 255, 255, 253]]
    assert shrink(image)[0, 0, :4].tolist() == [0, 1, 255, 255]
    small = load_corpus("mnist", root=root, num_valid=2, size=14)["test"]
    means = IMAGES[5:].reshape(2, 14, 2, 14, 2).mean((2, 4))
    assert np.abs(small.ids.reshape(means.shape) - means).max() <= 0.5


def damage(path, change):
    data = path.read_bytes()
    path.write_bytes(change(data))


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"\0\0\x09" + data[3:], "begins with the magic number 0x90[13], not 0x80[13]"),
        (lambda data: data[:-1], "is truncated or overlong"),
        (lambda data: data + b"\0", "is truncated or overlong"),
        (lambda data: data[:6], "is truncated: 6 bytes"),
        (lambda data: b"", "is truncated: 0 bytes"),
    ],
)
def test_files_that_are_not_what_they_should_be(root, name, change, message):
    damage(root / "mnist" / name, change)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        load_corpus("mnist", root=root, num_valid=2)


@pytest.mark.parametrize("change", [lambda data: data[:-9], lambda data: data[:30] + b"?" + data[31:], lambda data: b"no gzip"])
def test_packed_files_that_are_damaged(root, change):
    path = root / "mnist" / "train-images-idx3-ubyte"
    pack(path)
    damage(path.with_name(path.name + ".gz"), change)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is truncated or damaged .* fetch it again"):
        load_corpus("mnist", root=root, num_valid=2)


def test_files_that_do_not_belong_together(root):
    write_idx(root / "mnist" / "t10k-labels-idx1-ubyte", np.arange(3))
    with pytest.raises(ValueError, match="holds 3 labels for 2 images"):
        load_corpus("mnist", root=root, num_valid=2)
    write_idx(root / "mnist" / "train-images-idx3-ubyte", IMAGES[:5, :14])
    with pytest.raises(ValueError, match="but MNIST's are 28x28"):
        load_corpus("mnist", root=root, num_valid=2)


def test_a_missing_file_is_named(root):
    (root / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="holds no t10k-labels-idx1-ubyte"):
        load_corpus("mnist", root=root, num_valid=2)


@pytest.mark.parametrize("options", [{"size": 20}, {"num_valid": 5}, {"num_valid": 0}])
def test_options_that_cannot_be(root, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        load_corpus("mnist", root=root, **options)


def test_downloaded_images_become_the_same_files(root, monkeypatch):
    rows = {"train": {"image": IMAGES[:5], "label": range(5)}, "test": {"image": IMAGES[5:], "label": range(2)}}
    hub = SimpleNamespace(load_dataset=lambda name, split: rows[split])
    expected = load_corpus("mnist", root=root, num_valid=2)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert load_corpus("mnist", root=root / "none", num_valid=2, download=True).fingerprint == expected.fingerprint
    monkeypatch.setitem(sys.modules, "datasets", None)  # what is there needs no second download
    assert load_corpus("mnist", root=root / "none", num_valid=2).fingerprint == expected.fingerprint
