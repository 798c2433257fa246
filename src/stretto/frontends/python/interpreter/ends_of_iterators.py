"""Statements with a call of `next` of which only the run knows whether the iterator has ended.

Its end ends the statement, if a handler of the function catches StopIteration. So what Python
evaluates before the call is evaluated first, and what is left of the block is an arm of a branch.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.generators import has_yield
from stretto.frontends.python.interpreter.heap import MISSING
from stretto.frontends.python.interpreter.joins import LiveNames

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter
    from stretto.frontends.python.interpreter.frames import PythonFrame

_FIRST: dict[type, str] = {
    ast.Assign: "value",
    ast.AnnAssign: "value",
    ast.AugAssign: "value",
    ast.Expr: "value",
    ast.Return: "value",
    ast.If: "test",
}
"""The expression of a statement that is evaluated first."""
_PARTS: dict[type, tuple[str, ...]] = {
    ast.Call: ("func", "args", "keywords"),
    ast.BinOp: ("left", "right"),
    ast.UnaryOp: ("operand",),
    ast.Compare: ("left", "comparators"),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Subscript: ("value", "slice"),
    ast.Attribute: ("value",),
    ast.NamedExpr: ("value",),
    ast.IfExp: ("test",),
}
"""The parts of an expression that are always evaluated, in the order of Python."""


def is_next(node: ast.AST) -> bool:
    """True for a call of `next` without a default."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "next"
        and len(node.args) == 1
    )


def takes_next(frame: PythonFrame, statement: ast.stmt) -> bool:
    """True if a statement has a call of `next`, and a handler of the function catches its end."""
    name = _FIRST.get(type(statement))
    if name is None or not frame.catches(StopIteration()) or has_yield(statement):
        return False
    if isinstance(statement, ast.AugAssign) and not (
        isinstance(statement.target, ast.Name) and statement.target.id in frame.vars
    ):
        return False  # its target is read before
    first = getattr(statement, name)
    return first is not None and any(map(is_next, ast.walk(first)))


def _is_split(node: ast.expr) -> bool:
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    named = [part.arg for part in node.keywords] if isinstance(node, ast.Call) else []
    is_chain = isinstance(node, ast.Compare) and len(parts) > 2
    is_spread = None in named or any(isinstance(part, ast.Starred) for part in parts)
    return type(node) in _PARTS and not is_chain and not is_spread


class StatementWithNext:
    """A statement that is evaluated up to a call of `next` whose outcome only the run knows.

    rest: what is left of it. hole: the place of the item, None if there is no such call.
    """

    def __init__(
        self, interpreter: PythonInterpreter, frame: PythonFrame, statement: ast.stmt
    ) -> None:
        self.interpreter, self.frame = interpreter, frame
        self.iterator: Any = MISSING
        self.item: Any = MISSING
        self.hole: ast.Constant | None = None
        self.rest = copy.copy(statement)
        name = _FIRST[type(statement)]
        setattr(self.rest, name, self._left_of(getattr(statement, name)))

    def branch(self, go_on: Callable[[], Any], live: LiveNames | None) -> Any:
        """Go on with the rest if there is an item, and return how it ends."""
        regions, hole = self.interpreter.regions, self.hole
        assert hole is not None

        def with_item() -> Any:
            hole.value = regions.present(self.item)
            return go_on()

        return regions.branch(
            regions.is_bound(self.item),
            with_item,
            lambda: self.interpreter.iteration.fail_at_end(self.iterator),
            joins_ends=True,
            live=live,
        )

    def _left_of(self, node: Any) -> Any:
        """Return what is left of an expression, or of several."""
        if self.hole is not None:
            return node
        if isinstance(node, list):
            return [self._left_of(item) for item in node]
        made = copy.copy(node)
        if isinstance(node, ast.keyword):
            made.value = self._left_of(node.value)
            return made
        if _is_split(node) and any(map(is_next, ast.walk(node))):
            for name in _PARTS[type(node)]:
                setattr(made, name, self._left_of(getattr(node, name)))
            if self.hole is None and is_next(node) and made.func.value is next:
                return self._taken(node, made.args[0].value)
        if self.hole is not None:
            return made
        return ast.Constant(self.interpreter.expressions.value(self.frame, made))

    def _taken(self, node: ast.Call, iterator: Any) -> ast.Constant:
        iteration, regions = self.interpreter.iteration, self.interpreter.regions
        self.frame.node = node
        item = iteration.advance(iterator)
        is_there = regions.is_bound(item)
        if is_there is False:
            iteration.fail_at_end(iterator)
        made = ast.Constant(item)
        if is_there is not True:
            self.iterator, self.item, self.hole = iterator, item, made
        return made
