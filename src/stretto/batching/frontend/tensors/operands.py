"""Values that tensor operators take."""

from __future__ import annotations

import torch

from stretto.batching.frontend.state.values import (
    Composed,
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.types import RowsType, Scalar, TensorType, UnionType, alternatives

NUMBERS = (Scalar.INT, Scalar.FLOAT, Scalar.BOOL)


def is_tensor_like(value: Value) -> bool:
    """Whether an instance decides a tensor in the value."""
    match value:
        case Dynamic(_, type_):
            return any(isinstance(x, TensorType | RowsType) for x in alternatives(type_))
        case Composed():
            return True
        case TupleValue(items):
            return any(map(is_tensor_like, items))
        case SliceValue(start, stop, step):
            return any(map(is_tensor_like, (start, stop, step)))
        case _:
            return False


def is_perhaps_tensor(value: Value) -> bool:
    """Whether the instance decides if a value is a tensor, or which kind of tensor it is."""
    return (
        isinstance(value, Dynamic) and isinstance(value.type, UnionType) and is_tensor_like(value)
    )


def holds_tensor(*values: Value) -> bool:

    return any(isinstance(v, Static) and isinstance(v.value, torch.Tensor) for v in values)


def elements(kind: TensorType) -> int:
    total = 1
    for dim in kind.shape:
        total *= dim
    return total
