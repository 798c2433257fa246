"""What the arms of a branch know of variables that its condition tests."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.control.kinds import is_instance
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic
from stretto.batching.types import Scalar, Type, alternatives, union


def narrow(frame: Frame, test: ast.expr, holds: bool) -> None:
    """Narrows the types of local variables where `test` is known to hold, or not to hold."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            narrow(frame, operand, not holds)
        case ast.BoolOp(ast.And(), values) if holds:
            for value in values:
                narrow(frame, value, True)
        case ast.BoolOp(ast.Or(), values) if not holds:
            for value in values:
                narrow(frame, value, False)
        case ast.Name(name) if holds:
            _keep(frame, name, lambda kind: kind is not Scalar.NONE)
        case ast.NamedExpr(ast.Name(name), _) if holds:
            _keep(frame, name, lambda kind: kind is not Scalar.NONE)
        case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
            wanted = holds == isinstance(op, ast.Is)
            _keep(frame, name, lambda kind: (kind is Scalar.NONE) == wanted)
        case ast.Compare(
            ast.NamedExpr(ast.Name(name), _),
            [ast.Is() | ast.IsNot() as op],
            [ast.Constant(None)],
        ):
            wanted = holds == isinstance(op, ast.Is)
            _keep(frame, name, lambda kind: (kind is Scalar.NONE) == wanted)
        case ast.Call(ast.Name("isinstance"), [ast.Name(name), classes], []):
            found = _static_classes(frame, classes)
            if found is not None:
                _keep(frame, name, lambda kind: (is_instance(frame, kind, found) is True) == holds)
        case _:
            pass


def _static_classes(frame: Frame, node: ast.expr) -> Any:
    """The classes that `isinstance` is called with, where names and attributes say them."""
    match node:
        case ast.Name(name):
            value = frame.globals.get(name, frame.free.get(name))
            if value is None:
                value = getattr(builtins, name, None)
            return value if isinstance(value, type) and name not in frame.locals else None
        case ast.Attribute(owner, name):
            found = _static_owner(frame, owner)
            value = getattr(found, name, None)
            return value if isinstance(value, type) else None
        case ast.Tuple(elts):
            parts = [_static_classes(frame, part) for part in elts]
            return None if any(part is None for part in parts) else tuple(parts)
        case _:
            return None


def _static_owner(frame: Frame, node: ast.expr) -> Any:
    match node:
        case ast.Name(name) if name not in frame.locals:
            return frame.globals.get(name)
        case ast.Attribute(owner, name):
            return getattr(_static_owner(frame, owner), name, None)
        case _:
            return None


def _keep(frame: Frame, name: str, wanted: Callable[[Type], bool]) -> None:
    value = frame.locals.get(name)
    if not isinstance(value, Dynamic):
        return
    kinds = list(alternatives(value.type))
    kept = [kind for kind in kinds if wanted(kind)]
    if kept and len(kept) < len(kinds):
        frame.locals[name] = frame.cast(value, union(kept))
