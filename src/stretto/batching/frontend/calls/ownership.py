"""Which local variables alone hold a tensor, so that `x += y` may be taken for `x = x + y`."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import lru_cache

from stretto.frontends.python.source.syntax import child_nodes, every_node

_KEPT = 4096
"""Functions whose facts are kept: each of their calls asks for them."""

_CREATES = frozenset(
    (
        "zeros", "ones", "full", "empty", "tensor", "zeros_like", "ones_like", "full_like",
        "new_zeros", "new_ones", "new_full", "clone", "stack", "cat",
    )
)  # fmt: skip


@lru_cache(_KEPT)
def owned_names(function: ast.FunctionDef) -> frozenset[str]:
    """Local names that are only bound to new tensors, and read only where nothing keeps them: as
    operands of operators, of functions of torch, and in `return`."""
    parents: dict[ast.AST, ast.AST] = {}
    for node in every_node(function):
        for child in child_nodes(node):
            parents[child] = node
    refused = {arg.arg for arg in every_node(function) if isinstance(arg, ast.arg)}
    bound: set[str] = set()
    for node in every_node(function):
        if not isinstance(node, ast.Name):
            continue
        parent = parents[node]
        if isinstance(node.ctx, ast.Store):
            bound.add(node.id)
            if not _is_new(node, parent):
                refused.add(node.id)
        elif not _keeps_nothing(node, parent):
            refused.add(node.id)
    return frozenset(bound - refused)


def _is_new(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.AugAssign():
            return True
        case ast.Assign([target], value) if target is node:
            return _makes_new(value)
        case ast.AnnAssign(value=value) if value is not None:
            return _makes_new(value)
        case _:
            return False


def _makes_new(value: ast.expr) -> bool:
    match value:
        case ast.BinOp() | ast.Constant():
            return True
        case ast.Call(ast.Attribute(_, name)):
            return name in _CREATES
        case _:
            return False


def _keeps_nothing(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.AugAssign() | ast.Return():
            return True
        case ast.Call(ast.Attribute(ast.Name("torch" | "F"), name)) if node in parent.args:
            return name in _READS
        case _:
            return False


_READS = frozenset(
    (
        "tanh", "sigmoid", "relu", "softmax", "log_softmax", "exp", "log", "sqrt", "sum", "mean",
        "cat", "stack", "linear", "matmul", "mm", "mv", "dot", "where",
    )
)  # fmt: skip


@lru_cache(_KEPT)
def private_lists(function: ast.FunctionDef) -> frozenset[str]:
    """Local names of lists that nothing else can hold: they begin as a display, and are only
    appended to, indexed, measured, combined by `torch.cat` or `torch.stack`, and returned. Such a
    list may be taken for the tuple of its items."""
    parents: dict[ast.AST, ast.AST] = {}
    inner: set[ast.AST] = set()
    for node in every_node(function):
        for child in child_nodes(node):
            parents[child] = node
        if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not function:
            inner |= set(every_node(node))
    refused = {arg.arg for arg in every_node(function) if isinstance(arg, ast.arg)}
    bound: set[str] = set()
    for node in every_node(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            refused |= set(node.names)
        if not isinstance(node, ast.Name):
            continue
        parent = parents[node]
        if node in inner:
            refused.add(node.id)
        elif isinstance(node.ctx, ast.Store):
            bound.add(node.id)
            if not _is_display(node, parent):
                refused.add(node.id)
        elif not _keeps_private(node, parent, parents):
            refused.add(node.id)
    return frozenset(bound - refused)


def _is_display(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.Assign([target], ast.List()) if target is node:
            return True
        case ast.AnnAssign(target, _, ast.List()):
            return target is node
        case _:
            return False


def _keeps_private(node: ast.Name, parent: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    match parent:
        case ast.Attribute(_, "append"):
            call = parents[parent]
            is_called = isinstance(call, ast.Call) and call.func is parent
            return is_called and isinstance(parents[call], ast.Expr)
        case ast.Subscript(value, _, ast.Load()):
            return value is node
        case ast.Call(ast.Name("len"), [argument], []):
            return argument is node
        case ast.Call(ast.Attribute(ast.Name("torch"), "cat" | "stack"), [argument, *_]):
            return argument is node
        case ast.Return():
            return True
        case _:
            return False


@lru_cache(_KEPT)
def gone_through_once(function: ast.FunctionDef) -> frozenset[str]:
    """Local names that are read once for each time that they are bound: an iterator that one of
    them holds is not gone through again, when it has nothing left."""
    reads: dict[str, list[Hashable]] = {}
    stores: dict[str, list[Hashable]] = {}
    for argument in every_node(function.args):
        if isinstance(argument, ast.arg):
            stores.setdefault(argument.arg, []).append(None)

    def visit(node: ast.AST, around: Hashable) -> None:
        if isinstance(node, ast.Name):
            found = stores if isinstance(node.ctx, ast.Store) else reads
            found.setdefault(node.id, []).append(around)
        match node:
            case ast.For(target, iterable, body, orelse):
                visit(iterable, around)
                for part in (target, *body, *orelse):
                    visit(part, node)
            case ast.While() | ast.FunctionDef() | ast.Lambda() | ast.comprehension():
                for part in child_nodes(node):
                    visit(part, node)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                first = node.generators[0].iter
                visit(first, around)
                for part in every_node(node):
                    if isinstance(part, ast.Name) and part not in list(every_node(first)):
                        visit(part, node)
            case _:
                for part in child_nodes(node):
                    visit(part, around)

    for statement in function.body:
        visit(statement, None)
    return frozenset(
        name for name, places in stores.items() if len(places) == 1 and reads.get(name) == places
    )
