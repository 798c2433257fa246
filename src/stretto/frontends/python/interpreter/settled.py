"""Branches of which a program has one arm only.

`if (mask == 1).all(): mask = None` leaves a tensor or None, and all code after it would be
captured for both. If that is refused, the function is captured again with this branch
*settled*: the program has the arm that the call takes, after a check that stops the run if the
condition is the other one. Then a program captured for such a call runs instead.

An arm that cannot be captured at all is *left out*: the program has the other arm, and a check
that raises the reason in a run that would take this one.
"""

from __future__ import annotations

from stretto.errors import CaptureError, NotCaptured, OtherProgram
from stretto.frontends.python.tracing.contents import in_this_call
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.tracer import Caller, Tracer, tracer
from stretto.frontends.python.values.scalars import logical
from stretto.ir.core import Program, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import CheckOp

_MOST = 8
"""The largest number of settled branches of a function."""
_MOST_ARMS = 4
"""The largest number of arms left out: each needs another capture."""


def settled(flag: Value) -> bool | None:
    """Return the direction of the branch on `flag` being traced if it is settled; else None."""
    state = tracer()
    divided = state.settling.divided if state.settling else ()
    if user_location() not in divided or not _is_outermost():
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
    """Record that the arms of the branch being traced leave values of different kinds."""
    state, place = tracer(), user_location()
    if _is_outermost() and place is not None and place not in state.divided:
        state.divided.append(place)


def is_left_out(flag: Value, taken: bool, error: CaptureError) -> bool:
    """Return True, and emit a check, if an arm of the branch being traced is left out.

    taken: the value of `flag` that selects the arm. error: why it cannot be captured. No arm is
    left out where a loop in Python advances an iterator: without the arm for its end, the loop
    would not end.
    """
    state, place = tracer(), user_location()
    is_cut = state.surroundings is not Caller.COMPILED
    if state.settling is None or is_cut or place is None or state.tries.takes_next():
        return False
    arm = place, taken
    if arm not in state.settling.arms:
        state.broken_arms.setdefault(error, []).append(arm)
        return False
    found = in_this_call(flag)
    if found is not None and bool(found) is taken:
        return False
    reason = f"{error.message} ({error.remedy})" if error.remedy else error.message
    failure = Failure(
        NotCaptured.__name__, f"the call comes to code that could not be captured: {reason}"
    )
    check = CheckOp(logical("not", flag) if taken else flag, failure)
    state.emit(check, ())
    check.location = error.location
    state.note(f"an arm of a branch is left out, and a call that takes it raises: {reason}")
    return True


def settles_more(state: Tracer, error: CaptureError) -> bool:
    """Settle the first divided branch that a failed capture has found, or leave out the innermost
    arm in which it failed. Returns False if there is none."""
    settling = state.settling
    if settling is None:
        return False
    place = next((place for place in state.divided if place not in settling.divided), None)
    if place is not None and len(settling.divided) < _MOST:
        settling.divided.add(place)
        return True
    arms = state.broken_arms.get(error, [])
    arm = next((arm for arm in arms if arm not in settling.arms), None)
    calls_itself = len(arms) > len(set(arms))
    if arm is None or calls_itself or len(settling.arms) >= _MOST_ARMS:
        return False
    settling.arms.add(arm)
    return True


def is_settled(program: Program) -> bool:
    """Return True if other programs serve calls that take another way."""
    return any(map(_is_settling, program.main.body.ops))


def _is_settling(op: object) -> bool:
    return isinstance(op, CheckOp) and op.failure.error == OtherProgram.__name__


def _is_outermost() -> bool:
    """Return True if the code being traced runs once in each run."""
    state = tracer()
    return state.scope is state.regions[0].scope
