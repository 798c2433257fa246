"""Variables that are not live can be deleted without a difference."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from typing import Any

import pytest

from stretto.frontends.python.interpreter.liveness import note


class Deleting(ast.NodeTransformer):
    """Deletes, after each statement and at the head of each loop, what is not live."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made = list[ast.stmt]()
        for statement in statements:
            live = statement.live_after  # type: ignore[attr-defined]
            made.append(self.visit(statement))
            if not isinstance(statement, ast.Return | ast.Break | ast.Continue | ast.Raise):
                made += self.deletions(live)
        return made

    def deletions(self, live: frozenset[str]) -> list[ast.stmt]:
        text = "\n".join(f"if {n!r} in locals():\n    del {n}" for n in sorted(self.names - live))
        return ast.parse(text).body

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            return node
        for field in ("body", "orelse", "finalbody"):
            held = getattr(node, field, None)
            if isinstance(held, list) and held and isinstance(held[0], ast.stmt):
                setattr(node, field, self.block(held))
        for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            inner.body = self.block(inner.body)
        if isinstance(node, ast.While):
            node.body = [*self.deletions(node.live_at_head), *node.body]  # type: ignore[attr-defined]
        return node


def deleting(function: types.FunctionType) -> Any:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (node,) = tree.body
    assert isinstance(node, ast.FunctionDef)
    note(node)
    code = function.__code__
    names = frozenset((*code.co_varnames, *code.co_cellvars)) - frozenset(code.co_cellvars)
    node.body = Deleting(names).block(node.body)
    space: dict[str, Any] = dict(function.__globals__)
    exec(compile(ast.fix_missing_locations(tree), "<deleting>", "exec"), space)
    return space[function.__name__]


def loops(n: int) -> Any:
    total, unused, last = 0, 1, None
    for i in range(n):
        square = i * i
        if square > 10:
            last = i
            break
        if i % 2:
            continue
        total += square
    else:
        last = -1
    while total > 0:
        total, unused = total - 3, total
    return last, total, unused


def handlers(n: int) -> Any:
    found, error = [], None
    x = 1
    try:
        x = 2
        y = 10 // n
        x = 3
        found.append(y)
        if n == 2:
            return found, x
    except ZeroDivisionError as problem:
        error = type(problem)
        z = x
    else:
        z = y
    finally:
        found.append(x)
    return found, error, z


def contexts(n: int) -> Any:
    import contextlib

    x = 0
    with contextlib.suppress(ZeroDivisionError):
        x = 1
        y = 1 // n
        x = 2 + y
    return x


def matches(n: int) -> Any:
    a, b = n, n + 1
    match (a, b):
        case (0, c):
            found = c
        case (d, 3) if d > 1:
            found = d
        case _:
            found = b
    return found


def returns_in_finally(n: int) -> Any:
    shown = []
    for i in range(n):
        k = i
        try:
            if i == 3:
                return shown, k
            if i == 1:
                continue
            shown.append(k)
        finally:
            shown.append(-k)
    return shown


@pytest.mark.parametrize("function", [loops, handlers, contexts, matches, returns_in_finally])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7])
def test_what_is_not_live_is_not_read(function: Any, n: int) -> None:
    assert deleting(function)(n) == function(n)


def test_a_dead_variable_is_found() -> None:
    (node,) = ast.parse("def f(n):\n    a = n\n    b = a\n    a = 3\n    return a + b").body
    assert isinstance(node, ast.FunctionDef)
    note(node)
    assert [sorted(s.live_after) for s in node.body] == [["a"], ["b"], ["a", "b"], []]  # type: ignore[attr-defined]


def test_a_function_that_sees_its_variables_has_no_notes() -> None:
    (node,) = ast.parse("def f(n):\n    a = n\n    return locals()").body
    assert isinstance(node, ast.FunctionDef)
    note(node)
    assert not hasattr(node.body[0], "live_after")
