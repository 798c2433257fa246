"""Statements and expressions that no source has, which abbreviate others."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.frames import PythonFrame


class DoStatement(ast.stmt):
    def __init__(self, action: Callable[[PythonFrame], None]) -> None:
        self.action = action
        self.lineno = 0


class EvaluatedExpression(ast.expr):
    """An expression that is evaluated in another frame."""

    def __init__(self, frame: PythonFrame, node: ast.expr) -> None:
        self.frame, self.node = frame, node
