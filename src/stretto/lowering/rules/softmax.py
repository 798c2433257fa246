"""Softmax: the maximum and the sum of each row as operators, the result lazily on top of them."""

from __future__ import annotations

from math import inf

from stretto.device.expr import Expr
from stretto.device.operator import Combine
from stretto.lowering.lazy import Lazy, cast
from stretto.lowering.rules.emit import computed, mapped, reduction, spread_over
from stretto.lowering.rules.scalar import apply, compute_dtype, like, where
from stretto.lowering.rules.table import Call, rule


def row_statistics(call: Call, lazy: Lazy, dim: int) -> tuple[Expr, Lazy, Lazy]:
    """(exp's argument x - max, the maxima, the sums of exponentials) along `dim`."""
    kept = tuple(d for d in range(lazy.rank) if d != dim)
    top = reduction(call.low, lazy, (dim,), Combine.MAX, "max")
    raised = apply("sub", lazy.expr, spread_over(top, kept, lazy.shape))
    total = reduction(call.low, mapped(lazy, apply("exp", raised)), (dim,), Combine.SUM, "sum")
    return raised, top, total


def softmax(call: Call, lazy: Lazy, dim: int, safe: bool) -> Expr:
    """Element of softmax(lazy) along `dim`. Rows of -inf give 0 when `safe`, else NaN."""
    raised, top, total = row_statistics(call, lazy, dim)
    kept = tuple(d for d in range(lazy.rank) if d != dim)
    weight = apply("div", apply("exp", raised), spread_over(total, kept, lazy.shape))
    if not safe:
        return weight
    highest = spread_over(top, kept, lazy.shape)
    return where(apply("eq", highest, like(-inf, highest)), like(0, weight), weight)


def _source(call: Call) -> tuple[Lazy, int]:
    """The input in the dtype of computation, and the dim."""
    lazy = call.cheap("self")
    if call.has("dtype"):
        lazy = computed(lazy, call.dtype)
    return computed(lazy, compute_dtype(lazy.dtype)), call.axis(lazy.rank)


@rule("_softmax softmax.int _safe_softmax")
def _softmax(call: Call) -> Lazy:
    safe = call.op.target == "aten._safe_softmax.default"
    lazy, dim = _source(call)
    if 0 in call.shape:
        return call.tensor("self")
    expr = softmax(call, lazy, dim, safe) if lazy.rank else _of_one(lazy.expr, safe)
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


def _of_one(x: Expr, safe: bool) -> Expr:
    """The softmax of a tensor without dims: 1, or NaN where it is not finite."""
    weight = apply("exp", apply("sub", x, x))
    return where(apply("eq", x, like(-inf, x)), like(0, x), weight) if safe else weight


@rule("_log_softmax log_softmax.int")
def _log_softmax(call: Call) -> Lazy:
    lazy, dim = _source(call)
    if 0 in call.shape:
        return call.tensor("self")
    if not lazy.rank:
        expr = apply("sub", lazy.expr, lazy.expr)
    else:
        raised, _, total = row_statistics(call, lazy, dim)
        kept = tuple(d for d in range(lazy.rank) if d != dim)
        log = mapped(total, apply("log", total.expr))
        expr = apply("sub", raised, spread_over(log, kept, lazy.shape))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))
