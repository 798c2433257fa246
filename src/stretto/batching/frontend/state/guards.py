"""Guards: what a program was made of that is the same for all instances, and may change later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from stretto.batching.frontend.state.evaluation import Evaluation, Read
from stretto.batching.frontend.state.values import scalar_type
from stretto.runtime.constants import Weights

ABSENT = object()
"""What is found under a name that is not there."""


_BY_VALUE = (tuple, torch.Size, torch.dtype, torch.device, complex, bytes, slice, range,
             MethodType)  # fmt: skip


def holds(reads: Iterable[Read]) -> bool:
    """Whether all that a program was made of is there as it was: attributes, globals, closure
    cells and items by identity, scalars and tuples by value. Cheap: it runs at each call."""
    return all(_holds(read) for read in reads)


def _holds(read: Read) -> bool:
    found = _found(read)
    if found is read.value:
        return True
    if type(found) is not type(read.value):
        return False
    if read.kind == "items":
        return len(found) == len(read.value) and all(map(_is_same, found, read.value))
    return _is_same(found, read.value)


def _is_same(found: Any, value: Any) -> bool:
    if found is value:
        return True
    by_value = scalar_type(value) is not None or isinstance(value, _BY_VALUE)
    return by_value and type(found) is type(value) and bool(found == value)


def _found(read: Read) -> Any:
    try:
        match read.kind:
            case "attribute":
                return getattr(read.owner, read.name)
            case "class":
                return in_class(read.owner, read.name)
            case "cell":
                return read.owner.cell_contents
            case "items":
                return tuple(read.owner)
            case _:
                return read.owner[read.name]
    except (AttributeError, KeyError, IndexError, ValueError, TypeError):
        return ABSENT


class TensorGuards:
    """Tensors that were the same for all instances, and must still lie where they did. `p.data =
    other`, and with it `module.half()` and `module.to(device)`, change a tensor that stays the same
    object. Where its content was read, as in `int(self.count)`, that must be the same, too."""

    def __init__(
        self, tensors: Iterable[torch.Tensor], content: Sequence[torch.Tensor], *, native: bool
    ) -> None:
        unique = {id(tensor): tensor for tensor in (*tensors, *content)}
        self._known = [(tensor, _place(tensor)) for tensor in unique.values()]
        self._content = Weights([item for item in content if item.is_cpu], (), native=native)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """Those that are watched."""
        return (tensor for tensor, _ in self._known)

    def hold(self) -> bool:
        """Whether all are where they were, with the shapes and dtypes that they had, and with the
        content that was read."""
        is_there = all(_place(tensor) == place for tensor, place in self._known)
        return is_there and self._content.is_current()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def note_attribute(evaluation: Evaluation, owner: Any, name: str, value: Any) -> None:
    """Notes an attribute of a static object, where a later value of it can be compared."""
    if isinstance(owner, torch.Tensor):
        return
    read = Read("attribute", owner, name, value)
    if _holds(read):
        evaluation.read("attribute", owner, name, value)


def in_class(python: type, name: str) -> Any:
    """What a class or its bases have under a name, as it is stored; `ABSENT` where none has it."""
    return next((vars(base)[name] for base in python.__mro__ if name in vars(base)), ABSENT)


def note_class(evaluation: Evaluation, python: type, name: str) -> Any:
    """Notes, and returns, what objects of a class find under a name that none of them stores."""
    found = in_class(python, name)
    evaluation.read("class", python, name, found)
    return found


def note_function(evaluation: Evaluation, function: FunctionType) -> None:
    """Notes the code and the defaults of a function, which can be replaced in it."""
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        evaluation.read("attribute", function, name, getattr(function, name))


def note_cell(evaluation: Evaluation, cell: CellType, value: Any) -> None:
    """Notes what a free variable of a function holds."""
    evaluation.read("cell", cell, None, value)


def note_items(evaluation: Evaluation, value: Any) -> None:
    """Notes what is in a container that may change."""
    if isinstance(value, list | dict | set | torch.nn.ModuleList | torch.nn.ModuleDict):
        evaluation.read("items", value, None, tuple(value))


def note_module(evaluation: Evaluation, module: torch.nn.Module) -> None:
    """Notes what a module holds that is called as a whole: its parts, parameters and settings."""
    for part in module.modules():
        settings = {k: v for k, v in vars(part).items() if not k.startswith("_")}
        note_attribute(evaluation, part, "forward", part.forward)
        for name, value in settings.items():
            note_attribute(evaluation, part, name, value)
            note_items(evaluation, value)
        tables: Any = (part._parameters, part._buffers, part._modules)  # pyright: ignore
        for table in tables:
            note_items(evaluation, table)
            for name, value in table.items():
                evaluation.read("item", table, name, value)
