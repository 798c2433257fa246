"""A case: a function, its arguments, and a change; and the table of all cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])

Change = Callable[[], object]


class Case(NamedTuple):
    """`function(*args)` before and after `change()`."""

    function: Callable[..., Any]
    change: Change
    args: tuple[Any, ...] = (X,)


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def restoring(table: Any, key: Any, value: Any) -> None:
    """Sets an entry; the fixture below puts it back."""
    RESTORED.append((table, key, table[key]))
    table[key] = value


RESTORED: list[tuple[Any, Any, Any]] = []
