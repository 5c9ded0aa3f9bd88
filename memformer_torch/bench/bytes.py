"""Bytes, counted: every tensor that a computation makes, for as long as it lives."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors made inside: `live` now, `peak` at most.

    What existed before does not count; what backward recomputes does, which hooks on saved tensors would miss. Scratch
    space inside a kernel is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._seen.setdefault(tensor.untyped_storage(), 0)  # came from outside
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                size = storage.nbytes()
                self._seen[storage] = size
                self.live += size
                weakref.finalize(storage, self._forget, size)
        self.peak = max(self.peak, self.live)
        return result

    def _forget(self, size: int) -> None:
        self.live -= size


def peak_bytes(function: Callable[[], Any]) -> int:
    """The most bytes of tensors that the call has alive at once."""
    with LiveBytes() as count:
        result = function()
    del result
    return count.peak


def state_bytes(state: Iterable[Tensor]) -> int:
    """The bytes of a state's tensors."""
    return sum(member.numel() * member.element_size() for member in state)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
