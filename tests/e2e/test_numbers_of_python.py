"""Numbers of Python that depend on tensors: arithmetic, comparisons, `math` and conversions give
and raise what Python's do. An int that 64 bits cannot hold is refused, never wrapped around."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.ir.text import print_program

nan, inf = math.nan, math.inf
FLOATS = (
    *([0.1, 2.3], [-0.1, 2.5], [0.30000001, -2.5], [0.0, -0.0], [nan, inf], [inf, 0.0]),
    *([1e30, 3e38], [-7.5, 0.25], [2.675, 1.0], [2.0, -inf]),
)
INTS = (
    [7, 3],
    [-7, 3],
    [7, -3],
    [0, 1],
    [3, 0],
    [40, 62],
    [2**62, 2],
    [2**63 - 1, -1],
    [-(2**63), -1],
)

OF_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "operators": lambda a, b: (a + b, a - b, a * b, -a, abs(a), +a),
    "division": lambda a, b: (a / b, a // b, a % b, divmod(a, b)),
    "by ints": lambda a, b: (a // 1, b % 1, 7 * b, a + 1, a * 0.5),
    "weak beside 64 bits": lambda a, b: (a == 0.1, a + 1e-9 > a, b == 2.3),
    "powers": lambda a, b: (abs(a) ** b, a**2, b**3, a**-1),
    "powers of constants": lambda a, b: (2.0**a, 0.5**b),
    "comparisons": lambda a, b: (a < b, a <= b, a != b, a == a, not a, a and b, a or b, 0 < a < 1),
    "rounded": lambda a, b: (round(a, 1), round(b, 2), round(b, 0), round(a * 1.005, 2)),
    "to ints": lambda a, b: (int(a), round(b), math.floor(a), math.ceil(b), math.trunc(a * 1.7)),
    "roots": lambda a, b: math.sqrt(a) + math.sqrt(b),
    "logarithms": lambda a, b: (math.log(a), math.log2(b), math.log10(b), math.log1p(a)),
    "logarithm to a base": lambda a, b: (math.log(b, 2), math.log(8, a)),
    "exponentials": lambda a, b: (math.exp(a), math.expm1(b), math.cosh(a)),
    "trigonometry": lambda a, b: (math.sin(a), math.tan(b), math.atan(a), math.atan2(a, b)),
    "arcs": lambda a, b: (math.asin(a), math.acos(a), math.atanh(a)),
    "of two": lambda a, b: (math.hypot(a, b), math.copysign(a, b), math.fmod(a, b)),
    "math.pow": lambda a, b: math.pow(a, b),
    "tests": lambda a, b: (math.isnan(a), math.isinf(b), math.isfinite(a), math.isclose(a, 0.1)),
    "methods": lambda a, b: (a.is_integer(), b.is_integer(), a.conjugate(), hasattr(a, "shape")),
}
OF_INTS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda a, b: (a + b, a - b),
    "products": lambda a, b: (a * b, a * 3, -2 * b),
    "signs": lambda a, b: (-a, abs(b), abs(a)),
    "division": lambda a, b: (a / b, a % b),
    "floor division": lambda a, b: (a // b, divmod(a, b)),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a, a >> 1, a >> abs(b)),
    "shifts": lambda a, b: a << b,
    "a shift of one": lambda a, b: 1 << abs(b),
    "powers": lambda a, b: (a**2, b**3),
    "as floats": lambda a, b: (float(a), a / 2, a * 0.5, a + 0.1, a // 0.7),
    "beside floats": lambda a, b: (a < 0.5, a == 7.0, a == float(a), float(b) <= b, a > 1e30),
    "beside large ints": lambda a, b: (a > 2**63, a == 2**64, a / 2**70, a < 1e300),
    "bools": lambda a, b: ((a > 0) + (b > 0), -(a > 0), ~(b > 0), (a > 0) * 2, (a > 0) & (b > 0)),
    "bools as numbers": lambda a, b: ((a > 0) / 2, (a > 0) == 1, (a > 0) << 2, (a > 0) - (b > 0)),
    "sum": lambda a, b: (sum([a, b]), sum(v > 0 for v in (a, b)), max(a, b), min(a, 0.5)),
    "rounded to tens": lambda a, b: (round(a, -1), round(b)),
    "kinds": lambda a, b: (isinstance(a, int), isinstance(a > 0, bool), type(a > 0) is bool),
}


def items(x: Tensor) -> Any:
    return x[0].item(), x[1].item()


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return type(found) is tuple and all(map(same, found, wanted))
    if isinstance(wanted, float) and math.isfinite(wanted) and wanted:
        return type(found) is float and math.isclose(found, wanted, rel_tol=1e-15)
    return type(found) is type(wanted) and repr(found) == repr(wanted)


def check(function: Callable[[Any, Any], Any], numbers: Any, backend: str) -> None:
    def program(x: Tensor) -> Any:
        a, b = items(x)
        return function(a, b)

    compiled = stretto.compile(program, backend=backend)
    for pair in (*numbers, numbers[0]):
        x = torch.tensor(pair)
        try:
            wanted = function(*x.tolist())
        except (ArithmeticError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(x)
            continue
        assert same(compiled(x), wanted), (pair, compiled(x), wanted)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("name", OF_FLOATS)
def test_floats(name: str, backend: str) -> None:
    check(OF_FLOATS[name], FLOATS, backend)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("name", OF_INTS)
def test_ints(name: str, backend: str) -> None:
    check(OF_INTS[name], INTS, backend)


def counted(x: Tensor) -> Any:
    steps, total, product, factor = 0, int(x[0]), 1, int(x[1])
    while x.sum() < 100:
        steps, total, product = steps + 1, total + 3, product * factor
        x = x + 1
    return steps, total, product


def test_counters_need_no_checks_in_their_loop() -> None:
    def program(x: Tensor) -> Any:
        steps, left = 0, int(x[0])
        while 0 < left != 2**63 - 5:
            steps, left = steps + 1, left - 2
        return steps, left

    compiled = stretto.compile(program, backend="interpreter")
    for number in (7, 0, -3, 12):
        x = torch.tensor([number])
        assert compiled(x) == program(x)
    text = print_program(compiled.signatures[0].captured.program)
    assert "check" not in text[text.index("while") :]
    assert compiled(torch.tensor([2**63 - 1])) == (2, 2**63 - 5)


def test_what_a_loop_multiplies_is_checked() -> None:
    compiled = stretto.compile(counted, backend="interpreter")
    for values in ([7.0, 2.0], [90.0, 3.0], [200.0, 1.0]):
        assert compiled(torch.tensor(values)) == counted(torch.tensor(values))
    x = torch.tensor([-50.0, 5.0])  # beyond 64 bits
    assert compiled(x) == counted(x)


def test_a_sum_of_a_list_that_grows() -> None:
    def program(x: Tensor) -> Any:
        numbers, floats = [], []
        for value in x:
            if value > 0:
                numbers.append(int(value))
                floats.append(float(value))
        return sum(numbers), sum(floats)

    compiled = stretto.compile(program, backend="interpreter")
    for values in ([1, 2, 3], [-1, -2, -3], [2**62, 2**61, 5]):
        x = torch.tensor(values)
        assert same(compiled(x), program(x))
    x = torch.tensor([2**62, 2**62, 2**62])
    assert same(compiled(x), program(x))


def test_an_int_that_is_too_large_beside_one_that_depends_on_a_tensor() -> None:
    def program(x: Tensor) -> Any:
        return x[0].item() + 2**64

    with pytest.raises(stretto.CaptureError, match="an int of 65 bits is combined with one"):
        stretto.compile(program)(torch.tensor([1]))
    assert stretto.compile(program, fallback=True)(torch.tensor([1])) == 2**64 + 1


def test_what_is_not_captured_of_numbers_says_so() -> None:
    for function in (lambda a: a.hex(), lambda a: round(a, 23), lambda a: pow(int(a), 2, 5)):
        with pytest.raises(stretto.CaptureError, match="depend|is needed here"):
            stretto.compile(lambda x, f=function: f(x[0].item()))(torch.ones(1))
