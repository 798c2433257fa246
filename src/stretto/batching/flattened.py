"""Instances that are flattened once and run many times."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from stretto.batching.host.program import Flat, HostProgram


class Flattened:
    """Columns of instances, of which each batcher keeps its native form. Made by
    `stretto.flatten`.

    The instances are read when a batcher sees them for the first time, and must not be changed
    from then on; the content of their tensors may be.
    """

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = tuple(tuple(column) for column in columns)
        self._known: weakref.WeakKeyDictionary[HostProgram, Flat] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.columns[0])

    def of(self, host: HostProgram) -> Flat:
        """The native form for a program. Raises OtherInstance."""
        found = self._known.get(host)
        if found is None:
            found = self._known[host] = host.flatten(self.columns)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Flattened, (self.columns,)


def flatten(instances: Sequence[Any], *more: Sequence[Any]) -> Flattened:
    """Instances that a batcher reads once: `many(stretto.flatten(trees))`.

    instances, more: a sequence for each positional parameter, all of one length. For data that is
    run more than once, as in evaluation after each epoch. Raises ValueError for columns of
    different lengths.
    """
    columns = (instances, *more)
    if len({len(column) for column in columns}) > 1:
        raise ValueError("flatten: all sequences must have the same length")
    return Flattened(columns)
