"""Measuring sessions: tiny runs of `memformer bench generate` and `endless`."""

import json

import pytest
import torch

from memformer_torch.bench import endless, generate
from memformer_torch.cli import main

FIELDS = {"d_model": 16, "num_heads": 2, "d_ff": 16, "segment_length": 4, "num_slots": 3, "memory_length": 8}


def test_generate_command(tmp_path, capsys, monkeypatch):
    tiny = generate.Sizes(positions=(8, 32), sessions=(1, 4), segments=2, fields=FIELDS)
    monkeypatch.setattr(generate, "QUICK", tiny)
    main(["bench", "generate", "--quick", "--out", str(tmp_path / "g.json")])
    record = json.loads((tmp_path / "g.json").read_text())
    rows = {(row["model"], row["position"]): row for row in record["rows"]}
    assert set(rows) == {(name, position) for name in ("memformer", "transformer-xl", "decoder") for position in (8, 32)}
    window = (4 + 5) * 8
    for position in (8, 32):
        assert rows["memformer", position]["state_bytes"] == 3 * 16 * 4 + window
        assert rows["transformer-xl", position]["state_bytes"] == 12 * 8 * 16 * 4 + 8 + window
        # two segments were generated since
        assert rows["decoder", position]["state_bytes"] == 2 * 12 * (position + 8) * 16 * 4 + 8 + window
    for row in rows.values():
        assert row["fork_bytes"] > row["state_bytes"]
        assert row["tokens_a_second"] > 0
        assert row["reading_tokens_a_second"] > 0
    assert [row["sessions"] for row in record["together"]] == [1, 4]
    assert all(row["tokens_a_second"] > 0 for row in record["together"])
    assert record["session_against_hand"]["by_hand_seconds"] > 0
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert "transformer-xl" in capsys.readouterr().out


def test_endless_command(tmp_path, capsys, monkeypatch):
    for name, value in {"EARLY": 200, "SMALL": 100, "CHUNK": 70, "TURNS": 20}.items():
        monkeypatch.setattr(endless, name, value)
    main(["bench", "endless", "--tokens", "500", "--generate", "150", "--out", str(tmp_path / "e.json")])
    record = json.loads((tmp_path / "e.json").read_text())
    assert record["loading_is_exact"] is True
    assert record["saved_bytes"]["early"] == record["saved_bytes"]["end"] > 32 * 64 * 4
    assert record["points"][-1]["position"] == 650
    assert all(point["cpu_seconds_a_token"] > 0 for point in record["points"])
    assert {point["position"] for point in record["points"]} >= {270, 500, 570}
    assert record["resident_bytes"]["end"] == pytest.approx(endless.resident_bytes(), rel=0.5)
    assert record["claims"]["saved session, kB"]["holds"] is True
    assert min(record["seconds_a_token_in_turns"].values()) > 0
    assert record["claims"]["a generated token, ms"]["early"] > 0
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    assert "bit for bit: True" in capsys.readouterr().out


def test_a_session_that_differs_is_noticed():
    model = endless.Memformer(endless.MemformerConfig(vocab_size=9, d_model=8, num_heads=2, d_ff=8, segment_length=4))
    session = endless.Session(model)
    session.feed([1, 2, 3])
    other = session.fork()
    assert endless._same(session.fork(), session.fork())
    other.feed([4])
    assert not endless._same(session, other)
