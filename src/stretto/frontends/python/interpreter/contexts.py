"""Context managers, and which exceptions they may handle."""

# pyright: reportPrivateUsage=false
# the class of a context made of a generator is private

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import types
from collections.abc import Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.interpreter.heap import MISSING
from stretto.frontends.python.tracing.signals import CaptureSignal, fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter
    from stretto.frontends.python.interpreter.frames import PythonFrame


_OF_GENERATORS = contextlib._GeneratorContextManager


class Contexts:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def enter(self, manager: Any) -> Any:
        if isinstance(manager, Either):
            fail(
                "a `with` statement is on an object that is one of several",
                "write a `with` statement in each arm",
            )
        kind = self.interpreter.attributes.type_of(manager)
        for name in ("__enter__", "__exit__"):
            if self.interpreter.attributes.entry(kind, name) is MISSING:
                missed = " (missed __exit__ method)" if name == "__exit__" else ""
                shown = f"'{kind.__name__}' object does not support the context manager protocol"
                raise TypeError(shown + missed)
        method = self.interpreter.attributes.method(manager, "__enter__")
        if method is not MISSING:
            return self.interpreter.calls.call(method, (), {})
        return manager.__enter__()

    def handled(self, manager: Any) -> tuple[Any, ...]:
        """Return the classes of exceptions that a context may handle. An exception that depends on
        the run is refused inside of it."""
        match manager:
            case contextlib.suppress():
                return self.interpreter.attributes.getattr(manager, "_exceptions")
            case contextlib.ExitStack():
                return (BaseException,)
            case _OF_GENERATORS():
                function: Any = self.interpreter.attributes.getattr(manager, "func")
                is_handling = isinstance(function, types.FunctionType) and has_handlers(
                    function.__code__
                )
                return (BaseException,) if is_handling else ()
            case _:
                method = self.interpreter.attributes.method(manager, "__exit__")
                code = getattr(getattr(method, "__func__", method), "__code__", None)
                is_known = method is MISSING or code is not None
                is_handling = not is_known or (code is not None and may_return_true(code))
                return (BaseException,) if is_handling else ()

    def leave(self, manager: Any, error: BaseException | None) -> Any:
        """Call `__exit__`, which sees the error as the one that is handled."""
        if error is None or not self.interpreter.frames:
            return self._left(manager, error)
        frame = self.interpreter.frames[-1]
        before, frame.error = frame.error, error
        try:
            return self._left(manager, error)
        finally:
            frame.error = before

    def give_up(self, manager: Any) -> None:
        """Leave a context of torch or Python whose body is not interpreted to its end: it may have
        changed a state of the process, such as the grad mode."""
        if not native_code.is_of_user(self.interpreter.attributes.type_of(manager)):
            with contextlib.suppress(CaptureSignal):
                self._left(manager, None)

    def _left(self, manager: Any, error: BaseException | None) -> Any:
        given = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        method = self.interpreter.attributes.method(manager, "__exit__")
        if method is not MISSING:
            return self.interpreter.operators.truth(self.interpreter.calls.call(method, given, {}))
        return manager.__exit__(*given)

    @contextlib.contextmanager
    def handling(self, frame: PythonFrame, node: ast.Try) -> Generator[None]:
        """Note what the handlers of a `try` catch: an exception that depends on the run is refused
        if one would catch it and go on."""
        tries = tracer().tries
        held = len(tries.handled), len(tries.replaced)
        handled: list[Any] = []
        replaced: list[Any] = []
        for handler in node.handlers:
            classes = self._classes(frame, handler.type)
            (replaced if _always_raises(handler.body) else handled).extend(classes)
        tries.handled.append(tuple(handled))
        tries.replaced.append(tuple(replaced))
        try:
            yield
        finally:
            del tries.handled[held[0] :], tries.replaced[held[1] :]

    def classes_of(self, frame: PythonFrame, node: ast.Try) -> tuple[Any, ...]:
        """Return the classes of exceptions that the handlers of a `try` catch."""
        return tuple(c for handler in node.handlers for c in self._classes(frame, handler.type))

    def is_of_user(self, manager: Any) -> bool:
        """True if what is done at the end of a `with` statement is interpreted."""
        return self.interpreter.attributes.method(manager, "__exit__") is not MISSING

    @contextlib.contextmanager
    def catching(self, *classes: type[BaseException]) -> Generator[None]:
        """Note that the caller of a method catches its exceptions, and goes on."""
        handled = tracer().tries.handled
        handled.append(classes)
        try:
            yield
        finally:
            handled.pop()

    def _classes(self, frame: PythonFrame, node: ast.expr | None) -> tuple[Any, ...]:
        """Return the classes that a handler names. Python evaluates the expression only if there is
        an exception: one that is no name, or names nothing, counts as all classes."""
        named = (ast.Name, ast.Attribute, ast.Tuple, ast.expr_context)
        if node is None or not all(isinstance(part, named) for part in ast.walk(node)):
            return (BaseException,)
        try:
            found = self.interpreter.expressions.value(frame, node)
        except (NameError, AttributeError):
            return (BaseException,)
        return found if isinstance(found, tuple) else (found,)

    def matches(self, error: BaseException, kinds: Any) -> bool:
        """Return True if a handler for some classes handles an exception."""
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(
                    "catching classes that do not inherit from BaseException is not allowed"
                )
        return isinstance(error, kinds)


def _always_raises(body: Sequence[ast.stmt]) -> bool:
    """True if statements end by raising on every path."""
    jumps = (ast.Return, ast.Break, ast.Continue)
    if any(isinstance(node, jumps) for statement in body for node in ast.walk(statement)):
        return False
    match body[-1] if body else None:
        case ast.Raise():
            return True
        case ast.If(body=then, orelse=orelse):
            return _always_raises(then) and _always_raises(orelse)
        case _:
            return False


@cache
def has_handlers(code: types.CodeType) -> bool:
    """True if code has an `except` clause, or names `suppress`."""
    names = [step.opname for step in dis.get_instructions(code)]
    bare = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    return bare or "CHECK_EXC_MATCH" in names or "suppress" in code.co_names


@cache
def may_return_true(code: types.CodeType) -> bool:
    """False if code returns nothing but the constants None and False."""
    steps = list(dis.get_instructions(code))
    returned = [one for one, step in itertools.pairwise(steps) if step.opname == "RETURN_VALUE"]
    returned += [step for step in steps if step.opname == "RETURN_CONST"]
    constants = [one for one in returned if one.opname in ("LOAD_CONST", "RETURN_CONST")]
    return constants != returned or any(one.argval not in (None, False) for one in constants)
