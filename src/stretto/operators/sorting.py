"""Sorting along a dim, and the first elements in sorted order.

One operator computes the positions; the values are loads at them. A selection from a long dim is
split for several units, and every sort for GPUs. The first k of n elements are the first k of
those that are the first k of their slice:

    parts[p, r] = position in slice p of its element of rank r, for r < k
    found[r]    = number among the p * k candidates of the one of rank r
    out[r]      = position of that candidate

A machine without a template for sorting counts, which needs only reductions:

    rank[i] = number of elements before element i in the order
    out[r]  = sum over i of (i if rank[i] is r, else 0)

That is n * n comparisons. If those would take longer than stopping for a library call, the
library sorts. New local buffers hold the intermediate results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, nan, prod

import torch

from stretto.device.costs import CostModel
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
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
from stretto.lowering.emit import compute_dtype, computed, neutral
from stretto.lowering.lazy import Lazy, cast, constant, placed, placed_at, stored, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_dims
from stretto.ops.custom_operators import define
from stretto.ops.table import Fails, ShiftDims, describe

# ---- properties ------------------------------------------------------------------------------

describe("sort.stable", fails=Fails.NEVER)


describe("topk", "stretto", fails=Fails.NEVER, batching=ShiftDims())


describe("topk sort", batching=ShiftDims())


@rule("sort.stable")
def _sort(call: TensorOpCall) -> tuple[Lazy, ...]:
    if not (call.has("stable") and call.flag("stable")):
        raise Decline("which of equal elements comes first is the library's choice")
    return _ordered(call, call.flag("descending"))


@rule("stretto.topk.default")
def _topk(call: TensorOpCall) -> tuple[Lazy, ...]:
    return _ordered(call, call.flag("largest"))


def _ordered(call: TensorOpCall, descending: bool) -> tuple[Lazy, ...]:
    """Return the first elements of the sorted dim, as many as the result has there, and their
    positions."""
    static_dims((*call.tensor("self").shape, *call.shape))
    lazy = call.cheap("self")
    if lazy.rank == 0:
        return lazy, Lazy(DType.I64, (), Const(0, DType.I64))
    if 0 in call.shape:
        return constant(0, lazy.dtype, call.shape), constant(0, DType.I64, call.shape)
    dim = call.axis(lazy.rank)
    places = _places(call, lazy, dim, call.shape[dim], descending)
    indices = list(variables(call.shape))
    indices[dim] = Index.of(ComputedPosition(places.expr)) if lazy.shape[dim] != 1 else Index()
    return Lazy(lazy.dtype, call.shape, lazy.at(*indices)), places


def _places(call: TensorOpCall, lazy: Lazy, dim: int, keep: Extent, descending: bool) -> Lazy:
    """Return the positions that the elements of the sorted dim come from. That dim appears twice
    at the end of the operator's dims: with the size sorted and with the size stored."""
    if lazy.shape[dim] == 1:
        return Lazy(DType.I64, call.shape, Const(0, DType.I64))
    source = computed(lazy, compute_dtype(lazy.dtype))
    outer = (*lazy.shape[:dim], *lazy.shape[dim + 1 :])
    read, written = list(variables(outer)), list(variables(outer))
    read.insert(dim, Index.of(Var(len(outer))))
    written.insert(dim, variables((keep,), len(outer) + 1)[0])
    buffer = call.low.output(call.op.results[1])
    operator = Operator(
        "sort",
        outer,
        (lazy.shape[dim], keep),
        Combine.ARGSORT_DESCENDING if descending else Combine.ARGSORT,
        source.at(*read),
        placed_at(buffer, call.shape, tuple(written)),
        source=call.low.source,
    )
    call.low.emit(operator)
    return stored(buffer, call.shape)


# ---- stretto.topk(x, k, dim, largest) --------------------------------------------------------
#
# `aten.topk` with a defined order of equal elements: the one that comes first in `x` is first.


def _compute_topk(
    self: torch.Tensor, k: int, dim: int, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if any(isinstance(size, torch.SymInt) for size in (*self.shape, k)):
        shape = [k if place == dim % self.dim() else n for place, n in enumerate(self.shape)]
        return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)
    values, indices = self.sort(stable=True, dim=dim, descending=largest)
    if self.dim() == 0:
        return values, indices
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


define(
    "topk(Tensor self, int k, int dim, bool largest) -> (Tensor values, Tensor indices)",
    _compute_topk,
)


# ---- Splitting and counting --------------------------------------------------------------------


def split_sorts(tree: Tree[Items], units: int, costs: CostModel) -> Tree[Items]:
    """Split selections from long dims so that all units take part."""
    if units == 1:
        return tree

    def change(steps: SortSteps, operator: Operator) -> tuple[LeafItem, ...]:
        rows, length, keep = _sizes(operator)
        parts = min(units // max(rows, 1), length // costs.selected_part)
        if parts < 2 or keep * costs.selected_share * parts > length:
            return (operator,)
        return steps.sliced(operator, ceil(length / parts))

    return _changed(tree, change)


def count_sorts(tree: Tree[Items], costs: CostModel) -> Tree[Items]:
    """Replace all sorts by counting or by library calls."""

    def change(steps: SortSteps, operator: Operator) -> tuple[LeafItem, ...]:
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
    """Return the number of rows, their length, and the number of elements wanted of each."""
    sizes = [extent for extent in (*operator.dims, *operator.reduce) if isinstance(extent, int)]
    assert len(sizes) == len(operator.dims) + 2, "rules emit sorts of static sizes only"
    *rows, length, keep = sizes
    return prod(rows), length, keep


Change = Callable[["SortSteps", Operator], tuple[LeafItem, ...]]


def _changed(tree: Tree[Items], change: Change) -> Tree[Items]:
    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        return change(SortSteps(new), operator) if operator.combine in SORTS else (operator,)

    return replace_operators(tree, steps)


@dataclass(frozen=True, slots=True)
class SortSteps:
    """Creates the steps of a sort, and their buffers."""

    new: NewBuffers

    def buffer(self, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        made = Buffer(self.new.name("order"), dtype, shape)
        self.new.buffers.append(made)
        return made

    def sliced(self, operator: Operator, size: int) -> tuple[Operator, Operator, Operator]:
        """Return three steps: select from slices of `size` elements, select from the results, and
        store the positions of those."""
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
            return (candidate // keep) * size + ComputedPosition(inside)

        found = self.buffer(DType.I64, (*operator.dims, keep))
        second = replace(
            operator,
            reduce=(count * keep, keep),
            value=_value_at(operator, place(Index.of(Var(rank))), count * size),
            out=Access(found, found.shape, (*outer, *variables((keep,), rank + 1))),
        )
        which = Load(placed(found, found.shape))
        last = self._copy(operator, Position(place(Index.of(ComputedPosition(which)))))
        return first, second, last

    def counted(self, operator: Operator) -> tuple[Operator, Operator]:
        """Return two steps: count the elements before each element, and turn these ranks into
        positions."""
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
        """Return a copy of the elements, a sort of it by ATen, and a copy of the result."""
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
            "the library sorts this many elements faster",
            operator.source,
            operator.origin,
        )
        kept = (*variables(operator.dims), *variables((keep,), len(operator.dims)))
        return first, call, self._copy(operator, Load(placed_at(order, shape, kept)))

    def _copy(self, operator: Operator, value: Expr) -> Operator:
        """Return an operator that stores `value`, in terms of the dims and the rank, where the
        sort does."""
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
    """Return the sort's output access, with the rank as the last of the parallel dims."""
    rank = len(operator.dims)

    def lookup(atom: Var | Reg) -> Index:
        return Index.of(Var(rank) if atom == Var(rank + 1) else atom)

    index = tuple(substitute_index(index, lookup) for index in operator.out.index)
    return replace(operator.out, index=index)


# ---- elements --------------------------------------------------------------------------------


def _element(operator: Operator, place: Index) -> Expr:
    """Return the sorted value at position `place` of the sorted dim."""
    outer = tuple(Index.of(Var(n)) for n in range(len(operator.dims)))
    return substitute_vars(operator.value, (*outer, place))


def _value_at(operator: Operator, place: Index, end: int) -> Expr:
    """Return the sorted value at positions below `end`; past the sorted dim, an element that sorts
    last."""
    length = operator.reduce[0]
    assert isinstance(length, int)
    if end <= length:
        return _element(operator, place)
    inside = _apply("lt", Position(place), Const(length, DType.I64))
    value = _element(operator, place)
    return Apply("where", (inside, value, _last(operator)), value.dtype)


def _last(operator: Operator) -> Const:
    """Return an element that sorts after all others."""
    dtype, falling = operator.value.dtype, operator.combine == Combine.ARGSORT_DESCENDING
    if dtype.is_float and not falling:
        return Const(nan, dtype)
    return neutral(Combine.MAX if falling else Combine.MIN, dtype)


def _is_before(operator: Operator, a: Index, b: Index) -> Expr:
    """Return the condition that the element at `a` sorts before the one at `b`. The sort is
    stable."""
    first, second = _element(operator, a), _element(operator, b)
    if operator.combine == Combine.ARGSORT_DESCENDING:
        less, not_more = _less(second, first), _not(_less(first, second))
    else:
        less, not_more = _less(first, second), _not(_less(second, first))
    earlier = _apply("lt", Position(a), Position(b))
    return _apply("or", less, _apply("and", earlier, not_more))


def _less(a: Expr, b: Expr) -> Expr:
    """Return the condition a < b, with NaN as the largest number."""
    if a.dtype is DType.BOOL:
        a, b = cast(a, DType.I32), cast(b, DType.I32)
    if not a.dtype.is_float:
        return _apply("lt", a, b)
    return _apply("and", _not(_apply("isnan", a)), _not(_apply("ge", a, b)))


def _not(a: Expr) -> Expr:
    return _apply("not", a)


def _apply(function: str, *args: Expr) -> Expr:
    return Apply(function, args, DType.BOOL)
