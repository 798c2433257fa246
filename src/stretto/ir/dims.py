"""Symbolic dims that are arithmetic over other dims, as `2*s0` or `Max(0, s0 - 1)`.

The name of such a Symbol is its formula, in sympy's canonical form; this file reads and renames it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import sympy
import torch
from torch.utils._sympy import functions as torch_sympy

from stretto.errors import VerifyError
from stretto.ir.types import Dim, Symbol

Number = TypeVar("Number", int, torch.SymInt)
Calls = Mapping[str, Callable[[Any, Any], Any]]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: a**b,
}
_NUMBER_CALLS: Calls = {
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "FloorDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
}
_FORMULA_CALLS: Calls = {
    "Max": sympy.Max,
    "Min": sympy.Min,
    "FloorDiv": torch_sympy.FloorDiv,
    "Mod": torch_sympy.Mod,
}
_OTHER_NAMES: dict[str, str] = {"CleanDiv": "FloorDiv", "PythonMod": "Mod"}
_OPERATOR_NAMES: dict[type[ast.operator], str] = {ast.FloorDiv: "FloorDiv", ast.Mod: "Mod"}


def base_names(dim: Dim) -> tuple[str, ...]:
    """The names that a dim depends on, in order: `("s0",)` for `2*s0`, none for an int."""
    if isinstance(dim, int):
        return ()
    tree = _formula(dim.name)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(node.id for node in names if id(node) not in called))


def evaluate(dim: Dim, values: Mapping[str, Number]) -> int | Number:
    """The dim with its base names replaced by numbers.

    VerifyError for a name without value or a formula that dims may not have.
    """
    return dim if isinstance(dim, int) else _evaluate(_formula(dim.name), values, _NUMBER_CALLS)


def rename_dim(dim: Dim, renaming: Mapping[str, Dim]) -> Dim:
    """The dim with base names replaced by other dims, in canonical form again."""
    if isinstance(dim, int):
        return dim
    if dim.name in renaming:
        return renaming[dim.name]
    names = base_names(dim)
    if not any(name in renaming for name in names):
        return dim
    values = {name: to_sympy(renaming.get(name, Symbol(name))) for name in names}
    return from_sympy(_evaluate(_formula(dim.name), values, _FORMULA_CALLS))


def to_sympy(dim: Dim) -> Any:
    """The dim as a sympy expression over integer symbols."""
    if isinstance(dim, int):
        return sympy.Integer(dim)
    values = {name: _symbol(name) for name in base_names(dim)}
    return _evaluate(_formula(dim.name), values, _FORMULA_CALLS)


def from_sympy(formula: Any) -> Dim:
    """The dim that a sympy expression over `to_sympy`'s symbols says."""
    return int(formula) if formula.is_Integer else Symbol(str(formula))


@cache
def _symbol(name: str) -> Any:
    return sympy.Symbol(name, integer=True, positive=True)


@cache
def _formula(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise VerifyError(f"the dim `{text}` is not a name or a formula over names") from None


def _evaluate(node: ast.expr, values: Mapping[str, Any], calls: Calls) -> Any:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Name(id=name):
            raise VerifyError(f"the dim `{name}` is not bound by a parameter or a list.stack")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, values, calls)
        case ast.BinOp(left=left, op=op, right=right):
            function = _BINARY.get(type(op)) or calls.get(_OPERATOR_NAMES.get(type(op), ""))
            items = (left, right)
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as items):
            function = calls.get(_OTHER_NAMES.get(name, name))
        case _:
            function, items = None, ()
    if function is None:
        raise VerifyError(f"the dim `{ast.unparse(node)}` is not a formula that dims may have")
    first, *rest = (_evaluate(item, values, calls) for item in items)
    for item in rest:
        first = function(first, item)
    return first
