"""What is read or written at a position out of range raises, also where nobody uses the result."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.errors import RunError
from tests.sampling import sampled

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


Read = Callable[[Tensor, Tensor], Tensor]


def item(x: Tensor, i: Tensor) -> Tensor:
    return [x, x + 1, x * 2, x - 1][i]


def overwritten(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] = 3.0
    return y


READS: dict[str, Read] = {
    "index_select": lambda x, i: x.index_select(0, i[None]),
    "gather": lambda x, i: x.gather(0, i.expand(3)),
    "item": item,
    "overwritten": overwritten,
}


def in_an_arm(read: Read, x: Tensor, i: Tensor) -> Tensor:
    if x.sum() > 0:
        read(x, i)
    return x + 1


def in_both_arms(read: Read, x: Tensor, i: Tensor) -> Tensor:
    if x.sum() > 0:
        read(x, i)
    else:
        read(x + 1, i)
    return x + 1


def deciding_nothing(read: Read, x: Tensor, i: Tensor) -> Tensor:
    y = x
    if read(x, i).sum() > 0:
        y = x * 2  # noqa: F841
    return x + 1


def deciding_between_what_turns_out_equal(read: Read, x: Tensor, i: Tensor) -> Tensor:
    known = torch.tensor([1, 2]).sum().item()
    if read(x, i).sum() > 0:
        n = 1
    elif known % 2 == 0:
        n = 2
    else:
        n = 1
    return x + n


def deciding_whether_to_continue(read: Read, x: Tensor, i: Tensor) -> Tensor:
    k = 0
    while k < 3:
        k += 1
        if read(x, i).sum() < 0:
            continue
    return x + k


def selecting_between_equals(read: Read, x: Tensor, i: Tensor) -> Tensor:
    return torch.where(read(x, i).sum() > 0, x, x)


def with_what_absorbs_it(read: Read, x: Tensor, i: Tensor) -> Tensor:
    never = torch.tensor([1, 2]).sum() > 4
    return x + torch.logical_and(read(x, i).sum() > 0, never)


def for_its_shape(read: Read, x: Tensor, i: Tensor) -> Tensor:
    return x + torch.zeros_like(read(x, i)).sum()


def carried_by_a_loop(read: Read, x: Tensor, i: Tensor) -> Tensor:
    y, n = x, x.sum()
    while n < 20:
        n = n + 4
        y = y * 2 + read(x, i).sum()
    return x + n


def pushed(read: Read, x: Tensor, i: Tensor) -> Tensor:
    items = list[Tensor]()
    for _ in range(3):
        items.append(read(x, i))
    return x + len(items)


def returned_by_recursion(read: Read, x: Tensor, i: Tensor) -> Tensor:
    def visit(x: Tensor, n: Tensor) -> Tensor:
        if n <= 0:
            return read(x, i).sum()
        return visit(x + 1, n - 1) + 1

    visit(x, x.sum() - 6)
    return x + 1


def returned_by_recursion_that_is_used_elsewhere(read: Read, x: Tensor, i: Tensor) -> Tensor:
    def visit(x: Tensor, k: Tensor, n: Tensor) -> Tensor:
        if n <= 0:
            return read(x, k).sum()
        return visit(x + 1, k, n - 1) + 1

    visit(x, i, x.sum() - 6)
    return x + visit(x, i * 0, x.sum() - 6)


def an_argument_of_recursion(read: Read, x: Tensor, i: Tensor) -> Tensor:
    def visit(x: Tensor, unused: Tensor, n: Tensor) -> Tensor:
        if n <= 0:
            return x
        return visit(x + 1, unused, n - 1) + 1

    return visit(x, read(x, i), x.sum() - 6)


USELESS: list[Callable[[Read, Tensor, Tensor], Tensor]] = [
    *(in_an_arm, in_both_arms, deciding_nothing, deciding_between_what_turns_out_equal),
    *(deciding_whether_to_continue, selecting_between_equals, with_what_absorbs_it),
    *(for_its_shape, carried_by_a_loop, pushed, returned_by_recursion),
    *(returned_by_recursion_that_is_used_elsewhere, an_argument_of_recursion),
]
PLACES = [("interpreter", name) for name in READS] + [("emulator", "index_select")]
PLACES += [("emulator", "item"), ("cpu", "index_select")]
CASES = [(use, *place) for use in USELESS for place in PLACES]
NATIVE = (deciding_between_what_turns_out_equal, returned_by_recursion)


def is_sampled(use: Callable[..., Tensor], backend: str) -> bool:
    return backend != "cpu" or use in NATIVE


@pytest.mark.parametrize(
    ("use", "backend", "name"),
    sampled(CASES, [case for case in CASES if is_sampled(*case[:2])]),
)
def test_a_read_that_turns_out_to_be_needless(
    use: Callable[[Read, Tensor, Tensor], Tensor], backend: str, name: str
) -> None:
    """What a simplification makes dead later is checked, too."""

    def function(x: Tensor, i: Tensor) -> Tensor:
        return use(READS[name], x, i)

    compiled = stretto.compile(function, backend=backend)
    x = torch.arange(1.0, 5.0)
    inside = torch.tensor(1)
    assert torch.equal(compiled(x, inside), function(x, inside))
    for outside in (torch.tensor(7), torch.tensor(-9)):
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(x, outside)
        with pytest.raises(type(wanted.value)) as found:
            compiled(x, outside)
        assert isinstance(found.value, RunError)


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
