"""Attention that arrives as one op: product, mask, softmax, product."""

from __future__ import annotations

from math import inf, sqrt

from stretto.device.expr import Position
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, broadcast, cast, constant, variables
from stretto.lowering.rules.contract import finished, matmul, operand
from stretto.lowering.rules.emit import factor_of, mapped, over
from stretto.lowering.rules.scalar import apply, like, where
from stretto.lowering.rules.softmax import row_statistics
from stretto.lowering.rules.table import Call, Decline, rule, static_dims
from stretto.lowering.rules.views import swapped


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> Lazy:
    return _attended(call)[0]


@rule("_scaled_dot_product_attention_math")
def _attention_with_weights(call: Call) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the attention weights")
    second = call.op.results[1].tensor
    return _attended(call)[0], constant(0, second.dtype, call.low.extents(second.shape))


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention_with_logsumexp(call: Call) -> tuple[Lazy, ...]:
    out, top, total = _attended(call)
    logsumexp = apply("add", apply("log", total.expr), top.expr)
    dtype = call.op.results[1].tensor.dtype
    return out, Lazy(dtype, total.shape, cast(logsumexp, dtype))


def _attended(call: Call) -> tuple[Lazy, Lazy, Lazy]:
    """The result, and of each row of scores the maximum and the sum of exponentials."""
    if call.number("dropout_p") != 0:
        raise Decline("random numbers")
    shapes = [call.tensor(name).shape for name in ("query", "key", "value")]
    if any(0 in shape for shape in shapes) or len({len(shape) for shape in shapes}) != 1:
        raise Decline("nothing to attend to")
    static_dims(shapes[0][-1:])
    query, key, value = (operand(call, call.arguments[n]) for n in ("query", "key", "value"))
    if call.arguments.get("enable_gqa", False):
        key, value = (_repeated_heads(lazy, query) for lazy in (key, value))
    scores = _scores(call, query, key)
    raised, top, total = row_statistics(call, scores, scores.rank - 1)
    row_total = over(total, (scores.rank - 1,), scores)
    weights = mapped(scores, apply("div", apply("exp", raised), row_total))
    weights = mapped(weights, cast(weights.expr, call.dtype))
    stored = factor_of(call.low, call.low.materialise(weights, "attention"))
    return finished(call, matmul(call, stored, value, call.result)), top, total


def _scores(call: Call, query: Lazy, key: Lazy) -> Lazy:
    """Scaled and masked products, in the dtype of computation."""
    raw = matmul(call, query, swapped(key, key.rank - 2, key.rank - 1), None)
    depth = static_dims(query.shape[-1:])[0]
    scale = float(call.number("scale")) if call.has("scale") else 1 / sqrt(depth)
    expr = apply("mul", raw.expr, like(scale, raw.expr))
    if call.flag("is_causal"):
        row, column = (Position(index) for index in variables(raw.shape)[-2:])
        expr = where(apply("le", column, row), expr, like(-inf, expr))
    mask = call.optional("attn_mask")
    if mask is not None:
        element = broadcast(mask, raw.shape).expr
        if mask.dtype is DType.BOOL:
            expr = where(element, expr, like(-inf, expr))
        else:
            expr = apply("add", expr, cast(element, expr.dtype))
    return mapped(raw, expr)


def _repeated_heads(lazy: Lazy, query: Lazy) -> Lazy:
    """Each head of keys or values serves several heads of the query."""
    heads, own = static_dims((query.shape[-3], lazy.shape[-3]))
    shape = (*lazy.shape[:-3], heads, *lazy.shape[-2:])
    indices = list(variables(shape))
    indices[-3] = indices[-3] // (heads // own)
    return lazy.view(shape, *indices)
