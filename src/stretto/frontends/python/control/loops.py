"""Loops: `while` and `for`, captured as WhileOp and ForOp if possible, else run natively."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import CellType
from typing import Any

from stretto.frontends.python.control.branches import (
    branch,
    condition_of,
    for_each_option,
    in_every_run,
    is_traced,
    stage_not,
    truth,
)
from stretto.frontends.python.control.learned import (
    LoopKey,
    forget,
    needs_no_peeling,
    place_of,
    recall,
    remember,
)
from stretto.frontends.python.control.loop_state import LoopState
from stretto.frontends.python.lists.sources import Indexed, as_source
from stretto.frontends.python.tracing.frames import CallFrame
from stretto.frontends.python.tracing.signals import (
    Abort,
    NeedsPeel,
    NeedsUnroll,
    Replan,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import SIZE_BITS, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.data_dependent_sizes import plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import loops_of
from stretto.frontends.python.values.raises import raises
from stretto.frontends.python.values.scalars import LeafKind, logical
from stretto.frontends.python.values.state import Snapshot, TracedList
from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import ForOp, WhileOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import FLAG, INDEX

_ATTEMPTS = 30

Test = Callable[[], Any]
Body = Callable[[Any], None]


@dataclass(frozen=True, slots=True, eq=False)
class UserLoop:
    """A loop of the user's source. `stop` returns whether a break or return has happened; None if
    it has none."""

    frame: CallFrame
    body: Body
    live: frozenset[str]
    code: Hashable
    stop: Test | None = None


def stage_while(
    frame: CallFrame,
    test: Test,
    body: Callable[[], None],
    live: tuple[str, ...],
    place: Hashable = None,
) -> None:
    """`while test(): body()`. Runs natively as long as the test is a Python value. place:
    identifies the loop, by default the code of the body."""
    loop = UserLoop(frame, lambda _: body(), frozenset(live), place or body.__code__)

    def condition() -> Any:
        return plain(test())

    if _runs_natively(loop, condition):
        return
    _traced_while(loop, condition)


def _runs_natively(loop: UserLoop, test: Test) -> bool:
    """Run iterations until the test is False (returns True) or traced (returns False).

    If the test becomes traced in the first iteration, the state from before it is restored and
    the loop is captured without a copy of its first iteration, if its variables allow that.
    """
    state, start = tracer(), Snapshot.take()
    with state.transaction() as rollback:
        condition = test()
        if is_traced(condition):
            known = in_every_run(condition)
            if known is False:
                return True
            rollback()
            start.restore()
            return known is True and _runs_just_once(loop, test)
        if not truth(condition):
            return True
        place = place_of(loop.code)
        if needs_no_peeling(place, start):
            rollback()
            start.restore()
            if _emit_without_peeling(loop, test):
                return True
            forget(place)
            start.restore()
            test()
        loop.body(None)
        condition = test()
        if is_traced(condition):
            rollback()
            start.restore()
            if _emit_without_peeling(loop, test):
                return True
            start.restore()
            test()
            loop.body(None)
            return False
    while truth(condition):
        loop.body(None)
        before = Snapshot.take()
        with state.transaction() as rollback:
            condition = test()
            if is_traced(condition):
                rollback()
                before.restore()
                return False
    return True


def _runs_just_once(loop: UserLoop, test: Test) -> bool:
    """Run an iteration whose test is True in every run, if the test after it is False in every
    run; else restore the state and return False."""
    state, start, place = tracer(), Snapshot.take(), place_of(loop.code)
    if place in state.repeats:
        return False
    with state.transaction() as rollback:
        with suppress(Abort, NeedsPeel, NeedsUnroll, UnknownResult, Exception):
            test()
            loop.body(None)
            after = in_every_run(test())
            if not is_traced(after) and not truth(after):
                return True
        rollback()
        start.restore()
    state.repeats.add(place)
    return False


def _emit_without_peeling(loop: UserLoop, test: Test) -> bool:
    """Try to emit the loop without a copy of its first iteration. Returns False, with the state
    restored, if it cannot be."""
    start = Snapshot.take()
    with tracer().transaction() as rollback:
        try:
            _traced_while(loop, test, runs_once=True)
        except Abort:
            rollback()
            start.restore()
            return False
    return True


class _TestHasEffects(Exception):
    """The test of a loop changes the state."""


def _traced_while(
    loop: UserLoop, test: Test, *, runs_once: bool = False, splits: bool = False
) -> None:
    """Emit a WhileOp. runs_once: the test is true before the first iteration. splits: slots may be
    carried as one of several kinds."""
    state = tracer()
    splits = splits or (not runs_once and place_of(loop.code) in state.hints.splits)
    carry = LoopState(Snapshot.take(), loop.frame, loop.live, runs_once, splits=splits)
    of_loops = frozenset[int]()
    head, body = Block(), Block()

    def trace_round() -> bool:
        nonlocal of_loops, head, body
        with state.region() as region:
            head = region.scope.block
            head.params = carry.begin()
            placed, states = Snapshot.take(), {item: item.state for item in region.before}
            lists = [made.memory for made in carry.made.values() if isinstance(made, TracedList)]
            held = [memory.state for memory in lists]
            condition = test()
            of_loops |= loops_of(condition)
            head.yields = (_flag(condition),)
            writes = any(item.state != states.get(item) for item in region.before)
            grown = [memory.state for memory in lists] != held
            if writes or grown or not placed.is_now():
                raise _TestHasEffects
        with state.region() as region:
            body = region.scope.block
            body.params = carry.begin()
            loop.body(None)
            done = carry.end(region)
            if done:
                body.yields = carry.yields()
        return done

    try:
        _trace_until_settled(carry, place_of(loop.code), trace_round)
    except _TestHasEffects:
        carry.give_up()
        carry.base.restore()
        _traced_with_effects(loop, test, runs_once=runs_once, splits=splits)
        return
    except NeedsPeel as peel:
        carry.give_up()
        if of_loops:
            raise NeedsUnroll(of_loops, peel.abort) from None
        if runs_once or splits:
            raise peel.abort from None
        state.hints.splits.add(place_of(loop.code))
        _restart_if_hopeless()
        state.hints.splits.discard(place_of(loop.code))
        try:
            _traced_while(loop, test, splits=True)
        except Abort:
            raise peel.abort from None
        return
    except UnknownResult:
        carry.give_up()
        return
    except Exception as error:
        carry.give_up()
        _raised_at_once(loop, test, lambda: loop.body(None), error)
        return
    inits = carry.inits()
    op = WhileOp(tuple(inits), head, body)
    results = state.emit(op, [kind.type for kind in carry.kinds()])
    carry.finish(results, loop=op)


def _traced_with_effects(loop: UserLoop, test: Test, *, runs_once: bool, splits: bool) -> None:
    """Trace a loop whose test has effects, such as `while (x := f()) > 0`. The test runs before
    the loop and at the end of each iteration, and its outcome is carried, so it runs as often
    as in eager PyTorch."""
    name = "__stretto_test"
    frame = CallFrame("test of a loop", {name: CellType(test())})
    frames = tracer().frames
    frames.append(frame)

    def body(_: Any) -> None:
        loop.body(None)
        frame.set(name, test())

    try:
        _traced_while(
            replace(loop, body=body),
            lambda: frame.get(name),
            runs_once=runs_once,
            splits=splits,
        )
    finally:
        del frames[frames.index(frame) :]


def _trace_until_settled(carry: LoopState, place: LoopKey, trace_round: Callable[[], bool]) -> None:
    """Trace the body until one trace shows that everything it changes is carried."""
    known = recall(place, carry)
    for attempt in range(_ATTEMPTS):
        carry.base.restore()
        if trace_round():
            if not known or attempt:
                remember(place, carry)
            return
        _restart_if_hopeless()
    fail("a loop's variables keep changing their types", "give them one type before the loop")


def _restart_if_hopeless() -> None:
    """Restart the capture if the loop changes objects that must be part of the state from the
    start. The function must be traced again in any case, and finishing this loop may take long."""
    state = tracer()
    if state.heap.touched.keys() - state.tracked.keys() and state.hints.may_restart():
        state.hints.restarts += 1
        raise Replan


def _raised_at_once(loop: UserLoop, test: Test, body: Callable[[], None], error: Exception) -> None:
    """Emit a loop whose body raises whatever its variables hold: it raises if it is entered.

    Raises `error` itself if it has another cause: a bug of the capture, or types that only
    later iterations have.
    """
    if not raises(error):
        raise error
    ended = False

    def entered() -> None:
        nonlocal ended
        body()
        ended = True

    branch(test(), entered, lambda: None, loop.frame, loop.live)
    if ended:
        raise error


def _flag(condition: Any) -> Value:
    if is_traced(condition):
        return condition_of(condition)
    return tracer().literal(truth(condition), FLAG.dtype)


def stage_for(
    frame: CallFrame,
    iterable: Any,
    body: Body,
    live: tuple[str, ...],
    stop: Test | None = None,
    place: Hashable = None,
) -> None:
    """`for item in iterable: body(item)`, until `stop()`. place: identifies the loop, by default
    the code of the body."""
    source = as_source(iterable)
    loop = UserLoop(frame, body, frozenset(live), place or body.__code__, stop)
    if source is None:
        _native(iter(iterable), loop)
        return
    if isinstance(source.length, Either):  # the length of one of several lists

        def of_length(length: Any) -> None:
            stage_for(frame, Indexed(length, source.item), body, live, stop, place)

        for_each_option(source.length, of_length, frame, frozenset(live))
        return
    static = source.length if isinstance(source.length, int) else None
    if static is not None and static <= tracer().options.debug.unroll:
        _unrolled(source, loop, 0)
        return
    _keep_or_unroll(source, loop, static)


def _keep_or_unroll(source: Indexed, loop: UserLoop, static: int | None, first: int = 0) -> None:
    """Emit a loop from iteration `first` on. If it cannot be carried, run one iteration before it,
    or unroll it."""
    state = tracer()
    base = Snapshot.take()
    block, last = state.scope.block, state.last_op()
    reason, whole = None, first
    may_unroll = first > 0 and not isinstance(source.length, TracedTensor)
    while True:
        try:
            _traced_for(source, loop, first, reason is not None)
            state.note(f"loop kept ({_trips_text(source)} trips)")
            return
        except UnknownResult:
            _rewind(base, block, last)
            return
        except NeedsPeel as peel:
            if first >= 1 or not _begins(source):
                is_second, reason = reason is not None, reason or peel.abort
                if not is_second:
                    continue
                if not may_unroll:
                    raise reason from None
                _rewind(base, block, last)
                _unroll(source, loop, whole, reason)
                return
            _rewind(base, block, last)
            loop.body(source.item(0))
            first = 1
            if loop.stop is not None and is_traced(loop.stop()):
                _stop_or(loop, lambda: _keep_or_unroll(source, loop, static, 1))
                return
            if loop.stop is not None and truth(loop.stop()):
                return
        except Abort as error:
            if not may_unroll:
                raise reason or error from None
            _rewind(base, block, last)
            _unroll(source, loop, whole, reason or error)
            return
        except NeedsUnroll as unroll:
            if state.loop_of(source) not in unroll.loops or isinstance(source.length, TracedTensor):
                raise
            _rewind(base, block, last)
            _unroll(source, loop, whole, unroll.abort)
            return
        except Exception as error:
            if first or static is not None or _begins(source):
                raise
            _rewind(base, block, last)
            if not isinstance(source.length, TracedTensor):
                return
            _raised_at_once(
                loop, lambda: _has_items(source), lambda: loop.body(source.item(0)), error
            )
            return


def _unroll(source: Indexed, loop: UserLoop, first: int, reason: Abort) -> None:
    assert not isinstance(source.length, TracedTensor)
    trips, line = int(source.length), reason.error.location
    why = reason.error.message
    tracer().note(f"loop unrolled ({trips} trips), as in line {line and line.line}: {why}")
    _unrolled(source, loop, first)


def _begins(source: Indexed) -> bool:
    """Return True if the loop runs at least once. For a size, a guard settles this."""
    return not isinstance(source.length, TracedTensor) and bool(source.length > 0)


def _trips_text(source: Indexed) -> str:
    if isinstance(source.length, TracedTensor):
        return "tensor-dependent"
    return str(tracer().dim(source.length))


def _has_items(source: Indexed) -> Any:
    state = tracer()
    assert isinstance(source.length, TracedTensor)
    values = (state.read(source.length), state.literal(0, INDEX.dtype))
    return state.number(state.tensor_op("aten.gt.Tensor", values, FLAG))


def _rewind(base: Snapshot, block: Block, last: Op | None) -> None:
    base.restore()
    tracer().take_back(block, last)


def _native(items: Any, loop: UserLoop) -> None:
    """Run a loop over `items` in Python while tracing its body."""
    for item in items:
        loop.body(item)
        if loop.stop is None:
            continue
        stopped = loop.stop()
        if is_traced(stopped):
            _stop_or(loop, lambda: _native(items, loop))
            return
        if truth(stopped):
            return


def _unrolled(source: Indexed, loop: UserLoop, first: int) -> None:
    """Run the iterations from `first` on one after another."""
    assert not isinstance(source.length, TracedTensor)
    _native((source.item(index) for index in range(first, int(source.length))), loop)


def _stop_or(loop: UserLoop, rest: Callable[[], None]) -> None:
    """Continue unless a traced break has happened."""
    assert loop.stop is not None
    branch(stage_not(loop.stop()), rest, lambda: None, loop.frame, loop.live)


def _traced_for(source: Indexed, loop: UserLoop, first: int, splits: bool) -> None:
    """Trace a loop with a symbolic index from iteration `first` on."""
    state = tracer()
    trips = None if isinstance(source.length, TracedTensor) else state.dim(source.length)
    runs = trips is not None and at_most(first + 1, trips)
    loops = frozenset[int]() if trips is None else frozenset({state.loop_of(source)})
    if isinstance(trips, Size):
        state.sized_loops |= loops
    carry = LoopState(Snapshot.take(), loop.frame, loop.live, runs, loops, splits=splits)
    body, stopped = Block(), False

    def trace_round() -> bool:
        nonlocal body, stopped
        with state.region() as region:
            body = region.scope.block
            index = state.param(INDEX, "i")
            state.not_negative.add(index)
            body.params = (index, *carry.begin())
            loop.body(source.item(state.number(index, loops=loops, bits=SIZE_BITS)))
            done = _ended(carry, region)
            stopped = _may_stop(loop)
            if done:
                body.yields = carry.yields()
                if stopped:
                    one = state.literal(1, INDEX.dtype)
                    following = state.tensor_op("aten.add.Tensor", (index, one), INDEX)
                    body.yields = (following, *body.yields)
        return done

    _trace_until_settled(carry, place_of(loop.code, first=first), trace_round)
    if stopped:
        _emit_while(source, loop, carry, body, first)
    else:
        _emit_for(source, carry, body, first)


def _ended(carry: LoopState, region: TracedRegion) -> bool:
    """Call `carry.end`. If an iteration must be run before the loop (NeedsPeel), first restore the
    state from before the loop."""
    try:
        return carry.end(region)
    except NeedsPeel:
        carry.give_up()
        raise


def _may_stop(loop: UserLoop) -> bool:
    if loop.stop is None:
        return False
    stopped = loop.stop()
    return is_traced(stopped) or truth(stopped)


def _emit_for(source: Indexed, carry: LoopState, body: Any, first: int) -> None:
    state = tracer()
    inits = carry.inits()
    length, trips = source.length, None
    if isinstance(length, TracedTensor):
        stop = state.read(length)
    else:
        stop = state.dim(length)
        trips = (Size.of(stop) - first).dim
    op = ForOp(first, stop, 1, tuple(inits), body)
    results = state.emit(op, [kind.type for kind in carry.kinds()])
    carry.finish(results, trips, op)


def _emit_while(source: Indexed, loop: UserLoop, carry: LoopState, body: Any, first: int) -> None:
    """Emit a `for` that may stop early as a while loop that carries the index."""
    state = tracer()
    assert loop.stop is not None
    with state.region() as head:
        index = state.param(INDEX, "i")
        state.not_negative.add(index)
        params = carry.begin()
        length = source.length
        known = length if isinstance(length, TracedTensor) else state.number_of_dim(length)
        is_number = isinstance(known, int)
        bound = state.literal(known, INDEX.dtype) if is_number else state.read(known)
        more = state.tensor_op("aten.lt.Tensor", (index, bound), FLAG)
        going = logical("not", _flag(loop.stop()))
        head.scope.block.params = (index, *params)
        head.scope.block.yields = (logical("and", more, going),)
    inits = (state.literal(first, INDEX.dtype), *carry.inits())
    kinds = [LeafKind(INDEX, True), *carry.kinds()]
    op = WhileOp(inits, head.scope.block, body)
    results = state.emit(op, [kind.type for kind in kinds])
    carry.finish(results[1:], loop=op)
