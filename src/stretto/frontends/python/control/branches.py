"""Branches: `if`, conditional expressions, `and`, `or`, `not` on traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from stretto.frontends.python.control import size_branches
from stretto.frontends.python.control.join import ArmEnd, Joiner
from stretto.frontends.python.control.settled import is_left_out, note_divided, settled
from stretto.frontends.python.tracing.evaluate import evaluated
from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame
from stretto.frontends.python.tracing.signals import (
    Abort,
    CaptureSignal,
    NeedsPeel,
    NeedsUnroll,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import Region, active, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.flags import assuming, derive, logical, negation, possible
from stretto.frontends.python.values.own_methods import tested
from stretto.frontends.python.values.raises import RaisingArm, is_of_user, leave, raises, stop_at
from stretto.frontends.python.values.scalars import cast_number, flag_of, known_value
from stretto.frontends.python.values.sizes import plain
from stretto.frontends.python.values.state import Snapshot, TracedList
from stretto.ir.core import Value
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ir.types import FLAG
from stretto.ops.properties import properties, stay_reason

Thunk = Callable[[], Any]


def use(
    value: Either,
    operation: Callable[[Any], Any],
    frame: CallFrame | None = None,
    live: frozenset[str] = frozenset(),
) -> Any:
    """The result of `operation` for a value that is one of several: a branch on its flags."""
    (flag, option), *rest = pairs = possible(value)
    if any(other is UNDEFINED for _, other in pairs):
        fail(
            "an attribute or item is used that is set in one arm of a traced branch only",
            "set it in both arms",
        )
    if not rest:
        return operation(option)
    size_branches.refuse_division(flag)
    other = Either(*zip(*rest, strict=True))
    return branch(
        flag,
        lambda: operation(option),
        lambda: use(other, operation, frame, live),
        frame,
        live,
    )


def which(value: Either, holds: Callable[[Any], bool]) -> Any:
    """Whether the value is one of the options for which `holds`: a bool or a traced one."""
    pairs = possible(value)
    chosen = [flag for flag, option in pairs if holds(option)]
    if len(chosen) in (0, len(pairs)):
        return bool(chosen)
    return reduce(lambda one, other: stage_or(one, lambda: other), chosen)


def merged(flags: Sequence[Any], options: Sequence[Any]) -> Any:
    """A value that is one of several, with equal options as one."""
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
    """Whether the truth of `value` is known only at run time."""
    if isinstance(value, Either):
        return True
    if isinstance(value, TracedList):
        return value.memory.state.length is None or value.memory.state.length.static is None
    return isinstance(value, TracedTensor) and known_value(value) is None


def truth(value: Any) -> bool:
    """The truth of a value that is not traced."""
    if isinstance(value, TracedTensor):
        return bool(known_value(value))
    if isinstance(value, TracedList):
        length = value.memory.state.length
        assert length is not None
        return bool(length.static)
    return bool(value)


def condition_of(value: Any) -> Value:
    """The truth of a traced value as an IR flag."""
    if isinstance(value, Either):
        value = use(value, lambda option: size_branches.as_flag(stage_not(stage_not(option))))
        if isinstance(value, bool):
            return tracer().literal(value, FLAG.dtype)
    if isinstance(value, TracedList):
        state = tracer()
        return flag_of(state.number(state.list_length(state.current(value.memory))))
    return flag_of(value)


def stage_if(
    frame: CallFrame, condition: Any, then: Thunk, orelse: Thunk, live: tuple[str, ...]
) -> None:
    """An `if` statement; `live` are the frame's variables read afterwards."""
    condition = in_every_run(size_branches.staged(tested(plain(condition))))
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
    """Trace both arms; the joint result."""
    flag = condition_of(condition)
    taken = settled(flag)
    if taken is not None:
        return then() if taken else orelse()
    with size_branches.branching(flag) as is_of_sizes:
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
    """Traces the only arm that can be captured. If it raises, nothing is left of the branch but the
    reason why the other one cannot."""
    try:
        return arm()
    except Exception as error:
        if not raises(error):
            raise
        raise stop from None


def _go_on(world: ArmEnd) -> Any:
    """Continues after the only arm that reaches its end, as if that arm stood here without a
    branch."""
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
    """Traces one arm from `base`. An arm that needs the result type of a recursion which is not
    known yet is left out."""
    base.restore()
    try:
        with (
            tracer().region() as region,
            assuming(flag, taken),
            size_branches.arm(flag, taken) as decides_by_sizes,
        ):
            try:
                result = arm()
            except Exception as error:
                # torch's errors name the sizes that they are about: those of one call
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
    condition = in_every_run(size_branches.staged(tested(plain(condition))))
    if active() is None or not is_traced(condition):
        return then() if truth(condition) else orelse()
    return branch(condition, then, orelse)


def in_every_run(condition: Any) -> Any:
    """A condition: a bool where a tensor has the same value in every run."""
    if active() is None or not isinstance(condition, TracedTensor) or condition.numel() != 1:
        return condition
    found = evaluated(tracer().read(condition), _MOST_OPS_EVALUATED)
    return condition if found is None else bool(found)


def stage_not(value: Any) -> Any:
    value = tested(plain(value))
    of_sizes = size_branches.divided(value)
    if of_sizes is not None:
        return torch.sym_not(of_sizes)
    if active() is None or not is_traced(value):
        return not truth(value)
    return negation(condition_of(value))


def stage_and(first: Any, *rest: Thunk) -> Any:
    """The truth of `first and rest[0]() and ...`, or what has this truth."""
    return _logical(True, first, rest, _is_flag)


def stage_or(first: Any, *rest: Thunk) -> Any:
    """The truth of `first or rest[0]() or ...`, or what has this truth."""
    return _logical(False, first, rest, _is_flag)


def value_of_and(first: Any, *rest: Thunk) -> Any:
    """`first and rest[0]() and ...`: one of the operands."""
    return _logical(True, first, rest, _is_bool)


def value_of_or(first: Any, *rest: Thunk) -> Any:
    """`first or rest[0]() or ...`: one of the operands."""
    return _logical(False, first, rest, _is_bool)


def _is_flag(value: Any) -> bool:
    """Returns True for True and False, and for a tensor of one of them."""
    is_tensor = isinstance(value, torch.Tensor)
    return value.dtype == torch.bool and value.numel() == 1 if is_tensor else _is_bool(value)


def _is_bool(value: Any) -> bool:
    """Returns True for True and False, also where the value is known only at run time."""
    is_number = isinstance(value, TracedTensor) and value.number is not None
    return value.dtype == torch.bool if is_number else isinstance(value, bool)


def _logical(
    is_and: bool, first: Any, rest: tuple[Thunk, ...], is_flag: Callable[[Any], bool]
) -> Any:
    """is_flag: says of an operand that its truth may take its place."""
    first = plain(first)
    if not rest:
        return first

    def others() -> Any:
        return _logical(is_and, rest[0](), rest[1:], is_flag)

    def as_flags() -> Any:
        return size_branches.as_flag(others())

    decides = tested(first)
    if decides is not first:
        return stage_ifexp(
            decides, *((others, lambda: first) if is_and else (lambda: first, others))
        )
    if isinstance(first, torch.SymBool) and size_branches.divided(first) is not None:
        both = size_branches.joint(is_and, first, others)
        if both is not None:
            return both
        first = size_branches.staged(first)
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
    """The operand's flag computed without a branch, if it is cheap and cannot fail."""
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
"""The most operators of a condition that is computed even where eager PyTorch would skip it."""


def _is_harmless(region: Region) -> bool:
    """Whether every op may be run even where the program would have skipped it: no op can stop the
    run, and none costs much."""
    ops = region.scope.block.ops
    return len(ops) <= _MOST_OPS and all(
        isinstance(op, LiteralOp | ConstantOp)
        or (isinstance(op, TensorOp) and properties(op.target).is_cheap and stay_reason(op) is None)
        for op in ops
    )


Hooks.use = use
