"""Rewriting of the statements of a function that runs in pieces."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from stretto.frontends.python.source import syntax_trees
from stretto.frontends.python.source.syntax_trees import NameSet, at, name, own_nodes, staged, thunk

RUN_BLOCK = "__stretto_block"

NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

OPENED = (ast.If, ast.While, ast.For, ast.With, ast.Try)

OF_PYTHON = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.AsyncWith,
    ast.AsyncFor, ast.TryStar,
)  # fmt: skip
"""Statements that create functions, classes or modules, which no Program can return."""

_SEES_VARIABLES = frozenset({"locals", "vars", "eval", "exec", "dir"})
"""Functions that read the variables of their caller."""

COMPUTES = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.AugAssign)


def can_be_cut(node: ast.FunctionDef) -> bool:
    refused = (ast.Yield, ast.YieldFrom, ast.Await)
    return not any(
        isinstance(item, refused) or (isinstance(item, ast.Name) and item.id in _SEES_VARIABLES)
        for item in own_nodes(node)
    )


def declared(nodes: Iterable[Any], kind: type[ast.Global | ast.Nonlocal]) -> NameSet:
    return frozenset(n for item in nodes if isinstance(item, kind) for n in item.names)


def stores_of(variable: str, statements: Sequence[ast.stmt], given: Sequence[str]) -> int:
    """Return the number of times that a variable may be assigned; 2 means two or more."""
    count = int(variable in given)
    for statement in statements:
        if variable not in syntax_trees.stores([statement]):
            continue
        repeats = any(isinstance(item, ast.While | ast.For) for item in ast.walk(statement))
        count += 2 if repeats or isinstance(statement, OPENED) else 1
    return count


class SuperLowering(ast.NodeTransformer):
    """Adds the arguments to `super()`."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        if self.depth == 1:
            self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [at(node, name("__class__")), at(node, name(self.first))]
        return node


class WithoutDeclarations(ast.NodeTransformer):
    """Removes annotations, which shared variables may not have, and `global` and `nonlocal`, which
    each piece gets anew. Nested functions are left unchanged."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, NESTED) else super().visit(node)

    def _dropped(self, node: ast.stmt) -> ast.stmt:
        return at(node, ast.Pass())

    visit_Global = visit_Nonlocal = _dropped

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return at(node, ast.Pass())
        return at(node, ast.Assign([node.target], node.value))


class CallLowering(ast.NodeTransformer):
    """Makes calls go through `PieceRuntime.call`; nested functions are left unchanged."""

    def __init__(self, unsure: NameSet) -> None:
        self.unsure = unsure

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, NESTED) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("super", RUN_BLOCK, "globals"):
            return node
        call = staged(node, "call", node.func, *node.args)
        call.keywords = node.keywords
        return call

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or node.id not in self.unsure:
            return node
        return staged(node, "bound", ast.Constant(node.id), thunk(node))
