"""Tables in which the modules of the front end register their handlers of syntax and calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.values import Value
from stretto.ir.types import NEVER, DataType

Expression = Callable[[Frame, Any], Value]


Statement = Callable[[Frame, Any], None]


Apply = Callable[[Frame, Value, list[Value], dict[str, Value]], Value]


EXPRESSIONS: dict[type[ast.expr], Expression] = {}


STATEMENTS: dict[type[ast.stmt], Statement] = {}


Assign = Callable[[Frame, ast.expr, Value], None]


_APPLY: list[Apply] = []


_ASSIGN: list[Assign] = []


Handler = TypeVar("Handler", bound=Callable[..., Any])


def evaluates(*kinds: type[ast.expr]) -> Callable[[Handler], Handler]:
    """Register a function as the handler of expressions of some kinds."""

    def register(handler: Handler) -> Handler:
        EXPRESSIONS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def executes(*kinds: type[ast.stmt]) -> Callable[[Handler], Handler]:
    """Register a function as the handler of statements of some kinds."""

    def register(handler: Handler) -> Handler:
        STATEMENTS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def applies(handler: Apply) -> Apply:
    """Register the function that evaluates calls of values."""
    _APPLY[:] = [handler]
    return handler


@contextmanager
def at(frame: Frame, node: ast.AST) -> Generator[None]:
    """Set the place in the source of what is evaluated inside."""
    outer, frame.place = frame.place, node
    try:
        yield
    finally:
        frame.place = outer


def evaluate(frame: Frame, node: ast.expr) -> Value:
    handler = EXPRESSIONS.get(type(node))
    with at(frame, node):
        if handler is None:
            frame.refuse(f"{_kind(node)} is not supported in a batched function")
        return handler(frame, node)


def execute(frame: Frame, statements: Sequence[ast.stmt]) -> None:
    """Evaluate statements in order. Raises PathEnds where the path ends."""
    for node in statements:
        handler = STATEMENTS.get(type(node))
        with at(frame, node):
            if handler is None:
                frame.refuse(f"{_kind(node)} is not supported in a batched function")
            handler(frame, node)


def apply(
    frame: Frame, function: Value, args: Sequence[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """Return the value of a call."""
    return _APPLY[0](frame, function, list(args), dict(kwargs or {}))


def assign_to(frame: Frame, target: ast.expr, value: Value) -> None:
    """Bind the target of an assignment."""
    _ASSIGN[0](frame, target, value)


def assigns(handler: Assign) -> Assign:
    """Register the function that binds targets."""
    _ASSIGN[:] = [handler]
    return handler


def impossible(frame: Frame, type_: DataType) -> None:
    """End the path if a value has no possible type: in this round nothing is known to reach this
    place."""
    if type_ == NEVER:
        frame.stop(RuntimeError, "a value was read that nothing had assigned")


def _kind(node: ast.AST) -> str:
    names = {
        "Try": "try", "With": "with", "Yield": "yield", "YieldFrom": "yield", "Await": "await",
        "ClassDef": "a class", "Delete": "del", "AsyncFunctionDef": "async def", "Set": "a set",
        "SetComp": "a set", "Global": "global", "Nonlocal": "nonlocal", "Import": "import",
    }  # fmt: skip
    return names.get(type(node).__name__, type(node).__name__)
