"""Loops whose items are known: the body once for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from stretto.batching.frontend.control.joins import merge
from stretto.batching.frontend.state.builder import Draft, PathEnds, scoped
from stretto.batching.frontend.state.frame import Exit, Frame, LoopExits
from stretto.batching.frontend.state.values import Static, Value
from stretto.batching.program import If, Leave, Operand


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
                frame.builder.pend(if_not(there), missing)
            _iteration(frame, plan, step, exits, index)
        ends.append(Exit(frame.builder.gap(), frame.locals))

    with frame.builder.into(outer), contextlib.suppress(PathEnds):
        run()
    frame.builder.pend(lambda body: scoped(done, body), outer)


def if_not(condition: Operand) -> Callable[..., tuple[If, ...]]:
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
