"""Tensors that a loop makes larger or smaller: lists of their slices along one dim."""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import options_of
from stretto.frontends.python.values.leaves import (
    Carried,
    device_of,
    kind_of,
    of_rows,
    rows_sizes,
)
from stretto.frontends.python.values.scalars import LeafKind, unify, unify_rows
from stretto.ir.core import Value
from stretto.ir.size_bounds import bounds
from stretto.ir.sizes import Size
from stretto.ir.types import Dim


def rows_of(known: LeafKind | None, *values: Any, promote: bool) -> LeafKind | None:
    """Return the kind for tensors that differ in the size of one dim only; None if there is none.

    Each value may be one of several. known: a kind that the result must hold as well. promote:
    sizes that are numbers may differ, too.
    """
    kinds = [] if known is None else [known]
    for option in (option for value in values for option in options_of(value)):
        kind = kind_of(option) if isinstance(option, torch.Tensor) else None
        if kind is None:
            return None
        kinds.append(kind)
    found: LeafKind | None = kinds[0]
    for kind in kinds[1:]:
        if found != kind:
            joint = None if found is None else unify(found, kind)
            found = joint or unify_rows(found, kind, promote=promote)
    return None if found is None or found.rows is None else found


def known_sizes(value: Any, dim: int) -> list[int]:
    return [size for size in rows_sizes(value, dim) if isinstance(size, int)]


def least_size(value: Any, dim: int) -> int:
    """Return the least size along a dim of a tensor, or of all options of a value."""
    sizes, known = rows_sizes(value, dim), tracer().sizes
    lows = [0 if size is None else known.least(size) or 0 for size in sizes]
    return max(0, min(lows, default=0))


def size_before(leaf: Carried, dim: int) -> Size | None:
    """Return the size of a tensor before the loop; None if it is one of several, or undefined."""
    (size, *others) = rows_sizes(leaf.init, dim)
    return None if others or size is None else Size.of(size)


def change_of_size(leaf: Carried, dim: int) -> tuple[Any, ...]:
    """Return the change of a tensor's size in an iteration, as a key; if the size before the loop
    is unknown, the sizes that it may have after the iteration."""
    before, ends = size_before(leaf, dim), rows_sizes(leaf.end, dim)
    if before is None:
        return ends
    match ends:
        case (int() | Size() as after,):
            return (Size.of(after) - (before if leaf.size is None else leaf.size),)
        case _:
            return (before, ends)


class GrowingTensors:
    """The sizes of the tensors that a loop carries as lists of slices. Tensors of one group keep
    the same difference in size in every iteration."""

    def __init__(self, leaves: list[Carried]) -> None:
        self.leaves = [leaf for leaf in leaves if leaf.kind.rows is not None]
        self.known: dict[Any, Any] = {}

    def group(self, leaf: Carried, place: Any, *, exact: bool) -> None:
        """Put a leaf into a group. exact: it is carried by a loop, not by a recursion, which may
        enter the next call with any size."""
        dim = leaf.kind.rows
        if dim is None or leaf.group is not None:
            return
        leaf.group = "grown"
        if size_before(leaf, dim) is None:
            sizes = rows_sizes(leaf.init, dim)
            leaf.group = (place if leaf.init is UNDEFINED else sizes,)
        if exact:
            leaf.least = least_size(leaf.init, dim)

    def place(self, leaf: Carried, value: Value, *, in_body: bool, trips: Dim | None) -> Any:
        """Return a tensor whose size changes. trips: the trip count of the loop that made it."""
        dim, sizes = leaf.kind.rows, self.known
        assert dim is not None
        before = size_before(leaf, dim)
        key = (leaf.group, before)
        size = None if trips is None or in_body else _size_after(leaf, dim, trips)
        if size is None and before is not None and leaf.group in sizes:
            first, start = sizes[leaf.group]
            size = (first + before - start).dim
        if size is not None:
            sizes.setdefault(key, size)
        device = device_of(*options_of(leaf.init), *options_of(leaf.end))
        made = of_rows(value, dim, device, sizes, key, self._least(leaf, before))
        if before is not None:
            sizes.setdefault(leaf.group, (Size.of(sizes[key]), before))
        leaf.size = sizes[key] if in_body else leaf.size
        return made

    def _least(self, leaf: Carried, before: Size | None) -> int:
        """Return the least size of a tensor, as far as it follows from all tensors of its group."""
        least = leaf.least
        if before is None:
            return least
        for other in self.leaves:
            dim = other.kind.rows
            start = (
                size_before(other, dim) if other.group == leaf.group and dim is not None else None
            )
            more = None if start is None else bounds(before - start)[0]
            if more is not None:
                least = max(least, other.least + more)
        return least

    def compare(self) -> bool:
        """Split groups of tensors whose sizes change by different amounts; find tensors that may
        become smaller than before the loop. True if anything is new."""
        is_new = False
        dims = [(leaf, leaf.kind.rows) for leaf in self.leaves if leaf.kind.rows is not None]
        for leaf, dim in dims:
            if least_size(leaf.end, dim) < leaf.least:
                leaf.least, is_new = 0, True
        found: dict[Any, list[Any]] = {}
        for leaf, dim in dims:
            changes = found.setdefault(leaf.group, [])
            if change_of_size(leaf, dim) not in changes:
                changes.append(change_of_size(leaf, dim))
        for leaf, dim in dims:
            changes = found[leaf.group]
            if len(changes) > 1:
                leaf.group = (leaf.group, changes.index(change_of_size(leaf, dim)))
                is_new = True
        return is_new


def _size_after(leaf: Carried, dim: int, trips: Dim) -> Dim | None:
    """Return the size of a tensor after the loop if each iteration adds a known amount; else
    None."""
    before, after = rows_sizes(leaf.init, dim), rows_sizes(leaf.end, dim)
    if len(before) != 1 or len(after) != 1:
        return None
    if before[0] is None or after[0] is None or leaf.size is None:
        return None
    total = Size.of(before[0]) + (Size.of(after[0]) - leaf.size) * Size.of(trips)
    decided = tracer().symbol_dims
    return None if any(symbol in decided for symbol in total.symbols) else total.dim
