"""Table folding: a product with rows of a constant table becomes a lookup in the table of products.

A decoder looks up its last token in an embedding and multiplies the row with a weight. Both are
constant, so all products are computed once at compile time, and a step reads one row of them: a few
kilobytes instead of the whole weight.

Changes: products with a constant matrix (`LinearProduct`) of an `embedding` in a constant table, in
any block. Needs: constants folded. Guarantees: sums as exact as before, rounded once; a new table
takes at most `limit_bytes`, and its computation at most `limit_flops` operations.

    %t = constant "table" : f32[3797, 256]    %p = constant "product_table.0" : f32[3797, 1024]
    %w = constant "w" : f32[1024, 256]        %y = embedding(%p, %ids)
    %e = embedding(%t, %ids)             =>
    %y = linear(%e, %w, %b)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import TensorOp
from stretto.ir.rewrite import all_blocks
from stretto.ops.arguments import value_argument
from stretto.ops.infer import tensor_op
from stretto.passes.analyses.op_facts import Constants, LinearProduct, as_linear

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class FoldTables:
    """The pass; `limit_bytes` bounds one new table, `limit_flops` the work to compute it."""

    limit_bytes: int = 32 * MEBIBYTE
    limit_flops: float = 1e10
    name: ClassVar[str] = "fold_tables"

    def apply(self, program: Program) -> bool:
        changed = False
        for body, constants in Constants.by_function(program):
            for block in all_blocks(body):
                changed |= self._block(block, constants)
        return changed

    def _block(self, block: Block, constants: Constants) -> bool:
        before, ops = block.ops, list[Op]()
        for op in before:
            found = looked_up(op, constants)
            if isinstance(found, Lookup):
                reason = self.stay_reason(found)
                if reason is None:
                    ops.extend(_folded(found, constants))
                    continue
                remarks = constants.program.remarks
                remarks.decline(self.name, found.linear.op.target, reason, op.location)
            ops.append(op)
        block.ops = ops
        return len(ops) > len(before)

    def stay_reason(self, found: Lookup) -> str | None:
        """Return why the product is not worth a table, or None."""
        rows, depth = found.table.shape
        size = rows * found.linear.outputs * found.table.itemsize
        if size > self.limit_bytes:
            return f"the table would take {size} bytes"
        if 2.0 * rows * depth * found.linear.outputs > self.limit_flops:
            return "the table would take long to compute"
        return None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A product with the rows `indices` of a constant table."""

    linear: LinearProduct
    table: torch.Tensor
    indices: Value


def looked_up(op: Op, constants: Constants) -> Lookup | str:
    """Return the op as a product with rows of a constant table, or the reason why it is none."""
    linear = as_linear(op, constants)
    if isinstance(linear, str):
        return linear
    maker = constants.makers.get(linear.input)
    if not isinstance(maker, TensorOp) or maker.target != "aten.embedding.default":
        return "its input is not looked up in a table"
    table = constants.tensor(value_argument(maker, "weight"))
    indices = value_argument(maker, "indices")
    if table is None or indices is None:
        return "the table is not constant"
    return Lookup(linear, table.detach(), indices)


def _folded(found: Lookup, constants: Constants) -> list[Op]:
    op, bias = found.linear.op, found.linear.bias
    sources = [found.table, found.linear.weight, *([] if bias is None else [bias])]
    table = constants.derived("product_table", _product, *sources)
    lookup = tensor_op("aten.embedding.default", table.result, found.indices)
    assert lookup.result.type == op.result.type
    lookup.results, lookup.location = op.results, op.location
    return [table, lookup]


def _product(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    with torch.no_grad():
        exact = rows.double() @ weight.double().t()
        total = exact if bias is None else exact + bias.double()
    return total.to(rows.dtype)
