"""Integers as eager has them: wrap-around, shifts, signs of quotients, conversions, result dtypes.

The programs hold what a compiler is tempted to simplify: `x + 1 > x`, `x * 3 // 3`, `x * 2 == 0`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto
from tests.e2e.machines import CUDA, check
from tests.frontends.python.checks import assert_same

BACKENDS = ("interpreter", "emulator", "cpu", CUDA)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
Results = tuple[Tensor, ...]


def extremes(dtype: torch.dtype) -> Tensor:
    """Small numbers, widths of shifts, and both ends of the range."""
    info = torch.iinfo(dtype)
    numbers = [0, 1, 2, 3, 7, 8, 31, 33, 63, 64, 100, info.max // 3, info.max // 2 + 1, info.max]
    numbers += [-number for number in numbers] + [info.min, info.min + 1]
    return torch.tensor(
        sorted({number for number in numbers if info.min <= number <= info.max}), dtype=dtype
    )


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Every two extremes; then the second again where it may divide the first.

    Eager itself dies of the smallest number divided by -1.
    """
    numbers = extremes(dtype)
    a = numbers.repeat_interleave(len(numbers))
    b = numbers.repeat(len(numbers))
    fatal = (b == 0) | ((a == torch.iinfo(dtype).min) & (b == -1))
    return a, b, torch.where(fatal, 5, b).to(dtype)


def arithmetic(a: Tensor, b: Tensor) -> Results:
    large = torch.iinfo(a.dtype).max
    return (
        *(a + b, a - b, a * b, -a, abs(a), torch.sign(a), 5 - a, a + large, a * a),
        *(a + 1 > a, a * 2 == 0, a - 1 < a, a * b == b * a, (a + b) - a == b),
        *(torch.add(a, b, alpha=3), torch.sub(a, b, alpha=5), torch.addcmul(a, a, b, value=2)),
        *(torch.maximum(a, b), torch.minimum(a, b), a.clamp(3, 9), a.clamp(-1.5, 3.25)),
        *(torch.where(a > b, a, b), a * 1.5, a / 3, 7 / a, a / b),
    )


def bits(a: Tensor, b: Tensor) -> Results:
    return (
        *(a & b, a | b, a ^ b, ~a, a & 6, a | 6, 6 ^ a),
        *(a << b, a >> b, a << 2, a >> 3, torch.bitwise_left_shift(a, b)),
        torch.bitwise_right_shift(a, b),
        *(torch.logical_and(a, b), torch.logical_not(a), a.bool()),
    )


def powers(a: Tensor, b: Tensor) -> Results:
    return torch.pow(a, b), a**0, a**2, a**3, torch.square(a), 2 ** b.clamp(0), torch.gcd(a, b)


def division(a: Tensor, _: Tensor, b: Tensor) -> Results:
    minus = -3 if a.dtype.is_signed else 3
    return (
        *(a // b, torch.div(a, b, rounding_mode="trunc"), a % b, torch.fmod(a, b)),
        *(a // 3, a // minus, a % 7, a % minus, torch.fmod(a, 3), torch.div(a, 7)),
        *(a * 3 // 3, (a * 4) % 4, (a * 2 + 2) // 2, (a + 1) // 2, (a + 3) % 4),
    )


def reductions(a: Tensor) -> Results:
    square = a[:9].reshape(3, 3)
    return (
        *(a.sum(), a.prod(), a.cumsum(0), a.cumprod(0), a.max(), a.min(), a.argmax(), a.argmin()),
        *(a.sum(dtype=a.dtype), a.prod(dtype=a.dtype), a.cumsum(0, dtype=a.dtype)),
        *(square.sum(0), square.prod(1), square.cumsum(1), square.amax(0), square.trace()),
        *(square @ square, a @ a, torch.outer(a, a), a.any(), a.all(), (a != 0).sum()),
        *(torch.addmm(square, square, square, beta=3, alpha=5), torch.diff(a)),
        *(torch.block_diag(square, a[:2]), torch.block_diag(a), torch.cat([a, a.int()])),
        a.new_zeros(4).index_add(0, torch.tensor([0, 1, 1]), a[-3:]),
    )


MACHINES = (
    *(("cpu", dtype) for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8)),
    ("emulator", torch.int16),
    (CUDA, torch.int8),
    (CUDA, torch.int64),
)


@pytest.mark.parametrize(("backend", "dtype"), MACHINES, ids=str)
@pytest.mark.parametrize("function", (arithmetic, bits, powers), ids=lambda f: f.__name__)
def test_integers(function: Callable[..., Results], backend: str, dtype: torch.dtype) -> None:
    check(function, pairs(dtype)[:2], backend=backend, units=1)


@pytest.mark.parametrize(("backend", "dtype"), MACHINES, ids=str)
def test_division_of_integers(backend: str, dtype: torch.dtype) -> None:
    check(division, pairs(dtype), backend=backend, units=1)


@pytest.mark.parametrize(("backend", "dtype"), MACHINES, ids=str)
def test_reductions_of_integers(backend: str, dtype: torch.dtype) -> None:
    check(reductions, (extremes(dtype),), backend=backend, units=1)


def of_numbers(a: Tensor, b: Tensor) -> Results:
    wide = a.long()
    return (
        *(a + b, a * b, -a, abs(a), a + 1 > a, a - 1 < a, a * 2 == 0, a * 3 // 3, a * 4 % 4),
        *((a * 2 + 2) // 2, (a + 1) // 2, (a + 3) % 4, a // 3, a % 7, a << 3, a >> 70, a << b),
        *(wide + 2**62, wide * 2**40 // 2**40, torch.arange(4) * 2**62 // 2**62),
        *(torch.arange(4) * 2**62 + wide, torch.where(a > b, a, b), a.to(torch.int8), a.float()),
    )


@pytest.mark.parametrize("dtype", (torch.int64, torch.uint8), ids=str)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_integers_without_dims(backend: str, dtype: torch.dtype) -> None:
    """They live in registers, where arithmetic is that of positions."""
    numbers = extremes(dtype)
    cases = [(numbers[n], numbers[m]) for n in (0, 1, 5, -1) for m in (0, 3, -2)]
    check(of_numbers, *cases, backend=backend, units=1)


FLOATS = (
    *(0.0, 0.5, 1.5, 127.0, 128.0, 129.0, 255.0, 256.0, 300.0, 32767.0, 32769.0, 65536.0),
    *(2.0**31 - 128, 2.0**31, 2.0**31 + 256, 2.0**32, 2.0**32 + 4096, 2.0**40, 2.0**63 - 2.0**39),
    *(2.0**63, 2.0**64, 1e30, float("inf"), float("nan")),
)


def converted(x: Tensor, one: Tensor) -> list[Tensor]:
    targets = (*INTEGERS, torch.bool)
    constant = torch.full((3,), 1e30)
    chosen = torch.where(x > 0, 1e30, -1e30)
    return [y.to(target) for target in targets for y in (x, one, constant.to(x.dtype), chosen)]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_floats_to_integers(backend: str, dtype: torch.dtype) -> None:
    """What does not fit, and NaN, too."""
    x = torch.tensor([*FLOATS, *(-number for number in FLOATS)], dtype=dtype)
    check(converted, *((x, one) for one in x[::5]), backend=backend, units=1)


def flags(a: Tensor, b: Tensor) -> Results:
    return (
        *(a + b, a * b, a ^ b, a & b, a | b, ~a, a + 1, a * 2.5, a / b, a == b, a < b),
        *(a.sum(), a.prod(), a.cumsum(0), a.max(), a.float()),
        *(a.any(), a.all(), torch.maximum(a, b), torch.where(a, b, 3), a * 2, a // 2, a % 2),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_flags(backend: str) -> None:
    a = torch.tensor([False, True, True, False])
    check(flags, (a, a.flip(0).roll(1)), backend=backend, units=1)


def mixed(*tensors: Tensor) -> list[Tensor]:
    """Every two of them, and each with Python's numbers."""
    functions: tuple[Callable[..., Tensor], ...] = (torch.add, torch.maximum, torch.eq)
    found = [function(a, b) for function in functions for a in tensors for b in tensors]
    for a in tensors:
        found += [a + 2, a + 2.5, a + True, a / 2, a == 2.5, a.clamp(1, 2), a.clamp(max=1.5)]
        found += [torch.where(a > 1, a, 0.5), a.sum(), a.cumsum(-1), a.clamp(min=tensors[0])]
    return found


PROMOTED = (torch.uint8, torch.int8, torch.int32, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("shape", ((3,), ()), ids=str)
@pytest.mark.parametrize("backend", ("emulator", "cpu"))
def test_mixed_dtypes(backend: str, shape: tuple[int, ...]) -> None:
    tensors = [torch.tensor([1, 2, 3][: 3 if shape else 1]).reshape(shape).to(d) for d in PROMOTED]
    number = torch.tensor(2, dtype=torch.float64)
    check(mixed, (*tensors[:2], tensors[-1], number), backend=backend, units=1)
    check(mixed, (torch.tensor([True]), *tensors[3:]), backend=backend, units=1)


def remainders(a: Tensor, b: Tensor) -> Tensor:
    i = torch.tensor(0)
    while i < 3:
        a = a + a[i] % b[i]
        i = i + 1
    return a


DIVISIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: a // b,
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda a, b: (a % b) + a,
    torch.fmod,
    lambda a, b: torch.where(b != 0, a // b, 0),
    lambda a, b: a // b[1],
    lambda a, b: a[0] // b[1],
    lambda a, b: a // b if b.min() > 0 else a + 1,
    lambda a, b: a // 0 if b[1] == 0 else a,
    lambda a, b: a + 1 if b[1] != 0 and a[1] // b[1] < 0 else a,
    remainders,
)


def outcome(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor | str:
    """The result, or what was raised."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        assert "ZeroDivisionError" in str(error)
        return "ZeroDivisionError"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", DIVISIONS)
def test_a_divisor_of_zero_raises_what_eager_raises(
    function: Callable[[Tensor, Tensor], Tensor], backend: str
) -> None:
    compiled = stretto.compile(function, backend=backend)
    a = torch.tensor([5, -7, 9])
    for b in (torch.tensor([1, 3, 2]), torch.tensor([1, 0, 2]), torch.tensor([1, 3, 2])):
        assert_same(outcome(compiled, a, b), outcome(function, a, b))


def with_numbers(x: Tensor) -> Results:
    return x * 0.1, x + 0.1, x.clamp(0.1), torch.where(x > 0.3, x, 0.1), torch.full((2,), 0.1) * x


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16), ids=str)
def test_numbers_keep_their_digits(dtype: torch.dtype) -> None:
    check(with_numbers, (torch.tensor([0.2, 0.7], dtype=dtype),), backend="cpu", units=1)
