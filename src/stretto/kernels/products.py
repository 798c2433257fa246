"""Recognises sums of products, and the part that each dim has in them.

This is the one analysis of products: machines ask it which dims are rows, columns and batch, and
add what their templates want to know (`contraction` the strides of operands that are plain loads).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from stretto.device.expr import Apply, Const, Dynamic, Expr, Index, Load, Position, Quotient, Var
from stretto.device.operator import Combine, Operator
from stretto.kernels.groups import divisible


@dataclass(frozen=True, slots=True)
class Product:
    """out[batch, rows, columns] = sum over the reduced dims of left * right; dims by number.

    `rows` are the dims that only the left factor depends on, `columns` those of the right one,
    `batch` those of both, `free` those of none; dims of size 1 are left out. The right factor is
    the one that the contiguous dim of the result belongs to: it is the first one where `turned`.
    pieces: (dim, size) where the other factor depends on dim // size too, as in a grouped
    convolution: only tiles within a piece are such a product.
    """

    turned: bool
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    free: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()

    def factors(self, operator: Operator) -> tuple[Expr, Expr]:
        """The left and the right one, of an operator that is this product."""
        pair = factors(operator)
        assert pair is not None
        first, second = pair
        return (second, first) if self.turned else (first, second)


def factors(operator: Operator) -> tuple[Expr, Expr] | None:
    """The two factors of a sum of products."""
    value = operator.value
    if operator.combine != Combine.SUM or not isinstance(value, Apply):
        return None
    return (value.args[0], value.args[1]) if value.function == "mul" else None


def product_of(operator: Operator) -> Product | None:
    """The product that an operator is. Its factors may be any expressions: conversions, images read
    under a condition.
    """
    pair = factors(operator)
    if pair is None or operator.accumulate or not divisible(operator):
        return None
    dims = [n for n, extent in enumerate(operator.dims) if extent != 1]
    uses = [Uses.of(factor) for factor in pair]
    contiguous = [n for n in dims if operator.out.offset.coefficient(Var(n)) == 1]
    turned = bool(contiguous) and contiguous[-1] in uses[0].direct
    left, right = uses[::-1] if turned else uses
    roles: dict[tuple[bool, bool], list[int]] = {}
    for n in dims:
        roles.setdefault((n in left.direct, n in right.direct), []).append(n)
    rows, columns = roles.get((True, False), []), roles.get((False, True), [])
    pieces = [(n, right.pieces[n]) for n in rows if n in right.pieces]
    pieces += [(n, left.pieces[n]) for n in columns if n in left.pieces]
    batch, free = roles.get((True, True), []), roles.get((False, False), [])
    return Product(turned, tuple(batch), tuple(rows), tuple(columns), tuple(free), tuple(pieces))


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
