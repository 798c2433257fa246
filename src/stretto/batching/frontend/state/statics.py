"""What of a value is known before any instance is."""

from __future__ import annotations

from typing import Any

import torch

from stretto.batching.frontend.state.values import (
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
    scalar_type,
)
from stretto.batching.program import Literal
from stretto.batching.types import Scalar


def constant(value: Value) -> Any:
    """The Python object of a static value or of a literal; `...` otherwise."""
    match value:
        case Static(item):
            return item
        case Dynamic(Literal(item), _):
            return item
        case _:
            return ...


def is_data(value: Value) -> bool:
    """Whether a value can be kept in a variable of the program."""
    match value:
        case Dynamic():
            return True
        case TupleValue(items):
            return all(map(is_data, items))
        case Static(item):
            return _is_static_data(item)
        case _:
            return False


def _is_static_data(item: Any) -> bool:
    if type(item) in (tuple, list, torch.Size):
        return all(map(_is_static_data, item))
    return scalar_type(item) is not None or isinstance(item, torch.Tensor)


def is_static(value: Value) -> bool:
    """Whether a value is the same for all instances, with all that it is made of."""
    match value:
        case Static():
            return True
        case TupleValue(items):
            return all(map(is_static, items))
        case SliceValue(start, stop, step):
            return is_static(start) and is_static(stop) and is_static(step)
        case Dynamic(Literal(), _):
            return True
        case _:
            return False


def python_of(value: Value) -> Any:
    """The Python object of a static value."""
    match value:
        case Static(item) | Dynamic(Literal(item), _):
            return item
        case TupleValue(items, is_list):
            made = map(python_of, items)
            return list(made) if is_list else tuple(made)
        case SliceValue(start, stop, step):
            return slice(python_of(start), python_of(stop), python_of(step))
        case _:
            raise TypeError(value)


def is_int(value: Value) -> bool:
    """Whether a value is an int."""
    match value:
        case Static(item):
            return type(item) is int
        case Dynamic(_, type_):
            return type_ is Scalar.INT
        case _:
            return False
