"""Softmax and its logarithm: the maximum and the sum of each row are operators."""

from __future__ import annotations

from math import inf

from stretto.device.expr import Expr
from stretto.device.operator import Combine
from stretto.ir.types import DType
from stretto.lowering.emit import (
    apply,
    compute_dtype,
    computed,
    like,
    mapped,
    over,
    reduction,
    where,
)
from stretto.lowering.lazy import Lazy, cast
from stretto.lowering.rules import TensorOpCall, rule
from stretto.ops.table import Fails, ShiftDims, describe

# ---- properties ------------------------------------------------------------------------------

describe("softmax log_softmax _safe_softmax", fails=Fails.NEVER)
describe("softmax.int _softmax log_softmax.int _log_softmax", batching=ShiftDims())
describe("_softmax _log_softmax", whole=True)


LEAST_EXPONENT = {DType.F32: -87.0, DType.F64: -708.0}
"""exp of a smaller number is denormal."""


def row_statistics(call: TensorOpCall, lazy: Lazy, dim: int) -> tuple[Expr, Lazy, Lazy]:
    """Return (the argument x - max of exp, the maxima, the sums of exponentials) along `dim`."""
    top = reduction(call.low, lazy, (dim,), Combine.MAX)
    raised = apply("sub", lazy.expr, over(top, (dim,), lazy))
    exponentials = mapped(lazy, exponential(call, raised))
    return raised, top, reduction(call.low, exponentials, (dim,), Combine.SUM)


def exponential(call: TensorOpCall, raised: Expr) -> Expr:
    """Return exp of x - max, with denormal results replaced by 0.

    Next to the 1 of the maximum they are negligible, and arithmetic with them takes a hundred
    cycles each on a CPU: a mask of -100, as in Swin, made a softmax and the product after it 15
    times slower.
    """
    if raised.dtype not in LEAST_EXPONENT or not call.low.costs.slow_denormals:
        return apply("exp", raised)
    least = like(LEAST_EXPONENT[raised.dtype], raised)
    is_small = apply("lt", raised, least)
    return where(is_small, like(0, raised), apply("exp", apply("maximum", raised, least)))


def _source(call: TensorOpCall) -> tuple[Lazy, int]:
    """Return the input in the dtype of computation, and the dim."""
    lazy = call.cheap("self")
    if call.has("dtype"):
        lazy = computed(lazy, call.dtype)
    return computed(lazy, compute_dtype(lazy.dtype)), call.axis(lazy.rank)


@rule("_softmax softmax.int _safe_softmax")
def _softmax(call: TensorOpCall) -> Lazy:
    """Rows of -inf give 0 in `_safe_softmax`, NaN in the others."""
    lazy, dim = _source(call)
    if 0 in call.shape:
        return call.tensor("self")
    if lazy.rank:
        raised, top, total = row_statistics(call, lazy, dim)
        weight = apply("div", exponential(call, raised), over(total, (dim,), lazy))
        highest = over(top, (dim,), lazy)
    else:  # the softmax of one element is 1, or NaN if it is not finite
        weight, highest = apply("exp", apply("sub", lazy.expr, lazy.expr)), lazy.expr
    if call.op.target == "aten._safe_softmax.default":
        weight = where(apply("eq", highest, like(-inf, highest)), like(0, weight), weight)
    return Lazy(call.dtype, call.shape, cast(weight, call.dtype))


@rule("_log_softmax log_softmax.int")
def _log_softmax(call: TensorOpCall) -> Lazy:
    lazy, dim = _source(call)
    if 0 in call.shape:
        return call.tensor("self")
    if not lazy.rank:
        expr = apply("sub", lazy.expr, lazy.expr)
    else:
        raised, _, total = row_statistics(call, lazy, dim)
        log = mapped(total, apply("log", total.expr))
        expr = apply("sub", raised, over(log, (dim,), lazy))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))
