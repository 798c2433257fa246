"""Dims that are arithmetic over other dims, as indices over the registers that hold those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.device.expr import Extent, Index
from stretto.errors import CodegenError
from stretto.ir.dims import to_sympy
from stretto.ir.types import Symbol


def formula_index(dim: Symbol, symbols: Mapping[Symbol, Extent]) -> Index:
    """The dim `dim`, such as `2*s0 + 1`, over bound names. CodegenError for what has no index."""
    return _convert(to_sympy(dim), symbols, dim)


def _convert(formula: Any, symbols: Mapping[Symbol, Extent], dim: Symbol) -> Index:
    if formula.is_Integer:
        return Index(const=int(formula))
    if formula.is_Symbol and Symbol(str(formula)) in symbols:
        return Index.of(symbols[Symbol(str(formula))])
    parts = [_convert(part, symbols, dim) for part in formula.args]
    if formula.is_Add:
        return sum(parts[1:], parts[0])
    if formula.is_Mul:
        return _product(parts, dim)
    if type(formula).__name__ in ("FloorDiv", "CleanDiv") and parts[1].is_const:
        return parts[0] // parts[1].const
    if type(formula).__name__ in ("Mod", "PythonMod") and parts[1].is_const:
        return parts[0] % parts[1].const
    raise _unsupported(dim)


def _product(parts: list[Index], dim: Symbol) -> Index:
    total, *rest = sorted(parts, key=lambda part: part.is_const)
    if not all(part.is_const for part in rest):
        raise _unsupported(dim)
    for part in rest:
        total = total * part.const
    return total


def _unsupported(dim: Symbol) -> CodegenError:
    return CodegenError(f"the size {dim} cannot be computed in the run")
