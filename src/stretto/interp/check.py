"""Checks tensors against the types of the values they are for, and binds symbols to their sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.errors import RunError
from stretto.ir.core import Op, Value
from stretto.ir.dims import evaluate
from stretto.ir.ops import TensorOp
from stretto.ir.types import ListType, Symbol, TensorType

Datum = torch.Tensor | list[torch.Tensor]
Sizes = dict[str, int]


def bind_values(
    values: Sequence[Value], data: Sequence[Datum], sizes: Sizes, dtype: torch.dtype | None
) -> None:
    """Binds every symbol that the values' types name, then checks the data against the types.

    `dtype`, where given, is that of all floats. Raises RunError where they differ.
    """
    for value, datum in zip(values, data, strict=True):
        for type, tensor in _tensors(value, datum):
            for dim, size in zip(type.shape, tensor.shape, strict=False):
                if isinstance(dim, Symbol) and dim.name.isidentifier():
                    sizes[dim.name] = size
    check_values(values, data, sizes, dtype)


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
        len(shape) == type.rank and shape == tuple(evaluate(dim, sizes) for dim in type.shape)
    )
    if tensor.dtype is expected and same_shape:
        return None
    return f"{tensor.dtype} of shape {list(shape)}"
