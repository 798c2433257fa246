"""Checks: exceptions that depend on the run, on every machine, as eager PyTorch raises them."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import stretto

MACHINES = ("interpreter", "emulator", "cpu", "cuda-emulated")
ON, OFF = torch.ones(4), -torch.ones(4)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result, or the exception."""
    try:
        return function(*args)
    except Exception as error:
        return error


def check_as_eager(
    function: Callable[..., Any], *calls: tuple[Any, ...], machines: tuple[str, ...] = MACHINES
) -> None:
    """One compiled function gives and raises in all calls, twice, what eager does, with 1 and 2
    units. Inputs are as after eager where it does not raise, and else unchanged."""
    for machine in machines:
        for units in (1, 2) if machine == "cpu" else (2,):
            options = stretto.Options(threads=units, debug=stretto.Debug(unroll=0))
            fast = stretto.compile(function, backend=machine, options=options)
            for args in (*calls, *calls):
                theirs, mine = copy.deepcopy(args), copy.deepcopy(args)
                expected, found = outcome(function, theirs), outcome(fast, mine)
                if isinstance(expected, Exception):
                    assert isinstance(found, type(expected)), f"{machine}: {found!r}"
                    message = found.message if isinstance(found, stretto.RunError) else str(found)
                    if isinstance(expected, AssertionError):  # pytest adds to its message
                        assert str(expected).startswith(message)
                    else:
                        assert message == str(expected)
                    torch.testing.assert_close(mine, args, equal_nan=True)
                else:
                    torch.testing.assert_close(found, expected, msg=machine)
                    torch.testing.assert_close(mine, theirs, equal_nan=True)


# ---- raise and assert --------------------------------------------------------------------------


def raise_in_branch(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"negative: {x.shape[0]} items")
    return x * 2


def raise_in_else(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x * 2
        items = [y]
    else:
        raise KeyError("else")
    return items[0] + y


def raise_in_both(x: Tensor) -> Tensor:
    if x.sum() > 0:
        raise ValueError("positive")
    else:
        raise KeyError("negative")


def raise_after_a_loop_in_the_arm(x: Tensor) -> Tensor:
    if x.sum() < 0:
        for _ in range(8):
            x = x - 1
            assert x.sum() > -20, "in the loop"
        raise ValueError("after the loop")
    return x


def assert_with_message(x: Tensor) -> Tensor:
    assert x.sum() > 0, "sum"
    return x + 1


def assert_without_message(x: Tensor) -> Tensor:
    assert x.sum() > 0
    return x + 1


def assert_in_the_test_of_a_loop(x: Tensor) -> Tensor:
    def going(y: Tensor) -> Tensor:
        assert y.sum() > 0, "test"
        return y.sum() < 100

    while going(x):
        x = x * 2
    return x


def raise_in_iteration(x: Tensor) -> Tensor:
    for _ in range(10):
        x = x + 1
        if x.sum() > 30:
            raise OverflowError("large")
    return x


def assert_after_a_write(x: Tensor) -> Tensor:
    x.add_(1)
    assert x.sum() > 0, "after the write"
    return x.mul_(2)


def raise_in_nested_branches(x: Tensor) -> Tensor:
    if x.max() > 0:
        if x.sum() > 8:
            raise ValueError("a")
        elif x.sum() > 4:
            x = x - 1
            if x.sum() > 2:
                raise RuntimeError("b")
    else:
        y = x * 3
        raise TypeError(f"c {y.shape[0]}")
    return x


def types_that_do_not_fit(x: Tensor) -> Tensor:
    return x @ torch.ones(5, 5) if x.sum() > 0 else x


def python_error(x: Tensor) -> Tensor:
    table = {"a": 1}
    if x.sum() > 0:
        x = x * table["b"]
    return x


class OfTheUser(Exception):
    def __init__(self, first: str, second: int) -> None:
        super().__init__(first)
        self.second = second


def raise_own_class(x: Tensor) -> Tensor:
    if x.sum() > 0:
        raise OfTheUser("mine", 3) from ValueError("cause")
    return x


BRANCHES = [
    raise_in_branch,
    raise_in_else,
    raise_in_both,
    raise_after_a_loop_in_the_arm,
    assert_with_message,
    assert_without_message,
    assert_in_the_test_of_a_loop,
    raise_in_iteration,
    assert_after_a_write,
    raise_in_nested_branches,
    types_that_do_not_fit,
    python_error,
    raise_own_class,
]


@pytest.mark.whole
@pytest.mark.parametrize("function", BRANCHES)
def test_raise_and_assert(function: Callable[..., Any]) -> None:
    check_as_eager(function, (ON,), (OFF,), (ON * 3,), (ON * 1.5,))


def test_raise_in_recursion() -> None:
    def descend(x: Tensor, n: Tensor) -> Tensor:
        if n < 0:
            raise ValueError("below zero")
        if n == 0:
            return x
        assert x.max() < 100, "large"
        return descend(x * 2, n - 1)

    def start(x: Tensor, n: Tensor) -> Tensor:
        return descend(x, n) + 1

    check_as_eager(start, *((ON, torch.tensor(n)) for n in (3, -1, 9)))


def test_the_exception_of_the_user_is_raised_with_its_line() -> None:
    fast = stretto.compile(raise_own_class, backend="interpreter")
    with pytest.raises(OfTheUser) as caught:
        fast(ON)
    error = caught.value
    assert type(error) is OfTheUser and error.args == ("mine",) and error.second == 3
    assert isinstance(error.__cause__, ValueError)
    line = raise_own_class.__code__.co_firstlineno + 2
    (note,) = error.__notes__
    assert note.startswith(f"raised at {__file__}:{line}, in raise_own_class\n  raise OfTheUser")
    with pytest.raises(OfTheUser) as again:
        fast(ON)
    assert again.value is not error and len(again.value.__notes__) == 1


def test_errors_of_operators_are_of_both_classes() -> None:
    fast = stretto.compile(types_that_do_not_fit, backend="interpreter")
    with pytest.raises(stretto.RunError) as caught:
        fast(ON)
    error = caught.value
    assert isinstance(error, RuntimeError) and error.location is not None
    assert error.location.source().strip().startswith("return x @ torch.ones(5, 5)")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)


# ---- what operators check ----------------------------------------------------------------------

TABLE = torch.arange(12.0).view(3, 4)
GOOD, BAD = torch.tensor([0, 2]), torch.tensor([1, 5])

OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: functional.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i.view(1, 2)),
    "index": lambda x, i: x[i],
    "take": lambda x, i: x.take(i * 4),
    "scatter": lambda x, i: x.scatter(0, i.view(1, 2), 1.0),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "one_hot": lambda x, i: functional.one_hot(i, 3) * 1.0,
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:2], i + 1),
    "binary_cross_entropy": lambda x, i: functional.binary_cross_entropy(i / 2, i / 2),
    "cholesky": lambda x, i: torch.linalg.cholesky(torch.eye(2) * (3 - i)),
    "inv": lambda x, i: torch.linalg.inv(torch.diag(i - 5.0)),
    "solve": lambda x, i: torch.linalg.solve(torch.diag(i - 5.0), torch.ones(2)),
    "assert_async": lambda x, i: (torch._assert_async((i < 3).all(), "below 3"), x)[1],
    "check": lambda x, i: (torch._check(int(i[1]) < 3, lambda: "below 3"), x)[1],
    "check_index": lambda x, i: (torch._check_index(int(i[1]) < 3, lambda: "below 3"), x)[1],
    "check_tensor_all": lambda x, i: (torch._check_tensor_all(i < 3), x)[1],
    "assert": lambda x, i: (torch._assert(i.sum() < 5, "sum"), x)[1],
    "list": lambda x, i: [x, x + 1, x + 2][int(i[1])],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_operators_check(name: str) -> None:
    """Alone, in an arm that is taken or not, and in a loop at an iteration."""
    operator = OPERATORS[name]

    def everywhere(x: Tensor, i: Tensor, arm: Tensor, last: Tensor) -> Tensor:
        y = x.sum()
        if arm > 0:
            y = y + operator(x, i).sum()
        for k in range(6):
            if k < last:
                y = y * 0.5 + operator(x, i).sum()
        return y

    def alone(x: Tensor, i: Tensor) -> Tensor:
        return operator(x, i) * 2

    check_as_eager(alone, (TABLE, GOOD), (TABLE, BAD), machines=("interpreter", "emulator"))
    zero, one = torch.tensor(0), torch.tensor(1)
    calls = [
        (TABLE, i, arm, last)
        for i in (GOOD, BAD)
        for arm, last in ((zero, zero), (one, zero), (zero, one))
    ]
    check_as_eager(everywhere, *calls, machines=("emulator",))


def test_int_of_what_is_no_integer() -> None:
    def f(x: Tensor) -> Tensor:
        return x * int(x.sum())

    calls = [(ON * factor,) for factor in (2.5, float("nan"), float("inf"))]
    check_as_eager(f, *calls, machines=("interpreter", "emulator"))


def test_one_program_with_many_checks_on_the_cpu() -> None:
    def descend(x: Tensor, i: Tensor, n: Tensor) -> Tensor:
        if n == 0:
            return x.sum()
        rows = functional.embedding(i, x).sum() + x.gather(0, i.view(1, 2)).sum()
        factor = torch.linalg.cholesky(torch.eye(2) * (n + 1))
        return descend(x + rows * 0.1, i + 1, n - 1) + factor.sum()

    def start(x: Tensor, i: Tensor, n: Tensor) -> Tensor:
        return descend(x, i, n) * 2

    calls = [(TABLE, i, torch.tensor(n)) for i in (torch.tensor([0, 0]), BAD) for n in (0, 1, 2, 5)]
    check_as_eager(start, *calls, machines=("emulator", "cpu"))


def test_handlers_of_eager_code_work() -> None:
    fast = stretto.compile(lambda x: torch.linalg.inv(x), backend="interpreter")
    for kind in (torch.linalg.LinAlgError, RuntimeError, stretto.RunError):
        with pytest.raises(kind, match="singular"):
            fast(torch.zeros(2, 2))
    torch.testing.assert_close(fast(torch.eye(2)), torch.eye(2))


def test_a_try_that_catches_what_depends_on_the_run_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(x)
        except RuntimeError:
            return x

    with pytest.raises(stretto.CaptureError, match="is raised here depends on a tensor"):
        stretto.compile(f)(torch.eye(2))


@pytest.mark.parametrize("place", [99, -1])
def test_places_of_unpooling(place: int) -> None:
    x, good = torch.ones(1, 1, 2, 2), torch.tensor([[[[0, 3], [5, 9]]]])
    bad = good.clone()
    bad[0, 0, 1, 1] = place
    check_as_eager(lambda x, i: functional.max_unpool2d(x, i, 2), (x, good), (x, bad))
    with pytest.raises(RuntimeError, match=f"Found an invalid max index: {place} "):
        stretto.compile(lambda x, i: functional.max_unpool2d(x, i, 2))(x, bad)
    check_as_eager(
        lambda x, i: functional.max_unpool1d(x, i, 2),
        *((torch.ones(1, 1, 2), torch.tensor([[[0, p]]])) for p in (3, place)),
    )


def write_at(x: Tensor, index: Tensor) -> Tensor:
    count = 0
    x = x.clone()
    while x.sum() > 0:
        x[index + count] = 0.0
        count += 1
    return x


def test_a_write_out_of_range_raises_what_eager_raises() -> None:
    check_as_eager(write_at, (torch.ones(3), torch.tensor(0)), (torch.ones(3), torch.tensor(1)))
    for index in (3, -4, -9):
        check_as_eager(write_at, (torch.ones(3), torch.tensor(index)))


def raises_if_entered(x: Tensor) -> Tensor:
    while x.sum() > 0:
        raise ValueError("entered")
    return x * 2


def raises_one_of_two(x: Tensor) -> Tensor:
    while x.sum() > 0:
        if x[0] > 5:
            raise KeyError("large")
        else:
            raise ValueError("small")
    else:
        x = x + 1
    return x


def never_fits(x: Tensor, count: Tensor) -> Tensor:
    for _ in range(int(count)):
        x = x @ torch.ones(7, 7)
    return x


def outside_of_a_list(x: Tensor, items: list[float]) -> Tensor:
    while x.sum() > 0:
        x = x - items[9]
    return x


def ends_in_one_of_two(x: Tensor) -> Tensor:
    if x[0] > 5:
        raise KeyError("large")
    else:
        raise ValueError("small")


def test_loops_whose_body_always_raises_raise_when_they_are_entered() -> None:
    check_as_eager(raises_if_entered, (ON,), (OFF,))
    check_as_eager(raises_one_of_two, (ON,), (OFF,), (ON * 6,))
    check_as_eager(never_fits, (ON, torch.tensor(0)), (ON, torch.tensor(2)))
    check_as_eager(outside_of_a_list, (OFF, [1.0]), (ON, [1.0]))
    check_as_eager(ends_in_one_of_two, (ON,), (ON * 6,))


def test_an_index_error_that_would_be_caught_is_refused() -> None:
    def item(x: Tensor, index: Tensor) -> Tensor:
        try:
            return x[index]
        except IndexError:
            return x.sum()

    def looked_up(table: Tensor, index: Tensor) -> Tensor:
        try:
            return functional.embedding(index, table)
        except Exception:
            return table

    def quotient(x: Tensor, y: Tensor) -> Tensor:
        try:
            return x // y
        except RuntimeError:
            return x

    def solved(x: Tensor, y: Tensor) -> Tensor:
        try:
            return torch.linalg.solve(x, y)
        except RuntimeError:
            return y

    ints = torch.ones(3, dtype=torch.int64)
    cases: list[tuple[Callable[..., Tensor], Tensor, Tensor]] = [
        (item, ON, torch.tensor(1)),
        (looked_up, torch.ones(3, 2), torch.tensor([1])),
        (quotient, ints, ints),
        (solved, torch.eye(3), torch.ones(3, 1)),
    ]
    for function, *args in cases:
        with pytest.raises(stretto.CaptureError, match="a try around it catches that"):
            stretto.compile(function)(*args)


def test_a_handler_that_raises_in_any_case_raises_in_python() -> None:
    def explained(x: Tensor, index: Tensor) -> Tensor:
        try:
            y = x.index_select(0, index)
        except (IndexError, RuntimeError) as error:
            if int(index.max()) >= len(x):
                raise ValueError(f"{int(index.max())} is too large") from error
            raise error
        return y * 2

    fast = stretto.compile(explained, backend="interpreter")
    for index in ([1, 2], [1, 3], [2, 0], [-4, 1]):
        args = torch.arange(3.0), torch.tensor(index)
        try:
            wanted = explained(*args)
        except (IndexError, ValueError) as error:
            with pytest.raises(type(error), match=re.escape(str(error))) as found:
                fast(*args)
            assert type(found.value.__cause__) is type(error.__cause__)
        else:
            assert torch.equal(fast(*args), wanted)


def test_an_index_of_an_unrolled_loop_may_be_caught() -> None:
    def padded(x: Tensor) -> Tensor:
        total = x
        for k in range(7):
            try:
                total = total + x[k]
            except IndexError:
                total = total * 2
        return total

    check_as_eager(padded, (ON,))


def asserted_in_a_branch(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a > 0:
        assert b > 0
    return x + 1


def raised_two_branches_deep(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a > 0:  # noqa: SIM102 (the point is that there are two)
        if b < 0:
            raise KeyError("b")
    return x


def asserted_by_a_recursion_whose_result_nobody_reads(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    def below(n: Tensor) -> Tensor:
        assert b > -n
        return below(n - 1) if n > 0 else n

    if a > 0:
        below(a)
    return x


@pytest.mark.parametrize(
    "function",
    [
        asserted_in_a_branch,
        raised_two_branches_deep,
        asserted_by_a_recursion_whose_result_nobody_reads,
    ],
)
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_a_branch_that_only_checks(function: Callable[..., Tensor], backend: str) -> None:
    compiled = stretto.compile(function, backend=backend)
    for a, b in ((1.0, -3.0), (1.0, 3.0), (-1.0, -3.0)):
        arguments = (torch.tensor(a), torch.tensor(b), torch.ones(2))
        try:
            wanted = function(*arguments)
        except (AssertionError, KeyError) as error:
            with pytest.raises(type(error)):
                compiled(*arguments)
        else:
            assert torch.equal(compiled(*arguments), wanted)
