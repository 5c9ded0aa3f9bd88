"""What a run shows while it trains: samples, and TensorBoard."""

import sys

import pytest
import torch

from memformer_torch.cli import main
from memformer_torch.data import load_corpus
from memformer_torch.evaluate import complete
from memformer_torch.metrics import read_metrics
from memformer_torch.runs import build_model, new_run, open_run
from memformer_torch.samples import Sampler
from memformer_torch.train import TrainConfig, Watcher
from tests.conftest import tiny_memformer
from tests.test_train import DATA, MODEL, QUICK, settings, trained


def test_completion_keeps_the_prompt_and_continues_it():
    model = tiny_memformer()
    prompts = torch.randint(11, (2, 8))
    done = complete(model, prompts, 20, temperature=0)
    assert torch.equal(done[:, :8], prompts)
    again = complete(model, done[:, :13], 20, temperature=0)
    assert torch.equal(again, done)  # a longer prompt of its own making changes nothing
    assert torch.equal(complete(model, prompts, 20, seed=1), complete(model, prompts, 20, seed=1))
    assert not torch.equal(complete(model, prompts, 20, seed=1), complete(model, prompts, 20, seed=2))


def test_samples_do_not_change_a_run(tmp_path):
    """And they are the same each time, but for what was learned."""
    whole, told = trained(tmp_path / "whole"), []
    sampled = new_run(tmp_path / "sampled", MODEL, DATA, TrainConfig(**QUICK, sample_every=3), "cpu")
    sampled.fit(Watcher(on_sample=lambda update, message: told.append((update, message))))
    assert read_metrics(tmp_path / "sampled") == read_metrics(tmp_path / "whole")
    assert all(map(torch.equal, sampled.model.state_dict().values(), whole.model.state_dict().values()))
    pictures = [tmp_path / "sampled" / "samples" / name for name in ("000003.png", "000006.png")]
    assert sorted((tmp_path / "sampled" / "samples").iterdir()) == pictures
    assert told == [(update, f"sample: {path}") for update, path in zip((3, 6), pictures, strict=True)]
    assert sampled.model.training
    ids = sampled.sampler.take(sampled.model)
    assert ids.shape == (8, 64)
    assert torch.equal(ids[:, :32], sampled.sampler.documents[:, :32])  # the upper half
    assert not torch.equal(ids[:, 32:], sampled.sampler.documents[:, 32:])
    assert torch.equal(ids, sampled.sampler.take(sampled.model))


def test_a_text_is_continued(tmp_path):
    config, told = TrainConfig(**(QUICK | {"updates": 2}), sample_every=2), []
    trainer = new_run(tmp_path / "run", MODEL, {"name": "pydocs"}, config, "cpu")
    trainer.fit(Watcher(on_sample=lambda update, message: told.append(message)))
    text = (tmp_path / "run" / "samples" / "000002.txt").read_bytes().decode()
    assert told == [text]
    given, continued = text.removeprefix("--- given\n").split("\n--- continued\n")
    documents = [trainer.corpus.tokenizer.decode(document[:64].tolist()) for document in trainer.corpus["valid"]]
    assert given in documents
    assert len(given.encode()) == 64  # bytes are its tokens
    assert trainer.sampler.take(trainer.model).shape == (1, 192)
    assert continued


@pytest.mark.parametrize(("data", "max_length", "length", "given"), [("digits", 50, 50, 25), ("pydocs", 20, 20, 10)])
def test_a_sample_is_no_longer_than_the_model_can_read(data, max_length, length, given, tmp_path):
    corpus = load_corpus(data)
    model = build_model({"name": "decoder", "segment_length": 8, "max_length": max_length, "num_layers": 1}, corpus.vocab_size)
    sampler = Sampler(tmp_path / "samples", corpus, lambda path, rows, levels: None, 0, model.config.max_length)
    ids = sampler.take(model)
    assert ids.shape[1] == length
    assert sampler.given.shape[1] == given
    assert sampler.write(1, ids)


def test_no_matplotlib_is_said_once_and_loses_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    main(["train", *settings(tmp_path / "run"), "--train.updates", "4", "--train.sample_every", "2", "--device", "cpu"])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("samples are not drawn: pictures need matplotlib: pip install") == 1
    assert "The loss is not drawn" in printed
    assert open_run(tmp_path / "run", "cpu").update == 4


def test_a_sample_is_shown_and_cannot_drive_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Sampler, "write", lambda self, update, ids: "text [bold] \x1b[2J")
    main(["train", *settings(tmp_path / "run"), "--train.updates", "2", "--train.sample_every", "2", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert "text [bold] \ufffd[2J" in printed


def points(run):
    """What TensorBoard shows: by name, steps and values."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_shows_the_metrics(tmp_path):
    """Also after a kill between two checkpoints: no point is lost or there twice."""
    pytest.importorskip("tensorboard")
    run, config = tmp_path / "run", TrainConfig(**QUICK, tensorboard=True)

    def kill(update, line):
        if update == 7:
            raise KeyboardInterrupt

    killed = new_run(run, MODEL, DATA, config, "cpu")
    with pytest.raises(KeyboardInterrupt):
        killed.fit(Watcher(on_update=kill))
    killed.metrics.close()  # the checkpoint is at update 6, and a point after it on the disk
    assert points(run)["loss"][-1][0] == 7
    resumed = open_run(run, "cpu")
    assert resumed.update == 6
    resumed.fit()
    lines, found = read_metrics(run), points(run)
    assert set(found) == {name for line in lines for name in line} - {"update"}
    for name, shown in found.items():
        logged = [(line["update"], line[name]) for line in lines if name in line]
        assert [step for step, _ in shown] == [update for update, _ in logged]
        assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-6)


def test_checkpoints_wait_for_tensorboard(tmp_path, monkeypatch):
    """Points are written in the background: a run that is killed has all of them up to its last checkpoint."""
    writer, flushed = pytest.importorskip("torch.utils.tensorboard").SummaryWriter, set()
    trainer = new_run(tmp_path / "run", MODEL, DATA, TrainConfig(**QUICK, tensorboard=True), "cpu")
    flush = writer.flush

    def note(self):
        flush(self)
        flushed.add((trainer.update, len(points(tmp_path / "run")["loss"])))

    monkeypatch.setattr(writer, "flush", note)
    trainer.fit()
    assert flushed == {(2, 2), (4, 4), (6, 6), (8, 8)}


def test_no_tensorboard_is_said_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit) as stopped:
        main(["train", *settings(tmp_path / "run"), "--train.tensorboard", "true"])
    assert stopped.value.code == 2
    assert "pip install 'memformer-torch[tensorboard]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
