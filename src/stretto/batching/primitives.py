"""Implementation of each primitive of an InstanceProgram in plain Python.

The oracle runs these. The host program has C++ versions; when one fails there, the primitive is
called again here with the same arguments, so that the error has Python's own text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from stretto.batching.instance_program import InstanceProgram
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

_SCALARS: dict[Scalar, type] = {
    Scalar.NONE: type(None),
    Scalar.BOOL: bool,
    Scalar.INT: int,
    Scalar.FLOAT: float,
    Scalar.STR: str,
}
_LARGEST = 2**63 - 1
OVERFLOW = "an int of this program would need more than 64 bits"


def has_type(program: InstanceProgram, value: Any, type_: DataType) -> bool:
    """Return True if a value is of a type. The contents of lists and dicts are not checked."""
    return any(_is(program, value, item) for item in alternatives(type_))


def _is(program: InstanceProgram, value: Any, type_: DataType) -> bool:
    match type_:
        case Scalar():
            return type(value) is _SCALARS[type_]
        case TensorType(dtype, shape):
            is_tensor = isinstance(value, torch.Tensor)
            return is_tensor and value.dtype == dtype.torch and tuple(value.shape) == shape
        case RowsType(row):
            if not isinstance(value, torch.Tensor) or not value.ndim:
                return False
            return value.dtype == row.dtype.torch and tuple(value.shape[1:]) == row.shape
        case RecordType(number):
            info = program.classes[number]
            if type(value) is not info.python:
                return False
            return info.kind != "dict" or tuple(value) == info.fields
        case TupleType(items):
            return type(value) is tuple and len(value) == len(items)
        case ListType(_, is_tuple):
            return type(value) is (tuple if is_tuple else list)
        case _:
            assert isinstance(type_, DictType)
            return type(value) is dict


def make_record(
    program: InstanceProgram, number: int, names: tuple[str, ...], values: list[Any]
) -> Any:
    """Create an object of class number `number`, with values for some of its fields."""
    info = program.classes[number]
    match info.kind:
        case "dict":
            return dict(zip(names, values, strict=True))
        case "namedtuple":
            return tuple.__new__(info.python, values)
        case _:
            python: Any = info.python
            made = python.__new__(python)
            for name, value in zip(names, values, strict=True):
                object.__setattr__(made, name, value)
            return made


def is_same(left: Any, right: Any) -> bool:
    """Return True for the same object; numbers and strs are compared by type and value, NaN equals
    NaN."""
    if isinstance(left, bool | int | str):
        return type(left) is type(right) and left == right
    if isinstance(left, float) and isinstance(right, float):
        equal = left == right and math.copysign(1, left) == math.copysign(1, right)
        return equal or (left != left and right != right)
    return left is right


def get_field(record: Any, name: str) -> Any:
    return record[name] if type(record) is dict else getattr(record, name)


def has_field(record: Any, name: str) -> bool:
    return name in record if type(record) is dict else hasattr(record, name)


def set_field(record: Any, name: str, value: Any) -> None:
    if type(record) is dict:
        record[name] = value
    else:
        setattr(record, name, value)


def _put(items: Any, position: int, value: Any) -> None:
    items[position] = value


def _remove(mapping: dict[Any, Any], key: Any) -> Any:
    return mapping.pop(key)


def _rows(items: Any) -> torch.Tensor:
    return torch.stack(list(items))


def _dict(*items: Any) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _sequence(items: Any, is_tuple: Any) -> Any:
    return tuple(items) if is_tuple else list(items)


_SIMPLE: dict[str, Callable[..., Any]] = {
    "copy": lambda value: value,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "neg": operator.neg,
    "abs": operator.abs,
    "invert": lambda value: ~int(value),
    "to_int": int,
    "to_float": float,
    "round": round,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "is": is_same,
    "not": operator.not_,
    "truth": bool,
    "len": len,
    "at": operator.getitem,
    "put": _put,
    "append": lambda items, value: items.append(value),
    "pop": lambda items, *position: items.pop(*position),
    "insert": lambda items, position, value: items.insert(position, value),
    "extend": lambda items, others: items.extend(others),
    "slice": lambda items, start, stop, step: items[slice(start, stop, step)],
    "repeat": operator.mul,
    "reverse": lambda items: items.reverse(),
    "contains": operator.contains,
    "index": lambda items, value: items.index(value),
    "clear": lambda items: items.clear(),
    "rows": _rows,
    "sorted_ints": sorted,
    "dict": _dict,
    "lookup": operator.getitem,
    "lookup_or": lambda mapping, key, default: mapping.get(key, default),
    "store": _put,
    "remove": _remove,
    "keys": list,
    "values": lambda mapping: list(mapping.values()),
    "join_str": operator.add,
    "join_all": "".join,
    "characters": list,
    "ord": ord,
    "repr": repr,
    "text": str,
    "round_to": round,
}


def apply(program: InstanceProgram, op: str, detail: Any, args: list[Any]) -> Any:
    """Return the result of a primitive. Raises what Python raises, and OverflowError if an int
    would need more than 64 bits."""
    match op:
        case "ready":
            return 0  # there are no depths here
        case "shared":
            result = detail
        case "math":
            result = getattr(math, detail)(*args)
        case "has_type":
            result = any(has_type(program, args[0], type_) for type_ in detail)
        case "cast":
            result = args[0]
        case "expect":
            if not has_type(program, args[0], detail[0]):
                exception: type[BaseException] = detail[2] if len(detail) > 2 else TypeError
                raise exception(detail[1])
            result = args[0]
        case "record":
            number, names = detail
            result = make_record(program, number, names, args)
        case "get":
            result = get_field(args[0], detail)
        case "has":
            result = has_field(args[0], detail)
        case "set":
            result = set_field(args[0], detail, args[1])
        case "tuple":
            result = tuple(args)
        case "item":
            result = args[0][detail]
        case "list" | "to_list":
            result = _sequence(args if op == "list" else args[0], detail)
        case "concat":
            result = args[0] + args[1]
        case _:
            result = _SIMPLE[op](*args)
    return in_64_bits(result)


def in_64_bits(value: Any) -> Any:
    """Return the value. Raises OverflowError for an int that needs more than 64 bits."""
    if type(value) is int and not -_LARGEST - 1 <= value <= _LARGEST:
        raise OverflowError(OVERFLOW)
    return value
