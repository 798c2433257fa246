"""Which tensors have content that a program was made of.

While a function is evaluated, what does not depend on the instance is computed: `int(self.count)`,
`self.weight.softmax(0)`. The program holds as long as the tensors that were read for it keep their
content.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_PYTHON_READS = frozenset((torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__))
"""Functions that read memory without an operator."""


@contextmanager
def noting_content(found: dict[int, torch.Tensor]) -> Generator[None]:
    """Adds the tensors whose content is read within the block, by identity."""
    with _Functions(found), _Operators(found):
        yield


class _Functions(TorchFunctionMode):
    def __init__(self, found: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PYTHON_READS:
            self._found[id(args[0])] = args[0]
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """An operator reads its operands, unless what it returns is parts of them."""

    def __init__(self, found: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given, results = _tensors((args, kwargs)), _tensors(made)
        if not given or not all(map(_is_real, (*given, *results))):
            return made  # stand-ins have no content
        storages = {_storage(x) for x in given}
        if results and all(_storage(x) in storages for x in results):
            return made
        self._found |= {id(item): item for item in given}
        return made


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]


def _is_real(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not tensor.is_meta


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
