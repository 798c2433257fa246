"""Pointwise ops: each is a scalar expression over the broadcast elements of its operands.

`pointwise` registers an expression as the rule of operators. The expression takes one element of
each tensor and each `Scalar` of the schema, in the schema's order, None where one is not given.
What `operand` makes of each of them says in which dtype the operator computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stretto.device.expr import Apply, Const, Expr, Extent
from stretto.device.tree import CheckCode
from stretto.ir.failure import Failure
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, broadcast, cast
from stretto.lowering.rules.scalar import apply, compute_dtype, is_number, like, truth, where
from stretto.lowering.rules.table import Call, common_dtype, rule, static_size
from stretto.ops.infer import parameters


def spread(call: Call, name: str, shape: tuple[Extent, ...] | None = None) -> Lazy:
    """The operand broadcast to the result, stored first when it would be computed many times."""
    shape = call.shape if shape is None else shape
    lazy = call.tensor(name)
    costs = call.low.costs
    if not lazy.is_stored and (lazy.rank or lazy.dtype.is_float) and not costs.is_cheap(lazy.expr):
        mine, whole = static_size(lazy.shape), static_size(shape)
        if mine is not None and (whole is None or mine * costs.repeated_uses <= whole):
            lazy = call.stored(name)
    return broadcast(lazy, shape)


def element(call: Call, name: str, dtype: DType) -> Expr:
    """One element of an operand, rounded to `dtype` and then in the dtype of computation."""
    return cast(cast(spread(call, name).expr, dtype), compute_dtype(dtype))


def finish(call: Call, expr: Expr) -> Lazy:
    """The expression as the (first) result, rounded to its dtype."""
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


# ---- operands --------------------------------------------------------------------------------

Operand = Callable[[Call, str], Expr]


def rounded(call: Call, name: str) -> Expr:
    """An operand in the dtype of the result."""
    return element(call, name, call.dtype)


def unrounded(call: Call, name: str) -> Expr:
    """An operand of a product or quotient, in which ATen does not round numbers to F16 or BF16:
    neither Python's, nor a divisor or second factor of one element of another dtype."""
    if call.is_number(name) or (name == "other" and _is_single(call)):
        return cast(spread(call, name).expr, compute_dtype(call.dtype))
    return element(call, name, call.dtype)


def _is_single(call: Call) -> bool:
    """Whether a divisor or second factor is a number, or a tensor of one element."""
    return call.is_number("other") or set(call.tensor("other").shape) <= {1}


def setting(call: Call, name: str) -> Expr:
    """A tensor in the dtype of the result; a number, as a setting, in that of computation."""
    if parameters(call.op.target)[name].is_tensor:
        return element(call, name, call.dtype)
    return cast(call.scalar(name), compute_dtype(call.dtype))


def as_flag(call: Call, name: str) -> Expr:
    return truth(spread(call, name).expr)


def compared(call: Call, name: str) -> Expr:
    """An operand in the common dtype of both."""
    return element(call, name, common_dtype(*(_promotable(call, one) for one in ("self", "other"))))


def _promotable(call: Call, name: str) -> Lazy | bool | int | float:
    """A number counts as its Python type, also where its value is known at run time only."""
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
    """Registers an expression as the rule of operators."""

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
    """Operators that are the scalar function of a name; `aten=function` where the names differ."""
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
    """a + alpha * b, and the like."""
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
"""What ATen raises for an integer divided by 0."""


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
        if not _is_single(call):  # ATen rounds quotients of tensors before
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
    """A quotient or remainder; of integers, a divisor of 0 stops the run."""
    operand = unrounded if function == "floordiv" else rounded
    a, b = (operand(call, name) for name in ("self", "other"))
    if call.dtype.is_float or (isinstance(b, Const) and b.value) or 0 in call.shape:
        return finish(call, apply(function, a, b))
    number = call.low.stop(BY_ZERO)
    if not call.tensor("other").rank:
        # The same for all elements. Those of a dynamic dim are taken to be some.
        divisor = rounded(call, "other")
        call.low.check(apply("ne", divisor, like(0, divisor)), CheckCode.ASSERTION, number)
        return finish(call, apply(function, a, b))
    # The kernel checks a divisor as it checks a position: here position 1 of 1, out of range, if it
    # is 0.
    wrong = cast(apply("eq", b, like(0, b)), DType.I64)
    place = Apply("checked", (wrong, Const(1, DType.I64), Const(number, DType.I64)), DType.I64)
    quotient = finish(call, apply(function, a, apply("add", b, cast(place, b.dtype))))
    # Stored, since an expression inside an arm of `where` would be computed where it is taken only.
    return call.low.materialise(quotient)
