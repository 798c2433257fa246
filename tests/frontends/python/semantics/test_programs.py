"""Programs about Python's data model: compiled, they do what they do in Python."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import stretto
from stretto.errors import CaptureError
from tests.frontends.python.semantics import programs

FUNCTIONS = [
    name
    for name, item in vars(programs).items()
    if inspect.isfunction(item) and item.__module__ == programs.__name__
]


def _told(function: Any, x: torch.Tensor) -> str:
    try:
        return repr(function(x))
    except CaptureError:
        raise
    except BaseException as error:  # also those that are no Exception
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        return kinds[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_python(name: str) -> None:
    function = getattr(programs, name)
    fast = stretto.compile(function, backend="interpreter")
    for x in (torch.ones(2), -torch.ones(2)):
        assert _told(fast, x) == _told(function, x)


def _removed() -> None:
    d = {0: 0}
    for _ in d:
        del d[0]
        d[0] = 0


def _finalized() -> None:
    class Kept:
        def __del__(self) -> None:
            print("gone")

    Kept()


def _changed_by_a_comparison() -> None:
    class Emptying:
        def __eq__(self, other: object) -> bool:
            items.clear()
            return True

    items: list[Any] = [Emptying()]
    print(items == [1])


def _asynchronous() -> None:
    async def inner() -> None:
        pass

    print(inner)


REFUSED = {
    "a key of a dictionary is removed": _removed,
    "which has __del__": _finalized,
    "a comparison changes the list": _changed_by_a_comparison,
    "an async statement is not captured": _asynchronous,
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        REFUSED[message]()
        return x + 1

    with pytest.raises(CaptureError, match=message):
        stretto.compile(function, backend="interpreter")(torch.ones(2))
