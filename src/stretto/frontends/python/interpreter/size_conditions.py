"""Conditions on sizes that are branches of the program.

`if x.shape[0] > 8` is a guard as long as all calls answer it alike. Once calls have been seen to
go both ways, one program has both arms and decides by the sizes of each call. The line falls back
to a guard if that cannot be captured, or if its arms leave values of different kinds, so that all
code after it would be captured twice.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import sympy
import torch

from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.data_dependent_sizes import condition_of_sizes
from stretto.frontends.python.values.scalars import implied
from stretto.ir.core import Value


def branching_condition(condition: Any) -> torch.SymBool | None:
    """Return the condition, if it is one on sizes of the call that becomes a branch; else None."""
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
    """Return a traced flag for a condition on sizes that is to be a branch; else the condition
    itself."""
    found = branching_condition(condition)
    if found is None:
        return condition
    state, place = tracer(), user_location()
    flag = condition_of_sizes(state, found)
    if flag is None or isinstance(flag, bool) or place is None:
        return condition
    state.size_flags[state.read(flag)] = found.node.expr, place
    state.sizes.calls.branch_on(found.node.expr, place)
    return flag


@contextmanager
def both_arms_context(flag: Value) -> Generator[bool]:
    """Context of both arms of a branch on a flag. Yields True if the flag implies conditions on
    sizes."""
    state = tracer()
    found = [*implied(flag, True), *implied(flag, False)] if state.size_flags else []
    places = [state.size_flags[item][1] for item in found if item in state.size_flags]
    is_of_sizes, place = bool(places), places[0] if places else None
    with state.sizes.calls.branching(place) if is_of_sizes and place else nullcontext():
        yield is_of_sizes


@contextmanager
def size_arm(flag: Value, taken: bool) -> Generator[bool]:
    """Context of the arm that runs if the flag equals `taken`. Yields True if that implies
    conditions on sizes."""
    state, path = tracer(), _path(flag, taken)
    if path is None:
        yield False
        return
    with state.sizes.calls.under(path) as was_seen:
        if not was_seen:
            fail("no sizes that the guards allow take this branch", "pass other sizes")
        yield True


def _path(flag: Value, taken: bool) -> Any:
    """Return the condition on sizes implied by the flag being `taken`; None if there is none."""
    known = tracer().size_flags
    if not known:
        return None
    found = [
        known[item][0] if holds else sympy.Not(known[item][0])
        for item, holds in implied(flag, taken).items()
        if item in known
    ]
    return reduce(sympy.And, found) if found else None


def refuse_size_dependent_kind(flag: Any) -> None:
    """Fail if a value whose kind depends on a size is used: each use would be captured once per
    kind."""
    state = tracer()
    if not state.size_flags or isinstance(flag, bool):
        return
    found = [state.size_flags.get(item) for item in implied(state.read(flag), True)]
    places = [item[1] for item in found if item is not None]
    if places:
        state.sizes.calls.blamed = places[0]
        fail(
            "the code after this branch would be captured once for each of two kinds of values",
            "let both arms leave the same kind of values",
        )
