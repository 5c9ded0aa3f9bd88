"""generate, chat and read: a text goes on from wherever it was left, and what goes wrong is one line and loses nothing."""

import inspect
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from memformer_torch.cli import main
from memformer_torch.runs import new_run, open_model
from memformer_torch.session import Session
from memformer_torch.talk import chat as chats
from memformer_torch.talk import generate as generating
from memformer_torch.talk import opening
from memformer_torch.talk import read as reading
from memformer_torch.talk.opening import feed_file
from memformer_torch.train import TrainConfig

MODEL = {"name": "memformer", "d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL |= {"segment_length": 8, "num_slots": 2}
TRAIN = TrainConfig(updates=2, batch_size=1, horizon=2, evaluate_tokens=50, log_every=1, warm_up=1)
TEXT = "the cat — sees the dög .\nthe dog sees a cat\nand the cat is not seen , by näïve dogs\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with runs on words, bytes, images and ids, a growing one, and a text that they can read."""
    folder = tmp_path_factory.mktemp("talk")
    (folder / "data").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "data" / f"{split}.txt").write_text(TEXT * 3, encoding="utf-8")
    text = {"name": "text", "path": str(folder / "data"), "cache": str(folder / "cache")}
    growing = {"name": "decoder", "d_model": 16, "num_heads": 2, "num_layers": 1, "segment_length": 8, "max_length": 80}
    new_run(folder / "words", MODEL, text | {"tokenizer": "words"}, TRAIN, "cpu").fit()
    new_run(folder / "bytes", MODEL, text, TRAIN, "cpu").fit()
    new_run(folder / "growing", growing, text | {"tokenizer": "words"}, TRAIN, "cpu").fit()
    new_run(folder / "images", MODEL, {"name": "digits"}, TRAIN, "cpu").fit()
    new_run(folder / "ids", MODEL, {"name": "copy"}, TRAIN, "cpu").fit()
    (folder / "book.txt").write_text(TEXT * 2, encoding="utf-8")
    return folder


def run(capsys, *arguments, code=0):
    """What a command prints: its output, its errors."""
    try:
        main([*map(str, arguments), "--device", "cpu"])
        assert code == 0
    except SystemExit as stopped:
        assert (stopped.code or 0) == code, capsys.readouterr().err  # noqa: PT017
    return capsys.readouterr()


def fails(capsys, *arguments):
    printed = run(capsys, *arguments, code=2)
    assert printed.out == ""
    assert printed.err.startswith("memformer: ")
    assert printed.err.count("\n") == 1
    return printed.err


def give(monkeypatch, text):
    content = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))


def interrupt(monkeypatch, module, after):
    """Ctrl-C after so many pieces."""
    pieces, write = [], module.write

    def watched(text):
        write(text)
        pieces.append(text)
        if len(pieces) == after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "write", watched)


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_a_seed_is_one_text(place, name, capsys):
    one, same, other = (
        run(capsys, "generate", place / name, "--prompt", "the cat", "--max_tokens", 40, "--seed", seed).out
        for seed in (1, 1, 2)
    )
    assert one == same != other
    session = Session(*open_model(place / name, "cpu")[:2])
    session.feed("the cat")
    assert one == "".join(session.generate(40, seed=1))


def test_words_have_their_blanks(place, capsys):
    printed = run(capsys, "generate", place / "words", "--prompt", "the cat", "--max_tokens", 30, "--seed", 3).out
    tokenizer = open_model(place / "words", "cpu")[1]
    assert len(tokenizer.encode(printed)) == 30
    assert printed[0] in " \n"


def test_a_prompt_comes_from_anywhere(place, tmp_path, capsys, monkeypatch):
    options = ("--max_tokens", 20, "--seed", 0)
    expected = run(capsys, "generate", place / "bytes", "--prompt", TEXT, *options).out
    (tmp_path / "prompt").write_bytes(TEXT.encode())
    assert run(capsys, "generate", place / "bytes", "--file", tmp_path / "prompt", *options).out == expected
    for arguments in ((), ("--file", "-")):
        give(monkeypatch, TEXT)
        assert run(capsys, "generate", place / "bytes", *arguments, *options).out == expected
    give(monkeypatch, b"")
    assert run(capsys, "generate", place / "bytes", *options).out != expected


@pytest.mark.parametrize("name", ["words", "bytes", "growing"])
def test_a_session_goes_on_as_if_never_saved(place, name, tmp_path, capsys):
    book, saved = tmp_path / "book.txt", tmp_path / "book.session"
    book.write_text(TEXT, encoding="utf-8")
    run(capsys, "read", place / name, book, "--save", saved)
    options = ("--max_tokens", 10, "--seed", 5)
    later = run(capsys, "generate", place / name, "--session", saved, "--prompt", "the", *options, "--save", saved).out
    (tmp_path / "all.txt").write_text(TEXT + "the", encoding="utf-8")
    assert later == run(capsys, "generate", place / name, "--file", tmp_path / "all.txt", *options).out
    assert Session.load(saved, *open_model(place / name, "cpu")[:2]).position > 30


def test_a_stop_ends_it(place, capsys):
    arguments = ("generate", place / "words", "--prompt", TEXT, "--seed", 1, "--max_tokens", 40)
    whole = run(capsys, *arguments).out
    stop = whole.split()[5]
    assert run(capsys, *arguments, "--stop", stop).out == whole[: whole.index(stop)]


def test_interrupted_text_is_kept(place, tmp_path, capsys, monkeypatch):
    arguments = ("generate", place / "words", "--prompt", "the", "--seed", 1, "--save", tmp_path / "saved")
    whole = run(capsys, *arguments, "--max_tokens", 20).out
    interrupt(monkeypatch, generating, after=7)
    begun = run(capsys, *arguments, "--max_tokens", "null", code=130).out
    assert whole.startswith(begun)
    assert Session.load(tmp_path / "saved", *open_model(place / "words", "cpu")[:2]).position == 1 + 7


def test_a_terminal_is_not_driven(place, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    opening.write("a\x1b[2J\tb\n")
    assert capsys.readouterr().out == "a\ufffd[2J\tb\n"


@pytest.mark.parametrize("arguments", [(), ("--draw",), ("--number", 23, "--draw"), ("--number", 1), ("--number", 12)])
def test_images(place, arguments, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(generating.pictures, "image_rows", lambda path, rows, levels, columns: drawn.append(rows))
    for seed in (1, 1, 2):
        printed = run(capsys, "generate", place / "images", "--images", tmp_path / "out.png", "--seed", seed, *arguments)
        assert printed.out == ""
    number = arguments[1] if len(arguments) > 1 else 10
    name = "drawn" if "--draw" in arguments else "completed"
    assert [list(rows)[-1] for rows in drawn] == 3 * [name]
    one, same, other = (rows[name] for rows in drawn)
    assert one.shape == (number, 8, 8)
    assert (one == same).all()
    assert (one != other).any()
    if name == "completed":
        whole, given, _ = drawn[0].values()
        assert (one[:, :4] == whole[:, :4]).all()
        assert (given[:, :4] == whole[:, :4]).all()
        assert (given[:, 4:] < 0).all()


def test_a_grid_is_drawn(place, tmp_path, capsys):
    out = tmp_path / "out.png"
    run(capsys, "generate", place / "images", "--images", out, "--number", 12, "--seed", 0)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_drawing_needs_no_data(place, tmp_path, capsys, monkeypatch):
    open_model(place / "images", "cpu")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    run(capsys, "generate", place / "images", "--images", tmp_path / "out.png", "--draw")
    error = fails(capsys, "generate", place / "images", "--images", tmp_path / "out.png")
    assert "--draw does not: digits needs the package scikit-learn" in error


def talk(place, capsys, monkeypatch, *lines, name="bytes", code=0):
    give(monkeypatch, "".join(f"{line}\n" for line in lines))
    # so hot that a line break is as rare as any other byte
    return run(capsys, "chat", place / name, "--seed", 1, "--max_tokens", 12, "--temperature", 9, code=code)


def test_a_chat(place, tmp_path, capsys, monkeypatch):
    saved = tmp_path / "a chat"
    lines = ("the cat", f"/save {saved}", "/fork here", "/state", "and")
    back = (f"/load {saved}", "/state", "and", "/switch here", "/state", "/switch here", "/help", "/quit", "never")
    printed = talk(place, capsys, monkeypatch, *lines, *back)
    first, state, second, loaded, third, switched, commands, end = printed.out.split("\n")
    assert printed.err == end == ""
    assert state == loaded == switched
    assert commands.split()[:2] == ["/save", "FILE"]
    session = Session(*open_model(place / "bytes", "cpu")[:2])
    session.feed("the cat\n")
    assert first == "".join(session.generate(12, 9, seed=1))  # as long as it may be: a line break ends it
    session.feed("\n")
    assert state == f"{8 + 12 + 1} tokens read, held in {session.state_bytes} bytes, whatever is read"
    for answer, seed in ((second, 2), (third, 3)):
        fork = session.fork()
        fork.feed("and\n")
        assert answer == "".join(fork.generate(12, 9, seed=seed))


def test_a_line_break_ends_an_answer(place, tmp_path, capsys, monkeypatch):
    break_here = open_model(place / "words", "cpu")[1].encode("\n")[0]
    monkeypatch.setattr(
        "memformer_torch.sampling.Sampling.choose", lambda self, logits, *_: logits[:, 0].long() * 0 + break_here
    )
    printed = talk(place, capsys, monkeypatch, "the cat", "/state", name="words").out
    assert printed.startswith("\n4 tokens read")


def test_bad_commands_leave_a_chat_as_it_was(place, tmp_path, capsys, monkeypatch):
    (tmp_path / "other").write_bytes(b"nothing")
    lines = {
        "/sav x": "there is no command /sav (did you mean save?): /help lists them",
        "/": "there is no command /: /help",
        "/save": "/save takes a FILE: write /save FILE",
        "/state 3": "/state takes nothing",
        f"/save {tmp_path / 'no' / 'where'}": "its folder does not exist",
        f"/load {tmp_path / 'missing'}": "No such file",
        f"/load {tmp_path / 'other'}": "is not a session",
        "/switch x": "there is no fork 'x': make one by /fork NAME",
    }
    good = talk(place, capsys, monkeypatch, "the cat", "and").out
    printed = talk(place, capsys, monkeypatch, "the cat", *lines, "and", "/quit", "the dog")
    assert printed.out == good
    errors = printed.err.splitlines()
    assert len(errors) == len(lines)
    for error, message in zip(errors, lines.values(), strict=True):
        assert message in error


def test_a_full_model_says_so_and_can_go_back(place, capsys, monkeypatch):
    lines = ("/fork start", "the " * 90, "the " * 79, "the", "/switch start", "/state")
    printed = talk(place, capsys, monkeypatch, *lines, name="growing")
    assert printed.out.splitlines()[-1].startswith("0 tokens read")
    assert printed.out.endswith("growing with what is read\n")
    assert printed.err.count("max_length is 80") == printed.err.count("\n") == 3


def test_an_interrupted_answer(place, capsys, monkeypatch):
    whole = talk(place, capsys, monkeypatch, "the cat").out
    interrupt(monkeypatch, chats, after=2)
    printed = talk(place, capsys, monkeypatch, "the cat", "/state").out.split("\n")
    assert whole.startswith(printed[0])
    assert printed[1].startswith(f"{8 + 2 + 1} tokens read")


def test_an_interrupted_prompt_leaves(place, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: signal.raise_signal(signal.SIGINT))
    assert run(capsys, "chat", place / "words", code=130).err == ""


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_pieces_of_any_size_read_alike(place, name, capsys, monkeypatch):
    records = []
    for piece in (1, 7, 1 << 20):
        monkeypatch.setattr(opening, "PIECE", piece)
        records.append(json.loads(run(capsys, "read", place / name, place / "book.txt", "--json").out))
    model, tokenizer, _ = open_model(place / name, "cpu")
    expected = -Session(model, tokenizer).feed(TEXT * 2) / len(tokenizer.encode(TEXT * 2))
    for record in records:
        assert record["tokens"] == record["position"] == len(tokenizer.encode(TEXT * 2))
        assert record["loss"] == pytest.approx(expected, rel=1e-5)
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        assert record["bits"] == pytest.approx(record["loss"] / math.log(2))
        assert record["state_bytes"] == records[0]["state_bytes"]
        assert not record["grows"]


def test_reading_files_in_turn(place, tmp_path, capsys, monkeypatch):
    one = json.loads(run(capsys, "read", place / "words", place / "book.txt", place / "book.txt", "--json").out)
    run(capsys, "read", place / "words", place / "book.txt", "--save", tmp_path / "s")
    give(monkeypatch, TEXT * 2)
    two = json.loads(run(capsys, "read", place / "words", "-", "--session", tmp_path / "s", "--json").out)
    assert one["position"] == two["position"] == 2 * two["tokens"]
    assert "perplexity" in run(capsys, "read", place / "words", place / "book.txt").out


def test_an_interrupted_reading_goes_on(place, tmp_path, capsys, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "in parts"
    run(capsys, "read", place / "bytes", place / "book.txt", place / "book.txt", "--save", whole)
    monkeypatch.setattr(opening, "PIECE", 10)
    seen = []

    def watched(*arguments):
        for piece in feed_file(*arguments):
            seen.append(piece)
            if len(seen) == 20:
                signal.raise_signal(signal.SIGINT)
            yield piece

    monkeypatch.setattr(reading, "feed_file", watched)
    arguments = ("read", place / "bytes", place / "book.txt", place / "book.txt")
    told = run(capsys, *arguments, "--save", parts, code=130).err
    assert f"Stopped at byte {seen[19][0]} of {place / 'book.txt'}" in told
    run(capsys, *shlex.split(told.split("To go on: memformer ")[1]))
    model, tokenizer, _ = open_model(place / "bytes", "cpu")
    texts = ["".join(Session.load(path, model, tokenizer).generate(30, seed=0)) for path in (whole, parts)]
    assert texts[0] == texts[1]
    seen.clear()
    assert "needs --save" in run(capsys, *arguments, code=130).err


@pytest.mark.parametrize("name", ["words", "bytes"])
@pytest.mark.parametrize(
    ("content", "place_of_it"), [(b"\xff and", 0), (b"the d\xc3\xb6g \xc3", 9), (b"the cat \xe2\x82 cat", 8)]
)
def test_not_utf8(place, name, content, place_of_it, tmp_path, capsys, monkeypatch):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(content)
    model, tokenizer, _ = open_model(place / name, "cpu")
    before = content[:place_of_it].decode()
    for piece in (1, 4, 100):
        monkeypatch.setattr(opening, "PIECE", piece)
        error = fails(capsys, "read", place / name, place / "book.txt", bad, "--save", tmp_path / "s")
        tokens = len(tokenizer.encode(TEXT * 2 + before))
        assert f"{bad} is not UTF-8 at byte {place_of_it} (" in error
        assert f"{tokens} tokens before it were read, and are in {tmp_path / 's'}" in error
        assert Session.load(tmp_path / "s", model, tokenizer).position == tokens


def test_a_run_is_used_without_its_data(place, tmp_path, capsys):
    """vocabulary.json stands for it; damaged, or of other data, it is an error and not a wrong text."""
    shutil.copytree(place / "words", tmp_path / "run")
    shutil.copytree(place / "data", tmp_path / "data")
    shutil.copytree(place / "cache", tmp_path / "cache")
    path, config = tmp_path / "run" / "vocabulary.json", tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(place), str(tmp_path)))
    arguments = ("generate", tmp_path / "run", "--prompt", "the cat", "--seed", 0)
    expected = run(capsys, *arguments).out
    shutil.move(tmp_path / "data", tmp_path / "away")
    assert run(capsys, *arguments).out == expected
    kept = path.read_text()
    path.write_text(kept[:50])
    assert "vocabulary.json is damaged" in fails(capsys, *arguments)
    path.unlink()
    assert "has no vocabulary.json, and needs its data instead" in fails(capsys, *arguments)
    shutil.move(tmp_path / "away", tmp_path / "data")
    assert run(capsys, *arguments).out == expected
    (tmp_path / "data" / "train.txt").write_text("another text\n")
    assert "was trained on other data" in fails(capsys, *arguments)


def test_a_session_of_another_run_is_refused(place, tmp_path, capsys):
    run(capsys, "read", place / "words", place / "book.txt", "--save", tmp_path / "s")
    assert "of another model" in fails(capsys, "generate", place / "bytes", "--session", tmp_path / "s", "--prompt", "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "nowhere"], "nowhere is not the folder of a run"),
        (["generate", "images"], "images was trained on images, not on text: memformer generate images --images out.png"),
        (["generate", "ids"], "ids was trained on ids that are neither text nor images"),
        (["generate", "words", "--images", "a.png"], "words was not trained on images"),
        (["generate", "ids", "--images", "a.png"], "ids was not trained on images"),
        (["generate", "images", "--images", "a.txt"], "give a name that ends in .png"),
        (["generate", "images", "--images", "no/a.png"], "its folder does not exist"),
        (["generate", "images", "--images", "a.png", "--number", "0"], "--number is 0"),
        (["generate", "images", "--images", "a.png", "--prompt", "a"], "--prompt is for text"),
        (["generate", "words", "--draw"], "--draw is for images"),
        (["generate", "words", "--prompt", "a", "--file", "b"], "both --prompt and --file"),
        (["generate", "words", "--prompt", "a", "--temperature", "-1"], "temperature is -1"),
        (["generate", "words", "--prompt", "a", "--top_k", "x"], "top_k"),
        (["generate", "words", "--prompt", "a", "--max_tokens", "-3"], "max_tokens is -3"),
        (["generate", "words", "--prompt", "a", "--max_token", "3"], "did you mean max_tokens"),
        (
            ["generate", "words", "--prompt", "a", "--checkpoint", "worst"],
            "there is no checkpoint 'worst': choose best or last",
        ),
        (["generate", "words", "--prompt", "a", "--session", "data/train.txt"], "is not a session"),
        (["generate", "words", "--file", "missing"], "missing"),
        (["generate", "words", "--file", "data"], "data"),
        (["chat", "images"], "trained on images"),
        (["chat", "words", "--max_tokens", "0"], "--max_tokens is 0"),
        (["read", "images", "book.txt"], "trained on images"),
        (["read", "words", "book.txt", "missing"], "missing"),
        (["read", "words", "empty"], "there is no text in empty"),
        (["read", "words", "book.txt", "--save", "data"], "data cannot be written: it is a folder"),
        (["read", "words", "book.txt", "--start", "9999"], "--start is 9999, but book.txt has"),
        (["read", "words", "-", "--start", "9"], "--start is 9, but standard input"),
        (["read", "growing", "book.txt", "book.txt"], "max_length is 80"),
        (["read", "words"], "files"),
    ],
)
def test_errors_are_one_line(place, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "empty").touch()
    assert message in fails(capsys, *arguments)


@pytest.mark.parametrize("command", [generating.generate, chats.chat, reading.read])
def test_help_teaches_every_option(command, capsys):
    with pytest.raises(SystemExit):
        main([command.__name__, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    what, _, options = inspect.cleandoc(command.__doc__).partition("\n\nArgs:")
    assert " ".join(what.split()) in printed
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.annotation is bool:
            assert f"[--{name}]" in printed  # a switch, without a value
        text = " ".join(options.split(f"\n    {name}: ")[1].split("\n")[0].split())
        assert text in printed, name


def test_a_reader_that_leaves_is_no_error(place, tmp_path):
    """As in `memformer generate ... | head -c 1`."""
    command = [
        sys.executable,
        "-m",
        "memformer_torch",
        "generate",
        str(place / "words"),
        "--prompt",
        "the",
        "--max_tokens",
        "null",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
