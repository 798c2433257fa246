"""Generators of interpreted functions, and generator expressions.

A generator that nothing has been taken of is *pushed* by what goes through all of it: its
statements run, and each `yield` runs the code that takes the value. So branches and loops around a
`yield` are those of the Program. Otherwise values are *pulled*: the statements run in a host
generator, which stops at each `yield`. As a host generator can be neither copied nor undone, it is
not advanced in a loop of the Program outside of which it has started, nor behind an arm in which it
was advanced.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import (
    CONTINUE,
    RETURN,
    End,
    Left,
    LeftByConsumer,
    Perhaps,
    PythonFrame,
    Stopped,
    Thrown,
    thrown,
)
from stretto.frontends.python.interpreter.heap import MISSING, IteratorRef, Table
from stretto.frontends.python.interpreter.iterators import (
    BODY,
    DONE,
    FRAME,
    IS_PRIVATE,
    LAST,
    LEFT,
    RUN,
    SOURCE,
)
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class PulledGenerator:
    """The host generator that runs the statements of a generator of the program, which has a
    `table`. scope: where it was advanced last. rounds: the iterations of loops of the Program that
    contain this place."""

    def __init__(self, steps: Generator[Any, Any, Any], table: Table) -> None:
        self.steps, self.table = steps, table
        self.scope: Any = None
        self.rounds: tuple[Any, ...] = ()
        self.is_running = False
        self.handled: list[Any] = [()]
        self.replaced: list[Any] = [()]

    def has_started(self) -> bool:
        """True between its first statement and its last one."""
        return inspect.getgeneratorstate(self.steps) == inspect.GEN_SUSPENDED

    @contextmanager
    def handling(self) -> Generator[None]:
        """While it runs, the handlers that are open are those of the generator, and, as the first
        ones, those around the code that advances it."""
        tries = tracer().tries
        outer = tries.handled, tries.replaced
        self.handled[0] = (StopIteration, *itertools.chain(*outer[0]))
        self.replaced[0] = tuple(itertools.chain(*outer[1]))
        tries.handled, tries.replaced = self.handled, self.replaced
        try:
            yield
        finally:
            tries.handled, tries.replaced = outer


class Generators:
    """Generators of the program."""

    kind = types.GeneratorType

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.kept: list[PulledGenerator] = []

    def new(self, frame: PythonFrame, body: list[ast.stmt]) -> IteratorRef:
        """Return a generator that runs statements. LAST: what it returns. LEFT: True if a loop
        has left it."""
        return self.interpreter.iteration.iterators.new(
            self.kind, {FRAME: frame, BODY: body, DONE: False, LAST: None, LEFT: False}
        )

    def expression(self, frame: PythonFrame, node: ast.GeneratorExp) -> IteratorRef:
        """Return the generator of an expression: its `for` clauses are nested loops."""
        expressions = self.interpreter.expressions
        source = self.interpreter.iteration.iterator(
            expressions.value(frame, node.generators[0].iter)
        )
        inner = PythonFrame(frame.function, frame.code, self.heap.new_table(), parent=frame)
        inner.node = frame.node
        body: list[ast.stmt] = [ast.Expr(ast.Yield(node.elt))]
        for number, part in reversed(list(enumerate(node.generators))):
            for condition in reversed(part.ifs):
                body = [ast.If(condition, body, [])]
            iterable = part.iter if number else ast.Constant(source)
            body = [ast.For(part.target, iterable, body, [])]
        made = self.new(inner, body)
        if len(node.generators) == 1 and not has_yield(node.elt):
            made.table[SOURCE] = source, node
        return made

    # -- one value ------------------------------------------------------------------------------

    def advance(self, generator: IteratorRef) -> Any:
        if SOURCE in generator.table:
            return self._next_of_expression(generator)
        return self.resume(generator, lambda steps: next(steps))

    def _next_of_expression(self, generator: IteratorRef) -> Any:
        (source, node), interpreter = generator.table[SOURCE], self.interpreter
        self.check_usable(generator)
        outer: PythonFrame = generator.table[FRAME]
        makes_functions = any(isinstance(item, ast.Lambda) for item in ast.walk(node.elt))
        conditions = node.generators[0].ifs

        def made_of(item: Any) -> Any:
            frame = outer
            if not makes_functions:
                frame = PythonFrame(
                    outer.function, outer.code, self.heap.new_table(), parent=outer.parent
                )
            frame.node = outer.node
            interpreter.statements.assign(frame, node.generators[0].target, item)
            holds = True
            if conditions:
                holds = interpreter.expressions.test(frame, ast.BoolOp(ast.And(), conditions))

            def value() -> Any:
                return interpreter.expressions.value(frame, node.elt)

            return interpreter.iteration.iterators.kept(holds, value)

        return interpreter.regions.branch(
            generator.table[DONE],
            lambda: MISSING,
            lambda: interpreter.iteration.iterators.first_of(source, made_of),
        )

    def check_usable(self, generator: IteratorRef) -> None:
        if generator.table[FRAME].consumer is not None:
            fail("a generator is advanced in a loop over it", "call next() in a while loop")
        if generator.table[LEFT] is not False:
            fail(
                "a generator is advanced after a loop that left it by break or return",
                "take its values by next() in a while loop",
            )

    def resume(self, generator: IteratorRef, act: Callable[[Generator[Any, Any, Any]], Any]) -> Any:
        """Let a generator run to its next value, which is MISSING at its end."""
        self.check_usable(generator)
        done = generator.table[DONE]
        if done is False:
            return self._run(generator, act)
        return self.interpreter.regions.branch(
            done, lambda: MISSING, lambda: self._run(generator, act)
        )

    def _run(self, generator: IteratorRef, act: Callable[[Generator[Any, Any, Any]], Any]) -> Any:
        table, interpreter = generator.table, self.interpreter
        run, frame = self._pulled(generator), table[FRAME]
        run.is_running = True
        depth = len(interpreter.frames)
        interpreter.frames.append(frame)
        try:
            with run.handling():
                return act(run.steps)
        except StopIteration as stop:
            self.heap.set(table, DONE, True)
            self.heap.set(table, LAST, stop.value)
            return MISSING
        except Stopped as stop:
            self.heap.set(table, DONE, True)
            raise RuntimeError("generator raised StopIteration") from stop.error
        except Exception:
            self.heap.set(table, DONE, True)
            raise
        finally:
            run.is_running = False
            del interpreter.frames[depth:]

    def _pulled(self, generator: IteratorRef) -> PulledGenerator:
        table, rounds = generator.table, tuple(self.interpreter.regions.rounds)
        run = table.get(RUN, MISSING)
        if run is MISSING:
            run = PulledGenerator(self._steps(table[FRAME], table[BODY]), table)
            self.kept.append(run)
            self.heap.set(table, RUN, run)
        elif not isinstance(run, PulledGenerator) or not run.scope.open or run.rounds != rounds:
            fail(
                "a generator from outside is advanced in a traced branch or loop",
                "make it there, or use a list and an index",
            )
        if run.is_running:
            raise ValueError("generator already executing")
        run.scope, run.rounds = tracer().scope, rounds
        return run

    def _steps(self, frame: PythonFrame, body: list[ast.stmt]) -> Generator[Any, Any, Any]:
        end = yield from self.interpreter.statements.block(frame, body)
        return self.interpreter.returned(end)

    def send(self, generator: IteratorRef, value: Any) -> Any:
        has_started = generator.table.get(RUN, MISSING) is not MISSING
        if value is not None and not has_started and generator.table[DONE] is False:
            raise TypeError("can't send non-None value to a just-started generator")
        return self._value(generator, self.resume(generator, lambda steps: steps.send(value)))

    def throw(self, generator: IteratorRef, error: Any, *rest: Any) -> Any:
        if isinstance(error, type) and issubclass(error, BaseException):
            held = rest[0] if rest else None
            given = held if isinstance(held, tuple) else () if held is None else (held,)
            is_one = isinstance(held, error)
            error = held if is_one else self.interpreter.calls.call(error, given, {})
        if not isinstance(error, BaseException):
            kind = self.interpreter.attributes.type_of(error).__name__
            raise TypeError(
                f"exceptions must be classes or instances deriving from BaseException, not {kind}"
            )
        if generator.table[DONE] is True:
            raise thrown(error)
        found = self.resume(generator, lambda steps: steps.throw(thrown(error)))
        return self._value(generator, found)

    def _value(self, generator: IteratorRef, found: Any) -> Any:
        if found is MISSING:
            value = generator.table[LAST]
            raise Stopped(StopIteration(*([] if value is None else [value])))
        return found

    def close(self, generator: IteratorRef) -> None:
        if generator.table.get(RUN, MISSING) is MISSING or generator.table[DONE] is True:
            self.heap.set(generator.table, DONE, True)
            return
        frame: PythonFrame = generator.table[FRAME]
        frame.is_closing = True
        try:
            self.resume(generator, lambda steps: steps.close())
        except Thrown as raised:
            if not isinstance(raised.error, GeneratorExit):
                raise
        finally:
            frame.is_closing = False
        self.heap.set(generator.table, DONE, True)

    def check_dropped(self, start: int = 0) -> None:
        """Fail if a generator, made since there were `start`, is inside of one of its `try` or
        `with` statements at the end of the call, an arm or an iteration: Python runs what is left
        of these when it drops the generator."""
        for run in self.kept[start:]:
            table = run.table
            is_left = table.get(RUN) is run and table[DONE] is not True and run.has_started()
            if is_left and table[FRAME].tries and any(map(_acts_at_end, table[BODY])):
                fail(
                    "a generator is not run to its end, and has left open a try or with statement",
                    "take all its values, or call its close()",
                )

    # -- all values -----------------------------------------------------------------------------

    def is_fresh(self, generator: IteratorRef) -> bool:
        return generator.table.get(RUN, MISSING) is MISSING

    def push(self, generator: IteratorRef, body: Callable[[Any], Any], unrolls: bool) -> Any:
        """Run the generator, and a body for each of its values; return how the body ends."""
        self.check_usable(generator)
        return self.interpreter.regions.branch(
            generator.table[DONE],
            lambda: None,
            lambda: self._push(generator, body, unrolls),
            joins_ends=True,
        )

    def _push(self, generator: IteratorRef, body: Callable[[Any], Any], unrolls: bool) -> Any:
        table, interpreter = generator.table, self.interpreter
        frame: PythonFrame = table[FRAME]
        outer = list(interpreter.frames)

        def consumer(value: Any) -> Any:
            inner = list(interpreter.frames)
            interpreter.frames[:] = outer
            try:
                return body(value)
            except Exception as error:
                raise LeftByConsumer(error, frame) from None
            finally:
                interpreter.frames[:] = inner

        frame.consumer, frame.unrolls = consumer, unrolls
        interpreter.frames.append(frame)
        try:
            with interpreter.contexts.catching(StopIteration):
                end = interpreter.finish(interpreter.statements.block(frame, table[BODY]))
        except LeftByConsumer as left:
            self.heap.set(table, LEFT, SOURCE not in table)
            if left.frame is not frame:
                raise
            raise left.error from None
        except Stopped as stop:
            self.heap.set(table, DONE, True)
            raise RuntimeError("generator raised StopIteration") from stop.error
        except Exception:
            self.heap.set(table, DONE, True)
            raise
        finally:
            frame.consumer = None
            interpreter.frames[:] = outer
        return self._pushed(generator, end)

    def _pushed(self, generator: IteratorRef, end: Any) -> Any:
        """Return how the consumer of a generator ends, by the end of the generator."""
        table = generator.table
        flags = {end.jump: True} if isinstance(end, End) else dict(end.flags) if end else {}
        left = {jump.jump: flag for jump, flag in flags.items() if isinstance(jump, Left)}
        has_left = self.interpreter.regions.any_of([False, *left.values()])
        if SOURCE in table:  # all that it knows between two values is where its source is
            self.heap.set(table, DONE, self.interpreter.regions.negated(has_left))
        else:
            self.heap.set(table, DONE, True)
            self.heap.set(table, LEFT, has_left)
        if RETURN in flags:
            value = self.interpreter.regions.choose(flags[RETURN], end.value, None)
            self.heap.set(table, LAST, value)
        if not left:
            return None
        if isinstance(end, End):
            return End(next(iter(left)), end.value)
        return Perhaps(left, end.value)

    def let_go(self, iterator: Any) -> None:
        """Note that only the loop over an iterator has it: a loop that is left closes it."""
        if not isinstance(iterator, IteratorRef):
            return
        if self.interpreter.iteration.is_generator(iterator):
            iterator.table[FRAME].is_let_go = True
        elif iterator.table.get(IS_PRIVATE):
            for part in iterator.table[SOURCE]:
                self.let_go(part)

    def consume(self, frame: PythonFrame, value: Any) -> Any:
        """Give a value to the code around a pushed generator; return how the generator goes on."""
        assert frame.consumer is not None
        end = frame.consumer(value)
        match end:
            case End(jump=jump, value=value):
                return None if jump == CONTINUE else End(Left.by(jump), value)
            case Perhaps(flags=flags, value=value):
                left: dict[str, Any] = {
                    Left.by(jump): flag for jump, flag in flags.items() if jump != CONTINUE
                }
                return Perhaps(left, value) if left else None
            case _:
                return None

    # -- expressions that contain a yield -------------------------------------------------------

    def evaluate(self, frame: PythonFrame, node: ast.expr) -> Generator[Any, Any, Any]:
        """Evaluate an expression that may contain a `yield`."""
        expressions = self.interpreter.expressions
        if not has_yield(node):
            return expressions.value(frame, node)
        match node:
            case ast.Yield() | ast.YieldFrom():
                value, end = yield from self.yielded(frame, node)
                if end is not None:
                    fail(
                        "a loop over a generator is left at a yield inside of an expression",
                        "make the yield a statement",
                    )
                return value
            case ast.BoolOp(op=op, values=values):
                value: Any = None
                for item in values:
                    value = yield from self.evaluate(frame, item)
                    if item is not values[-1]:
                        truth = expressions.known(self.interpreter.operators.truth(value))
                        if truth is not isinstance(op, ast.And):
                            break
                return value
            case ast.IfExp(test=test, body=body, orelse=orelse):
                value = yield from self.evaluate(frame, test)
                truth = expressions.known(self.interpreter.operators.truth(value))
                return (yield from self.evaluate(frame, body if truth else orelse))
            case ast.Compare(ops=[_, _, *_]) | ast.Dict():
                fail(
                    "a yield in a dict or a chain of comparisons",
                    "assign its value to a variable first",
                )
            case _:
                strict = yield from self._strict(frame, node)
                return expressions.value(frame, strict)

    def _strict(self, frame: PythonFrame, node: Any) -> Generator[Any, Any, Any]:
        """Return an expression whose parts are evaluated, in the order of Python."""
        made = copy.copy(node)
        fields = node._fields
        for name in fields:
            value = getattr(node, name)
            if isinstance(value, list):
                items = []
                for item in value:
                    items.append((yield from self._part(frame, item)))
                setattr(made, name, items)
            else:
                setattr(made, name, (yield from self._part(frame, value)))
        return made

    def _part(self, frame: PythonFrame, part: Any) -> Generator[Any, Any, Any]:
        match part:
            case ast.Name(ctx=ast.Store()):
                return part
            case ast.Starred() | ast.keyword() | ast.FormattedValue() | ast.Slice():
                return (yield from self._strict(frame, part))
            case ast.expr():
                return ast.Constant((yield from self.evaluate(frame, part)))
            case _:
                return part

    def yielded(
        self, frame: PythonFrame, node: ast.Yield | ast.YieldFrom
    ) -> Generator[Any, Any, Any]:
        """Evaluate a `yield`. Return its value, and how the block ends there."""
        if isinstance(node, ast.YieldFrom):
            value = yield from self.evaluate(frame, node.value)
            return (yield from self._delegate(frame, value, isinstance(node.value, ast.Call)))
        value = None
        if node.value is not None:
            value = yield from self.evaluate(frame, node.value)
        if frame.consumer is not None:
            return None, self.consume(frame, value)
        return (yield value), None

    def _delegate(
        self, frame: PythonFrame, iterable: Any, is_new: bool
    ) -> Generator[Any, Any, Any]:
        iteration = self.interpreter.iteration
        iterator = iteration.iterator(iterable)
        if is_new:
            self.let_go(iterator)
        is_generator = isinstance(iterator, IteratorRef) and iteration.is_generator(iterator)
        if frame.consumer is not None:
            end = iteration.each(iterator, lambda x: self.consume(frame, x), unrolls=frame.unrolls)
            return (iterator.table[LAST] if is_generator else None), end
        sent: Any = None
        item = iteration.advance(iterator)
        while item is not MISSING:
            if self.interpreter.regions.is_bound(item) is not True:
                fail("the number of values of a yield from depends on a tensor", "use a loop")
            try:
                sent = yield item
            except (Exception, GeneratorExit) as error:
                of_program = isinstance(error, Thrown) or frame.is_closing
                if isinstance(getattr(error, "error", error), GeneratorExit) and of_program:
                    self._close_inner(iterator, is_generator)
                    raise
                if isinstance(error, GeneratorExit):  # of the host
                    raise
                if is_generator:
                    item = self.resume(iterator, lambda steps, e=error: steps.throw(e))
                    continue
                if self.interpreter.attributes.lookup(iterator, "throw") is not MISSING:
                    fail("an iterator gets an exception by yield from", "use a generator")
                raise
            if sent is None:
                item = iteration.advance(iterator)
            elif is_generator:
                item = self.resume(iterator, lambda steps, x=sent: steps.send(x))
            else:
                send = self.interpreter.attributes.getattr(iterator, "send")
                item = self.interpreter.calls.call(send, (sent,), {})
        return (iterator.table[LAST] if is_generator else None), None

    def _close_inner(self, iterator: Any, is_generator: bool) -> None:
        """Close the iterator of a `yield from` whose generator is closed."""
        if is_generator:
            self.close(iterator)
            return
        close = self.interpreter.attributes.lookup(iterator, "close")
        if close is not MISSING:
            self.interpreter.calls.call(close, (), {})


def _acts_at_end(statement: ast.stmt) -> bool:
    """True for a statement that Python may run a part of when it drops a generator inside of it."""
    return any(
        isinstance(node, ast.With)
        or (isinstance(node, ast.Try) and bool(node.finalbody))
        or (isinstance(node, ast.ExceptHandler) and _catches_exit(node.type))
        for node in ast.walk(statement)
    )


def _catches_exit(kind: ast.expr | None) -> bool:
    names = (
        set[str]() if kind is None else {n.id for n in ast.walk(kind) if isinstance(n, ast.Name)}
    )
    return kind is None or bool(names & {"GeneratorExit", "BaseException"})


def has_yield(node: Any) -> bool:
    """True if the expression yields, not counting functions inside of it."""
    found: bool | None = getattr(node, "stretto_yields", None)
    if found is None:
        found = isinstance(node, ast.Yield | ast.YieldFrom) or (
            not isinstance(node, ast.Lambda | ast.FunctionDef | ast.ClassDef)
            and any(map(has_yield, ast.iter_child_nodes(node)))
        )
        setattr(node, "stretto_yields", found)  # noqa: B010 - a note on the node
    return found
