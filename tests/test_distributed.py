"""Two processes give what one gives on the union of their batches, and synchronise gradients once an update."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from memformer_torch.checkpoint import find_checkpoint, load_facts, load_tensors
from memformer_torch.metrics import read_metrics
from memformer_torch.runs import open_run
from tests.distributed_worker import RUNS, STRATEGIES, start
from tests.test_train import settings, stop_after

ROOT = Path(__file__).parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
ALONE = {"OMP_NUM_THREADS": "1"}


def launch(*arguments, log):
    with log.open("wb") as file:
        command = [*TORCHRUN, *map(str, arguments)]
        return subprocess.Popen(command, env=os.environ | ALONE, cwd=ROOT, stdout=file, stderr=file)


def work(job, folder):
    log = folder / "log"
    assert launch("tests.distributed_worker", job, folder, log=log).wait() == 0, log.read_text()
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    return work("gradients", tmp_path_factory.mktemp("gradients"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_those_of_the_union_batch(gradients, strategy):
    """Every method; unequal padding, a rank without a token, one segment; every model; the loss and the state too."""
    cases = [case for case in gradients if case["strategy"] == strategy]
    assert {case["horizon"] for case in cases} == {1, 2, 3}
    for case in cases:
        assert case["difference"] <= 1e-5, case
        assert case["loss"] <= 1e-5, case
        assert case["state"] <= 1e-5, case


def test_ddp_synchronises_each_bucket_once_an_update(gradients):
    for case in gradients:
        if case["strategy"] == "ddp":
            for update in case["synchronised"]:
                buckets = update["buckets"]
                assert buckets == list(range(len(buckets))), case
                # beside the buckets: the token count, the loss, and which weights were used, if some may not be
                assert update["allreduce"] == len(buckets) + 2 + (case["horizon"] == 1), case
            assert len(buckets) > 1  # DDP's first update has one bucket, from which it learns the order of the others


def test_fsdp_gathers_once_and_scatters_once_an_update(gradients):
    for case in gradients:
        if case["strategy"] == "fsdp":
            first, second = case["synchronised"]
            assert second == {"buckets": [], "allreduce": 2, "allgather_base": 1, "reduce_scatter_base": 1}, case
            assert first["reduce_scatter_base"] == 1, case


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in {name for name, _ in RUNS}:
        start(folder / f"alone-{name}", name, "auto").fit()
    for name, strategy in RUNS:
        start(folder / f"one-{name}-{strategy}", name, strategy).fit(stop_after(3))
    work("runs", folder)
    return folder


def assert_same_losses(run, other):
    ours, theirs = read_metrics(run), read_metrics(other)
    assert len(ours) == len(theirs) > 8
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=1e-5)


@pytest.mark.parametrize(("name", "strategy"), RUNS)
def test_checkpoints_go_from_two_processes_to_one_and_back(runs, name, strategy):
    assert_same_losses(runs / f"one-{name}-{strategy}", runs / f"alone-{name}")
    two = runs / f"two-{name}-{strategy}"
    assert load_facts(find_checkpoint(two))["processes"] == 2
    trainer = open_run(two, "cpu")
    assert trainer.update == 3
    trainer.fit()
    assert_same_losses(two, runs / f"alone-{name}")


@pytest.mark.parametrize(("name", "strategy"), RUNS)
def test_two_processes_resume_to_the_bit(runs, name, strategy):
    """With dropout, whose random numbers are each rank's own."""
    whole, parts = runs / f"whole-{name}-{strategy}", runs / f"parts-{name}-{strategy}"
    assert read_metrics(parts) == read_metrics(whole)
    for file in ("weights.safetensors", "training.safetensors"):
        ours, theirs = (load_tensors(find_checkpoint(run) / file) for run in (parts, whole))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not torch.equal(ours["random.0.cpu"], ours["random.1.cpu"])
    assert sorted(path.name for path in (whole / "samples").iterdir()) == ["000004.png", "000008.png"]  # and change nothing


def test_torchrun(tmp_path):
    """The command: one folder, one voice; SIGTERM leaves a checkpoint, which one process goes on with."""
    run, log = tmp_path / "runs" / "run", tmp_path / "log"
    process = launch("memformer_torch", "train", "--device", "cpu", *settings(run), log=log)
    while process.poll() is None and not any(line["update"] >= 3 for line in read_metrics(run)):
        time.sleep(0.02)
    assert process.poll() is None, log.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    assert log.read_text().count("To go on") == 1
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    trainer = open_run(run, "cpu")
    assert trainer.update == read_metrics(run)[-1]["update"] >= 3
