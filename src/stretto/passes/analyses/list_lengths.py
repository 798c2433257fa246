"""How many items a list has, as far as the ops that build it say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import (
    ForOp,
    IfOp,
    ListExtendOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
)
from stretto.ir.sizes import Size
from stretto.ir.symbols import bound_symbols
from stretto.ir.types import Dim

Bounds = tuple[int | Size | Value, int | Size | Value, int]
"""start, stop and step of a loop."""


@dataclass(frozen=True, slots=True)
class Length:
    """`items`, and one more for each iteration of a loop over `loop`, if any. after: the list, if
    any, to which these are added: what a loop carries, within its body."""

    items: Dim
    loop: Bounds | None = None
    after: Value | None = None


@dataclass(frozen=True, slots=True)
class ListLengths:
    """Lengths of the lists of one function; `makers` says which op makes a value."""

    makers: Mapping[Value, Op]

    @staticmethod
    def of(body: Block) -> ListLengths:
        return ListLengths({value: op for op in body.walk() for value in op.results})

    def length(self, value: Value) -> Length | None:
        """The list's length, or None when it is not known."""
        return self._length(value, {})

    def _length(self, value: Value, given: dict[Value, Length]) -> Length | None:
        if value in given:
            return given[value]
        match self.makers.get(value):
            case ListNewOp() as op:
                return Length(len(op.items))
            case ListPushOp() as op:
                return _plus(self._length(op.list, given), 1)
            case ListExtendOp() as op:
                return _plus(self._length(op.list, given), op.rows.tensor.shape[0])
            case ListSetOp() as op:
                return self._length(op.list, given)
            case ListPopOp() as op:
                return _plus(self._length(op.list, given), -1)
            case IfOp() as op:
                place = op.results.index(value)
                one = self._length(op.then.yields[place], given)
                other = self._length(op.orelse.yields[place], given)
                return one if one == other else None
            case ForOp() as op:
                return self._after_loop(op, op.results.index(value), given)
            case _:
                return None

    def _after_loop(self, op: ForOp, place: int, given: dict[Value, Length]) -> Length | None:
        before = self._length(op.inits[place], given)
        carried = op.carried[place]
        inside = self._length(op.body.yields[place], {carried: Length(0, after=carried)})
        if before is None or inside is None or inside.loop is not None:
            return None
        if inside.after is not carried:
            return None  # each iteration makes a list anew, and there may be none
        if not bound_symbols(op.body).isdisjoint(Size.of(inside.items).symbols):
            return None  # iterations add different numbers of items
        trips = op.trips()
        if trips is not None:
            return _plus(before, trips * inside.items)
        if inside.items == 0:
            return before
        if inside.items == 1 and before.loop is None:
            return replace(before, loop=(op.start, op.stop, op.step))
        return None


def _plus(length: Length | None, items: Dim) -> Length | None:
    return None if length is None else replace(length, items=(length.items + Size.of(items)).dim)
