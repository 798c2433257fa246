"""Prove that accesses are inside their buffers for every value of the symbols.

The range of each index is computed in sizes, not in numbers: variable 0 of an operator over n rows
is in 0 .. n-1, and i0 + m is in m .. n+m-1. Accesses that are not proved are rejected. Positions
that depend on registers or on memory are left to checks at run time, as in `bounds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from stretto.device.expr import (
    Access,
    Buffer,
    Expr,
    Extent,
    Index,
    Reg,
    Var,
    known_size,
    loads,
)
from stretto.device.operator import Kernel, Stage
from stretto.device.program import Schedule
from stretto.device.ranges import Range, range_of
from stretto.device.regions import NOTHING
from stretto.device.tree import Call, Leaf, TreeFunction, walk
from stretto.device.verifier.bounds import Guards, StageBounds, comparisons, limits
from stretto.device.verifier.symbols import is_decided, seen_size
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, maximum, minimum, substitute_symbols
from stretto.ir.sizes import Maximum, Quantity, Size, Symbol


class _Unknown(Exception):
    """A position depends on values that are known only at run time."""


def _ends(found: Range) -> tuple[Size, Size]:
    if found.low is None or found.last is None:
        raise _Unknown
    return found.low, found.last


def check_sized_bounds(
    function: TreeFunction[Schedule], touched: ItemRegions, tally: Counter[bool]
) -> None:
    """Raise VerifyError for an access that depends on symbols and is not proved to be in range.
    `tally` counts the proved ones under True and those left to the run under False."""
    for node in walk(function.body):
        match node:
            case Leaf(schedule):
                for name in sorted(filter(touched.is_sized, schedule.kernels)):
                    for stage in touched.kernels[name].stages:
                        _check_stage(touched.kernels[name], stage, tally)
                for item in schedule.statements:
                    for expr in item.exprs:
                        _check_statement(expr, tally)
            case Call():
                for param, access in node.tensors:
                    if param.is_sized or access.buffer.is_sized:
                        _check_call(node, param, access)
            case _:
                pass


def _check_statement(expr: Expr, tally: Counter[bool]) -> None:
    if any(load.access.buffer.is_sized for load in loads(expr)):
        _SizedBounds("a register statement", [], tally).visit(expr, ())


def _check_stage(kernel: Kernel, stage: Stage, tally: Counter[bool]) -> None:
    operator = stage.operator
    extents: list[tuple[int, Extent]] = []
    for span in stage.box:
        extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
        extents.append((span.offset, extent))
    parallel = len(extents)
    extents += [(0, extent) for extent in operator.reduce]
    what = f"kernel {kernel.name}"
    _SizedBounds(what, extents, tally).visit(operator.value, ())
    _SizedBounds(what, extents[:parallel], tally).access(operator.out, ())


def _check_call(call: Call[Schedule], param: Buffer, access: Access) -> None:
    """Raise VerifyError if a param may reach beyond the buffer that it is bound to."""
    dims = access.buffer.shape
    if any(isinstance(dim, Reg) for dim in dims):
        return
    end, size = access.offset + seen_size(call, param), known_size(dims)
    if not is_decided(end):
        return
    if not at_most(0, access.offset) or not at_most(end, size):
        raise VerifyError(
            f"a call of {call.function} may bind {param.name} to memory beyond the end of "
            f"{access.buffer.name}: {end} elements of {size}"
        )


def _nonempty_extent(size: Size) -> Size:
    """Simplify the extent of a dim that has elements: drop the parts of a maximum that are at most
    0."""
    atom, factor = size.terms[0] if len(size.terms) == 1 and not size.const else (None, 0)
    if not isinstance(atom, Maximum) or factor != 1:
        return size
    parts = [part for part in atom.parts if not at_most(part, 0)]
    return parts[0] if len(parts) == 1 else size


def _lower_bounds(size: Size) -> Iterator[tuple[Symbol, int]]:
    """Yield lower bounds of symbols that follow if a dim of this size has elements."""
    if len(size.terms) != 1:
        return
    ((atom, factor),) = size.terms
    if isinstance(atom, Maximum) and factor == -1 and not size.const:  # a minimum
        for part in atom.parts:
            yield from _lower_bounds(-part)
    elif isinstance(atom, Symbol) and factor > 0:
        yield atom, -((size.const - 1) // factor)


def _symbols_of(size: int | Size | None) -> tuple[Symbol, ...]:
    return size.symbols if isinstance(size, Size) else ()


def _not_negative(sign: str, difference: Index) -> tuple[Index, ...]:
    """Return the sizes that are at least 0 if `difference` compares so with 0."""
    match sign:
        case "ge" | "gt":
            return (difference - (sign == "gt"),)
        case "le" | "lt":
            return (-difference - (sign == "lt"),)
        case "eq":
            return difference, -difference
        case _:
            return ()


class _SizedBounds(StageBounds):
    """Proofs about the accesses of one stage. They assume that all its dims have elements, since
    otherwise no access happens."""

    def __init__(self, what: str, extents: list[tuple[int, Extent]], tally: Counter[bool]) -> None:
        super().__init__(what, (None,) * len(extents), NOTHING)
        self._tally = tally
        self._variables: dict[int, Range] = {}
        positive: dict[Symbol, int | Size] = {}
        for number, (offset, extent) in enumerate(extents):
            if isinstance(extent, Reg):
                continue
            size = _nonempty_extent(Size.of(extent))
            self._variables[number] = Range(Size(const=offset), size + (offset - 1))
            for symbol, low in _lower_bounds(size):
                low = max(low, symbol.low, *(s.low for s in _symbols_of(positive.get(symbol))))
                if low > symbol.low:
                    positive[symbol] = Size.of(replace(symbol, low=low))
        self._positive = positive

    def access(self, access: Access, guards: Guards) -> None:
        proved = True
        for index, extent in zip(access.index, access.shape, strict=True):
            if index.terms:
                self.inner(index, guards)
            try:
                variables = self._narrowed_sizes(guards)
                low, high = self._range(index, variables)
            except _Unknown:
                proved = False
                continue
            if isinstance(extent, Reg):
                proved = False
                continue
            sides = map(_ends, variables.values())
            if any(self._at_most(end + 1, first) for first, end in sides):
                continue  # the guards never hold
            last = Size.of(extent) - 1
            above = self._at_most(0, low) or self._follows(index, guards)
            below = self._at_most(high, last) or self._follows(last - index, guards)
            if not (above and below):
                raise VerifyError(
                    f"{self.what} is not proved to access {access.buffer.name} in range: "
                    f"{low} .. {high} in a dim of {extent}"
                )
        self._tally[proved] += 1

    def _follows(self, index: Index, guards: Guards) -> bool:
        """Return True if a guard implies that the index is not negative, via a position that is
        not larger."""
        for condition, holds in guards:
            for sign, difference in comparisons(condition, holds):
                for positive in _not_negative(sign, difference):
                    try:
                        low, _ = self._range(index - positive, self._variables)
                    except _Unknown:
                        continue
                    if self._at_most(0, low):
                        return True
        return False

    def _at_most(self, smaller: int | Size, larger: int | Size) -> bool:
        difference = Size.of(larger) - smaller
        return at_most(0, substitute_symbols(difference, self._positive))

    def _range(self, index: Index, variables: Mapping[int, Range]) -> tuple[Size, Size]:
        def lookup(quantity: Quantity) -> Range:
            match quantity:
                case Var(number) if number in variables:
                    return variables[number]
                case Symbol():
                    return Range.of(Size.of(quantity))
                case _:
                    raise _Unknown

        return _ends(range_of(index, lookup))

    def _narrowed_sizes(self, guards: Guards) -> Mapping[int, Range]:
        """Return the ranges of the variables where the guards hold."""
        found = dict(self._variables)
        for condition, holds in guards:
            for sign, difference in comparisons(condition, holds):
                for number in difference.vars() & found.keys():
                    low, high = limits(sign, difference, number)
                    first, last = _ends(found[number])
                    found[number] = Range(
                        first if low is None else maximum(first, low),
                        last if high is None else minimum(last, high),
                    )
        return found
