"""Branches of which a program has one arm only.

`if (mask == 1).all(): mask = None` leaves a tensor or None. All that follows would be captured for
both; where that is refused, the function is captured again with this branch *settled*: the program
has the arm that the call takes, and a check in front of it that stops the run where the condition
goes the other way. Then a program that was captured for such a call runs instead.
"""

from __future__ import annotations

from stretto.errors import OtherProgram
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.this_call import in_this_call
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.frontends.python.values.flags import logical
from stretto.ir.core import Program, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import CheckOp

_MOST = 8
"""How many branches of a function are settled at most."""


def settled(flag: Value) -> bool | None:
    """Which way the branch on `flag` that is traced now is settled to go; None if it is not."""
    state = tracer()
    if not state.settling or user_location() not in state.settling or not _is_outermost():
        return None
    found = in_this_call(flag)
    if found is None:
        return None
    taken = bool(found)
    number = sum(map(_is_settling, state.scope.block.ops)) + 1
    failure = Failure(
        OtherProgram.__name__,
        f"condition {number} of those that choose a program is not {taken}, as it was when this "
        "one was captured",
    )
    state.emit(CheckOp(flag if taken else logical("not", flag), failure), ())
    state.facts = {**state.facts, flag: taken}
    state.note(f"a check settles that this condition is {taken}; other calls run another program")
    return taken


def note_divided() -> None:
    """Notes that the arms of the branch that is traced now leave different kinds of things."""
    state, place = tracer(), user_location()
    if _is_outermost() and place is not None and place not in state.divided:
        state.divided.append(place)


def settles_more(state: Tracer) -> bool:
    """Settles the first branch that a failed capture has found to be divided. Returns whether there
    is one."""
    if state.settling is None or len(state.settling) >= _MOST:
        return False
    place = next((place for place in state.divided if place not in state.settling), None)
    if place is not None:
        state.settling.add(place)
    return place is not None


def is_settled(program: Program) -> bool:
    """Whether other programs serve calls that go another way."""
    return any(map(_is_settling, program.main.body.ops))


def _is_settling(op: object) -> bool:
    return isinstance(op, CheckOp) and op.failure.error == OtherProgram.__name__


def _is_outermost() -> bool:
    """Whether what is traced now runs once in each run."""
    state = tracer()
    return state.scope is state.regions[0].scope
