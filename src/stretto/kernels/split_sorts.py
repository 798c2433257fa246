"""Cuts up sorts: a selection from a long dim for several units, and every sort for GPUs.

The first k of n elements are the first k of those that are the first k of their slice:

    parts[p, r] = position in slice p of its element of rank r, for r < k
    found[r]    = number among the p * k candidates of the one of rank r
    out[r]      = where that candidate lies

A machine without a template for sorting counts, which is reductions only:

    rank[i] = how many elements are before element i
    out[r]  = sum over i of (i if rank[i] is r, else 0)

That is n * n comparisons. Where those would take longer than to stop for a library call, the
library sorts. New local buffers hold what is between the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf, nan, prod

import torch

from stretto.device.costs import CostModel
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    Var,
    substitute_index,
    substitute_vars,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import SORTS, Combine, LibraryCall, Operator
from stretto.device.tree import Tree
from stretto.ir.types import DType
from stretto.kernels.groups import NewBuffers, replace_operators
from stretto.lowering.lazy import cast, placed, placed_at, variables


def split_sorts(tree: Tree[Items], units: int, costs: CostModel) -> Tree[Items]:
    """A tree in which all units take part in selecting from long dims."""
    if units == 1:
        return tree

    def change(steps: Steps, operator: Operator) -> tuple[LeafItem, ...]:
        rows, length, keep = _sizes(operator)
        parts = min(units // max(rows, 1), length // costs.selected_part)
        if parts < 2 or keep * costs.selected_share * parts > length:
            return (operator,)
        return steps.sliced(operator, ceil(length / parts))

    return _changed(tree, change)


def count_sorts(tree: Tree[Items], costs: CostModel) -> Tree[Items]:
    """A tree without sorts."""

    def change(steps: Steps, operator: Operator) -> tuple[LeafItem, ...]:
        rows, length, keep = _sizes(operator)
        size = max(costs.compared_slice, costs.compared_spare * keep)
        if 2 * size <= length:
            first, second, last = steps.sliced(operator, size)
            return (*change(steps, first), *change(steps, second), last)
        if rows * length * length > costs.most_comparisons:
            return steps.by_library(operator)
        return steps.counted(operator)

    return _changed(tree, change)


def _sizes(operator: Operator) -> tuple[int, int, int]:
    """Rows, the length of each, and how many elements of it are wanted."""
    sizes = [extent for extent in (*operator.dims, *operator.reduce) if isinstance(extent, int)]
    assert len(sizes) == len(operator.dims) + 2, "rules emit sorts of static sizes only"
    *rows, length, keep = sizes
    return prod(rows), length, keep


Change = Callable[["Steps", Operator], tuple[LeafItem, ...]]


def _changed(tree: Tree[Items], change: Change) -> Tree[Items]:
    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        return change(Steps(new), operator) if operator.combine in SORTS else (operator,)

    return replace_operators(tree, steps)


@dataclass(frozen=True, slots=True)
class Steps:
    """Makes the steps of a sort."""

    new: NewBuffers

    def buffer(self, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        made = Buffer(self.new.name("order"), dtype, shape)
        self.new.buffers.append(made)
        return made

    def sliced(self, operator: Operator, size: int) -> tuple[Operator, Operator, Operator]:
        """Selecting from slices of `size` elements, from what that finds, and where those lie."""
        length, keep = operator.reduce
        assert isinstance(length, int) and isinstance(keep, int)
        outer = variables(operator.dims)
        rank = len(outer)
        count = ceil(length / size)
        parts = self.buffer(DType.I64, (*operator.dims, count, keep))
        (part,), (kept,) = variables((count,), rank), variables((keep,), rank + 2)
        value = _value_at(operator, part * size + Var(rank + 1), count * size)
        first = replace(
            operator,
            name=f"{operator.name}.part",
            dims=(*operator.dims, count),
            reduce=(size, keep),
            value=value,
            out=Access(parts, parts.shape, (*outer, part, kept)),
        )
        candidates = (*operator.dims, count * keep)

        def place(candidate: Index) -> Index:
            inside = Load(Access(parts, candidates, (*outer, candidate)))
            return (candidate // keep) * size + Dynamic(inside)

        found = self.buffer(DType.I64, (*operator.dims, keep))
        second = replace(
            operator,
            reduce=(count * keep, keep),
            value=_value_at(operator, place(Index.of(Var(rank))), count * size),
            out=Access(found, found.shape, (*outer, *variables((keep,), rank + 1))),
        )
        which = Load(placed(found, found.shape))
        last = self._copy(operator, Position(place(Index.of(Dynamic(which)))))
        return first, second, last

    def counted(self, operator: Operator) -> tuple[Operator, Operator]:
        """Counting what is before each element, and turning the ranks into positions."""
        length, keep = operator.reduce
        rank = len(operator.dims)
        outer = variables(operator.dims)
        here, other = Index.of(Var(rank)), Index.of(Var(rank + 1))
        shape = (*operator.dims, length)
        ranks = self.buffer(DType.I32, shape)
        first = replace(
            operator,
            name=f"{operator.name}.rank",
            dims=shape,
            reduce=(length,),
            combine=Combine.SUM,
            value=cast(_is_before(operator, other, here), DType.I32),
            out=placed(ranks, shape),
        )
        place = Load(placed_at(ranks, shape, (*outer, other)))
        matches = _apply("eq", cast(place, DType.I64), Position(here))
        second = replace(
            operator,
            dims=(*operator.dims, keep),
            reduce=(length,),
            combine=Combine.SUM,
            value=Apply("where", (matches, Position(other), Const(0, DType.I64)), DType.I64),
            out=_moved_out(operator),
        )
        return first, second

    def by_library(self, operator: Operator) -> tuple[LeafItem, ...]:
        """A copy of the elements, sorted by ATen."""
        length, keep = operator.reduce
        shape = (*operator.dims, length)
        values = self.buffer(operator.value.dtype, shape)
        order = self.buffer(DType.I64, shape)
        first = replace(
            operator, dims=shape, reduce=(), combine=Combine.NONE, out=placed(values, shape)
        )
        descending = operator.combine == Combine.ARGSORT_DESCENDING
        call = LibraryCall(
            operator.name,
            "aten.argsort.stable",
            (values,),
            (("stable", True), ("dim", -1), ("descending", descending)),
            (order,),
            "so many elements are sorted faster by the library",
            operator.source,
            operator.origin,
        )
        kept = (*variables(operator.dims), *variables((keep,), len(operator.dims)))
        return first, call, self._copy(operator, Load(placed_at(order, shape, kept)))

    def _copy(self, operator: Operator, value: Expr) -> Operator:
        """Storing where the operator stores: value in terms of its dims and the rank."""
        dims = (*operator.dims, operator.reduce[1])
        return replace(
            operator,
            dims=dims,
            reduce=(),
            combine=Combine.NONE,
            value=value,
            out=_moved_out(operator),
        )


def _moved_out(operator: Operator) -> Access:
    """Where it stores, with the rank as the last of the parallel dims."""
    rank = len(operator.dims)

    def lookup(atom: Var | Reg) -> Index:
        return Index.of(Var(rank) if atom == Var(rank + 1) else atom)

    index = tuple(substitute_index(index, lookup) for index in operator.out.index)
    return replace(operator.out, index=index)


# ---- elements --------------------------------------------------------------------------------


def _element(operator: Operator, place: Index) -> Expr:
    """What is sorted, at position `place` of the sorted dim."""
    outer = tuple(Index.of(Var(n)) for n in range(len(operator.dims)))
    return substitute_vars(operator.value, (*outer, place))


def _value_at(operator: Operator, place: Index, end: int) -> Expr:
    """The same, at positions up to `end`; behind the last one what comes last in the order."""
    length = operator.reduce[0]
    assert isinstance(length, int)
    if end <= length:
        return _element(operator, place)
    inside = _apply("lt", Position(place), Const(length, DType.I64))
    value = _element(operator, place)
    return Apply("where", (inside, value, _last(operator)), value.dtype)


def _last(operator: Operator) -> Const:
    """An element that no other one comes after."""
    dtype, falling = operator.value.dtype, operator.combine == Combine.ARGSORT_DESCENDING
    if dtype is DType.BOOL:
        return Const(not falling, dtype)
    if dtype.is_float:
        return Const(-inf if falling else nan, dtype)
    limits = torch.iinfo(dtype.torch)
    return Const(limits.min if falling else limits.max, dtype)


def _is_before(operator: Operator, a: Index, b: Index) -> Expr:
    """Does the element at `a` come before the one at `b`? Of equal ones the first does."""
    first, second = _element(operator, a), _element(operator, b)
    if operator.combine == Combine.ARGSORT_DESCENDING:
        less, not_more = _less(second, first), _not(_less(first, second))
    else:
        less, not_more = _less(first, second), _not(_less(second, first))
    earlier = _apply("lt", Position(a), Position(b))
    return _apply("or", less, _apply("and", earlier, not_more))


def _less(a: Expr, b: Expr) -> Expr:
    """Is a smaller than b, NaN being the largest number?"""
    if a.dtype is DType.BOOL:
        a, b = cast(a, DType.I32), cast(b, DType.I32)
    if not a.dtype.is_float:
        return _apply("lt", a, b)
    return _apply("and", _not(_apply("isnan", a)), _not(_apply("ge", a, b)))


def _not(a: Expr) -> Expr:
    return _apply("not", a)


def _apply(function: str, *args: Expr) -> Expr:
    return Apply(function, args, DType.BOOL)
