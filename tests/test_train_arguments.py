"""What `memformer train` refuses, in one line and before anything is written; and what its help tells."""

import re

import pytest

from memformer_torch.cli import main
from memformer_torch.data import DATASETS
from memformer_torch.models import MODELS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.name", "digitz"], "did you mean digits"),
        (["--data.name", "mnist"], "MEMFORMER_DATA"),
        (["--data.name", "digits", "--model.num_slot", "3"], "did you mean num_slots"),
        (["--data.name", "digits", "--model.name", "memfomer"], "did you mean memformer"),
        (["--data.name", "digits", "--train.horizon", "0"], "horizon"),
        (["--data.name", "digits", "--train.horizn", "2"], "no option 'train.horizn' (did you mean train.horizon?)"),
        (["--data.name", "digits", "--train.horizn=2"], "no option 'train.horizn' (did you mean train.horizon?)"),
        (["--data.name", "digits", "--otu", "2"], "no option 'otu' (did you mean out?)"),
        (["--data.name", "digits", "--train.horizon", "x"], "train.horizon"),
        (["--data.name", "digits", "--train.horizon", "2", "--train.stride", "3"], "train.stride is 3"),
        (["--data.name", "copy", "--train.sample_every", "2"], "copy is neither text nor images"),
        (["--data.name", "digits", "--model.d_model", "30"], "does not divide"),
        (["--data.name", "digits", "--model.num_slots", "abc"], "num_slots is 'abc', but must be a whole number"),
        (["--data.name", "digits", "--model.num_slots", "2.5"], "num_slots is 2.5, but must be a whole number"),
        (["--data.name", "digits", "--model.forgetting", "2"], "forgetting is 2, but must be true or false"),
        (["--data.name", "digits", "--model.decoder_reads", "x"], "must be one of 'encoder', 'encoder+memory'"),
        (["--data.name", "digits", "--model.cutoffs", "[3, x]"], "must be a list, each a whole number"),
        (["--data.name", "copy", "--data.max_difficulty", "x"], "data.max_difficulty is 'x', but must be a whole number"),
        (["--data.name", "copy", "--data.num_symbols", "x"], "data.num_symbols is 'x', but must be a whole number"),
        (["--data.name", "digits", "--train.seed", "-1"], "train.seed is -1"),
        (["--data.name", "digits", "--device", "foo"], "there is no device 'foo'"),
        (["--data.name", "digits", "--device", "vulkan"], "this machine has no vulkan"),
        (["--data.name", "digits", "--model.vocab_size", "5"], "17 tokens"),
        ([], "data.name is missing"),
        (["--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["--data", "digits"], "--data digits: its settings are given one by one, as --data.name digits"),
        (["--model=lstm"], "--model lstm: its settings are given one by one, as --model.name lstm"),
        (["--data.name", "digits", "--train.evaluate_tokens", "0"], "train.evaluate_tokens is 0, but must be at least 1"),
        (["--data.name", "text"], "text needs a file or folder of yours: give its path, as --data.path novel.txt"),
        (["--data.name", "mnist"], "have it fetched: --data.download true"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMFORMER_DATA", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_with_its_own_settings_alone(tmp_path, capsys):
    """Others would be ignored; those that it has may be said again, as by the config file that it began with."""
    run = tmp_path / "run"
    own = [
        "--data.name",
        "digits",
        "--model.d_model",
        "16",
        "--train.updates",
        "2",
        "--train.batch_size",
        "4",
        "--device",
        "cpu",
    ]
    main(["train", *own, "--out", str(run)])
    for others, message in (
        (["--train.updates", "9"], "train.updates is 2 there, not 9"),
        (["--model.num_slots", "3"], "model.num_slots is not set there, not 3"),
        (["--data.name", "copy"], "data.name is 'digits' there, not 'copy'"),
        (["--out", "elsewhere"], "goes on in its own folder"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["train", "--resume", str(run), *others])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
    main(["train", "--resume", str(run), *own, "--out", str(run)])
    assert "Done" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--checkpoint", "first"])
    assert "there is no checkpoint 'first': choose best or last" in capsys.readouterr().err


def test_help_names_all_data_and_models(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in (*DATASETS, *MODELS):
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("train: {horizn: 4}", "no option 'train.horizn' (did you mean train.horizon?)"),
        ("trian: {horizon: 4}", "no option 'trian.horizon' (did you mean train.horizon?)"),
        ("modle: {num_slots: 4}", "no option 'modle.num_slots' (did you mean model?)"),
        ("model: {num_slot: 4}", "did you mean num_slots"),
        ("bogus: 4", "no option 'bogus': see memformer train --help"),
    ],
)
def test_bad_config_files(config, message, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(f"data: {{name: digits}}\n{config}\n")
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--config", str(path), "--out", str(tmp_path / "run")])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == [path]
