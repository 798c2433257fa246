"""Which lines of a printed program the value that a line stores comes from."""

from __future__ import annotations

import ast
from textwrap import dedent
from types import CodeType

Lines = tuple[tuple[CodeType, int], ...]
"""The lines of a text that led to what is done: the innermost function first, the kernel last."""


class Dependences:
    """Reads the functions of a text as they are asked for.

    What a variable depends on is taken from all assignments of it, whatever their order.
    """

    def __init__(self, text: str) -> None:
        self._text = text.splitlines()
        self._functions: dict[int, _Function] = {}

    def reach(self, source: Lines, target: Lines) -> bool:
        """Whether what is computed at `source` may be a part of what is stored at `target`; both
        are lines of functions that call each other, the innermost first."""
        for (code, line), (other, last) in zip(reversed(source), reversed(target), strict=False):
            if code is not other:
                return False
            if line != last:
                first = code.co_firstlineno
                if first not in self._functions:
                    self._functions[first] = _Function(self._text, first)
                return line in self._functions[first].sources(last)
        return True


class _Function:
    """The lines of each variable's assignments, and of those of the variables in them."""

    def __init__(self, text: list[str], first: int) -> None:
        last = first
        while last < len(text) and (not text[last] or text[last][0] in " )#"):
            last += 1
        tree = ast.parse(dedent("\n".join(text[first - 1 : last])))
        ast.increment_lineno(tree, first - 1)
        self._assigned: dict[str, set[str | int]] = {}
        self._statements: dict[int, set[str | int]] = {}
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                self._add(statement)

    def _add(self, statement: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr) -> None:
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        used = {*lines, *(node.id for node in names if isinstance(node.ctx, ast.Load))}
        for node in names:
            if isinstance(node.ctx, ast.Store):
                self._assigned.setdefault(node.id, set()).update(used)
        for line in lines:
            self._statements.setdefault(line, set()).update(used)

    def sources(self, line: int) -> set[str | int]:
        """The names and lines that what stands in `line` depends on."""
        found: set[str | int] = set()
        waiting = [*self._statements.get(line, ())]
        while waiting:
            item = waiting.pop()
            if item not in found:
                found.add(item)
                waiting += self._assigned.get(item, ()) if isinstance(item, str) else ()
        return found
