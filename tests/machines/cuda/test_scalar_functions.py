"""Every scalar function as Triton, against torch in float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stretto.device.expr import Access, Apply, Buffer, Expr, Index, Load, Var
from stretto.device.functions import FUNCTIONS, ResultDtype
from stretto.device.operator import Kernel, Operator, Span, Stage
from stretto.ir.types import DType
from stretto.machines.cuda.templates.pointwise import Map
from tests.machines.cuda.triton_runner import compiled, interpret

INF, NAN = math.inf, math.nan
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 3.5, -2.5, INF, -INF, NAN, 1e-45, -1e-45, 1e-40,
    88.5, 89.5, -88.0, -103.0, 0.99999994, 1.0000001, 8388609.0, -4194305.5, 1e30, -1e30,
)  # fmt: skip
FLOATS = [
    f.name
    for f in FUNCTIONS.values()
    if f.result in (ResultDtype.FLOAT, ResultDtype.TEST, ResultDtype.SAME)
]
UNARY = [name for name in FLOATS if FUNCTIONS[name].arity == 1]
BINARY = [name for name in FLOATS if FUNCTIONS[name].arity == 2]
EXACT = (
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "fmod",
    "add",
    "sub",
    "mul",
    "div",
)
LIMIT = {DType.F32: 5e-7, DType.F64: 4e-15}
"""Largest relative errors; the interpreter's own exp2, log, sin, cos and erf are numpy's."""


def pointwise(name: str, *dtypes: DType, size: int, result: DType) -> Kernel:
    """One function of arguments a, b ... into `out`."""
    place = (Index.of(Var(0)),)
    args: list[Expr] = [
        Load(Access(Buffer("abc"[n], dtype, (size,)), (size,), place))
        for n, dtype in enumerate(dtypes)
    ]
    out = Access(Buffer("out", result, (size,)), (size,), place)
    operator = Operator(name, (size,), (), "", Apply(name, tuple(args), result), out)
    return Kernel("pointwise", (), (Stage(operator, (Span(size),), Map(1024)),))


def applied(name: str, *arguments: Tensor, result: DType | None = None) -> Tensor:
    kinds = [DType.from_torch(argument.dtype) for argument in arguments]
    if FUNCTIONS[name].result is ResultDtype.TEST:
        result = DType.BOOL
    kernel = pointwise(name, *kinds, size=arguments[0].numel(), result=result or kinds[0])
    out = torch.zeros_like(arguments[0], dtype=(result or kinds[0]).torch)
    interpret(kernel, {**dict(zip("abc", arguments, strict=False)), "out": out})
    return out


def samples(dtype: DType, count: int = 80) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = (1e-30, 1e-6, 1e-3, 0.1, 1.0, 3.0, 10.0, 50.0, 1e4, 1e10)
    random = [torch.randn(count, generator=generator, dtype=dtype.torch) * s for s in scales]
    return torch.cat([*random, torch.tensor(SPECIAL, dtype=dtype.torch)])


def check(name: str, found: Tensor, expected: Tensor, dtype: DType) -> None:
    """Special values are equal, others close; what is denormal need only be small."""
    rounded = expected.to(dtype.torch)
    plain = rounded.isfinite() & found.isfinite()
    same = (rounded == found) | (rounded.isnan() & found.isnan())
    assert bool((same | plain).all()), name
    least = torch.finfo(dtype.torch).tiny
    error = (found.double() - expected.double()).abs() / expected.double().abs().clamp_min(least)
    worst = error[plain].max().item()
    assert worst <= (0.0 if name in EXACT and dtype is DType.F64 else LIMIT[dtype]), (name, worst)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_float(name: str, dtype: DType) -> None:
    x = samples(dtype)
    if name in ("sin", "cos", "tan"):
        x = x[x.abs() < 1e5]
    meaning = FUNCTIONS[name].evaluate
    assert meaning is not None
    found = applied(name, x)
    if FUNCTIONS[name].result is ResultDtype.TEST:
        assert torch.equal(found, meaning(x))
        return
    if name == "sigmoid" and dtype is DType.F64:
        x, found = x[x.abs() < 700], found[x.abs() < 700]
    check(name, found, meaning(x.double()), dtype)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_floats(name: str, dtype: DType) -> None:
    x = torch.cat([samples(dtype, 2)[:-2], torch.tensor([3.0, 7.25, -1e5], dtype=dtype.torch)])
    x = x[(x == 0) | (x.abs() > 1e-9)]
    if name in ("floordiv", "truncdiv", "fmod", "remainder"):
        x = x[(x.abs() < 1e4) | ~x.isfinite()]
    a = x[:, None].expand(len(x), len(x)).reshape(-1)
    b = x[None, :].expand(len(x), len(x)).reshape(-1)
    meaning = FUNCTIONS[name].evaluate
    assert meaning is not None
    found = applied(name, a, b)
    if FUNCTIONS[name].result is ResultDtype.TEST:
        assert torch.equal(found, meaning(a, b))
    elif name in ("floordiv", "truncdiv", "fmod", "remainder", "maximum", "minimum"):
        torch.testing.assert_close(found, meaning(a, b), equal_nan=True, rtol=1e-6, atol=1e-6)
    elif name == "pow" and dtype is DType.F64:
        torch.testing.assert_close(found, meaning(a, b), equal_nan=True, rtol=1e-12, atol=0)
    else:
        expected = meaning(a, b) if name in ("fmax", "fmin") else meaning(a.double(), b.double())
        check(name, found, expected, dtype)


INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_functions_of_integers(dtype: DType) -> None:
    limits = torch.iinfo(dtype.torch)
    numbers = [0, 1, 2, 3, 5, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1]
    numbers += [] if dtype is DType.U8 else [-1, -2, -3, -7, -100]
    x = torch.tensor(numbers, dtype=dtype.torch)
    a = x[:, None].expand(len(x), len(x)).reshape(-1)
    b = x[None, :].expand(len(x), len(x)).reshape(-1)
    for name, function in FUNCTIONS.items():
        if function.result not in (
            ResultDtype.SAME,
            ResultDtype.TEST,
            ResultDtype.BITS,
            ResultDtype.INTEGER,
        ):
            continue
        if function.evaluate is None or name in ("isnan", "isinf"):
            continue
        if function.arity == 1:
            assert torch.equal(applied(name, x), function.evaluate(x)), name
            continue
        left, right = a, b
        if name in ("floordiv", "truncdiv", "remainder", "fmod"):
            keep = (b != 0) & ((b != -1) if dtype is not DType.U8 else (b != 0))
            left, right = a[keep], b[keep]
        if name in ("shl", "shr", "pow"):
            keep = (b >= 0) & (b < (8 if name == "pow" else 8 * dtype.itemsize))
            left, right = a[keep], b[keep]
        assert torch.equal(applied(name, left, right), function.evaluate(left, right)), name


def test_functions_of_flags() -> None:
    a = torch.tensor([True, True, False, False])
    b = torch.tensor([True, False, True, False])
    for name, function in FUNCTIONS.items():
        if function.result is ResultDtype.LOGICAL or name in ("eq", "ne", "maximum", "bitwise_xor"):
            assert function.evaluate is not None
            args = (a, b)[: function.arity]
            assert torch.equal(applied(name, *args), function.evaluate(*args)), name
    assert torch.equal(applied("bitwise_not", a), ~a)


@pytest.mark.parametrize("source", list(DType))
def test_conversions(source: DType) -> None:
    if source.is_float:
        x = torch.tensor([0.0, -0.0, 1.5, 2.5, 100.25, 3e-5, 1.0009766, 17.0]).to(source.torch)
    else:
        x = torch.tensor([0, 1, 2, 100]).to(source.torch)
    for target in DType:
        found = applied("cast", x, result=target)
        assert torch.equal(found, x.to(target.torch)), target


@pytest.mark.whole
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_all_functions_compile(target: str, tmp_path: Path) -> None:
    size = 128  # one element for each thread
    place = (Index.of(Var(0)),)
    for dtype in (DType.F32, DType.F64, DType.I32, DType.U8):
        stages: list[Stage] = []
        load = Load(Access(Buffer("a", dtype, (size,)), (size,), place))
        for name, function in FUNCTIONS.items():
            fits = dtype.is_float or function.result is not ResultDtype.FLOAT
            if function.evaluate is None or function.result is ResultDtype.LOGICAL or not fits:
                continue
            if dtype.is_float and function.result in (ResultDtype.BITS, ResultDtype.INTEGER):
                continue
            if not dtype.is_float and name in ("isnan", "isinf"):
                continue
            result = DType.BOOL if function.result is ResultDtype.TEST else dtype
            value = Apply(name, (load,) * function.arity, result)
            out = Access(Buffer(f"out_{name}", result, (size,)), (size,), place)
            operator = Operator(name, (size,), (), "", value, out)
            stages.append(Stage(operator, (Span(size),), Map(size)))
        used = compiled(Kernel(f"all_{dtype.value}", (), tuple(stages)), tmp_path, target)
        assert used.spill_bytes == 0
