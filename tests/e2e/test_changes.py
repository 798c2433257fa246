"""What a program was specialised on changes between two calls; the result is then that of eager.

Each case makes a function, its arguments, and a change; nothing about the arguments' tensors
changes, so that only the watching of everything else can notice.
"""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import stretto
from stretto.options import Options
from tests.capture.checks import assert_same

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])

Change = Callable[[], object]


class Case(NamedTuple):
    """`function(*args)` before and after `change()`."""

    function: Callable[..., Any]
    change: Change
    args: tuple[Any, ...] = (X,)


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_eager_after_the_change(name: str) -> None:
    torch.manual_seed(0)
    function, change, args = CASES[name]()
    fast = stretto.compile(function, backend="interpreter", options=Options(threads=1))
    before = function(*args)
    assert_same(fast(*args), before)
    assert_same(fast(*args), before)
    change()
    wanted = function(*args)
    assert different(before, wanted), "the change changes nothing"
    assert_same(fast(*args), wanted)
    built = sum(entry.builds for entry in fast.signatures)
    assert_same(fast(*args), wanted)
    assert sum(entry.builds for entry in fast.signatures) == built, "compiled at each call"


def different(one: Any, other: Any) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return True
    return False


# ---- hooks, parametrizations, replaced forwards -------------------------------------------------


def two_layers() -> Any:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).eval()


def doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


def shifted(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] + 1,)


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@case
def forward_hook_on_the_root() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.register_forward_hook(doubled))


@case
def forward_hook_on_a_child() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.layer.register_forward_hook(doubled))


@case
def forward_hook_on_a_child_of_a_sequential() -> Case:
    model = two_layers()
    return Case(model, lambda: model[1].register_forward_hook(doubled))


@case
def forward_pre_hook() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.layer.register_forward_pre_hook(shifted))


@case
def forward_hook_with_kwargs() -> Case:
    model = Affine().eval()

    def hook(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        return result + 1

    return Case(model, lambda: model.register_forward_hook(hook, with_kwargs=True))


@case
def forward_hook_removed() -> Case:
    model = Affine().eval()
    handle = model.layer.register_forward_hook(doubled)
    return Case(model, handle.remove)


@case
def forward_hook_exchanged() -> Case:
    model = Affine().eval()
    handle = model.layer.register_forward_hook(doubled)

    def change() -> None:
        handle.remove()
        model.layer.register_forward_hook(lambda module, args, result: result * 3)

    return Case(model, change)


@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("kind", ["hook", "pre_hook"])
def test_global_module_hooks(kind: str, children: bool) -> None:
    model = two_layers() if children else Affine().eval()
    fast = stretto.compile(model, backend="interpreter")
    before = fast(X)
    if kind == "hook":
        handle = nn.modules.module.register_module_forward_hook(doubled)
    else:
        handle = nn.modules.module.register_module_forward_pre_hook(shifted)
    try:
        wanted = model(X)
        assert different(before, wanted)
        assert_same(fast(X), wanted)
    finally:
        handle.remove()
    assert_same(fast(X), before)


@case
def forward_of_the_instance() -> Case:
    model = Affine().eval()

    def change() -> None:
        model.forward = lambda x: x * 5

    return Case(model, change)


@case
def forward_of_a_child_instance() -> Case:
    model = two_layers()

    def change() -> None:
        model[0].forward = lambda x: x * 5

    return Case(model, change)


@case
def forward_of_the_class() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    def forward(self: Any, x: Tensor) -> Tensor:
        return x + 2

    return Case(Model().eval(), lambda: setattr(Model, "forward", forward))


@case
def forward_of_a_base_class() -> Case:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    return Case(Model().eval(), lambda: setattr(Base, "forward", lambda self, x: x + 2))


@case
def forward_given_to_a_subclass_later() -> Case:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Model(Base):
        pass

    return Case(Model().eval(), lambda: setattr(Model, "forward", lambda self, x: x + 2))


@case
def class_of_an_instance() -> Case:
    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Two(One):
        def forward(self, x: Tensor) -> Tensor:
            return x + 2

    model = One().eval()
    return Case(model, lambda: setattr(model, "__class__", Two))


@case
def method_of_the_class() -> Case:
    class Model(nn.Module):
        def part(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) * 2

    return Case(Model().eval(), lambda: setattr(Model, "part", lambda self, x: x + 2))


@case
def method_of_the_instance() -> Case:
    class Model(nn.Module):
        def part(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) * 2

    model = Model().eval()
    return Case(model, lambda: setattr(model, "part", lambda x: x - 2))


class Doubling(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * 2 + 1


@case
def parametrization() -> Case:
    model = Affine().eval()
    return Case(
        model, lambda: parametrize.register_parametrization(model.layer, "weight", Doubling())
    )


@case
def parametrization_removed() -> Case:
    model = Affine().eval()
    parametrize.register_parametrization(model.layer, "weight", Doubling())
    return Case(
        model,
        lambda: parametrize.remove_parametrizations(
            model.layer, "weight", leave_parametrized=False
        ),
    )


@case
def parametrized_original() -> Case:
    model = Affine().eval()
    parametrize.register_parametrization(model.layer, "weight", Doubling())
    return Case(model, lambda: model.layer.parametrizations.weight.original.mul_(3))


@case
def weight_norm_of_parametrizations() -> Case:
    model = Affine().eval()

    def change() -> None:
        nn.utils.parametrizations.weight_norm(model.layer)
        model.layer.parametrizations.weight.original0.mul_(3)

    return Case(model, change)


@case
def spectral_norm_of_parametrizations() -> Case:
    model = Affine().eval()
    return Case(model, lambda: nn.utils.parametrizations.spectral_norm(model.layer))


@case
def half_and_back() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.half().float())


@case
def double_of_a_module() -> Case:
    model = Affine().eval()
    x = X.double()

    def function(y: Tensor) -> Tensor:
        return model(y.to(model.layer.weight.dtype))

    return Case(function, model.double, (x,))


@case
def bfloat16_of_a_module() -> Case:
    model = Affine().eval()
    return Case(lambda y: model(y.to(model.layer.weight.dtype)), model.bfloat16)


# ---- functions ----------------------------------------------------------------------------------


def fresh(function: types.FunctionType) -> Any:
    """A copy of a function that a test may change."""
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def with_defaults(x: Tensor, k: float = 2.0, *, b: float = 1.0) -> Tensor:
    return x * k + b


def other_code(x: Tensor, k: float = 2.0, *, b: float = 1.0) -> Tensor:
    return x * k - b


@case
def defaults_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__defaults__", (7.0,)))


@case
def keyword_defaults_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__kwdefaults__", {"b": 5.0}))


@case
def code_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__code__", other_code.__code__))


@case
def defaults_of_a_helper() -> Case:
    helper = fresh(with_defaults)
    return Case(lambda x: helper(x) * 2, lambda: setattr(helper, "__defaults__", (7.0,)))


@case
def code_of_a_helper() -> Case:
    helper = fresh(with_defaults)
    return Case(lambda x: helper(x) * 2, lambda: setattr(helper, "__code__", other_code.__code__))


@case
def defaults_of_a_method() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor, k: float = 2.0) -> Tensor:
            return x * k

    return Case(Model().eval(), lambda: setattr(Model.forward, "__defaults__", (3.0,)))


@case
def content_of_a_default() -> Case:
    scales = [2.0]

    def function(x: Tensor, k: list[float] = scales) -> Tensor:
        return x * k[0]

    return Case(function, lambda: scales.__setitem__(0, 3.0))


@case
def nonlocal_variable() -> Case:
    k = 2.0

    def change() -> None:
        nonlocal k
        k = 3.0

    return Case(lambda x: x * k, change)


@case
def function_in_a_closure() -> Case:
    helper = with_defaults

    def change() -> None:
        nonlocal helper
        helper = other_code

    return Case(lambda x: helper(x), change)


@case
def partial_of_a_list() -> Case:
    scales = [2.0]
    return Case(
        functools.partial(lambda k, x: x * k[0], scales), lambda: scales.__setitem__(0, 3.0)
    )


# ---- globals and modules ------------------------------------------------------------------------

CONFIG = types.ModuleType("config_of_a_test")
CONFIG.SCALE = 2.0  # type: ignore[attr-defined]
CONFIG.inner = types.SimpleNamespace(scale=2.0)  # type: ignore[attr-defined]
TABLE = {"scale": 2.0, "name": "a"}
LONG = list(range(2000))
LONG_TABLE = {f"k{i}": float(i) for i in range(2000)}
NAMES = {"a", "b"}
GLOBAL_ARRAY = np.array([1.0, 2.0, 3.0], dtype=np.float32)


def restoring(table: Any, key: Any, value: Any) -> None:
    """Sets an entry; the fixture below puts it back."""
    RESTORED.append((table, key, table[key]))
    table[key] = value


RESTORED: list[tuple[Any, Any, Any]] = []


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    while RESTORED:
        table, key, value = RESTORED.pop()
        table[key] = value


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


# ---- attributes of objects ----------------------------------------------------------------------


class Held(nn.Module):
    """Computes with whatever `use` finds in its `box`."""

    def __init__(self, box: Any, use: Callable[[Any], Any]) -> None:
        super().__init__()
        self.box = box
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return x * self.use(self.box)


def held(box: Any, use: Callable[[Any], Any], change: Callable[[Any], object]) -> Case:
    return Case(Held(box, use).eval(), lambda: change(box))


class Plain:
    shared = 2.0

    def __init__(self) -> None:
        self.scale = 2.0
        self._hidden = 2.0
        self.items = [2.0, 3.0]
        self.w0, self.w1 = 2.0, 4.0

    @property
    def doubled(self) -> float:
        return self._hidden * 2

    @property
    def of_global(self) -> float:
        return TABLE["scale"]

    @functools.cached_property
    def cached(self) -> float:
        return self._hidden * 2

    @staticmethod
    def fixed() -> float:
        return TABLE["scale"]

    @classmethod
    def of_class(cls) -> float:
        return cls.shared

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> float:
        return self.items[index]

    def __contains__(self, item: float) -> bool:
        return item in self.items

    def __iter__(self) -> Iterator[float]:
        return iter(self.items)

    def __call__(self) -> float:
        return self._hidden

    def __float__(self) -> float:
        return self._hidden

    def __bool__(self) -> bool:
        return self._hidden > 3


def setting(name: str, value: Any) -> Callable[[Any], None]:
    return lambda box: setattr(box, name, value)


@case
def attribute_of_an_object() -> Case:
    return held(Plain(), lambda box: box.scale, setting("scale", 3.0))


@case
def attribute_behind_a_property() -> Case:
    return held(Plain(), lambda box: box.doubled, setting("_hidden", 3.0))


@case
def global_behind_a_property() -> Case:
    return held(Plain(), lambda box: box.of_global, lambda box: restoring(TABLE, "scale", 3.0))


@case
def cached_property() -> Case:
    def change(box: Any) -> None:
        box._hidden = 3.0
        del box.cached

    return held(Plain(), lambda box: box.cached, change)


@case
def global_behind_a_static_method() -> Case:
    return held(Plain(), lambda box: box.fixed(), lambda box: restoring(TABLE, "scale", 3.0))


@case
def attribute_of_a_class() -> Case:
    class Shared(Plain):
        shared = 2.0

    return held(Shared(), lambda box: box.shared, lambda box: setattr(Shared, "shared", 3.0))


@case
def attribute_of_a_class_by_a_class_method() -> Case:
    class Shared(Plain):
        shared = 2.0

    return held(Shared(), lambda box: box.of_class(), lambda box: setattr(Shared, "shared", 3.0))


@case
def attribute_of_a_class_hidden_by_one_of_the_instance() -> Case:
    return held(Plain(), lambda box: box.shared, setting("shared", 3.0))


@case
def attribute_of_a_base_class_hidden_by_one_of_a_class() -> Case:
    class Shared(Plain):
        pass

    return held(Shared(), lambda box: box.shared, lambda box: setattr(Shared, "shared", 3.0))


@case
def property_replaced() -> Case:
    class Other(Plain):
        @property
        def doubled(self) -> float:
            return 1.0

    return held(
        Other(),
        lambda box: box.doubled,
        lambda box: setattr(Other, "doubled", property(lambda self: 7.0)),
    )


@case
def length_of_an_object() -> Case:
    return held(Plain(), lambda box: len(box), lambda box: box.items.append(1.0))


@case
def item_of_an_object() -> Case:
    return held(Plain(), lambda box: box[1], lambda box: box.items.__setitem__(1, 7.0))


@case
def member_of_an_object() -> Case:
    return held(Plain(), lambda box: 5 if 3.0 in box else 6, lambda box: box.items.pop())


@case
def items_of_an_object() -> Case:
    return held(Plain(), lambda box: sum(list(box)), lambda box: box.items.append(1.0))


@case
def call_of_an_object() -> Case:
    return held(Plain(), lambda box: box(), setting("_hidden", 3.0))


@case
def number_of_an_object() -> Case:
    return held(Plain(), lambda box: float(box), setting("_hidden", 3.0))


@case
def truth_of_an_object() -> Case:
    return held(Plain(), lambda box: 2 if box else 3, setting("_hidden", 4.0))


@case
def attribute_by_a_built_name() -> Case:
    return held(Plain(), lambda box: sum(getattr(box, f"w{i}") for i in range(2)), setting("w1", 9))


@case
def attribute_by_a_built_name_in_a_method() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(3):
                setattr(self, f"w{i}", float(i))

        def forward(self, x: Tensor) -> Tensor:
            for i in range(3):
                x = x * 0.5 + getattr(self, f"w{i}")
            return x

    model = Model().eval()
    return Case(model, lambda: setattr(model, "w2", 7.0))


@case
def attribute_by_a_built_name_behind_a_property() -> Case:
    class Chosen(Plain):
        which = 1

        @property
        def chosen(self) -> float:
            return getattr(self, f"w{self.which}")

    return held(Chosen(), lambda box: box.chosen, setting("w1", 9.0))


@case
def attribute_by_a_path() -> Case:
    box = types.SimpleNamespace(inner=Plain())
    return held(
        box,
        lambda box: functools.reduce(getattr, ("in" + "ner", "sca" + "le"), box),
        lambda box: setattr(box.inner, "scale", 9.0),
    )


@case
def attribute_in_the_dict() -> Case:
    return held(Plain(), lambda box: box.__dict__["sca" + "le"], setting("scale", 3.0))


@case
def attribute_in_vars() -> Case:
    return held(Plain(), lambda box: vars(box)["sca" + "le"], setting("scale", 3.0))


@case
def attribute_with_a_default() -> Case:
    return held(Plain(), lambda box: getattr(box, "extra", 2.0), setting("extra", 3.0))


@case
def attribute_that_is_asked_for() -> Case:
    return held(Plain(), lambda box: 2 if hasattr(box, "extra") else 3, setting("extra", 3.0))


@case
def attribute_that_is_deleted() -> Case:
    return held(
        Plain(),
        lambda box: box.scale if hasattr(box, "scale") else 9,
        lambda box: delattr(box, "scale"),
    )


class Slotted:
    __slots__ = ("items", "later", "scale")

    def __init__(self) -> None:
        self.scale = 2.0
        self.items = [2.0]


@case
def slot() -> Case:
    return held(Slotted(), lambda box: box.scale, setting("scale", 3.0))


@case
def list_in_a_slot() -> Case:
    return held(Slotted(), lambda box: box.items[0], lambda box: box.items.__setitem__(0, 3.0))


@case
def slot_that_is_set_later() -> Case:
    return held(Slotted(), lambda box: getattr(box, "later", 2.0), setting("later", 3.0))


class SlottedChild(Slotted):
    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = 4.0


@case
def slot_of_a_base_class() -> Case:
    return held(SlottedChild(), lambda box: box.scale * box.own, setting("scale", 3.0))


class Mode(enum.Enum):
    FAST = 2
    SLOW = 3


@dataclass
class Config:
    scale: float = 2.0
    mode: Mode = Mode.FAST
    sizes: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(slots=True)
class SlottedConfig:
    scale: float = 2.0


@dataclass(frozen=True)
class FrozenConfig:
    scale: float = 2.0


@case
def field_of_a_dataclass() -> Case:
    return held(Config(), lambda box: box.scale, setting("scale", 3.0))


@case
def field_of_a_slotted_dataclass() -> Case:
    return held(SlottedConfig(), lambda box: box.scale, setting("scale", 3.0))


@case
def enum_in_a_dataclass() -> Case:
    return held(Config(), lambda box: box.mode.value, setting("mode", Mode.SLOW))


@case
def enum_that_is_compared() -> Case:
    return held(Config(), lambda box: 5 if box.mode is Mode.FAST else 6, setting("mode", Mode.SLOW))


@case
def list_in_a_dataclass() -> Case:
    return held(Config(), lambda box: box.sizes[-1], lambda box: box.sizes.append(5))


@case
def frozen_dataclass_replaced() -> Case:
    model = Held(FrozenConfig(), lambda box: box.scale).eval()
    return Case(model, lambda: setattr(model, "box", FrozenConfig(3.0)))


@case
def simple_namespace() -> Case:
    return held(types.SimpleNamespace(scale=2.0), lambda box: box.scale, setting("scale", 3.0))


@case
def parsed_arguments() -> Case:
    return held(argparse.Namespace(scale=2.0), lambda box: box.scale, setting("scale", 3.0))


class Dynamic:
    def __init__(self) -> None:
        self.table = {"scale": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.table[name]


@case
def attribute_that_is_computed() -> Case:
    return held(Dynamic(), lambda box: box.scale, lambda box: box.table.update(scale=3.0))


class Descriptor:
    def __init__(self) -> None:
        self.value = 2.0

    def __get__(self, instance: object, owner: type) -> float:
        return self.value


@case
def attribute_behind_a_descriptor() -> Case:
    class Described:
        part = Descriptor()

    return held(
        Described(),
        lambda box: box.part,
        lambda box: setattr(vars(Described)["part"], "value", 3.0),
    )


class DictLike(dict[str, float]):
    pass


@case
def entry_of_a_dict_of_a_class() -> Case:
    return held(DictLike(a=2.0), lambda box: box["a"], lambda box: box.update(a=3.0))


# ---- structure of modules -----------------------------------------------------------------------


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.table = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.last: Any = nn.Sigmoid()
        self.register_buffer("shift", torch.ones(3))
        self.pairs = [(nn.Linear(3, 3), 2.0)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        for part in self.table.values():
            x = part(x)
        for weight in self.weights:
            x = x * weight
        if self.last is not None:
            x = self.last(x)
        for layer, scale in self.pairs:
            x = layer(x) * scale
        return x + self.shift


def stack(change: Callable[[Any], object]) -> Case:
    model = Stack().eval()
    return Case(model, lambda: change(model))


@case
def module_appended() -> Case:
    return stack(lambda model: model.layers.append(nn.Linear(3, 3)))


@case
def module_replaced() -> Case:
    return stack(lambda model: model.layers.__setitem__(0, nn.Linear(3, 3)))


@case
def module_deleted() -> Case:
    return stack(lambda model: model.layers.__delitem__(0))


@case
def modules_exchanged() -> Case:
    def change(model: Any) -> None:
        model.layers[0], model.layers[1] = model.layers[1], model.layers[0]

    return stack(change)


@case
def module_of_a_dict_replaced() -> Case:
    return stack(lambda model: model.table.update({"a": nn.Identity()}))


@case
def module_set_to_none() -> Case:
    return stack(lambda model: setattr(model, "last", None))


@case
def parameter_appended() -> Case:
    return stack(lambda model: model.weights.append(nn.Parameter(torch.full((3,), 2.0))))


@case
def buffer_replaced() -> Case:
    return stack(lambda model: setattr(model, "shift", torch.zeros(3)))


@case
def module_in_a_plain_list_replaced() -> Case:
    return stack(lambda model: model.pairs.__setitem__(0, (nn.Linear(3, 3), 3.0)))


@case
def hook_on_a_module_in_a_plain_list() -> Case:
    return stack(lambda model: model.pairs[0][0].register_forward_hook(doubled))


@case
def option_of_a_layer_of_torch() -> Case:
    model = nn.Sequential(nn.LayerNorm(3, eps=1e-5)).eval()
    return Case(model, lambda: setattr(model[0], "eps", 1.0))


@case
def slope_of_an_activation() -> Case:
    model = nn.LeakyReLU(0.1).eval()
    return Case(model, lambda: setattr(model, "negative_slope", 0.7))


@case
def stride_of_a_pool_of_a_class() -> Case:
    class Pool(nn.AvgPool1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model = Pool(1).eval()
    return Case(model, lambda: setattr(model, "stride", (2,)))


@case
def training_of_a_child() -> Case:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Identity()).eval()
    model[0].running_mean.fill_(3.0)
    model[0].momentum = 0.0
    return Case(model, lambda: model[0].train())


class Distributed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.normal.variance + self.normal.mean


@case
def parameter_of_a_distribution() -> Case:
    model = Distributed().eval()
    return Case(model, lambda: setattr(model.normal, "loc", torch.ones(3)))


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


# ---- settings of torch --------------------------------------------------------------------------


def made_from_numbers(x: Tensor) -> tuple[Tensor, torch.dtype]:
    table = torch.tensor([0.1, 0.2, 0.3])
    return x + table, torch.zeros(3).dtype


def test_default_dtype() -> None:
    fast = stretto.compile(made_from_numbers, backend="interpreter")
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert_same(fast(X), made_from_numbers(X))
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast() -> None:
    model = Affine().eval()
    fast = stretto.compile(model, backend="interpreter")
    assert_same(fast(X), model(X))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert fast(X).dtype == model(X).dtype == dtype
            assert_same(fast(X), model(X))
    with torch.autocast("cpu", enabled=False):
        assert_same(fast(X), model(X))
    assert_same(fast(X), model(X))


def asks_for_modes(x: Tensor) -> tuple[Tensor, bool, bool, bool, torch.dtype]:
    scale = 2.0 if torch.is_grad_enabled() else 3.0
    if torch.is_inference_mode_enabled():
        scale *= 5
    return (
        x * scale,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )


def test_modes_that_a_function_asks_for() -> None:
    fast = stretto.compile(asks_for_modes, backend="interpreter")
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            assert_same(fast(X), asks_for_modes(X))
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(fast(X), asks_for_modes(X))
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(fast(X), asks_for_modes(X))
