"""Loops of the source: each becomes a loop of the Program if its body has one form, or is unrolled.

A `while` on a traced condition is emitted as a WhileOp, a `for` over items with an index as a
ForOp. If the first iteration differs from the others it is peeled. If no form can be found, and the
number of iterations is known, the loop is unrolled.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.fixpoints import (
    AdvancedInside,
    HeadHasEffects,
    Loop,
    SourceLoop,
)
from stretto.frontends.python.interpreter.frames import (
    CONTINUE,
    End,
    LeftByConsumer,
    Perhaps,
    PythonFrame,
    Thrown,
)
from stretto.frontends.python.interpreter.heap import MISSING, RESULT
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import (
    Abort,
    NeedsPeel,
    NeedsUnroll,
    UnknownResult,
)
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.raises import (
    raises,
)

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter
    from stretto.frontends.python.interpreter.iteration import RestOfItems


class SourceLoops:
    """Emits the loops of the source."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.regions = interpreter.regions
        self.peels: dict[Any, Abort] = {}
        """Why the first iteration of a loop runs before it, by loop."""

    def traced_while(self, frame: PythonFrame, node: ast.While, *, runs_once: bool = False) -> Any:
        """Emit a loop, and return how it ends. runs_once: the test holds before it."""

        def test() -> Any:
            return self.interpreter.expressions.test(frame, node.test)

        with self.regions.loop(frame, node):
            return self.emit_while(test, self.body_of(frame, node), runs_once=runs_once)

    def body_of(self, frame: PythonFrame, node: ast.While) -> Callable[[], Any]:
        interpreter = self.interpreter
        return lambda: interpreter.finish(interpreter.statements.block(frame, node.body))

    def repeat(self, head: Callable[[], Any], body: Callable[[], Any]) -> None:
        """Run a body while a condition holds that only the run knows."""
        with self.regions.loop(None):
            self.emit_while(head, body)

    def go_through(self, advance: Callable[[], Any], first: Any, body: Callable[[Any], Any]) -> Any:
        """Run a body for each item: `first`, if it is there, and what `advance` returns."""
        table = self.heap.new_table()
        self.heap.set(table, RESULT, first)

        def head() -> Any:
            self.heap.set(table, RESULT, advance())
            return self.regions.is_bound(table.get(RESULT, MISSING))

        def with_item() -> Any:
            return body(self.regions.present(table.get(RESULT, MISSING)))

        is_there = self.regions.is_bound(first)
        try:
            return self.with_effects(head, with_item, is_there, runs_once=False)
        except UnknownResult:
            return None
        except (AdvancedInside, Thrown):
            raise
        except (Exception, LeftByConsumer) as error:
            return self._raised_at_once(lambda: is_there, with_item, error)

    def emit_while(
        self, test: Callable[[], Any], body: Callable[[], Any], *, runs_once: bool = False
    ) -> Any:
        try:
            return self._while(test, body, runs_once=runs_once)
        except HeadHasEffects:
            return self.with_effects(test, body, MISSING, runs_once=runs_once)
        except UnknownResult:
            return None
        except AdvancedInside:
            raise
        except (Exception, LeftByConsumer) as error:
            return self._raised_at_once(test, body, error)

    def _while(self, test: Callable[[], Any], body: Callable[[], Any], *, runs_once: bool) -> Any:
        user = SourceLoop(self.regions, body)
        try:
            return user.emit(
                lambda: Loop(self.regions, runs_once, not runs_once, of_user=user).run_while(test)
            )
        except NeedsPeel as peel:
            raise peel.abort from None

    def with_effects(
        self, test: Callable[[], Any], body: Callable[[], Any], first: Any, *, runs_once: bool
    ) -> Any:
        """Emit a loop whose test has effects, such as `while (x := f()) > 0`. The test runs before
        the loop and at the end of each iteration, and its outcome is carried, so that it runs as
        often as in eager PyTorch. first: its outcome before the loop, if it has run."""
        table = self.heap.new_table()
        self.heap.set(table, RESULT, test() if first is MISSING else first)

        def again() -> None:
            self.heap.set(table, RESULT, test())

        def iteration() -> Any:
            end = body()
            if isinstance(end, End):
                return again() if end.jump == CONTINUE else end
            stops = [] if end is None else [f for j, f in end.flags.items() if j != CONTINUE]
            if not stops:
                return again()
            self.regions.branch(self.regions.any_of(stops), lambda: None, again)
            return end

        return self._while(lambda: table[RESULT], iteration, runs_once=runs_once)

    def _raised_at_once(
        self, test: Callable[[], Any], body: Callable[[], Any], error: BaseException
    ) -> Any:
        """Emit a loop whose body raises whatever its variables hold: it raises if it is entered.

        Raises `error` itself if it has another cause: a bug of the capture, or types that only
        later iterations have.
        """
        of_program = error.error if isinstance(error, LeftByConsumer) else error
        if not isinstance(of_program, Exception) or not raises(of_program):
            raise error
        ended = False

        def entered() -> None:
            nonlocal ended
            try:
                body()
            except LeftByConsumer as left:
                raise left.error from None
            ended = True

        self.regions.branch(test(), entered, lambda: None)
        if ended:
            raise error
        return None

    def native_while(self, frame: PythonFrame, node: ast.While) -> Any:
        """Run iterations of a `while` as long as its test is known, and go on with a loop of the
        Program. Returns how the loop ends; NotImplemented if its test is False."""
        with self.regions.loop(frame, node):
            return self._native_while(frame, node)

    def _native_while(self, frame: PythonFrame, node: ast.While) -> Any:
        body, is_first = self.body_of(frame, node), True
        if isinstance(node.test, ast.Constant) and self.regions.has_learned():
            # it has been a loop of the Program in an earlier iteration of the loop around it
            with contextlib.suppress(Abort, NeedsUnroll):
                return self.regions.attempt(lambda: self.traced_while(frame, node, runs_once=True))

        def test() -> Any:
            before, self.regions.is_test_of_loop = self.regions.is_test_of_loop, True
            try:
                return self.interpreter.expressions.test(frame, node.test)
            finally:
                self.regions.is_test_of_loop = before

        while True:
            mark, frames = self.heap.mark(), list(self.interpreter.frames)
            runs = self.regions.runs.copy()
            with tracer().transaction() as rollback:
                condition, end, is_known = test(), None, True
                if condition is False or self.regions.is_never(condition):
                    return NotImplemented
                if condition is True:
                    end = body()
                    if isinstance(end, End) and end.jump != CONTINUE:
                        return end
                    if is_first and not _stops(end):
                        is_known = self._is_known(test)
                may_run_once = condition is not True and self.regions.is_always(condition)
                if condition is not True or (is_first and (_stops(end) or not is_known)):
                    rollback()
                    self.heap.undo(mark)
                    self.interpreter.frames[:] = frames
                    self.regions.runs = runs
            if condition is not True:
                found = self._runs_just_once(test, body) if may_run_once else MISSING
                return self.traced_while(frame, node) if found is MISSING else found
            if is_first and (_stops(end) or not is_known):
                try:
                    return self.regions.attempt(
                        lambda: self.traced_while(frame, node, runs_once=True)
                    )
                except (Abort, NeedsUnroll):
                    test()
                    end = body()
            if _stops(end):

                def again() -> Any:
                    return self.while_again(frame, node)

                return self.interpreter.statements.unless_ended(end, again)
            is_first = False

    def _runs_just_once(self, test: Callable[[], Any], body: Callable[[], Any]) -> Any:
        """Run an iteration whose test holds in every run, if the loop surely ends after it, and
        return how; else MISSING."""

        def run() -> Any:
            test()
            end = body()
            if isinstance(end, End) and end.jump != CONTINUE:
                return end
            if not _stops(end) and self.regions.is_never(test()):
                return NotImplemented
            raise HeadHasEffects

        try:
            return self.regions.attempt(run)
        except (Abort, NeedsPeel, NeedsUnroll, UnknownResult, Exception):
            return MISSING

    def _is_known(self, test: Callable[[], Any]) -> bool:
        """True if the next outcome of a test is known. What it does is taken back."""
        mark = self.heap.mark()
        with tracer().transaction() as rollback:
            found = test()
            rollback()
        self.heap.undo(mark)
        return isinstance(found, bool)

    def while_again(self, frame: PythonFrame, node: ast.While) -> Any:
        """Go on with a loop that perhaps has ended."""
        try:
            return self.regions.attempt(lambda: self.traced_while(frame, node))
        except (Abort, NeedsUnroll):
            found = self.native_while(frame, node)
            return None if found is NotImplemented else found

    def traced_for(self, rest: RestOfItems, body: Callable[[Any], Any]) -> Any:
        """Emit a loop over items with an index, and return how it ends. If it cannot be carried,
        run one iteration before it, or unroll it: then the result is NotImplemented."""
        length = rest.source.length
        if isinstance(length, int) and length <= tracer().options.debug.unroll:
            return NotImplemented
        if isinstance(length, Either):
            return NotImplemented
        splits = isinstance(length, TracedTensor)
        known = self.peels.get(self.regions.loop_key())
        if known is not None and _begins(rest.source):
            with contextlib.suppress(Abort, NeedsUnroll, AdvancedInside):
                return self.regions.attempt(lambda: self._peeled(rest, body, known))
        try:
            return self._for(rest, body, 0, splits=splits)
        except NeedsPeel as peel:
            reason = peel.abort
            if splits:
                raise reason from None
            if not _begins(rest.source):
                try:
                    return self._for(rest, body, 0, splits=True)
                except NeedsPeel:
                    raise reason from None
        except (Abort, NeedsUnroll) as stop:
            return self._unroll(rest.source, stop)
        except AdvancedInside:
            return NotImplemented
        except Thrown:
            raise
        except (Exception, LeftByConsumer) as error:
            if isinstance(length, int) or _begins(rest.source):
                raise
            if not isinstance(length, TracedTensor):
                return None

            def entered() -> Any:
                return body(rest.source.item(0))

            return self._raised_at_once(lambda: self.regions.condition(length > 0), entered, error)
        try:
            end = self.regions.attempt(lambda: self._peeled(rest, body, reason))
        except (Abort, NeedsUnroll, AdvancedInside):
            return self._unroll(rest.source, reason)
        self.peels[self.regions.loop_key()] = reason
        return end

    def at(self, rest: RestOfItems, index: Any, body: Callable[[Any], Any]) -> Any:
        """Run the body of a loop for an item."""
        item = rest.source.item(index)
        places = rest.move(self.heap, index + 1) if rest.positions else []
        lengths = rest.lengths()
        end = body(item)
        if not rest.is_at(places) or rest.lengths() != lengths:
            raise AdvancedInside
        rest.move(self.heap, 0)
        return end

    def _for(
        self, rest: RestOfItems, body: Callable[[Any], Any], first: int, *, splits: bool
    ) -> Any:
        state, length = tracer(), rest.source.length
        is_traced = isinstance(length, TracedTensor)
        loops = frozenset[int]() if is_traced else frozenset({state.loop_of(rest.source)})
        user = SourceLoop(self.regions, lambda index: self.at(rest, index, body))

        def run() -> None:
            Loop(self.regions, False, splits, loops, of_user=user).run_for(rest, first)

        try:
            end = user.emit(run)
        except UnknownResult:
            return None
        trips = "tensor-dependent" if is_traced else state.dim(length)
        state.note(f"loop kept ({trips} trips)")
        return end

    def _peeled(self, rest: RestOfItems, body: Callable[[Any], Any], reason: Abort) -> Any:
        """Run the first iteration before the loop."""
        end = self.at(rest, 0, body)
        if isinstance(end, End) and end.jump != CONTINUE:
            rest.move(self.heap, 1)
            return end

        def others() -> Any:
            for splits in (False, True):
                try:
                    return self._for(rest, body, 1, splits=splits)
                except NeedsPeel:
                    pass
            raise reason

        if _stops(end):
            return self.interpreter.statements.unless_ended(end, others)
        return others()

    def _unroll(self, source: Indexed, stop: Abort | NeedsUnroll) -> Any:
        """Report that a loop is unrolled; raise the reason if it cannot be."""
        is_traced = isinstance(source.length, TracedTensor)
        if isinstance(stop, NeedsUnroll):
            if is_traced or tracer().loop_of(source) not in stop.loops:
                raise stop
        elif is_traced or not _begins(source):
            raise stop
        line, why = stop.abort.error.location, stop.abort.error.message
        trips = int(source.length)
        tracer().note(f"loop unrolled ({trips} trips), as in line {line and line.line}: {why}")
        return NotImplemented


def _stops(end: Any) -> bool:
    """True if a block perhaps ends a loop."""
    return isinstance(end, Perhaps) and bool(end.flags.keys() - {CONTINUE})


def _begins(source: Indexed) -> bool:
    """True if the loop runs at least once. For a size, a guard settles this."""
    return not isinstance(source.length, TracedTensor) and bool(source.length > 0)
