"""Processes that train one model together: torchrun starts them, each reads its share of the lanes.

Gradients are averaged once an update, in the last backward of its last rollout. `mrbp` runs many backwards an update, from
methods that are not `forward`, on states that reach weights which the loss does not. So neither strategy wraps the model:

- `ddp`: weights on every rank. torch's DistributedDataParallel is not given the segments but, once an update, the tensors that
  are about to be differentiated: from them it finds the weights in use, and averages bucket by bucket during that backward.
- `fsdp`: optimizer, weights and averaged gradients in shards, by torch's `fully_shard`. Weights are gathered once an update and
  stay until its last backward, which ends with one reduce-scatter.
"""

import atexit
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from memformer_torch.backprop import Backward, Ranks

FORWARD_METHODS = ("forward", "advance", "initial_state", "token_losses")
"""What is called on a model from outside, and needs its weights."""


class World(NamedTuple):
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: torch.device) -> "World":
        """Meet the other processes, if torchrun started this one; else there is only this one."""
        size = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1
        if size == 1:
            return cls(0, 1, device)
        if device.type != "cpu":
            device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
            torch.get_device_module(device).set_device(device)
        if not dist.is_initialized():
            backend = dist.get_default_backend_for_device(device)
            dist.init_process_group(backend, device_id=None if device.type == "cpu" else device)
            atexit.register(dist.destroy_process_group)
        return cls(dist.get_rank(), size, device)

    def sum(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor
        tensor = tensor.to(self.device, copy=True)
        dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        return self.sum(tensor) / self.size

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()

    def lanes(self, batch_size: int) -> slice:
        """Which of the lanes are this rank's."""
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, tensors: Any) -> list[Any]:
        """What every rank has in a tree of tensors, on the CPU of rank 0; other ranks get nothing."""
        tensors = tree_map(Tensor.cpu, tensors)
        if self.size == 1:
            return [tensors]
        found: list[Any] = [None] * self.size if self.rank == 0 else []
        dist.gather_object(tensors, found or None)
        return found

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of which each rank may have a shard, on the CPU of rank 0; other ranks get nothing."""
        found = {}
        for name, tensor in tensors.items():  # one by one, so that no device holds more than one that is whole
            tensor = unshard(tensor.detach())
            if self.rank == 0:
                found[name] = tensor.cpu()
        return found


def share_model(model: nn.Module, strategy: str, world: World, find_unused: bool = True) -> Ranks | None:
    """Let the ranks train one model, by `ddp` or `fsdp`; None if there is one rank. It comes before the optimizer.

    `find_unused`: a backward may leave weights without gradient, as a rollout of one segment does with Memformer's writer.
    `ddp` then walks the graph to find them.
    """
    if world.size == 1:
        return None
    backward = _fully_shard(model, world) if strategy == "fsdp" else _data_parallel(model, world, find_unused)
    return Ranks(world.mean, backward)


def unshard(tensor: Any) -> Tensor:
    """All of a tensor of which each rank has a shard; other tensors as they are."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, like: Any) -> Tensor:
    """This rank's shard of a tensor that all ranks have, if `like` is sharded and of its shape."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


class _Differentiated(nn.Module):
    """The identity: what DDP is shown of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors


def _data_parallel(model: nn.Module, world: World, find_unused: bool) -> Backward:
    devices = None if world.device.type == "cpu" else [world.device]
    around = DistributedDataParallel(_Differentiated(model), device_ids=devices, find_unused_parameters=find_unused)
    return lambda tensors, gradients: torch.autograd.backward(around(tensors), gradients)


class _Called(nn.Module):
    """A call of one of a model's methods: what FSDP is shown of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.is_inside = model, False

    def forward(self, call: Callable[[], Any]) -> Any:
        self.is_inside = True
        try:
            return call()
        finally:
            self.is_inside = False


def _fully_shard(model: nn.Module, world: World) -> Backward:
    from torch.distributed.device_mesh import init_device_mesh  # a second to import, for those alone who use it
    from torch.distributed.fsdp import fully_shard

    # The model is one group, so that its layers' methods beside `forward` find their weights too.
    mesh = init_device_mesh(world.device.type, (world.size,))
    around: Any = fully_shard(_Called(model), mesh=mesh, reshard_after_forward=False)
    warnings.filterwarnings("ignore", ".* returned a view tensor")  # an initial state, which nobody changes in place

    def synchronize(now: bool) -> None:
        around.set_requires_gradient_sync(now)
        around.set_reshard_after_backward(now)

    def through(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any) -> Any:
            if around.is_inside:  # one method calls another
                return method(*arguments)
            # FSDP takes an input's gradient for the last that a backward computes; a state's is not: it is shown no state
            return around(partial(method, *arguments))

        return call

    for name in FORWARD_METHODS:
        if hasattr(model, name):
            setattr(model, name, through(getattr(model, name)))

    def backward(tensors: list[Tensor], gradients: list[Tensor | None]) -> None:
        synchronize(True)
        torch.autograd.backward(tensors, gradients)
        synchronize(False)

    synchronize(False)
    return backward
