"""Pieces of syntax trees that the rewriting makes.

What is made has no place in the source at first. `at` gives it that of the user's code for which it
stands, so that errors point there.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

STAGING = "__stretto"

Node = TypeVar("Node", bound=ast.AST)


def at(like: ast.AST, node: Node) -> Node:
    """`node`, with all new nodes inside, at the place of `like`."""
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        if "lineno" not in item._attributes:
            pending += ast.iter_child_nodes(item)
        elif not hasattr(item, "lineno"):
            ast.copy_location(item, like)
            pending += ast.iter_child_nodes(item)
    return node


def name(identifier: str) -> ast.Name:
    return ast.Name(identifier, ast.Load())


def constant(value: Any) -> ast.expr:
    return ast.Constant(value)


def names(identifiers: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([name(item) for item in identifiers], ast.Load())


def assign(identifier: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(identifier, ast.Store())], value)


def staging(attribute: str) -> ast.expr:
    """`__stretto.attribute`."""
    return ast.Attribute(name(STAGING), attribute, ast.Load())


def is_staging(node: ast.expr) -> bool:
    """Whether an expression names a part of `__stretto`."""
    if isinstance(node, ast.Attribute):
        return is_staging(node.value)
    return isinstance(node, ast.Name) and node.id == STAGING


def staged(like: ast.AST, function: str, *arguments: ast.expr) -> ast.Call:
    """`__stretto.function(arguments)` at the place of `like`."""
    return at(like, ast.Call(staging(function), list(arguments), []))


def thunk(body: ast.expr) -> ast.Lambda:
    return at(body, ast.Lambda(ast.arguments([], [], None, [], [], None, []), body))


def definition(
    function: str, arguments: ast.arguments | Sequence[str], body: list[ast.stmt]
) -> ast.FunctionDef:
    """`def function(arguments): body`."""
    if not isinstance(arguments, ast.arguments):
        given = [ast.arg(item) for item in arguments]
        arguments = ast.arguments([], given, None, [], [], None, [])
    made = ast.FunctionDef(function, arguments, body or [ast.Pass()], [], None)
    if "type_params" in ast.FunctionDef._fields:
        made.type_params = []  # type: ignore[attr-defined]
    return made


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """All nodes of a function but those of nested functions and classes."""
    found = list[ast.AST]()
    pending = child_nodes(function)
    while pending:
        item = pending.pop()
        found.append(item)
        if not isinstance(item, _SCOPES):
            pending += child_nodes(item)
    return found


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def own_statements(function: ast.AST) -> list[ast.AST]:
    """The same without expressions: statements, handlers and cases."""
    found = list[ast.AST]()
    pending = [function]
    while pending:
        table = vars(pending.pop())
        blocks = (table.get(field) for field in _BLOCKS)
        inside: list[ast.AST] = [item for block in blocks if type(block) is list for item in block]
        found += inside
        pending += [item for item in inside if not isinstance(item, _SCOPES)]
    return found


_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` gives, in less than half of the time."""
    found = list[ast.AST]()
    table = vars(node)
    for field in node._fields:
        value = table.get(field)
        if isinstance(value, ast.AST):
            found.append(value)
        elif type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def every_node(node: ast.AST) -> list[ast.AST]:
    """The node and all nodes inside."""
    found = [node]
    for item in found:
        found += child_nodes(item)
    return found
