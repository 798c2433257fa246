"""`as_strided` of views: what it gives is a view of the memory, whatever part of it they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check, refused

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def chunks(x: Tensor) -> Tensor:
    """Overlapping chunks of a reshaped copy, as in Longformer."""
    h = x.transpose(0, 1).reshape(6, -1).view(2, 3, -1)
    return h.as_strided((2, 2, 2, 4), (12, 4, 4, 1)).sum(1)


def windows_of_rows(x: Tensor) -> Tensor:
    rows = x[1:]
    step = rows.stride(1)
    return rows.as_strided((rows.shape[0], 4, 3), (rows.stride(0), step, step)) * 2


def of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[:, 2:5]
    return part.as_strided((3,), (7,)), torch.as_strided(part, (2, 2), (6, 1), 3)


def of_transposed(x: Tensor) -> Tensor:
    return x.t()[1].as_strided((2, 3), (6, 2))


def of_result_in_other_order(x: Tensor) -> Tensor:
    """The result of an operator lies in memory as its operand does."""
    y = x.t() + 1
    return y.as_strided((5,), (4,), 1), y[2:].as_strided((3, 2), (1, 6))  # type: ignore[return-value]


def written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    part = y[1:].view(-1)
    part.as_strided((3,), (7,)).fill_(5)
    y.as_strided((2, 2), (1, 6), 4).mul_(2)
    return y, part


def in_a_loop(x: Tensor) -> Tensor:
    y = x
    while y.sum() < 9:
        y = y + y[1:].as_strided((2, 3), (6, 1)).abs().sum() + 0.1
    return y


def empty(x: Tensor) -> Tensor:
    return x[2:].as_strided((0, 4), (1, 1))


PROGRAMS = (
    chunks, windows_of_rows, of_columns, of_transposed, of_result_in_other_order, written,
    in_a_loop, empty,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_as_eager(program: Any) -> None:
    check(program, (X,), (X * 3,), (-X,))


def test_arguments_that_are_views_or_lie_in_another_order() -> None:
    check(windows_of_rows, (X.repeat(2, 1)[2:6],))
    check(of_columns, (X.t().contiguous().t(),))


def test_what_is_refused() -> None:
    def beyond(x: Tensor) -> Tensor:
        return x.as_strided((2,), (1,), 0)

    assert "reaches beyond" in refused(beyond, X[2:]).message
    assert "gaps between" in refused(of_transposed, X[:, ::2]).message
