"""Branches: `if`, conditional expressions, `and`, `or`, `not` on traced values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from stretto.frontends.python.control.join import ArmEnd, Joiner
from stretto.frontends.python.control.settled import is_left_out, note_divided, settled
from stretto.frontends.python.tracing.contents import evaluated
from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import (
    Abort,
    CaptureSignal,
    NeedsPeel,
    NeedsUnroll,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, active, tracer
from stretto.frontends.python.values.data_dependent_sizes import condition_of_sizes, plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.number_methods import tested
from stretto.frontends.python.values.raises import RaisingArm, is_of_user, leave, raises, stop_at
from stretto.frontends.python.values.scalars import (
    assuming,
    cast_number,
    derive,
    flag_of,
    implied,
    known_value,
    logical,
    negation,
    possible,
)
from stretto.frontends.python.values.state import Snapshot, TracedList
from stretto.ir.core import Value
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ir.types import FLAG
from stretto.ops.properties import properties, stay_reason

# ---- Conditions on sizes that are branches of the program.
#
# `if x.shape[0] > 8` is a guard as long as all calls answer it alike. Once calls have been seen to
# go both ways, one program has both arms and decides by the sizes of each call. The line falls back
# to a guard if that cannot be captured, or if its arms leave values of different kinds, so that all
# code after it would be captured twice.


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


def as_flag(value: Any) -> Any:
    """Replace a condition on sizes that may be stored, compared or asked for its type by a bool or
    a traced flag."""
    if not isinstance(value, torch.SymBool):
        return value
    found = staged(plain(value))
    return bool(found) if isinstance(found, torch.SymBool) else found


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
    outlines = set(state.outlines)
    with state.sizes.calls.under(path) as was_seen:
        if not was_seen:
            fail("no sizes that the guards allow take this branch", "pass other sizes")
        yield True
    for key in state.outlines.keys() - outlines:  # they have guards of this arm
        del state.outlines[key]


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


def joint_condition(is_and: bool, first: Any, following: Callable[[], Any]) -> Any:
    """Return `first and following()` (or `or`) of conditions on sizes as one such condition.

    None if the second is another kind of value, or computing it needs ops of the program.
    """
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
    """Return True if an expression divides by a size, which may be 0."""
    return any(
        not part.args[1].is_number
        for part in sympy.preorder_traversal(expression)
        if isinstance(part, FloorDiv | Mod | PythonMod)
    )


Thunk = Callable[[], Any]


def for_each_option(
    value: Either,
    operation: Callable[[Any], Any],
    frame: CallFrame | None = None,
    live: frozenset[str] = frozenset(),
) -> Any:
    """Apply `operation` to a value that is one of several: a branch on its flags."""
    (flag, option), *rest = pairs = possible(value)
    if any(other is UNDEFINED for _, other in pairs):
        fail(
            "an attribute or item is used that is set in one arm of a traced branch only",
            "set it in both arms",
        )
    if not rest:
        return operation(option)
    refuse_size_dependent_kind(flag)
    other = Either(*zip(*rest, strict=True))
    return branch(
        flag,
        lambda: operation(option),
        lambda: for_each_option(other, operation, frame, live),
        frame,
        live,
    )


def flag_of_options(value: Either, holds: Callable[[Any], bool]) -> Any:
    """Return True, or a traced bool, if the value is an option for which `holds` is True."""
    pairs = possible(value)
    chosen = [flag for flag, option in pairs if holds(option)]
    if len(chosen) in (0, len(pairs)):
        return bool(chosen)
    return reduce(lambda one, other: stage_or(one, lambda: other), chosen)


def merged(flags: Sequence[Any], options: Sequence[Any]) -> Any:
    """Return a value that is one of several, with identical options merged."""
    kept, found = list[Any](), list[Any]()
    for flag, option in zip(flags, options, strict=True):
        at = next((n for n, other in enumerate(kept) if other is option), None)
        if at is None:
            kept.append(option)
            found.append(flag)
        else:
            found[at] = stage_or(found[at], lambda flag=flag: flag)
    return Either(found, kept) if len(kept) > 1 else kept[0]


def is_traced(value: Any) -> bool:
    """Return True if the truth of `value` is known only at run time."""
    if isinstance(value, Either):
        return True
    if isinstance(value, TracedList):
        return value.memory.state.length is None or value.memory.state.length.static is None
    return isinstance(value, TracedTensor) and known_value(value) is None


def truth(value: Any) -> bool:
    """Return the truth of a value that is not traced."""
    if isinstance(value, TracedTensor):
        return bool(known_value(value))
    if isinstance(value, TracedList):
        length = value.memory.state.length
        assert length is not None
        return bool(length.static)
    return bool(value)


def condition_of(value: Any) -> Value:
    """Return the truth of a traced value as an IR flag."""
    if isinstance(value, Either):
        value = for_each_option(value, lambda option: as_flag(stage_not(stage_not(option))))
        if isinstance(value, bool):
            return tracer().literal(value, FLAG.dtype)
    if isinstance(value, TracedList):
        state = tracer()
        return flag_of(state.number(state.list_length(state.current(value.memory))))
    return flag_of(value)


def stage_if(
    frame: CallFrame, condition: Any, then: Thunk, orelse: Thunk, live: tuple[str, ...]
) -> None:
    """An `if` statement; `live` are the variables of the frame that are read afterwards."""
    condition = in_every_run(staged(tested(plain(condition))))
    if not is_traced(condition):
        (then if truth(condition) else orelse)()
        return
    branch(condition, then, orelse, frame, frozenset(live))


def branch(
    condition: Any,
    then: Thunk,
    orelse: Thunk,
    frame: CallFrame | None = None,
    live: frozenset[str] = frozenset(),
) -> Any:
    """Trace both arms and return their joint result. `live`: variables of the frame read
    afterwards."""
    flag = condition_of(condition)
    taken = settled(flag)
    if taken is not None:
        return then() if taken else orelse()
    with both_arms_context(flag) as is_of_sizes:
        return _both_arms(flag, then, orelse, frame, live, is_of_sizes=is_of_sizes)


def _both_arms(
    flag: Value,
    then: Thunk,
    orelse: Thunk,
    frame: CallFrame | None,
    live: frozenset[str],
    *,
    is_of_sizes: bool,
) -> Any:
    """Trace both arms and join them, or continue with the only one that can be captured and does
    not raise."""
    base = Snapshot.take()
    outcomes = list[ArmEnd | RaisingArm | UnknownResult]()
    for arm, other, taken in ((then, orelse, True), (orelse, then, False)):
        try:
            outcomes.append(_arm(base, arm, flag, taken))
        except (Abort, NeedsPeel, NeedsUnroll) as stop:
            if is_of_sizes or not is_left_out(flag, taken, stop.abort.error):
                raise
            base.restore()
            with assuming(flag, not taken):
                return _only(other, stop)
    base.restore()
    for outcome, when in zip(outcomes, (True, False), strict=True):
        if isinstance(outcome, RaisingArm):
            leave(flag, when, outcome)
    match outcomes:
        case ArmEnd() as first, ArmEnd() as second:
            joiner = Joiner(base, first, second, flag, frame, live)
            result = joiner.run()
            if joiner.is_divided:
                note_divided()
            return result
        case (ArmEnd() as only, RaisingArm()) | (RaisingArm(), ArmEnd() as only):
            return _go_on(only)
        case RaisingArm() as first, RaisingArm():
            raise first.again()
        case (UnknownResult() as unknown, _) if not isinstance(outcomes[1], ArmEnd):
            raise unknown
        case (RaisingArm(), unknown):
            assert isinstance(unknown, UnknownResult)
            raise unknown
        case _:
            return orelse() if isinstance(outcomes[0], UnknownResult) else then()


def _only(arm: Thunk, stop: CaptureSignal) -> Any:
    """Trace the only arm that can be captured. If it raises, report why the other one cannot be."""
    try:
        return arm()
    except Exception as error:
        if not raises(error):
            raise
        raise stop from None


def _go_on(world: ArmEnd) -> Any:
    """Continue after the only arm that reaches its end, as if there were no branch."""
    state = tracer()
    state.adopt(world.region)
    world.after.restore()
    for storage, after in world.states.items():
        if storage.state != after:
            state.set_state(storage, after)
    return world.result


def _arm(
    base: Snapshot, arm: Thunk, flag: Value, taken: bool
) -> ArmEnd | RaisingArm | UnknownResult:
    """Trace one arm from `base`. Returns UnknownResult if the arm needs the result type of a
    recursion that is not known yet."""
    base.restore()
    try:
        with (
            tracer().region() as region,
            assuming(flag, taken),
            size_arm(flag, taken) as decides_by_sizes,
        ):
            try:
                result = arm()
            except Exception as error:
                # torch's errors contain the sizes of one call, so they cannot be raised for others
                if not raises(error) or (decides_by_sizes and not is_of_user(error)):
                    raise
                return stop_at(region, error)
            after = Snapshot.take((result,))
            states = {storage: storage.state for storage in region.before}
    except UnknownResult as unknown:
        return unknown
    return ArmEnd(region, after, states, result)


def stage_ifexp(condition: Any, then: Thunk, orelse: Thunk) -> Any:
    """`then() if condition else orelse()`."""
    condition = in_every_run(staged(tested(plain(condition))))
    if active() is None or not is_traced(condition):
        return then() if truth(condition) else orelse()
    return branch(condition, then, orelse)


def in_every_run(condition: Any) -> Any:
    """Return the condition as a bool if it is a tensor with the same value in every run."""
    if active() is None or not isinstance(condition, TracedTensor) or condition.numel() != 1:
        return condition
    found = evaluated(tracer().read(condition), _MOST_OPS_EVALUATED)
    return condition if found is None else bool(found)


def stage_not(value: Any) -> Any:
    value = tested(plain(value))
    of_sizes = branching_condition(value)
    if of_sizes is not None:
        return torch.sym_not(of_sizes)
    if active() is None or not is_traced(value):
        return not truth(value)
    return negation(condition_of(value))


def stage_and(first: Any, *rest: Thunk) -> Any:
    """Return `first and rest[0]() and ...`, or another value of the same truth."""
    return _logical(True, first, rest, _is_flag)


def stage_or(first: Any, *rest: Thunk) -> Any:
    """Return `first or rest[0]() or ...`, or another value of the same truth."""
    return _logical(False, first, rest, _is_flag)


def value_of_and(first: Any, *rest: Thunk) -> Any:
    """`first and rest[0]() and ...`: one of the operands."""
    return _logical(True, first, rest, _is_bool)


def value_of_or(first: Any, *rest: Thunk) -> Any:
    """`first or rest[0]() or ...`: one of the operands."""
    return _logical(False, first, rest, _is_bool)


def _is_flag(value: Any) -> bool:
    """Return True for a bool, and for a bool tensor of one element."""
    is_tensor = isinstance(value, torch.Tensor)
    return value.dtype == torch.bool and value.numel() == 1 if is_tensor else _is_bool(value)


def _is_bool(value: Any) -> bool:
    """Return True for a bool, also one known only at run time."""
    is_number = isinstance(value, TracedTensor) and value.number is not None
    return value.dtype == torch.bool if is_number else isinstance(value, bool)


def _logical(
    is_and: bool, first: Any, rest: tuple[Thunk, ...], is_flag: Callable[[Any], bool]
) -> Any:
    """Compute `and` or `or`. is_flag: True for operands that may be replaced by their truth."""
    first = plain(first)
    if not rest:
        return first

    def others() -> Any:
        return _logical(is_and, rest[0](), rest[1:], is_flag)

    def as_flags() -> Any:
        return as_flag(others())

    decides = tested(first)
    if decides is not first:
        return stage_ifexp(
            decides, *((others, lambda: first) if is_and else (lambda: first, others))
        )
    if isinstance(first, torch.SymBool) and branching_condition(first) is not None:
        both = joint_condition(is_and, first, others)
        if both is not None:
            return both
        first = staged(first)
    if active() is None or not is_traced(first):
        return others() if truth(first) == is_and else first
    flag = condition_of(first)
    if not isinstance(first, TracedTensor) or not is_flag(first):
        return branch(first, *((as_flags, lambda: first) if is_and else (lambda: first, as_flags)))
    spliced = _spliced(as_flags, is_flag)
    if spliced is None:
        keep = cast_number(first, bool)
        return branch(keep, *((as_flags, lambda: False) if is_and else (lambda: True, as_flags)))
    if isinstance(spliced, bool):
        return cast_number(first, bool) if spliced is is_and else spliced
    joint = logical("and" if is_and else "or", flag, spliced)
    if is_and:
        derive(joint, True, (flag, spliced))
    return tracer().number(joint)


def _spliced(operand: Thunk, is_flag: Callable[[Any], bool]) -> Value | bool | None:
    """Return the operand's flag, computed without a branch, if it is cheap and cannot fail; else
    None."""
    state = tracer()
    base = Snapshot.take()
    with state.region() as region:
        result: Any = None
        try:
            result = operand()
        except Exception as error:  # the branch raises it, if the operand is reached
            if not raises(error):
                raise
        if is_flag(result) and not region.before and _is_harmless(region):
            flag = (
                result
                if isinstance(result, bool)
                else flag_of(result if isinstance(result, TracedTensor) else state.promote(result))
            )
        else:
            flag = None
        unchanged = base.is_now()
    base.restore()
    if flag is None or not unchanged:
        return None
    if isinstance(flag, bool):
        return flag
    for op in region.scope.block.ops:
        state.scope.block.ops.append(op)
        for value in op.results:
            state.home[value] = state.scope
    return flag


_MOST_OPS_EVALUATED = 64

_MOST_OPS = 8
"""The largest number of operators of a condition that is computed even where eager would
skip it."""


def _is_harmless(region: TracedRegion) -> bool:
    """Return True if the ops may run even where the program would skip them: none can stop the
    run, none is expensive."""
    ops = region.scope.block.ops
    return len(ops) <= _MOST_OPS and all(
        isinstance(op, LiteralOp | ConstantOp)
        or (isinstance(op, TensorOp) and properties(op.target).is_cheap and stay_reason(op) is None)
        for op in ops
    )


Hooks.use = for_each_option
