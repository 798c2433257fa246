"""Generator functions as functions that hand each value to whoever consumes them, and which of
them can be rewritten in which way.

    for row in rows:                 for row in rows:
        yield f(row)                     if yield f(row): return

The `yield` that is left is an expression: it runs the consumer's loop body, and says whether that
has left its loop. So the body of a `for` over a generator runs at the places of the yields, inside
of the branches and loops of the generator.
"""

from __future__ import annotations

import ast
from typing import Any

from stretto.frontends.python.source.syntax import assign, at, name, own_nodes

_YIELDS = (ast.Yield, ast.YieldFrom)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(item, _YIELDS) for item in own_nodes(node))


def can_be_lowered(node: ast.FunctionDef) -> bool:
    """Whether each yield is a statement, outside of handlers that would catch what its consumer
    raises, and no decorator wants the generator itself."""
    statements = {id(item) for one in own_nodes(node) for item in _yielding(one)}
    every = [item for item in own_nodes(node) if isinstance(item, _YIELDS)]
    tries = [item for item in own_nodes(node) if isinstance(item, ast.Try) and item.handlers]
    caught = {id(item) for one in tries for item in ast.walk(one)}
    return not node.decorator_list and all(
        id(item) in statements and id(item) not in caught for item in every
    )


def can_be_pulled(node: ast.FunctionDef) -> bool:
    """Whether no handler of exceptions is around a yield: a check that fails in the run would have
    to go on there."""
    tries = [item for item in own_nodes(node) if isinstance(item, ast.Try) and item.handlers]
    return not node.decorator_list and not any(map(has_yield, tries))


def has_yield(node: ast.AST) -> bool:
    """Whether a statement or expression yields, in the function that it is a part of."""
    return isinstance(node, _YIELDS) or any(isinstance(item, _YIELDS) for item in own_nodes(node))


def branches(node: ast.FunctionDef) -> bool:
    """Whether conditions decide what is yielded, and nothing is sent to the generator."""
    every = own_nodes(node)
    unused = {id(item.value) for item in every if isinstance(item, ast.Expr)}
    used = [item for item in every if isinstance(item, _YIELDS) and id(item) not in unused]
    tests = [item for item in every if isinstance(item, ast.If | ast.While)]
    return not used and any(
        not isinstance(item.test, ast.Constant) and _decides(item) for item in tests
    )


def _decides(node: ast.If | ast.While) -> bool:
    return any(isinstance(item, (*_YIELDS, ast.Return, ast.Break)) for item in own_nodes(node))


def _yielding(node: ast.AST) -> list[ast.AST]:
    """The yield that a statement consists of."""
    match node:
        case ast.Expr(value=ast.Yield() | ast.YieldFrom() as found):
            return [found]
        case ast.Assign(value=ast.Yield() as found):
            return [found]
        case _:
            return []


class GeneratorLowering(ast.NodeTransformer):
    """The statements of one generator function; nested functions are left as they are."""

    def __init__(self) -> None:
        self._count = 0

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Yield() as given:
                return _handed_over(given, node)
            case ast.YieldFrom(value=items):
                item = f"__stretto_yield_{self._count}"
                self._count += 1
                each = _handed_over(at(node, ast.Yield(name(item))), node)
                target = ast.Name(item, ast.Store())
                return at(node, ast.For(target, items, [each], []))
            case _:
                return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if not isinstance(node.value, ast.Yield):
            return node
        handed = _handed_over(node.value, node)
        node.value = at(node, ast.Constant(None))
        return [handed, node]

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        """What a generator returns nobody sees, but it is computed."""
        if node.value is None:
            return node
        value = at(node, assign("__stretto_unseen", node.value))
        return [value, at(node, ast.Return(None))]


def _handed_over(given: ast.Yield, like: ast.AST) -> ast.stmt:
    given.value = given.value or at(like, ast.Constant(None))
    return at(like, ast.If(given, [at(like, ast.Return(None))], []))
