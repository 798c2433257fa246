"""Softmax: the maximum and the sum of each row as operators, the result lazily on top of them."""

from __future__ import annotations

from math import inf

from stretto.device.expr import Expr
from stretto.device.operator import Combine
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, cast
from stretto.lowering.rules.emit import computed, mapped, over, reduction
from stretto.lowering.rules.scalar import apply, compute_dtype, like, where
from stretto.lowering.rules.table import Call, rule

LEAST_EXPONENT = {DType.F32: -87.0, DType.F64: -708.0}
"""exp of less is no normal number."""


def row_statistics(call: Call, lazy: Lazy, dim: int) -> tuple[Expr, Lazy, Lazy]:
    """(exp's argument x - max, the maxima, the sums of exponentials) along `dim`."""
    top = reduction(call.low, lazy, (dim,), Combine.MAX)
    raised = apply("sub", lazy.expr, over(top, (dim,), lazy))
    exponentials = mapped(lazy, exponential(call, raised))
    return raised, top, reduction(call.low, exponentials, (dim,), Combine.SUM)


def exponential(call: Call, raised: Expr) -> Expr:
    """exp of x - max, with 0 in place of results too small to be normal numbers.

    Beside the 1 of the maximum they are nothing, and arithmetic with them takes a hundred cycles
    each on a CPU: a mask of -100, as Swin has it, made a softmax and the product behind it 15 times
    as slow.
    """
    if raised.dtype not in LEAST_EXPONENT or not call.low.costs.slow_denormals:
        return apply("exp", raised)
    least = like(LEAST_EXPONENT[raised.dtype], raised)
    is_small = apply("lt", raised, least)
    return where(is_small, like(0, raised), apply("exp", apply("maximum", raised, least)))


def _source(call: Call) -> tuple[Lazy, int]:
    """The input in the dtype of computation, and the dim."""
    lazy = call.cheap("self")
    if call.has("dtype"):
        lazy = computed(lazy, call.dtype)
    return computed(lazy, compute_dtype(lazy.dtype)), call.axis(lazy.rank)


@rule("_softmax softmax.int _safe_softmax")
def _softmax(call: Call) -> Lazy:
    """The safe one gives 0 for rows of -inf, the others NaN."""
    lazy, dim = _source(call)
    if 0 in call.shape:
        return call.tensor("self")
    if lazy.rank:
        raised, top, total = row_statistics(call, lazy, dim)
        weight = apply("div", exponential(call, raised), over(total, (dim,), lazy))
        highest = over(top, (dim,), lazy)
    else:  # 1, or NaN where it is not finite
        weight, highest = apply("exp", apply("sub", lazy.expr, lazy.expr)), lazy.expr
    if call.op.target == "aten._safe_softmax.default":
        weight = where(apply("eq", highest, like(-inf, highest)), like(0, weight), weight)
    return Lazy(call.dtype, call.shape, cast(weight, call.dtype))


@rule("_log_softmax log_softmax.int")
def _log_softmax(call: Call) -> Lazy:
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
