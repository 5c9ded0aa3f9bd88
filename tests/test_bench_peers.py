"""Measuring against other implementations and against the machine: who computes when, and what is counted."""

import json
import sys
from pathlib import Path

import pytest
import torch

from memformer_torch.bench import ceiling, peer_worker, peers
from memformer_torch.bench.flops import Sizes, segment_flops
from memformer_torch.cli import main
from memformer_torch.models.memformer import MemformerConfig

ROOT = Path(__file__).parent.parent
TINY = {"d_model": 16, "num_heads": 2, "num_slots": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "segment_length": 4}
SHAPE = peers.Shape(**TINY, batch_size=2, num_segments=2)
OUR_CONFIG = MemformerConfig(**TINY, vocab_size=256, d_ff=64, num_cls_tokens=0)
FAKE = """
import torch
from collections import namedtuple

print("a peer may print")
Results = namedtuple("Results", "enc_out mem dec_out")

class Memformer(torch.nn.Module):
    def __init__(self, dim, num_memory_slots, **others):
        super().__init__()
        self.slots = torch.nn.Parameter(torch.ones(num_memory_slots, dim))

    def get_initial_mem(self, batch_size):
        return self.slots.expand(batch_size, -1, -1)

    def forward(self, src, tgt=None, mems=None):
        mems = self.get_initial_mem(len(src)) if mems is None else mems
        return Results(None, (mems * 1.1).tanh(), mems.square().mean())

def memory_replay_backprop(model, src, tgt):
    raise RuntimeError("it does not work here")
"""


class Talker:
    """A worker that only notes what it is asked."""

    def __init__(self, name, tasks, heard):
        self.name, self.tasks, self.heard = name, tasks, heard

    def ask(self, what, task):
        self.heard.append((self.name, what, task))
        return 1.0 if what == "seconds" else None


def test_workers_take_turns():
    heard = []
    workers = {"a": Talker("a", ["forward", "bptt"], heard), "b": Talker("b", ["forward"], heard)}
    found = peers.time_in_turns(workers, repeats=2)
    assert [line for line in heard if line[1] == "seconds"] == [
        *2 * [("a", "seconds", "forward"), ("b", "seconds", "forward")],
        *2 * [("a", "seconds", "bptt")],
    ]
    assert found["a"]["bptt"] == {"median": 1.0, "least": 1.0, "most": 1.0, "turns": [1.0, 1.0], "resident": None}


def test_command_with_a_fake_peer(tmp_path, monkeypatch, capsys):
    (tmp_path / "memformer.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(peers, "QUICK", {name: [SHAPE] for name in peers.PAIRS})
    out = tmp_path / "peers.json"
    main(["bench", "peers", "--quick", "--repeats", "2", "--python", sys.executable, "--out", str(out)])
    record, printed = json.loads(out.read_text()), capsys.readouterr().out
    memformer, rmt = record["measured"]
    ours, fake = memformer["contestants"].values()
    assert set(memformer["peer_over_ours"]) == {"forward", "bptt", "mrbp"}
    assert all(0 < ratio["least"] <= ratio["median"] <= ratio["most"] for ratio in memformer["peer_over_ours"].values())
    for contestant in (ours, fake):
        assert contestant["gradients"]["mrbp"]["gradient_error"] < 1e-5
        assert contestant["costs"]["mrbp"]["resident"]["peak"] >= contestant["costs"]["mrbp"]["resident"]["before"] > 0
    assert ours["forward_flops"] == segment_flops("memformer", OUR_CONFIG, Sizes(2, 4, 4))
    assert "its own mrbp" not in fake["costs"]
    assert fake["gradients"]["its own mrbp"]["fails"] == "RuntimeError: it does not work here"
    ours, missing = rmt["contestants"].values()
    assert set(ours["costs"]) == {"forward", "bptt", "mrbp"}
    assert rmt["peer_over_ours"] == {}
    assert "No module named 'recurrent_memory_transformer_pytorch'" in missing["fails"]
    assert "it does not work here" in printed
    assert out.with_suffix(".png").exists()


def test_nothing_is_installed_unasked(tmp_path):
    with pytest.raises(peers.WorkerError, match=r"not installed.*--install"):
        peers.Worker("memformer", SHAPE, tmp_path / "bin" / "python", "cpu")
    assert not any(tmp_path.iterdir())


def test_ours_have_the_sizes_asked_for():
    ids = torch.arange(2 * 12).view(2, 12)
    memformer, rmt = (peer_worker.CONTESTANTS[name](SHAPE.sizes, ids) for name in peers.PAIRS)
    assert memformer.model.config.d_ff == rmt.model.config.d_ff == 64
    assert memformer.model.config.dropout == rmt.model.config.dropout == 0
    assert rmt.model.config.num_layers == 2
    for contestant in (memformer, rmt):
        assert contestant.gradients["bptt"]().item() == pytest.approx(contestant.gradients["mrbp"]().item())


def test_extra_pins_what_is_installed():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = next(line for line in text.splitlines() if line.startswith("peers = "))
    assert set(json.loads(extra.partition(" = ")[2])) == {pin for pins in peers.REQUIREMENTS.values() for pin in pins}


def test_products_are_computed_again():
    weight, x = torch.randn(7, 5, requires_grad=True), torch.randn(3, 5)
    again = ceiling.record_products(lambda: (x @ weight.t()).sum().backward())
    assert ceiling.count_flops(again) == 2 * 2 * 3 * 5 * 7  # forward, and the weight's gradient; x needs none
    expanded = ceiling._random((2, 3, 4), (0, 4, 1), torch.device("cpu"))
    assert expanded.stride() == (0, 4, 1)


def test_time_of_the_optimizer_is_its_own():
    weight = torch.randn(200, 200, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])

    def update():
        (weight @ weight).sum().backward()
        optimizer.step()

    shares = ceiling.where_time_goes(update)
    assert sum(shares.values()) == pytest.approx(1)
    assert {"optimizer and clipping", "matrix products", ceiling.OUTSIDE} <= set(shares)


def test_ceiling_command(tmp_path, monkeypatch, capsys):
    fields = TINY | {"d_ff": 16}
    monkeypatch.setattr(ceiling, "QUICK", [ceiling.Shape(preset="image", batch_size=2, num_segments=2, fields=fields)])
    out = tmp_path / "ceiling.json"
    main(["bench", "ceiling", "--quick", "--repeats", "1", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    forward, bptt, mrbp = rows
    assert [row["task"] for row in rows] == ["forward", "bptt", "mrbp"]
    assert mrbp["flops"] > bptt["flops"] > 4 * forward["flops"]  # two segments there and back
    assert mrbp["useful_flops"] == bptt["flops"]
    for row in rows:
        assert 0 < row["flops_in_products"] < row["flops"]
        assert row["share_of_large"] == pytest.approx(row["flops_a_second"] / row["large_product"]["median"])
        assert sum(row["share_of_time"].values()) == pytest.approx(1)
    assert "mrbp" in capsys.readouterr().out
    assert out.with_suffix(".png").exists()
