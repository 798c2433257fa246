"""Lists that outlive the call and grow in branches, loops and recursion on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.e2e.objects import INPUTS, State, Step, content
from tests.frontends.python.checks import assert_same


def append_in_branch(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.items.append(x * 2)
    return x


def append_in_loop(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        x = x + 1
        s.items.append(x)
    return torch.stack(s.items).sum(0) if len(s.items) > 0 else x


def append_numbers(s: Any, x: Tensor) -> Any:
    n = 0
    while x.sum() < 5:
        x = x + 1
        n += 1
        s.items.append(n)
    return x


def pop_in_loop(s: Any, x: Tensor) -> Any:
    s.items.append(x)
    s.items.append(x + 1)
    while len(s.items) > 0 and x.sum() < 5:
        x = x + s.items.pop()
    return x


def through_another_name(s: Any, x: Tensor) -> Any:
    other = s.items
    if x.sum() > 0:
        s.items.append(x)
    other.append(x + 1)
    return len(s.items)


def in_a_tuple(s: Any, x: Tensor) -> Any:
    if s.other is None:
        s.other = (s.items, 1)
    while x.sum() < 5:
        s.other[0].append(x)
        x = x + 1
    return x


def one_of_two(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.items.append(x)
    else:
        s.pair.append(x)
    return x


def chosen(s: Any, x: Tensor) -> Any:
    items = s.items if x.sum() > 0 else s.pair
    items.append(x * 3)
    return x


def returned_and_kept_again(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        s.items.append(x)
        x = x + 1
    s.d["items"] = s.items
    return s.items


def branch_in_loop_in_branch(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        while x.sum() < 5:
            x = x + 1
            if x[0] > 1:
                s.items.append(x)
    return x


def other_methods(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.items.extend([x, x * 2])
    if x.sum() > 2:
        s.items += [x * 3]
        s.items.pop()
    if x[0] > 1:
        s.items.clear()
    return x


def push_and_go_on(s: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        s.items.append(x * 2)
    return x + 1


def grows_in_an_argument(s: Any, x: Tensor) -> Any:
    s.items.append(push_and_go_on(s, x))
    return x


def visit(x: Tensor, out: list[Tensor], s: Any) -> None:
    out.append(x)
    s.n += 1
    if x.sum() < 5:
        visit(x + 1, out, s)
        out.append(x * 10)


def in_recursion(s: Any, x: Tensor) -> Any:
    visit(x, s.items, s)
    return x


class Cache(State):
    """As DynamicCache of transformers: objects in a list in an object, made when first needed."""

    def update(self, key: Tensor, layer: int) -> Tensor:
        while len(self.items) <= layer:
            self.items.append(State())
        held = self.items[layer]
        held.other = key if held.other is None else torch.cat([held.other, key], 0)
        return held.other


def cache_in_a_long_loop(s: Any, x: Tensor) -> Any:
    if s.child is None:
        s.child = Cache()
    for layer in range(6):
        x = torch.tanh(x + s.child.update(x[None], layer).sum(0))
    return x


def set_while_it_grows(s: Any, x: Tensor) -> Any:
    s.pair[0] = push_to_pair(s, x)
    return x


def push_to_pair(s: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        s.pair.append(x)
    return x


STEPS = [
    append_in_branch, append_in_loop, append_numbers, pop_in_loop, through_another_name,
    in_a_tuple, one_of_two, chosen, returned_and_kept_again, branch_in_loop_in_branch,
    other_methods, grows_in_an_argument, in_recursion, cache_in_a_long_loop,
    set_while_it_grows,
]  # fmt: skip


def check_lists(step: Step, backend: str) -> None:
    """As `check`; the items of a list that grew are copies."""
    fast = stretto.compile(step, backend=backend)
    mine, other = State(), State()
    kept = mine.items
    for given in INPUTS:
        x, y = torch.tensor(given), torch.tensor(given)
        actual, expected = fast(mine, x), step(other, y)
        assert_same(content([actual, mine, x]), content([expected, other, y]))
        assert mine.items is kept
        assert (actual is mine.items) == (expected is other.items)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_lists(step: Step) -> None:
    check_lists(step, "interpreter")


@pytest.mark.parametrize("step", [append_in_loop, other_methods])
def test_lists_on_the_cpu(step: Step) -> None:
    check_lists(step, "cpu")


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        while x.sum() < 5:
            x = x + 1
            self.items.append(x)
        return x


GLOBAL: list[Tensor] = []


def to_global(x: Tensor) -> Tensor:
    if x.sum() > 0:
        GLOBAL.append(x)
    return x


def test_of_modules_globals_and_arguments() -> None:
    mine, other = Module(), Module()
    fast = stretto.compile(mine, backend="interpreter")
    kept = GLOBAL
    for x in (torch.ones(3), torch.zeros(3)):
        assert_same(fast(x), other(x))
        assert_same(mine.items, other.items)
        stretto.compile(to_global, backend="interpreter")(x)
    assert_same(kept, [torch.ones(3)])
    GLOBAL.clear()

    @stretto.compile(backend="interpreter")
    def to_argument(items: list[Tensor], x: Tensor) -> list[Tensor]:
        while x.sum() < 5:
            x = x + 1
            items.append(x)
        return items

    given = [torch.ones(3)]
    assert to_argument(given, torch.zeros(3)) is given
    assert_same(given, [torch.full((3,), float(value)) for value in (1, 1, 2)])


NUMBERS: list[int] = []
"""A global that functions change and read by its name."""


def taken_in_a_test(x: Tensor) -> Any:
    while NUMBERS.pop(0) < 3:
        pass
    return x * len(NUMBERS), sum(NUMBERS)


def taken_until_a_break(x: Tensor) -> Any:
    numbers = NUMBERS
    while True:
        if NUMBERS.pop(0) >= 3:
            break
    return x * len(numbers), NUMBERS[0]


def added_in_a_loop(x: Tensor) -> Any:
    while x.sum() < 5:
        x = x + 1
        NUMBERS.append(7)
    return x * len(NUMBERS), NUMBERS[-1], last_of_all()


def added_in_an_arm(x: Tensor) -> Any:
    if x.sum() > 5:
        NUMBERS.append(7)
    return x * len(NUMBERS), NUMBERS[-1], last_of_all()


def last_of_all() -> Any:
    return NUMBERS[-1] + len(NUMBERS)


@pytest.mark.parametrize(
    "fn", [taken_in_a_test, taken_until_a_break, added_in_a_loop, added_in_an_arm]
)
def test_a_global_list_is_read_after_its_length_changed(fn: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(fn, backend="interpreter")
    for numbers in ([1, 2, 3, 4], [2, 3, 5, 1], [1, 2, 3, 4]):
        for x in (torch.zeros(3), torch.full((3,), 2.0)):
            NUMBERS[:] = numbers
            expected, left = fn(x), [*NUMBERS]
            NUMBERS[:] = numbers
            assert_same(fast(x), expected)
            assert left == NUMBERS


def mixed(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.items.append("a")
    return x


def test_an_item_of_another_kind() -> None:
    ours, theirs, fast = State(), State(), stretto.compile(mixed)
    for value in (1.0, -1.0, 2.0, 0.0, 1.0):
        x = torch.full((3,), value)
        assert_same(fast(ours, x), mixed(theirs, x))
        assert repr(ours.items) == repr(theirs.items)


NAMES: set[str] = set()


def in_a_new_set(x: Tensor) -> Any:
    found: set[str] = set()
    while x.sum() > 10:
        found.add("looped")
        x = x * 0.5
    return x, "looped" in found, len(found)


def in_a_set_that_outlives(x: Tensor) -> Any:
    while x.sum() > 10:
        NAMES.add("looped")
        x = x * 0.5
    return x, "looped" in NAMES


def in_a_counted_loop(x: Tensor) -> Any:
    for _ in range(int(x.sum()) % 5):
        NAMES.add("looped")
    return x


@pytest.mark.parametrize("function", [in_a_new_set, in_a_set_that_outlives, in_a_counted_loop])
def test_items_that_a_loop_adds_to_a_set(function: Any) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for value in (9.0, 1.0, 9.0, 0.0):
        x = torch.full((3,), value)
        NAMES.clear()
        wanted, names = function(x), set(NAMES)
        NAMES.clear()
        assert_same(fast(x), wanted)
        assert names == NAMES
