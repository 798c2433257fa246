"""Pointwise ops: each is a scalar expression over the broadcast elements of its operands.

`pointwise` registers an expression as the rule of operators. The expression takes one element of
each tensor and each `Scalar` in the schema, in the schema's order; None for an optional argument
that is absent. The `operand` function creates these, and so determines the dtype of computation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stretto.device.expr import Apply, Const, Expr, Extent
from stretto.device.tree import CheckCode
from stretto.ir.failure import Failure
from stretto.ir.types import DType
from stretto.lowering.emit import apply, compute_dtype, is_number, like, number, truth, where
from stretto.lowering.lazy import Lazy, broadcast, cast
from stretto.lowering.rules import TensorOpCall, common_dtype, rule, static_size
from stretto.ops.infer import parameters
from stretto.ops.table import Fails, describe

# ---- properties ------------------------------------------------------------------------------

describe(
    "floor_divide rsub.Tensor where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Tensor",
    elementwise=True,
)
describe(
    "floor_divide remainder fmod pow.Tensor_Scalar div.Tensor_mode div.Scalar_mode "
    "divide.Tensor_mode divide.Scalar_mode",
    fails=Fails.DIVISOR,
)
describe("masked_fill floor_divide rsub where", whole=True)
describe("where.default", whole=False)


def spread(call: TensorOpCall, name: str, shape: tuple[Extent, ...] | None = None) -> Lazy:
    """Return the operand broadcast to the result, stored if it would be computed many times."""
    shape = call.shape if shape is None else shape
    lazy = call.tensor(name)
    costs = call.low.costs
    if not lazy.is_stored and (lazy.rank or lazy.dtype.is_float) and not costs.is_cheap(lazy.expr):
        mine, whole = static_size(lazy.shape), static_size(shape)
        if mine is not None and (whole is None or mine * costs.repeated_uses <= whole):
            lazy = call.stored(name)
    return broadcast(lazy, shape)


def element(call: TensorOpCall, name: str, dtype: DType) -> Expr:
    """Return one element of an operand, rounded to `dtype` and then in the dtype of computation."""
    return cast(cast(spread(call, name).expr, dtype), compute_dtype(dtype))


def finish(call: TensorOpCall, expr: Expr) -> Lazy:
    """Return the expression as the (first) result, rounded to its dtype."""
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


# ---- operands --------------------------------------------------------------------------------

Operand = Callable[[TensorOpCall, str], Expr]


def rounded(call: TensorOpCall, name: str) -> Expr:
    """Return an operand rounded to the dtype of the result."""
    return element(call, name, call.dtype)


def unrounded(call: TensorOpCall, name: str) -> Expr:
    """Return an operand of a product or quotient. ATen does not round Python numbers to F16 or
    BF16 there, nor a divisor or second factor that has one element."""
    if call.is_number(name) or (name == "other" and _is_single(call)):
        return cast(spread(call, name).expr, compute_dtype(call.dtype))
    return element(call, name, call.dtype)


def _is_single(call: TensorOpCall) -> bool:
    """True if the divisor or second factor is a number, or a tensor of one element."""
    return call.is_number("other") or set(call.tensor("other").shape) <= {1}


def setting(call: TensorOpCall, name: str) -> Expr:
    """Return a tensor in the dtype of the result, or a number (a setting) in the computation's."""
    if parameters(call.op.target)[name].is_tensor:
        return element(call, name, call.dtype)
    return cast(call.scalar(name), compute_dtype(call.dtype))


def as_flag(call: TensorOpCall, name: str) -> Expr:
    return truth(spread(call, name).expr)


def compared(call: TensorOpCall, name: str) -> Expr:
    """Return an operand in the common dtype of both operands."""
    return element(call, name, common_dtype(*(_promotable(call, one) for one in ("self", "other"))))


def _promotable(call: TensorOpCall, name: str) -> Lazy | bool | int | float:
    """Return the operand for type promotion. A number counts as its Python type, even if its value
    is known only at run time."""
    lazy = call.tensor(name)
    if not call.is_number(name):
        return lazy
    if lazy.dtype is DType.BOOL:
        return True
    return 1.0 if lazy.dtype.is_float else 1


def as_float(call: TensorOpCall, name: str) -> Expr:
    dtype = call.tensor(name).dtype
    return element(call, name, dtype if dtype.is_float else DType.F32)


# ---- expressions -----------------------------------------------------------------------------

Expression = Callable[..., Expr]


def pointwise(*targets: str, operand: Operand = setting) -> Callable[[Expression], Expression]:
    """Register an expression as the rule of operators."""

    def register(expression: Expression) -> Expression:
        def lowered(call: TensorOpCall) -> Lazy:
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
def _where(call: TensorOpCall) -> Lazy:
    condition = as_flag(call, "condition")
    arms = (cast(spread(call, name).expr, call.dtype) for name in ("self", "other"))
    return finish(call, where(condition, *arms))


@rule("masked_fill.Scalar masked_fill.Tensor")
def _masked_fill(call: TensorOpCall) -> Lazy:
    mask = as_flag(call, "mask")
    value, own = (cast(spread(call, name).expr, call.dtype) for name in ("value", "self"))
    return finish(call, where(mask, value, own))


# ---- quotients and remainders ----------------------------------------------------------------

BY_ZERO = Failure("RuntimeError", "ZeroDivisionError")
"""The error that ATen raises for an integer divided by 0."""


@rule("div.Tensor_mode div.Scalar_mode")
def _div_mode(call: TensorOpCall) -> Lazy:
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
    def _quotient(call: TensorOpCall, function: str = _function) -> Lazy:
        return _divided(call, function)


def _divided(call: TensorOpCall, function: str) -> Lazy:
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


add, sub, mul, div = (partial(apply, name) for name in ("add", "sub", "mul", "div"))


# ---- powers ----------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar")
def _power_number(call: TensorOpCall) -> Lazy:
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
def _number_power(call: TensorOpCall) -> Lazy:
    base, exponent = call.arguments["self"], rounded(call, "exponent")
    if base == 1:
        return finish(call, number(1, call.dtype))
    if base == 2 and call.dtype.is_float:
        return finish(call, apply("exp2", exponent))
    return finish(call, apply("pow", rounded(call, "self"), exponent))
