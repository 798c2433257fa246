"""List comprehensions over lists whose length the run decides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.frontends.python.checks import check

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES = tuple((X, torch.tensor(n)) for n in (4, 1, 7))


def collected(x: Tensor, n: Tensor) -> list[Tensor]:
    rows = []
    for i in range(n):
        rows.append(x[0] + i)
    return rows


def comprehensions(x: Tensor, n: Tensor) -> Any:
    rows = collected(x, n)
    doubled = torch.stack([row * 2 for row in rows if row is not None])
    pairs = [i * row for i, row in enumerate(rows)]
    return doubled, pairs, [row.sum().item() for row in reversed(rows)], len([0 for _ in rows])


def test_over_a_list_that_grows() -> None:
    check(comprehensions, *CASES)


def nested(x: Tensor, n: Tensor) -> Any:
    rows, factor = collected(x, n), 3
    made = [[row * factor + k for k in range(2)][1] for row in rows]
    return torch.stack(made), [a * b for a in x for b in (1, 2) if b > 1]


def test_nested_ones() -> None:
    check(nested, *CASES)
