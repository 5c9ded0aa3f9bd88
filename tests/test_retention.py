"""The retention task and its demo."""

import itertools
import json

import pytest
import torch

from memformer_torch import BOS, IGNORE, PAD
from memformer_torch.cli import main
from memformer_torch.data.retention import Retention
from memformer_torch.demo.retention import measure_retention, train_retention
from tests.conftest import tiny_memformer


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("predict_all", [False, True])
def test_a_document_shows_once_distracts_and_asks(predict_all):
    task = Retention(num_values=5, num_noise=3, segment_length=4, predict_all=predict_all)
    values = torch.tensor([0, 4, 2])
    steps = task.rollout(values, 6, generator())
    assert len(steps) == 8  # one shows, six distract, one asks
    assert (steps[0].source[:, 0] == BOS).all()
    assert (steps[0].source[:, 1:] == PAD).all()
    assert steps[1].source[:, 1].tolist() == values.tolist()
    for step in steps[2:]:
        assert not (step.source < task.num_values).any()  # the value is nowhere to be had but in the memory
        assert not (step.source >= task.vocab_size - 2).any()
    assert steps[-1].target[:, 1].tolist() == values.tolist()
    if predict_all:
        assert all(torch.equal(step.target, following.source) for step, following in itertools.pairwise(steps))
    else:
        assert all((step.target == IGNORE).all() for step in steps[:-1])


def test_noise_differs_between_samples_and_segments():
    steps = Retention().rollout(torch.zeros(8, dtype=torch.int64), 3, generator())
    assert len({tuple(row) for step in steps[2:] for row in step.source.tolist()}) == 24


def test_bad_sizes():
    for sizes in {"num_values": 1}, {"num_noise": 0}, {"segment_length": 1}:
        with pytest.raises(ValueError, match="retention needs"):
            Retention(**sizes)


def test_measuring_asks_without_disturbing_and_counts_right_answers():
    """A model that always answers 3 is right where the value is 3, at every distance."""
    task = Retention(segment_length=6)
    model = tiny_memformer(torch.float32, vocab_size=task.vocab_size)
    with torch.no_grad():
        model.norm_decoder.weight.zero_()
        model.norm_decoder.bias.copy_(100 * model.embedding.weight[3])
    (_, share), (_, later) = list(measure_retention(model, task, [1, 5], batch_size=400))
    assert share == later
    assert 0.05 < share < 0.2  # about one in eight


def test_training_lowers_the_loss():
    task = Retention(segment_length=6)
    model = tiny_memformer(torch.float32, vocab_size=task.vocab_size)
    losses = list(train_retention(model, task, 40, seed=0))
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_demo_command(tmp_path, capsys):
    main(["demo", "retention", "--updates", "2", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "Is the value still known?" in printed
    assert "1,024" in printed
    record = json.loads((tmp_path / "out" / "retention.json").read_text())
    assert [int(distance) for distance in record["accuracy"]] == [2**n for n in range(11)]
    assert record["config"]["num_slots"] == 8
    assert record["versions"]["torch"]
    assert (tmp_path / "out" / "retention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "retention", "--updates", "0"], "updates is 0"),
        (["demo", "retention", "--update", "0"], "update"),
        (["demo", "rentention"], "rentention"),
        (["demo", "retention", "--seed", "x"], "seed"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
