"""What test_distributed.py runs in several processes: `torchrun --nproc_per_node 2 -m tests.distributed_worker JOB FOLDER`.

Rank 0 leaves what was found in FOLDER/found.json.
"""

import copy
import json
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils._python_dispatch import TorchDispatchMode

import memformer_torch.distributed
from memformer_torch import IGNORE, Memformer, MemformerConfig, Segment, bptt, checkpointed, mrbp
from memformer_torch.distributed import World, share_model, unshard
from memformer_torch.models import MODELS
from memformer_torch.runs import new_run, open_run
from memformer_torch.train import TrainConfig
from tests.conftest import TINY, random_segment
from tests.test_backprop import Result, relative_difference
from tests.test_golden import CONFIGS
from tests.test_train import DATA, MODEL, QUICK, stop_after

METHODS = {"mrbp": mrbp, "bptt": bptt, "checkpointed": checkpointed}
STRATEGIES = ("ddp", "fsdp")
RUNS = [("memformer", "ddp"), ("memformer", "fsdp")]
RUNS += [("decoder", "ddp"), ("sliding memformer", "ddp")]  # whose state grows, and unequally on ranks; with a stride
LANES = 4
buckets: list[int] = []


class SmallBuckets(torch.nn.parallel.DistributedDataParallel):
    """Several buckets even for a tiny model, each of which is noted when it is synchronised."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, bucket_cap_mb=0.01, **options)
        self.register_comm_hook(None, self.note)

    @staticmethod
    def note(_, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(None, bucket)


class Calls(TorchDispatchMode):
    """Counts the collective operations that Python starts: all but those of DDP's buckets."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "c10d":
            self.counts[operation.overloadpacket.__name__.strip("_")] += 1
        return operation(*args, **(kwargs or {}))


def union_batch(horizon, padding):
    """Segments of all lanes: with padding one rank has fewer tokens than the other, or none at all."""
    if padding == "none":
        return [random_segment(LANES) for _ in range(horizon)]
    segments = [random_segment(LANES, padded=True, reset=True, begin=t == 0) for t in range(horizon)]
    for segment in segments:
        segment.target[0, 0] = 1
        segment.target[LANES // 2 :, 0 if padding == "a rank without a token" else 2 :] = IGNORE
    return segments


def result(model, loss, state=()):
    gradients = {name: None if p.grad is None else unshard(p.grad).clone() for name, p in model.named_parameters()}
    return Result(gradients, loss, state, 0.0)


def compare(world, model, strategy, method, horizon, padding):
    """Two updates' gradients of all ranks together, and of one process on the union batch."""
    alone = copy.deepcopy(model)
    ranks = share_model(model, strategy, world, find_unused=horizon == 1)
    found = {"difference": 0.0, "loss": 0.0, "state": 0.0, "synchronised": []}
    state, whole_state = model.initial_state(LANES // world.size), alone.initial_state(LANES)
    for _ in range(2):
        model.zero_grad(), alone.zero_grad()
        segments = union_batch(horizon, padding)
        mine = [Segment(*(part[world.lanes(LANES)] if part is not None else None for part in s)) for s in segments]
        buckets.clear()
        with Calls() as calls:
            loss, state = METHODS[method](model, mine, state, ranks=ranks)
        found["synchronised"].append({"buckets": sorted(buckets)} | calls.counts)
        whole_loss, whole_state = METHODS[method](alone, segments, whole_state)
        ours, theirs = result(model, loss), result(alone, whole_loss)
        found["difference"] = max(found["difference"], relative_difference(ours, theirs))
        found["loss"] = max(found["loss"], abs(loss - whole_loss).item() / whole_loss.item())
        for our, their in zip(state, whole_state, strict=True):
            their = their[world.lanes(LANES)]
            if our.shape == their.shape:  # not the cache of a decoder, which is as long as its longest
                found["state"] = max(found["state"], (our - their).abs().max().item() if our.numel() else 0.0)
    return found


def gradients(world, folder):
    memformer_torch.distributed.DistributedDataParallel = SmallBuckets
    cases = [("memformer", *case) for case in product(METHODS, (1, 3), ("unequal", "a rank without a token"))]
    for name, horizon in product([*MODELS, "large vocabulary"], (1, 2)):
        # the compression's loss is a mean over what was compressed, and ranks then average it: equal if they compress alike
        cases.append((name, "mrbp", horizon, "none" if name == "compressive" else "unequal"))
    found = []
    for strategy, (name, method, horizon, padding) in product(STRATEGIES, dict.fromkeys(cases)):
        torch.manual_seed(0)
        if name in ("memformer", "large vocabulary"):
            model = Memformer(MemformerConfig(**TINY, cutoffs=(4, 8) if name == "large vocabulary" else ()))
        else:
            model = MODELS[name][1](MODELS[name][0](**(CONFIGS[name] | {"vocab_size": 11})))
        case = {"strategy": strategy, "model": name, "method": method, "horizon": horizon, "padding": padding}
        found.append(case | compare(world, model.eval(), strategy, method, horizon, padding))
    return found


def model_settings(name, dropout=0.1):
    name = name.removeprefix("sliding ")
    sizes = MODEL if name == "memformer" else CONFIGS[name] | {"max_length": 64}
    return {key: value for key, value in sizes.items() if key != "vocab_size"} | {"name": name, "dropout": dropout}


def start(folder, name, strategy, dropout=0.0, sample_every=None):
    stride = 2 if name.startswith("sliding") else None
    config = TrainConfig(**QUICK, accumulate=2, strategy=strategy, stride=stride, sample_every=sample_every)
    return new_run(folder, model_settings(name, dropout), DATA, config, "cpu")


def runs(world, folder):
    """What two processes make alone, with dropout, whole and in parts; what they leave to one, and what one left to them."""
    for name, strategy in RUNS:
        case = f"{name}-{strategy}"
        start(folder / f"whole-{case}", name, strategy, dropout=0.1, sample_every=4).fit()
        start(folder / f"parts-{case}", name, strategy, dropout=0.1).fit(stop_after(3))
        open_run(folder / f"parts-{case}", "cpu").fit()
        start(folder / f"two-{case}", name, strategy).fit(stop_after(3))
        open_run(folder / f"one-{case}", "cpu").fit()
    return []


if __name__ == "__main__":
    torch.set_num_threads(1)
    job, folder = sys.argv[1], Path(sys.argv[2])
    world = World.join(torch.device("cpu"))
    found = {"gradients": gradients, "runs": runs}[job](world, folder)
    if world.rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
