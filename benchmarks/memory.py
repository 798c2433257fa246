"""Peak bytes of intermediate values in eager PyTorch, to compare with the arena of a compiled
program."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class _Watch(TorchDispatchMode):
    """Counts the bytes of every storage that an operator makes, until it is freed."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.live = 0
        self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def eager_peak_bytes(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """The most bytes that values made during one eager call take at once, results included.

    Parameters, buffers and inputs do not count: a compiled program has them too.
    """
    held = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs)]
    known = {t.untyped_storage()._cdata for t in held if isinstance(t, Tensor)}
    with torch.no_grad(), _Watch(known) as watch:
        result = model(*inputs)
    del result
    return watch.peak
