"""Every position of a table is checked, also where the run needs few of the elements or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from tests.sampling import sampled

Function = Callable[[Tensor, Tensor], Tensor]

ONE_ELEMENT: dict[str, Function] = {
    "size 1": lambda x, i: x[:1][i],
    "expanded": lambda x, i: x[:1].expand(3, 4)[i],
    "embedding": lambda x, i: F.embedding(i, x[:1]),
    "gather": lambda x, i: x[:1].gather(0, i[:, None]),
    "take": lambda x, i: x[:1, :1].take(i),
    "one of two": lambda x, i: x[:1][i, i.abs() % 4],
}
SOME_ELEMENTS: dict[str, Function] = {
    "first": lambda x, i: x[i][0],
    "slice": lambda x, i: x.index_select(0, i)[:1] * 2,
    "behind arithmetic": lambda x, i: (F.embedding(i, x) + 1)[0],
    "chosen": lambda x, i: torch.where(x[0] > 100, x[i], 0.0),
    "in an arm": lambda x, i: (lambda y: y.sum() if x.sum() > 1e6 else x.sum())(x[i]),
}
NO_ELEMENTS: dict[str, Function] = {
    "shape": lambda x, i: x + x[i].shape[0],
    "zeros": lambda x, i: torch.zeros_like(x[i]),
    "dropped": lambda x, i: (x[i], x + 1)[1],
}
FUNCTIONS = {**ONE_ELEMENT, **SOME_ELEMENTS, **NO_ELEMENTS}
CASES = [
    (name, backend, dynamic)
    for name in FUNCTIONS
    for backend in ("interpreter", "cpu")
    for dynamic in (True, False)
]
SAMPLE = [case for case in CASES if case[2] or case[1] == "cpu"][::3]


@pytest.mark.parametrize(("name", "backend", "dynamic"), sampled(CASES, SAMPLE))
def test_a_position_out_of_range(name: str, backend: str, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = stretto.compile(function, backend=backend, dynamic=dynamic)
    for size, table in ((5, [0, 0, 0]), (6, [0, 9, 0]), (5, [0, 7, 0])):
        x, i = torch.randn(size, 4), torch.tensor(table)
        if max(table) < size:
            torch.testing.assert_close(compiled(x, i), function(x, i))
            continue
        for run in (function, compiled):
            with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
                run(x, i)


def test_constant_positions_of_a_size() -> None:
    positions = torch.tensor([0, 1, 0, 1])
    compiled = stretto.compile(
        lambda x: x + x[positions].shape[0], backend="interpreter", dynamic=True
    )
    assert compiled(torch.zeros(3, 2)).tolist() == [[4.0, 4.0]] * 3
    with pytest.raises(IndexError):
        compiled(torch.zeros(1, 2))
