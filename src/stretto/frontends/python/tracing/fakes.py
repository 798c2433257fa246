"""Fast creation of fake tensors: torch's own mode runs only once per kind of call.

A fake tensor has a shape, strides, a dtype and a device, but no data. torch takes about
half a millisecond to make one from a real tensor, and a tenth of that to run an operator on
some. A capture does both for each parameter and each operator of a model, and the layers of
a model mostly repeat each other.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# fake tensors have no public constructor

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

FakeLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device, int, int | None]
"""Shape, strides, dtype, device, storage offset, and number of elements of the memory; None if the
memory has as many as the tensor."""

_MOST = 1 << 14
"""Maximum number of results remembered at a time."""

Results = dict[Any, Any]
"""Results of operators, by operator and arguments; tensors are stored as layouts."""
_results: Results = {}
"""Results for sizes that are numbers, shared by all captures."""

_NOTHING = nullcontext()

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout)


def without_modes() -> AbstractContextManager[object]:
    """Context in which no dispatch mode sees the operators. Such a mode is rarely active."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else _NOTHING


def mapped(function: Callable[[Any], Any], item: Any) -> Any:
    """Return `item`, an argument or result of an operator, with `function` applied to its
    leaves."""
    if type(item) is tuple:
        return tuple([mapped(function, part) for part in item])
    if type(item) is list:
        return [mapped(function, part) for part in item]
    if isinstance(item, tuple | list | dict):
        return tree_map(function, item)
    return function(item)


def tensors_of(item: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments of an operator."""
    found = list[torch.Tensor]()
    _add_tensors(item, found)
    return found


def _add_tensors(item: Any, found: list[torch.Tensor]) -> None:
    if type(item) in _PLAIN:
        return
    if isinstance(item, torch.Tensor):
        found.append(item)
    elif isinstance(item, (list, tuple, dict)):
        parts: Any = item.values() if isinstance(item, dict) else item  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for part in parts:
            _add_tensors(part, found)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(
        [math.prod(max(1, size) for size in shape[at:]) for at in range(1, len(shape) + 1)]
    )


def fake_of_layout(
    mode: FakeTensorMode,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    start: int = 0,
    elements: int | None = None,
) -> torch.Tensor:
    """Return a fake tensor with its own memory of `elements`; None for as many as it needs."""
    with without_modes():
        if elements is None:
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        else:
            memory = torch.empty_strided((elements,), (1,), dtype=dtype, device="meta")
            meta = memory.as_strided(shape, strides, start)
        return FakeTensor(mode, meta, device)


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor like a real one."""
    with without_modes():
        plain = tensor.detach()
        if type(plain) is torch.Tensor and plain.layout is torch.strided:
            return fake_of_layout(mode, *_layout(plain))
        with mode:
            return mode.from_tensor(plain, static_shapes=True)


def fake_with_sizes(
    mode: FakeTensorMode, tensor: torch.Tensor, shape: Sequence[Any]
) -> torch.Tensor:
    """Return a fake tensor like a real one, with a shape that may contain symbolic sizes. Its dims
    keep their order in memory; gaps between them are left out, as programs take dense inputs."""
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for dim in dims_by_stride(tensor):
        strides[dim] = step
        step = step * shape[dim]
    with without_modes(), mode:
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def dims_by_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dims from the innermost to the outermost in memory; from last to first if
    contiguous."""
    backwards = range(tensor.dim() - 1, -1, -1)
    if tensor.is_contiguous():
        return tuple(backwards)
    return tuple(sorted(backwards, key=tensor.stride))


# ---- results of operators ----------------------------------------------------------------------


class _Unhashable(Exception):
    """An argument for which no result can be remembered."""


def call_key(func: Any, args: Any, kwargs: Any, facts: Any = None) -> Any:
    """Return the key of a call, everything that the operator's result depends on; None if that is
    not known. facts: the knowledge about symbolic sizes; None if calls with such sizes have no
    key."""
    if func.namespace != "aten" or func._schema.is_mutable:
        return None
    symbols = set[Any]()
    try:
        parts = tuple([_key(item, symbols) for item in args])
        named = tuple([(name, _key(item, symbols)) for name, item in kwargs.items()])
    except _Unhashable:
        return None
    if symbols and facts is None:
        return None
    known = (facts, frozenset(symbols)) if symbols else None
    return (func, parts, named, torch.get_default_dtype(), known)


def _key(item: Any, symbols: set[Any]) -> Any:
    """Return the key of an argument; adds the symbols of its sizes to `symbols`."""
    if isinstance(item, torch.Tensor):
        if item.layout is not torch.strided:
            raise _Unhashable
        memory = item.untyped_storage().nbytes()
        sizes = (*item.shape, *item.stride(), item.storage_offset(), memory)
        known = tuple([_size_key(size, symbols) for size in sizes])
        return (len(item.shape), known, item.dtype, item.device)
    if type(item) in (list, tuple):
        return tuple([_key(part, symbols) for part in item])
    if isinstance(item, torch.memory_format) or type(item) in _PLAIN:
        return (type(item), item)
    return _size_key(item, symbols)


def _size_key(size: Any, symbols: set[Any]) -> Any:
    if type(size) is int:
        return size
    if not isinstance(size, torch.SymInt):
        raise _Unhashable
    expression = size.node.expr
    symbols |= expression.free_symbols
    return expression


def known_result(mode: FakeTensorMode, key: Any, sized: Results = _results) -> Any:
    """Return new fake tensors like the results of an earlier call with this key, or None. sized:
    results for symbolic sizes, in this capture."""
    found = (_results if key[-1] is None else sized).get(key)
    if found is None:
        return None
    return mapped(lambda item: item and fake_of_layout(mode, *item.layout), found)


class _Layout:
    """The layout of a tensor that an operator returned."""

    __slots__ = ("layout",)

    def __init__(self, layout: FakeLayout) -> None:
        self.layout = layout


def remember(key: Any, outputs: Any, sized: Results = _results) -> None:
    """Store the results of a call if they are plain tensors or None."""
    symbols = frozenset[Any]() if key[-1] is None else key[-1][1]
    for item in outputs if type(outputs) in (list, tuple) else (outputs,):
        is_plain = isinstance(item, FakeTensor) and item.layout is torch.strided
        if item is not None and not (is_plain and _are_of(item.shape, symbols)):
            return
    results = _results if key[-1] is None else sized
    if len(results) >= _MOST:
        results.clear()
    layout = _layout if key[-1] is None else _sized_layout
    results[key] = mapped(lambda item: item if item is None else _Layout(layout(item)), outputs)


def _are_of(sizes: Sequence[Any], symbols: frozenset[Any]) -> bool:
    """True if all sizes are numbers, or formulas of these symbols."""
    return all(
        type(size) is int
        or (isinstance(size, torch.SymInt) and size.node.expr.free_symbols <= symbols)
        for size in sizes
    )


def _layout(item: torch.Tensor) -> FakeLayout:
    elements: int | None = item.untyped_storage().nbytes() // item.element_size()
    shape, strides, start = tuple(item.shape), tuple(item.stride()), int(item.storage_offset())
    last = sum([(size - 1) * stride for size, stride in zip(shape, strides, strict=True)])
    if not start and elements == (0 if 0 in shape else last + 1):
        elements = None
    return shape, strides, item.dtype, item.device, start, elements


def _sized_layout(item: torch.Tensor) -> FakeLayout:
    """Return the layout of a tensor of symbolic sizes that fills its memory."""
    return tuple(item.shape), tuple(item.stride()), item.dtype, item.device, 0, None
