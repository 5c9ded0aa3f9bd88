"""The digits demo, in miniature; the retention demo is tested with its task."""

import json

import pytest
from rich.console import Console

from memformer_torch.cli import main
from memformer_torch.demo.digits import train_side_by_side
from memformer_torch.runs import open_run


def run_demo(out, *more):
    main(["demo", "digits", "--updates", "2", "--out", str(out), *more])
    return json.loads((out / "digits.json").read_text())


def test_the_digits_demo_writes_what_it_says_and_the_same_again(tmp_path, capsys):
    record = run_demo(tmp_path / "out")
    printed = capsys.readouterr().out
    for name in "test digits", "top half given", "Memformer", "without memory", "████", "····":
        assert name in printed
    assert f"explore {tmp_path / 'out' / 'memformer'}" in printed
    assert set(record["test_perplexity"]) == {"Memformer", "without memory"}
    assert str(tmp_path) not in json.dumps(record)
    assert (tmp_path / "out" / "digits.png").read_bytes().startswith(b"\x89PNG")
    for folder, name, slots in ("memformer", "Memformer", 8), ("without-memory", "without memory", 0):
        run = open_run(tmp_path / "out" / folder, "cpu", "best")
        assert run.model.config.num_slots == slots
        assert run.evaluate("test").perplexity == record["test_perplexity"][name]
    assert run_demo(tmp_path / "out")["test_perplexity"] == record["test_perplexity"]


@pytest.mark.parametrize("file", ["notes.txt", "config.yaml"])
def test_the_digits_demo_replaces_nothing_but_its_own(file, tmp_path, capsys):
    mine = tmp_path / "out" / "without-memory" / file
    mine.parent.mkdir(parents=True)
    mine.write_text("{data: {name: digits}, model: {name: memformer, num_slots: 0}, train: {updates: 2}}")
    with pytest.raises(SystemExit) as stopped:
        run_demo(tmp_path / "out")
    assert stopped.value.code == 2
    assert "is not a run of this demo: choose another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["without-memory", file]


def test_no_updates_are_one_clear_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "digits", "--updates", "0", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "memformer: train.updates is 0, but must be at least 1\n"
    assert not list(tmp_path.iterdir())


def test_a_training_that_fails_is_an_error(tmp_path):
    with pytest.raises(ChildProcessError, match="ended with exit code 1"):
        train_side_by_side({"not a run": tmp_path}, 2, Console(quiet=True))
