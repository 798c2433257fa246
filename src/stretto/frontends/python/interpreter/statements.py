"""Statements: each returns how it ends, or None if the next one runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.ends_of_iterators import (
    StatementWithNext,
    takes_next,
)
from stretto.frontends.python.interpreter.expressions import BINARY
from stretto.frontends.python.interpreter.frames import (
    BREAK,
    CONTINUE,
    RETURN,
    End,
    Left,
    LeftByConsumer,
    Perhaps,
    PythonFrame,
    Raised,
    of_program,
    raised_in,
    thrown,
)
from stretto.frontends.python.interpreter.generators import has_yield
from stretto.frontends.python.interpreter.heap import MISSING, DataRef, IteratorRef
from stretto.frontends.python.interpreter.joins import LiveNames
from stretto.frontends.python.interpreter.syntax import (
    DoStatement,
)
from stretto.frontends.python.source.syntax_trees import jumps_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.texts import is_text

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class Statements:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.expressions = interpreter.expressions

    def block(self, frame: PythonFrame, statements: list[ast.stmt]) -> Generator[Any, Any, Any]:
        for number, statement in enumerate(statements):
            frame.node = statement
            rest = statements[number + 1 :]
            if takes_next(frame, statement) and not any(map(has_yield, rest)):
                split = StatementWithNext(self.interpreter, frame, statement)
                statement = split.rest
                if split.hole is not None:
                    left, live = [statement, *rest], live_after(frame, statements[-1])
                    return split.branch(partial(self.rest_of_block, frame, left), live)
            simple = SIMPLE.get(type(statement))
            if simple is not None:
                simple(self, frame, statement)
                continue
            if isinstance(statement, ast.If):
                end, is_last = yield from self.branch(frame, statement, rest)
                if is_last:
                    return end
            else:
                compound = COMPOUND.get(type(statement))
                if compound is None:
                    named = (
                        "except*" if isinstance(statement, ast.TryStar) else "an async statement"
                    )
                    fail(f"{named} is not captured", "use plain functions and try statements")
                end = yield from compound(self, frame, statement)
            if end is None:
                continue
            if isinstance(end, End) or not rest:
                return end
            return self.after(frame, end, partial(self.rest_of_block, frame, rest))
        return None

    def rest_of_block(self, frame: PythonFrame, rest: list[ast.stmt]) -> Any:
        return self.interpreter.finish(self.block(frame, rest))

    def after(self, frame: PythonFrame, end: Perhaps, rest: Callable[[], Any]) -> Any:
        """Run the rest of a block if it has not ended."""
        ended = self.interpreter.regions.any_of(end.flags.values())
        return self.interpreter.regions.branch(
            ended, lambda: self.interpreter.regions.forced(end), rest, joins_ends=True
        )

    def branch(
        self, frame: PythonFrame, node: ast.If, rest: list[ast.stmt]
    ) -> Generator[Any, Any, tuple[Any, bool]]:
        """Execute an `if`; return how it ends, and True if the rest of its block has run, too.

        After a branch on a traced value of which one arm always leaves the block, the rest is part
        of the other arm: no flag has to say which one ran.
        """
        condition = yield from self.perhaps_yielding_test(frame, node.test)
        if isinstance(condition, bool):
            end = yield from self.block(frame, node.body if condition else node.orelse)
            return end, False
        arms = [node.body, node.orelse]
        jumps = list(map(_always_jumps, arms))
        takes_rest = any(jumps) and not any(map(has_yield, rest))
        if takes_rest:
            arms = [
                arm if leaves else [*arm, *rest] for arm, leaves in zip(arms, jumps, strict=True)
            ]
        then, orelse = (
            lambda arm=arm: self.interpreter.finish(self.block(frame, arm)) for arm in arms
        )
        last = rest[-1] if takes_rest and rest else node
        live = live_after(frame, last)
        end = self.interpreter.regions.branch(condition, then, orelse, joins_ends=True, live=live)
        return end, takes_rest

    def test_of_loop(self, frame: PythonFrame, node: ast.expr) -> Generator[Any, Any, Any]:
        """Evaluate the test of a loop. If it depends on the run, what it does is taken back: the
        loop evaluates it itself."""
        if has_yield(node):
            return (yield from self.perhaps_yielding_test(frame, node))
        mark = self.heap.mark()
        with tracer().transaction() as take_back:
            condition = self.expressions.test(frame, node)
            if not isinstance(condition, bool):
                take_back()
                self.heap.undo(mark)
        return condition

    def statement_while(self, frame: PythonFrame, node: ast.While) -> Generator[Any, Any, Any]:
        if not has_yield(node):
            found = self.interpreter.source_loops.native_while(frame, node)
            if found is NotImplemented:
                return (yield from self.block(frame, node.orelse))
            return self.after_loop(frame, node, found)
        while True:
            condition = yield from self.test_of_loop(frame, node.test)
            if not isinstance(condition, bool):
                return self.after_loop(
                    frame, node, self.interpreter.source_loops.traced_while(frame, node)
                )
            if not condition:
                return (yield from self.block(frame, node.orelse))
            end = yield from self.block(frame, node.body)
            if isinstance(end, End):
                if end.jump == BREAK:
                    return None
                if end.jump != CONTINUE:
                    return end
            elif end is not None:

                def again() -> Any:
                    return self.interpreter.source_loops.while_again(frame, node)

                return self.after_loop(frame, node, self.unless_ended(end, again))

    def unless_ended(self, end: Any, again: Callable[[], Any]) -> Any:
        """Go on with a loop, after an iteration that has perhaps ended it."""
        stops = {jump: flag for jump, flag in end.flags.items() if jump != CONTINUE}
        if not stops:
            return again()
        stopped = Perhaps(stops, end.value)
        ended = self.interpreter.regions.any_of(stops.values())
        return self.interpreter.regions.branch(
            ended, lambda: self.interpreter.regions.forced(stopped), again, joins_ends=True
        )

    def after_loop(self, frame: PythonFrame, node: ast.For | ast.While, end: Any) -> Any:
        """Run the `else` of a loop of the program, unless it was left by a jump. A `break` or
        `continue` in the `else` is one of the loop around."""
        left = self.without_break(end)
        if not node.orelse or isinstance(end, End):
            return left

        def rest() -> Any:
            return self.interpreter.finish(self.block(frame, node.orelse))

        return rest() if end is None else self.unless_left(end, rest)

    def unless_left(self, end: Perhaps, rest: Callable[[], Any]) -> Any:
        """Run what follows a loop that perhaps was left by a jump, unless it was. A `break` has
        ended with the loop; one in the rest is another loop's."""
        regions, left = self.interpreter.regions, self.without_break(end)
        ended = regions.any_of([f for jump, f in end.flags.items() if jump != CONTINUE])
        is_jump = left is not None and BREAK not in end.flags
        return regions.branch(
            ended, lambda: regions.forced(left) if is_jump else left, rest, joins_ends=True
        )

    def without_break(self, end: Any) -> Any:
        if isinstance(end, End):
            return None if end.jump == BREAK else end
        if isinstance(end, Perhaps):
            flags = {j: flag for j, flag in end.flags.items() if j not in (BREAK, CONTINUE)}
            return Perhaps(flags, end.value) if flags else None
        return None

    def statement_for(self, frame: PythonFrame, node: ast.For) -> Generator[Any, Any, Any]:
        iterable = yield from self.perhaps_yields(frame, node.iter)
        generators, regions = self.interpreter.generators, self.interpreter.regions
        if isinstance(node.iter, ast.Call | ast.GeneratorExp):
            generators.let_go(iterable)
        if frame.consumer is None and any(map(has_yield, node.body)):
            return (yield from self.pulled_for(frame, node, iterable))

        def body(item: Any) -> Any:
            self.assign(frame, node.target, item)
            return self.interpreter.finish(self.block(frame, node.body))

        with regions.loop(frame, node):
            end = self.interpreter.iteration.each(iterable, body, unrolls=frame.unrolls)
        return self.after_loop(frame, node, end)

    def pulled_for(
        self, frame: PythonFrame, node: ast.For, iterable: Any
    ) -> Generator[Any, Any, Any]:
        """Run a loop of a generator that stops inside of it."""
        iteration = self.interpreter.iteration
        iterator = iteration.iterator(iterable)
        while True:
            item = iteration.advance(iterator)
            if item is MISSING:
                return (yield from self.block(frame, node.orelse))
            if self.interpreter.regions.is_bound(item) is not True:
                fail("a generator yields inside of a branch or loop on a tensor", "collect a list")
            self.assign(frame, node.target, item)
            end = yield from self.block(frame, node.body)
            if isinstance(end, Perhaps):

                def again() -> Any:
                    return self.interpreter.finish(self.pulled_for(frame, node, iterator))

                return self.unless_left(end, again)
            if end is not None and end.jump != CONTINUE:
                return None if end.jump == BREAK else end

    def statement_with(self, frame: PythonFrame, node: ast.With) -> Generator[Any, Any, Any]:
        return (yield from self.with_items(frame, node, 0))

    def with_items(
        self, frame: PythonFrame, node: ast.With, number: int
    ) -> Generator[Any, Any, Any]:
        if number == len(node.items):
            return (yield from self.block(frame, node.body))
        item = node.items[number]
        manager = yield from self.perhaps_yields(frame, item.context_expr)
        may_handle = self.interpreter.contexts.handled(manager)
        entered = self.interpreter.contexts.enter(manager)
        if item.optional_vars is not None:
            self.assign(frame, item.optional_vars, entered)
        handled = tracer().tries.handled
        depth = len(handled)
        handled.append(may_handle)
        count = len(frame.tries)
        frame.tries.append(may_handle)
        try:
            try:
                end = yield from self.with_items(frame, node, number + 1)
                if isinstance(end, End) and isinstance(end.jump, Raised):
                    raise thrown(self.restored(end.jump))
            finally:
                del handled[depth:], frame.tries[count:]
        except (Exception, GeneratorExit, LeftByConsumer) as error:
            is_left_by = isinstance(error, LeftByConsumer)
            given = GeneratorExit() if is_left_by else of_program(error)
            if isinstance(error, GeneratorExit) and not frame.is_closing:
                self.interpreter.contexts.give_up(manager)
                raise
            self.check_let_go(frame, isinstance(error, LeftByConsumer))
            if not self.interpreter.contexts.leave(manager, given):
                raise
            return None
        except BaseException:  # the capture begins again, or ends
            self.interpreter.contexts.give_up(manager)
            raise
        self.check_let_go(frame, is_left(end))
        if is_left(end):
            if isinstance(end, Perhaps):
                fail("a loop over a generator is left inside of its with statement", "use a flag")
            self.interpreter.contexts.leave(manager, GeneratorExit())
            return end
        return self.leave_context(manager, end)

    def leave_context(self, manager: Any, end: Any) -> Any:
        """Leave a `with` statement whose body perhaps raises."""
        contexts = self.interpreter.contexts
        jump = next(iter(raised_in(end)), None)
        if jump is None or not contexts.is_of_user(manager):
            contexts.leave(manager, None)
            return end

        def raised() -> Any:
            if contexts.leave(manager, self.restored(jump)):
                return None
            return End(jump)

        return self.interpreter.regions.branch(
            end.flags[jump],
            raised,
            lambda: self.leave_context(manager, without(end, jump)),
            joins_ends=True,
        )

    def check_let_go(self, frame: PythonFrame, is_left: bool) -> None:
        """Refuse that a loop leaves a generator that has something to do at its end, and that
        others perhaps hold."""
        if is_left and not frame.is_let_go:
            fail(
                "a loop leaves a generator inside of a with or try statement of the generator",
                "make the generator in the for statement",
            )

    def statement_try(self, frame: PythonFrame, node: ast.Try) -> Generator[Any, Any, Any]:
        handled = tracer().tries.handled
        depth = len(handled)
        if any(map(jumps_of, node.finalbody)):  # it may keep any exception from being raised
            handled.append((BaseException,))
        try:
            try:
                end = yield from self.try_body(frame, node)
            finally:
                del handled[depth:]
        except (Exception, GeneratorExit, LeftByConsumer) as error:
            if node.finalbody and (frame.is_closing or not isinstance(error, GeneratorExit)):
                self.check_let_go(frame, isinstance(error, LeftByConsumer))
                held = of_program(error)
                last = yield from self.with_error(frame, node.finalbody, held)
                if isinstance(last, Perhaps):
                    if isinstance(error, LeftByConsumer):
                        fail("a finally perhaps keeps a generator from being left", "use a flag")
                    return self.after(frame, last, partial(_raise, error))
                if last is not None:
                    return last
            raise
        if node.finalbody:
            self.check_let_go(frame, is_left(end))
            last = yield from self.block(frame, node.finalbody)
            if isinstance(last, Perhaps):
                return self.after(frame, last, lambda: end)
            if last is not None:
                return last
        return end

    def try_body(self, frame: PythonFrame, node: ast.Try) -> Generator[Any, Any, Any]:
        contexts, depth = self.interpreter.contexts, len(frame.tries)
        try:
            with contexts.handling(frame, node):
                frame.tries.append(contexts.classes_of(frame, node))
                end = yield from self.block(frame, node.body)
                if isinstance(end, End) and isinstance(end.jump, Raised):
                    raise thrown(self.restored(end.jump))
        except (Exception, GeneratorExit) as raised:
            if isinstance(raised, GeneratorExit) and not frame.is_closing:  # of the host
                raise
            del frame.tries[depth:]
            error = of_program(raised)
            handler = self.handler_of(frame, node, error)
            if handler is None:
                raise
            return (yield from self.handle(frame, handler, error))
        finally:
            del frame.tries[depth:]
        if is_left(end) and node.handlers:
            kinds = [h.type and self.expressions.value(frame, h.type) for h in node.handlers]
            if any(kind is None or contexts.matches(GeneratorExit(), kind) for kind in kinds):
                fail("a loop leaves a generator that handles GeneratorExit", "use try and finally")
        if raised_in(end):
            return self.handle_some(frame, node, end)
        if isinstance(end, Perhaps) and node.orelse:

            def orelse() -> Any:
                return self.interpreter.finish(self.block(frame, node.orelse))

            return self.after(frame, end, orelse)
        if end is not None:
            return end
        return (yield from self.block(frame, node.orelse))

    def handler_of(
        self, frame: PythonFrame, node: ast.Try, error: BaseException
    ) -> ast.ExceptHandler | None:
        for handler in node.handlers:
            if handler.type is None or self.interpreter.contexts.matches(
                error, self.expressions.value(frame, handler.type)
            ):
                return handler
        return None

    def handle(
        self, frame: PythonFrame, handler: ast.ExceptHandler, error: BaseException
    ) -> Generator[Any, Any, Any]:
        if handler.name:
            self.interpreter.store_name(frame, handler.name, error)
        end = yield from self.with_error(frame, handler.body, error)
        if handler.name:
            self.interpreter.store_name(frame, handler.name, MISSING)
        return end

    def with_error(
        self, frame: PythonFrame, body: list[ast.stmt], error: BaseException
    ) -> Generator[Any, Any, Any]:
        """Run statements while an exception is the one that is handled."""
        before, frame.error = frame.error, error
        try:
            return (yield from self.block(frame, body))
        finally:
            frame.error = before

    def restored(self, jump: Raised) -> Exception:
        """Return the exception of a jump with the attributes that it had when it was raised."""
        for name, value in jump.content.items():
            self.heap.put(self.heap.table_of(jump.error), name, value)
        return jump.error

    def handle_some(self, frame: PythonFrame, node: ast.Try, end: Any) -> Any:
        """Run the handlers of the exceptions that the body of a `try` raises in some runs, and
        its `else` in the others."""
        for jump in raised_in(end):
            handler = self.handler_of(frame, node, jump.error)
            if handler is not None:
                rest = without(end, jump)
                return self.interpreter.regions.branch(
                    end.flags[jump],
                    lambda handler=handler, jump=jump: self.interpreter.finish(
                        self.handle(frame, handler, self.restored(jump))
                    ),
                    lambda rest=rest: self.handle_some(frame, node, rest),
                    joins_ends=True,
                )

        def orelse() -> Any:
            return self.interpreter.finish(self.block(frame, node.orelse))

        return self.after(frame, end, orelse) if end.flags else orelse()

    def statement_match(self, frame: PythonFrame, node: ast.Match) -> Generator[Any, Any, Any]:
        subject = yield from self.perhaps_yields(frame, node.subject)
        patterns = self.interpreter.patterns
        for number, case in enumerate(node.cases):
            frame.captured = self.heap.new_table()
            found = patterns.match(frame, case.pattern, subject)
            if found is False:
                continue
            if found is True or case.guard is not None:

                def guard(case: Any = case) -> Any:
                    patterns.bind(frame)
                    return case.guard is None or self.expressions.test(frame, case.guard)

                found = (
                    guard()
                    if found is True
                    else self.interpreter.regions.branch(found, guard, lambda: False)
                )
                if found is False:
                    continue
            if found is True:
                return (yield from self.block(frame, case.body))

            def body(case: Any = case) -> Any:
                if case.guard is None:
                    patterns.bind(frame)
                return self.interpreter.finish(self.block(frame, case.body))

            rest = ast.Match(node.subject, node.cases[number + 1 :])
            return self.interpreter.regions.branch(
                found,
                body,
                lambda rest=rest: self.interpreter.finish(self.match_rest(frame, rest, subject)),
                joins_ends=True,
            )
        return None

    def match_rest(
        self, frame: PythonFrame, node: ast.Match, subject: Any
    ) -> Generator[Any, Any, Any]:
        if not node.cases:
            return None
        holder = f"<subject {id(node.cases[0])}>"
        self.interpreter.store_name(frame, holder, subject)
        node.subject = ast.Name(holder, ast.Load())
        return (yield from self.statement_match(frame, node))

    def statement_return(self, frame: PythonFrame, node: ast.Return) -> Generator[Any, Any, Any]:
        value = yield from self.perhaps_yields(frame, node.value)
        return End(RETURN, value)

    def perhaps_yields(self, frame: PythonFrame, node: ast.expr | None) -> Generator[Any, Any, Any]:
        """Evaluate an expression that may contain a `yield`."""
        if node is None:
            return None
        if has_yield(node):
            return (yield from self.interpreter.generators.evaluate(frame, node))
        return self.expressions.value(frame, node)

    def perhaps_yielding_test(self, frame: PythonFrame, node: ast.expr) -> Generator[Any, Any, Any]:
        if has_yield(node):
            value = yield from self.interpreter.generators.evaluate(frame, node)
            return self.interpreter.operators.truth(value)
        return self.expressions.test(frame, node)

    def statement_break(self, frame: PythonFrame, node: ast.Break) -> Generator[Any, Any, Any]:
        return End(BREAK)
        yield

    def statement_continue(
        self, frame: PythonFrame, node: ast.Continue
    ) -> Generator[Any, Any, Any]:
        return End(CONTINUE)
        yield

    def statement_expr(self, frame: PythonFrame, node: ast.Expr) -> Generator[Any, Any, Any]:
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            return (yield from self.interpreter.generators.yielded(frame, node.value))[1]
        yield from self.perhaps_yields(frame, node.value)
        return None

    def statement_assign(self, frame: PythonFrame, node: ast.Assign) -> Generator[Any, Any, Any]:
        end = None
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            value, end = yield from self.interpreter.generators.yielded(frame, node.value)
        else:
            value = yield from self.perhaps_yields(frame, node.value)
        for target in node.targets:
            self.assign(frame, target, value)
        return end

    def simple_ann_assign(self, frame: PythonFrame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(frame, node.target, self.expressions.value(frame, node.value))
        if frame.names is not None and isinstance(node.target, ast.Name):
            shown = self.expressions.annotation(frame, node.annotation)
            frame.names.setdefault("__annotations__", {})[node.target.id] = shown

    def statement_aug_assign(
        self, frame: PythonFrame, node: ast.AugAssign
    ) -> Generator[Any, Any, Any]:
        operation = BINARY[type(node.op)]
        match node.target:
            case ast.Name(id=name):
                before = self.interpreter.load(frame, name)
                value = yield from self.perhaps_yields(frame, node.value)
                after = self.interpreter.operators.augment(operation, before, value)
                self.interpreter.store_name(frame, name, after)
            case ast.Attribute(value=holder, attr=attribute):
                held = self.expressions.value(frame, holder)
                before = self.interpreter.attributes.getattr(held, attribute)
                value = yield from self.perhaps_yields(frame, node.value)
                after = self.interpreter.operators.augment(operation, before, value)
                self.interpreter.attributes.setattr(held, attribute, after)
            case ast.Subscript(value=holder, slice=index):
                held, at = (
                    self.expressions.value(frame, holder),
                    self.expressions.index(frame, index),
                )
                before = self.interpreter.containers.getitem(held, at)
                value = yield from self.perhaps_yields(frame, node.value)
                after = self.interpreter.operators.augment(operation, before, value)
                self.interpreter.containers.setitem(held, at, after)
        return None

    def simple_delete(self, frame: PythonFrame, node: ast.Delete) -> None:
        for target in node.targets:
            match target:
                case ast.Name(id=name):
                    self.interpreter.load(frame, name)
                    self.interpreter.store_name(frame, name, MISSING)
                case ast.Attribute(value=holder, attr=name):
                    self.interpreter.attributes.delattr(self.expressions.value(frame, holder), name)
                case ast.Subscript(value=holder, slice=index):
                    self.interpreter.containers.delitem(
                        self.expressions.value(frame, holder),
                        self.expressions.index(frame, index),
                    )
                case ast.Tuple(elts=elts) | ast.List(elts=elts):
                    self.simple_delete(frame, ast.Delete(elts))
                case _:
                    raise AssertionError(target)

    def statement_assert(self, frame: PythonFrame, node: ast.Assert) -> Generator[Any, Any, Any]:
        if not __debug__:  # Python was started with -O
            return None
        condition = self.expressions.test(frame, node.test)

        def fails() -> None:
            given = (self.expressions.value(frame, node.msg),) if node.msg else ()
            raise self.raised(AssertionError(*given))

        if isinstance(condition, bool):
            return None if condition else fails()
        return self.interpreter.regions.branch(condition, lambda: None, fails, joins_ends=True)
        yield

    def simple_raise(self, frame: PythonFrame, node: ast.Raise) -> None:
        if node.exc is None:
            error = self.interpreter.handled_error()
            if error is None:
                raise RuntimeError("No active exception to reraise")
            raise thrown(error)
        error = self.raised(self.expressions.value(frame, node.exc))
        if node.cause is not None:
            cause = self.expressions.value(frame, node.cause)
            error.__cause__ = None if cause is None else self.raised(cause, "exception causes")
        raise thrown(error)

    def raised(self, error: Any, what: str = "exceptions") -> BaseException:
        """Return an exception to raise, with the attributes that the program has set."""
        if isinstance(error, type) and issubclass(error, BaseException):
            error = self.interpreter.calls.call(error, (), {})
        if not isinstance(error, BaseException):
            raise TypeError(f"{what} must derive from BaseException")
        return self.heap.filled(error, set())

    def simple_pass(self, frame: PythonFrame, node: ast.AST) -> None:
        return

    def simple_function(self, frame: PythonFrame, node: ast.FunctionDef) -> None:
        made: Any = self.expressions.function(frame, node, node.name)
        for decorator in reversed([self.expressions.value(frame, d) for d in node.decorator_list]):
            made = self.interpreter.calls.call(decorator, (made,), {})
        self.interpreter.store_name(frame, node.name, made)

    def simple_class(self, frame: PythonFrame, node: ast.ClassDef) -> None:
        self.interpreter.store_name(
            frame, node.name, self.interpreter.definitions.make_class(frame, node)
        )

    def simple_import(self, frame: PythonFrame, node: ast.Import | ast.ImportFrom) -> None:
        names: dict[str, Any] = {}
        module = ast.Module([node], [])
        exec(compile(module, "<import>", "exec"), dict(frame.function.__globals__), names)
        for name, value in names.items():
            self.interpreter.store_name(frame, name, value)

    def assign(self, frame: PythonFrame, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.interpreter.store_name(frame, name, value)
            case ast.Attribute(value=holder, attr=name):
                self.interpreter.attributes.setattr(
                    self.expressions.value(frame, holder), name, value
                )
            case ast.Subscript(value=holder, slice=index):
                self.interpreter.containers.setitem(
                    self.expressions.value(frame, holder),
                    self.expressions.index(frame, index),
                    value,
                )
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self._unpack(frame, targets, value)
            case ast.Starred(value=inner):
                self.assign(frame, inner, value)
            case _:
                raise AssertionError(target)

    def _unpack(self, frame: PythonFrame, targets: list[ast.expr], value: Any) -> None:
        starred = [n for n, item in enumerate(targets) if isinstance(item, ast.Starred)]
        iteration, containers = self.interpreter.iteration, self.interpreter.containers
        if is_text(value) and tracer().data is not None:
            value = self.interpreter.heap.new(list, tracer().data.characters(value))
        if tracer().data is not None and isinstance(value, IteratorRef):
            value = self.heap.list_of(iteration.collect(value))
        if isinstance(value, DataRef):
            items = containers.unpacked(value, len(targets), *starred)
            for target, item in zip(targets, items, strict=True):
                self.assign(frame, target, item)
            return
        most = None if starred else len(targets) + 1
        items = list(iteration.known(value) if most is None else iteration.first(value, most))
        if starred:
            (at,) = starred
            rest = len(targets) - at - 1
            if len(items) < len(targets) - 1:
                raise ValueError(
                    f"not enough values to unpack (expected at least {len(targets) - 1}, "
                    f"got {len(items)})"
                )
            middle = self.heap.list(items[at : len(items) - rest])
            items = [*items[:at], middle, *items[len(items) - rest :]]
        if len(items) != len(targets):
            many = "too many" if len(items) > len(targets) else "not enough"
            got = "" if len(items) > len(targets) else f", got {len(items)}"
            raise ValueError(f"{many} values to unpack (expected {len(targets)}{got})")
        for target, item in zip(targets, items, strict=True):
            self.assign(frame, target, item)


def is_left(end: Any) -> bool:
    """True if a block perhaps ends because the consumer of a generator leaves its loop."""
    if isinstance(end, End):
        return isinstance(end.jump, Left)
    return isinstance(end, Perhaps) and any(isinstance(jump, Left) for jump in end.flags)


def live_after(frame: PythonFrame, statement: ast.stmt) -> LiveNames | None:
    """Return the variables that may be read after a statement; None if that is not known."""
    names = getattr(statement, "live_after", None)
    names = None if names is None else names | getattr(statement, "live_at_jumps", frozenset())
    return None if names is None or frame.names is not None else LiveNames(frame.vars, names)


def _raise(error: BaseException) -> None:
    raise error


def _always_jumps(statements: list[ast.stmt]) -> bool:
    """True if a block never reaches its end."""
    match statements[-1] if statements else None:
        case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
            return True
        case ast.If(body=body, orelse=orelse):
            return _always_jumps(body) and _always_jumps(orelse)
        case _:
            return False


def without(end: Perhaps, jump: str) -> Any:
    """Return how a block ends where a jump is not taken."""
    return Perhaps({j: flag for j, flag in end.flags.items() if j != jump}, end.value)


SIMPLE: dict[type, Callable[[Statements, PythonFrame, Any], None]] = {
    ast.AnnAssign: Statements.simple_ann_assign,
    ast.Delete: Statements.simple_delete,
    ast.Raise: Statements.simple_raise,
    ast.Pass: Statements.simple_pass,
    ast.Global: Statements.simple_pass,
    ast.Nonlocal: Statements.simple_pass,
    ast.FunctionDef: Statements.simple_function,
    ast.ClassDef: Statements.simple_class,
    ast.Import: Statements.simple_import,
    ast.ImportFrom: Statements.simple_import,
    DoStatement: lambda self, frame, node: node.action(frame),
}
COMPOUND: dict[type, Callable[[Statements, PythonFrame, Any], Generator[Any, Any, Any]]] = {
    ast.While: Statements.statement_while,
    ast.For: Statements.statement_for,
    ast.With: Statements.statement_with,
    ast.Try: Statements.statement_try,
    ast.Match: Statements.statement_match,
    ast.Return: Statements.statement_return,
    ast.Assert: Statements.statement_assert,
    ast.Break: Statements.statement_break,
    ast.Continue: Statements.statement_continue,
    ast.Expr: Statements.statement_expr,
    ast.Assign: Statements.statement_assign,
    ast.AugAssign: Statements.statement_aug_assign,
}
