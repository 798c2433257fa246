"""Loops of the InstanceProgram.

A local variable that the body assigns becomes a variable of the program, with a type for all
iterations. That is found by evaluating the body until the types no longer grow.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.batching.frontend.control.carried import Attempt, Settled
from stretto.batching.frontend.control.joins import merge
from stretto.batching.frontend.control.unrolling import if_not
from stretto.batching.frontend.state.builder import Draft, PathEnds, scoped
from stretto.batching.frontend.state.frame import Exit, Frame, LoopExits
from stretto.batching.frontend.state.values import Unbound
from stretto.batching.program import Break, Loop, Operand

MOST_ATTEMPTS = 40


def dynamic_loop(
    frame: Frame,
    stored: frozenset[str],
    head: Callable[[], bool | Operand],
    body: Callable[[], None],
    orelse: Callable[[], None],
) -> None:
    """A loop. head: evaluates the condition at the head of each iteration."""
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
        frame.refuse("the types of the variables of this loop do not settle")
    if orelse is nothing or not normal:
        frame.builder.pend(lambda inner: (Loop(inner),), draft)
        merge(frame, [*normal, *exits.breaks])
        return
    _with_orelse(frame, draft, normal, exits, orelse)


def _carried(frame: Frame, stored: frozenset[str]) -> frozenset[str]:
    """The variables that a loop carries: those that it may assign."""
    del frame
    return stored


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
            frame.builder.pend(if_not(condition), leaving)
        body()
        exits.continues.append(Exit(frame.builder.gap(), frame.locals))
    except PathEnds:
        pass
    finally:
        frame.loops.pop()
