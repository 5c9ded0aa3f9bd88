"""The digits demo, in miniature; the retention demo is tested with its task."""

import json

from memformer_torch.cli import main
from memformer_torch.runs import open_run


def test_the_digits_demo(tmp_path, capsys):
    main(["demo", "digits", "--updates", "2", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "Memformer" in printed
    assert "without memory" in printed
    record = json.loads((tmp_path / "out" / "digits.json").read_text())
    assert set(record["test_perplexity"]) == {"Memformer", "without memory"}
    assert (tmp_path / "out" / "digits.png").read_bytes().startswith(b"\x89PNG")
    slots = {
        name: open_run(tmp_path / "out" / name, "cpu", "last").model.config.num_slots
        for name in ("memformer", "without-memory")
    }
    assert slots == {"memformer": 16, "without-memory": 0}
