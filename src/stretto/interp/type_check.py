"""Checks of tensors against the types of their values, and binding of symbols to their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stretto.errors import RunError, VerifyError
from stretto.ir.core import Op, Value
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Symbol
from stretto.ir.types import Dim, TensorListType, TensorType

Datum = torch.Tensor | list[torch.Tensor]
Sizes = dict[Symbol, int]


def bind_values(
    values: Sequence[Value], data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None
) -> None:
    """Bind every symbol in the values' types, then check the data against the types.

    `dtype`, if not None, is the dtype of all floats. Raise RunError if data and types differ.
    """
    found: Sizes = {}
    for value, datum in zip(values, data, strict=True):
        for type, tensor in _tensors(value, datum):
            bind_sizes(type.shape, tensor.shape, found)
    sizes.update(found)
    check_values(values, data, sizes, dtype)


def bind_sizes(dims: Sequence[Dim], shape: Sequence[int], sizes: Sizes) -> None:
    """Bind each dim that is a bare symbol to the size at its position in `shape`.

    Raise RunError if a size is out of the symbol's range, or if a symbol has two sizes.
    """
    for dim, size in zip(dims, shape, strict=False):
        if isinstance(dim, int) or (symbol := dim.symbol) is None:
            continue
        if size < symbol.low or (symbol.high is not None and size > symbol.high):
            raise RunError(
                f"a dim has size {size}, which is not in the range {symbol.declaration}",
                remedy="compile the program for a larger range of sizes",
            )
        if sizes.setdefault(symbol, size) != size:
            raise RunError(f"the size {symbol} is {sizes[symbol]} in one dim and {size} in another")


def size_value(dim: Dim, sizes: Mapping[Symbol, int]) -> int:
    """Return the size as a number; raise VerifyError if a symbol has no value."""
    if isinstance(dim, int):
        return dim
    for symbol in dim.symbols:
        if symbol not in sizes:
            raise VerifyError(f"the size {symbol} is not bound by a parameter or a list.stack")
    return dim.evaluate(sizes.__getitem__)


def bind_results(op: Op, data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None) -> None:
    """Bind and check an op's results. A tensor op binds no symbols: its result dims follow from
    others."""
    check = check_values if isinstance(op, TensorOp) else bind_values
    check(op.results, data, sizes, dtype)


def check_values(
    values: Sequence[Value], data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None
) -> None:
    """Raise RunError if the data do not have the values' types."""
    if len(values) != len(data):
        raise RunError(f"expected {len(values)} values, found {len(data)}")
    for value, datum in zip(values, data, strict=True):
        for type, tensor in _tensors(value, datum):
            if (reason := _mismatch(type, tensor, sizes, dtype)) is not None:
                raise RunError(f"%{value.hint} should be {value.type}, found {reason}")


def _tensors(value: Value, datum: Datum) -> list[tuple[TensorType, torch.Tensor]]:
    if isinstance(value.type, TensorListType):
        if not isinstance(datum, list):
            raise RunError(f"%{value.hint} should be a list, found a tensor")
        return [(value.type.element, item) for item in datum]
    if not isinstance(datum, torch.Tensor):
        raise RunError(f"%{value.hint} should be a tensor, found a list")
    return [(value.type, datum)]


def _mismatch(
    type: TensorType, tensor: torch.Tensor, sizes: Sizes, dtype: torch.dtype | None
) -> str | None:
    expected = dtype if dtype is not None and type.dtype.is_float else type.dtype.torch
    shape = tuple(tensor.shape)
    same_shape = shape == type.shape or (  # the quick comparison suffices for static types
        len(shape) == type.rank and shape == tuple(size_value(dim, sizes) for dim in type.shape)
    )
    if tensor.dtype is expected and same_shape:
        return None
    return f"{tensor.dtype} of shape {list(shape)}"
