"""`raise` inside of `try`, as flags, so that a branch on a traced value may raise what a handler of
the same function catches.

    try:                            __stretto_raised_0, __stretto_error_0 = False, None
        if x.sum() > 0:             try:
            raise MyError()             if x.sum() > 0:
        y = g(x)                            __stretto_error_0 = raised(MyError())
    except MyError:                         __stretto_raised_0 = True
        y = h(x)                        else:
                                            y = g(x)
                                    except MyError:
                                        y = h(x)
                                    if __stretto_raised_0:
                                        if is_caught(__stretto_error_0, MyError): y = h(x)
                                        else: raise __stretto_error_0

The `try` stays for what called functions raise. `assert` raises AssertionError, and `next` in a
`try` with a handler for StopIteration gives a mark at the end of the iterator, which is compared.
`calls/raising.py` has what is called.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from stretto.frontends.python.source.generators import has_yield
from stretto.frontends.python.source.syntax import (
    STAGING,
    assign,
    at,
    constant,
    every_node,
    name,
    own_nodes,
)

RAISED = "__stretto_raised_"
ERROR = "__stretto_error_"

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SEE_THE_ERROR = frozenset({"exc_info", "format_exc", "print_exc", "exception", "print_exception"})
"""Functions that look at the exception that is being handled."""


def prepared(statement: ast.Try) -> bool:
    """Whether what the body raises becomes a flag. Its calls of `next` are then compared."""
    looks_at = (
        item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", None)
        for handler in statement.handlers
        for item in every_node(handler)
    )
    if not statement.handlers or has_yield(statement) or not _SEE_THE_ERROR.isdisjoint(looks_at):
        return False
    if _handles_the_end(statement.handlers):
        advance = _Advance()
        statement.body = [made for item in statement.body for made in advance.statements(item)]
    inside = own_nodes(ast.Module(statement.body, []))
    return any(isinstance(item, ast.Assert) or is_new(item) for item in inside)


def is_new(node: ast.AST) -> bool:
    """Whether a statement raises an exception other than the one that is being handled."""
    return isinstance(node, ast.Raise) and node.exc is not None


def noted(node: ast.Raise, number: int) -> list[ast.stmt]:
    """The statements that take the place of a `raise`."""
    assert node.exc is not None
    given = [node.exc] if node.cause is None else [node.exc, node.cause]
    error = assign(f"{ERROR}{number}", _helper("raised", *given))
    return [at(node, error), at(node, assign(f"{RAISED}{number}", constant(True)))]


def failed(node: ast.Assert) -> ast.stmt:
    """`assert` as a branch that raises."""
    error = ast.Call(name("AssertionError"), [] if node.msg is None else [node.msg], [])
    return at(node, ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error)], []))


def handled(handlers: list[ast.ExceptHandler], number: int) -> list[ast.stmt]:
    """The handlers for an exception that was noted, as branches on its class."""
    error = f"{ERROR}{number}"
    if not handlers:
        return [ast.Raise(name(error))]
    (handler, *others) = copy.deepcopy(handlers)
    bare = _Again(error)
    body: list[ast.stmt] = [bare.visit(item) for item in handler.body]
    if handler.name is not None:
        body = [at(handler, assign(handler.name, _helper("error", name(error)))), *body]
    if handler.type is None:
        return body
    test = _helper("is_caught", name(error), handler.type)
    return [at(handler, ast.If(test, body, handled(others, number)))]


def ends_by_jumping() -> ast.stmt:
    """The statement before a `try` whose `finally` returns, breaks or continues."""
    return ast.Expr(_helper("ends_by_jumping"))


def _handles_the_end(handlers: list[ast.ExceptHandler]) -> bool:
    every = [item for one in handlers if one.type for item in every_node(one.type)]
    return any(isinstance(item, ast.Name) and item.id == "StopIteration" for item in every)


class _Again(ast.NodeTransformer):
    """A `raise` alone, in a handler."""

    def __init__(self, error: str) -> None:
        self.error = error

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        return node if node.handlers else self.generic_visit(node)  # type: ignore[return-value]

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return node if node.exc is not None else at(node, ast.Raise(name(self.error)))


class _Advance(ast.NodeTransformer):
    """Statements with a call `next(iterator)`, of a body and the statements inside."""

    def __init__(self) -> None:
        self._count = 0

    def statements(self, node: ast.stmt) -> list[ast.stmt]:
        """The statement after one that ends the `try` at the end of the iterator."""
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return):
            self._blocks(node)
            return [node]
        calls = [item for item in own_nodes(node) if isinstance(item, ast.Call)]
        match calls:
            case [ast.Call(func=ast.Name(id="next") as function, args=[iterator], keywords=[])]:
                item = f"__stretto_item_{self._count}"
                self._count += 1
                first = assign(item, _helper("advanced", function, iterator))
                ends = ast.If(_helper("is_end", name(item)), [ast.Raise(name("StopIteration"))], [])
                call = calls[0]
                call.func, call.args = _part("item"), [at(call, name(item))]
                return [at(node, first), at(node, ends), node]
            case _:
                return [node]

    def _blocks(self, node: ast.stmt) -> None:
        if isinstance(node, _NESTED):
            return
        for field in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, field, [])
            if block:
                setattr(node, field, [made for item in block for made in self.statements(item)])


def _part(function: str) -> ast.expr:
    return ast.Attribute(ast.Attribute(name(STAGING), "raising", ast.Load()), function, ast.Load())


def _helper(function: str, *arguments: ast.expr) -> ast.expr:
    """A call of a function of `calls/raising.py`."""
    return ast.Call(_part(function), list(arguments), [])
