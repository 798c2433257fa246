"""Comprehensions as functions, whose loops and conditions are staged like those of statements.

    [g(x) for x in rows if x.sum() > 0]      made = []
                                             for x in items:
                                                 if x.sum() > 0:
                                                     made.append(g(x))
                                             return made

A generator expression becomes a generator function in the same way. The first iterable, which
Python evaluates outside of the comprehension, is the parameter.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from stretto.frontends.python.source.syntax import assign, at, definition, name

ITEMS = "__stretto_items"
_MADE = "__stretto_made"

Comprehension = ast.ListComp | ast.GeneratorExp


def is_plain(node: Comprehension) -> bool:
    """Whether the comprehension can be a function: it binds no variable of the function around it,
    and means no other function by `super` or `await`."""
    return not any(item.is_async for item in node.generators) and not any(
        isinstance(item, ast.NamedExpr | ast.Await)
        or (isinstance(item, ast.Name) and item.id in ("super", "locals"))
        for item in ast.walk(node)
    )


def has_control_flow(node: Comprehension) -> bool:
    """Whether it has conditions, or more than one loop; or one inside of it has."""
    inside = [item for item in ast.walk(node) if isinstance(item, Comprehension)]
    return any(len(item.generators) > 1 or bool(item.generators[0].ifs) for item in inside)


def listing(node: ast.ListComp, identifier: str) -> ast.FunctionDef:
    """The function that makes the list. `node` is not changed."""
    value = copy.deepcopy(node.elt)
    append = ast.Attribute(name(_MADE), "append", ast.Load())
    collect = at(value, ast.Expr(ast.Call(append, [value], [])))
    empty = assign(_MADE, ast.List([], ast.Load()))
    body = [empty, _loops(node, collect), ast.Return(name(_MADE))]
    return ast.fix_missing_locations(at(node, definition(identifier, [ITEMS], body)))


def yielding(node: ast.GeneratorExp, identifier: str) -> ast.FunctionDef:
    """The generator function that yields the values. `node` is not changed."""
    value = copy.deepcopy(node.elt)
    give = at(value, ast.Expr(ast.Yield(value)))
    body = [_loops(node, give)]
    return ast.fix_missing_locations(at(node, definition(identifier, [ITEMS], body)))


def _loops(node: Comprehension, inner: ast.stmt) -> ast.stmt:
    parts: list[Any] = copy.deepcopy(node.generators)
    parts[0].iter = at(parts[0].iter, name(ITEMS))
    for part in reversed(parts):
        for test in reversed(part.ifs):
            inner = at(test, ast.If(test, [inner], []))
        inner = at(part.target, ast.For(part.target, part.iter, [inner], []))
    return inner
