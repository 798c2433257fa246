"""Pointwise ops: each is a scalar expression over the broadcast elements of its operands.

`pointwise` registers an expression as the rule of operators. The expression takes one element of
each tensor and each `Scalar` in the schema, in the schema's order; None for an optional argument
that is absent. The `operand` function creates these, and so determines the dtype of computation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import pi, sqrt

import torch

from stretto.device.expr import Apply, Const, Expr, Extent, Index
from stretto.device.tree import CheckCode
from stretto.ir.failure import Failure
from stretto.ir.types import DType
from stretto.lowering.emit import apply, compute_dtype, is_number, like, number, truth, where
from stretto.lowering.lazy import Lazy, broadcast, cast, narrow, variables
from stretto.lowering.rules import Call, Decline, common_dtype, rule, static_size
from stretto.ops.infer import parameters
from stretto.ops.properties import is_random


def spread(call: Call, name: str, shape: tuple[Extent, ...] | None = None) -> Lazy:
    """Return the operand broadcast to the result, stored if it would be computed many times."""
    shape = call.shape if shape is None else shape
    lazy = call.tensor(name)
    costs = call.low.costs
    if not lazy.is_stored and (lazy.rank or lazy.dtype.is_float) and not costs.is_cheap(lazy.expr):
        mine, whole = static_size(lazy.shape), static_size(shape)
        if mine is not None and (whole is None or mine * costs.repeated_uses <= whole):
            lazy = call.stored(name)
    return broadcast(lazy, shape)


def element(call: Call, name: str, dtype: DType) -> Expr:
    """Return one element of an operand, rounded to `dtype` and then in the dtype of computation."""
    return cast(cast(spread(call, name).expr, dtype), compute_dtype(dtype))


def finish(call: Call, expr: Expr) -> Lazy:
    """Return the expression as the (first) result, rounded to its dtype."""
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


# ---- operands --------------------------------------------------------------------------------

Operand = Callable[[Call, str], Expr]


def rounded(call: Call, name: str) -> Expr:
    """Return an operand rounded to the dtype of the result."""
    return element(call, name, call.dtype)


def unrounded(call: Call, name: str) -> Expr:
    """Return an operand of a product or quotient. ATen does not round Python numbers to F16 or
    BF16 there, nor a divisor or second factor that has one element."""
    if call.is_number(name) or (name == "other" and _is_single(call)):
        return cast(spread(call, name).expr, compute_dtype(call.dtype))
    return element(call, name, call.dtype)


def _is_single(call: Call) -> bool:
    """True if the divisor or second factor is a number, or a tensor of one element."""
    return call.is_number("other") or set(call.tensor("other").shape) <= {1}


def setting(call: Call, name: str) -> Expr:
    """Return a tensor in the dtype of the result, or a number (a setting) in the computation's."""
    if parameters(call.op.target)[name].is_tensor:
        return element(call, name, call.dtype)
    return cast(call.scalar(name), compute_dtype(call.dtype))


def as_flag(call: Call, name: str) -> Expr:
    return truth(spread(call, name).expr)


def compared(call: Call, name: str) -> Expr:
    """Return an operand in the common dtype of both operands."""
    return element(call, name, common_dtype(*(_promotable(call, one) for one in ("self", "other"))))


def _promotable(call: Call, name: str) -> Lazy | bool | int | float:
    """Return the operand for type promotion. A number counts as its Python type, even if its value
    is known only at run time."""
    lazy = call.tensor(name)
    if not call.is_number(name):
        return lazy
    if lazy.dtype is DType.BOOL:
        return True
    return 1.0 if lazy.dtype.is_float else 1


def as_float(call: Call, name: str) -> Expr:
    dtype = call.tensor(name).dtype
    return element(call, name, dtype if dtype.is_float else DType.F32)


# ---- expressions -----------------------------------------------------------------------------

Expression = Callable[..., Expr]


def pointwise(*targets: str, operand: Operand = setting) -> Callable[[Expression], Expression]:
    """Register an expression as the rule of operators."""

    def register(expression: Expression) -> Expression:
        def lowered(call: Call) -> Lazy:
            known = parameters(call.op.target).values()
            names = [item.name for item in known if item.is_tensor or item.is_scalar]
            values = [operand(call, name) if call.has(name) else None for name in names]
            return finish(call, expression(*values))

        rule(*targets)(lowered)
        return expression

    return register


def _named(names: str, overloads: str = "default", operand: Operand = rounded) -> None:
    """Register operators that are one scalar function; `aten=function` if the names differ."""
    for name in names.split():
        aten, _, function = name.partition("=")
        targets = (f"aten.{aten}.{overload}" for overload in overloads.split())
        pointwise(*targets, operand=operand)(partial(apply, function or aten))


_named(
    "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh "
    "cosh tanh asinh acosh atanh sigmoid erf erfc neg abs sign sgn=sign bitwise_not maximum "
    "minimum fmax fmin atan2"
)
_named("max=maximum min=minimum", "other")
_named("copysign", "Tensor Scalar")
_named("eq ne lt le gt ge", "Tensor Scalar", compared)
_named("logical_and=and logical_or=or logical_xor=xor logical_not=not", operand=as_flag)
_named("bitwise_and bitwise_or bitwise_xor", "Tensor Scalar Scalar_Tensor")
_named("bitwise_left_shift=shl bitwise_right_shift=shr", "Tensor Tensor_Scalar")
_named("div", "Tensor Scalar", unrounded)
_named("true_divide=div", "Tensor", unrounded)
_named("isnan isinf", operand=as_float)


@pointwise("isfinite", operand=as_float)
def _is_finite(x: Expr) -> Expr:
    return apply("not", apply("or", apply("isnan", x), apply("isinf", x)))


for _name, _sign in (("isposinf", "gt"), ("isneginf", "lt")):

    @pointwise(f"aten.{_name}.default", operand=as_float)
    def _infinite(x: Expr, sign: str = _sign) -> Expr:
        return apply("and", apply("isinf", x), apply(sign, x, like(0, x)))


for _name in ("floor", "ceil", "round", "trunc"):

    @pointwise(f"aten.{_name}.default", operand=rounded)
    def _rounding(x: Expr, function: str = _name) -> Expr:
        return apply(function, x) if x.dtype.is_float else x


def _scaled(function: str, a: Expr, b: Expr, alpha: Expr) -> Expr:
    """Return a + alpha * b, or the like for another function."""
    b = b if is_number(alpha, 1) else apply("mul", b, alpha)
    return apply("or" if a.dtype is DType.BOOL else function, a, b)


pointwise("add.Tensor add.Scalar", operand=rounded)(partial(_scaled, "add"))
pointwise("sub.Tensor sub.Scalar", operand=rounded)(partial(_scaled, "sub"))


@pointwise("rsub.Tensor rsub.Scalar", operand=rounded)
def _rsub(a: Expr, b: Expr, alpha: Expr) -> Expr:
    return _scaled("sub", b, a, alpha)


@pointwise("mul.Tensor mul.Scalar", operand=unrounded)
def _mul(a: Expr, b: Expr) -> Expr:
    return apply("and" if a.dtype is DType.BOOL else "mul", a, b)


@rule("where.self where.ScalarSelf where.ScalarOther where.Scalar")
def _where(call: Call) -> Lazy:
    condition = as_flag(call, "condition")
    arms = (cast(spread(call, name).expr, call.dtype) for name in ("self", "other"))
    return finish(call, where(condition, *arms))


@rule("masked_fill.Scalar masked_fill.Tensor")
def _masked_fill(call: Call) -> Lazy:
    mask = as_flag(call, "mask")
    value, own = (cast(spread(call, name).expr, call.dtype) for name in ("value", "self"))
    return finish(call, where(mask, value, own))


# ---- quotients and remainders ----------------------------------------------------------------

BY_ZERO = Failure("RuntimeError", "ZeroDivisionError")
"""The error that ATen raises for an integer divided by 0."""


@rule("div.Tensor_mode div.Scalar_mode")
def _div_mode(call: Call) -> Lazy:
    mode = call.text("rounding_mode")
    if mode == "floor":
        return _divided(call, "floordiv")
    if mode == "trunc" and not call.dtype.is_float:
        return _divided(call, "truncdiv")
    a, b = (unrounded(call, name) for name in ("self", "other"))
    quotient = apply("div", a, b)
    if mode == "trunc":
        if not _is_single(call):  # ATen rounds the quotient of two tensors before it truncates
            quotient = cast(cast(quotient, call.dtype), a.dtype)
        quotient = apply("trunc", quotient)
    return finish(call, quotient)


for _name, _function, _kinds in (
    ("floor_divide", "floordiv", "default Scalar"),
    ("remainder", "remainder", "Tensor Scalar Scalar_Tensor"),
    ("fmod", "fmod", "Tensor Scalar"),
):

    @rule(*(f"aten.{_name}.{_kind}" for _kind in _kinds.split()))
    def _quotient(call: Call, function: str = _function) -> Lazy:
        return _divided(call, function)


def _divided(call: Call, function: str) -> Lazy:
    """Return a quotient or remainder; for integers, a divisor of 0 stops the run."""
    operand = unrounded if function == "floordiv" else rounded
    a, b = (operand(call, name) for name in ("self", "other"))
    if call.dtype.is_float or (isinstance(b, Const) and b.value) or 0 in call.shape:
        return finish(call, apply(function, a, b))
    number = call.low.stop(BY_ZERO)
    if not call.tensor("other").rank:
        # One check in control for all elements; a dynamic dim is assumed to have some.
        divisor = rounded(call, "other")
        call.low.check(apply("ne", divisor, like(0, divisor)), CheckCode.ASSERTION, number)
        return finish(call, apply(function, a, b))
    # The kernel checks the divisor like a position: a divisor of 0 gives position 1 in a dim of
    # size 1, which is out of range.
    wrong = cast(apply("eq", b, like(0, b)), DType.I64)
    place = Apply("checked", (wrong, Const(1, DType.I64), Const(number, DType.I64)), DType.I64)
    quotient = finish(call, apply(function, a, apply("add", b, cast(place, b.dtype))))
    # Stored, because inside an arm of `where` the check would run only if that arm is taken.
    return call.low.materialise(quotient)


# ---- Activation functions and other pointwise ops of several scalar functions -----------------


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946

add, sub, mul, div = (partial(apply, name) for name in ("add", "sub", "mul", "div"))


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
def _log_sigmoid_forward(call: Call) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the second result serves training only")
    out = finish(call, _log_sigmoid(rounded(call, "self")))
    shape = call.low.extents(call.op.results[1].tensor.shape)
    return out, Lazy(call.dtype, shape, Const(0.0, call.dtype))


@rule("gelu")
def _gelu(call: Call) -> Lazy:
    x = rounded(call, "self")
    half = mul(x, like(0.5, x))
    if call.text("approximate") == "tanh":
        cube = mul(mul(x, x), x)
        inner = mul(add(x, mul(cube, like(0.044715, x))), like(sqrt(2 / pi), x))
        return finish(call, mul(half, add(apply("tanh", inner), like(1, x))))
    return finish(call, mul(half, add(apply("erf", mul(x, like(sqrt(0.5), x))), like(1, x))))


@rule("prelu _prelu_kernel")
def _prelu(call: Call) -> Lazy:
    x = rounded(call, "self")
    weight = call.tensor("weight")
    if weight.rank == call.tensor("self").rank:
        slope = rounded(call, "weight")
    else:
        indices = [_channel(call, weight)] * weight.rank
        slope = cast(weight.at(*indices), compute_dtype(call.dtype))
    return finish(call, where(_is("gt", x), x, mul(x, slope)))


def _channel(call: Call, weight: Lazy) -> Index | int:
    """Return the channel of an element: dim 1, or 0 if all elements share one weight."""
    channels = call.shape[1] if len(call.shape) > 1 else 1
    return variables(call.shape)[1] if channels != 1 and weight.shape != (1,) else 0


@rule("glu")
def _glu(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    size = lazy.shape[dim]
    if not isinstance(size, int):
        raise Decline("the halves of a dim known only at run time")
    halves = (narrow(lazy, dim, start, size // 2) for start in (0, size // 2))
    first, second = (cast(half.expr, compute_dtype(call.dtype)) for half in halves)
    return finish(call, mul(first, apply("sigmoid", second)))


@rule("lerp.Scalar lerp.Tensor")
def _lerp(call: Call) -> Lazy:
    start, end = (rounded(call, name) for name in ("self", "end"))
    weight = unrounded(call, "weight")
    difference = sub(end, start)
    near = add(start, mul(weight, difference))
    far = sub(end, mul(difference, sub(like(1, weight), weight)))
    return finish(call, where(apply("lt", apply("abs", weight), like(0.5, weight)), near, far))


@rule("nan_to_num")
def _nan_to_num(call: Call) -> Lazy:
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
def _logit(call: Call) -> Lazy:
    x = rounded(call, "self")
    if call.has("eps"):
        eps = float(call.number("eps"))
        x = _between(x, eps, 1 - eps)
    return finish(call, apply("log", div(x, sub(like(1, x), x))))


# ---- powers ----------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar")
def _power_number(call: Call) -> Lazy:
    x = rounded(call, "self")
    exponent = call.arguments["exponent"]
    if not isinstance(exponent, int | float):
        return finish(call, apply("pow", x, rounded(call, "exponent")))
    return finish(call, _power(x, exponent, call.dtype))


def _power(x: Expr, exponent: int | float, dtype: DType) -> Expr:
    """Return x to a constant power: products and roots where torch uses them; other exponents are
    rounded to `dtype`."""
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


pointwise("pow.Tensor_Tensor", operand=rounded)(partial(apply, "pow"))


@rule("pow.Scalar")
def _number_power(call: Call) -> Lazy:
    base, exponent = call.arguments["self"], rounded(call, "exponent")
    if base == 1:
        return finish(call, number(1, call.dtype))
    if base == 2 and call.dtype.is_float:
        return finish(call, apply("exp2", exponent))
    return finish(call, apply("pow", rounded(call, "self"), exponent))


# ---- dropout ---------------------------------------------------------------------------------


@rule("dropout feature_dropout alpha_dropout")
@rule("native_dropout")
def _dropout(call: Call) -> Lazy | tuple[Lazy, ...]:
    if is_random(call.op):
        raise Decline("random numbers")
    lazy = call.tensor("input")
    kept = Lazy(DType.BOOL, lazy.shape, Const(True, DType.BOOL))
    return (lazy, kept)[: len(call.op.results)]
