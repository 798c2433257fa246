"""A check that going back to a snapshot really undoes everything that has happened since.

Whenever a snapshot is taken, all objects that the captured code can reach and that the snapshot
does not hold are looked at: variables, closures, globals and what these refer to. When the snapshot
is restored, they must be what they were, unless the capture has noted the change.
"""

# pyright: basic

from __future__ import annotations

import array
import io
import itertools
import operator
import types
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

from stretto.frontends.python.guards.guards import content_of
from stretto.frontends.python.guards.reach import ATOMS
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import (
    Snapshot,
    TracedList,
    contents,
    is_box,
    is_same,
)

_LEFT_OUT = (
    torch.Tensor, torch.nn.Module, types.ModuleType, Enum, type, types.CodeType, TracedList, Either,
    Indexed, Tracer, BaseException,
)  # fmt: skip
_MOST = 3000
"""The most objects that are looked at."""


class UnnoticedChange(BaseException):
    """Something has changed in a region that the capture does not know of. No `except Exception` of
    the captured code catches it."""


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each snapshot checks what it does not hold."""
    take, restore = Snapshot.take, Snapshot.restore

    def taken(extra: tuple[Any, ...] = ()) -> Snapshot:
        snapshot = take(extra)
        snapshot.others = {  # type: ignore[attr-defined]
            id(item): (item, digest(item)) for item in reachable(snapshot)
        }
        return snapshot

    def restored(self: Snapshot) -> None:
        restore(self)
        touched = tracer().heap.touched
        for key, (item, before) in self.others.items():  # type: ignore[attr-defined]
            if key not in self.boxes and key not in touched and digest(item) != before:
                raise UnnoticedChange(f"a {type(item)} has changed: {item!r}, before {before}")

    monkeypatch.setattr(Snapshot, "take", staticmethod(taken))
    monkeypatch.setattr(Snapshot, "restore", restored)


def reachable(snapshot: Snapshot) -> Iterator[Any]:
    """Objects that variables, closures and known objects refer to, and the snapshot does not
    hold."""
    pending = deque([*snapshot.cells.values(), *tracer().heap.seen.values()])
    pending.extend(values for _, held in snapshot.boxes.values() for values in held.values())
    seen = set[int]()
    while pending and len(seen) < _MOST:
        value = pending.popleft()
        if type(value) in ATOMS or isinstance(value, _LEFT_OUT) or id(value) in seen:
            continue
        module = type(value).__module__.split(".")[0]
        if module in ("stretto", "torch", "_pytest", "pluggy") and not is_box(value):
            continue
        seen.add(id(value))
        pending.extend(_inside(value))
        if not isinstance(value, tuple | types.FunctionType) and id(value) not in snapshot.boxes:
            yield value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, tuple | frozenset):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    return list(contents(value).values()) if is_box(value) else []


class _Contents:
    """What a box holds, compared by identity."""

    def __init__(self, box: Any) -> None:
        self.held = contents(box)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Contents) and is_same(self.held, other.held)

    def __repr__(self) -> str:
        return repr(self.held)


def digest(value: Any) -> Any:
    """What tells whether an object has changed; None where nothing does."""
    match value:
        case _ if is_box(value):
            return _Contents(value)
        case np.ma.MaskedArray():
            return None
        case np.ndarray():
            return content_of(value)
        case bytearray() | array.array() | memoryview():
            return bytes(value)
        case io.StringIO() | io.BytesIO():
            return value.getvalue(), value.tell()
        case itertools.count():
            return repr(value)
        case Iterator():
            return operator.length_hint(value, -1)
        case _:
            return None
