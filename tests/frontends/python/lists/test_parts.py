"""Loops and comprehensions over the parts of a symbolic dim: one program for every size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_dynamic import check

W = torch.linspace(-1, 1, 16).reshape(4, 4)
SIZES = (3, 5, 1, 2, 17)


def over(*shape: int) -> list[tuple[Tensor]]:
    """A call for each size, which stands in the place of -1."""
    return [(torch.randn([n if size < 0 else size for size in shape]),) for n in SIZES]


def step(state: Tensor, row: Tensor) -> Tensor:
    return torch.tanh(state @ W + row)


def unbound(x: Tensor) -> Tensor:
    state = torch.zeros(2, 4)
    for row in x.unbind(1):
        state = step(state, row)
    for number, row in enumerate(torch.unbind(x, dim=1)):
        state = step(state, row * number)
    for row, other in zip(reversed(x.unbind(1)), x.unbind(1)[::-1]):  # noqa: B905
        state = step(state, row - other * 2)
    return state


def split(x: Tensor) -> Tensor:
    state = torch.zeros(2, 4)
    for piece in x.split(1, dim=1):
        state = step(state, piece.squeeze(1))
    for piece in torch.chunk(x, x.size(1), 1):
        state = step(state, piece[:, 0])
    for pair in torch.cat([x, x], 1).split(2, 1):
        state = step(state, pair.sum(1))
    return state


@pytest.mark.parametrize("function", [unbound, split])
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_loops_over_parts_stay_loops(function: Any, backend: str) -> None:
    compiled = check(function, over(2, -1, 4), programs=2, backend=backend)
    assert "loop kept (s0 trips)" in compiled.explain()


def joined(x: Tensor) -> Any:
    rows = [step(row, row) for row in x]
    return (
        torch.stack(rows, 1),
        torch.cat([row[None] for row in x.unbind(0)]),
        torch.stack([a * b for a in rows for b in (1, 2)]),
        torch.stack([row for i, row in enumerate(rows) if i % 2 == 0]),
        torch.stack(list(reversed(rows))),
    )


def generated(x: Tensor) -> Any:
    numbers = [float(row.sum()) for row in x]
    return (
        torch.stack(tuple(row * 2 for row in x)),
        torch.stack(list(map(torch.mul, x, x.unbind(0)))),
        any(number > 1 for number in numbers),
        all(row.sum() < 1 for row in x.unbind(0)),
        max(numbers),
        min(float(row.prod()) for row in x),
        sum(number for number in numbers),
    )


@pytest.mark.parametrize("function", [joined, generated])
def test_comprehensions_collect_in_loops(function: Any) -> None:
    check(function, over(-1, 4), programs=2)


def a_tuple(x: Tensor, place: Tensor) -> Any:
    parts = x.unbind(0)
    assert isinstance(parts, tuple)
    first, last, chosen = parts[0], parts[-1], parts[int(place)]
    return first + last, chosen, len(parts), torch.stack(parts[1:] or parts)


def test_parts_are_a_tuple() -> None:
    calls = [(torch.randn(n, 4), torch.tensor(n // 2)) for n in SIZES if n > 1]
    compiled = check(a_tuple, calls, programs=2)
    with pytest.raises(IndexError, match="tuple index out of range"):
        compiled(torch.randn(5, 4), torch.tensor(5))


def test_a_tuple_as_long_as_data_decide() -> None:
    def chosen(x: Tensor, n: Tensor) -> Any:
        rows = tuple([x[0] * i for i in range(n)])
        return rows[1], rows[-1], len(rows), torch.stack(rows)

    check(chosen, [(torch.randn(3, 4), torch.tensor(n)) for n in (2, 5, 3)], programs=1)


def test_what_needs_the_items_settles_the_size() -> None:
    def unpacked(x: Tensor) -> Any:
        first, *others = x.unbind(0)
        return first, others, x.unbind(0), torch.meshgrid(x[:, 0].unbind(0), indexing="ij")

    check(unpacked, over(-1, 4)[:3])


def test_parts_are_views() -> None:
    def changed(x: Tensor) -> Tensor:
        y = x.clone()
        for number, row in enumerate(y.unbind(0)):
            row.mul_(number)
        for row in x.unbind(0):
            row.add_(1)
        return y

    check(changed, over(-1, 4), programs=2)


def prefixes(x: Tensor) -> Any:
    n = len(x)
    means = torch.stack([x[: i + 1].mean(0) for i in range(n)])
    return means, torch.stack([x[i : 2 * i + 1].sum(0) for i in range(n)])


def test_slices_at_a_loops_index_keep_the_loop() -> None:
    check(prefixes, over(-1, 4), programs=2)


def test_loops_over_nothing() -> None:
    check(unbound, [(torch.randn(2, n, 4),) for n in (3, 0, 5)], programs=2)
