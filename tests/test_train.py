"""Training, resuming and evaluating: a run that was stopped equals one that was not, and bad input loses nothing."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

from memformer_torch.cli import main
from memformer_torch.data import DATASETS, Stream, load_corpus
from memformer_torch.evaluate import evaluate
from memformer_torch.losses import count_tokens, segment_loss
from memformer_torch.metrics import read_metrics
from memformer_torch.models import MODELS
from memformer_torch.runs import build_model, new_run, open_run
from memformer_torch.train import TrainConfig, Watcher, make_optimizer, share_of_rate
from tests.conftest import tiny_memformer
from tests.test_golden import CONFIGS

ROOT = Path(__file__).parent.parent
DATA = {"name": "digits"}
MODEL = {"name": "memformer", "d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL |= {"segment_length": 8, "num_slots": 2}
QUICK = {"updates": 8, "batch_size": 4, "horizon": 3, "evaluate_every": 4, "evaluate_tokens": 200, "checkpoint_every": 2}
QUICK |= {"log_every": 1, "warm_up": 2}


def trained(run, model=None, **changes):
    trainer = new_run(run, model or MODEL, DATA, TrainConfig(**(QUICK | changes)), "cpu")
    trainer.fit()
    return trainer


def stop_after(update):
    seen = []
    return Watcher(on_update=lambda number, line: seen.append(number), should_stop=lambda: len(seen) >= update - 1)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in MODELS),
        ("memformer", {"stride": 1, "accumulate": 2, "shares": {"writer.": 0.1, "forgetting.": 0.01}}),
        ("memformer", {"stride": 2, "method": "checkpointed"}),
        ("decoder", {"stride": 2}),
    ],
)
def test_a_stopped_run_equals_one_that_was_not(tmp_path, name, changes):
    """Weights, optimizer, metrics: to the bit, for every model, dropout on; stopped twice, not where it saves anyway."""
    model = {k: v for k, v in CONFIGS[name].items() if k != "vocab_size"} | {"name": name}
    if name == "decoder":
        model["max_length"] = 64
    whole = trained(tmp_path / "whole", model, **changes)
    first = new_run(tmp_path / "parts", model, DATA, TrainConfig(**QUICK, **changes), "cpu")
    first.fit(stop_after(3))
    assert first.update == 3
    second = open_run(tmp_path / "parts", "cpu")
    second.fit(stop_after(2))
    assert second.update == 5
    third = open_run(tmp_path / "parts", "cpu")
    third.fit()
    for ours, theirs in zip(third.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")
    assert len({line["loss"] for line in read_metrics(tmp_path / "whole") if "loss" in line}) == 8


@pytest.mark.parametrize("method", ["bptt", "checkpointed"])
def test_the_gradient_method_does_not_change_the_run(tmp_path, method):
    losses = []
    for name in ("mrbp", method):
        trained(tmp_path / name, method=name, updates=4)
        losses.append([line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("method", ["mrbp", "bptt"])
def test_the_window_slides_by_the_stride(tmp_path, method):
    """With weights that stay as they are, each loss is that of its window in one reading of the stream."""
    changes = {"horizon": 4, "stride": 2, "accumulate": 2, "learning_rate": 1e-30, "weight_decay": 0.0, "updates": 3}
    trainer = trained(tmp_path / "run", MODEL | {"dropout": 0.0}, method=method, **changes)
    stream, state, sums, tokens = trainer._stream("train", loop=True), trainer.model.initial_state(4), [], []
    with torch.no_grad():
        for _ in range(14):
            segment = next(stream)
            total, state, _ = segment_loss(trainer.model, segment, state)
            sums.append(total)
            tokens.append(count_tokens(segment.target))
    losses = [sum(sums[start : start + 4]) / sum(tokens[start : start + 4]) for start in range(0, 12, 2)]
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    expected = [(one + two).item() / 2 for one, two in zip(losses[::2], losses[1::2], strict=True)]
    assert [line["loss"] for line in lines] == pytest.approx(expected, rel=1e-5)
    # each token counts once: at first a whole window, then what is new
    assert [line["tokens"] for line in lines] == [sum(tokens[:6]), sum(tokens[:10]), sum(tokens)]


@pytest.mark.parametrize("stride", [0, 4])
def test_bad_strides(stride):
    with pytest.raises(ValueError, match=f"train.stride is {stride}, but must be from 1 to train.horizon, 3"):
        TrainConfig(horizon=3, stride=stride)


@pytest.mark.parametrize(
    ("name", "value"),
    [("schedule", "foo"), ("precision", "bf16"), ("method", "foo"), ("horizon", 2.5), ("updates", "5"), ("shares", {"a": "b"})],
)
def test_bad_values(name, value):
    with pytest.raises(ValueError, match=re.escape(f"train.{name} is {value!r}, but must be ")):
        TrainConfig(**{name: value})
    with pytest.raises(ValueError, match="weight_decay"):
        TrainConfig(weight_decay=math.nan)


def test_accumulation_is_a_mean(tmp_path):
    trained(tmp_path / "run", accumulate=2, updates=2)
    assert read_metrics(tmp_path / "run")[-2]["tokens"] == 2 * 2 * 3 * 4 * 8  # updates, rollouts, segments, lanes, tokens


def test_it_learns_and_the_best_is_kept(tmp_path):
    trainer = trained(tmp_path / "run", updates=60, learning_rate=3e-3, evaluate_every=20, evaluate_tokens=None)
    lines = [line["valid_loss"] for line in read_metrics(tmp_path / "run") if "valid_loss" in line]
    assert lines[-1] < lines[0] < math.log(17) * 1.2
    assert trainer.best == min(lines)
    best = open_run(tmp_path / "run", "cpu", "best")
    assert best.evaluate("valid").loss == pytest.approx(min(lines), rel=1e-6)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) <= 2


def test_perplexity_does_not_depend_on_the_batch():
    corpus, model = load_corpus("digits"), tiny_memformer(vocab_size=17)
    losses = []
    for batch_size in (1, 7, 64):
        found = evaluate(model, Stream(corpus["valid"], batch_size=batch_size, segment_length=6), torch.device("cpu"), None)
        assert found.tokens == 180 * 64
        losses.append(found.loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert losses[0] == pytest.approx(losses[2], rel=1e-10)


def test_decay_is_for_matrices_alone():
    model = build_model(MODEL, 17)
    matrices, others = (group["params"] for group in make_optimizer(model, TrainConfig(weight_decay=0.1)).param_groups)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert "forgetting.bias" in {names[id(parameter)] for parameter in others}
    assert "embedding.weight" in {names[id(parameter)] for parameter in matrices}
    assert not any("norm" in names[id(parameter)] or "bias" in names[id(parameter)] for parameter in matrices)
    assert len(matrices) + len(others) == len(names)


def test_shares_of_the_rate(tmp_path):
    """Those of share 0 stay; a run on the same data without shares moves them."""
    moved = []
    for name, shares in (("all", {}), ("some", {"writer.": 0.0, "decoder.0": 0.5})):
        run = new_run(tmp_path / name, MODEL, DATA, TrainConfig(**(QUICK | {"updates": 2, "shares": shares})), "cpu")
        before = {name: parameter.clone() for name, parameter in run.model.named_parameters()}
        run.fit()
        moved.append({name for name, parameter in run.model.named_parameters() if not parameter.equal(before[name])})
        shares_seen = {group["share"]: group["lr"] for group in run.optimizer.param_groups}
        assert shares_seen == {share: share * shares_seen[1.0] for share in (1.0, *shares.values())}
    assert moved[0] - moved[1] == {"writer.query_key_value.weight"}
    assert "decoder.0.attention.out.weight" in moved[1]
    with pytest.raises(ValueError, match=r"no parameter's name begins with 'writr\.': here they begin with .*writer\."):
        make_optimizer(build_model(MODEL, 17), TrainConfig(shares={"writr.": 0.1}))
    with pytest.raises(ValueError, match="a share must be a number from 0 on"):
        TrainConfig(shares={"writer.": -1.0})


def test_schedules():
    for schedule, end in (("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)):
        config = TrainConfig(updates=100, warm_up=10, schedule=schedule)
        rates = [share_of_rate(update, config) for update in range(101)]
        assert rates[0] == 0.1
        assert rates[10] == 1.0 == max(rates)
        assert rates[100] == pytest.approx(end)


COMMAND = [sys.executable, "-m", "memformer_torch", "train", "--device", "cpu"]


def settings(run):
    pairs = {f"--data.{key}": value for key, value in DATA.items()} | {f"--model.{key}": value for key, value in MODEL.items()}
    pairs |= {f"--train.{key}": value for key, value in (QUICK | {"updates": 60}).items()} | {"--out": run}
    return [str(part) for pair in pairs.items() for part in pair]


def start(arguments, log):
    with log.open("wb") as file:
        return subprocess.Popen([*COMMAND, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=file, stderr=file)


def wait_for(run, update, process, log):
    while process.poll() is None and not any(line["update"] >= update for line in read_metrics(run)):
        time.sleep(0.02)
    assert process.poll() is None, log.read_text()


def test_kill_and_resume(tmp_path):
    """kill -9 at three moments: every resume works, and the loss curve is that of a run that was left alone."""
    alone, killed, log = tmp_path / "alone", tmp_path / "killed", tmp_path / "log"
    assert start(settings(alone), log).wait() == 0, log.read_text()
    for moment, update in enumerate((5, 24, 43)):
        process = start(settings(killed) if moment == 0 else ["--resume", str(killed)], log)
        wait_for(killed, update, process, log)
        process.kill()
        process.wait()
    assert start(["--resume", str(killed)], log).wait() == 0, log.read_text()
    assert read_metrics(killed) == read_metrics(alone)
    assert (alone / "loss.png").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_asked_to_stop(tmp_path, number, code):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(settings(run), log)
    wait_for(run, 3, process, log)
    process.send_signal(number)
    assert process.wait() == code
    assert f"memformer train --resume {run}" in log.read_text().replace("\n", " ").replace("  ", " ")
    trainer = open_run(run, "cpu")
    assert trainer.update == read_metrics(run)[-1]["update"] >= 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    trained(run)
    return run


def test_evaluate_command(finished, capsys):
    main(["evaluate", str(finished), "--split", "test", "--json", "--device", "cpu"])
    record = json.loads(capsys.readouterr().out)
    assert record["tokens"] == 180 * 64
    assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
    assert record["bits"] == pytest.approx(record["loss"] / math.log(2))


def test_data_command(capsys):
    main(["data", "digits"])
    printed = capsys.readouterr().out
    assert "1,437" in printed
    assert "%%" in printed
    main(["data", "pydocs"])
    assert "its own options in training: --data.tokenizer" in capsys.readouterr().out


def test_help_teaches_every_field(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    source = (ROOT / "memformer_torch" / "train.py").read_text(encoding="utf-8")
    documented = re.findall(r'^    (\w+): .*\n    """((?:.|\n)*?)"""', source.split("class Watcher")[0], re.MULTILINE)
    assert [name for name, _ in documented] == [field.name for field in fields(TrainConfig)]
    for name, text in documented:
        assert re.search(rf"--train\.{name} \S+ {re.escape(' '.join(text.split()))}", printed), name


def test_a_run_from_before_a_setting_was_there_opens(tmp_path):
    whole = trained(tmp_path / "whole")
    new_run(tmp_path / "old", MODEL, DATA, TrainConfig(**QUICK), "cpu").fit(stop_after(3))
    path = tmp_path / "old" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for name in ("stride", "sample_every", "tensorboard"):
        del config["train"][name]
    path.write_text(yaml.safe_dump(config))
    again = open_run(tmp_path / "old", "cpu")
    again.fit()
    assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))
    path.write_text(yaml.safe_dump(config | {"train": config["train"] | {"horizn": 4}}))
    with pytest.raises(ValueError, match="train has no setting 'horizn' \\(did you mean horizon"):
        open_run(tmp_path / "old", "cpu")


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path):
    whole = trained(tmp_path / "whole")
    new_run(tmp_path / "killed", MODEL, DATA, TrainConfig(**QUICK), "cpu")
    (tmp_path / "killed" / "metrics.jsonl").write_text('{"update": 1, "loss": 9.9}\n')
    again = open_run(tmp_path / "killed", "cpu")
    again.fit()
    assert read_metrics(tmp_path / "killed") == read_metrics(tmp_path / "whole")
    assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))


def test_a_folder_may_have_any_name(tmp_path, capsys):
    run = tmp_path / "x[/1] [bold]y"
    settings = [f"--model.{name}={value}" for name, value in MODEL.items()] + ["--train.updates", "1", "--device", "cpu"]
    main(["train", "--data.name", "digits", *settings, "--out", str(run)])
    assert "x[/1] [bold]y" in "".join(capsys.readouterr().out.splitlines())


def test_paths_are_kept_as_text(tmp_path):
    (tmp_path / "text.txt").write_text("one two three " * 50)
    data = {"name": "text", "path": tmp_path / "text.txt", "cache": tmp_path / "cache"}
    new_run(tmp_path / "run", MODEL, data, TrainConfig(**QUICK), "cpu").fit(stop_after(2))
    assert open_run(tmp_path / "run", "cpu").update == 2


def test_a_run_is_not_overwritten(finished, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--data.name", "digits", "--out", str(finished)])
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_builds(path):
    """The model as shapes alone: the paper's own would be large."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(config) == {"data", "model", "train"}
    assert config["data"]["name"] in DATASETS
    TrainConfig(**config["train"])
    vocab_size = {"wikitext-103": 267_735, "wikitext-2": 33_278, "digits": 17}.get(config["data"]["name"], 256)
    with torch.device("meta"):
        model = build_model(config["model"], vocab_size)
    assert model.initial_state(2)[0].shape[0] == 2
