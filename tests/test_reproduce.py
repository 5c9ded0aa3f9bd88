"""Experiments in miniature, on digits: rows that stop and go on, failures, signals."""

import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from memformer_torch.bench.flops import count_flops
from memformer_torch.bench.record import write_json
from memformer_torch.checkpoint import find_checkpoint
from memformer_torch.cli import main
from memformer_torch.data import load_corpus
from memformer_torch.metrics import read_metrics
from memformer_torch.reproduce import runner as runner_module
from memformer_torch.reproduce.experiments import EXPERIMENTS
from memformer_torch.reproduce.plan import estimate, guess, plan, run_folder
from memformer_torch.reproduce.report import Experiment, Grid, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.runner import Outcome, Runner
from memformer_torch.reproduce.runner import alone as alone_with
from memformer_torch.reproduce.work import begin, count_model_flops, sizes, train_row
from memformer_torch.runs import build_model, open_run
from memformer_torch.types import BOS, PAD, Segment
from tests.reproducing import MODEL, ROW, TABLE, TRAIN, fake, put

COPY = {"name": "copy", "num_train": 64, "num_valid": 8, "num_test": 8}  # for processes that should start soon


def run(row, folder, stop_after=None, reports=None):
    """A row in this process, asked to stop at a look."""
    looks = iter(range(10**6))

    def report(done, total, words):
        if reports is not None:
            reports.append((done, total))

    return train_row(row, folder, report, lambda: stop_after is not None and next(looks) >= stop_after)


def explode(row, folder, report, should_stop):
    raise ValueError("this row\ncannot be run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The result of a row that was never interrupted."""
    return run(ROW, tmp_path_factory.mktemp("alone") / "run")


def without_time(result):
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("looks", [1, 5])
def test_a_stopped_row_equals_one_that_was_not(looks, alone, tmp_path):
    assert run(ROW, tmp_path / "run", stop_after=looks) is None
    assert open_run(tmp_path / "run", "cpu").update == looks + 1
    reports = []
    assert without_time(run(ROW, tmp_path / "run", reports=reports)) == without_time(alone)
    assert reports[0][0] == looks + 1  # it did go on, and not begin again
    assert reports[-1][0] == pytest.approx(reports[-1][1])


def test_the_test_split_is_read_with_the_best_weights(tmp_path):
    row = replace(ROW, train={**TRAIN, "learning_rate": 3.0, "warm_up": 6, "evaluate_every": 1})
    result = run(row, tmp_path / "run")
    assert (tmp_path / "run" / "best.json").read_text() != (tmp_path / "run" / "last.json").read_text()
    best = open_run(tmp_path / "run", "cpu", "best")
    assert best.evaluate("test").loss == result["test"]["loss"]
    assert best.evaluate("valid", 640).loss == result["valid"]["loss"]
    weights = find_checkpoint(tmp_path / "run", "best") / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"weights\.safetensors is not what was written"):
        run(row, tmp_path / "run")


def test_a_row_that_was_stopped_while_it_read_the_test_split(alone, tmp_path):
    assert run(ROW, tmp_path / "run", stop_after=6 + 2) is None
    (tmp_path / "run" / "seconds.json").write_text('{"seconds": 1000.0}')
    result = run(ROW, tmp_path / "run")
    assert without_time(result) == without_time(alone)
    assert result["seconds"] > 1000  # what it took before counts


def test_a_result_says_what_was_run(alone, tmp_path):
    assert alone["test"]["tokens"] == 180 * 64
    assert alone["tokens"] == 6 * 30 * 4 * 8
    assert alone["settings"] == ROW.settings()
    assert alone["state_floats"] == 2 * 16
    model = build_model(MODEL, 17)
    assert alone["parameters_with_embedding"] == sum(p.numel() for p in model.parameters()) > alone["parameters"]
    assert alone["command"] == "memformer reproduce tiny --scale cpu --only tiny-seed-0"
    tuning = run(replace(ROW, tuning=True), tmp_path / "run")
    assert tuning["test"] is None  # it never looks there
    assert tuning["valid"] == alone["valid"]


@torch.no_grad()
@pytest.mark.parametrize("name", ["memformer", "transformer-xl"])
def test_flops_are_those_that_are_counted(name):
    other = {"name": "transformer-xl", "d_model": 16, "num_heads": 2, "segment_length": 8, "memory_length": 20}
    own = MODEL if name == "memformer" else other
    row, model = replace(ROW, model=own), build_model(own, 17).eval()
    ids = torch.from_numpy(load_corpus("digits")["test"][0].astype("int64")).view(1, 8, 8)

    def read():
        source, state = torch.tensor([[BOS] + 7 * [PAD]]), model.initial_state(1)
        for step in range(8):
            state, source = model(Segment(source, ids[:, step]), state).state, ids[:, step]

    flops = sizes(row, model)["flops"]
    assert count_flops(read) == flops["model"] + flops["head"]
    whole = replace(row, model={**own, "segment_length": 64}, segment=8)
    assert count_model_flops(whole) == flops["model"]


def test_a_folder_of_other_settings_is_begun_again_and_of_anything_else_kept(tmp_path):
    run(ROW, tmp_path / "run", stop_after=3)
    assert begin(ROW, tmp_path / "run").update == 4
    config = tmp_path / "run" / "config.yaml"
    assert "  shares: {}\n" in config.read_text()
    config.write_text(config.read_text().replace("  shares: {}\n", ""))  # as of a version that had no such field
    assert begin(ROW, tmp_path / "run").update == 4
    whole = config.read_text()
    config.write_text(whole.replace("data:", "data;"))
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read"):  # and is not removed for it
        begin(ROW, tmp_path / "run")
    config.write_text(whole)
    assert begin(replace(ROW, seed=1), tmp_path / "run").update == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a run: choose another --runs"):
        begin(ROW, tmp_path / "mine")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "vocabulary.json.part").write_text("{")
    assert begin(ROW, tmp_path / "killed").update == 0


def test_what_rows_may_take_follows_what_they_took(tmp_path):
    results = Results(tmp_path / "out")
    long = replace(ROW, slug="long", train={**TRAIN, "updates": 60})
    rows = [ROW, long, replace(ROW, slug="work", work=explode, seconds=7.0)]
    assert estimate(rows, results)[Path("tiny/work-seed-0.json")] == 7
    put(results, ROW, 1.0)
    costs = estimate(rows, results)
    assert costs[ROW.path] == pytest.approx(60)
    assert costs[long.path] == pytest.approx(600)
    assert guess(ROW) > 0
    assert guess(replace(ROW, train={**ROW.train, "accumulate": 3})) == pytest.approx(3 * guess(ROW))


def test_a_damaged_result_is_one_clear_error(tmp_path):
    results = Results(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / ROW.path).write_text("{}")
    with pytest.raises(ValueError, match=r"tiny-seed-0.json is not a result .*: remove it, and the row is run again"):
        results.get(ROW)


def test_done_rows_are_skipped_stale_ones_run_again_and_a_failing_one_takes_no_other_with_it(tmp_path):
    results, runs, table = Results(tmp_path / "out"), tmp_path / "runs", replace(TABLE, data=COPY, variants=TABLE.variants[:1])
    low, high = table.tuning_rows("memformer")
    put(results, low, 100.0)
    write_json(results.folder / high.path, fake(replace(high, seed=5), 0.0))
    before = (results.folder / low.path).read_text()
    console = Console(record=True, width=200)
    runner = Runner(lambda found: [replace(ROW, slug="bad", work=explode), *table.rows(found)], results, runs, 2)
    assert {task.row.name: task.state for task in runner.tasks()}[high.name] == "stale"
    outcome = runner.run(console)
    assert outcome.signal is None
    assert list(outcome.failures) == ["bad-seed-0"]
    error_file = runs / "cpu" / "tiny" / "bad-seed-0.error.txt"
    assert f"bad-seed-0 failed: this row cannot be run ({error_file})" in console.export_text()
    assert "in explode" in error_file.read_text()
    assert (results.folder / low.path).read_text() == before
    assert results.get(high)["valid"]["loss"] < 100
    (final,) = table.rows(results)[2:]
    assert final.train["learning_rate"] == 1e-2
    assert open_run(run_folder(runs, final), "cpu", "best").evaluate("test").loss == results.get(final)["test"]["loss"]
    again = Runner(table.rows, results, runs, 2)
    assert {task.state for task in again.tasks()} == {"done"}
    again.run(console)  # nothing is begun
    assert (results.folder / low.path).read_text() == before


def test_a_log_is_told_where_rows_are(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "SAY_EVERY", 0.0)
    rows = [replace(ROW, data=COPY, slug="spoken")]
    log = io.StringIO()
    Runner(lambda found: rows, Results(tmp_path / "out"), tmp_path / "runs", 1).run(Console(file=log, width=200))
    assert re.search(r"^spoken-seed-0  .*loss .*  \d+ %  about .* left$", log.getvalue(), re.MULTILINE)
    assert re.search(r"^all rows  0 of 1  0 %  about .* left$", log.getvalue(), re.MULTILINE)


def test_only_rows_of_a_name(tmp_path, monkeypatch, capsys):
    runner = Runner(TABLE.rows, Results(tmp_path), tmp_path, 1, only="none")
    assert [task.row.name for task in runner.tasks()] == ["none-seed-0"]
    rows = [replace(ROW, slug=slug) for slug in ("small", "tiny-small")]
    both = ["small-seed-0", "tiny-small-seed-0"]
    as_listed = f"{ROW.experiment}/small-seed-0"
    for only, names in (("small", both), ("small-seed-0", both[:1]), (as_listed, both[:1]), (f"{ROW.experiment}/t", both[1:])):
        runner = Runner(lambda results: rows, Results(tmp_path), tmp_path, 1, only=only)
        assert [task.row.name for task in runner.tasks()] == names
    monkeypatch.setitem(EXPERIMENTS, "tiny", lambda scale: replace(slow_experiment(scale), rows=TABLE.rows))
    with pytest.raises(SystemExit):
        main(["reproduce", "tiny", "--only", "none", "--out", str(tmp_path)])
    assert "all rows named 'none' wait for rows that decide on their settings" in capsys.readouterr().err


def test_a_row_waits_for_another_process_that_has_it(tmp_path):
    reports = []
    with (tmp_path / "run.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def report(done, total, words):
            reports.append(words)
            if len(reports) == 2:
                fcntl.flock(other, fcntl.LOCK_UN)

        with alone_with(tmp_path / "run", report, lambda: False), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert reports == 2 * ["waits for another process"]
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again
        with alone_with(tmp_path / "run", report, lambda: True):
            pass  # asked to stop: it need not wait


@pytest.mark.parametrize(("outcome", "code"), [(Outcome({"tiny-seed-0": "no"}, None), 1), (Outcome({}, 15), 143)])
def test_how_the_command_ends(outcome, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(EXPERIMENTS, "tiny", slow_experiment)
    monkeypatch.setattr(Runner, "run", lambda self, console: outcome)
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "tiny", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")])
    assert stopped.value.code == code
    says = (
        "Failed: tiny-seed-0. Without a result: 2 rows." if code == 1 else "The same command goes on: memformer reproduce tiny"
    )
    assert says in capsys.readouterr().out


SLOW = replace(ROW, data=COPY, train={**TRAIN, "updates": 5000, "evaluate_every": 5000, "checkpoint_every": 5000})


def slow_experiment(scale):
    empty = Grid(title="", columns=[], lines=[])
    report = Report(title="", grids=[], notes=[], draw=lambda path: None, brief=empty)
    return Experiment(name="tiny", rows=lambda results: [SLOW, replace(SLOW, seed=1)], report=lambda results: report)


def run_slowly(arguments):
    EXPERIMENTS["tiny"] = slow_experiment
    main(arguments)


def start(folder, only, log):
    """The command on slow rows, in a process group of its own, as a terminal makes it."""
    code = "import sys, tests.test_reproduce; tests.test_reproduce.run_slowly(sys.argv[1:])"
    command = [sys.executable, "-c", code, "reproduce", "tiny", "--workers", "2", "--runs", str(folder / "runs")]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "--out", str(folder / "out"), "--only", only],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parent.parent,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def test_being_stopped_leaves_everything_resumable(tmp_path):
    """Killed, asked by SIGTERM, and by Ctrl-C, which reaches all processes: each time the rows go on where they were."""
    log, at = tmp_path / "log", {}
    for number, code, only in ((signal.SIGKILL, -9, "seed-0"), (signal.SIGTERM, 143, "seed-0"), (signal.SIGINT, 130, "seed")):
        process = start(tmp_path, only, log)
        folders = [tmp_path / "runs" / "cpu" / "tiny" / f"tiny-seed-{seed}" for seed in ((0, 1) if only == "seed" else (0,))]
        while process.poll() is None and not all(last_update(folder) > at.get(folder, 0) + 2 for folder in folders):
            time.sleep(0.02)
        assert process.poll() is None, log.read_text()
        if number == signal.SIGKILL:
            process.kill()  # its workers find out by themselves
        else:
            os.killpg(process.pid, number)
        try:
            assert process.wait(timeout=120) == code, log.read_text()
        finally:
            process.kill()
        if number != signal.SIGKILL:
            options = f"--workers 2 --only {only} --runs {tmp_path}/runs --out {tmp_path}/out"
            assert f"memformer reproduce tiny {options}" in log.read_text()
        for folder in folders:
            wait_until_free(folder.with_name(folder.name + ".lock"))
            at[folder] = last_update(folder)
            assert open_run(folder, "cpu").update == at[folder] < 5000  # nothing was lost
    tasks = plan(slow_experiment("cpu").rows, Results(tmp_path / "out"), tmp_path / "runs")
    assert [task.state for task in tasks] == ["interrupted", "interrupted"]


def last_update(folder):
    return max((line["update"] for line in read_metrics(folder)), default=0)


def wait_until_free(path):
    with path.open("a") as file:
        for _ in range(200):
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
        raise AssertionError("a worker is still running")
