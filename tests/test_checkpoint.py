"""A run's folder: damage is one clear error, a full disk and a stop at any moment lose nothing."""

import contextlib
import json
import subprocess

import pytest
import torch
import yaml

from memformer_torch import checkpoint
from memformer_torch.checkpoint import find_checkpoint, load_facts, load_tensors, pack_optimizer
from memformer_torch.cli import main
from memformer_torch.metrics import read_metrics
from memformer_torch.runs import new_run, open_run
from memformer_torch.train import TrainConfig
from tests.test_train import DATA, MODEL, QUICK, stop_after, trained


def damage(run, what):
    folder = find_checkpoint(run)
    weights, training = folder / "weights.safetensors", folder / "training.safetensors"
    if what == "a flipped byte":
        content = bytearray(weights.read_bytes())
        content[-3] ^= 1
        weights.write_bytes(content)
    elif what == "a truncated file":
        training.write_bytes(training.read_bytes()[:-50])
    elif what == "a missing file":
        training.unlink()
    elif what == "another model":
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("d_model: 16", "d_model: 32"))
    elif what == "other data":
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("name: digits", "name: copy"))
    elif what == "an edited config":
        (run / "config.yaml").write_text("data: [")
    elif what == "an empty part of the config":
        (run / "config.yaml").write_text("data: {name: digits}\nmodel:\ntrain: {}\n")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a flipped byte", "weights.safetensors is not what was written"),
        ("a truncated file", "training.safetensors is not what was written"),
        ("a missing file", "training.safetensors is missing"),
        ("another model", "do not fit"),
        ("other data", "other data"),
        ("an edited config", "cannot be read: while parsing a flow node"),
        ("an empty part of the config", "cannot be read: it must have the parts data, model and train"),
    ],
)
def test_damage_is_one_clear_error_and_loses_nothing(what, message, tmp_path, capsys):
    run = tmp_path / "run"
    trained(run, updates=2)
    damage(run, what)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--resume", str(run), "--device", "cpu"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert " at 0x" not in error
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_every_flipped_bit_of_the_facts_is_found(tmp_path):
    """Or does not matter: where it is in the name of the digest itself, all else is as it was."""
    trained(tmp_path / "run", updates=2)
    folder = find_checkpoint(tmp_path / "run")
    path, facts = folder / "training.json", load_facts(folder)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert {name: value for name, value in load_facts(folder).items() if name in facts} == facts
        except ValueError as error:
            assert "is damaged" in str(error)  # noqa: PT017  most raise, and not all need to
    path.write_text(json.dumps(facts))  # of an earlier version
    assert load_facts(folder) == facts


def test_an_optimizers_state_belongs_to_names(tmp_path):
    """Also where shares were changed meanwhile, and parameters stand in another order."""
    stopped = new_run(tmp_path / "run", MODEL, DATA, TrainConfig(**QUICK), "cpu")
    stopped.fit(stop_after(3))
    path = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["train"]["shares"] = {"encoder.": 0.5, "writer.": 0.1}
    path.write_text(yaml.safe_dump(config))
    again = open_run(tmp_path / "run", "cpu")
    assert len(again.optimizer.param_groups) > len(stopped.optimizer.param_groups)
    before, after = dict(stopped.model.named_parameters()), dict(again.model.named_parameters())
    for name in before:
        torch.testing.assert_close(again.optimizer.state[after[name]], stopped.optimizer.state[before[name]], rtol=0, atol=0)
    again.fit()
    packed = pack_optimizer(again.optimizer, again.model)
    saved = load_tensors(find_checkpoint(tmp_path / "run") / "training.safetensors")
    assert {name: tensor for name, tensor in saved.items() if name.startswith("optimizer.")}.keys() == packed.keys()


def test_the_best_is_there_before_it_is_believed(tmp_path, monkeypatch):
    """A stop between the two pointers: a run that goes on from the last must not wait for something better than it has."""
    point_to, pointed = checkpoint.point_to, []

    def point_once(run, name, folder):
        point_to(run, name, folder)
        pointed.append(name)
        if len(pointed) == 3:  # the first of the second checkpoint
            raise KeyboardInterrupt

    trainer = new_run(tmp_path / "run", MODEL, DATA, TrainConfig(**(QUICK | {"updates": 4, "evaluate_every": 2})), "cpu")
    monkeypatch.setattr("memformer_torch.train.point_to", point_once)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    monkeypatch.undo()
    again = open_run(tmp_path / "run", "cpu")
    again.fit()
    best = open_run(tmp_path / "run", "cpu", "best")
    assert best.evaluate("valid", QUICK["evaluate_tokens"]).loss == pytest.approx(again.best, abs=1e-6)


def test_evaluation_is_of_the_data_of_training(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("one two three four five six seven eight " * 50)
    data = ["--data.name", "text", "--data.path", str(tmp_path / "text.txt"), "--data.tokenizer", "words"]
    model = [f"--model.{name}={value}" for name, value in MODEL.items()]
    train = ["--train.updates", "1", "--train.batch_size", "2", "--data.cache", str(tmp_path / "cache")]
    main(["train", *data, *model, *train, "--out", str(tmp_path / "run"), "--device", "cpu"])
    main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    (tmp_path / "text.txt").write_text("eight seven six five four three two one " * 50)
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    assert "was trained on other data" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where this user may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_loses_nothing(small_disk, tmp_path, capsys):
    """One line and exit code 2; with room again, the run goes on as if nothing had been."""
    run, filler = small_disk / "run", small_disk / "filler"
    trained(tmp_path / "whole")
    new_run(run, MODEL, DATA, TrainConfig(**QUICK), "cpu").fit(stop_after(3))
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"0" * 4096)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--resume", str(run), "--device", "cpu"])
    assert stopped.value.code == 2
    assert "space" in capsys.readouterr().err
    assert not list(run.rglob("*.part"))
    filler.unlink()
    main(["train", "--resume", str(run), "--device", "cpu"])
    assert read_metrics(run) == read_metrics(tmp_path / "whole")
