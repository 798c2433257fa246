"""Facts about the registers of a function at one point of its text.

There are two kinds: registers whose value follows from other ones, such as a length that has grown
by one; and bounds of values. With the first, parts of buffers that depend on different registers
can be compared; with the second, an appended item is known not to be the first one.

Integers wrap around at 64 bits. Bounds are therefore recorded only for values that come from
numbers by small steps, which would take longer to wrap around than any run, or that stay small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.device.expr import (
    Apply,
    Const,
    Expr,
    Index,
    Position,
    Reg,
    Substitution,
    Var,
    substitute_index,
)
from stretto.ir.size_bounds import at_most, bounds
from stretto.ir.sizes import Bounds, Symbol
from stretto.ir.types import DType

LARGEST = 1 << 62
LARGEST_STEP = 1 << 16
"""Largest step by which a 64-bit register may grow in a loop without wrapping around within any
realistic run time."""


@dataclass(frozen=True, slots=True)
class Change:
    """How to rewrite facts that mention `register` after it is assigned: by a substitution, or drop
    them if it is None."""

    register: Reg
    substitution: Substitution | None = None


@dataclass(frozen=True, slots=True)
class Registers:
    """values: registers that follow from others, in terms of those without a known value. ranges:
    the smallest and the largest value of registers."""

    values: Mapping[Reg, Index] = field(default_factory=dict[Reg, Index])
    ranges: Mapping[Reg, Bounds] = field(default_factory=dict[Reg, Bounds])

    def known(self, index: Index) -> Index:
        """Return the index in terms of registers without a known value."""
        return substitute_index(index, self._value)

    def _value(self, atom: Var | Reg) -> Index:
        known = self.values.get(atom) if isinstance(atom, Reg) else None
        return Index.of(atom) if known is None else known

    def at_most(self, smaller: Index, larger: Index) -> bool:
        """Return True if `smaller <= larger` is certain."""
        return at_most(0, self._limited(larger - smaller))

    def _limited(self, index: Index) -> Index:
        """Replace registers by symbols with their bounds."""
        return substitute_index(index, self._symbol)

    def _symbol(self, atom: Var | Reg) -> Index:
        low, high = self.ranges.get(atom, (None, None)) if isinstance(atom, Reg) else (None, None)
        return Index.of(atom) if low is None else Index.of(Symbol(f"register {atom}", low, high))

    # ---- assignments -------------------------------------------------------------------------
    def assigned(self, register: Reg, expr: Expr | None) -> tuple[Registers, tuple[Change, ...]]:
        """Return the facts after an assignment, and how facts stated elsewhere change. expr: None
        if the value is not known."""
        index = None
        if expr is not None and register.dtype is DType.I64:
            index = self.index(expr)
        limits = (None, None) if index is None else self._limits(index)
        if expr is not None and register.dtype is DType.BOOL:
            holds = self.holds(expr)
            index = None if holds is None else Index(const=int(holds))
        step = None if index is None else index - Index.of(register)
        if step is not None and step.is_const:
            change = Change(register, _substitution(register, Index.of(register) - step))
            return self._changed(change)._with_limits(register, limits), (change,)
        freed, changes, same = self._without(register)
        if index is not None and any(atom == register for atom in index.atoms()):
            index = None if same is None else substitute_index(index, _substitution(register, same))
        if index is not None:
            freed = replace(freed, values={**freed.values, register: index})
        return freed._with_limits(register, limits), changes

    def _limits(self, index: Index) -> Bounds:
        """Return the smallest and the largest value if it surely does not wrap around; else (None,
        None)."""
        low, high = bounds(self._limited(index).dim)
        is_step = len(index.terms) == 1 and index.terms[0][1] == 1  # a register or size + const
        if is_step or (low is not None and high is not None and max(-low, high) < LARGEST):
            return low, high
        return None, None

    def _with_limits(self, register: Reg, limits: Bounds) -> Registers:
        ranges = {r: found for r, found in self.ranges.items() if r != register}
        if limits != (None, None):
            ranges[register] = limits
        return replace(self, ranges=ranges)

    def _without(self, register: Reg) -> tuple[Registers, tuple[Change, ...], Index | None]:
        """Drop a register that is about to change. Returns the facts without it, the changes, and
        a term for its old value (None if there is none)."""
        values = {r: v for r, v in self.values.items() if r != register}
        if register in self.values:
            return replace(self, values=values), (), self.values[register]
        for other, value in values.items():
            step = value - Index.of(register)
            if step.is_const:
                same = Index.of(other) - step
                change = Change(register, _substitution(register, same))
                del values[other]
                return replace(self, values=values)._changed(change), (change,), same
        change = Change(register)
        return self._changed(change), (change,), None

    def _changed(self, change: Change) -> Registers:
        values: dict[Reg, Index] = {}
        for other, value in self.values.items():
            if all(atom != change.register for atom in value.atoms()):
                values[other] = value
            elif change.substitution is not None:
                values[other] = substitute_index(value, change.substitution)
        return replace(self, values=values)

    # ---- expressions -------------------------------------------------------------------------
    def index(self, expr: Expr) -> Index | None:
        """Return an expression in terms of registers without a known value. None unless it is a
        number, or a sum of registers with small factors and a small constant; a load is never
        followed, since memory may change."""
        match expr:
            case Const(bool()):
                return None
            case Const(int() as number, dtype) if not dtype.is_float:
                found = Index(const=number)
            case Position(index):
                found = self.known(index)
            case Apply("where", (condition, yes, no)):
                holds = self.holds(condition)
                return None if holds is None else self.index(yes if holds else no)
            case _:
                return None
        if found.is_const:
            return found if abs(found.const) < LARGEST else None
        numbers = (found.const, *(factor for _, factor in found.terms))
        is_followed = all(abs(number) <= LARGEST_STEP for number in numbers) and all(
            isinstance(atom, Reg | Symbol) for atom, _ in found.terms
        )
        return found if is_followed else None

    def holds(self, condition: Expr) -> bool | None:
        """Return True if the condition surely holds, False if it surely does not, else None."""
        match condition:
            case Const(bool() as value):
                return value
            case Position(index) if (known := self.known(index)).is_const:
                return known.const != 0
            case Apply("and" | "bitwise_and" | "or" | "bitwise_or" as function, (one, other)):
                found = self.holds(one), self.holds(other)
                decides = function in ("or", "bitwise_or")
                return decides if decides in found else (None if None in found else not decides)
            case Apply("cast", (one,)):
                return self.holds(one)
            case Apply("not" | "bitwise_not", (one,)):
                found = self.holds(one)
                return None if found is None else not found
            case Apply("lt", (one, other)):
                return self._is_at_most(one, other, 1)
            case Apply("le", (one, other)):
                return self._is_at_most(one, other, 0)
            case Apply("gt" | "ge" as function, (one, other)):
                return self._is_at_most(other, one, int(function == "gt"))
            case Apply("eq" | "ne" as function, (one, other)):
                found = self._is_at_most(one, other, 0), self._is_at_most(other, one, 0)
                equal = False if False in found else None if None in found else True
                return None if equal is None else equal == (function == "eq")
            case _:
                return None

    def _is_at_most(self, one: Expr, other: Expr, more: int) -> bool | None:
        """Return whether one expression plus `more` is surely at most the other (True), surely not
        (False), or unknown (None). Registers without bounds give None: they may be so large
        that a sum wraps around."""
        a, b = self.index(one), self.index(other)
        if a is None or b is None:
            return None
        registers = {atom for end in (a, b) for atom in end.atoms() if isinstance(atom, Reg)}
        if any(self.ranges.get(one, (None, None))[0] is None for one in registers):
            return None
        if self.at_most(a + more, b):
            return True
        return False if self.at_most(b + 1, a + more) else None

    # ---- joins -------------------------------------------------------------------------------
    def joined(self, other: Registers) -> Registers:
        """Return what is known on both of two paths."""
        values = {r: v for r, v in self.values.items() if other.values.get(r) == v}
        ranges: dict[Reg, Bounds] = {}
        for register in self.ranges.keys() & other.ranges.keys():
            (a, b), (c, d) = self.ranges[register], other.ranges[register]
            low = None if a is None or c is None else min(a, c)
            ranges[register] = low, None if b is None or d is None else max(b, d)
        return Registers(values, ranges)

    def contains(self, other: Registers) -> bool:
        """Return True if everything known here is also known in `other`."""
        return self.joined(other) == self

    def grown(self, other: Registers) -> Registers:
        """Join, and drop bounds that have moved, so that a loop's fixpoint is reached."""
        joined = self.joined(other)
        ranges = {
            register: (
                low if low == self.ranges[register][0] else None,
                high if high == self.ranges[register][1] else None,
            )
            for register, (low, high) in joined.ranges.items()
        }
        return replace(joined, ranges=ranges)


def _substitution(register: Reg, value: Index) -> Substitution:
    return lambda atom: value if atom == register else Index.of(atom)
