"""Changes of globals and of what containers hold."""

from __future__ import annotations

import collections
import os
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.e2e.changes.case import Case, case, restoring
from tests.e2e.changes.functions import other_code, with_defaults

CONFIG = types.ModuleType("config_of_a_test")
CONFIG.SCALE = 2.0  # type: ignore[attr-defined]
CONFIG.inner = types.SimpleNamespace(scale=2.0)  # type: ignore[attr-defined]
TABLE = {"scale": 2.0, "name": "a"}
LONG = list(range(2000))
LONG_TABLE = {f"k{i}": float(i) for i in range(2000)}
NAMES = {"a", "b"}
GLOBAL_ARRAY = np.array([1.0, 2.0, 3.0], dtype=np.float32)


@case
def attribute_of_a_module() -> Case:
    return Case(lambda x: x * CONFIG.SCALE, lambda: restoring(vars(CONFIG), "SCALE", 3.0))


@case
def namespace_in_a_module() -> Case:
    return Case(
        lambda x: x * CONFIG.inner.scale,
        lambda: restoring(vars(CONFIG.inner), "scale", 3.0),
    )


@case
def entry_of_a_global_dict() -> Case:
    return Case(lambda x: x * TABLE["scale"], lambda: restoring(TABLE, "scale", 3.0))


@case
def key_of_a_dict() -> Case:
    table = {"a": 2.0}

    def change() -> None:
        table["b"] = table.pop("a")

    return Case(lambda x: x * (1 if "a" in table else 5), change)


@case
def item_of_a_long_list() -> Case:
    return Case(lambda x: x * LONG[1500], lambda: restoring(LONG, 1500, -1))


@case
def entry_of_a_long_dict() -> Case:
    return Case(lambda x: x * LONG_TABLE["k1500"], lambda: restoring(LONG_TABLE, "k1500", -1.0))


@case
def member_of_a_set() -> Case:
    names = {"a", "b"}

    def change() -> None:
        names.remove("b")
        names.add("c")

    return Case(lambda x: x * (2 if "b" in names else 3), change)


@case
def item_of_a_deque() -> Case:
    scales = collections.deque([1.0, 2.0], maxlen=2)
    return Case(lambda x: x * scales[0], lambda: scales.append(3.0))


@case
def entry_of_an_ordered_dict() -> Case:
    table = collections.OrderedDict(a=1.0, b=2.0)
    return Case(lambda x: x * next(iter(table.values())), lambda: table.move_to_end("a"))


@case
def entry_of_a_counter() -> Case:
    counter = collections.Counter("aab")
    return Case(lambda x: x * counter["a"], lambda: counter.update("a"))


@case
def item_in_a_nested_container() -> Case:
    table = {"layers": [({"scale": [2.0]},)]}

    def change() -> None:
        table["layers"][0][0]["scale"][0] = 3.0

    return Case(lambda x: x * table["layers"][0][0]["scale"][0], change)


@case
def content_of_an_array() -> Case:
    array = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    return Case(lambda x: x * float(array[1]), lambda: array.__setitem__(1, 5))


@case
def content_of_an_array_as_a_tensor() -> Case:
    array = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    return Case(lambda x: x * torch.tensor(array), lambda: array.__setitem__(1, 5))


@case
def content_of_an_array_of_an_attribute() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = np.arange(6.0).reshape(2, 3)[:, ::2]

        def forward(self, x: Tensor) -> Tensor:
            return x * float(self.table.sum())

    model = Model().eval()
    return Case(model, lambda: model.table.__setitem__((1, 1), 9))


@case
def array_of_objects() -> Case:
    array = np.array([2.0, "a"], dtype=object)
    return Case(lambda x: x * array[0], lambda: array.__setitem__(0, 5.0))


@case
def bytes_that_change() -> Case:
    data = bytearray(b"\x02\x03")
    return Case(lambda x: x * data[0], lambda: data.__setitem__(0, 5))


@case
def builtin_hidden_by_a_global() -> Case:
    space: dict[str, Any] = dict(globals())
    function = types.FunctionType(uses_len.__code__, space, "uses_len")
    return Case(function, lambda: space.__setitem__("len", lambda x: 7))


def uses_len(x: Tensor) -> Tensor:
    return x * len(TABLE)


@case
def helper_of_a_module() -> Case:
    module = types.ModuleType("helpers_of_a_test")
    module.scaled = with_defaults  # type: ignore[attr-defined]
    return Case(lambda x: module.scaled(x), lambda: setattr(module, "scaled", other_code))


@case
def environment_variable() -> Case:
    os.environ["STRETTO_TEST_SCALE"] = "2"
    return Case(
        lambda x: x * float(os.environ["STRETTO_TEST_SCALE"]),
        lambda: os.environ.update(STRETTO_TEST_SCALE="3"),
    )


@case
def environment_variable_by_a_function() -> Case:
    os.environ["STRETTO_TEST_SCALE"] = "2"
    return Case(
        lambda x: x * float(os.getenv("STRETTO_TEST_SCALE", "1")),
        lambda: os.environ.update(STRETTO_TEST_SCALE="3"),
    )


# ---- containers of the user's classes ------------------------------------------------------------


class Unread(AssertionError):
    """Raised by methods that nothing but the program may call."""


def unread(*_: object) -> Any:
    raise Unread


def lazy(kind: type[Any]) -> type[Any]:
    """A container whose methods do what nobody expects when a program is captured or watched."""
    methods = ("__iter__", "__len__", "__contains__", "keys", "values", "items", "index", "copy")
    return type(f"Lazy{kind.__name__}", (kind,), dict.fromkeys(methods, unread))


@case
def item_of_a_dict_with_methods_of_its_own() -> Case:
    table = lazy(dict)(scale=2.0)
    return Case(lambda x: x * table["scale"], lambda: dict.update(table, scale=3.0))


@case
def item_of_an_ordered_dict_with_methods_of_its_own() -> Case:
    table = lazy(collections.OrderedDict)()
    collections.OrderedDict.__setitem__(table, "scale", 2.0)
    change = collections.OrderedDict.__setitem__
    return Case(lambda x: x * table["scale"], lambda: change(table, "scale", 3.0))


@case
def item_of_a_list_with_methods_of_its_own() -> Case:
    scales = lazy(list)((2.0, 3.0))
    return Case(lambda x: x * scales[0], lambda: list.__setitem__(scales, 0, 5.0))


@case
def item_of_a_deque_with_methods_of_its_own() -> Case:
    scales = lazy(collections.deque)((2.0, 3.0))
    return Case(lambda x: x * scales[0], lambda: collections.deque.__setitem__(scales, 0, 5.0))
