"""Loops of the InstanceProgram.

A local variable that the body assigns becomes a variable of the program, with a type for all
iterations. The type is found by evaluating the body until the types no longer grow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from stretto.batching.frontend.frame import Exit, Frame, LoopExits
from stretto.batching.frontend.function_builder import Draft, Gap, PathEnds, copies, if_op, scoped
from stretto.batching.frontend.joins import (
    DATA,
    as_list,
    choice_of,
    default_data,
    is_tuple,
    merge,
    numbered,
)
from stretto.batching.frontend.values import (
    ChoiceValue,
    Dynamic,
    Static,
    TupleValue,
    Unbound,
    Value,
    is_data,
    same,
)
from stretto.ir.core import Operand, Variable
from stretto.ir.data import AssignOp, BreakOp, LeaveOp, LoopOp, body_of
from stretto.ir.ops import IfOp
from stretto.ir.types import NEVER, DataType, Scalar, TupleType, alternatives, union

# ---- Loop-carried variables, with a type for all iterations.


_Key = tuple[str, tuple[int, ...]]
"""A local variable, or the path to an item of the tuple that it holds."""


@dataclass(slots=True)
class Settled:
    """Facts about the variables that a loop carries, collected over its attempts."""

    types: dict[_Key, DataType] = field(default_factory=dict[_Key, DataType])
    joined: set[_Key] = field(default_factory=set[_Key])
    """Tuples stored in one variable, since other data may replace them."""
    lists: set[_Key] = field(default_factory=set[_Key])
    """Tuples whose length is not the same in all iterations."""
    options: dict[_Key, list[Value]] = field(default_factory=dict[_Key, list[Value]])
    """The values that a variable may hold and that are no data."""


def _lengths(type_: DataType) -> set[int]:
    """Return the lengths of the tuples of known length that a value may be."""
    return {len(kind.items) for kind in alternatives(type_) if isinstance(kind, TupleType)}


class Attempt:
    """One evaluation of a loop's body, with variables of the types known so far."""

    def __init__(self, frame: Frame, entry: Gap, known: Settled) -> None:
        self._frame = frame
        self._entry = entry
        self._known = known

    def head(self, value: Value, name: str, path: tuple[int, ...]) -> Value:
        """Return the value of a variable at the head of the loop, and assign it before the loop."""
        key = (name, path)
        if key in self._known.options:
            return self._choice(value, name, key)
        if isinstance(value, TupleValue) and key not in self._known.joined:
            items = tuple(
                self.head(item, name, (*path, number)) for number, item in enumerate(value.items)
            )
            return TupleValue(items, value.is_list)
        if not is_data(value):
            return value
        with self._frame.builder.into(self._entry.statements):
            if key in self._known.lists:
                value = as_list(self._frame, value, self._site(key))
            made = self._frame.dynamic(value)
            target = self._variable(name, union((made.type, self._type(key))))
            self._frame.builder.emit(AssignOp("copy", (made.operand,), results=(target,)))
        return Dynamic(target, target.type)

    def _site(self, key: _Key) -> Hashable:
        return self._frame.site("tuple", key)

    def _type(self, key: _Key) -> DataType:
        return self._known.types.get(key, NEVER)

    def _variable(self, name: str, type_: DataType) -> Variable:
        self._frame.evaluation.settle(type_)
        return self._frame.builder.variable(name, type_)

    def _choice(self, value: Value, name: str, key: _Key) -> ChoiceValue:
        options = self._known.options[key]
        known = self._type(key)
        with self._frame.builder.into(self._entry.statements):
            number, made, type_ = numbered(self._frame, value, options)
            known = union((known, type_))
            index = self._frame.builder.variable(f"{name}_choice", Scalar.INT)
            self._frame.builder.emit(AssignOp("copy", (number,), results=(index,)))
            if known == NEVER:
                return choice_of(index, options, None, NEVER)
            default, held = default_data(known)
            data = self._variable(name, held)
            source = default if made is None else made.operand
            self._frame.builder.emit(AssignOp("copy", (source,), results=(data,)))
        return choice_of(index, options, data, known)

    def closes(self, heads: dict[str, Value], ends: list[Exit], names: frozenset[str]) -> bool:
        """Assign the variables at the ends of iterations; return False if types have grown."""
        settled = True
        for end in ends:
            pairs: list[tuple[Variable, Operand]] = []
            for name in sorted(names):
                value = end.locals.get(name, Unbound())
                settled &= self._close(heads[name], value, name, (), end.gap, pairs)
            end.gap.statements.extend(copies(pairs, self._frame.builder))
        return settled

    def _close(
        self,
        head: Value,
        value: Value,
        name: str,
        path: tuple[int, ...],
        gap: Gap,
        pairs: list[tuple[Variable, Operand]],
    ) -> bool:
        key = (name, path)
        if isinstance(head, ChoiceValue) and key in self._known.options:
            return self._close_choice(head, value, key, gap, pairs)
        if not isinstance(head, Dynamic | TupleValue):
            if same(head, value):
                return True
            return self._becomes_choice(head, value, key, gap)
        if not is_data(value):
            return self._becomes_choice(head, value, key, gap)
        if isinstance(head, TupleValue):
            parts = self._parts(value, len(head.items), gap)
            if parts is None:
                self._known.joined.add(key)
                if is_tuple(value):
                    self._known.lists.add(key)
                return False
            closed = [
                self._close(mine, part, name, (*path, number), gap, pairs)
                for number, (mine, part) in enumerate(zip(head.items, parts, strict=True))
            ]
            return all(closed)
        with self._frame.builder.into(gap.statements):
            if key in self._known.lists:
                value = as_list(self._frame, value, self._site(key))
            made = self._frame.dynamic(value)
        if _lengths(head.type) and _lengths(made.type) - _lengths(head.type):
            self._known.lists.add(key)
            return False
        assert isinstance(head.operand, Variable)
        if not self._grown(key, head.type, made.type):
            return False
        pairs.append((head.operand, made.operand))
        return True

    def _grown(self, key: _Key, known: DataType, type_: DataType) -> bool:
        """Return True if a variable has the type already; otherwise it gets the type in the next
        attempt."""
        grown = union((known, type_))
        if grown != known:
            self._known.types[key] = union((self._type(key), grown))
        return grown == known

    def _becomes_choice(self, head: Value, value: Value, key: _Key, gap: Gap) -> bool:
        """Make a variable a choice in the next attempt, since it may hold values that are no data.
        Return False."""
        options = self._known.options.setdefault(key, [])
        with self._frame.builder.into(gap.statements):
            for item in (head, value):
                _, _, type_ = numbered(self._frame, item, options)
                self._known.types[key] = union((self._type(key), type_))
        return False

    def _close_choice(
        self,
        head: ChoiceValue,
        value: Value,
        key: _Key,
        gap: Gap,
        pairs: list[tuple[Variable, Operand]],
    ) -> bool:
        options = self._known.options[key]
        before = len(options)
        with self._frame.builder.into(gap.statements):
            number, made, type_ = numbered(self._frame, value, options)
        settled = self._grown(key, head.known, type_) and len(options) == before
        data = next((option for number, option in head.options if number == DATA), None)
        index = head.index.operand
        assert isinstance(index, Variable)
        if not settled:
            return False
        pairs.append((index, number))
        if data is not None:
            assert isinstance(data, Dynamic) and isinstance(data.operand, Variable)
            if made is not None and not self._grown(key, data.type, made.type):
                return False
            default, _ = default_data(head.known)
            pairs.append((data.operand, default if made is None else made.operand))
        return True

    def _parts(self, value: Value, length: int, gap: Gap) -> tuple[Value, ...] | None:
        """Return the items of a tuple of that length; None for any other value."""
        if isinstance(value, TupleValue):
            return value.items if len(value.items) == length else None
        if isinstance(value, Static) and type(value.value) is tuple:
            return tuple(map(Static, value.value)) if len(value.value) == length else None
        if isinstance(value, Dynamic) and isinstance(value.type, TupleType):
            if len(value.type.items) != length:
                return None
            with self._frame.builder.into(gap.statements):
                return tuple(
                    self._frame.assign("item", type_, value.operand, detail=number)
                    for number, type_ in enumerate(value.type.items)
                )
        return None


# ---- Loops over known items: the body is evaluated once for each.


class Unrollable(Protocol):
    bound: int | None

    def test(self, frame: Frame, index: Value) -> bool | Operand: ...
    def item(self, frame: Frame, index: Value) -> Value: ...


def unrolled(
    frame: Frame,
    plan: Unrollable,
    step: Callable[[Value], None],
    orelse: Callable[[], None],
) -> None:
    """Evaluate the body once for each item."""
    exits = LoopExits(break_label=frame.builder.label())
    finished_exits: list[Exit] = []
    outer: Draft = []
    frame.loops.append(exits)
    try:
        with frame.builder.into(outer):
            with contextlib.suppress(PathEnds):
                _iterations(frame, plan, step, exits, finished_exits)
            try:
                merge(frame, finished_exits)
                frame.loops.pop()
                try:
                    orelse()
                finally:
                    frame.loops.append(exits)
                exits.breaks.append(Exit(frame.builder.gap(), frame.locals))
            except PathEnds:
                pass
    finally:
        frame.loops.pop()
    label = exits.break_label
    assert label is not None
    frame.builder.pend(lambda body: scoped(label, body), outer)
    merge(frame, exits.breaks)


def _iterations(
    frame: Frame,
    plan: Unrollable,
    step: Callable[[Value], None],
    exits: LoopExits,
    ends: list[Exit],
) -> None:
    """Evaluate all iterations. `ends`: the paths on which the items are exhausted."""
    done = frame.builder.label()
    outer: Draft = []

    def run() -> None:
        for index in range(plan.bound or 0):
            there = plan.test(frame, Static(index))
            if there is False:
                break
            if there is not True:
                with frame.builder.into([]) as missing:
                    ends.append(Exit(frame.builder.gap(), dict(frame.locals)))
                    frame.builder.emit(LeaveOp(done))
                frame.builder.pend(if_not(there), missing)
            _iteration(frame, plan, step, exits, index)
        ends.append(Exit(frame.builder.gap(), frame.locals))

    with frame.builder.into(outer), contextlib.suppress(PathEnds):
        run()
    frame.builder.pend(lambda body: scoped(done, body), outer)


def if_not(condition: Operand) -> Callable[..., tuple[IfOp, ...]]:
    return lambda body: (if_op(condition, (), body),)


def _iteration(
    frame: Frame,
    plan: Unrollable,
    step: Callable[[Value], None],
    exits: LoopExits,
    index: int,
) -> None:
    label = frame.builder.label()
    exits.continue_label = label
    exits.continues = []
    draft: Draft = []
    with frame.builder.into(draft):
        try:
            step(plan.item(frame, Static(index)))
            exits.continues.append(Exit(frame.builder.gap(), frame.locals))
        except PathEnds:
            pass
    frame.builder.pend(lambda body: scoped(label, body), draft)
    merge(frame, exits.continues)


MOST_ATTEMPTS = 40


def dynamic_loop(
    frame: Frame,
    stored: frozenset[str],
    head: Callable[[], bool | Operand],
    body: Callable[[], None],
    orelse: Callable[[], None],
) -> None:
    """Evaluate a loop until the types of its variables settle. head: evaluates the condition at
    the head of each iteration. stored: the variables that the loop may assign."""
    outer = frame.locals
    known = Settled()
    carried = _carried(frame, stored)
    entry = frame.builder.gap()
    for _ in range(MOST_ATTEMPTS):
        entry.statements = []
        attempt = Attempt(frame, entry, known)
        frame.locals = dict(outer)
        for name in sorted(carried):
            frame.locals[name] = attempt.head(outer.get(name, Unbound()), name, ())
        heads = dict(frame.locals)
        draft: Draft = []
        exits = LoopExits(break_label=None if orelse is nothing else frame.builder.label())
        normal: list[Exit] = []
        with frame.builder.into(draft):
            _evaluate_body(frame, exits, normal, head, body)
        if attempt.closes(heads, exits.continues, carried):
            break
    else:
        frame.refuse("the types of the variables of this loop keep growing")
    if orelse is nothing or not normal:
        frame.builder.pend(lambda inner: (LoopOp(body_of(inner)),), draft)
        merge(frame, [*normal, *exits.breaks])
        return
    _with_orelse(frame, draft, normal, exits, orelse)


def _carried(frame: Frame, stored: frozenset[str]) -> frozenset[str]:
    """Return the variables that a loop carries: those that it may assign."""
    del frame
    return stored


def nothing() -> None:
    """Placeholder for the `else` of a loop that has none."""


def _with_orelse(
    frame: Frame,
    draft: Draft,
    normal: list[Exit],
    exits: LoopExits,
    orelse: Callable[[], None],
) -> None:
    """Emit a loop with an `else` part, which runs if the condition has ended the loop."""
    label = exits.break_label
    assert label is not None
    outer: Draft = []
    with frame.builder.into(outer):
        frame.builder.pend(lambda inner: (LoopOp(body_of(inner)),), draft)
        merge(frame, normal)
        try:
            orelse()
            exits.breaks.append(Exit(frame.builder.gap(), frame.locals))
        except PathEnds:
            pass
    frame.builder.pend(lambda inner: scoped(label, inner), outer)
    merge(frame, exits.breaks)


def _evaluate_body(
    frame: Frame,
    exits: LoopExits,
    normal: list[Exit],
    head: Callable[[], bool | Operand],
    body: Callable[[], None],
) -> None:
    frame.loops.append(exits)
    try:
        condition = head()
        if condition is not True:
            with frame.builder.into([]) as leaving:
                normal.append(Exit(frame.builder.gap(), dict(frame.locals)))
                frame.builder.emit(BreakOp())
            if condition is False:
                frame.builder.pend(lambda inner: inner, leaving)
                raise PathEnds
            frame.builder.pend(if_not(condition), leaving)
        body()
        exits.continues.append(Exit(frame.builder.gap(), frame.locals))
    except PathEnds:
        pass
    finally:
        frame.loops.pop()
