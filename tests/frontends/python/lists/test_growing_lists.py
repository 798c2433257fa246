"""What Python's lists can do, of lists that grow in a traced loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same, check, refused

Operation = Callable[[list[Tensor], list[Tensor], Tensor], Any]
CASES = [(torch.full((3,), value),) for value in (0.4, -1.0, 0.1, 2.0)]


def swap(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    items[0], items[1] = items[1], items[0]
    return items


def swap_in_loop(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    for i in range(3):
        if x.sum() > i:
            items[0], items[i + 1] = items[i + 1], items[0] * 2
    return items


def store_in_two_places(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    items[0] = y = items[-1] = x + 7
    return items, y


def unpack_into_items(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    (items[0], [items[1], *others[:1]]), y = (x - 1, (x - 2, x - 3)), x * 5
    return items, others, y


def item_as_loop_target(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    for items[0] in x.view(3, 1).expand(3, 3):
        items[1] = items[1] + items[0]
    return items


def delete_first(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    del items[0]
    return items


def delete_two(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    del items[-1], items[0]
    return items


def insert(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    items.insert(0, x * 3)
    items.insert(-1, x * 4)
    items.insert(99, x * 5)
    items.insert(-99, x * 6)
    items.insert(len(items) // 2, x * 7)
    return items


def reverse(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    items.reverse()
    return items


def pop_first(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    return items.pop(0), items, items.pop(-1)


def slices(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    return items[1:], items[-2:], items[:-1], items[::2], items[::-1], items[3:9:2], items[-2::-1]


def slice_of_traced_bounds(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    return items[len(items) // 2 :], items[: len(items) - 2], len(items[1:])


def pairs(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    for i, item in enumerate(items[1:]):
        x = x + item * items[i]
    return x


def extend(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    others.extend(items)
    return others, items


def add_itself(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    again = items
    items += items
    return items, len(again)


def add(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    return items + items, items + [x], [x, x * 2] + items, items  # noqa: RUF005


def multiply(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    again = items
    twice, none = 2 * items, items * 0
    items *= 2
    return twice, none, again


SAME = [
    swap,
    store_in_two_places,
    unpack_into_items,
    item_as_loop_target,
    delete_first,
    delete_two,
    insert,
    reverse,
    pop_first,
    slices,
    slice_of_traced_bounds,
    pairs,
    add_itself,
    add,
    multiply,
]


def _program(operation: Operation) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        items, others = [x, x * 2], [x]
        for i in range(3):
            if x.sum() > i:
                items.append(x + i)
        return operation(items, others, x)

    return program


@pytest.mark.parametrize("operation", SAME)
def test_same(operation: Operation) -> None:
    check(_program(operation), *CASES)


def _both_grow(operation: Operation) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        items, others = [x, x * 2], [x]
        for i in range(3):
            if x.sum() > i:
                items.append(x + i)
                others.append(x - i)
        return operation(items, others, x)

    return program


@pytest.mark.parametrize("operation", [swap, add, extend])
def test_same_of_two(operation: Operation) -> None:
    check(_both_grow(operation), *CASES)


def test_as_many_numbers_as_the_content_of_a_tensor_decides() -> None:
    def repeated(x: Tensor) -> Any:
        items = [0] * x.nonzero().shape[0]
        return x * len(items), items

    check(repeated, *((torch.tensor(x),) for x in ([1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [1.0, 2, 3])))


def all_at_once(x: Tensor, k: Tensor) -> Any:
    items = [x, x * 2, x * 3]
    for i in range(3):
        if x.sum() > i:
            items.append(x + i)
        items[0], items[-1] = items[1], items[0]
    items.insert(1, x * 7)
    first = items.pop(int(k))
    items.reverse()
    del items[-2]
    items += items[1:] * 2
    return torch.stack(items).sum(0), first, len(items), items


@pytest.mark.parametrize("backend", ["emulator", "cpu"])
def test_on_machines(backend: str) -> None:
    fast = stretto.compile(all_at_once, backend=backend)
    for (x,) in CASES:
        for k in (0, 2, -1):
            assert_same(fast(x, torch.tensor(k)), all_at_once(x, torch.tensor(k)))


def swaps_where_its_second_item_may_lack(x: Tensor) -> Any:
    items = [x]
    for i in range(3):
        if x.sum() > i:
            items.append(x + i)
        else:
            items[0], items[1] = items[1], items[0]
    return torch.stack(items)


def deletes(x: Tensor) -> Any:
    items = [x]
    for i in range(3):
        if x.sum() > i:
            items.append(x + i)
    del items[1]
    return items


def pops(x: Tensor) -> Any:
    items = [x]
    for i in range(3):
        if x.sum() > i:
            items.append(x + i)
    return items.pop(1)


@pytest.mark.parametrize("function", [swaps_where_its_second_item_may_lack, deletes, pops])
def test_positions_out_of_range(function: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    assert_same(fast(torch.ones(3)), function(torch.ones(3)))
    with pytest.raises(IndexError) as expected:
        function(-torch.ones(3))
    with pytest.raises(IndexError) as raised:
        fast(-torch.ones(3))
    assert str(expected.value) in str(raised.value)


NO_INDEX = "list indices must be integers or slices, not "
MISTAKES: list[tuple[Operation, str]] = [
    (lambda items, others, x: items[1.5], NO_INDEX + "float"),  # pyright: ignore
    (lambda items, others, x: items["a"], NO_INDEX + "str"),  # pyright: ignore
    (lambda items, others, x: items[x[0]], "only integer tensors of a single element"),  # pyright: ignore
    (lambda items, others, x: items.pop(1.5), "'float' object cannot be interpreted"),  # pyright: ignore
    (lambda items, others, x: items - 1, "unsupported operand type(s) for -: 'list' and 'int'"),  # pyright: ignore
    (lambda items, others, x: x + items, "unsupported operand type(s) for +: 'Tensor' and 'list'"),  # pyright: ignore
    (lambda items, others, x: items > 1, "not supported between instances of 'list' and 'int'"),  # pyright: ignore
    (lambda items, others, x: items + 1, 'can only concatenate list (not "int") to list'),  # pyright: ignore
    (lambda items, others, x: items * 1.5, "'float'"),  # pyright: ignore
    (lambda items, others, x: items.first, "'list' object has no attribute 'first'"),  # pyright: ignore
]


@pytest.mark.parametrize(("operation", "message"), MISTAKES)
def test_mistakes(operation: Operation, message: str) -> None:
    """The error is eager's, and names no class of ours."""
    program = _program(operation)
    with pytest.raises((TypeError, AttributeError)) as expected:
        program(torch.ones(3))
    with pytest.raises(type(expected.value)) as raised:
        stretto.compile(program, backend="interpreter")(torch.ones(3))
    assert message in str(raised.value)
    assert message in str(expected.value)


def _set_slice(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    items[:1] = [x, x]
    return items


def _delete_slice(items: list[Tensor], others: list[Tensor], x: Tensor) -> Any:
    del items[:1]
    return items


REFUSED: list[tuple[Operation, str]] = [
    (_set_slice, "a slice of a list that grows"),
    (_delete_slice, "a slice of a list that grows"),
    (lambda items, others, x: items == others, "a list that grows .* is compared with another"),
    (lambda items, others, x: items < others, "a list that grows .* is compared with another"),  # pyright: ignore
    (lambda items, others, x: x in items, "a list that grows .* is searched for a tensor"),
    (lambda items, others, x: items.index(x), "list.index on a list that grows"),
    (lambda items, others, x: items.sort(), "list.sort on a list that grows"),  # pyright: ignore
]


@pytest.mark.parametrize(("operation", "message"), REFUSED)
def test_refused(operation: Operation, message: str) -> None:
    assert re.search(message, str(refused(_program(operation), torch.ones(3))))


def numbers(x: Tensor) -> Any:
    items = [0]
    for i in range(4):
        if x.sum() > i:
            items.append(i * i)
    return 4 in items, 5 in items, None in items, 9 not in items, items[1:], items == items


def tensor_of_lengths(x: Tensor) -> Any:
    items = [x]
    for i in range(4):
        if x.sum() > i:
            items.append(x)
    return x.new_tensor([len(items), 2]), x.new_tensor([[1, 2]], dtype=torch.int32)


def test_tensor_of_lengths() -> None:
    check(tensor_of_lengths, *CASES)


def test_lists_of_numbers() -> None:
    check(numbers, *CASES)


class Cell:
    def __init__(self) -> None:
        self.h = torch.ones(3)
        self.c = torch.zeros(3)
        self.items = [torch.ones(3)]


def state_in_tuple_targets(cell: Cell, x: Tensor) -> Tensor:
    if x.sum() > 0:
        cell.h, (cell.c, cell.items[0]) = cell.c + x, (cell.h * 2, cell.items[0] - x)
    cell.h = y = cell.h + 1
    for _ in range(2):
        if x.sum() > 1:
            cell.items.append(y)
    del cell.items[-1]
    del cell.c
    cell.c = x
    return y + cell.c


def test_attributes_among_targets() -> None:
    fast = stretto.compile(state_in_tuple_targets, backend="interpreter")
    for value in (1.0, 2.0, 1.0):
        eager, compiled = Cell(), Cell()
        x = torch.full((3,), value)
        assert_same(fast(compiled, x), state_in_tuple_targets(eager, x))
        assert_same(vars(compiled), vars(eager))


def sliced_by_float(x: Tensor, n: int) -> Any:
    return list(range(int(x[0])))[: x[1].item()]


def sliced_by_int(x: Tensor, n: int) -> Any:
    return list(range(n))[n - 1 :], [1, 2, 3][:n], list(range(n > 2))[:n]


@pytest.mark.parametrize("function", [sliced_by_float, sliced_by_int])
def test_bounds_of_slices(function: Any) -> None:
    compiled = stretto.compile(function, backend="interpreter")
    for values, n in (([1.0, -3.0], 3), ([2.0, 2.0], 2), ([0.5, 0.1], 0), ([3.0, 2.0], 5)):
        x = torch.tensor(values)
        try:
            wanted = function(x, n)
        except TypeError:
            with pytest.raises(TypeError, match="slice indices must be integers"):
                compiled(x, n)
        else:
            assert compiled(x, n) == wanted
