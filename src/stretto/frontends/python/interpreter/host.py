"""Operations that the host, Python itself, executes for the program.

What they raise is what the program raises (see `values.raises`): an exception of any other code of
the interpreter is a bug.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.values import texts

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


def apply(operation: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """Return `operation(*operands, **named)`."""
    return operation(*operands, **named)


def call_rule(rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a rule of the interpreter. Arguments that its parameters do not take are an error of the
    program."""
    try:
        return rule(*args, **kwargs)
    except TypeError as error:
        assert error.__traceback__ is not None
        if error.__traceback__.tb_next is None:  # it is raised by the call itself
            raise TypeError(str(error)) from None
        raise


def call_in_program(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function from code of the host, as a call of the program that is captured."""
    return Hooks.call(function, *args, **kwargs)


class HostOperations:
    """Python's operations on values of the run, for rules and methods of traced values, which are
    code of the host."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.truth = interpreter.operators.truth

    def branch(self, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """Return `then() if condition else orelse()`."""
        condition = self.truth(condition)
        if isinstance(condition, bool):
            return then() if condition else orelse()
        return self.interpreter.regions.branch(condition, then, orelse)

    def and_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """Return the truth of `first and rest[0]() and ...`."""
        return self._logical(True, first, rest)

    def or_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """Return the truth of `first or rest[0]() or ...`."""
        return self._logical(False, first, rest)

    def _logical(self, is_and: bool, first: Any, rest: tuple[Callable[[], Any], ...]) -> Any:
        flag = self.truth(first)
        if not rest:
            return flag
        return self.interpreter.regions.logical(
            is_and, flag, lambda: self._logical(is_and, rest[0](), rest[1:])
        )

    def not_(self, value: Any) -> Any:
        return self.interpreter.regions.negated(self.truth(value))

    def bool_(self, value: Any) -> Any:
        return self.truth(value)

    def getitem(self, holder: Any, index: Any) -> Any:
        return self.interpreter.containers.getitem(holder, index)

    def setitem(self, holder: Any, index: Any, value: Any) -> None:
        self.interpreter.containers.setitem(holder, index, value)

    def delitem(self, holder: Any, index: Any) -> None:
        self.interpreter.containers.delitem(holder, index)

    def setattr(self, holder: Any, name: str, value: Any) -> None:
        self.interpreter.attributes.setattr(holder, name, value)

    def contains(self, container: Any, item: Any) -> Any:
        return self.interpreter.membership.contains(container, item)

    def is_found(self, item: Any, other: Any) -> Any:
        """Return True, or a traced flag, if an item is the very object searched for."""
        return self.interpreter.membership.is_found(item, other)

    def equal(self, first: Any, second: Any) -> Any:
        return self.interpreter.operators.compare(ast.Eq, first, second)

    def modulo(self, first: Any, second: Any) -> Any:
        return self.interpreter.operators.binary("mod", first, second)

    def text(self, *parts: texts.TextPart) -> Any:
        """Return an f-string."""
        return texts.joined(parts)
