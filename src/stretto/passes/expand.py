"""Expansion of grouped products: one product per group of rows.

A mixture of experts sorts its rows by expert and multiplies each group with its own matrix.
The number of rows of a group is known only in the run; each product has that many rows, so
the matrices are packed and nothing is copied:

    %y = grouped_mm(%x, %w, %ends)         %n0 = size n0 = %end0
                                           %y0 = mm(narrow(%x, 0, 0, n0), select(%w, 0, 0))
                                     =>    %o0 = narrow_scatter(zeros, %y0, 0, 0)
                                           %n1 = size n1 = %end1 - %end0
                                           ...

Changes: `stretto.grouped_mm`, and the equivalent operator of transformers, of at most
`MOST_GROUPS` groups. Needs: nothing. Guarantees: the same results for ends that are in
range and never decrease, as the operators require; with other ends, nothing outside the
operands is read. Rows after the last group are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch

from stretto.ir.core import Op, Program, Value
from stretto.ir.ops import SizeOp, TensorOp
from stretto.ir.rewrite import rewrite_program
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_op, symbols_of_types
from stretto.ir.types import INDEX
from stretto.ops.infer import Emitter

GROUPED = ("stretto.grouped_mm.default", "transformers.grouped_mm_fallback.default")
"""Grouped products; the operands are rows [S, K], matrices [G, K, N] and the end of each group
[G]."""

MOST_GROUPS = 64
"""Largest number of groups to expand, since the program gets a product for each; with more, the op
stays one call of torch."""


@dataclass(frozen=True, slots=True)
class Expand:
    name: ClassVar[str] = "expand"
    after: ClassVar[str] = "inline"

    def apply(self, program: Program) -> bool:
        names = (f"group{number}" for number in count())
        known = {symbol.name for symbol in _symbols(program)}
        symbols = (Symbol(name, 0) for name in names if name not in known)

        def visit(
            op: Op, definitions: Mapping[Value, Op]
        ) -> tuple[list[Op], tuple[Value, ...]] | None:
            if not isinstance(op, TensorOp) or why_not(op) is not None:
                return None
            made = Emitter()
            result = _products(made, op, symbols)
            for new in made.ops:
                new.location = op.location
            return made.ops, (result,)

        return rewrite_program(program, visit)


def _symbols(program: Program) -> set[Symbol]:
    found: set[Symbol] = set()
    for function in program.functions.values():
        found |= set(symbols_of_types(param.type for param in function.params))
        for op in function.body.walk():
            found |= set(symbols_of_op(op))
    return found


def why_not(op: TensorOp) -> str | None:
    """Return why an operator stays as it is, or None."""
    if op.target not in GROUPED:
        return "it is no grouped product"
    matrices = op.args[1]
    assert isinstance(matrices, Value)
    groups = matrices.tensor.shape[0]
    if not isinstance(groups, int) or groups > MOST_GROUPS:
        return f"there are more than {MOST_GROUPS} groups"
    return None


def _products(made: Emitter, op: TensorOp, symbols: Iterator[Symbol]) -> Value:
    rows, matrices, ends = (*op.args, *(value for _, value in op.kwargs))
    assert isinstance(rows, Value) and isinstance(matrices, Value) and isinstance(ends, Value)
    total, width = rows.tensor.shape[0], matrices.tensor.shape[2]
    groups = matrices.tensor.shape[0]
    assert isinstance(groups, int)
    result = made.emit("aten.zeros.default", (total, width), dtype=op.result.tensor.dtype.torch)
    ends = made.emit("aten._to_copy.default", ends, dtype=torch.int64)
    ends = made.emit("aten.clamp.default", ends, 0, Size.of(total).dim)
    start: Value | int = 0
    for number in range(groups):
        end = made.emit("aten.select.int", ends, 0, number)
        length = end
        if isinstance(start, Value):
            end = made.emit("aten.maximum.default", end, start)
            length = made.emit("aten.sub.Tensor", end, start)
        size = Size.of(next(symbols))
        made.ops.append(SizeOp(length, size, Size.of(total), results=(Value(INDEX),)))
        part = made.emit("stretto.narrow", rows, 0, start, size)
        matrix = made.emit("aten.select.int", matrices, 0, number)
        product = made.emit("aten.mm.default", part, matrix)
        result = made.emit("stretto.narrow_scatter", result, product, 0, start)
        start = end
    return result
