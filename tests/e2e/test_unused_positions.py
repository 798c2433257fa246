"""What is read or written at a position out of range raises, also where nobody uses the result."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.errors import RunError

Function = Callable[[Tensor, Tensor], Tensor]


def read(x: Tensor, i: Tensor) -> Tensor:
    x[i]
    return x * 2


def read_in_a_loop(x: Tensor, i: Tensor) -> Tensor:
    n = 0
    while x.sum() > n:
        n += 4
        y = x[i] + 1  # noqa: F841
    return x + 1


def read_in_an_arm(x: Tensor, i: Tensor) -> Tensor:
    if x.sum() > 0:
        x[i].sum()
    return x + 1


def read_where_it_is_not_used(x: Tensor, i: Tensor) -> Tensor:
    y = x[i]
    return x + y if x.sum() < 0 else x


def written(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] = 3.0
    return x + 1


def item_of_list(x: Tensor, i: Tensor) -> Tensor:
    [x, x + 1][i]
    return x + 1


def slice_of_one(x: Tensor, i: Tensor) -> Tensor:
    x.narrow(0, i, 1)
    return x + 1


DROPPED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index": lambda x, i: x[i[None]],
    "two dims": lambda x, i: x.view(2, 2)[i[None], i[None] * 0],
    "index_select": lambda x, i: x.index_select(0, i[None]),
    "gather": lambda x, i: x.gather(0, i.expand(3)),
    "take": lambda x, i: x.take(i[None]),
    "take_along_dim": lambda x, i: x.take_along_dim(i[None]),
    "embedding": lambda x, i: F.embedding(i.expand(2), x[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[None], x[:1]),
    "scatter_add": lambda x, i: x.scatter_add(0, i[None], x[:1]),
    "index_add": lambda x, i: x[:, None].index_add(0, i[None], x[:1, None]),
    "index_copy": lambda x, i: x.index_copy(0, i[None], x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i[None], 1.0),
    "index_put": lambda x, i: x.index_put((i[None],), x[:1]),
}


def dropping(name: str) -> Function:
    def function(x: Tensor, i: Tensor) -> Tensor:
        DROPPED[name](x, i)
        return x + 1

    function.__name__ = name
    return function


FUNCTIONS: list[Function] = [
    *(read, read_in_a_loop, read_in_an_arm, read_where_it_is_not_used),
    *(written, item_of_list, slice_of_one, *map(dropping, DROPPED)),
]


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_an_unused_position_out_of_range(function: Function, backend: str) -> None:
    compiled = stretto.compile(function, backend=backend)
    x = torch.arange(1.0, 5.0)
    for inside in (0, 1):
        assert torch.equal(compiled(x, torch.tensor(inside)), function(x, torch.tensor(inside)))
    for outside in (7, -9):
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(x, torch.tensor(outside))
        with pytest.raises(type(wanted.value)) as found:
            compiled(x, torch.tensor(outside))
        assert isinstance(found.value, RunError)
        if function is not slice_of_one:
            assert str(wanted.value).splitlines()[0] in str(found.value)


def popped_in_a_loop(x: Tensor, i: Tensor) -> Tensor:
    items = [x, x + 1]
    for _ in range(int(i)):
        x = x * 2
        items.pop()
    return x


def popped_in_arms(x: Tensor, i: Tensor) -> Tensor:
    items = [x]
    if i > 0:
        items.pop()
    if i > 2:
        items.pop()
    return x + 1


def popped_in_recursion(x: Tensor, i: Tensor) -> Tensor:
    def visit(items: list[Tensor], n: Tensor) -> Tensor:
        if n <= 0:
            return x
        items.pop()
        return visit(items, n - 1) + 1

    return visit([x, x + 1], i)


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("function", [popped_in_a_loop, popped_in_arms, popped_in_recursion])
def test_an_unused_item_of_an_empty_list(function: Function, backend: str) -> None:
    compiled = stretto.compile(function, backend=backend)
    x = torch.arange(1.0, 5.0)
    for number in (0, 1, 2):
        assert torch.equal(compiled(x, torch.tensor(number)), function(x, torch.tensor(number)))
    for run in (function, compiled):
        with pytest.raises(IndexError, match="pop from empty list"):
            run(x, torch.tensor(5))
