"""Rules of pointwise ops: promotion of dtypes, broadcasting, special values, numbers of the run."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lowering.straight_line import NotNative, Number, check, overload, run

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 100.0, -100.0, inf, -inf, nan])


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 2).to(dtype)
    low = 0 if dtype is torch.uint8 else -9
    return torch.randint(low, 9, shape, generator=generator).to(dtype)


UNARY = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "sigmoid", "erf", "erfc", "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "isnan",
    "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "relu", "relu6", "silu", "mish",
    "hardsigmoid", "hardswish", "square", "frac", "rad2deg", "deg2rad", "log_sigmoid", "gelu",
    "leaky_relu", "elu", "selu", "celu", "softplus", "hardtanh", "hardshrink", "softshrink",
    "nan_to_num", "logit", "clone",
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_on_special_values(name: str) -> None:
    if name != "gelu":  # torch's own gives NaN for inf in float32, and inf in float64
        check(f"aten.{name}.default", SPECIAL)
    check(f"aten.{name}.default", SPECIAL.double())


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("name", UNARY)
def test_unary_in_half_precision(name: str, dtype: torch.dtype) -> None:
    check(f"aten.{name}.default", numbers(dtype, 3, 5))


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool))
@pytest.mark.parametrize(
    "name", ["exp", "sqrt", "tanh", "sigmoid", "reciprocal", "log", "isnan", "isinf", "logical_not"]
)
def test_float_functions_of_integers(name: str, dtype: torch.dtype) -> None:
    check(f"aten.{name}.default", numbers(dtype, 7))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "name",
    ["neg", "abs", "sign", "floor", "ceil", "round", "trunc", "bitwise_not", "relu", "square"],
)
def test_integer_functions(name: str, dtype: torch.dtype) -> None:
    check(f"aten.{name}.default", numbers(dtype, 7))


BINARY = (
    "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "rsub",
)  # fmt: skip
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("name", ("add", "mul", "div", "lt", "eq"))
def test_promotion_of_pairs(name: str, first: torch.dtype, second: torch.dtype) -> None:
    a, b = numbers(first, 3, 4), numbers(second, 4, seed=1)
    check(f"aten.{name}.Tensor", a, b)
    check(f"aten.{name}.Tensor", a, numbers(second, seed=2))
    check(f"aten.{name}.Tensor", numbers(first, seed=3), b)


@pytest.mark.parametrize("number", (2, 2.5, True, -3))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_pairs_with_a_number(name: str, dtype: torch.dtype, number: bool | int | float) -> None:
    if name in ("sub", "rsub", "remainder", "fmod") and torch.bool in (
        dtype,
        torch.tensor(number).dtype,
    ):
        pytest.skip("torch has none of this")
    if dtype is torch.uint8 and number == -3 and name in ("remainder", "fmod"):
        pytest.skip("a negative divisor wraps")
    check(f"aten.{name}.Scalar", numbers(dtype, 5), number)
    check(f"aten.{name}.Scalar", numbers(dtype, 5), Number(number))


@pytest.mark.parametrize("name", BINARY)
def test_pairs_broadcast(name: str) -> None:
    check(
        f"aten.{name}.Tensor", numbers(torch.float32, 4, 1, 3), numbers(torch.float32, 5, 1, seed=1)
    )
    check(f"aten.{name}.Tensor", numbers(torch.float32, 0, 3), numbers(torch.float32, 3, seed=1))
    check(f"aten.{name}.Tensor", numbers(torch.float32), numbers(torch.float32, seed=1))


@pytest.mark.parametrize("alpha", (2, 0.5, Number(3)))
@pytest.mark.parametrize("name", ("add", "sub", "rsub"))
def test_alpha(name: str, alpha: Any) -> None:
    a, b = numbers(torch.float32, 3, 4), numbers(torch.float32, 4, seed=1)
    check(f"aten.{name}.Tensor", a, b, alpha=alpha)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32))
@pytest.mark.parametrize("mode", (None, "floor", "trunc"))
def test_division_modes(mode: str | None, dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 4, 5), numbers(dtype, 4, 5, seed=1)
    b = torch.where(b == 0, torch.ones_like(b), b)
    check("aten.div.Tensor_mode", a, b, rounding_mode=mode)
    check("aten.div.Scalar_mode", a, -3, rounding_mode=mode)
    if mode == "floor":
        check("aten.floor_divide.default", a, b)


@pytest.mark.parametrize("name", ("maximum", "minimum", "fmax", "fmin", "atan2"))
def test_extrema_with_nan(name: str) -> None:
    check(f"aten.{name}.default", SPECIAL, SPECIAL.flip(0))
    check(f"aten.{name}.default", numbers(torch.int64, 5), numbers(torch.float32, 5))


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.uint8, torch.bool))
@pytest.mark.parametrize("name", ("bitwise_and", "bitwise_or", "bitwise_xor"))
def test_bitwise(name: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 3, 4), numbers(dtype, 4, seed=1)
    check(f"aten.{name}.Tensor", a, b)
    check(f"aten.{name}.Scalar", a, True if dtype is torch.bool else 5)


@pytest.mark.parametrize("name", ("logical_and", "logical_or", "logical_xor"))
def test_logical(name: str) -> None:
    check(f"aten.{name}.default", SPECIAL, numbers(torch.int64, 12))
    check(f"aten.{name}.default", numbers(torch.bool, 3, 1), numbers(torch.bool, 4))


def test_shifts() -> None:
    a, b = numbers(torch.int64, 6), torch.tensor([0, 1, 2, 3, 4, 5])
    check("aten.bitwise_left_shift.Tensor", a, b)
    check("aten.bitwise_right_shift.Tensor", a, b)
    check("aten.bitwise_right_shift.Tensor_Scalar", a, 2)


@pytest.mark.parametrize("exponent", (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.7, 2.0))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_power_of_a_number(dtype: torch.dtype, exponent: float) -> None:
    check("aten.pow.Tensor_Scalar", numbers(dtype, 4, 3).abs() + 0.5, exponent)
    check("aten.pow.Tensor_Scalar", numbers(dtype, 4, 3).abs() + 0.5, Number(exponent))


def test_powers() -> None:
    a, b = numbers(torch.float32, 4, 3).abs() + 0.1, numbers(torch.float32, 3, seed=1)
    check("aten.pow.Tensor_Tensor", a, b)
    check("aten.pow.Scalar", 2, b)
    check("aten.pow.Scalar", 2.5, b)
    check("aten.pow.Scalar", 1, b)
    check("aten.pow.Tensor_Scalar", numbers(torch.int64, 5), 3)
    check("aten.pow.Tensor_Scalar", numbers(torch.int64, 5), 0.5)
    check("aten.pow.Tensor_Scalar", numbers(torch.bool, 5), 2)


@pytest.mark.parametrize("bounds", ((-1.0, 1.0), (None, 0.5), (0, None), (1.0, -1.0), (-inf, inf)))
def test_clamp(bounds: tuple[float | None, float | None]) -> None:
    check("aten.clamp.default", SPECIAL, *bounds)
    check("aten.clamp.default", numbers(torch.bfloat16, 9), *bounds)


def test_clamp_of_integers_by_floats() -> None:
    check("aten.clamp.default", numbers(torch.int64, 9), -2, 3)
    check("aten.clamp.default", numbers(torch.int64, 9), -2.5, 3.5)
    check("aten.clamp.Tensor", numbers(torch.float32, 4, 3), numbers(torch.float32, 3), None)
    check("aten.clamp_min.default", numbers(torch.float32, 4), Number(0.25))
    check("aten.clamp_max.Tensor", numbers(torch.float32, 4), numbers(torch.float32, 4, seed=2))


def test_where() -> None:
    condition = numbers(torch.bool, 4, 1)
    a, b = numbers(torch.float32, 3), numbers(torch.int64, 4, 3)
    check("aten.where.self", condition, a, b)
    check("aten.where.self", condition, numbers(torch.bfloat16, 3), numbers(torch.float32, 3))
    check("aten.where.ScalarOther", condition, a, -inf)
    check("aten.where.ScalarSelf", condition, 0, a)
    check("aten.where.Scalar", condition, 1.5, 2)


@pytest.mark.parametrize("value", (-inf, 0, 2.5, Number(1.5)))
def test_masked_fill(value: Any) -> None:
    check("aten.masked_fill.Scalar", numbers(torch.float32, 4, 3), numbers(torch.bool, 3), value)
    check("aten.masked_fill.Scalar", numbers(torch.float16, 4, 3), numbers(torch.bool, 4, 1), value)


def test_ternary() -> None:
    x, a, b = (numbers(torch.float32, 4, 3, seed=seed) for seed in range(3))
    check("aten.addcmul.default", x, a, b, value=0.5)
    check("aten.addcdiv.default", x, a, b.abs() + 1, value=2)
    check("aten.lerp.Scalar", x, a, 0.3)
    check("aten.lerp.Scalar", x, a, 0.7)
    check("aten.lerp.Tensor", x, a, b)
    check("aten.masked_fill.Tensor", x, a > 0, torch.tensor(3))


@pytest.mark.parametrize("approximate", ("none", "tanh"))
@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu(approximate: str, dtype: torch.dtype) -> None:
    check("aten.gelu.default", numbers(dtype, 20), approximate=approximate)


def test_parametrised_activations() -> None:
    x = SPECIAL
    check("aten.leaky_relu.default", x, 0.2)
    check("aten.elu.default", x, 1.5, 0.7, 0.3)
    check("aten.celu.default", x, 1.5)
    check("aten.softplus.default", x, 2.0, 3.0)
    check("aten.threshold.default", x, 0.7, -3.0)
    check("aten.hardtanh.default", x, -0.5, 0.25)
    check("aten.nan_to_num.default", x, 1.0, 5.0, -5.0)
    check("aten.logit.default", torch.rand(9), 0.1)


def test_prelu() -> None:
    x = numbers(torch.float32, 2, 3, 4)
    check("aten.prelu.default", x, torch.tensor([0.1, 0.2, 0.3]))
    check("aten.prelu.default", x, torch.tensor([0.1]))
    check("aten._prelu_kernel.default", x, torch.rand(1, 3, 1))


@pytest.mark.parametrize("dim", (0, 1, -1))
def test_glu(dim: int) -> None:
    check("aten.glu.default", numbers(torch.float32, 4, 6), dim)


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    x = numbers(source, 4, 5)
    x = x.abs() if target is torch.uint8 and source is not torch.bool else x
    check("aten._to_copy.default", x, dtype=target)


def test_dropout_is_the_identity_in_inference() -> None:
    check("aten.dropout.default", numbers(torch.float32, 3), 0.5, False)
    with pytest.raises(NotNative):
        run("aten.dropout.default", numbers(torch.float32, 3), 0.5, True)


def test_log_sigmoid_forward_values() -> None:
    with pytest.raises(NotNative):
        run("aten.log_sigmoid_forward.default", numbers(torch.float32, 3))


WITH_NUMBERS = {
    "aten.add.Tensor": (-2.7,),
    "aten.sub.Tensor": (2.7,),
    "aten.rsub.Scalar": (2.7,),
    "aten.mul.Tensor": (2.7,),
    "aten.div.Tensor": (2.7,),
    "aten.remainder.Scalar": (2.7,),
    "aten.fmod.Scalar": (2.7,),
    "aten.floor_divide.Scalar": (0.3,),
    "aten.pow.Tensor_Scalar": (-2.7,),
    "aten.gt.Scalar": (2.7,),
    "aten.eq.Scalar": (2.7,),
    "aten.lerp.Scalar": (torch.linspace(3, 5, 97), 0.3),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_are_rounded_as_aten_rounds_them(name: str, dtype: torch.dtype) -> None:
    """Where they are: `x - 2.7` and `x > 2.7` differ else by more than rounding explains."""
    x = torch.linspace(1, 3, 97).to(dtype)
    x[5] = 2.7
    args = [arg.to(dtype) if isinstance(arg, Tensor) else arg for arg in WITH_NUMBERS[name]]
    (found,) = run(name, x, *args)
    expected = overload(name)(x, *args)
    assert torch.equal(found, expected)
