"""One contestant of `memformer bench peers`, in a process of its own: asked in JSON, a line each, it answers with seconds.

A peer's interpreter runs this file too, and has torch and the peer alone: nothing of this package is imported on top.
"""

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


class Contestant(NamedTuple):
    model: nn.Module
    forward: Callable[[], Tensor]
    """The mean loss of one segment, from the initial memory."""
    gradients: dict[str, Callable[[], Any]]
    """By method: adds to `.grad` the gradients of the mean loss over the segments, and returns it."""
    packages: tuple[str, ...]


def our_memformer(sizes: dict[str, int], ids: Tensor) -> Contestant:
    from memformer_torch.models.memformer import Memformer, MemformerConfig
    from memformer_torch.types import Segment

    layers: dict[str, Any] = {name: sizes[name] for name in ("num_encoder_layers", "num_decoder_layers")}
    config = MemformerConfig(**_our_fields(sizes), **layers, num_slots=sizes["num_slots"], num_cls_tokens=0)
    parts = ids.split(sizes["segment_length"], dim=1)
    return _ours(Memformer(config), [Segment(source, target) for source, target in pairwise(parts)])


def our_rmt(sizes: dict[str, int], ids: Tensor) -> Contestant:
    from memformer_torch.models.recurrent_memory_transformer import RecurrentMemoryTransformer as Model
    from memformer_torch.models.recurrent_memory_transformer import RecurrentMemoryTransformerConfig as Config
    from memformer_torch.types import Segment

    num_layers, length = sizes["num_encoder_layers"] + sizes["num_decoder_layers"], sizes["segment_length"]
    config = Config(**_our_fields(sizes), num_layers=num_layers, num_memory_tokens=sizes["num_slots"])
    starts = range(0, sizes["num_segments"] * length, length)
    return _ours(Model(config), [Segment(ids[:, at : at + 1], ids[:, at + 1 : at + 1 + length]) for at in starts])


def _our_fields(sizes: dict[str, int]) -> dict[str, Any]:
    names = ("vocab_size", "d_model", "num_heads", "d_ff", "segment_length")
    return {name: sizes[name] for name in names} | {"dropout": 0.0}


def _ours(model: Any, segments: list[Any]) -> Contestant:
    from memformer_torch.backprop import bptt, mrbp
    from memformer_torch.losses import segment_loss

    target = segments[0].target

    def forward() -> Tensor:
        return segment_loss(model, segments[0], model.initial_state(len(target)))[0] / target.numel()

    def gradients(method: Callable[..., Any]) -> Tensor:
        return method(model, segments, model.initial_state(len(target)))[0]

    methods: dict[str, Callable[[], Any]] = {"bptt": partial(gradients, bptt), "mrbp": partial(gradients, mrbp)}
    return Contestant(model, forward, methods, ("memformer-torch",))


def lucidrains_memformer(sizes: dict[str, int], ids: Tensor) -> Contestant:
    from memformer import Memformer, memory_replay_backprop

    length, heads = sizes["segment_length"], sizes["num_heads"]
    if sizes["d_ff"] != 4 * sizes["d_model"]:
        raise ValueError("memformer's feed-forward branch is always 4 times as wide as the model")
    common = {"num_tokens": sizes["vocab_size"], "max_seq_len": length, "heads": heads}
    encoder = {f"enc_{name}": value for name, value in (common | {"depth": sizes["num_encoder_layers"]}).items()}
    decoder = {f"dec_{name}": value for name, value in (common | {"depth": sizes["num_decoder_layers"]}).items()}
    slots = {"num_memory_slots": sizes["num_slots"], "mem_update_attn_heads": heads}
    model = Memformer(dim=sizes["d_model"], **slots, **encoder, **decoder)
    sources = ids.split(length, dim=1)[:-1]
    # one token more than a segment: the model predicts all but the first
    targets = [ids[:, at - 1 : at + length] for at in range(length, ids.shape[1], length)]
    count = len(sources)

    def bptt() -> Tensor:
        memory, losses = None, []
        for source, target in zip(sources, targets, strict=True):
            _, memory, loss = model(source, target, mems=memory)
            losses.append(loss)
        mean = torch.stack(losses).mean()
        mean.backward()
        return mean

    def mrbp() -> Tensor:
        """Its loop, but with a target for every segment, and one backward a segment where it runs two."""
        memories = [model.get_initial_mem(len(ids))]
        with torch.no_grad():
            for source in sources[:-1]:
                memories.append(model(source, mems=memories[-1]).mem)
        total, gradient = torch.zeros(()), None
        for source, target, memory in zip(reversed(sources), reversed(targets), reversed(memories), strict=True):
            _, following, loss = model(source, target, mems=memory.requires_grad_())
            ends, starts = ([loss / count], [None]) if gradient is None else ([loss / count, following], [None, gradient])
            torch.autograd.backward(ends, starts)
            total, gradient = total + loss.detach() / count, memory.grad if memory.is_leaf else None
        return total

    def forward() -> Tensor:
        return model(sources[0], targets[0]).dec_out

    def own() -> None:
        memory_replay_backprop(model, src=torch.cat(sources, dim=1), tgt=targets[-1])

    gradients = {"bptt": bptt, "mrbp": mrbp, "its own mrbp": own}
    return Contestant(model, forward, gradients, ("memformer", "einops"))


def lucidrains_rmt(sizes: dict[str, int], ids: Tensor) -> Contestant:
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer, RecurrentMemoryTransformerWrapper

    length = sizes["segment_length"]
    model = RecurrentMemoryTransformer(
        dim=sizes["d_model"],
        num_tokens=sizes["vocab_size"],
        depth=sizes["num_encoder_layers"] + sizes["num_decoder_layers"],
        num_memory_tokens=sizes["num_slots"],
        seq_len=length,
        heads=sizes["num_heads"],
        dim_head=sizes["d_model"] // sizes["num_heads"],
        ff_mult=sizes["d_ff"] // sizes["d_model"],
        use_flash_attn=True,  # torch's fused kernel, as ours
        use_xl_memories=False,
        emb_gradient_frac=1.0,
        num_residual_streams=1,
    )
    wrapper, ids = RecurrentMemoryTransformerWrapper(model), ids[:, : sizes["num_segments"] * length + 1]

    def bptt() -> Tensor:
        loss, _ = wrapper(ids, return_loss=True)
        loss.backward()
        return loss

    def forward() -> Tensor:
        return wrapper(ids[:, : length + 1], return_loss=True)[0]

    gradients = {"bptt": bptt, "mrbp": lambda: wrapper(ids, memory_replay_backprop=True)}
    packages = ("recurrent-memory-transformer-pytorch", "hyper-connections", "einops")
    return Contestant(model, forward, gradients, packages)


CONTESTANTS = {
    "our memformer": our_memformer,
    "memformer": lucidrains_memformer,
    "our rmt": our_rmt,
    "recurrent-memory-transformer-pytorch": lucidrains_rmt,
}


class Worker:
    """Does what it is asked: the tasks are "forward" and a training update by each gradient method."""

    def __init__(self, name: str, sizes: dict[str, int], device: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.device = torch.device(device)
        shape = (sizes["batch_size"], (sizes["num_segments"] + 1) * sizes["segment_length"])
        ids = torch.randint(sizes["vocab_size"], shape, generator=torch.Generator().manual_seed(0))
        with self.device:
            self.contestant = CONTESTANTS[name](sizes, ids.to(self.device))
        self.optimizer = torch.optim.AdamW(self.contestant.model.parameters(), lr=1e-5)

    def describe(self) -> dict[str, Any]:
        """What it is, and by how much its gradients differ from those of "bptt"; a method that tells no loss has another."""
        model = self.contestant.model
        found: dict[str, dict[str, Any]] = {}
        gradients: dict[str, list[Tensor]] = {}
        for name, method in self.contestant.gradients.items():
            model.zero_grad()
            try:
                loss = method()
            except Exception as error:
                found[name] = {"fails": f"{type(error).__name__}: {error}"}
                continue
            gradients[name] = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
            if loss is not None:
                found[name] = {"loss": float(loss.detach())}
        for name in found.keys() & gradients.keys() if "bptt" in gradients else ():
            one, other = torch.cat(gradients[name]), torch.cat(gradients["bptt"])
            found[name]["gradient_error"] = float((one - other).abs().max() / other.abs().max())
        self.optimizer.step()  # makes its state, which is no part of any turn
        return {
            "tasks": ["forward", *gradients],
            "gradients": found,
            "forward_flops": self.forward_flops(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "versions": {name: _version(name) for name in ("torch", *self.contestant.packages)},
        }

    def forward_flops(self) -> int:
        def attention(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> int:
            return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])  # as in `flops`, which a peer does not have

        kernel = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
        with FlopCounterMode(display=False, custom_mapping=kernel) as counter:
            self.contestant.forward()  # with gradients: without them the counter fails on a leaf that requires them
        return counter.get_total_flops()

    def run(self, task: str) -> None:
        if task == "forward":
            with torch.no_grad():
                self.contestant.forward()
        else:
            self.optimizer.zero_grad()
            self.contestant.gradients[task]()
            self.optimizer.step()
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def seconds(self, task: str) -> float:
        gc.collect()
        start = time.perf_counter()
        self.run(task)
        return time.perf_counter() - start

    def resident_bytes(self, task: str) -> dict[str, int] | None:
        """Memory of this process before the task, libraries and weights, and at its peak; None where Linux does not tell."""
        self.optimizer.zero_grad()
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            before = _status("VmRSS")
            self.run(task)
            return {"before": before, "peak": _status("VmHWM")}
        except (OSError, AttributeError):
            return None


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not known"


def main() -> None:
    """The first line says who to be; the others ask for a method by name, with its argument. An error ends it."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints must not stand among the answers
    worker = Worker(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, what)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
