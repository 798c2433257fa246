"""Changes of the user's objects: after each call they are as after the original function."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python.tracing.tensor import TracedTensor
from tests.frontends.python.checks import assert_same

Step = Callable[[Any, Tensor], Any]


class Store:
    """What the functions of this file change."""

    total = 0

    def __init__(self) -> None:
        self.k = torch.zeros(2, 0, 3)
        self.h = torch.zeros(2, 3)
        self.other: Any = None
        self.items: list[Any] = []
        self.pair = [torch.zeros(2, 3), torch.ones(2, 3)]
        self.d: dict[Any, Any] = {"h": torch.zeros(2, 3), "n": 0}
        self.names = {"first"}
        self.recent: deque[Any] = deque(maxlen=3)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.n = 0
        self.scale = 1.0
        self.flag = False
        self.two: tuple[Any, ...] = (torch.zeros(2, 3), 0)

    @property
    def hidden(self) -> Any:
        return self.h

    @hidden.setter
    def hidden(self, value: Any) -> None:
        self.h = value

    def bump(self, x: Tensor) -> Tensor:
        self.n += 1
        self.h = self.h + x
        return self.h


@dataclass
class Cell:
    keys: Any = None
    seen: int = 0

    def update(self, key: Tensor) -> Tensor:
        self.keys = key if self.keys is None else torch.cat([self.keys, key], 0)
        self.seen += key.shape[0]
        return self.keys


@dataclass
class Slotted:
    __slots__ = ("h", "n")
    h: Any
    n: int


def grow(s: Any, x: Tensor) -> Any:
    s.k = torch.cat([s.k, x.unsqueeze(1)], 1)
    return s.k.sum(1)


def recur(s: Any, x: Tensor) -> Any:
    s.h = torch.tanh(s.h + x)
    return s.h * 2


def write_in_place_and_replace(s: Any, x: Tensor) -> Any:
    s.h.mul_(2)
    s.h[0] = x[1]
    s.h = s.h + x
    s.h.add_(1)
    return s.h


def append(s: Any, x: Tensor) -> Any:
    s.items.append(x * 2)
    return x + len(s.items)


def append_and_stack(s: Any, x: Tensor) -> Any:
    s.items.append(x)
    return torch.stack(s.items).sum(0)


def set_item(s: Any, x: Tensor) -> Any:
    s.pair[0] = torch.tanh(s.pair[0] + x)
    s.pair[1], s.pair[0] = s.pair[0], s.pair[1]
    return s.pair[0] + 1


def replace_list(s: Any, x: Tensor) -> Any:
    s.pair = [*s.pair[1:], x + s.pair[0]]
    return sum(s.pair)


def set_entry(s: Any, x: Tensor) -> Any:
    s.d["h"] = torch.tanh(s.d["h"] + x)
    s.d["n"] += 1
    return s.d["h"] * s.d["n"]


def change_dict(s: Any, x: Tensor) -> Any:
    s.d[f"new{len(s.d)}"] = x
    first = s.d.pop(next(iter(s.d)))
    s.d["again"] = first
    return x + 1


def count(s: Any, x: Tensor) -> Any:
    s.n += 1
    return x * 2


def count_and_use(s: Any, x: Tensor) -> Any:
    s.n += 1
    return x * s.n


def count_and_branch(s: Any, x: Tensor) -> Any:
    s.n += 1
    return x if s.n > 2 else x[:1]


def count_and_index(s: Any, x: Tensor) -> Any:
    s.n = (s.n + 1) % 2
    return x[:, : s.n + 1]


def count_as_text(s: Any, x: Tensor) -> Any:
    s.n += 1
    s.d[f"step{s.n}"] = x + s.n
    return x


def count_as_key(s: Any, x: Tensor) -> Any:
    s.n += 1
    s.d[s.n] = x
    return x + (1 if s.n in s.d else 2)


def count_and_look_up(s: Any, x: Tensor) -> Any:
    s.n += 1
    factor = 2.0 if s.n in {1: "one", 3: "three"} else 1.0
    name = f"{s.n}"
    return x * factor + (5 if name == "2" else 6)


def scale(s: Any, x: Tensor) -> Any:
    s.scale *= 0.5
    return x * s.scale


def toggle(s: Any, x: Tensor) -> Any:
    s.flag = not s.flag
    return x + 1 if s.flag else x - 1


def write_only(s: Any, x: Tensor) -> Any:
    y = torch.relu(x)
    s.other = y
    return y


def keep_input(s: Any, x: Tensor) -> Any:
    s.other = x
    s.items[:] = [x, x]
    return x


def share(s: Any, x: Tensor) -> Any:
    y = x * 3
    made = [y, y]
    s.other = made
    s.two = (made, y)
    return made


def tuples(s: Any, x: Tensor) -> Any:
    h, n = s.two
    s.two = (h + x, n + 1)
    return s.two[0] * 2


def new_object(s: Any, x: Tensor) -> Any:
    if s.other is None:
        s.other = [Cell(), Cell()]
    return sum(cell.update(x).sum(0) for cell in s.other)


def sets_and_deques(s: Any, x: Tensor) -> Any:
    s.names.add("second")
    s.names.discard("first")
    s.recent.append(x)
    s.counts["calls"] += 1
    return sum(s.recent)


def through_property(s: Any, x: Tensor) -> Any:
    s.hidden = s.hidden + x
    return s.hidden * 1


def through_method(s: Any, x: Tensor) -> Any:
    return s.bump(x) + s.bump(x)


def delete(s: Any, x: Tensor) -> Any:
    if hasattr(s, "extra"):
        del s.extra
        return x
    s.extra = x
    return x + 1


def branch(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.h = s.h + x
        s.n += 1
    else:
        s.h = s.h * 2
    return s.h


def branch_one_arm(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.pair[0] = s.pair[0] + x
        s.d["h"] = s.pair[0] * 2
    return s.d["h"] + 1


def branch_through_method(s: Any, x: Tensor) -> Any:
    return s.bump(x) if x.sum() > 0 else x


def early_return(s: Any, x: Tensor) -> Any:
    s.n += 1
    if x.sum() > 0:
        return s.h * 2
    s.h = s.h + x
    return s.h


def conditional_operand(s: Any, x: Tensor) -> Any:
    y = x * 1
    if x.sum() > 0 and s.bump(x).sum() > 0:
        y = y + 1
    return y


def while_loop(s: Any, x: Tensor) -> Any:
    while s.h.sum() < 20:
        s.h = s.h + x.abs() + 1
        s.n += 2
    s.h = s.h - 10
    return s.h


def loop_test(s: Any, x: Tensor) -> Any:
    y = x * 0
    while s.bump(x.abs() + 1).sum() < 30:
        y = y + 1
    s.h = s.h * 0
    return y


def for_loop(s: Any, x: Tensor) -> Any:
    for i in range(8):
        s.h = torch.tanh(s.h + x * i)
        s.pair[1] = s.pair[1] + s.h
        s.n += 1
    return s.h


def append_in_static_loop(s: Any, x: Tensor) -> Any:
    for i in range(6):
        s.items.append(x + i)
    return torch.stack(s.items).mean(0)


def recursion(s: Any, x: Tensor) -> Any:
    def down(y: Tensor) -> Tensor:
        s.n += 1
        if y.abs().sum() < 1:
            return y
        return down(y * 0.5)

    return down(x)


def class_attribute(s: Any, x: Tensor) -> Any:
    type(s).total += 1
    return x + type(s).total


STEPS: list[Step] = [
    grow, recur, write_in_place_and_replace, append, append_and_stack, set_item, replace_list,
    set_entry, change_dict, count, count_and_use, count_and_branch, count_and_index, count_as_text,
    count_as_key, count_and_look_up, scale, toggle, write_only, keep_input, share, tuples,
    new_object, sets_and_deques, through_property, through_method, delete, branch, branch_one_arm,
    branch_through_method, early_return, conditional_operand, while_loop, loop_test, for_loop,
    append_in_static_loop, recursion,
]  # fmt: skip

WITHOUT_RECOMPILING: list[Step] = [
    recur, write_in_place_and_replace, set_item, replace_list, set_entry, count, count_and_use,
    write_only, through_property, through_method, branch, branch_one_arm, early_return,
    while_loop, for_loop,
]  # fmt: skip


def as_argument(step: Step, s: Store) -> Callable[[Tensor], Any]:
    fast = stretto.compile(step, backend="interpreter")
    return lambda x: fast(s, x)


def as_attribute(step: Step, s: Store) -> Callable[[Tensor], Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = s

        def forward(self, x: Tensor) -> Any:
            return step(self.held, x)

    return stretto.compile(Model().eval(), backend="interpreter")


def as_nested(step: Step, s: Store) -> Callable[[Tensor], Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = SimpleNamespace(layers=[SimpleNamespace(held=(s,))])

        def forward(self, x: Tensor) -> Any:
            return step(self.cache.layers[0].held[0], x)

    return stretto.compile(Model().eval(), backend="interpreter")


def as_closure(step: Step, s: Store) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        return step(s, x)

    return stretto.compile(run, backend="interpreter")


HELD: Any = None


def _run_global(x: Tensor) -> Any:
    return STEP_OF_GLOBAL(HELD, x)


STEP_OF_GLOBAL: Any = None


def as_global(step: Step, s: Store) -> Callable[[Tensor], Any]:
    globals()["HELD"], globals()["STEP_OF_GLOBAL"] = s, step
    return stretto.compile(_run_global, backend="interpreter")


HOLDERS = [as_argument, as_attribute, as_nested, as_closure, as_global]


def inputs(count: int) -> list[Tensor]:
    """Inputs whose sums have both signs."""
    found = [torch.randn(2, 3, generator=torch.Generator().manual_seed(i)) for i in range(count)]
    return [x.abs() if i % 3 == 1 else -x.abs() for i, x in enumerate(found)]


def contents(s: Any) -> dict[str, Any]:
    found = {
        name: {key: vars(item) if isinstance(item, Cell) else item for key, item in value.items()}
        if isinstance(value, dict)
        else [vars(item) if isinstance(item, Cell) else item for item in value]
        if isinstance(value, list | deque)
        else value
        for name, value in vars(s).items()
    }
    assert not any(isinstance(item, TracedTensor) for item in leaves(found))
    return found


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return leaves(list(value.values()))
    if isinstance(value, list | tuple | set):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def aliases(s: Any) -> list[int]:
    """For each leaf, which one is the same object first."""
    found = [id(item) for item in leaves(contents(s)) if isinstance(item, Tensor)]
    return [found.index(item) for item in found]


def compare(run: Callable[[Tensor], Any], step: Step, mine: Any, other: Any, calls: int) -> None:
    for x in inputs(calls):
        y = x.clone()
        with torch.no_grad():
            expected = step(other, y)
        assert_same(run(x), expected)
        assert_same(contents(mine), contents(other))
        assert aliases(mine) == aliases(other)
        assert_same(x, y)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_effects(step: Step) -> None:
    """Each pattern, held in a way that goes with its place in the list."""
    for holder in (as_argument, HOLDERS[1 + STEPS.index(step) % 4]):
        mine, other = Store(), Store()
        run = holder(step, mine)
        compare(run, step, mine, other, 4)


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
@pytest.mark.parametrize("step", [recur, append_and_stack, set_entry, new_object, branch])
def test_holders(step: Step, holder: Any) -> None:
    mine, other = Store(), Store()
    compare(holder(step, mine), step, mine, other, 4)


@pytest.mark.parametrize("step", WITHOUT_RECOMPILING, ids=lambda step: step.__name__)
def test_tensors_of_the_same_shape_need_no_new_program(step: Step) -> None:
    mine = Store()
    fast = stretto.compile(step, backend="interpreter")
    for x in inputs(4):
        fast(mine, x)
    assert [entry.builds for entry in fast.signatures] == [1]


def test_class_attributes() -> None:
    fast = stretto.compile(class_attribute, backend="interpreter")
    s, x = Store(), torch.ones(2, 3)
    try:
        assert [int(fast(s, x)[0, 0]) for _ in range(3)] == [2, 3, 4]
        assert Store.total == 3
    finally:
        Store.total = 0


@pytest.mark.parametrize("step", [recur, grow, append, set_entry, branch, while_loop])
def test_on_the_cpu(step: Step) -> None:
    mine, other = Store(), Store()
    fast = stretto.compile(step)
    compare(lambda x: fast(mine, x), step, mine, other, 3)


COUNT = 0
STATE = torch.zeros(3)


def test_globals_and_closures_that_are_assigned() -> None:
    def step(x: Tensor) -> Tensor:
        global COUNT, STATE
        COUNT += 1
        STATE = torch.tanh(STATE + x)
        return STATE * COUNT

    def make() -> tuple[Any, Any]:
        h, n = torch.zeros(3), 0

        def step(x: Tensor) -> Tensor:
            nonlocal h, n
            if x.sum() > 0:
                h = h + x
            n += 1
            return h

        return step, lambda: (h, n)

    global COUNT, STATE
    fast = stretto.compile(step, backend="interpreter")
    states = list[Any]()
    for run in (step, fast):
        COUNT, STATE = 0, torch.zeros(3)
        outputs = [run(torch.full((3,), float(k))) for k in range(3)]
        states.append((outputs, COUNT, STATE))
    assert_same(states[1], states[0])
    assert [entry.builds for entry in fast.signatures] == [1]
    (one, see_one), (two, see_two) = make(), make()
    quick = stretto.compile(two, backend="interpreter")
    for k in (1.0, -1.0, 2.0):
        assert_same(quick(torch.full((3,), k)), one(torch.full((3,), k)))
        assert_same(see_two(), see_one())


def test_containers_among_the_arguments() -> None:
    def step(items: list[Tensor], table: dict[str, Any], x: Tensor) -> Any:
        items.append(x * 2)
        items[0] = items[0] + 1
        table["sum"] = sum(items)
        table["items"] = items
        return items

    fast = stretto.compile(step, backend="interpreter")
    for k in range(3):
        mine: Any = ([torch.ones(3) * k], {"a": torch.ones(2), "n": 1})
        other = copy.deepcopy(mine)
        a, b = mine[0][0], other[0][0]
        assert fast(*mine, torch.ones(3)) is mine[0]
        step(*other, torch.ones(3))
        assert_same(mine, other)
        assert mine[1]["items"] is mine[0]
        assert_same(a, b)
    assert len(fast.signatures) == 1
    same = [torch.ones(3)]

    def both(a: list[Tensor], b: list[Tensor]) -> Tensor:
        a.append(a[0] + 1)
        return sum(b)  # type: ignore[return-value]

    quick = stretto.compile(both, backend="interpreter")
    assert_same(quick([torch.ones(3)], [torch.ones(3)]), torch.ones(3))
    assert_same(quick(same, same), torch.full((3,), 3.0))
    assert len(same) == 2
    assert_same(quick([torch.ones(3)], [torch.ones(3)]), torch.ones(3))


def test_attributes_in_slots() -> None:
    def step(s: Slotted, x: Tensor) -> Tensor:
        s.h = s.h + x
        s.n += 1
        return s.h * s.n

    mine, other = Slotted(torch.zeros(3), 0), Slotted(torch.zeros(3), 0)
    fast = stretto.compile(step, backend="interpreter")
    for k in range(3):
        x = torch.ones(3) * k
        assert_same(fast(mine, x), step(other, x))
        assert (mine.n, mine.h.tolist()) == (other.n, other.h.tolist())


class Buffers(nn.Module):
    """State in buffers and attributes of a module, replaced and changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("h", torch.zeros(2, 3))
        self.register_buffer("seen", torch.zeros(()))
        self.steps = 0
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.h = torch.tanh(self.linear(x) + self.h)
        self.seen += 1
        self.steps += 1
        self.last = (x, self.h)
        return self.h + self.seen


def test_modules_with_buffers() -> None:
    torch.manual_seed(0)
    mine = Buffers().eval().requires_grad_(False)
    other = copy.deepcopy(mine)
    fast = stretto.compile(mine)
    for x in inputs(4):
        assert_same(fast(x), other(x))
        assert_same(dict(mine.named_buffers()), dict(other.named_buffers()))
        assert mine.steps == other.steps
        assert mine.last[0] is x
        assert mine.last[1] is mine.h
    assert sum(entry.builds for entry in fast.signatures) == 1
    mine.linear.weight.mul_(2)
    other.linear.weight.mul_(2)
    assert_same(fast(x), other(x))


def test_an_object_that_is_replaced_between_calls() -> None:
    mine, other = SimpleNamespace(held=Store()), SimpleNamespace(held=Store())

    def step(s: Any, x: Tensor) -> Any:
        return recur(s.held, x) + count_and_use(s.held, x)

    fast = stretto.compile(step, backend="interpreter")
    for x in inputs(3):
        mine.held, other.held = Store(), Store()
        mine.held.h, other.held.h = x + 1, x + 1
        for _ in range(2):
            assert_same(fast(mine, x), step(other, x))
            assert_same(contents(mine.held), contents(other.held))


def test_two_functions_that_share_an_object() -> None:
    mine, other = Store(), Store()
    first = stretto.compile(recur, backend="interpreter")
    second = stretto.compile(while_loop, backend="interpreter")
    for x in inputs(4):
        assert_same(first(mine, x), recur(other, x))
        assert_same(second(mine, x), while_loop(other, x))
        recur(mine, x)
        recur(other, x)
        assert_same(contents(mine), contents(other))


class Layer:
    """As transformers' DynamicLayer: empty until it is first used."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None
        self.is_initialized = False

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.keys = keys.new_zeros(keys.shape[0], 0, keys.shape[2])
            self.values = self.keys.clone()
            self.is_initialized = True
        self.keys = torch.cat([self.keys, keys], dim=1)
        self.values = torch.cat([self.values, values], dim=1)
        return self.keys, self.values


class DynamicCache:
    """As the one of transformers: objects in a list in an object, made where they are missing."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.seen = 0

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer:
            self.layers.append(Layer())
        if layer == 0:
            self.seen += keys.shape[1]
        return self.layers[layer].update(keys, values)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

    def forward(self, x: Tensor, cache: DynamicCache | None = None) -> tuple[Tensor, DynamicCache]:
        if cache is None:
            cache = DynamicCache()
        for number, layer in enumerate(self.inner):
            q, k, v = layer(x).chunk(3, -1)
            keys, values = cache.update(k, v, number)
            x = x + torch.softmax(q @ keys.transpose(1, 2), -1) @ values
        return x, cache


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_a_dynamic_cache(backend: str) -> None:
    torch.manual_seed(0)
    model = Decoder().eval().requires_grad_(False)
    fast = stretto.compile(model, backend=backend)
    mine, other = DynamicCache(), DynamicCache()
    for length in (3, 1, 1):
        x = torch.randn(2, length, 8)
        y, returned = fast(x, mine)
        assert returned is mine
        assert_same(y, model(x, other)[0])
        assert mine.seen == other.seen
        for one, two in zip(mine.layers, other.layers, strict=True):
            assert_same(vars(one), vars(two))
    y, made = fast(torch.ones(2, 2, 8))
    expected, made_by_eager = model(torch.ones(2, 2, 8))
    assert_same(y, expected)
    assert isinstance(made, DynamicCache)
    assert_same(made.layers[1].keys, made_by_eager.layers[1].keys)
    assert_same(fast(torch.ones(2, 1, 8), made)[0], model(torch.ones(2, 1, 8), made_by_eager)[0])


class Mistake(Exception):
    pass


def raises_late(s: Store, x: Tensor) -> Tensor:
    s.h = s.h + x
    s.items.append(x)
    s.d["new"] = x
    s.n += 1
    raise Mistake


def refused_late(s: Store, x: Tensor) -> Tensor:
    recur(s, x)
    append(s, x)
    return x.split(int(x[0, 0]))


@pytest.mark.parametrize(
    ("step", "error"), [(raises_late, Mistake), (refused_late, stretto.CaptureError)]
)
def test_after_an_exception_objects_are_as_before(step: Step, error: type[Exception]) -> None:
    for holder in HOLDERS:
        s = Store()
        before = contents(s)
        run = holder(step, s)
        for _ in range(2):
            with pytest.raises(error):
                run(torch.ones(2, 3))
            after = contents(s)
            assert after.keys() == before.keys()

            assert (s.items, list(s.d)) == ([], ["h", "n"])
            assert s.h is before["h"]


def test_threads() -> None:
    """Threads with an object each share a compiled function."""
    fast = stretto.compile(recur, backend="interpreter")
    stores = [Store() for _ in range(4)]
    errors = list[BaseException]()

    def run(s: Store) -> None:
        try:
            for x in inputs(6):
                fast(s, x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(s,)) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    expected = Store()
    for x in inputs(6):
        recur(expected, x)
    for s in stores:
        assert_same(s.h, expected.h)
