"""Sums of products as products of matrices: which dims are rows, columns, batch.

Unlike `contraction`, which wants two plain loads at affine positions, the factors may be any
expressions: conversions, images read under a condition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from stretto.device.expr import (
    Apply,
    Const,
    Dynamic,
    Expr,
    Index,
    Load,
    Position,
    Quotient,
    Var,
    expr_atoms,
)
from stretto.device.operator import Operator
from stretto.ir.types import DType
from stretto.kernels.contraction import factors
from stretto.kernels.groups import divisible

HALVES = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Product:
    """out[batch, rows, columns] = sum over the reduced dims of left * right; dims by number.

    `rows` are the dims that only `left` depends on, `columns` those of `right`; `batch` has the
    others. Dims of size 1 are left out. pieces: (dim, size) where the other factor depends on
    dim // size too, as in a grouped convolution: only tiles within a piece are such a product.
    """

    left: Expr
    right: Expr
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...] = ()


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
    uses = [Uses.of(factor) for factor in pair]
    contiguous = [n for n in dims if operator.out.offset.coefficient(Var(n)) == 1]
    turned = bool(contiguous) and contiguous[-1] in uses[0].direct
    (left, right), (lefts, rights) = (pair[::-1], uses[::-1]) if turned else (pair, uses)
    rows = tuple(n for n in dims if n in lefts.direct and n not in rights.direct)
    columns = tuple(n for n in dims if n in rights.direct and n not in lefts.direct)
    batch = tuple(n for n in dims if n not in rows and n not in columns)
    pieces = [(n, rights.pieces[n]) for n in rows if n in rights.pieces]
    pieces += [(n, lefts.pieces[n]) for n in columns if n in lefts.pieces]
    return Product(left, right, batch, rows, columns, tuple(pieces))


@dataclass(slots=True)
class Uses:
    """How an expression depends on variables: `pieces[n]` = size where only by Var(n) // size."""

    direct: set[int] = field(default_factory=set[int])
    pieces: dict[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def of(expr: Expr) -> Uses:
        uses = Uses()
        uses.visit(expr)
        return uses

    def visit(self, expr: Expr) -> None:
        match expr:
            case Const():
                pass
            case Position(index):
                self.visit_index(index)
            case Load(access):
                for index in access.index:
                    self.visit_index(index)
            case Apply(_, args, _):
                for arg in args:
                    self.visit(arg)

    def visit_index(self, index: Index) -> None:
        for atom, _ in index.terms:
            match atom:
                case Quotient(Index(((Var(number), 1),), 0), int(size)):
                    self.pieces[number] = gcd(self.pieces.get(number, 0), size)
                case Dynamic(value):
                    self.visit(value)
                case _:
                    self.direct |= Index.of(atom).vars()


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
