"""Time, compared inside one run: contestants take turns, so that what else the machine does falls on all of them."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Seconds(NamedTuple):
    median: float
    fastest: float
    slowest: float


def take_turns(
    contestants: Mapping[str, Callable[[], Any]], repeats: int, progress: Callable[[], None] = lambda: None
) -> dict[str, Seconds]:
    """Call each contestant `repeats` times in alternation, after one call that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, call in contestants.items():
            gc.collect()
            _synchronize()
            start = time.perf_counter()
            call()
            _synchronize()
            if turn:
                times[name].append(time.perf_counter() - start)
            progress()
    return {name: Seconds(statistics.median(taken), min(taken), max(taken)) for name, taken in times.items()}


def time_by_kind(call: Callable[[], Any]) -> dict[str, float]:
    """Where the time of one call goes: the share of each kind of operation, largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    shares: dict[str, float] = {}
    for event in profile.key_averages():
        kind = next((kind for kind, names in _KINDS.items() if any(name in event.key for name in names)), "other")
        shares[kind] = shares.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: share / total for kind, share in sorted(shares.items(), key=lambda item: -item[1])}


_KINDS = {
    "fused attention": ("scaled_dot_product", "flash_attention"),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn", "lstm"),
    "softmax and loss": ("softmax", "nll_loss", "cross_entropy"),
    "norms": ("norm",),
    "copies": ("copy_", "aten::cat", "aten::stack", "contiguous", "aten::clone", "gather", "index", "embedding"),
    "activations": ("gelu", "dropout", "sigmoid", "tanh", "bernoulli"),
    "arithmetic": ("aten::add", "aten::mul", "aten::div", "aten::sub", "aten::sum", "aten::where", "masked_fill", "aten::neg"),
}


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
