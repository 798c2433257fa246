"""Offsets at which CPython stores the parts of objects, so that the runtime reads them without a
call.

Every offset is tested: markers are stored in a trial object, and its memory is searched for
them. Parts that are not found at the places known for this interpreter are read through the
CPython API (include/python.h: PythonClass).
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import MemberDescriptorType
from typing import Any

import torch

from stretto.batching.instance_program import ClassInfo

_WORD = ctypes.sizeof(ctypes.c_void_p)
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2  # flags of a class
_MOST_VALUES = 30  # most attributes that CPython stores outside of a dict
_SPLIT = 2  # the kind of a dict's keys that are separate from its values

ASK, IN_OBJECT, IN_VALUES = range(3)


@dataclass(frozen=True, slots=True)
class ClassPlaces:
    """The fields of PythonClass in include/python.h. fields: for each, `ASK`, `IN_OBJECT` or
    `IN_VALUES`, and its offset in bytes."""

    fields: tuple[tuple[int, int], ...]
    values_at: int = 0
    values_tag: int = 0
    valid_at: int = 0
    dict_at: int = 0
    keys: int = 0
    version: int = 0


def hidden_names(info: ClassInfo) -> tuple[str, ...]:
    """Return the names that the program looked up in a class and that an object of it would hide
    by storing them."""
    if not info.python.__dictoffset__:
        return ()
    return tuple(name for name in info.absent if is_stored(info.python, name))


def places_of(cls: type, fields: Sequence[str]) -> ClassPlaces:
    """Return the places of the fields of a class's objects. All are `ASK` (version 0) if the class
    customises attribute access, or if no trial object can be created."""
    unknown = ClassPlaces(((ASK, 0),) * len(fields))
    if not version_at() or cls.__getattribute__ is not object.__getattribute__:
        return unknown
    if hasattr(cls, "__del__"):
        return unknown
    marks = [object() for _ in fields]
    try:
        trial = object.__new__(cls)
        for name, mark in zip(fields, marks, strict=True):
            if is_stored(cls, name):
                object.__setattr__(trial, name, mark)
    except (TypeError, AttributeError):
        return unknown
    at, tag, valid_at, values = _values(cls, id(trial))
    found = list[tuple[int, int]]()
    for name, mark in zip(fields, marks, strict=True):
        if not is_stored(cls, name):  # memory after the values may hold the marker by chance
            found.append((ASK, 0))
            continue
        slot = _find(mark, id(trial), cls.__basicsize__ // _WORD)
        value = _find(mark, values, _MOST_VALUES) if slot is None else None
        if slot is not None:
            found.append((IN_OBJECT, slot))
        else:
            found.append((ASK, 0) if value is None else (IN_VALUES, value))
    keys = _shared_keys(trial, fields, found) if at else 0
    dict_at = _dict(trial, found, marks) if keys and not valid_at else 0
    return ClassPlaces(tuple(found), at, tag, valid_at, dict_at, keys, class_version(cls))


def is_stored(cls: type, name: str) -> bool:
    """Return True if reading an attribute of an object gives what is stored in it: no property or
    other data descriptor of the class overrides it."""
    for base in cls.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            is_slot = isinstance(found, MemberDescriptorType)
            return is_slot or not any(hasattr(type(found), x) for x in ("__set__", "__delete__"))
    return True


def _values(cls: type, trial: int) -> tuple[int, int, int, int]:
    """Return values_at, values_tag and valid_at, and the address of an object's values; zeros if
    it has none, or has a dict."""
    if not cls.__flags__ & _MANAGED_DICT:
        return 0, 0, 0, 0
    if sys.version_info[:2] == (3, 11):
        address = _word(trial - 4 * _WORD)
        return (-4 * _WORD, 0, 0, address) if not address & 1 else (0, 0, 0, 0)
    if sys.version_info[:2] == (3, 12):
        address = _word(trial - 3 * _WORD)
        return (-3 * _WORD, -1, 0, address + 1) if address & 1 else (0, 0, 0, 0)
    if cls.__flags__ & _INLINE_VALUES:
        size = cls.__basicsize__
        is_valid = ctypes.c_uint8.from_address(trial + size + 3).value == 1
        return (size + _WORD, 0, size + 3, trial + size + _WORD) if is_valid else (0, 0, 0, 0)
    return 0, 0, 0, 0


def _shared_keys(trial: object, names: Sequence[str], fields: Sequence[tuple[int, int]]) -> int:
    """Return the address of the attribute names that all objects of this class share; 0 if they
    are not found."""
    made = trial.__dict__
    if _word(id(trial) - 3 * _WORD) != id(made):
        return 0
    keys = _word(id(made) + 4 * _WORD)
    count = _word(keys + 3 * _WORD)
    if ctypes.c_uint8.from_address(keys + 10).value != _SPLIT or count > _MOST_VALUES:
        return 0
    first = keys + 4 * _WORD + (1 << ctypes.c_uint8.from_address(keys + 9).value)
    stored = [_word(first + 2 * _WORD * n) for n in range(count)]
    in_values = [(n, at // _WORD) for n, (place, at) in enumerate(fields) if place == IN_VALUES]
    is_there = all(at < count and stored[at] == id(sys.intern(names[n])) for n, at in in_values)
    return keys if is_there else 0


def _dict(trial: object, fields: Sequence[tuple[int, int]], marks: Sequence[object]) -> int:
    """Return dict_at; 0 if an object's dict does not have its values in the same order."""
    values = _word(id(trial.__dict__) + 5 * _WORD)
    same = values and all(
        _word(values + offset) == id(mark)
        for (place, offset), mark in zip(fields, marks, strict=True)
        if place == IN_VALUES
    )
    return -3 * _WORD if same else 0


def _find(mark: object, address: int, words: int) -> int | None:
    """Return the offset in bytes of a reference to a marker in `words` words of memory; None if
    there is none."""
    if not address:
        return None
    for n in range(words):
        if _word(address + n * _WORD) == id(mark):
            return n * _WORD
    return None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@cache
def class_at() -> int:
    """Return the offset of an object's class; 0 if that is not known."""
    known = all(_word(id(item) + _WORD) == id(type(item)) for item in (1, "", [], object()))
    return _WORD if known else 0


_VERSION_AT = 48 * _WORD  # of PyTypeObject.tp_version_tag since Python 3.8


@cache
def version_at() -> int:
    """Return the offset in a class of the number that changes whenever the class or a base of it
    changes; 0 if this interpreter's object layout is not known."""
    is_known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 13)
    other = sysconfig.get_config_var("Py_GIL_DISABLED") or hasattr(sys, "gettotalrefcount")
    if not is_known or other or not class_at():
        return 0

    class Base:
        pass

    class Trial(Base):
        pass

    versions = set[int]()
    for name in ("one", "two", "three"):
        setattr(Base, name, None)
        versions.add(class_version(Trial))
    return _VERSION_AT if len(versions) == 3 and 0 not in versions else 0


def class_version(cls: type) -> int:
    """Return the number at `version_at`; 0 if the class has none now."""
    getattr(cls, "__init__", None)  # a changed class gets its new version at its next use
    return ctypes.c_uint32.from_address(id(cls) + _VERSION_AT).value


@cache
def implementation_at() -> tuple[int, int]:
    """Return the offsets in a tensor's object of the address of its implementation, and of a byte
    that is not 0 if that belongs to another tensor; 0 for an offset that is not known."""
    tensors: list[Any] = [torch.ones(1), torch.nn.Parameter(torch.ones(1)), torch.ones(2)[1:]]
    if all(_word(id(tensor) + 2 * _WORD) == tensor._cdata for tensor in tensors):
        return 2 * _WORD, 0
    if all(
        _word(id(tensor) + 3 * _WORD) == tensor._cdata
        and ctypes.c_uint8.from_address(id(tensor) + 2 * _WORD).value == 0
        for tensor in tensors
    ):
        return 3 * _WORD, 2 * _WORD
    return 0, 0
