"""Check that accesses are inside their buffers, as far as that is decidable without running.

For each access the interval of each index is computed over all tasks of the kernel. An access in an
arm of `where` happens only if the condition holds: comparisons of positions with numbers narrow the
intervals of the variables. Accesses that still seem out of range are evaluated point by point.
Positions that are read from memory or from registers without a known range are left to checks at
run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import torch

from stretto.device import tree
from stretto.device.evaluate import Scope, TensorMemory, evaluate_tensor, variable
from stretto.device.expr import (
    Access,
    Apply,
    ComputedPosition,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    Var,
    constant,
    expr_atoms,
    expr_regs,
    parts,
)
from stretto.device.operator import Kernel, Stage
from stretto.device.program import Schedule
from stretto.device.regions import NOTHING, Interval, Ranges, index_range, span_range
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError
from stretto.ir.sizes import Quantity, Symbol

Known = Mapping[Reg, Interval]
"""Registers whose values are in an interval: first, last + 1."""

Guards = tuple[tuple[Expr, bool], ...]
"""Conditions, each with the truth value that is assumed."""

MOST_POINTS = 1 << 20
"""Largest number of points of a box that are checked individually; larger boxes are left to the
run."""


def check_bounds(function: tree.TreeFunction[Schedule], touched: ItemRegions) -> None:
    """Raise VerifyError for an access of the function that is certainly out of range."""
    known = loop_ranges(function)
    # The leaves that run in every iteration of the loops around them.
    unconditional = tree.flattened(function.body, lambda node: isinstance(node, tree.For))
    always = {id(node.body) for node in unconditional if isinstance(node, tree.Leaf)}
    for node in tree.walk(function.body):
        match node:
            case tree.Leaf(schedule):
                ranges = known if id(schedule) in always else NOTHING
                for name in schedule.kernels:
                    if not touched.is_sized(name):
                        _check_once(touched.kernels[name], ranges, touched)
                for item in schedule.statements:
                    for expr in item.exprs:
                        StageBounds("a register statement", (), NOTHING).visit(expr, ())
            case tree.Call():
                _check_call(node)
            case _:
                pass


def _check_once(kernel: Kernel, known: Known, touched: ItemRegions) -> None:
    """Check a kernel once for each set of ranges of the registers that it reads."""
    names = {reg.name for reg in touched.registers(kernel.name)}
    mine = {reg: interval for reg, interval in known.items() if reg.name in names}
    key = kernel.name, tuple(mine.items())
    if key not in touched.inside:
        for stage in kernel.stages:
            _check_stage(kernel, stage, mine)
        touched.inside.add(key)


def _check_call(call: tree.Call[Schedule]) -> None:
    for param, access in call.tensors:
        if param.is_sized or access.buffer.is_sized:
            continue  # see `size_bounds`
        offset = index_range(access.offset, ())
        if offset is not None and not (
            offset[0] >= 0 and offset[1] - 1 + param.elements <= access.buffer.elements
        ):
            raise VerifyError(
                f"a call of {call.function} binds {param.name} to memory beyond the end of "
                f"{access.buffer.name}"
            )


def loop_ranges(function: tree.TreeFunction[Schedule]) -> dict[Reg, Interval]:
    """Return the ranges of loop indices with constant bounds, if nothing else assigns the register.

    Indices in the condition of a check are excluded: they may leave the range, since the run stops
    there.
    """
    known: dict[Reg, Interval] = {}
    unknown: set[Reg] = set(function.params)
    for node in tree.walk(function.body):
        match node:
            case tree.For(index=index, step=step):
                trips = tree.trip_count(node)
                if trips is None or index in known:
                    unknown.add(index)
                else:
                    first = constant(node.start)
                    assert first is not None
                    last = first + (max(trips, 1) - 1) * step
                    known[index] = min(first, last), max(first, last) + 1
            case tree.Leaf(schedule):
                for item in schedule.statements:
                    if isinstance(item, tree.Let):
                        unknown.add(item.reg)
                    else:
                        unknown |= expr_regs(item.condition)
            case _:
                unknown.update(tree.assigns(node))
    return {reg: interval for reg, interval in known.items() if reg not in unknown}


def _check_stage(kernel: Kernel, stage: Stage, known: Known) -> None:
    operator = stage.operator
    tile = tuple((0, d.extent) if isinstance(d.extent, int) else None for d in kernel.grid)
    parts = (span_range(span, tile) for span in stage.box)
    box = tuple(part if isinstance(part, tuple) else None for part in parts)
    depths = tuple((0, extent) if isinstance(extent, int) else None for extent in operator.reduce)
    if any(interval is not None and interval[0] >= interval[1] for interval in box):
        return
    ranges = (*box, *depths)
    if not any(interval is not None and interval[0] >= interval[1] for interval in depths):
        StageBounds(f"kernel {kernel.name}", ranges, known).visit(operator.value, ())
        StageBounds(f"kernel {kernel.name}", ranges, known).access(operator.out, ())


class StageBounds:
    """Checks the accesses of one stage, whose variables are in `ranges`."""

    def __init__(self, what: str, ranges: Ranges, known: Known) -> None:
        self.what = what
        self._ranges = ranges
        self.known = known

    def visit(self, expr: Expr, guards: Guards) -> None:
        match expr:
            case Const():
                pass
            case Position(index):
                self.inner(index, guards)
            case Load(access):
                self.access(access, guards)
            case Apply("where", (condition, then, orelse), _):
                self.visit(condition, guards)
                self.visit(then, (*guards, (condition, True)))
                self.visit(orelse, (*guards, (condition, False)))
            case Apply(_, args, _):
                for arg in args:
                    self.visit(arg, guards)

    def inner(self, index: Index, guards: Guards) -> None:
        for atom in index.atoms():
            if isinstance(atom, ComputedPosition):
                self.visit(atom.value, guards)

    def access(self, access: Access, guards: Guards) -> None:
        for index, extent in zip(access.index, access.shape, strict=True):
            if index.terms:
                self.inner(index, guards)
            end = extent if isinstance(extent, int) else None
            if not self._inside(index, end, guards):
                raise VerifyError(
                    f"{self.what} accesses {access.buffer.name} out of range: "
                    f"{_values(index_range(index, self._ranges, self.known))} in a dim of {extent}"
                )

    def _inside(self, index: Index, end: int | None, guards: Guards) -> bool:
        """Return False if the index certainly leaves 0 .. end at a point where the guards hold."""
        interval = index_range(index, self._ranges, self.known)
        if _within(interval, end):
            return True
        if guards:
            ranges = self._narrowed(guards)
            if ranges is None or _within(index_range(index, ranges, self.known), end):
                return True
        elif _is_tight(index, self._ranges, self.known):
            return False
        return self._inside_everywhere(index, end, guards)

    # ---- guards --------------------------------------------------------------------------------
    def _narrowed(self, guards: Guards) -> Ranges | None:
        """Return the ranges of the variables where the guards hold; None if they never do."""
        ranges = list(self._ranges)
        for condition, holds in guards:
            for sign, difference in comparisons(condition, holds):
                for number in difference.vars():
                    ranges[number] = interval = _cut(ranges[number], sign, difference, number)
                    if interval is not None and interval[0] >= interval[1]:
                        return None
        return tuple(ranges)

    # ---- point by point ------------------------------------------------------------------------
    def _inside_everywhere(self, index: Index, end: int | None, guards: Guards) -> bool:
        values = (Position(index), *(condition for condition, _ in guards))
        if any(_depends_on_run_time(value) for value in values):
            return True
        atoms = [atom for value in values for atom in expr_atoms(value)]
        used = sorted({atom.number for atom in atoms if isinstance(atom, Var)})
        scope = _points(used, self._ranges)
        if scope is None:
            return True
        position = evaluate_tensor(values[0], scope)
        outside = position < 0
        if end is not None:
            outside = outside | (position >= end)
        for condition, holds in guards:
            outside = outside & (evaluate_tensor(condition, scope) == holds)
        return not bool(outside.any())


def _depends_on_run_time(expr: Expr) -> bool:
    """Return True if the value depends on registers, sizes or memory."""
    return any(
        isinstance(part, Load) or (isinstance(part, Apply) and part.function == "checked")
        for part in parts(expr)
    ) or any(isinstance(atom, Quantity) and not isinstance(atom, Var) for atom in expr_atoms(expr))


def _points(used: list[int], ranges: Ranges) -> Scope | None:
    """Return all points of some variables; None if there are too many to check."""
    chosen = [interval for number in used if (interval := ranges[number]) is not None]
    if len(chosen) < len(used) or prod(last - first for first, last in chosen) > MOST_POINTS:
        return None
    variables = [torch.zeros(())] * len(ranges)
    for axis, (number, (first, last)) in enumerate(zip(used, chosen, strict=True)):
        variables[number] = variable(first, last, axis, len(used))
    return Scope(tuple(variables), (), {}, TensorMemory({}))


def _within(interval: Interval | None, end: int | None) -> bool:
    return interval is None or (interval[0] >= 0 and (end is None or interval[1] <= end))


def _values(interval: Interval | None) -> str:
    return "positions" if interval is None else f"{interval[0]} .. {interval[1] - 1}"


def _is_tight(index: Index, ranges: Ranges, known: Known) -> bool:
    """Return True if the index takes both ends of its interval."""
    return all(
        (isinstance(atom, Var) and ranges[atom.number] is not None)
        or (isinstance(atom, Reg) and atom in known)
        for atom, _ in index.terms
    )


def _cut(interval: Interval | None, sign: str, difference: Index, number: int) -> Interval | None:
    if interval is None:
        return None
    low, high = limits(sign, difference, number)
    first = interval[0] if low is None or not low.is_const else max(interval[0], low.const)
    end = interval[1] if high is None or not high.is_const else min(interval[1], high.const + 1)
    return first, end


# ---- facts implied by conditions ---------------------------------------------------------------


_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def comparisons(condition: Expr, holds: bool) -> Iterator[tuple[str, Index]]:
    """Yield (sign, difference): comparisons of positions with 0 that follow from a condition."""
    match condition:
        case Apply("and", (a, b), _) if holds:
            yield from (*comparisons(a, holds), *comparisons(b, holds))
        case Apply("or", (a, b), _) if not holds:
            yield from (*comparisons(a, holds), *comparisons(b, holds))
        case Apply("not", (a,), _):
            yield from comparisons(a, not holds)
        case Apply(sign, (a, b), _) if sign in _NEGATED:
            left, right = _position(a), _position(b)
            if left is not None and right is not None:
                yield sign if holds else _NEGATED[sign], left - right
        case _:
            pass


def _position(expr: Expr) -> Index | None:
    match expr:
        case Position(index):
            return index
        case Const(int(value), _):
            return Index(const=int(value))
        case _:
            return None


def limits(sign: str, difference: Index, number: int) -> tuple[Index | None, Index | None]:
    """Return the smallest and the largest value of a variable for which `difference` compares so
    with 0. None for a limit that does not follow, or that depends on other variables or on
    registers."""
    variable = Var(number)
    factor = difference.coefficient(variable)
    bound = (difference - Index.of(variable) * factor) * -factor
    if factor not in (1, -1) or not all(isinstance(atom, Symbol) for atom, _ in bound.terms):
        return None, None
    sign = sign if factor > 0 else _MIRRORED[sign]
    low = {"gt": bound + 1, "ge": bound, "eq": bound}.get(sign)
    return low, {"lt": bound + -1, "le": bound, "eq": bound}.get(sign)
