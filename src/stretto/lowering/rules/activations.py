"""Activation functions and other pointwise ops made of several scalar functions."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch

from stretto.device.expr import Const, Expr, Index
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, cast, narrow, variables
from stretto.lowering.rules.pointwise import element, factor, finish, unrounded
from stretto.lowering.rules.scalar import apply, compute_dtype, like, number, where
from stretto.lowering.rules.table import Call, Decline, rule

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def add(a: Expr, b: Expr) -> Expr:
    return apply("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return apply("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return apply("mul", a, b)


def _unary(function: Callable[[Expr], Expr], *targets: str) -> None:
    @rule(*targets)
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        return finish(call, function(element(call, "self", call.dtype)))


def clamped(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """NaN stays, as do bounds that cross: the upper one wins."""
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)


def _between(x: Expr, low: float, high: float) -> Expr:
    return clamped(x, like(low, x), like(high, x))


def relu(x: Expr) -> Expr:
    return apply("maximum", x, like(0, x))


def _hardsigmoid(x: Expr) -> Expr:
    return mul(_between(add(x, like(3, x)), 0, 6), like(1 / 6, x))


def _softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    small = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return add(relu(x), small)


_unary(relu, "aten.relu.default")
_unary(lambda x: _between(x, 0, 6), "aten.relu6.default")
_unary(lambda x: mul(x, apply("sigmoid", x)), "aten.silu.default")
_unary(lambda x: mul(x, apply("tanh", _softplus(x))), "aten.mish.default")
_unary(_hardsigmoid, "aten.hardsigmoid.default")
_unary(lambda x: mul(x, _hardsigmoid(x)), "aten.hardswish.default")
_unary(lambda x: mul(x, x), "aten.square.default")
_unary(lambda x: sub(x, apply("trunc", x)), "aten.frac.default")
_unary(lambda x: mul(x, like(180 / pi, x)), "aten.rad2deg.default")
_unary(lambda x: mul(x, like(pi / 180, x)), "aten.deg2rad.default")


def _log_sigmoid(x: Expr) -> Expr:
    small = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return sub(apply("minimum", x, like(0, x)), small)


_unary(_log_sigmoid, "aten.log_sigmoid.default")


@rule("aten.log_sigmoid_forward.default")
def _log_sigmoid_forward(call: Call) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the second result serves training only")
    out = finish(call, _log_sigmoid(element(call, "self", call.dtype)))
    shape = call.low.extents(call.op.results[1].tensor.shape)
    return out, Lazy(call.dtype, shape, Const(0.0, call.dtype))


@rule("aten.gelu.default")
def _gelu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    half = mul(x, like(0.5, x))
    if call.text("approximate") == "tanh":
        cube = mul(mul(x, x), x)
        inner = mul(add(x, mul(cube, like(0.044715, x))), like(sqrt(2 / pi), x))
        return finish(call, mul(half, add(apply("tanh", inner), like(1, x))))
    return finish(call, mul(half, add(apply("erf", mul(x, like(sqrt(0.5), x))), like(1, x))))


@rule("aten.leaky_relu.default")
def _leaky_relu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    slope = factor(call, "negative_slope", call.dtype)
    return finish(call, where(apply("gt", x, like(0, x)), x, mul(x, slope)))


@rule("aten.prelu.default", "aten._prelu_kernel.default")
def _prelu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    weight = call.tensor("weight")
    if weight.rank == call.tensor("self").rank:
        slope = element(call, "weight", call.dtype)
    else:
        indices = [_channel(call, weight)] * weight.rank
        slope = cast(weight.at(*indices), compute_dtype(call.dtype))
    return finish(call, where(apply("gt", x, like(0, x)), x, mul(x, slope)))


def _channel(call: Call, weight: Lazy) -> Index | int:
    """The channel of an element: dim 1, unless there is one weight for all."""
    channels = call.shape[1] if len(call.shape) > 1 else 1
    return variables(call.shape)[1] if channels != 1 and weight.shape != (1,) else 0


def _exponential(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    negative = mul(mul(apply("expm1", mul(x, input_scale)), alpha), scale)
    return where(apply("le", x, like(0, x)), negative, mul(x, scale))


@rule("aten.elu.default")
def _elu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    scales = (factor(call, name, call.dtype) for name in ("alpha", "scale", "input_scale"))
    return finish(call, _exponential(x, *scales))


@rule("aten.selu.default")
def _selu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    return finish(call, _exponential(x, like(SELU_ALPHA, x), like(SELU_SCALE, x), like(1, x)))


@rule("aten.celu.default")
def _celu(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    alpha = factor(call, "alpha", call.dtype)
    return finish(call, _exponential(x, alpha, like(1, x), apply("div", like(1, x), alpha)))


@rule("aten.softplus.default")
def _softplus_rule(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    beta = factor(call, "beta", call.dtype)
    scaled = mul(x, beta)
    smooth = apply("div", apply("log1p", apply("exp", scaled)), beta)
    linear = apply("gt", scaled, factor(call, "threshold", call.dtype))
    return finish(call, where(linear, x, smooth))


@rule("aten.threshold.default")
def _threshold(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    below = apply("le", x, factor(call, "threshold", call.dtype))
    return finish(call, where(below, factor(call, "value", call.dtype), x))


@rule("aten.hardtanh.default")
def _hardtanh(call: Call) -> Lazy:
    bounds = (factor(call, name, call.dtype) for name in ("min_val", "max_val"))
    return finish(call, clamped(element(call, "self", call.dtype), *bounds))


@rule("aten.hardshrink.default")
def _hardshrink(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    inside = apply("le", apply("abs", x), factor(call, "lambd", call.dtype))
    return finish(call, where(inside, like(0, x), x))


@rule("aten.softshrink.default")
def _softshrink(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    amount = factor(call, "lambd", call.dtype)
    low = where(apply("lt", x, apply("neg", amount)), add(x, amount), mul(x, like(0, x)))
    return finish(call, where(apply("gt", x, amount), sub(x, amount), low))


@rule("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def _clamp(call: Call) -> Lazy:
    low, high = (
        element(call, name, call.dtype) if call.has(name) else None for name in ("min", "max")
    )
    return finish(call, clamped(element(call, "self", call.dtype), low, high))


@rule("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp_min(call: Call) -> Lazy:
    low = element(call, "min", call.dtype)
    return finish(call, clamped(element(call, "self", call.dtype), low, None))


@rule("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(call: Call) -> Lazy:
    high = element(call, "max", call.dtype)
    return finish(call, clamped(element(call, "self", call.dtype), None, high))


@rule("aten.glu.default")
def _glu(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    size = lazy.shape[dim]
    if not isinstance(size, int):
        raise Decline("the halves of a dim known only at run time")
    first, second = (narrow(lazy, dim, start, size // 2) for start in (0, size // 2))
    compute = compute_dtype(call.dtype)
    gate = apply("sigmoid", cast(second.expr, compute))
    return finish(call, mul(cast(first.expr, compute), gate))


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def _lerp(call: Call) -> Lazy:
    start, end = (element(call, name, call.dtype) for name in ("self", "end"))
    weight = unrounded(call, "weight")
    difference = sub(end, start)
    near = add(start, mul(weight, difference))
    far = sub(end, mul(difference, sub(like(1, weight), weight)))
    return finish(call, where(apply("lt", apply("abs", weight), like(0.5, weight)), near, far))


@rule("aten.addcmul.default")
def _addcmul(call: Call) -> Lazy:
    x, a, b = (element(call, name, call.dtype) for name in ("self", "tensor1", "tensor2"))
    product = mul(a, b)
    if call.arguments["value"] != 1:
        product = mul(factor(call, "value", call.dtype), product)
    return finish(call, add(x, product))


@rule("aten.addcdiv.default")
def _addcdiv(call: Call) -> Lazy:
    x, a, b = (element(call, name, call.dtype) for name in ("self", "tensor1", "tensor2"))
    a = a if call.arguments["value"] == 1 else mul(factor(call, "value", call.dtype), a)
    return finish(call, add(x, apply("div", a, b)))


@rule("aten.nan_to_num.default")
def _nan_to_num(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    if not call.dtype.is_float:
        return finish(call, x)
    top = _largest(call.dtype)
    values = {"nan": 0.0, "posinf": top, "neginf": -top}
    given = {name: call.number(name) if call.has(name) else v for name, v in values.items()}
    infinite = where(apply("gt", x, like(0, x)), like(given["posinf"], x), like(given["neginf"], x))
    finite = where(apply("isinf", x), infinite, x)
    return finish(call, where(apply("isnan", x), like(given["nan"], x), finite))


def _largest(dtype: DType) -> float:
    return torch.finfo(dtype.torch).max


@rule("aten.logit.default")
def _logit(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    if call.has("eps"):
        eps = float(call.number("eps"))
        x = clamped(x, like(eps, x), like(1 - eps, x))
    return finish(call, apply("log", apply("div", x, sub(like(1, x), x))))


@rule("aten.logaddexp.default")
def _logaddexp(call: Call) -> Lazy:
    a, b = (element(call, name, call.dtype) for name in ("self", "other"))
    top = apply("maximum", a, b)
    tail = apply("log1p", apply("exp", apply("neg", apply("abs", sub(a, b)))))
    same = apply("and", apply("isinf", a), apply("eq", a, b))
    return finish(call, where(same, a, add(top, tail)))


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def _xlogy(call: Call) -> Lazy:
    x, y = (element(call, name, call.dtype) for name in ("self", "other"))
    product = where(apply("eq", x, like(0, x)), like(0, x), mul(x, apply("log", y)))
    return finish(call, where(apply("isnan", y), y, product))


@rule("aten.heaviside.default")
def _heaviside(call: Call) -> Lazy:
    x, at_zero = (element(call, name, call.dtype) for name in ("self", "values"))
    step = where(apply("gt", x, like(0, x)), like(1, x), like(0, x))
    return finish(call, where(apply("eq", x, like(0, x)), at_zero, step))


# ---- powers ----------------------------------------------------------------------------------


@rule("aten.pow.Tensor_Scalar")
def _power_number(call: Call) -> Lazy:
    x = element(call, "self", call.dtype)
    exponent = call.arguments["exponent"]
    if not isinstance(exponent, int | float):
        return finish(call, apply("pow", x, element(call, "exponent", call.dtype)))
    return finish(call, _power(x, exponent, call.dtype))


def _power(x: Expr, exponent: int | float, dtype: DType) -> Expr:
    """Multiplications and roots where torch uses them; other exponents are rounded to `dtype`."""
    is_float = x.dtype.is_float
    match exponent:
        case 0:
            return like(1, x)
        case 1:
            return x
        case 2:
            return mul(x, x)
        case 3:
            return mul(mul(x, x), x)
        case 0.5 if is_float:
            return apply("sqrt", x)
        case -0.5 if is_float:
            return apply("rsqrt", x)
        case -1 if is_float:
            return apply("reciprocal", x)
        case -2 if is_float:
            return apply("reciprocal", mul(x, x))
        case _:
            return apply("pow", x, cast(number(exponent, dtype), x.dtype))


@rule("aten.pow.Tensor_Tensor")
def _power_tensor(call: Call) -> Lazy:
    return finish(call, apply("pow", *(element(call, n, call.dtype) for n in ("self", "exponent"))))


@rule("aten.pow.Scalar")
def _number_power(call: Call) -> Lazy:
    exponent = element(call, "exponent", call.dtype)
    base = call.arguments["self"]
    if base == 1:
        return finish(call, number(1, call.dtype))
    if base == 2 and call.dtype.is_float:
        return finish(call, apply("exp2", exponent))
    return finish(call, apply("pow", element(call, "self", call.dtype), exponent))


@rule("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _dropout(call: Call) -> Lazy:
    if call.flag("train") and call.number("p") != 0:
        raise Decline("random numbers")
    return call.tensor("input")


@rule("aten.native_dropout.default")
def _native_dropout(call: Call) -> tuple[Lazy, ...]:
    if call.arguments["train"] is not False:
        raise Decline("random numbers")
    lazy = call.tensor("input")
    return lazy, Lazy(DType.BOOL, lazy.shape, Const(True, DType.BOOL))
