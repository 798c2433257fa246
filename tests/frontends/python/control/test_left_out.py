"""Arms of branches that cannot be captured, which programs leave out, and loops of one round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import CaptureError, NotCaptured
from tests.frontends.python.checks import check, structure


def in_python(x: Tensor) -> Tensor:
    """What cannot be captured: values of a tensor as those of an array."""
    return torch.tensor(x.numpy() * 2)


def behind_a_loop(x: Tensor) -> Tensor:
    y = x
    while y.sum() < 10:
        y = y * 2
    return in_python(y) if y.max() > 20 else y + 1


def in_a_loop(x: Tensor) -> Tensor:
    for row in x:
        if x.sum() > 0 and row.sum() > 5:  # noqa: SIM102
            if row.max() > 8:
                x = in_python(x)
        x = x + row.sum()
    return x


def in_the_other_arm(x: Tensor) -> Tensor:
    total = x.cumsum(0)[-1].sum()
    for _ in range(int(total)):
        total = total - 2
    if total > -3:
        x = x + 1
    else:
        total = in_python(total)
    return x + total


def raising(x: Tensor) -> Tensor:
    y = x
    while y.sum() < 10:
        y = y + 1
    if y.max() > 6:
        raise ValueError("too large")
    if y.max() > 5:
        return in_python(y)
    return y


CASES: list[tuple[Callable[[Tensor], Tensor], Tensor, Tensor]] = [
    (behind_a_loop, torch.full((2, 2), 0.7), torch.tensor([[0.0, 30.0], [0.0, 0.1]])),
    (in_a_loop, torch.ones(3, 2), torch.tensor([[1.0, 9.0], [1.0, 1.0], [1.0, 1.0]])),
    (in_the_other_arm, torch.full((1, 1), 1.0), torch.full((1, 1), 4.0)),
    (raising, torch.ones(2, 2), torch.tensor([[1.0, 5.5], [1.0, 3.0]])),
]


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(("function", "fits", "other"), CASES)
def test_calls_that_do_not_take_the_arm(
    function: Callable[[Tensor], Tensor], fits: Tensor, other: Tensor, backend: str
) -> None:
    fast = stretto.compile(function, backend=backend, dynamic=False)
    torch.testing.assert_close(fast(fits), function(fits))
    before = other.clone()
    with pytest.raises(NotCaptured, match="a NumPy array is needed here") as caught:
        fast(other)
    assert isinstance(caught.value, CaptureError)
    assert "use torch operators" in str(caught.value), "the remedy"
    assert "in_python" in str(caught.value.location)
    assert torch.equal(other, before)
    torch.testing.assert_close(fast(fits), function(fits))
    assert "an arm of a branch is left out" in fast.explain()


@pytest.mark.parametrize(("function", "fits", "other"), CASES)
def test_with_fallback_every_call_is_right(
    function: Callable[[Tensor], Tensor], fits: Tensor, other: Tensor
) -> None:
    fast = stretto.compile(function, backend="interpreter", dynamic=False, fallback=True)
    for x in (fits, other, fits):
        torch.testing.assert_close(fast(x), function(x))


def test_the_arm_that_the_first_call_takes_is_refused() -> None:
    def taken(x: Tensor) -> Tensor:
        return in_python(x) if x.sum() > 0 else x

    with pytest.raises(CaptureError, match="a NumPy array is needed here") as caught:
        stretto.compile(taken, backend="interpreter")(torch.ones(3))
    assert not isinstance(caught.value, NotCaptured)


def test_both_arms() -> None:
    def never(x: Tensor) -> Tensor:
        y = x
        while y.sum() < 10:
            y = y * 2
        if y.max() > 3:
            y = in_python(y)
        else:
            y = torch.tensor(y.numpy())
        return y

    with pytest.raises(CaptureError, match="a NumPy array is needed here"):
        stretto.compile(never, backend="interpreter")(torch.ones(3))


def test_the_users_own_exception_comes_first() -> None:
    fast = stretto.compile(raising, backend="interpreter")
    fast(torch.ones(2, 2))
    with pytest.raises(ValueError, match="too large"):
        fast(torch.full((2, 2), 7.0))


def test_what_was_changed_before_the_arm_stays() -> None:
    def changed(x: Tensor, counts: list[int]) -> Tensor:
        x += 1
        counts[0] += 1
        while x.sum() < 20:
            x = x * 2
        return in_python(x) if x.max() > 20 else x

    fast = stretto.compile(changed, backend="cpu", dynamic=False)
    x, counts = torch.ones(2, 2), [0]
    fast(x, counts)
    assert torch.equal(x, torch.full((2, 2), 2.0)) and counts == [1]
    large = torch.full((2, 2), 30.0)
    with pytest.raises(NotCaptured):
        fast(large, counts)
    assert torch.equal(large, torch.full((2, 2), 30.0)) and counts == [1]


def test_a_saved_function(tmp_path: Path) -> None:
    function, fits, other = CASES[0]
    fast = stretto.compile(function, backend="cpu", dynamic=False)
    fast(fits)
    fast.save(tmp_path / "saved")
    loaded = stretto.load(tmp_path / "saved")
    torch.testing.assert_close(loaded(fits), function(fits))
    with pytest.raises(NotCaptured, match="a NumPy array is needed here"):
        loaded(other)


# ---- loops that end behind one round ---------------------------------------------------------


def of_one_round(x: Tensor, grows: list[Any]) -> Any:
    """What it appends has no place in a list of the Program."""
    place, end = torch.zeros(2, dtype=torch.long), torch.full((2,), 40)
    while (place < end).any():
        for row in range(2):
            grows.append({"at": place[row] + 0, "row": x[row]})
            place[row] += 40
    return grows, place


def of_no_round(x: Tensor) -> Tensor:
    place = torch.tensor(3)
    while place < 3:
        x = in_python(x)
        place += 1
    return x + place


def left_by_break(x: Tensor) -> Tensor:
    place = torch.tensor(0)
    while place < 9:
        x = x + 1
        place += 1
        if place == 1:
            break
    return x + place


def of_several_rounds(x: Tensor) -> Tensor:
    place = torch.tensor(0)
    while place < 9:
        x = x * 2
        place += 2
    return x + place


def test_loops_whose_end_is_known() -> None:
    x = torch.arange(4.0).reshape(2, 2)
    for function in (of_no_round, left_by_break):
        assert structure(check(function, (x,))) == {}
    check(lambda x: of_one_round(x, []), (x,), (x - 3,))
    assert structure(check(of_several_rounds, (x,))) == {"while": 1}
