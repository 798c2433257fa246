"""Sorting along a dim, and the first elements in sorted order.

An operator computes the positions; the values are loads at them.
"""

from __future__ import annotations

import torch

from stretto.device.expr import Const, Dynamic, Extent, Index, Var
from stretto.device.operator import Combine, Operator
from stretto.ir.types import DType
from stretto.lowering.emit import compute_dtype, computed
from stretto.lowering.lazy import Lazy, constant, placed_at, stored, variables
from stretto.lowering.rules import Call, Decline, rule, static_dims
from stretto.ops.library import define
from stretto.ops.table import Fails, ShiftDims, describe

# ---- properties ------------------------------------------------------------------------------

describe("sort.stable", fails=Fails.NEVER)
describe("topk", "stretto", fails=Fails.NEVER, batching=ShiftDims())
describe("topk sort", batching=ShiftDims())


@rule("sort.stable")
def _sort(call: Call) -> tuple[Lazy, ...]:
    if not (call.has("stable") and call.flag("stable")):
        raise Decline("which of equal elements comes first is the library's choice")
    return _ordered(call, call.flag("descending"))


@rule("stretto.topk.default")
def _topk(call: Call) -> tuple[Lazy, ...]:
    return _ordered(call, call.flag("largest"))


def _ordered(call: Call, descending: bool) -> tuple[Lazy, ...]:
    """Return the first elements of the sorted dim, as many as the result has there, and their
    positions."""
    static_dims((*call.tensor("self").shape, *call.shape))
    lazy = call.cheap("self")
    if lazy.rank == 0:
        return lazy, Lazy(DType.I64, (), Const(0, DType.I64))
    if 0 in call.shape:
        return constant(0, lazy.dtype, call.shape), constant(0, DType.I64, call.shape)
    dim = call.axis(lazy.rank)
    places = _places(call, lazy, dim, call.shape[dim], descending)
    indices = list(variables(call.shape))
    indices[dim] = Index.of(Dynamic(places.expr)) if lazy.shape[dim] != 1 else Index()
    return Lazy(lazy.dtype, call.shape, lazy.at(*indices)), places


def _places(call: Call, lazy: Lazy, dim: int, keep: Extent, descending: bool) -> Lazy:
    """Return the positions that the elements of the sorted dim come from. That dim appears twice
    at the end of the operator's dims: with the size sorted and with the size stored."""
    if lazy.shape[dim] == 1:
        return Lazy(DType.I64, call.shape, Const(0, DType.I64))
    source = computed(lazy, compute_dtype(lazy.dtype))
    outer = (*lazy.shape[:dim], *lazy.shape[dim + 1 :])
    read, written = list(variables(outer)), list(variables(outer))
    read.insert(dim, Index.of(Var(len(outer))))
    written.insert(dim, variables((keep,), len(outer) + 1)[0])
    buffer = call.low.output(call.op.results[1])
    operator = Operator(
        "sort",
        outer,
        (lazy.shape[dim], keep),
        Combine.ARGSORT_DESCENDING if descending else Combine.ARGSORT,
        source.at(*read),
        placed_at(buffer, call.shape, tuple(written)),
        source=call.low.source,
    )
    call.low.emit(operator)
    return stored(buffer, call.shape)


# ---- stretto.topk(x, k, dim, largest) --------------------------------------------------------
#
# `aten.topk` with a defined order of equal elements: the one that comes first in `x` is first.


def _compute_topk(
    self: torch.Tensor, k: int, dim: int, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if any(isinstance(size, torch.SymInt) for size in (*self.shape, k)):
        shape = [k if place == dim % self.dim() else n for place, n in enumerate(self.shape)]
        return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)
    values, indices = self.sort(stable=True, dim=dim, descending=largest)
    if self.dim() == 0:
        return values, indices
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


define(
    "topk(Tensor self, int k, int dim, bool largest) -> (Tensor values, Tensor indices)",
    _compute_topk,
)
