"""Conditions on sizes that are branches of the program.

`if x.shape[0] > 8` is a guard as long as all calls answer it alike. Once calls have been seen to go
both ways, one program has both arms, and decides by the sizes of each call. A line of which that
cannot be captured, or whose arms leave things of different kinds, so that all that follows would be
captured twice, asks for a guard again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.flags import implied
from stretto.frontends.python.values.size_numbers import condition_of_sizes
from stretto.frontends.python.values.sizes import plain
from stretto.ir.core import Value


def divided(condition: Any) -> torch.SymBool | None:
    """The condition, if it is one on sizes of the call that is to be a branch of the program."""
    if not isinstance(condition, torch.SymBool | torch.SymInt) or active() is None:
        return None
    if not condition.node.has_hint():
        return None
    calls = tracer().sizes.calls
    found: Any = condition if isinstance(condition, torch.SymBool) else condition != 0
    place = user_location()
    if place is None or not calls.divides(found.node.expr):
        return None
    reason = calls.why_guard(place)
    if reason is not None:
        tracer().note(f"a condition on sizes is no branch of the program, since {reason}")
    return found if reason is None else None


def staged(condition: Any) -> Any:
    """A traced flag for a condition on sizes that is to be a branch; else the condition itself."""
    found = divided(condition)
    if found is None:
        return condition
    state, place = tracer(), user_location()
    flag = condition_of_sizes(state, found)
    if flag is None or isinstance(flag, bool) or place is None:
        return condition
    state.size_flags[state.read(flag)] = found.node.expr, place
    state.sizes.calls.branch_on(found.node.expr, place)
    return flag


def as_flag(value: Any) -> Any:
    """A bool, or a traced flag, in the place of a condition on sizes that is more than tested: it
    may be stored, compared, or asked for its type."""
    if not isinstance(value, torch.SymBool):
        return value
    found = staged(plain(value))
    return bool(found) if isinstance(found, torch.SymBool) else found


@contextmanager
def branching(flag: Value) -> Generator[bool]:
    """Around both arms of a branch on a flag. Gives whether that says something of sizes."""
    state = tracer()
    found = [*implied(flag, True), *implied(flag, False)] if state.size_flags else []
    places = [state.size_flags[item][1] for item in found if item in state.size_flags]
    is_of_sizes, place = bool(places), places[0] if places else None
    with state.sizes.calls.branching(place) if is_of_sizes and place else nullcontext():
        yield is_of_sizes


@contextmanager
def arm(flag: Value, taken: bool) -> Generator[bool]:
    """Around the arm of a branch that is run where the flag is as given. Gives whether that says
    something of sizes."""
    state, path = tracer(), _path(flag, taken)
    if path is None:
        yield False
        return
    outlines = set(state.outlines)
    with state.sizes.calls.under(path) as was_seen:
        if not was_seen:
            fail("no call goes this way whose sizes the guards allow", "pass other sizes")
        yield True
    for key in state.outlines.keys() - outlines:  # they have guards of this arm
        del state.outlines[key]


def _path(flag: Value, taken: bool) -> Any:
    """What sizes are like where a flag is as given; None where it says nothing of them."""
    known = tracer().size_flags
    if not known:
        return None
    found = [
        known[item][0] if holds else sympy.Not(known[item][0])
        for item, holds in implied(flag, taken).items()
        if item in known
    ]
    return reduce(sympy.And, found) if found else None


def refuse_division(flag: Any) -> None:
    """Stops the capture where what is one of several things, depending on a size, is used: each
    use would be captured for each of them."""
    state = tracer()
    if not state.size_flags or isinstance(flag, bool):
        return
    found = [state.size_flags.get(item) for item in implied(state.read(flag), True)]
    places = [item[1] for item in found if item is not None]
    if places:
        state.sizes.calls.blamed = places[0]
        fail(
            "what follows would be captured for each of two things of different kinds",
            "let both arms leave the same kind of things",
        )


def joint(is_and: bool, first: Any, following: Callable[[], Any]) -> Any:
    """`first and following()`, or with `or`, of conditions on sizes, as one such condition; None
    where the second is another kind of value, or more than that has to be computed for it."""
    state = tracer()
    expression = first.node.expr if is_and else sympy.Not(first.node.expr)
    calls = state.sizes.calls
    with (
        state.transaction() as rollback,
        calls.under(expression) as was_seen,
        calls.trial() as was_asked,
    ):
        last = state.last_op()
        second = following() if was_seen else None
        is_pure = state.last_op() is last and not was_asked()
        rollback()
    if not is_pure or not isinstance(second, bool | torch.SymBool):
        return None
    if isinstance(second, torch.SymBool) and not second.node.has_hint():
        return None
    if isinstance(second, bool):
        return first if second is is_and else second
    if _divides(second.node.expr):  # where the first decides, it may not be computed
        return None
    return first & second if is_and else first | second


def _divides(expression: Any) -> bool:
    """Whether an expression divides by a size, which may be 0."""
    return any(
        not part.args[1].is_number
        for part in sympy.preorder_traversal(expression)
        if isinstance(part, FloorDiv | Mod | PythonMod)
    )
