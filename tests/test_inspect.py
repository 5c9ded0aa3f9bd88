"""memformer inspect: arrays, pictures and one report that holds everything, for any run with slots; else one line."""

import base64
import inspect as standard
import io
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from memformer_torch.analysis.slot_findings import middle, shares, writing_place
from memformer_torch.analysis.slots import TYPES, load
from memformer_torch.analysis.text_picture import LINE, columns, lay_out
from memformer_torch.analysis.token_text import Piece, token_texts
from memformer_torch.cli import main
from memformer_torch.runs import new_run, open_model
from memformer_torch.talk import inspect as inspecting
from memformer_torch.talk import opening
from memformer_torch.train import TrainConfig

MODEL = {"name": "memformer", "d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL |= {"segment_length": 8, "num_slots": 3}
TRAIN = TrainConfig(updates=2, batch_size=1, horizon=2, evaluate_tokens=50, log_every=1, warm_up=1)
SCRIPT = "<script>alert('x')</script>"
TEXT = (
    f"the cat — sees the dög .\nit costs $5 and $6 {SCRIPT} & <b> so\nthe <img src=http://a.b/c> is not seen , by näïve dogs\n"
)
PICTURES = ["three-types", "shares", "words", "forgetting", "home", "life"]
FILES = {"slots.npz", "report.html", *(f"{name}.png" for name in PICTURES)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with runs on words, bytes, images and ids, one without memory, one of another model, and a text."""
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "data").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "data" / f"{split}.txt").write_text(TEXT * 3, encoding="utf-8")
    text = {"name": "text", "path": str(folder / "data"), "cache": str(folder / "cache")}
    other = {"name": "lstm", "d_model": 16, "num_layers": 1, "segment_length": 8}
    new_run(folder / "words", MODEL, text | {"tokenizer": "words"}, TRAIN, "cpu").fit()
    new_run(folder / "bytes", MODEL | {"num_cls_tokens": 0}, text, TRAIN, "cpu").fit()
    new_run(folder / "images", MODEL, {"name": "digits"}, TRAIN, "cpu").fit()
    new_run(folder / "ids", MODEL | {"forgetting": False}, {"name": "copy"}, TRAIN, "cpu").fit()
    new_run(folder / "forgetful", MODEL | {"num_slots": 0}, text, TRAIN, "cpu").fit()
    new_run(folder / "lstm", other, text, TRAIN, "cpu").fit()
    (folder / "book.txt").write_text(TEXT, encoding="utf-8")
    return folder


def run(capsys, *arguments, code=0):
    """What a command prints: its output, its errors."""
    try:
        main(["inspect", *map(str, arguments), "--device", "cpu"])
        assert code == 0
    except SystemExit as stopped:
        assert (stopped.code or 0) == code, capsys.readouterr().err  # noqa: PT017
    return capsys.readouterr()


class Page(HTMLParser):
    """A page's tags, attributes and text; void elements but these are errors."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.images, self.text, self.open = set(), [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag == "img":
            self.images.append(dict(attributes))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def check_page(path, pictures):
    """Everything is inside, everything is closed, nothing is from elsewhere and nothing runs."""
    page, text = Page(path), path.read_text(encoding="utf-8")
    known = "html head meta title style body main h1 h2 p section figure figcaption img div table thead tbody tr th td span"
    assert page.tags <= {*known.split(), "details", "summary"}
    for name, value in page.attributes:
        assert name in ("alt", "charset", "class", "content", "http-equiv", "lang", "name", "scope", "src", "style", "title")
        assert name != "src" or value.startswith("data:image/png;base64,")
        assert name != "style" or re.fullmatch(r"--w:[\d.]+", value)
    assert "url(" not in text
    assert "@import" not in text
    assert len(page.images) == len(pictures)
    for image, name in zip(page.images, pictures, strict=True):
        content = base64.b64decode(image["src"].partition(",")[2])
        assert content == (path.parent / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(image["alt"]) > 20
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    return "".join(page.text)


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_a_text(place, name, tmp_path, capsys):
    out = tmp_path / "<i>out"
    printed = run(capsys, place / name, "--input", place / "book.txt", "--out", out)
    assert "slots that keep" in printed.out
    assert "60% to 80%" in printed.out
    assert f"Written: {out / 'report.html'}" in printed.err
    assert {path.name for path in out.iterdir()} == FILES
    found = load(out / "slots.npz")
    tokenizer = open_model(place / name, "cpu")[1]
    ids = tokenizer.encode(TEXT)
    assert found.source[found.source >= 0].tolist() == ids.tolist()
    assert len(found) == 1 + -(-len(ids) // 8)
    assert np.allclose(found.own + found.tokens.sum(-1), 1, atol=1e-6)
    shown = check_page(out / "report.html", PICTURES)
    for words in ("A slot keeps if 80% or more", "60% to 80% keep", "5% to 10% take", "nearly all take at the beginning"):
        assert words in shown
    share = shares(found.types)[list(middle(found))].mean(0)
    assert ", ".join(f"{part:.1%} {kind}" for part, kind in zip(share, TYPES, strict=True)) in shown
    text = "".join(token_texts(found.source, tokenizer)[writing_place(found).segment])
    assert text.replace("\n", "↵\n").strip() in shown


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_a_text_cannot_add_markup(place, name, tmp_path, capsys):
    book = tmp_path / "<script>alert(1)<.txt"
    book.write_text((SCRIPT + " ") * 40, encoding="utf-8")
    run(capsys, place / name, "--input", book, "--out", tmp_path / "out")
    shown = check_page(tmp_path / "out" / "report.html", PICTURES)
    assert any(part in shown for part in ([SCRIPT] if name == "words" else [SCRIPT[n : n + 8] for n in range(13, 21)]))
    assert book.name in shown
    assert "<script" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_an_image(place, capsys):
    run(capsys, place / "images", "--document", 3)
    out = place / "images" / "inspect"
    assert {path.name for path in out.iterdir()} == FILES
    found = load(out / "slots.npz")
    digit = inspecting.build_corpus({"name": "digits"}, quiet=True)["test"][3]
    assert (found.source[1:].ravel() == digit).all()
    assert "gave the pixels when they were read" in check_page(out / "report.html", PICTURES)
    first = run(capsys, place / "images", "--json").out
    assert json.loads(first)["read"] == "test document 0"


def test_ids_without_forgetting(place, tmp_path, capsys):
    run(capsys, place / "ids", "--out", tmp_path / "new" / "out")
    out = tmp_path / "new" / "out"
    assert {path.name for path in out.iterdir()} == FILES - {"forgetting.png", "home.png"}
    shown = check_page(out / "report.html", [name for name in PICTURES if name not in ("forgetting", "home")])
    assert shown.count("This model was trained without forgetting") == 2


def test_json_and_options(place, tmp_path, capsys):
    arguments = (place / "bytes", "--input", place / "book.txt", "--out", tmp_path, "--keep", 0.5, "--take", 0.4, "--slot", 1)
    record = json.loads(run(capsys, *arguments, "--json").out)
    assert record["thresholds"] == {"take": 0.4, "keep": 0.5}
    assert record["slots"] == 3
    assert not record["more"]
    shown = check_page(tmp_path / "report.html", PICTURES)
    assert "A slot keeps if 50% or more of its attention" in shown
    assert "Slot 1, the one asked for" in shown
    found = load(tmp_path / "slots.npz")
    for name, at in (("start", 0), ("first", 1), ("last", -1)):
        assert [record["when"][name][kind] for kind in TYPES] == [(found.types[at] == i).mean() for i in range(3)]


def test_a_long_text_is_read_in_part(place, tmp_path, capsys):
    printed = run(capsys, place / "bytes", "--input", place / "book.txt", "--out", tmp_path, "--max_segments", 4)
    assert "Only the first 4 segments" in printed.err
    assert "raise --max_segments" in printed.err
    assert len(load(tmp_path / "slots.npz")) == 4
    assert "and left out the rest" in check_page(tmp_path / "report.html", PICTURES)


def test_a_text_too_large_for_memory_is_read_in_part(place, tmp_path, capsys, monkeypatch):
    model = open_model(place / "bytes", "cpu")[0]
    monkeypatch.setattr(inspecting, "MOST_BYTES", 5 * inspecting.bytes_a_segment(model))
    printed = run(capsys, place / "bytes", "--input", place / "book.txt", "--out", tmp_path)
    assert "Only the first 5 segments" in printed.err
    assert "would not fit into memory" in printed.err


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_pieces_of_any_size_are_the_whole_text(place, name, monkeypatch):
    tokenizer = open_model(place / name, "cpu")[1]
    ids = tokenizer.encode(TEXT)
    for piece in (1, 7, 1 << 20):
        monkeypatch.setattr(opening, "PIECE", piece)
        for most in (3, len(ids), len(ids) + 1):
            found, more = inspecting.read_ids(place / "book.txt", tokenizer, most)
            assert found.tolist() == ids[:most].tolist()
            assert more == (most < len(ids))


def test_standard_input(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode()), "utf-8"))
    run(capsys, place / "words", "--input", "-", "--out", tmp_path)
    assert (load(tmp_path / "slots.npz").source >= 0).sum() == len(open_model(place / "words", "cpu")[1].encode(TEXT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not the folder of a run"),
        (["lstm", "--input", "book.txt"], "slots are a Memformer's, but this model is a LSTM"),
        (["forgetful", "--input", "book.txt"], "has no memory (num_slots is 0)"),
        (["words", "--input", "missing"], "missing"),
        (["words", "--input", "data"], "data"),
        (["words", "--input", "empty"], "there is nothing to read in empty"),
        (["words", "--input", "blank"], "there is nothing to read in blank"),
        (["bytes", "--input", "binary"], "binary is not UTF-8 at byte 2 ("),
        (["images", "--input", "book.txt"], "images was trained on images, not on text: choose one of its test documents by"),
        (["ids", "--input", "book.txt"], "ids was trained on ids that are no text"),
        (["images", "--document", "999"], "--document is 999, but the test split of images has 180"),
        (["images", "--document", "-1"], "--document is -1"),
        (["images", "--max_segments", "5"], "the image has more"),
        (["words", "--input", "book.txt", "--document", "0"], "both --input and --document"),
        (["words", "--input", "book.txt", "--max_segments", "1"], "--max_segments is 1"),
        (["words", "--input", "book.txt", "--slot", "3"], "--slot is 3, but the slots are 0 to 2"),
        (["words", "--input", "book.txt", "--keep", "0.1"], "0 <= take < keep <= 1"),
        (["words", "--input", "book.txt", "--out", "book.txt"], "--out is book.txt, which is a file"),
        (["words", "--input", "book.txt", "--checkpoint", "worst"], "there is no checkpoint 'worst': choose best or last"),
        (["words", "--inputs", "book.txt"], "did you mean input"),
    ],
)
def test_errors_are_one_line(place, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "empty").touch()
    (place / "blank").write_text("  \t ")
    (place / "binary").write_bytes(b"ab\xff\x00")
    printed = run(capsys, *arguments, code=2)
    assert printed.out == ""
    assert printed.err.startswith("memformer: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (place / "words" / "inspect").exists()


def test_a_test_document_needs_the_data(place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    error = run(capsys, place / "images", code=2).err
    assert "a text of your own is --input FILE: digits needs the package scikit-learn" in error


def test_without_matplotlib_it_says_so_first(place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(inspecting, "open_model", None)
    assert "pip install 'memformer-torch[plots]'" in run(capsys, place / "words", "--input", "book.txt", code=2).err


def test_lines_of_coloured_text():
    parts = [Piece(text, 0.1) for text in ("a", " b", "\n", "c", " ", "\x07", " 漢字", " " + "x" * 90, "y")]
    lines = lay_out(parts)
    assert [[(column, text) for column, text, _ in line] for line in lines] == [
        [(0, "a"), (2, "b"), (3, "↵")],
        [(0, "c"), (1, " "), (2, "·"), (4, "漢字")],
        [(0, "x" * 90), (90, "y")],
    ]
    assert columns("漢字") == 4
    assert all(column + columns(text) <= LINE for line in lines for column, text, _ in line)


def test_help_teaches_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    what, _, options = standard.cleandoc(inspecting.inspect.__doc__).partition("\n\nArgs:")
    assert " ".join(what.split()) in printed
    for name in standard.signature(inspecting.inspect).parameters:
        assert " ".join(options.split(f"\n    {name}: ")[1].split("\n")[0].split()) in printed, name
