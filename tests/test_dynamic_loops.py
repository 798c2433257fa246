"""Python loops over sizes that the call decides: they stay loops, in one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from tests.test_dynamic import BACKENDS, check, rows


class Tagger(torch.nn.Module):
    """A plain LSTM over the rows of a sequence, and scores of tags."""

    def __init__(self, width: int = 4, hidden: int = 6) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, 4 * hidden)
        self.outer = torch.nn.Linear(hidden, 4 * hidden)
        self.tags = torch.nn.Linear(hidden, 3)
        self.hidden = hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(self.hidden)
        found: list[torch.Tensor] = []
        for t in range(len(x)):
            i, f, g, o = (self.inner(x[t]) + self.outer(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return self.tags(torch.stack(found))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tagger_has_one_program_for_every_length(backend: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        compiled = check(Tagger().eval(), rows(20, 7, 1, 2, 33), programs=2, backend=backend)
        with pytest.raises(RuntimeError, match="stack expects a non-empty TensorList"):
            compiled(torch.zeros(0, 4))
    assert "loop kept (s0 trips)" in compiled.explain()


def over_rows(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for row in x:
        h = torch.tanh(h + row)
    return h


def backwards(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for t in reversed(range(len(x))):
        h = torch.tanh(h * 0.5 + x[t])
    for row in reversed(x):
        h = torch.tanh(h - row)
    return h


def numbered(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for i, row in enumerate(x, 1):
        h = torch.tanh(h * 0.5 + row / i)
    return h


def steps(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for i in range(1, x.shape[0], 2):
        h = torch.tanh(h * 0.5 + x[i])
    for i in range(x.shape[0] - 1, 0, -1):
        h = torch.tanh(h * 0.5 + x[i - 1])
    for i in range(x.shape[0] // 2, x.shape[0]):
        h = torch.tanh(h * 0.5 + x[i] * i)
    return h


def triangle(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for i in range(x.shape[0]):
        for j in range(i):
            h = torch.tanh(h * 0.5 + x[i] * x[j])
    return h


def until(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for i in range(x.shape[0]):
        h = h + x[i]
        if h.sum() > 3:
            break
    return h


def collected(x: torch.Tensor) -> Any:
    parts: list[torch.Tensor] = []
    for row in x:
        parts.append(row * 2)
        parts.append(row.exp())
    last = [row + 1 for row in (x.sum(0), x.mean(0))]
    parts.extend(last)
    return torch.stack(parts), torch.cat(parts), len(parts)


def first_by_itself(x: torch.Tensor) -> Any:
    """The state is None before the first iteration."""
    h: Any = None
    for row in x:
        h = row if h is None else torch.tanh(h + row)
    return h


EMPTY = (20, 7, 1, 2, 33, 0)


@pytest.mark.parametrize("function", [over_rows, backwards, numbered, steps, triangle, until])
def test_one_program(function: Callable[..., Any]) -> None:
    check(function, rows(*EMPTY), programs=1, backend="emulator", dynamic=True)


def test_lists_have_the_length_of_the_loop() -> None:
    check(collected, rows(20, 1, 2, 7), programs=1, backend="emulator", dynamic=True)


def test_a_first_round_in_front_of_the_loop_asks_for_one() -> None:
    """A size of 0 is on the other side of a guard, and gets another program."""
    check(first_by_itself, rows(20, 1, 5), programs=1, backend="emulator", dynamic=True)
    check(first_by_itself, rows(20, 0, 5, 0), programs=2, backend="emulator", dynamic=True)


def test_sequences_side_by_side() -> None:
    def zipped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(4)
        for a, b in zip(x, y, strict=False):
            h = torch.tanh(h * 0.5 + a * b)
        return h

    calls = [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in ((5, 5), (7, 3), (0, 2), (1, 9))]
    check(zipped, calls, programs=1, backend="emulator", dynamic=True)


def test_a_number_that_python_needs_unrolls_the_loop() -> None:
    """A list of Python objects is indexed, so a guard settles the length."""
    scales = [1.0, 0.5, 0.25, 2.0, 3.0, 4.0, 5.0] * 4

    def scaled(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(4)
        for i in range(x.shape[0]):
            h = h + x[i] * scales[i]
        return h

    compiled = stretto.compile(scaled, backend="interpreter", dynamic=True)
    for n in (20, 3, 20):
        (x,) = rows(n)[0]
        torch.testing.assert_close(compiled(x), scaled(x))
