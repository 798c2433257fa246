"""Loops: unrolled where their items are known, and loops of the InstanceProgram otherwise.

A local variable that the body assigns becomes a variable of the program, with a type for all
iterations. That is found by evaluating the body until the types no longer grow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from stretto.batching.frontend.builder import Draft, Gap, PathEnds, copies, scoped
from stretto.batching.frontend.frame import Exit, Frame, LoopExits
from stretto.batching.frontend.joins import merge, same
from stretto.batching.frontend.values import Dynamic, Static, TupleValue, Unbound, Value
from stretto.batching.program import Assign, Break, If, Leave, Loop, Operand, Variable
from stretto.batching.types import NEVER, TupleType, Type, union

MOST_ATTEMPTS = 40


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
    """The body once for each item."""
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
    """All iterations. `ends`: the ways on which the items are exhausted."""
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
                    frame.builder.emit(Leave(done))
                frame.builder.pend(_if_not(there), missing)
            _iteration(frame, plan, step, exits, index)
        ends.append(Exit(frame.builder.gap(), frame.locals))

    with frame.builder.into(outer), contextlib.suppress(PathEnds):
        run()
    frame.builder.pend(lambda body: scoped(done, body), outer)


def _if_not(condition: Operand) -> Callable[..., tuple[If, ...]]:
    return lambda body: (If(condition, (), body),)


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


# ---- loops of the program --------------------------------------------------------------------


def dynamic_loop(
    frame: Frame,
    stored: frozenset[str],
    head: Callable[[], bool | Operand],
    body: Callable[[], None],
    orelse: Callable[[], None],
) -> None:
    """A loop. head: evaluates the condition at the head of each iteration."""
    outer = frame.locals
    known: dict[tuple[str, tuple[int, ...]], Type] = {}
    joined: set[tuple[str, tuple[int, ...]]] = set()
    entry = frame.builder.gap()
    for _ in range(MOST_ATTEMPTS):
        entry.statements = []
        attempt = _Attempt(frame, entry, known, joined)
        frame.locals = dict(outer)
        for name in sorted(stored & outer.keys()):
            frame.locals[name] = attempt.head(outer[name], name, ())
        heads = dict(frame.locals)
        draft: Draft = []
        exits = LoopExits(break_label=None if orelse is nothing else frame.builder.label())
        normal: list[Exit] = []
        with frame.builder.into(draft):
            _evaluate_body(frame, exits, normal, head, body)
        if attempt.closes(heads, exits.continues, stored & outer.keys()):
            break
    else:
        frame.refuse("the types of the variables of this loop do not settle")
    if orelse is nothing or not normal:
        frame.builder.pend(lambda inner: (Loop(inner),), draft)
        merge(frame, [*normal, *exits.breaks])
        return
    _with_orelse(frame, draft, normal, exits, orelse)


def nothing() -> None:
    """The `else` of a loop that has none."""


def _with_orelse(
    frame: Frame,
    draft: Draft,
    normal: list[Exit],
    exits: LoopExits,
    orelse: Callable[[], None],
) -> None:
    """What follows `else` runs where the condition has ended the loop."""
    label = exits.break_label
    assert label is not None
    outer: Draft = []
    with frame.builder.into(outer):
        frame.builder.pend(lambda inner: (Loop(inner),), draft)
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
                frame.builder.emit(Break())
            if condition is False:
                frame.builder.pend(lambda inner: inner, leaving)
                raise PathEnds
            frame.builder.pend(_if_not(condition), leaving)
        body()
        exits.continues.append(Exit(frame.builder.gap(), frame.locals))
    except PathEnds:
        pass
    finally:
        frame.loops.pop()


class _Attempt:
    """One evaluation of a loop's body, with variables of the types known so far."""

    def __init__(
        self,
        frame: Frame,
        entry: Gap,
        known: dict[tuple[str, tuple[int, ...]], Type],
        joined: set[tuple[str, tuple[int, ...]]],
    ) -> None:
        self._frame = frame
        self._entry = entry
        self._known = known
        self._joined = joined
        """Tuples that are one variable, since they are not always tuples of one length."""

    def head(self, value: Value, name: str, path: tuple[int, ...]) -> Value:
        """The value of a variable at the head of the loop."""
        key = (name, path)
        if isinstance(value, TupleValue) and key not in self._joined:
            items = tuple(
                self.head(item, name, (*path, number)) for number, item in enumerate(value.items)
            )
            return TupleValue(items, value.is_list)
        type_ = union((self._frame.type_of(value), self._known.get(key, NEVER)))
        if isinstance(value, Unbound) or self._frame.type_of(value) == NEVER:
            return value
        with self._frame.builder.into(self._entry.statements):
            made = self._frame.dynamic(value)
            type_ = union((made.type, type_))
            target = self._frame.builder.variable(name, type_)
            self._frame.builder.emit(Assign(target, "copy", (made.operand,)))
        return Dynamic(target, type_)

    def closes(self, heads: dict[str, Value], ends: list[Exit], names: frozenset[str]) -> bool:
        """Assigns the variables at the ends of iterations; False where types have grown."""
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
        if isinstance(head, TupleValue):
            parts = self._parts(value, len(head.items), gap)
            if parts is None:
                self._joined.add((name, path))
                return False
            closed = [
                self._close(mine, part, name, (*path, number), gap, pairs)
                for number, (mine, part) in enumerate(zip(head.items, parts, strict=True))
            ]
            return all(closed)
        if not isinstance(head, Dynamic):
            if not same(head, value):
                self._frame.refuse(
                    f"{name} is another object in each iteration, which cannot be data",
                    "keep modules and functions that a loop chooses in a list, and index it",
                )
            return True
        if isinstance(value, Unbound):
            self._frame.refuse(f"{name} may be unassigned at the end of an iteration")
        with self._frame.builder.into(gap.statements):
            made = self._frame.dynamic(value)
        grown = union((head.type, made.type))
        assert isinstance(head.operand, Variable)
        if grown != head.type:
            self._known[(name, path)] = union((self._known.get((name, path), NEVER), grown))
            return False
        pairs.append((head.operand, made.operand))
        return True

    def _parts(self, value: Value, length: int, gap: Gap) -> tuple[Value, ...] | None:
        """The items of a tuple of that length; None for any other value."""
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
