"""Sums of products as products of matrices: which dims are rows, columns, batch.

Unlike `contraction`, which wants two plain loads at affine positions, the factors may be any
expressions: conversions, images read under a condition.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.types import DType
from stretto.kernels.contraction import factors
from stretto.kernels.expr import Apply, Const, Expr, Load, Position, Var, expr_atoms
from stretto.kernels.groups import divisible
from stretto.kernels.operator import Operator

HALVES = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Product:
    """out[batch, rows, columns] = sum over the reduced dims of left * right; dims by number.

    `rows` are the dims that only `left` depends on, `columns` those of `right`; `batch` has the
    others. Dims of size 1 are left out.
    """

    left: Expr
    right: Expr
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def product_of(operator: Operator) -> Product | None:
    """The product of matrices that an operator is; None where it is none, or not one in f32.

    The factor that depends on the contiguous dim of the result is the right one.
    """
    pair = factors(operator)
    if pair is None or operator.accumulate or not divisible(operator):
        return None
    if operator.value.dtype is not DType.F32:
        return None
    dims = [n for n, extent in enumerate(operator.dims) if extent != 1]
    left, right = pair
    contiguous = [n for n in dims if operator.out.offset.coefficient(Var(n)) == 1]
    if contiguous and contiguous[-1] in expr_vars(left):
        left, right = right, left
    in_left, in_right = expr_vars(left), expr_vars(right)
    rows = tuple(n for n in dims if n in in_left and n not in in_right)
    columns = tuple(n for n in dims if n in in_right and n not in in_left)
    batch = tuple(n for n in dims if n not in rows and n not in columns)
    return Product(left, right, batch, rows, columns)


def expr_vars(expr: Expr) -> set[int]:
    """Numbers of the iteration variables that an expression depends on."""
    return {atom.number for atom in expr_atoms(expr) if isinstance(atom, Var)}


def narrow_dtype(expr: Expr) -> DType | None:
    """f16 or bf16 where every value of an expression of f32 is one of that dtype."""
    match expr:
        case Load():
            return expr.dtype if expr.dtype in HALVES else None
        case Apply("cast", (argument,), dtype):
            if dtype in HALVES:
                return dtype
            return narrow_dtype(argument) if dtype is DType.F32 else None
        case Apply("where", (_, Const(value, _), other), _) if value == 0:
            return narrow_dtype(other)
        case Apply("where", (_, other, Const(value, _)), _) if value == 0:
            return narrow_dtype(other)
        case _:
            return None


def plain_load(expr: Expr) -> Load | None:
    """The load that a factor is, maybe converted from f16 or bf16."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (Load() as load,), DType.F32) if load.dtype in HALVES:
            return load
        case _:
            return None
