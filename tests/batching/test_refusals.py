"""What a batch does not do is refused at its line, with a remedy, and changes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from stretto.errors import CaptureError
from tests.batching.agree import check

LOG: list[int] = []
DROPOUT = nn.Dropout(0.5)
NORMALISATION = nn.BatchNorm1d(3)
WEIGHT = nn.Parameter(torch.ones(3))


def changes_a_global(x: Any) -> Any:
    LOG.append(1)
    return x


def draws_in_python(x: Any) -> Any:
    return x + random.random()


def draws_a_tensor(x: Any) -> Any:
    return x + torch.rand(3)


def reads_a_clock(x: Any) -> Any:
    return x + time.time()


def trains_dropout(x: Any) -> Any:
    return DROPOUT(x)


def trains_a_normalisation(x: Any) -> Any:
    return NORMALISATION(x.unsqueeze(0).repeat(2, 1))


def changes_a_parameter(x: Any) -> Any:
    WEIGHT.add_(x)
    return WEIGHT


def assigns_an_item(x: Any) -> Any:
    x[0] = 1
    return x


def changes_in_place(x: Any) -> Any:
    x.mul_(2)
    return x


def prints(x: Any) -> Any:
    print(x)
    return x


FUNCTIONS: dict[Callable[..., Any], str] = {
    changes_a_global: "append changes a list that all instances share",
    draws_in_python: "another value at each call",
    draws_a_tensor: "draws random numbers",
    reads_a_clock: "another value at each call",
    trains_dropout: "training mode",
    trains_a_normalisation: "in place",
    changes_a_parameter: "add_",
    assigns_an_item: "an item of tensor",
    changes_in_place: "in place",
    prints: "print",
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda item: item.__name__)
def test_refused_at_its_line(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match=FUNCTIONS[function]) as caught:
        check(function, [torch.ones(3)])
    assert caught.value.location is not None
    assert caught.value.location.line == function.__code__.co_firstlineno + 1
    assert caught.value.remedy
    assert not LOG and torch.equal(WEIGHT, torch.ones(3))


@pytest.mark.parametrize(
    ("instance", "path"),
    [(object(), "[0]"), ({1: 2, "a": 3}, "[0]"), ([1, [lambda x: x]], "[0][1][0]")],
)
def test_what_is_no_data_is_named_by_its_path(instance: Any, path: str) -> None:
    with pytest.raises(CaptureError, match="argument 0") as caught:
        check(lambda x: x, [instance])
    assert f"argument 0{path} is " in caught.value.message


def test_what_is_no_data_may_be_where_the_program_does_not_look() -> None:
    class Item:
        def __init__(self, x: torch.Tensor, more: Any) -> None:
            self.x = x
            self.more = more

    def check_all(*more: Any) -> None:
        items = [Item(torch.ones(2) * n, value) for n, value in enumerate(more)]
        facts = [{"why": value} for value in more]
        for (x, item, fact), known, given in zip(many(items, facts), items, facts, strict=True):
            assert torch.equal(x, known.x * 2) and item is known and fact is given

    many = stretto.batch(lambda item, facts: (item.x * 2, item, facts))
    check_all({1, 2}, lambda: 0, {1: 2, "a": [object()]}, [1, {"f": b""}], 2**70, None)
    items = [Item(torch.ones(2), 1), Item(torch.ones(2), 2)]
    del items[1].more
    assert many(items, [{}, {}])[1][1] is items[1]


@pytest.mark.whole
def test_optional_attributes() -> None:
    class Item:
        def __init__(self, x: int) -> None:
            self.x = x

    def function(item: Any) -> Any:
        more = item.more if hasattr(item, "more") else 0
        return item.x, more, getattr(item, "rest", None)

    def check_all() -> None:
        assert many(items) == [function(item) for item in items]

    items: list[Any] = [Item(1), Item(2), Item(3)]
    many = stretto.batch(function)
    check_all()
    items[1].more = 5
    check_all()
    items[0].more, items[2].rest = 7, "text"
    check_all()
    for item in items:
        item.more = item.rest = 2.5
    check_all()
    del items[1].more
    check_all()

    many = stretto.batch(lambda item: item.more)
    assert many(items[::2]) == [2.5, 2.5]
    with pytest.raises(AttributeError, match="'Item' object has no attribute 'more'"):
        many(items)
    assert many(items[:1]) == [2.5]


def test_an_attribute_that_a_kind_of_data_lacks() -> None:
    def read(x: Any) -> Any:
        return x.foo

    check(read, [1, torch.ones(3), None, "a", [1], (1, 2)])


def _odd_product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 5)


def test_an_operator_that_refuses_its_operands_leaves_no_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """torch logs a traceback of its own where its fake tensors fail."""
    with pytest.raises(RuntimeError, match="same reduction dim|cannot be multiplied"):
        stretto.batch(_odd_product)([torch.ones(4), torch.ones(4)])
    assert "failed while attempting" not in capfd.readouterr().err


def test_an_operator_whose_kernel_needs_the_elements() -> None:
    """torch's fake tensors say so by an error of their own."""

    def split(given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.tensor_split(given[0], given[1])[0]

    given = (torch.randn(5, 2), torch.tensor([1, 3]))
    with pytest.raises(CaptureError, match="depends on the content of a tensor"):
        stretto.batch(split)([given, given])


def test_operands_of_very_many_types() -> None:
    """There would be a call for each combination of their types."""

    def joined(items: list[torch.Tensor]) -> torch.Tensor:
        a, b, c, d, e = items[0], items[1], items[2], items[3], items[4]
        return torch.cat([a, b, c, d, e], 1)

    items = [torch.randn(2, size) for size in (1, 2, 3, 4, 5)]
    with pytest.raises(CaptureError, match="5 operands, each of .* 3125 combinations"):
        stretto.batch(joined)([items, items])
