"""Objects of all kinds that arms, loops, tests and recursive calls change: as in eager PyTorch, or
refused."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.state.objects import CASES, Case

X = torch.tensor([1.0, 2.0, 3.0])
CALLS = [(X, torch.tensor(n)) for n in (2, 0, -1, 3)]
Place = Callable[[Any, Case, Tensor, Tensor], Tensor]


def in_arm(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    if n > 0:
        case.change(o)
        x = x * 2
    return x


def in_other_arm(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    if n > 0:
        x = x * 2
    else:
        case.change(o)
    return x


def in_loop(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    for _ in range(int(n)):
        x = x + 1
        case.change(o)
    return x


def in_while(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    while n > 0:
        case.change(o)
        n = n - 1
        x = x * 2
    return x


def in_test(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    def goes_on(left: Tensor) -> Any:
        case.change(o)
        return left > 0

    while goes_on(n):
        n = n - 1
        x = x * 2
    return x


def in_condition(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    if n > 0 and (case.change(o), n > 1)[1]:
        x = x * 2
    return x


def in_recursion(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return x
    case.change(o)
    return in_recursion(o, case, x * 2, n - 1)


def in_straight_line(o: Any, case: Case, x: Tensor, n: Tensor) -> Tensor:
    case.change(o)
    return x * n


PLACES: list[Place] = [
    in_arm, in_other_arm, in_loop, in_while, in_test, in_condition, in_recursion, in_straight_line,
]  # fmt: skip


def made_inside(place: Place, case: Case) -> Callable[..., Any]:
    def function(x: Tensor, n: Tensor) -> Any:
        o = case.make()
        return place(o, case, x, n), case.show(o)

    return function


def made_outside(place: Place, case: Case) -> Callable[..., Any]:
    held = case.make()

    def function(x: Tensor, n: Tensor) -> Any:
        return place(held, case, x, n)

    def both(x: Tensor, n: Tensor) -> Any:
        return function(x, n)

    both.held = held
    both.run = function
    return both


def results(run: Callable[..., Any], after: Callable[[], Any]) -> list[Any]:
    """What each call returns, and what the object shows afterwards; how a call is refused."""
    found = list[Any]()
    for call in CALLS:
        try:
            found.append((run(*call), after()))
        except stretto.CaptureError as error:
            found.append(error)
            break
        except Exception as error:
            found.append(error)
    return found


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    """Equal results up to the first call that is refused."""
    for mine, theirs in zip(found, wanted, strict=False):
        if isinstance(mine, stretto.CaptureError):
            assert mine.remedy
            return
        if isinstance(theirs, Exception):
            assert type(mine) is type(theirs), mine
            continue
        assert not isinstance(mine, Exception), mine
        assert shown(mine) == shown(theirs)


def shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return type(value), [shown(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_made_inside(case: Case, place: Place) -> None:
    function = made_inside(place, case)
    with torch.no_grad():
        wanted = results(function, lambda: None)
        found = results(stretto.compile(function, backend="interpreter"), lambda: None)
    assert_alike(found, wanted)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_made_outside(case: Case, place: Place) -> None:
    eager, mine = made_outside(place, case), made_outside(place, case)
    with torch.no_grad():
        wanted = results(eager.run, lambda: state(case, eager.held))
        compiled = stretto.compile(mine.run, backend="interpreter")
        found = results(compiled, lambda: state(case, mine.held))
    assert_alike(found, wanted)


def state(case: Case, held: Any) -> Any:
    """What the object shows; nothing of an iterator, which showing would use up."""
    return None if case.show.__name__ == "_rest" else case.show(held)
