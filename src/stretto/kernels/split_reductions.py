"""Splitting of long reductions with few results, so that all units take part.

    out[n] = sum over k < 16384 of v[n, k]

becomes, if the estimates say that it is clearly faster,

    parts[p, n] = sum over k < 128 of v[n, 128 p + k]       for p < 128
    out[n] = sum over p < 128 of parts[p, n]

Needs static sizes, and a combination that depends on neither positions nor order. The parts are
in new local buffers of the function, in the dtype that the reduction accumulates in. A slice
that extends past the end of the reduction has neutral elements there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf

from stretto.device.costs import CostModel
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Var,
    substitute_vars,
)
from stretto.device.forms import Items
from stretto.device.operator import Combine, Operator
from stretto.device.tree import Tree
from stretto.ir.types import DType
from stretto.kernels.contraction import factors
from stretto.kernels.groups import NewBuffers, divisible, replace_operators
from stretto.lowering.emit import neutral

SPLIT = (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN, Combine.ANY, Combine.ALL)
HALVES = (DType.F16, DType.BF16)

Seconds = Callable[[Operator], float]


@dataclass(frozen=True, slots=True)
class Estimates:
    """seconds: of an operator as a separate kernel on all units. least: a lower limit for every
    split."""

    seconds: Seconds
    least: Seconds
    costs: CostModel


Slices = tuple[tuple[int, int], ...]
"""(number of parts, length of a part) of each reduced dim."""


def split_reductions(tree: Tree[Items], units: int, estimates: Estimates) -> Tree[Items]:
    """Replace each reduction that benefits by two operators."""
    if units == 1:
        return tree

    return replace_operators(tree, _Splitter(units, estimates).steps)


@dataclass(frozen=True, slots=True)
class _Splitter:
    units: int
    estimates: Estimates

    def steps(self, operator: Operator, new: NewBuffers) -> tuple[Operator, ...]:
        pair = self.pair(operator, new.name("part")) if may_split(operator) else None
        if pair is None:
            return (operator,)
        new.buffers.append(pair[0].out.buffer)
        return pair

    def pair(self, operator: Operator, name: str) -> tuple[Operator, Operator] | None:
        """Return the two operators that take the least time together; None if one is about as
        fast."""
        seconds_of, wait = self.estimates.seconds, self.estimates.costs.wait_seconds
        limit = seconds_of(operator) / self.estimates.costs.split_gain
        if self.estimates.least(operator) + 3 * wait >= limit:
            return None
        found: tuple[Operator, Operator] | None = None
        best, last, worse = limit, inf, 0
        for slices in self.candidates(operator):
            pair = split(operator, slices, name)
            seconds = sum(seconds_of(step) + wait for step in pair) - wait
            if seconds < best:
                found, best = pair, seconds
            worse = worse + 1 if seconds >= last else 0
            if worse == 2:
                break
            last = seconds
        return found

    def candidates(self, operator: Operator) -> list[Slices]:
        """Return distinct ways to slice a reduction, from few parts to many."""
        extents = tuple(extent for extent in operator.reduce if isinstance(extent, int))
        targets = {1 << n for n in range(1, self.units.bit_length())}
        targets |= {self.units, max(self.units // 2, 2)}
        found = dict.fromkeys(slices_of(extents, target) for target in sorted(targets))
        return [slices for slices in found if any(parts > 1 for parts, _ in slices)]


def may_split(operator: Operator) -> bool:
    """True for a reduction of static sizes whose elements may be combined in any grouping."""
    extents = (*operator.dims, *operator.reduce)
    if operator.combine not in SPLIT or operator.accumulate or not divisible(operator):
        return False
    return all(isinstance(extent, int) and extent > 0 for extent in extents)


def slices_of(extents: tuple[int, ...], target: int) -> Slices:
    """Cut the outermost dims, one after the other, into about `target` parts."""
    found: list[tuple[int, int]] = []
    for extent in extents:
        parts, size = _cut(extent, target)
        found.append((parts, size))
        target = ceil(target / parts) if size == 1 else 1
    return tuple(found)


def _cut(extent: int, wanted: int) -> tuple[int, int]:
    """Cut a dim into about `wanted` parts, of equal length if it has a suitable divisor."""
    if wanted <= 1 or extent <= wanted:
        return (1, extent) if wanted <= 1 else (extent, 1)
    for parts in range(wanted, ceil(0.8 * wanted) - 1, -1):
        if extent % parts == 0:
            return parts, extent // parts
    size = ceil(extent / wanted)
    if size >= 64:
        size = ceil(size / 16) * 16
    return ceil(extent / size), size


# ---- the two operators -----------------------------------------------------------------------


def split(operator: Operator, slices: Slices, name: str) -> tuple[Operator, Operator]:
    """Return the operator that computes the parts into a buffer `name`, and the one that combines
    them."""
    dims = tuple(extent for extent in operator.dims if isinstance(extent, int))
    parts = tuple(count for count, _ in slices if count > 1)
    depths = tuple(size for count, size in slices if count == 1 or size > 1)
    value = _sliced(operator, slices, len(parts))
    if operator.combine in (Combine.SUM, Combine.PROD) and value.dtype in HALVES:
        value = Apply("cast", (value,), DType.F32)
    buffer = Buffer(name, value.dtype, (*parts, *dims))
    everywhere = tuple(Index.of(Var(n)) for n in range(len(parts) + len(dims)))
    out = Access(buffer, buffer.shape, everywhere)
    first = replace(
        operator,
        name=f"{operator.name}.part",
        dims=(*parts, *dims),
        reduce=depths,
        value=value,
        out=out,
    )
    places = (*everywhere[len(dims) :], *everywhere[: len(dims)])
    load = Load(Access(buffer, buffer.shape, places))
    return first, replace(operator, reduce=parts, value=load)


def _sliced(operator: Operator, slices: Slices, parts: int) -> Expr:
    """Return the value over (parts, dims, places in a slice), neutral past the end of the
    reduction."""
    part, depth = 0, parts + len(operator.dims)
    values = [Index.of(Var(parts + n)) for n in range(len(operator.dims))]
    condition: Expr | None = None
    for (count, size), extent in zip(slices, operator.reduce, strict=True):
        index = Index()
        if count > 1:
            index, part = Index.of(Var(part)) * size, part + 1
        if count == 1 or size > 1:
            index, depth = index + Var(depth), depth + 1
        values.append(index)
        assert isinstance(extent, int)
        if count * size > extent:
            bound = Const(extent, DType.I64)
            condition = Apply("lt", (Position(index), bound), DType.BOOL)
    sliced = replace(operator, value=substitute_vars(operator.value, tuple(values)))
    return sliced.value if condition is None else _guarded(sliced, condition)


def _guarded(operator: Operator, condition: Expr) -> Expr:
    """Return the value where `condition` holds, else neutral. Both factors of a product are
    guarded, so that it stays a product."""
    value = operator.value
    pair = factors(operator)
    if pair is not None and isinstance(value, Apply):
        kept = (_where(condition, factor, neutral(Combine.SUM, factor.dtype)) for factor in pair)
        return replace(value, args=tuple(kept))
    return _where(condition, value, neutral(operator.combine, value.dtype))


def _where(condition: Expr, value: Expr, other: Const) -> Apply:
    return Apply("where", (condition, value, other), value.dtype)
