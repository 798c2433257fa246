"""Pointwise ops: each is a scalar expression over the broadcast elements of its operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stretto.device.expr import Apply, Const, Expr, Extent
from stretto.ir.failure import Failure
from stretto.ir.types import DType
from stretto.lowering.function import is_cheap
from stretto.lowering.lazy import Lazy, broadcast, cast
from stretto.lowering.rules.scalar import apply, compute_dtype, like, truth, where
from stretto.lowering.rules.table import Call, common_dtype, rule, static_size

SMALL = 4
"""An operand this many times smaller than the result is stored unless it is cheap."""


def spread(call: Call, name: str, shape: tuple[Extent, ...] | None = None) -> Lazy:
    """The operand broadcast to the result, stored first when it would be computed many times."""
    shape = call.shape if shape is None else shape
    lazy = call.tensor(name)
    if not lazy.is_stored and (lazy.rank or lazy.dtype.is_float) and not is_cheap(lazy.expr):
        mine, whole = static_size(lazy.shape), static_size(shape)
        if mine is not None and (whole is None or mine * SMALL <= whole):
            lazy = call.stored(name)
    return broadcast(lazy, shape)


def element(call: Call, name: str, dtype: DType) -> Expr:
    """One element of an operand, rounded to `dtype` and then in the dtype of computation."""
    return cast(cast(spread(call, name).expr, dtype), compute_dtype(dtype))


def unrounded(call: Call, name: str) -> Expr:
    """An operand of a product or quotient, in which ATen does not round numbers to F16 or BF16."""
    if call.is_number(name):
        return cast(spread(call, name).expr, compute_dtype(call.dtype))
    return element(call, name, call.dtype)


def factor(call: Call, name: str, dtype: DType) -> Expr:
    """A `Scalar` argument in the dtype of computation."""
    return cast(call.scalar(name), compute_dtype(dtype))


def finish(call: Call, expr: Expr) -> Lazy:
    """The expression as the (first) result, rounded to its dtype."""
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


Combine = Callable[..., Expr]


def _arithmetic(combine: Combine, operands: tuple[str, ...], targets: tuple[str, ...]) -> None:
    """Operands are brought to the dtype of the result."""

    @rule(*targets)
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        return finish(call, combine(*(element(call, name, call.dtype) for name in operands)))


def _comparison(function: str) -> None:
    """Operands are brought to their common dtype."""

    @rule(f"aten.{function}.Tensor", f"aten.{function}.Scalar")
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        dtype = promoted(call, "self", "other")
        operands = (element(call, name, dtype) for name in ("self", "other"))
        return finish(call, apply(function, *operands))


def promoted(call: Call, first: str, second: str) -> DType:
    """The common dtype of two operands, of which either may be a number."""
    return common_dtype(*(_promotable(call, name) for name in (first, second)))


def _promotable(call: Call, name: str) -> Lazy | bool | int | float:
    """A number stands for its Python type only, also where it is known only at run time."""
    lazy = call.tensor(name)
    if not call.is_number(name):
        return lazy
    if lazy.dtype is DType.BOOL:
        return True
    return 1.0 if lazy.dtype.is_float else 1


def _logical(combine: Combine, operands: tuple[str, ...], target: str) -> None:
    @rule(target)
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        return finish(call, combine(*(truth(spread(call, name).expr) for name in operands)))


def _named(function: str) -> Combine:
    return lambda *args: apply(function, *args)


_FLOAT_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "sigmoid", "erf", "erfc",
)  # fmt: skip

for _name in _FLOAT_FUNCTIONS:
    _arithmetic(_named(_name), ("self",), (f"aten.{_name}.default",))
for _name in ("neg", "abs", "sign"):
    _arithmetic(_named(_name), ("self",), (f"aten.{_name}.default",))
_arithmetic(_named("sign"), ("self",), ("aten.sgn.default",))
for _name in ("maximum", "minimum", "fmax", "fmin", "atan2"):
    _arithmetic(_named(_name), ("self", "other"), (f"aten.{_name}.default",))
_arithmetic(_named("maximum"), ("self", "other"), ("aten.max.other",))
_arithmetic(_named("minimum"), ("self", "other"), ("aten.min.other",))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)
for _name in ("and", "or", "xor"):
    _logical(_named(_name), ("self", "other"), f"aten.logical_{_name}.default")
    _arithmetic(
        _named(f"bitwise_{_name}"),
        ("self", "other"),
        tuple(f"aten.bitwise_{_name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")),
    )
_logical(_named("not"), ("self",), "aten.logical_not.default")
_arithmetic(_named("bitwise_not"), ("self",), ("aten.bitwise_not.default",))


def _is_finite(x: Expr) -> Expr:
    return apply("not", apply("or", apply("isnan", x), apply("isinf", x)))


def _infinite(sign: str) -> Combine:
    return lambda x: apply("and", apply("isinf", x), apply(sign, x, like(0, x)))


_TESTS: dict[str, Combine] = {
    "isnan": _named("isnan"),
    "isinf": _named("isinf"),
    "isfinite": _is_finite,
    "isposinf": _infinite("gt"),
    "isneginf": _infinite("lt"),
}


def _test(name: str, combine: Combine) -> None:
    @rule(f"aten.{name}.default")
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        dtype = call.tensor("self").dtype
        dtype = dtype if dtype.is_float else DType.F32
        return finish(call, combine(element(call, "self", dtype)))


for _name, _test_function in _TESTS.items():
    _test(_name, _test_function)


def _rounding(function: str) -> None:
    @rule(f"aten.{function}.default")
    def _(call: Call) -> Lazy:  # pyright: ignore[reportUnusedFunction]
        x = element(call, "self", call.dtype)
        return finish(call, apply(function, x) if call.dtype.is_float else x)


for _name in ("floor", "ceil", "round", "trunc"):
    _rounding(_name)


def _scaled(call: Call, function: str, first: str, second: str) -> Lazy:
    """first + alpha * second, and the like."""
    a, b = (element(call, name, call.dtype) for name in (first, second))
    if call.arguments.get("alpha", 1) != 1:
        b = apply("mul", b, element(call, "alpha", call.dtype))
    if call.dtype is DType.BOOL:
        return finish(call, apply("or", a, b))
    return finish(call, apply(function, a, b))


@rule("aten.add.Tensor", "aten.add.Scalar")
def _add(call: Call) -> Lazy:
    return _scaled(call, "add", "self", "other")


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(call: Call) -> Lazy:
    return _scaled(call, "sub", "self", "other")


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(call: Call) -> Lazy:
    return _scaled(call, "sub", "other", "self")


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(call: Call) -> Lazy:
    a, b = (unrounded(call, name) for name in ("self", "other"))
    return finish(call, apply("and" if call.dtype is DType.BOOL else "mul", a, b))


@rule("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _div(call: Call) -> Lazy:
    a, b = (unrounded(call, name) for name in ("self", "other"))
    return finish(call, apply("div", a, b))


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(call: Call) -> Lazy:
    mode = call.text("rounding_mode")
    return _div(call) if mode is None else rounded_quotient(call, mode)


@rule("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide(call: Call) -> Lazy:
    return rounded_quotient(call, "floor")


def rounded_quotient(call: Call, mode: str) -> Lazy:
    """The quotient rounded down ("floor") or toward zero ("trunc")."""
    if mode == "floor":
        return _divided(call, "floordiv")
    if not call.dtype.is_float:
        return _divided(call, "truncdiv")
    a, b = (unrounded(call, name) for name in ("self", "other"))
    quotient = cast(cast(apply("div", a, b), call.dtype), a.dtype)
    return finish(call, apply("trunc", quotient))


@rule("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _remainder(call: Call) -> Lazy:
    return _divided(call, "remainder")


@rule("aten.fmod.Tensor", "aten.fmod.Scalar")
def _fmod(call: Call) -> Lazy:
    return _divided(call, "fmod")


BY_ZERO = Failure("RuntimeError", "ZeroDivisionError")
"""What ATen raises for an integer divided by 0."""


def _divided(call: Call, function: str) -> Lazy:
    """A quotient or remainder; of integers, a divisor of 0 stops the run."""
    operand = unrounded if function == "floordiv" else partial(element, dtype=call.dtype)
    a, b = (operand(call, name) for name in ("self", "other"))
    if call.dtype.is_float or (isinstance(b, Const) and b.value) or 0 in call.shape:
        return finish(call, apply(function, a, b))
    number = call.low.stop(BY_ZERO)
    if not call.tensor("other").rank:
        # The same for all elements. Those of a dynamic dim are taken to be some.
        divisor = element(call, "other", call.dtype)
        call.low.check(apply("ne", divisor, like(0, divisor)), "assertion", number)
        return finish(call, apply(function, a, b))
    # The kernel checks each divisor by that of a position, which here is 1 of 1 where it is wrong.
    wrong = cast(apply("eq", b, like(0, b)), DType.I64)
    place = Apply("checked", (wrong, Const(1, DType.I64), Const(number, DType.I64)), DType.I64)
    quotient = finish(call, apply(function, a, apply("add", b, cast(place, b.dtype))))
    # Stored, since an expression inside an arm of `where` would be computed where it is taken only.
    return call.low.materialise(quotient)


@rule("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar")
def _shift_left(call: Call) -> Lazy:
    return finish(call, apply("shl", *(element(call, n, call.dtype) for n in ("self", "other"))))


@rule("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar")
def _shift_right(call: Call) -> Lazy:
    return finish(call, apply("shr", *(element(call, n, call.dtype) for n in ("self", "other"))))


@rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _where(call: Call) -> Lazy:
    condition = truth(spread(call, "condition").expr)
    arms = (cast(spread(call, name).expr, call.dtype) for name in ("self", "other"))
    return finish(call, where(condition, *arms))


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(call: Call) -> Lazy:
    mask = truth(spread(call, "mask").expr)
    value = cast(spread(call, "value").expr, call.dtype)
    return finish(call, where(mask, value, cast(spread(call, "self").expr, call.dtype)))
