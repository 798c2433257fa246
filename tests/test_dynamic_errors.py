"""Errors of eager PyTorch that depend on the sizes of a call, also where nobody uses the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

PARTS: dict[str, Callable[[Tensor, int], Any]] = {
    "row": lambda x, n: x[n],
    "row before": lambda x, n: x[n - 2],
    "row from the end": lambda x, n: x[-n],
    "row in the middle": lambda x, n: x[n // 2],
    "row at a remainder": lambda x, n: x[n % 2],
    "row at a difference": lambda x, n: x[len(x) - n],
    "column": lambda x, n: x[:, n],
    "column after all": lambda x, n: x[..., n],
    "row of a new dim": lambda x, n: x[None, n],
    "element of a row": lambda x, n: x[n, 0],
    "element of the first row": lambda x, n: x[0, n],
    "element in two steps": lambda x, n: x[n][0],
    "element of all": lambda x, n: x.ravel()[n * 3],
    "select": lambda x, n: x.select(0, n),
    "select first": lambda x, n: x.select(0, 0),
    "select last": lambda x, n: x.select(1, -1),
    "select column": lambda x, n: torch.select(x, 1, n - 3),
    "select_scatter": lambda x, n: x.select_scatter(x[0], 0, n),
    "of a result": lambda x, n: x.sort(0).values[n],
    "in a list": lambda x, n: torch.stack([x[0], x[n - 1]]),
    "slice": lambda x, n: x[n - 4 : n],
    "narrow": lambda x, n: x.narrow(0, n - 3, 2),
    "narrow to a length": lambda x, n: x.narrow(0, 1, n),
    "unfold": lambda x, n: x.unfold(0, n - 3, 2),
    "view": lambda x, n: x.view(n, -1),
    "reshape": lambda x, n: x.reshape(n, -1),
    "flatten": lambda x, n: x.reshape(x.shape[0], -1),
    "unflatten": lambda x, n: x.unflatten(0, (n, -1)),
    "squeeze": lambda x, n: x.squeeze(n - 3),
    "reflection": lambda x, n: F.pad(x, (n, 0), mode="reflect"),
    "classes": lambda x, n: F.one_hot(torch.tensor([0, 2]), n - 3),
    "bins": lambda x, n: torch.bincount(torch.tensor([1, 2]), minlength=n - 3),
}

SIZES = (
    *(((6, 6), 5), ((4, 4), 4), ((5, 4), 3), ((1, 1), 1), ((0, 4), 2), ((5, 0), 4), ((2, 3), 0)),
    *(((3, 4), 7), ((3, 3), 2)),
)


def assert_as_eager(function: Callable[..., Any], backend: str, calls: Any) -> Any:
    """Call the compiled function with arguments of several sizes, and compare results and errors
    with eager PyTorch's."""
    fast = stretto.compile(function, backend=backend, dynamic=True)
    for make in calls:
        try:
            wanted = function(*make())
        except Exception as error:  # any error of eager PyTorch
            with pytest.raises(type(error)):
                fast(*make())
        else:
            assert_same(fast(*make()), wanted)
    return fast


def of_sizes() -> list[Callable[[], tuple[Tensor, Tensor]]]:
    return [
        lambda rows=shape, n=n: (torch.linspace(1, 2, rows[0] * rows[1]).view(rows), torch.ones(n))
        for shape, n in SIZES
    ]


def straight(part: Callable[[Tensor, int], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        part(x, y.shape[0])
        return x + 1

    return function


def used(part: Callable[[Tensor, int], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return part(x, y.shape[0]) * 2

    return function


def in_a_loop(part: Callable[[Tensor, int], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        for _ in y:
            part(x, y.shape[0])
        return x + 1

    return function


def in_an_arm(part: Callable[[Tensor, int], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        if y.sum() > 2:
            part(x, y.shape[0])
        return x + 1

    return function


@pytest.mark.parametrize("context", [straight, used, in_a_loop, in_an_arm])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_errors_that_sizes_decide(part: Any, context: Any) -> None:
    assert_as_eager(context(part), "interpreter", of_sizes())


@pytest.mark.parametrize("name", ["row at a remainder", "element of a row", "unfold", "reflection"])
def test_errors_of_native_code(name: str) -> None:
    assert_as_eager(straight(PARTS[name]), "cpu", of_sizes())


def whole_row(x: Tensor, n: int) -> None:
    x[n // 2] = 1.0


def last_row(x: Tensor, n: int) -> None:
    x[n - 1] = x[0] * 2


def element(x: Tensor, n: int) -> None:
    x[0, n] = 2.0


def increased_row(x: Tensor, n: int) -> None:
    x[n] += 1


def filled_row(x: Tensor, n: int) -> None:
    x.select(0, n - 2).zero_()


def part_of_rows(x: Tensor, n: int) -> None:
    x.narrow(0, n - 3, 2).zero_()


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(
    "write", [whole_row, last_row, element, increased_row, filled_row, part_of_rows]
)
def test_writes_at_a_position_that_sizes_decide(write: Any, backend: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x = x * 1
        write(x, y.shape[0])
        return x + 1

    assert_as_eager(function, backend, of_sizes())


def test_a_check_that_needs_what_it_checks_stays() -> None:
    """Nobody reads the tensor that grows in the loop, except for the next check."""

    def function(x: Tensor, y: Tensor) -> int:
        rows = y.shape[0]
        for _ in range(rows):
            x = torch.cat([x, x[rows - 1][None]])
        return rows

    assert_as_eager(function, "interpreter", of_sizes())
