"""A store of the value that is there already changes nothing, until another value is there."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto

HELD = SimpleNamespace(flag=False, last=None, number=1)
ENTRIES: dict[str, Any] = {"flag": False}
ITEMS: list[Any] = [False]
FLAG: Any = False


class Kept:
    flag: Any = False


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flag: Any = False
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.flag = False
        self.last = None
        return x * 2


MODEL = Model()


def attribute(x: Tensor) -> Tensor:
    HELD.flag = False
    return x


def attribute_twice(x: Tensor) -> Tensor:
    HELD.flag = True
    HELD.flag = False
    return x


def attribute_in_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        HELD.flag = False
    return x


def attribute_in_a_loop(x: Tensor) -> Tensor:
    k = 0
    while k < x[0]:
        k += 1
        HELD.flag = False
    return x


def global_name(x: Tensor) -> Tensor:
    global FLAG
    FLAG = False
    return x


def of_a_class(x: Tensor) -> Tensor:
    Kept.flag = False
    return x


def entry(x: Tensor) -> Tensor:
    ENTRIES["flag"] = False
    return x


def item(x: Tensor) -> Tensor:
    ITEMS[0] = False
    return x


def module(x: Tensor) -> Tensor:
    return MODEL(x)


def put(value: Any) -> None:
    global FLAG
    HELD.flag = Kept.flag = ENTRIES["flag"] = ITEMS[0] = FLAG = MODEL.flag = value


def held() -> list[Any]:
    return [HELD.flag, Kept.flag, ENTRIES["flag"], ITEMS[0], FLAG, MODEL.flag]


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    attribute, attribute_twice, attribute_in_an_arm, attribute_in_a_loop, global_name, of_a_class,
    entry, item, module,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_stores(function: Callable[[Tensor], Tensor]) -> None:
    compiled: Any = stretto.compile(function, backend="interpreter")
    for value, x in ((False, 1.0), (True, 1.0), ("text", 1.0), (False, -1.0), (3, -1.0), (3, 2.0)):
        put(value)
        function(torch.full((2,), x))
        wanted = held()
        put(value)
        compiled(torch.full((2,), x))
        assert held() == wanted, (value, x)
    put(False)


def test_an_argument_that_is_what_is_there() -> None:
    def keep(x: Tensor, n: int) -> Tensor:
        HELD.number = n
        return x * n

    HELD.number = 1
    compiled: Any = stretto.compile(keep, backend="interpreter")
    for n in (1, 3, 1, 2, 3, 1):
        compiled(torch.ones(2), n)
        assert HELD.number == n


def state() -> Any:
    return SimpleNamespace(
        items=[], d={}, kinds=set(), queue=collections.deque(), flag=False, ordered=[1, 2, 3],
        entries={"a": 1}, t=torch.zeros(2), a=1, b=1, number=1, last=None,
        inner=SimpleNamespace(flag=False), lists=[[], []],
    )  # fmt: skip


ACTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "clear": (lambda o: o.items.clear(), lambda o: o.items.append(5)),
    "clear a dict": (lambda o: o.d.clear(), lambda o: o.d.update(a=1)),
    "pop": (lambda o: o.d.pop("k", None), lambda o: o.d.update(k=1)),
    "discard": (lambda o: o.kinds.discard(3), lambda o: o.kinds.add(3)),
    "clear a deque": (lambda o: o.queue.clear(), lambda o: o.queue.append(3)),
    "setattr": (lambda o: setattr(o, "flag", False), lambda o: setattr(o, "flag", True)),
    "vars": (lambda o: vars(o).update(flag=False), lambda o: setattr(o, "flag", True)),
    "sort": (lambda o: o.ordered.sort(), lambda o: o.ordered.reverse()),
    "update": (lambda o: o.entries.update(a=1), lambda o: o.entries.update(a=2)),
    "setitem": (lambda o: operator.setitem(o.entries, "a", 1), lambda o: o.entries.update(a=2)),
    "fill_": (lambda o: o.t.fill_(0), lambda o: o.t.fill_(3)),
    "another's": (lambda o: setattr(o, "a", o.b), lambda o: setattr(o, "a", 9)),
    "max": (lambda o: setattr(o, "number", max(o.number, 1)), lambda o: setattr(o, "number", 0)),
    "inner": (lambda o: setattr(o.inner, "flag", False), lambda o: setattr(o.inner, "flag", True)),
    "a list in a list": (lambda o: o.lists[0].clear(), lambda o: o.lists[0].append(1)),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("is_argument", [False, True])
def test_acts_that_change_nothing_at_first(name: str, is_argument: bool) -> None:
    act, change = ACTS[name]
    own, kept = state(), state()

    def of_closure(x: Tensor) -> Tensor:
        act(kept)
        return x

    def of_argument(x: Tensor, o: Any) -> Tensor:
        act(o)
        return x

    compiled: Any = stretto.compile(
        of_argument if is_argument else of_closure, backend="interpreter"
    )
    for number in range(4):
        if number:
            change(own)
            change(kept)
        act(own)
        compiled(*(torch.ones(2), kept)[: 1 + is_argument])
        assert repr(own) == repr(kept)
