"""Activation functions, and other pointwise operators of several scalar functions."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch

from stretto.device.expr import Const, Expr, Index
from stretto.ir.types import DType
from stretto.lowering.emit import apply, compute_dtype, is_number, like, where
from stretto.lowering.lazy import Lazy, cast, narrow, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule
from stretto.operators.pointwise import add, div, finish, mul, pointwise, rounded, sub, unrounded
from stretto.ops.properties import is_random
from stretto.ops.table import Fails, describe

# ---- properties ------------------------------------------------------------------------------

describe("hardswish log_sigmoid", elementwise=True)
describe(
    "log_sigmoid_forward prelu _prelu_kernel glu dropout feature_dropout alpha_dropout",
    fails=Fails.NEVER,
)
describe(
    "gelu silu hardtanh hardswish hardsigmoid leaky_relu elu softplus log_sigmoid_forward square",
    whole=True,
)


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def clamped(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """Clamp x. NaN stays NaN; if the bounds cross, the upper one is the result."""
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)


def _between(x: Expr, low: float, high: float) -> Expr:
    return clamped(x, like(low, x), like(high, x))


def relu(x: Expr) -> Expr:
    return apply("maximum", x, like(0, x))


def _is(comparison: str, x: Expr) -> Expr:
    """Return the comparison of x with 0."""
    return apply(comparison, x, like(0, x))


def _hardsigmoid(x: Expr) -> Expr:
    return mul(_between(add(x, like(3, x)), 0, 6), like(1 / 6, x))


def _log_of_sum(x: Expr) -> Expr:
    """Return log(1 + exp(-|x|)), which does not overflow."""
    return apply("log1p", apply("exp", apply("neg", apply("abs", x))))


def _log_sigmoid(x: Expr) -> Expr:
    return sub(apply("minimum", x, like(0, x)), _log_of_sum(x))


def _exponential(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    negative = mul(mul(apply("expm1", mul(x, input_scale)), alpha), scale)
    return where(_is("le", x), negative, mul(x, scale))


def _softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = mul(x, beta)
    smooth = div(apply("log1p", apply("exp", scaled)), beta)
    return where(apply("gt", scaled, threshold), x, smooth)


def _softshrink(x: Expr, amount: Expr) -> Expr:
    low = where(apply("lt", x, apply("neg", amount)), add(x, amount), mul(x, like(0, x)))
    return where(apply("gt", x, amount), sub(x, amount), low)


def _addcmul(x: Expr, a: Expr, b: Expr, value: Expr) -> Expr:
    product = mul(a, b)
    return add(x, product if is_number(value, 1) else mul(value, product))


def _addcdiv(x: Expr, a: Expr, b: Expr, value: Expr) -> Expr:
    return add(x, div(a if is_number(value, 1) else mul(value, a), b))


def _logaddexp(a: Expr, b: Expr) -> Expr:
    same = apply("and", apply("isinf", a), apply("eq", a, b))
    return where(same, a, add(apply("maximum", a, b), _log_of_sum(sub(a, b))))


def _heaviside(x: Expr, at_zero: Expr) -> Expr:
    return where(_is("eq", x), at_zero, where(_is("gt", x), like(1, x), like(0, x)))


_EXPRESSIONS: dict[str, Callable[..., Expr]] = {
    "relu": relu,
    "relu6": lambda x: _between(x, 0, 6),
    "silu": lambda x: mul(x, apply("sigmoid", x)),
    "mish": lambda x: mul(x, apply("tanh", add(relu(x), _log_of_sum(x)))),
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: mul(x, _hardsigmoid(x)),
    "square": lambda x: mul(x, x),
    "frac": lambda x: sub(x, apply("trunc", x)),
    "rad2deg": lambda x: mul(x, like(180 / pi, x)),
    "deg2rad": lambda x: mul(x, like(pi / 180, x)),
    "log_sigmoid": _log_sigmoid,
    "leaky_relu": lambda x, slope: where(_is("gt", x), x, mul(x, slope)),
    "elu": _exponential,
    "selu": lambda x: _exponential(x, like(SELU_ALPHA, x), like(SELU_SCALE, x), like(1, x)),
    "celu": lambda x, alpha: _exponential(x, alpha, like(1, x), div(like(1, x), alpha)),
    "softplus": _softplus,
    "threshold": lambda x, least, value: where(apply("le", x, least), value, x),
    "hardtanh": clamped,
    "hardshrink": lambda x, size: where(apply("le", apply("abs", x), size), like(0, x), x),
    "softshrink": _softshrink,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "logaddexp": _logaddexp,
    "heaviside": _heaviside,
}


for _name, _expression in _EXPRESSIONS.items():
    pointwise(f"aten.{_name}.default")(_expression)


for _kind in ("default", "Tensor"):
    pointwise(f"aten.clamp.{_kind}", f"aten.clip.{_kind}", operand=rounded)(clamped)
    pointwise(f"aten.clamp_min.{_kind}", operand=rounded)(lambda x, low: clamped(x, low, None))
    pointwise(f"aten.clamp_max.{_kind}", operand=rounded)(lambda x, high: clamped(x, None, high))


@pointwise("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other", operand=rounded)
def _xlogy(x: Expr, y: Expr) -> Expr:
    product = where(_is("eq", x), like(0, x), mul(x, apply("log", y)))
    return where(apply("isnan", y), y, product)


@rule("log_sigmoid_forward")
def _log_sigmoid_forward(call: TensorOpCall) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the second result serves training only")
    out = finish(call, _log_sigmoid(rounded(call, "self")))
    shape = call.low.extents(call.op.results[1].tensor.shape)
    return out, Lazy(call.dtype, shape, Const(0.0, call.dtype))


@rule("gelu")
def _gelu(call: TensorOpCall) -> Lazy:
    x = rounded(call, "self")
    half = mul(x, like(0.5, x))
    if call.text("approximate") == "tanh":
        cube = mul(mul(x, x), x)
        inner = mul(add(x, mul(cube, like(0.044715, x))), like(sqrt(2 / pi), x))
        return finish(call, mul(half, add(apply("tanh", inner), like(1, x))))
    return finish(call, mul(half, add(apply("erf", mul(x, like(sqrt(0.5), x))), like(1, x))))


@rule("prelu _prelu_kernel")
def _prelu(call: TensorOpCall) -> Lazy:
    x = rounded(call, "self")
    weight = call.tensor("weight")
    if weight.rank == call.tensor("self").rank:
        slope = rounded(call, "weight")
    else:
        indices = [_channel(call, weight)] * weight.rank
        slope = cast(weight.at(*indices), compute_dtype(call.dtype))
    return finish(call, where(_is("gt", x), x, mul(x, slope)))


def _channel(call: TensorOpCall, weight: Lazy) -> Index | int:
    """Return the channel of an element: dim 1, or 0 if all elements share one weight."""
    channels = call.shape[1] if len(call.shape) > 1 else 1
    return variables(call.shape)[1] if channels != 1 and weight.shape != (1,) else 0


@rule("glu")
def _glu(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    size = lazy.shape[dim]
    if not isinstance(size, int):
        raise Decline("the halves of a dim known only at run time")
    halves = (narrow(lazy, dim, start, size // 2) for start in (0, size // 2))
    first, second = (cast(half.expr, compute_dtype(call.dtype)) for half in halves)
    return finish(call, mul(first, apply("sigmoid", second)))


@rule("lerp.Scalar lerp.Tensor")
def _lerp(call: TensorOpCall) -> Lazy:
    start, end = (rounded(call, name) for name in ("self", "end"))
    weight = unrounded(call, "weight")
    difference = sub(end, start)
    near = add(start, mul(weight, difference))
    far = sub(end, mul(difference, sub(like(1, weight), weight)))
    return finish(call, where(apply("lt", apply("abs", weight), like(0.5, weight)), near, far))


@rule("nan_to_num")
def _nan_to_num(call: TensorOpCall) -> Lazy:
    x = rounded(call, "self")
    if not call.dtype.is_float:
        return finish(call, x)
    top = torch.finfo(call.dtype.torch).max
    values = {"nan": 0.0, "posinf": top, "neginf": -top}
    given = {name: call.number(name) if call.has(name) else v for name, v in values.items()}
    infinite = where(_is("gt", x), like(given["posinf"], x), like(given["neginf"], x))
    finite = where(apply("isinf", x), infinite, x)
    return finish(call, where(apply("isnan", x), like(given["nan"], x), finite))


@rule("logit")
def _logit(call: TensorOpCall) -> Lazy:
    x = rounded(call, "self")
    if call.has("eps"):
        eps = float(call.number("eps"))
        x = _between(x, eps, 1 - eps)
    return finish(call, apply("log", div(x, sub(like(1, x), x))))


# ---- dropout ---------------------------------------------------------------------------------


@rule("dropout feature_dropout alpha_dropout")
@rule("native_dropout")
def _dropout(call: TensorOpCall) -> Lazy | tuple[Lazy, ...]:
    if is_random(call.op):
        raise Decline("random numbers")
    lazy = call.tensor("input")
    kept = Lazy(DType.BOOL, lazy.shape, Const(True, DType.BOOL))
    return (lazy, kept)[: len(call.op.results)]
