"""Numbers that are an int on one way through a program, and a float, bool or tensor on another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.ir.ops import IfOp
from tests.frontends.python.checks import assert_same, check, count, refused, structure

Program = Callable[[Tensor], Any]

INPUTS = tuple(
    torch.tensor(values)
    for values in ([0.5, 2.0, 3.0], [-0.5, -2.0, 1.0], [2.5, -3.0, -1.0], [0.0, 0.0, 0.0])
)


def largest(x: Tensor) -> Any:
    n = float(x[0])
    return max(n, 1), max(1, n), min(n, 1), min(1, n), max(1.0, n), max(int(n), 1)


def largest_of_nan(x: Tensor) -> Any:
    n = float(x[0] / 0 * 0)
    return max(n, 1.0), max(1.0, n), min(n, 1.0), min(1.0, n), max(-0.0, float(x[0] * 0))


def largest_tensor(x: Tensor) -> Any:
    return max(x[0], 1)


def assigned_in_an_arm(x: Tensor) -> Any:
    n = 1
    if x.sum() > 0:
        n = float(x[0])
    return n, isinstance(n, int), [n, {"n": n}]


def several_kinds(x: Tensor) -> Any:
    n = None
    if x.sum() > 0:
        n = 1
    if x[0] > 0:
        n = float(x[1])
    return n


def arithmetic(x: Tensor) -> Any:
    n = 2
    if x.sum() > 0:
        n = 1.5
    return (
        (n + 1, n + 1.5, n * 2, n // 2, n / 2, n % 2, n**2, 2**n, -n, abs(n), 1 / n, 1 - n),
        (n < 2, n > float(x[0]), n == 2, 0 <= n < 2, n in (0, 2)),
        (round(n), int(n), float(n), math.sqrt(n), math.floor(n), x.long() * n),
    )


def two_of_them(x: Tensor) -> Any:
    n, m = 3, 2
    if x.sum() > 0:
        n = 0.5
    if x[0] > 0:
        m = 0.25
    return n * m, n < m, n + m, max(n, m), n == m


def large_int(x: Tensor) -> Any:
    n = 16777217
    if x[0] > 0:
        n = 0.5
    return n == 16777217, n > 16777216, n


def with_tensors(x: Tensor) -> Any:
    n = 1
    if x.sum() > 0:
        n = n * 0.5
    return (
        (x * n, n * x, x + n, x - n, n - x, x / n, n / x, x**n, x // n, x % n, x < n),
        (x.mul(n), torch.add(x, n), torch.full((2,), n), torch.tensor(n), x.double() * n),
    )


def in_place(x: Tensor) -> Any:
    n = 1
    if x.sum() > 0:
        n = n * 0.5
    y = x * 2
    y *= n
    return y.add_(n)


def bool_or_int(x: Tensor) -> Any:
    flag = True
    if x.sum() > 0:
        flag = 3
    return flag, x * flag, flag + 1, not flag, flag and 7


def bool_or_float(x: Tensor) -> Any:
    flag = False
    if x.sum() > 0:
        flag = float(x[0])
    if flag:
        return flag
    return flag, x + flag


def tensor_or_int(x: Tensor) -> Any:
    n = 0
    if x.sum() > 0:
        n = x.sum()
    return n, n * x, x + n, n + 1, n + x.sum(), x.long() + n, torch.clamp(x, n), torch.as_tensor(n)


def of_a_list(x: Tensor) -> Any:
    return [1, 2.5, True][int(x.sum().abs()) % 3]


def appended(x: Tensor) -> Any:
    found = []
    for i in range(5):
        if x.sum() > i:
            found.append(1)
        else:
            found.append(0.5)
    return found


def returned_early(x: Tensor) -> Any:
    for i in range(10):
        if x[i % 3] * i > 5:
            return float(x[0])
        if x[i % 3] * i > 4:
            return i
    return 0


def sum_of_floats(x: Tensor) -> Any:
    total = 0
    for _ in range(int(x.sum().abs())):
        total += float(x[1])
    return total, x * total


def sum_of_static_loop(x: Tensor) -> Any:
    total = 0
    for i in range(10):
        total += float(x[i % 3])
    return total


def scaled_until_small(x: Tensor) -> Any:
    scale = 1
    while (x * scale).abs().max() > 1:
        scale = scale * 0.5
    return x * scale, scale


def best_so_far(x: Tensor) -> Any:
    best, at = 0, -1
    for i in range(x.shape[0]):
        if x[i].item() > best:
            best = x[i].item()
            at = i
    return best, at


def int_and_float_rounds(x: Tensor) -> Any:
    n = 0
    while x.sum() > 0:
        x = x - 1
        n = n + 1 if x[0] > 0 else n + 0.5
    return n, x * n


def nested_loops(x: Tensor) -> Any:
    n = 0
    for _ in range(int(x.sum().abs())):
        for _ in range(int(x[0].abs()) + 1):
            n = n + 0.5
        if n > 3:
            n = 0
    return n, x * n


def until_break(x: Tensor) -> Any:
    n = 0
    for _ in range(12):
        n = n + float(x[0])
        if n > 3:
            break
    return n


def swapped(x: Tensor) -> Any:
    a, b = 1, 0.5
    for _ in range(int(x.sum().abs())):
        a, b = b, a
    return a, b


def counted_from_true(x: Tensor) -> Any:
    n = True
    for _ in range(int(x.sum().abs())):
        n = n + 1
    return n


def bound_in_a_loop(x: Tensor) -> Any:
    for i in range(int(x.sum().abs()) + 1):
        n = 1 if i > 0 else 0.5
    return n  # pyright: ignore[reportPossiblyUnboundVariable]


def tensor_or_int_of_a_loop(x: Tensor) -> Any:
    n = 0
    for _ in range(10):
        if x.sum() > 0:
            n = x.sum() * 0
        else:
            x = x + x[n]
    return x


def of_a_dict(x: Tensor) -> Any:
    d: dict[str, Any] = {"n": 0}
    for _ in range(int(x.sum().abs())):
        d["n"] += 0.5
    if x[0] > 0:
        d["n"] = 1
    return d


def of_recursion(x: Tensor) -> Any:
    def visit(n: Any) -> Any:
        if n <= 0:
            return 0
        return float(x[0]) + visit(n - 1)

    return visit(x.sum().long().item())


def tensor_of_recursion(x: Tensor) -> Any:
    def visit(n: Any) -> Any:
        if n <= 0:
            return 0
        return x[0] + visit(n - 1)

    return visit(x.sum().long().item())


def tensor_or_int_of_a_call(x: Tensor) -> Any:
    def visit(a: Tensor, n: Any) -> Any:
        if n <= 0:
            return a
        if a.argmax() == 0:
            n = min(n, 3)
        return visit(a * 0.5, n - 1) + visit(a + 1, n - 2)

    return visit(x, x.sum().long() % 5)


PROGRAMS: tuple[Any, ...] = (
    largest, largest_of_nan, largest_tensor, assigned_in_an_arm, several_kinds, arithmetic,
    two_of_them, large_int, with_tensors, in_place, bool_or_int, bool_or_float, tensor_or_int,
    of_a_list, appended, returned_early, sum_of_floats, sum_of_static_loop, scaled_until_small,
    best_so_far, int_and_float_rounds, nested_loops, until_break, swapped, counted_from_true,
    bound_in_a_loop, tensor_or_int_of_a_loop, of_a_dict, of_recursion, tensor_of_recursion,
    pytest.param(
        tensor_or_int_of_a_call,
        marks=pytest.mark.xfail(reason="refused in a recursion", strict=True),
        id="tensor_or_int_of_a_call",
    ),
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_types_are_those_of_eager(program: Program) -> None:
    check(program, *((x,) for x in INPUTS))


@pytest.mark.parametrize("program", [with_tensors, arithmetic, scaled_until_small, of_recursion])
def test_the_cpu_gives_the_same(program: Program) -> None:
    compiled = stretto.compile(program, backend="cpu")
    for x in INPUTS:
        assert_same(compiled(x), program(x))


def test_a_scale_needs_no_branch_at_its_uses() -> None:
    def f(x: Tensor) -> Tensor:
        scale = 1
        if x.sum() > 0:
            scale = scale * 0.5
        return (x * scale + scale) / scale - x**scale

    captured = check(f, *((x,) for x in INPUTS))
    assert count(captured, IfOp) <= 1


def test_a_sum_needs_no_round_in_front_of_its_loop() -> None:
    captured = check(sum_of_static_loop, *((x,) for x in INPUTS))
    assert structure(captured) == {"for": 1}


def either(x: Tensor) -> Any:
    return 1 if x.sum() > 0 else float(x[0])


def item_at(x: Tensor, n: Any) -> Any:
    return x[n]


def as_often_as(x: Tensor, n: Any) -> Any:
    for _ in range(n):
        x = x + 1
    return x


@pytest.mark.parametrize("use", [item_at, as_often_as])
def test_what_a_float_is_refused_for_raises_only_there(
    use: Callable[[Tensor, Any], Any],
) -> None:
    def f(x: Tensor) -> Any:
        return use(x, either(x))

    compiled = stretto.compile(f, backend="interpreter")
    x = torch.ones(3)
    assert_same(compiled(x), f(x))
    with pytest.raises((TypeError, IndexError)) as wanted:
        f(-x)
    with pytest.raises(type(wanted.value)):
        compiled(-x)


def test_a_list_that_grows_in_a_loop_of_unknown_length_has_items_of_one_type() -> None:
    def f(x: Tensor) -> Any:
        found: list[float] = [1]
        while x.sum() > len(found):
            found.append(float(x[0]))
        return found

    assert "a list grows or shrinks" in str(refused(f, torch.ones(3)))


@pytest.mark.parametrize("name", ["add", "sub"])
@pytest.mark.parametrize(
    "dtypes", [("float32", "float16"), ("float64", "float32"), ("float32", "int64")]
)
def test_a_factor_is_computed_in_the_dtype_of_the_result(
    name: str, dtypes: tuple[str, str]
) -> None:
    first, second = (getattr(torch, dtype) for dtype in dtypes)

    def function(x: Tensor) -> Any:
        factor, operator = x[0].item(), getattr(torch, name)
        whole, one = x.to(second), torch.tensor(-3, dtype=second)
        other = x.to(first)
        return [
            operator(other, whole, alpha=factor),
            operator(other, one, alpha=factor),
            torch.addcmul(other, whole.to(first), other, value=factor),
        ]

    fast = stretto.compile(function, backend="interpreter")
    for x in (torch.tensor([0.7371, 2.0, 3.0]), torch.tensor([-1.3333, 100.1, 0.1])):
        torch.testing.assert_close(fast(x), function(x), rtol=1e-6, atol=0)
