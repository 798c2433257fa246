"""Statements that store into attributes or items among other targets, as single assignments.

    x[0], self.h = y                    __stretto_target_0, __stretto_target_1 = y
                                        x[0] = __stretto_target_0
                                        self.h = __stretto_target_1

So every such store is one that `control_flow` turns into a call of `staging`. Python, too, unpacks
first, and then stores from left to right.
"""

from __future__ import annotations

import ast
from typing import Any

from stretto.frontends.python.source.syntax import assign, at, name

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class TargetLowering(ast.NodeTransformer):
    """The statements of one function; nested ones are left as they are."""

    def __init__(self) -> None:
        self._count = 0

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if not _stores_apart(node.targets):
            return node
        value = self._new_name()
        first = assign(value, node.value)
        stores = [s for target in node.targets for s in self._from(value, target, node)]
        return [at(node, first), *stores]

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        if _has_place(node.target):
            item = self._new_name()
            node.body = [*self._from(item, node.target, node.target), *node.body]
            node.target = at(node.target, ast.Name(item, ast.Store()))
        return node

    def visit_With(self, node: ast.With) -> ast.stmt:
        self.generic_visit(node)
        for item in reversed(node.items):
            if item.optional_vars is not None and _has_place(item.optional_vars):
                target, value = item.optional_vars, self._new_name()
                node.body = [*self._from(value, target, target), *node.body]
                item.optional_vars = at(target, ast.Name(value, ast.Store()))
        return node

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        return [at(node, ast.Delete([target])) for target in _leaves(ast.Tuple(node.targets))]

    def _from(self, value: str, target: ast.expr, like: ast.AST) -> list[ast.stmt]:
        """Assigns a variable of ours to a target."""
        if not isinstance(target, ast.Tuple | ast.List) or not _has_place(target):
            return [at(like, ast.Assign([target], name(value)))]
        stores = list[ast.stmt]()
        names = self._named(target, stores, like)
        return [at(like, ast.Assign([names], name(value))), *stores]

    def _named(self, target: ast.expr, stores: list[ast.stmt], like: ast.AST) -> ast.expr:
        """The target with a variable of ours in each place; `stores` gets what stores these."""
        match target:
            case ast.Tuple() | ast.List():
                items = [self._named(item, stores, like) for item in target.elts]
                return ast.Tuple(items, ast.Store())
            case ast.Starred():
                return ast.Starred(self._named(target.value, stores, like), ast.Store())
            case _:
                value = self._new_name()
                stores.extend(self._from(value, target, like))
                return ast.Name(value, ast.Store())

    def _new_name(self) -> str:
        self._count += 1
        return f"__stretto_target_{self._count - 1}"


def _stores_apart(targets: list[ast.expr]) -> bool:
    """Whether a target among others, or in a tuple, is an attribute or item."""
    if len(targets) == 1 and isinstance(targets[0], ast.Attribute | ast.Subscript):
        return False
    return any(map(_has_place, targets))


def _has_place(target: ast.expr) -> bool:
    return any(isinstance(item, ast.Attribute | ast.Subscript) for item in _leaves(target))


def _leaves(target: ast.expr) -> list[ast.expr]:
    match target:
        case ast.Tuple() | ast.List():
            return [leaf for item in target.elts for leaf in _leaves(item)]
        case ast.Starred():
            return _leaves(target.value)
        case _:
            return [target]
