"""Loops through plans."""

from __future__ import annotations

from collections.abc import Callable

from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.control.kinds import has_type
from stretto.batching.frontend.control.loops import dynamic_loop, nothing
from stretto.batching.frontend.control.unrolling import unrolled
from stretto.batching.frontend.iteration.plans import MOST_UNROLLED, Plan
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Static, Value
from stretto.batching.program import Assign, Literal, Operand, Variable
from stretto.batching.types import Scalar, alternatives, union


def iterate(
    frame: Frame,
    plan: Plan,
    step: Callable[[Value], None],
    stored: frozenset[str] = frozenset(),
) -> None:
    """A loop without break and continue. stored: local variables that `step` may assign."""
    loop_over(frame, plan, stored, step, nothing)


def loop_over(
    frame: Frame,
    plan: Plan,
    stored: frozenset[str],
    step: Callable[[Value], None],
    orelse: Callable[[], None],
) -> None:
    """Goes through a plan. stored: names of local variables that `step` may assign. orelse: what
    runs when the items are exhausted."""
    plan.begin(frame)
    if plan.bound is not None and plan.bound <= MOST_UNROLLED:
        unrolled(frame, plan, step, orelse)
        return
    zero = frame.assign("copy", Scalar.INT, frame.operand(Static(0)), name="index")

    def head() -> bool | Operand:
        return plan.test(frame, zero)

    def body() -> None:
        current = frame.assign("copy", Scalar.INT, zero.operand, name="i")

        assert isinstance(zero.operand, Variable)
        frame.builder.emit(Assign(zero.operand, "add", (current.operand, Literal(1))))
        step(plan.item(frame, current))

    dynamic_loop(frame, stored, head, body, orelse)


def folded(
    frame: Frame,
    plan: Plan,
    start: Value | None,
    combine: Callable[[Value, Value], Value],
) -> Value:
    """Combines the items from left to right; None of an empty list where there is no start."""

    name = ".folded"
    outer = frame.locals.get(name)
    frame.locals[name] = Static(None) if start is None else start

    def step(item: Value) -> None:
        before = frame.locals[name]
        if start is not None:
            frame.locals[name] = combine(before, item)
            return
        test = has_type(frame, before, (Scalar.NONE,))
        if isinstance(test, Static):
            frame.locals[name] = item if test.value else combine(before, item)
            return
        given = frame.dynamic(before)
        rest = union(kind for kind in alternatives(given.type) if kind is not Scalar.NONE)
        found = either(
            frame, frame.operand(test), lambda: item, lambda: combine(frame.cast(given, rest), item)
        )
        frame.locals[name] = found

    loop_over(frame, plan, frozenset((name,)), step, nothing)
    result = frame.locals.pop(name)
    if outer is not None:
        frame.locals[name] = outer
    return result
