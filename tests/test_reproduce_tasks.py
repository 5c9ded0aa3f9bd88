"""Rows on synthetic tasks: what is trained, what is read, and that a stop changes nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from memformer_torch import Output, mrbp
from memformer_torch.bench.record import write_json
from memformer_torch.checkpoint import find_checkpoint, load_tensors, load_weights
from memformer_torch.data.recall import Recall
from memformer_torch.data.retention import Retention
from memformer_torch.models import MODELS
from memformer_torch.reproduce import capacity, recall, retention
from memformer_torch.reproduce.plan import plan, run_folder
from memformer_torch.reproduce.row import Results, Row
from memformer_torch.reproduce.tasks import AnswersOnly, Level, Recipe, TaskRun, accuracy, draw, task_row

SMALL = {
    "task": "recall",
    "options": {"segment_length": 6, "num_keys": 4, "num_values": 3, "num_noise": 2, "pairs_per_segment": 2},
    "pairs": 3,
    "distractors": 2,
    "updates": 6,
    "batch_size": 3,
    "learning_rate": 1e-3,
    "look_every": 2,
    "look_at": (1,),
    "read": {"1": (0, 1), "3": (2,)},
}
MODEL = {"name": "memformer", "d_model": 8, "num_heads": 2, "d_ff": 8, "segment_length": 6, "dropout": 0.1}
MEMFORMER = MODEL | {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_slots": 2}


def row(model, **changes) -> Row:
    return Row(
        experiment="recall", family=model["name"], label="", slug="row", work=task_row, model=model, train=SMALL | changes
    )


@pytest.mark.parametrize("model", [MEMFORMER, MODEL | {"name": "transformer-xl", "num_layers": 1, "memory_length": 8}])
def test_a_stop_changes_nothing(tmp_path, model):
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls == 3

    whole = task_row(row(model), tmp_path / "whole", lambda *_: None, lambda: False)
    assert task_row(row(model), tmp_path / "parts", lambda *_: None, stop) is None
    parts = task_row(row(model), tmp_path / "parts", lambda *_: None, lambda: False)
    assert whole is not None
    assert parts is not None
    assert calls == 3
    for name in ("accuracy", "valid", "tokens", "updates", "reached"):
        assert parts[name] == whole[name]
    one, other = (
        (tmp_path / name / "checkpoints" / "00000006" / "weights.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert one == other
    json.dumps(whole)


def test_other_settings_begin_again(tmp_path):
    task_row(row(MEMFORMER), tmp_path, lambda *_: None, lambda: False)
    again = task_row(row(MEMFORMER, updates=4), tmp_path, lambda *_: None, lambda: False)
    assert again is not None
    assert again["updates"] == 4


def test_other_settings_begin_again_also_after_a_kill(tmp_path, monkeypatch):
    """Before its first checkpoint nothing of the row before may be taken for its own."""

    def killed(run):
        raise KeyboardInterrupt

    task_row(row(MEMFORMER), tmp_path / "row", lambda *_: None, lambda: False)
    changed = row(MEMFORMER, learning_rate=0.1)
    monkeypatch.setattr(TaskRun, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        task_row(changed, tmp_path / "row", lambda *_: None, lambda: False)
    monkeypatch.undo()
    for folder in ("row", "fresh"):
        task_row(changed, tmp_path / folder, lambda *_: None, lambda: False)
    one, other = (load_tensors(find_checkpoint(tmp_path / name) / "weights.safetensors") for name in ("row", "fresh"))
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=0, atol=0)


def test_damaged_weights_are_not_read(tmp_path):
    task_row(row(MEMFORMER), tmp_path / "row", lambda *_: None, lambda: False)
    best = find_checkpoint(tmp_path / "row").with_name("best")  # another than the last, which is looked at in any case
    shutil.copytree(find_checkpoint(tmp_path / "row"), best)
    (tmp_path / "row" / "best.json").write_text('{"checkpoint": "best"}')
    weights = best / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    start = row(MEMFORMER, start="row", updates=0)
    for again, folder in ((row(MEMFORMER), "row"), (start, "start")):
        with pytest.raises(ValueError, match=r"weights\.safetensors is not what was written"):
            task_row(again, tmp_path / folder, lambda *_: None, lambda: False)


def test_a_row_may_start_from_anothers_weights(tmp_path):
    """Of a model with more parts; before its result is there, the row is not to be run."""
    after = row(MEMFORMER, start="before-seed-0", updates=1, learning_rate=1e-30)
    with pytest.raises(ValueError, match=r"before-seed-0 holds no weights to start from: remove before-seed-0\.json"):
        task_row(after, tmp_path / "after", lambda *_: None, lambda: False)
    task_row(row(MEMFORMER | {"decoder_reads": "encoder+memory"}), tmp_path / "before-seed-0", lambda *_: None, lambda: False)
    task_row(after, tmp_path / "after", lambda *_: None, lambda: False)
    models = [TaskRun(after, Recipe(**after.train)).model for _ in range(2)]
    load_weights(models[0], find_checkpoint(tmp_path / "after", "last"))
    found = load_tensors(find_checkpoint(tmp_path / "before-seed-0", "best") / "weights.safetensors")
    for name, tensor in models[0].state_dict().items():
        torch.testing.assert_close(tensor, found[name])
    assert not models[1].embedding.weight.equal(found["embedding.weight"])

    table, results = recall.table("cpu"), Results(tmp_path / "results")
    assert table.seeds(table["encoder-after-memory"], results, [0, 1]) == []
    first = table.seeds(table["encoder-and-memory"], results, [1])[0]
    write_json(results.folder / first.path, first.result())
    (started,) = table.seeds(table["encoder-after-memory"], results, [0, 1])
    assert started.seed == 1
    assert started.train["start"] == "encoder-and-memory-seed-1"


@pytest.mark.parametrize("forgetting", [True, False])
def test_a_row_may_only_read_with_anothers_weights(tmp_path, forgetting):
    trained = task_row(row(MEMFORMER, learned=99.0), tmp_path / "before-seed-0", lambda *_: None, lambda: False)
    reading, progress = row(MEMFORMER | {"forgetting": forgetting}, start="before-seed-0", updates=0), []
    folder = run_folder(tmp_path, reading)
    shutil.copytree(tmp_path / "before-seed-0", folder.with_name("before-seed-0"))
    assert task_row(reading, folder, lambda *_: None, lambda: True) is None
    assert [task.state for task in plan(lambda found: [reading], Results(tmp_path / "results"), tmp_path)] == ["interrupted"]
    read = task_row(reading, folder, lambda done, total, words: progress.append(done / total), lambda: False)
    assert trained is not None
    assert read is not None
    assert read["updates"] == 0
    assert read["reached"] == trained["reached"] != {"pairs": 1, "distractors": 0}
    assert (read["accuracy"] == trained["accuracy"]) == forgetting
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("task", [Retention(predict_all=True), Recall(num_queries=2, predict_all=True)])
def test_only_answers_count(task):
    """The loss is the mean over the answers, whatever else was read or asked; its gradient too."""
    torch.manual_seed(0)
    config, model_class = MODELS["lstm"]
    sizes = {"vocab_size": task.vocab_size, "d_model": 8, "hidden_size": 8, "num_layers": 1, "dropout": 0.0}
    model = model_class(config(**sizes, segment_length=task.segment_length)).double()
    segments = draw(task, 3, 2, torch.Generator().manual_seed(0))
    state, losses = model.initial_state(3), []
    for segment in segments:
        logits, state, _ = model(segment, state)
        for row, target in zip(logits.log_softmax(-1), segment.target.tolist(), strict=True):
            if target[0] == task.ask_token:
                losses += [-row[place, token] for place, token in enumerate(target) if 0 <= token < task.num_values]
    assert len(losses) == 3 * (1 if isinstance(task, Retention) else 2)
    plain = torch.stack(losses).mean()
    expected = torch.autograd.grad(plain, list(model.parameters()), allow_unused=True)

    loss, _ = mrbp(AnswersOnly(model, task, segments), segments, model.initial_state(3))
    assert loss.item() == pytest.approx(plain.item(), abs=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-12, rtol=1e-9)


class Knows(torch.nn.Module):
    """Answers what the target says, or always 0."""

    def __init__(self, task, right: bool) -> None:
        super().__init__()
        self.task, self.right = task, right

    def initial_state(self, batch_size):
        return (torch.zeros(batch_size, 1),)

    def forward(self, segment, state):
        answer = segment.target.clamp(min=0) if self.right else torch.zeros_like(segment.target)
        return Output(F.one_hot(answer, self.task.vocab_size).float(), state)

    def advance(self, segment, state):
        return state


@pytest.mark.parametrize("task", [Retention(), Recall()])
def test_accuracy_is_that_of_the_answers(task):
    assert accuracy(Knows(task, right=True), task, 3, 64) == 1.0
    assert accuracy(Knows(task, right=False), task, 3, 512) == pytest.approx(1 / task.num_values, abs=0.06)
    assert accuracy(Knows(task, right=False), task, 3, 64, seed=1) != accuracy(Knows(task, right=False), task, 3, 64)


def test_levels_rise_when_the_hardest_are_learned():
    recipe, level = Recipe(**SMALL | {"pairs": 8}), Level()
    level.learn(recipe, 1, 0, 0.2)  # not learned
    assert level == Level(1, 0)
    for distractors in (1, 2):
        level.learn(recipe, 1, level.distractors, 0.01)
        assert level == Level(1, distractors)
    level.learn(recipe, 1, 1, 0.01)  # not the hardest
    for pairs in (2, 3, 4, 6, 8, 8):
        level.learn(recipe, level.pairs, 2, 0.01)
        assert level == Level(pairs, 2)


def test_parameters_get_their_share_of_the_rate():
    """AdamW's first step moves every number that has a gradient by the rate, here times its share."""
    shares = {"embedding.": 0.125, "forgetting.": 0.005}
    settings = row(MEMFORMER, shares=shares, warm_up=1, first_pairs=2, learning_rate=1e-3)
    run = TaskRun(settings, Recipe(**settings.train))
    assert run.level == Level(2, 0)
    before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    run.step()
    for name, parameter in run.model.named_parameters():
        share = next((share for begin, share in shares.items() if name.startswith(begin)), 1.0)
        decayed = before[name] * (1 - 0.01 * 1e-3 * share)
        moved = (parameter.detach() - decayed).abs().max().item()
        assert moved == pytest.approx(1e-3 * share, rel=0.02), name


def test_the_states_compared_are_equal():
    """The first model of each name has as many numbers in its state as Memformer."""
    vocab_size = Retention().vocab_size
    for slug in ("memformer", "lstm", "rmt", "transformer-xl", "compressive"):
        settings = dict(retention.VARIANTS[slug][1])
        config, model = MODELS[settings.pop("name")]
        state = model(config(vocab_size=vocab_size, **settings)).initial_state(1)
        assert sum(part.numel() for part in state if part.is_floating_point()) == 512


@pytest.mark.parametrize("module", [retention, recall, capacity])
def test_reports_are_drawn_from_results(tmp_path, module):
    """From whatever rows are there; a result of other settings is left out."""
    table = module.table("cpu")
    rate = table.budget.rates[0]  # all do equally well
    rows = [table._row(v, slug=v.slug, seed=0, train={**table.budget.train, "learning_rate": rate}) for v in table.variants]
    tuned = [row for family in table.families for row in table.tuning_rows(family)]
    for number, row in enumerate([*tuned, *rows]):
        read = row.train["read"]
        shares = {pairs: dict.fromkeys(distances, 1 / (1 + number % 7)) for pairs, distances in read.items()}
        sizes = {"parameters": 10, "state_floats": 5, "updates": 3, "tokens": 9, "seconds": 1.0, "valid": {"loss": 0.5}}
        record = row.result(**sizes, reached={"pairs": 1, "distractors": 0}, accuracy=shares, chance=0.1)
        path = tmp_path / row.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    report = module.report(table, Results(tmp_path))
    assert len(report.grids[0].lines) >= len(table.variants)
    for grid in (*report.grids, report.brief):
        assert all(len(line) == len(grid.columns) for line in grid.lines)
    report.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
    assert not any(Path(tmp_path).rglob("*.part"))
