"""Names the part of an instance that is of another type than the program was made for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from stretto.batching.host.places import hidden_names
from stretto.batching.host.tables import tensor_type
from stretto.batching.host.unread import may_lack, unread_fields
from stretto.batching.primitives import has_type
from stretto.batching.program import InstanceProgram
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    Scalar,
    TupleType,
    Type,
    alternatives,
)

_Part = tuple[str, Any, Type]


def mismatch(program: InstanceProgram, columns: list[Any], instance: int) -> str:
    """`trees[3].left.word: expected int, found str`; empty where the instance fits.

    columns: a sequence per parameter of the program. Data may be deep or cyclic.
    """
    parameters = program.functions[0].parameters
    parts: list[_Part] = [
        (f"{parameter.name}[{instance}]", column[instance], parameter.type)
        for parameter, column in zip(parameters, columns, strict=True)
    ]
    parts.reverse()
    seen = set[tuple[int, Type]]()
    while parts:
        path, value, type_ = parts.pop()
        if (id(value), type_) in seen:
            continue
        seen.add((id(value), type_))
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{path}: expected an int of 64 bits, found {value}"
        fitting = [item for item in alternatives(type_) if has_type(program, value, item)]
        if not fitting or (isinstance(value, torch.Tensor) and not _is_plain(value)):
            return f"{path}: expected {_shown(program, type_)}, found {_found(value)}"
        try:
            parts += reversed(list(_inner(program, path, value, fitting[0])))
        except AttributeError as error:
            return f"{path}: {error}, which others have; set it to None where there is none"
        except _Other as error:
            return str(error)
    return ""


_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor in main memory, of no class of its own."""
    in_memory = tensor.is_cpu and tensor.layout == torch.strided
    return in_memory and type(tensor) in _TENSORS


class _Other(Exception):
    """What is of another kind, in words."""


def _inner(program: InstanceProgram, path: str, value: Any, type_: Type) -> Iterator[_Part]:
    """The parts of a value, with their paths and types."""
    match type_:
        case RecordType(number):
            info = program.classes[number]
            for name in hidden_names(info):
                if name in vars(value):
                    of_class = f"that of {info.python.__name__}, or had none"
                    raise _Other(f"{path}.{name}: expected {of_class}, found one of the object")
            unread = unread_fields(program)[number]
            for name, cell in zip(info.fields, info.cells, strict=True):
                if name in unread or (may_lack(info, name) and not hasattr(value, name)):
                    continue
                if info.kind == "dict":
                    yield f"{path}[{name!r}]", value[name], program.cells[cell]
                else:
                    yield f"{path}.{name}", getattr(value, name), program.cells[cell]
        case TupleType(items):
            for n, (item, item_type) in enumerate(zip(value, items, strict=True)):
                yield f"{path}[{n}]", item, item_type
        case ListType(cell, _):
            for n, item in enumerate(value):
                yield f"{path}[{n}]", item, program.cells[cell]
        case DictType(key_type, cell):
            for key, item in value.items():
                if not has_type(program, key, key_type):
                    wanted, found = _shown(program, key_type), _found(key)
                    raise _Other(f"a key of {path}: expected {wanted}, found {found}")
                yield f"{path}[{key!r}]", item, program.cells[cell]
        case _:
            pass


def _found(value: Any) -> str:
    if isinstance(value, torch.Tensor) and type(value) in _TENSORS:
        device = "" if value.is_cpu else f" on {value.device}"
        device += "" if value.layout == torch.strided else f" of layout {value.layout}"
        try:
            return f"{tensor_type(value)}{device}"
        except KeyError:
            return f"a tensor of {value.dtype}"
    if type(value) is tuple:
        return f"tuple of {len(value)}"
    if type(value) is dict:
        return f"dict with keys {sorted(map(str, value))}" if len(value) < 10 else "dict"
    return type(value).__name__


def _shown(program: InstanceProgram, type_: Type) -> str:
    """A type in the user's words."""
    return " or ".join(sorted(_one(program, item) for item in alternatives(type_))) or "nothing"


def _one(program: InstanceProgram, type_: Type) -> str:
    match type_:
        case Scalar():
            return type_.value
        case RecordType(number):
            info = program.classes[number]
            return (
                f"dict with keys {sorted(info.fields)}"
                if info.kind == "dict"
                else (info.python.__name__)
            )
        case TupleType(items):
            return f"tuple of {len(items)}"
        case ListType(_, is_tuple):
            return "tuple" if is_tuple else "list"
        case DictType():
            return "dict"
        case _:
            return str(type_)
