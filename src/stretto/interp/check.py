"""Checks tensors against the types of the values they are for, and binds symbols to their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stretto.errors import RunError, VerifyError
from stretto.ir.core import Op, Value
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Symbol
from stretto.ir.types import Dim, ListType, TensorType

Datum = torch.Tensor | list[torch.Tensor]
Sizes = dict[Symbol, int]


def bind_values(
    values: Sequence[Value], data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None
) -> None:
    """Binds every symbol that the values' types name, then checks the data against the types.

    `dtype`, where given, is that of all floats. Raises RunError where they differ.
    """
    found: Sizes = {}
    for value, datum in zip(values, data, strict=True):
        for type, tensor in _tensors(value, datum):
            bind_sizes(type.shape, tensor.shape, found)
    sizes.update(found)
    check_values(values, data, sizes, dtype)


def bind_sizes(dims: Sequence[Dim], shape: Sequence[int], sizes: Sizes) -> None:
    """Binds the symbols that dims are to the sizes of a shape.

    Raises RunError for one out of the symbol's range, and for two sizes of one symbol.
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
    """The size as a number. Raises VerifyError for a symbol without value."""
    if isinstance(dim, int):
        return dim
    for symbol in dim.symbols:
        if symbol not in sizes:
            raise VerifyError(f"the size {symbol} is not bound by a parameter or a list.stack")
    return dim.evaluate(sizes.__getitem__)


def bind_results(op: Op, data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None) -> None:
    """The same for what an op gave. A tensor op binds no symbols: its result dims follow."""
    check = check_values if isinstance(op, TensorOp) else bind_values
    check(op.results, data, sizes, dtype)


def check_values(
    values: Sequence[Value], data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None
) -> None:
    if len(values) != len(data):
        raise RunError(f"expected {len(values)} values, found {len(data)}")
    for value, datum in zip(values, data, strict=True):
        for type, tensor in _tensors(value, datum):
            if (reason := _mismatch(type, tensor, sizes, dtype)) is not None:
                raise RunError(f"%{value.hint} should be {value.type}, found {reason}")


def _tensors(value: Value, datum: Datum) -> list[tuple[TensorType, torch.Tensor]]:
    if isinstance(value.type, ListType):
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
    same_shape = shape == type.shape or (  # most types are static
        len(shape) == type.rank and shape == tuple(size_value(dim, sizes) for dim in type.shape)
    )
    if tensor.dtype is expected and same_shape:
        return None
    return f"{tensor.dtype} of shape {list(shape)}"
