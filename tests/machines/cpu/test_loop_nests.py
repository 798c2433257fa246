"""Maps, reductions and scans as C++: dtypes, layouts, special values, accuracy."""

from __future__ import annotations

import itertools

import pytest
import torch

from stretto.ir.core import Value
from stretto.ops.infer import resolve
from tests.backends import built
from tests.machines.operators import Operators
from tests.sampling import every

INF, NAN = float("inf"), float("nan")
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 100.0, -100.0, 1e-5, 1e10, -1e10,
    INF, -INF, NAN, 1e-30, 7.0, -7.0, 0.1, 88.0, -88.0, 2.0**31, 1e20,
]  # fmt: skip
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


def special(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    if dtype is torch.bool:
        return torch.tensor([True, False] * 13 + [True])
    limits = torch.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 10, 100, limits.max, limits.max - 1, limits.min, limits.min + 1]
    signed = [] if dtype is torch.uint8 else [-1, -2, -3, -7, -10, -100]
    return torch.tensor(numbers + signed, dtype=dtype)


# ---- maps ------------------------------------------------------------------------------------

UNARY = (
    "neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt",
    "reciprocal", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh",
    "sigmoid", "erf", "erfc", "floor", "ceil", "round", "trunc", "relu", "isnan", "isinf",
    "logical_not", "bitwise_not", "silu", "softplus", "hardswish", "elu", "frac", "isfinite",
)  # fmt: skip
BINARY = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default",
    "fmax.default", "fmin.default", "atan2.default", "eq.Tensor", "lt.Tensor", "ge.Tensor",
    "logical_and.default", "logical_xor.default", "bitwise_and.Tensor", "bitwise_or.Tensor",
    "bitwise_xor.Tensor", "copysign.Tensor",
)  # fmt: skip


def keep_if_eager_can(ops: Operators, target: str, *args: Value | float, **kwargs: object) -> None:
    """Enters an op where torch has it for these dtypes."""
    tensors = dict(zip(ops.params, ops.inputs, strict=True))
    known = [tensors[item] if isinstance(item, Value) else item for item in args]
    try:
        resolve(f"aten.{target}")(*known, **kwargs)
    except RuntimeError:
        return
    dtypes = [item.tensor.dtype.value for item in args if isinstance(item, Value)]
    ops.keep(f"{target} {dtypes}", ops(target, *args, **kwargs))


@pytest.mark.whole
def test_functions_of_one_argument() -> None:
    ops = Operators()
    for dtype in DTYPES:
        x = ops.parameter(special(dtype))
        for name in UNARY:
            keep_if_eager_can(ops, f"{name}.default", x)
    ops.check(units=1)


@pytest.mark.whole
def test_functions_of_two_arguments() -> None:
    ops = Operators()
    for dtype in DTYPES:
        x = special(dtype)
        a = ops.parameter(x[:, None].expand(len(x), len(x)).contiguous())
        b = ops.parameter(x[None, :].expand(len(x), len(x)).contiguous())
        for target in BINARY:
            keep_if_eager_can(ops, target, a, b)
    ops.check(units=1)


@pytest.mark.whole
def test_division_and_powers() -> None:
    ops = Operators()
    for dtype in (*FLOATS, *INTEGERS):
        x = special(dtype)
        x = x[(x == 0) | (x.double().abs() > 1e-9)]  # beyond, eager's own fmod gives NaN
        divisors = x[x != 0]
        if not dtype.is_floating_point:  # the smallest number has no negative
            divisors = divisors[divisors != -1]
        a = ops.parameter(x[:, None].expand(len(x), len(divisors)).contiguous())
        b = ops.parameter(divisors[None, :].expand(len(x), len(divisors)).contiguous())
        for target in ("remainder.Tensor", "fmod.Tensor", "floor_divide.default"):
            keep_if_eager_can(ops, target, a, b)
        for mode in ("floor", "trunc"):
            keep_if_eager_can(ops, "div.Tensor_mode", a, b, rounding_mode=mode)
        for target, number in itertools.product(("remainder.Scalar", "div.Scalar"), (2, -3, 2.5)):
            keep_if_eager_can(ops, target, a, number)
        base = ops.parameter(torch.tensor([0, 1, 2, 3, 5, 7], dtype=dtype))
        for exponent in (0, 1, 3):
            keep_if_eager_can(ops, "pow.Tensor_Scalar", base, exponent)
    ops.check(units=1)


@pytest.mark.whole
def test_casts_and_mixed_dtypes() -> None:
    ops = Operators()
    for one, other in itertools.product(DTYPES, DTYPES):
        x = special(one)
        if one.is_floating_point and other in INTEGERS:  # others are undefined
            limit = min(2.0**62, torch.iinfo(other).max)
            x = x[x.isfinite() & (x.double().abs() < limit)]
            x = x.abs() if other is torch.uint8 else x
        ops.keep(f"{one} to {other}", ops("_to_copy.default", ops.parameter(x), dtype=other))
        a, b = ops.parameter(special(one)[:9]), ops.parameter(special(other)[:9])
        for target in ("add.Tensor", "lt.Tensor"):
            ops.keep(f"{target} {one} {other}", ops(target, a, b))
    ops.check(units=1)


# ---- reductions ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7, 9), (1, 70, 3), (64, 2, 33), (2, 130)])
def test_reductions_over_any_dims(shape: tuple[int, ...]) -> None:
    ops = Operators()
    last = len(shape) - 1
    for dtype in (torch.float32, torch.int64):
        x = ops.x(*shape, dtype=dtype)
        for dims in {(0,), (last,), tuple(range(last + 1)), (0, last)}:
            for name in ("sum.dim_IntList", "amax.default", "amin.default"):
                ops.keep(f"{name} {dims} {dtype}", ops(name, x, dims, False))
            if dtype.is_floating_point:
                ops.keep(f"mean {dims}", ops("mean.dim", x, dims, True))
                ops.keep(f"var {dims}", ops("var.correction", x, dims, correction=0))
    ops.check(units=3)


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_reductions_and_scans_of_each_dtype(dtype: torch.dtype) -> None:
    ops = Operators()
    x = ops.x(6, 19, dtype=dtype)
    for name, view in (("rows", x), ("turned", ops("t.default", x))):
        for dim in (0, 1):
            for target in ("sum.dim_IntList", "any.dims", "all.dims"):
                ops.keep(f"{target} {name} {dim}", ops(target, view, (dim,), False))
            ops.keep(f"prod {name} {dim}", ops("prod.dim_int", view, dim, False))
            ops.keep(f"cumsum {name} {dim}", ops("cumsum.default", view, dim))
            if dtype is not torch.bool:
                ops.keep(f"amax {name} {dim}", ops("amax.default", view, (dim,), False))
                ops.keep(f"argmax {name} {dim}", ops("argmax.default", view, dim, False))
                ops.keep(f"argmin {name} {dim}", ops("argmin.default", view, dim, False))
                ops.keep(f"max {name} {dim}", *ops.call("max.dim", view, dim, False))
    ops.check()


@pytest.mark.whole
def test_reductions_of_views() -> None:
    ops = Operators()
    turned = ops("permute.default", ops.x(4, 6, 10, 8), (2, 0, 3, 1))
    flipped = ops("flip.default", turned, (0, 2))
    sliced = ops("slice.Tensor", flipped, 0, 1, 9, 3)
    spread = ops("expand.default", ops("unsqueeze.default", sliced, 1), (3, 5, 4, 8, 6))
    for name, view in (("turned", turned), ("sliced", sliced), ("expanded", spread)):
        for dim in range(view.tensor.rank):
            ops.keep(f"sum {name} {dim}", ops("sum.dim_IntList", view, (dim,), False))
            ops.keep(f"argmax {name} {dim}", ops("argmax.default", view, dim, False))
            ops.keep(f"cumsum {name} {dim}", ops("cumsum.default", view, dim))
        ops.keep(f"all of {name}", ops("sum.default", view), ops("argmax.default", view))
    ops.check()


def test_not_a_number_and_infinity() -> None:
    ops = Operators()
    x = ops.random(4, 37)
    x[0, 5] = x[0, 30] = NAN
    x[1], x[2], x[3, 36] = 3.0, -INF, INF
    for dtype in (torch.float32, torch.float64):
        rows = ops.parameter(x.to(dtype))
        for name, view in (("rows", rows), ("turned", ops("t.default", rows))):
            for dim in (0, 1):
                for target in ("argmax.default", "argmin.default", "any.dim"):
                    ops.keep(f"{target} {name} {dim}", ops(target, view, dim, False))
                for target in ("amax.default", "amin.default", "sum.dim_IntList"):
                    ops.keep(f"{target} {name} {dim}", ops(target, view, (dim,), False))
                ops.keep(f"softmax {name} {dim}", ops("_softmax.default", view, dim, False))
    smallest, largest = -(2**63), 2**63 - 1
    ties = ops.parameter(torch.tensor([[3, 3, 1], [smallest, largest, 0], [smallest] * 3]))
    for target in ("argmax.default", "argmin.default"):
        ops.keep(f"{target} of ties", ops(target, ties, 1, False))
    ops.check()


@pytest.mark.whole
def test_softmax_and_norms_are_fused_row_by_row() -> None:
    ops = Operators()
    x = ops.x(9, 50)
    rows, columns = (ops("_softmax.default", x, dim, False) for dim in (1, 0))
    ops.keep("softmax", rows, columns, ops("mul.Tensor", rows, columns))
    for dim in (0, 1):
        centred = ops("sub.Tensor", x, ops("mean.dim", x, (dim,), True))
        variance = ops("mean.dim", ops("mul.Tensor", centred, centred), (dim,), True)
        scale = ops("rsqrt.default", ops("add.Scalar", variance, 1e-5))
        ops.keep(f"norm {dim}", ops("mul.Tensor", centred, scale))
    image, sizes = ops.x(2, 6, 5, 7), (2, 6, 35)
    group = ops.call("native_group_norm.default", image, ops.w(6), None, *sizes, 3, 1e-5)
    ops.keep("group norm", *group)
    total = ops("sum.default", x)
    ops.keep("by the total", ops("div.Tensor", x, total))
    found = ops("argmax.default", ops("mm.default", x, ops.w(50, 20)), 1, False)
    ops.keep("looked up", ops("embedding.default", ops.w(20, 6), found), found)
    ops.check(units=3)


def test_long_sums_are_as_good_as_in_double() -> None:
    ops = Operators()
    x = torch.rand(1 << 21, generator=ops.generator) + 1.0
    flat = ops.parameter(x)
    columns = ops("view.default", flat, (1 << 18, 8))
    ops.keep("flat", ops("sum.default", flat), ops("mean.default", flat))
    ops.keep("columns", ops("sum.dim_IntList", columns, (0,), False))
    ops.keep("scan", ops("cumsum.default", flat, 0))
    total, mean, down, scan = built(ops.program(), 2).cpu()([x])
    exact = x.double()
    torch.testing.assert_close(total.double(), exact.sum(), rtol=1e-7, atol=0)
    torch.testing.assert_close(mean.double(), exact.mean(), rtol=1e-7, atol=0)
    torch.testing.assert_close(down.double(), exact.view(-1, 8).sum(0), rtol=1e-7, atol=0)
    torch.testing.assert_close(scan.double(), exact.cumsum(0), rtol=1e-7, atol=0)
