"""Measuring: what is counted is what there is."""

import json
from dataclasses import fields

import pytest
import torch

from memformer_torch.bench.bytes import LiveBytes, peak_bytes, state_bytes
from memformer_torch.bench.sizes import count, matching_layers
from memformer_torch.bench.timing import take_turns, time_by_kind
from memformer_torch.cli import main
from memformer_torch.models import MODELS


def test_live_bytes_follow_tensors():
    outside = torch.zeros(1000)
    with LiveBytes() as counted:
        made = outside + 1
        assert counted.live == 4000
        view = made.view(10, 100)
        del made
        assert counted.live == 4000  # a view keeps it alive
        del view
        assert counted.live == 0
        outside.view(10, 100)
        outside.add_(1)
        assert counted.live == 0  # what was there before does not count
    assert counted.peak == 4000


def test_peak_bytes_see_backward_and_recomputation():
    weight = torch.ones(1000, requires_grad=True)

    def three():
        torch.exp(torch.exp(torch.exp(weight))).sum().backward()

    def recomputed():
        torch.utils.checkpoint.checkpoint(
            lambda x: torch.exp(torch.exp(torch.exp(x))).sum(), weight, use_reentrant=False
        ).backward()

    assert 3 * 4000 <= peak_bytes(three) <= 5 * 4000 + 100
    weight.grad = None
    assert 3 * 4000 <= peak_bytes(recomputed) <= 5 * 4000 + 100  # hooks on saved tensors alone would see next to nothing
    assert state_bytes((torch.zeros(3, 5), torch.zeros(2, dtype=torch.int64))) == 76


def test_contestants_take_turns():
    order = []
    times = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2)
    assert order == ["a", "b"] * 3
    assert all(0 <= t.fastest <= t.median <= t.slowest for t in times.values())


def test_time_by_kind_adds_up():
    matrix = torch.randn(300, 300)
    shares = time_by_kind(lambda: [matrix @ matrix for _ in range(5)])
    assert sum(shares.values()) == pytest.approx(1)
    assert next(iter(shares)) == "matrix products"


def test_parameters_are_counted_without_building():
    for name, (config, model) in MODELS.items():
        built = model(config(vocab_size=256))
        parameters = sum(p.numel() for n, p in built.named_parameters() if not n.startswith("embedding."))
        assert count(name, "image")["parameters"] == parameters
    assert count("memformer", "text")["state"] == 1024 * 512
    assert count("transformer-xl", "text")["state"] == 16 * 1024 * 512


def test_matching_layers():
    layers, parameters = matching_layers("text")
    assert count("transformer-xl", "text", num_layers=layers)["parameters"] == parameters
    assert abs(parameters / count("memformer", "text")["parameters"] - 1) < 0.03


def test_models_command(capsys):
    main(["models", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert set(rows) == {"image", "text"}
    assert set(rows["image"]) == set(MODELS)


def test_settings_of_every_model_are_told(capsys):
    for name, (config, _) in MODELS.items():
        main(["models", "--settings", name, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert set(told) == {field.name for field in fields(config)} - {"vocab_size"}
        assert all(setting["says"] for setting in told.values()), name
        assert config(vocab_size=256, **{setting: value["default"] for setting, value in told.items()}) == config(
            vocab_size=256
        )
    main(["models", "--settings", "memformer"])
    assert "tau in the paper" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["models", "--settings", "memfomer"])
    assert "did you mean memformer" in capsys.readouterr().err


def test_step_command(tmp_path, capsys):
    sizes = ["--d_model", "32", "--num_layers", "3", "--segment_length", "8", "--memory_length", "16", "--batch_size", "2"]
    main(["bench", "step", *sizes, "--repeats", "2", "--out", str(tmp_path / "step.json")])
    rows = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert set(rows) == set(MODELS)
    for name, row in rows.items():
        assert row["training_bytes"] > row["forward_bytes"] > 0, name
        assert row["forward_seconds"]["median"] > 0
        assert sum(row["training_time_by_kind"].values()) == pytest.approx(1)
    assert rows["transformer-xl"]["state_bytes"] == 2 * (3 * 16 * 32 * 4 + 8)
    assert "rmt" in capsys.readouterr().out


def test_gradients_command(tmp_path, capsys):
    sizes = ["--shapes", "[image]", "--horizons", "[1,2]", "--repeats", "1"]
    main(["bench", "gradients", *sizes, "--out", str(tmp_path / "g.json")])
    rows = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert [(row["horizon"], row["method"]) for row in rows] == [
        (horizon, method) for horizon in (1, 2) for method in ("bptt", "checkpointed", "mrbp")
    ]
    assert rows[5]["peak_bytes"] < rows[3]["peak_bytes"]  # mrbp below bptt at two segments
    assert rows[5]["replay_buffer_bytes"] == 16 * 2 * 64 * 128 * 4
    assert 0.8 < rows[5]["allowed_speed"] < rows[3]["allowed_speed"] == 1
    assert (tmp_path / "g.png").stat().st_size > 0
    assert "mrbp" in capsys.readouterr().out


def test_loop_command(tmp_path, capsys):
    config = {
        "data": {"name": "digits"},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 16, "segment_length": 8, "num_slots": 2},
        "train": {"batch_size": 2, "horizon": 2, "log_every": 2, "evaluate_every": 1},
    }
    (tmp_path / "tiny.yaml").write_text(json.dumps(config))
    main(["bench", "loop", "--settings", str(tmp_path / "tiny.yaml"), "--repeats", "1", "--out", str(tmp_path / "loop.json")])
    record = json.loads((tmp_path / "loop.json").read_text())
    shares = {part: share["median"] for part, share in record["share_by_part"].items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())
    assert record["share_around"]["median"] == pytest.approx(1 - shares["gradient method"] - shares["optimizer"])
    assert record["cpu_seconds_an_update"]["bare"]["median"] > 0
    assert "gradient method" in capsys.readouterr().out
