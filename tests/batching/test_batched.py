"""`stretto.batch` from end to end: results for many instances are those for each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from stretto.errors import BuildError, CaptureError, StrettoError
from tests.batching.test_frontend import (
    Generator,
    Halting,
    Tree,
    TwoWays,
    calculator,
    closures,
    expression,
    same,
    tree,
    value_of,
)


def check(many: Any, function: Callable[..., Any], *columns: list[Any], **shared: Any) -> None:
    with torch.no_grad():
        wanted = [function(*items, **shared) for items in zip(*columns, strict=True)]
    found = many(*columns, **shared)
    assert len(found) == len(wanted)
    for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
        assert same(a, b), (number, a, b)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "make"),
    [
        (Tree(), lambda: tree(5)),
        (TwoWays(), lambda: [torch.randn(4) for _ in range(random.randrange(7))]),
        (Halting(), lambda: torch.randn(4)),
        (Generator(), lambda: torch.randn(4)),
        (value_of, lambda: expression(5)),
        (calculator, lambda: random.choice([[1, 2, "+"], [3], [4, 5, "*", 6, "+"]])),
        (closures, lambda: random.randrange(9)),
    ],
    ids=["tree", "two_ways", "halting", "generator", "match", "stack", "closures"],
)
def test_batches_of_any_size_and_order(
    function: Callable[..., Any], make: Callable[[], Any]
) -> None:
    random.seed(1)
    torch.manual_seed(1)
    instances = [make() for _ in range(33)]
    many = stretto.batch(function)
    for count in (33, 0, 1, 2, 7):
        check(many, function, instances[:count])
    random.shuffle(instances)
    check(many, function, instances)


@pytest.mark.whole
def test_columns_and_shared_keywords() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(
            self, items: list[torch.Tensor], label: int, scale: float = 1.0, bias: Any = None
        ) -> tuple[torch.Tensor, int]:
            total = torch.zeros(3)
            for x in items:
                total = total + self.layer(x) * scale
            if bias is not None:
                total = total + bias
            return total, label + 1

    model = Scaled()
    items = [[torch.randn(3) for _ in range(n)] for n in (2, 0, 1)]
    many = stretto.batch(model)
    check(many, model, items, [1, 2, 3])
    check(many, model, items, [1, 2, 3], scale=2.0)
    check(many, model, items, [1, 2, 3], scale=3.5, bias=torch.ones(3))
    with pytest.raises(ValueError, match="different lengths: 3, 2"):
        many(items, [1, 2])


def test_results_do_not_depend_on_neighbours() -> None:
    """The corner where a batched operand that is not the first of its batch is taken for it."""
    torch.manual_seed(0)
    model = Tree()
    trees = [tree(6) for _ in range(20)]
    many = stretto.batch(model)
    together = many(trees)
    for item, found in zip(trees, together, strict=True):
        assert torch.allclose(many([item])[0], found, atol=1e-6)


@dataclass
class Leaf:
    value: float


@dataclass
class Twice:
    inner: Any


@pytest.mark.whole
def test_a_new_kind_of_data_extends_the_program() -> None:
    def total(item: Any) -> float:
        if isinstance(item, Leaf):
            return item.value
        if isinstance(item, Twice):
            return 2 * total(item.inner)
        return sum(total(part) for part in item)

    many = stretto.batch(total)
    check(many, total, [Leaf(1.0), Leaf(2.0)])
    check(many, total, [Twice(Leaf(1.0)), Leaf(2.0)])
    check(many, total, [[Leaf(1.0), Twice(Leaf(4.0))], Leaf(2.0)])


@pytest.mark.whole
def test_dicts_keep_the_order_of_their_keys() -> None:
    def parts(item: dict[str, int]) -> Any:
        return list(item), list(item.values()), item["a"]

    many = stretto.batch(parts)
    check(many, parts, [{"a": 1, "b": 2}])
    check(many, parts, [{"b": 3, "a": 4}, {"a": 1, "b": 2}])

    def first(item: dict[str, int]) -> Any:
        return item["a"], item

    again = stretto.batch(first)
    check(again, first, [{"a": 1, "b": 2}])
    check(again, first, [{"b": 3, "a": 4}, {"a": 1, "b": 2}])


def test_a_key_of_several_types_is_refused() -> None:
    def looked_up(key: Any) -> int:
        table = {"a": 1, "b": 2}
        return table[key]

    many = stretto.batch(looked_up)
    check(many, looked_up, ["a", "b"])
    with pytest.raises(CaptureError, match="a key that may be"):
        many(["a", [1]])


def test_an_instance_that_fails_is_named_and_the_batcher_goes_on() -> None:
    def first(items: list[int]) -> int:
        return items[0] + 1

    many = stretto.batch(first)
    check(many, first, [[1], [2, 3]])
    with pytest.raises(IndexError, match="list index out of range") as caught:
        many([[1], [], [2]])
    assert any("instance 1" in note for note in caught.value.__notes__)
    check(many, first, [[5]])


class Words(nn.Module):
    """A position that kernels check: in the second launch for lists that begin with a number above
    the first row's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, numbers: list[int]) -> torch.Tensor:
        total = torch.zeros(4)
        for number in numbers:
            if number < 0:
                raise ValueError(f"a negative number, {number}")
            total = torch.tanh(total + self.words.weight[number])
            if total.sum() > 100:
                total = total - 1
        return total


@pytest.mark.parametrize("bad", [{0}, {16}, {3, 4, 11}, set(range(17))])
def test_a_check_that_fails_in_a_launch_is_that_of_its_instance(bad: set[int]) -> None:
    """The launch of all instances stops. It is found out which of them did it: these fail alone."""
    model = Words()
    instances = [[n % 7, 12 if n in bad else 3, 4][: 1 + n % 3 + (n in bad)] for n in range(17)]
    instances[5] = [-5]
    many = stretto.batch(model)
    many([[1, 2]])
    first = min({5, *bad})
    with pytest.raises(ValueError if first == 5 else IndexError) as raised:
        many(instances)
    assert any(f"in instance {first}" in note for note in raised.value.__notes__)
    assert not isinstance(raised.value.__context__, IndexError)  # that of another instance
    with many.stream(max_batch=17, max_wait_ms=50) as stream:
        futures = [stream.submit(instance) for instance in instances]
        for number, (instance, future) in enumerate(zip(instances, futures, strict=True)):
            if number in bad or number == 5:
                wanted = IndexError if number in bad and number != 5 else ValueError
                assert isinstance(future.exception(), wanted)
            else:
                assert same(model(instance).detach(), future.result())
    check(many, model, [instance for n, instance in enumerate(instances) if n not in {5, *bad}])


@pytest.mark.whole
def test_other_devices_are_refused() -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(BuildError, match=r"cannot run on cuda \(backend 'cuda'\)"):
        stretto.batch(layer.forward, backend="cuda")([torch.ones(3)])
    many = stretto.batch(layer)
    items = list(torch.randn(2, 3))
    check(many, layer, items)
    with pytest.raises(CaptureError, match=r"expected f32\[3\], found f32\[3\] on meta"):
        many([items[0], items[1].to("meta")])
    layer.to("meta")
    # torch 2.13 refuses to multiply by it; for those before, it is the batcher that does.
    with pytest.raises(StrettoError, match="two devices, cpu and meta|a tensor on meta"):
        many(items)
    first, second = torch.ones(3, device="meta"), torch.zeros(3, device="meta")
    with pytest.raises(BuildError, match="a tensor on meta, but batches run on cpu"):
        stretto.batch(lambda flag: (first if flag else second) * 2)([True, False])


@pytest.mark.whole
def test_parameters_that_get_other_memory_are_noticed() -> None:
    class Model(nn.Module):
        def __init__(self, dtype: torch.dtype = torch.float32) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4, dtype=dtype)
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=dtype))
            self.begin = nn.Parameter(torch.randn(4, dtype=dtype))

        def forward(self, x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            state = self.begin
            for _ in range(count):
                state = torch.tanh((x.to(state.dtype) @ self.weight.t()) + self.cell(state))
            return state, self.begin

    model = Model().eval()
    many = stretto.batch(model)
    xs, counts = list(torch.randn(3, 4)), [0, 1, 3]
    check(many, model, xs, counts)
    for name in ("weight", "begin", "cell.weight", "cell.bias"):
        parameter = model.get_parameter(name)
        parameter.data = torch.randn_like(parameter)
        check(many, model, xs, counts)
    model.load_state_dict(Model().state_dict())
    check(many, model, xs, counts)
    model.double()
    check(many, model, xs, counts)
    model.weight.data = model.weight.data.t()
    check(many, model, xs, counts)


@pytest.mark.whole
def test_changed_weights_and_settings_are_noticed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

    model = Model()
    many = stretto.batch(model)
    items = [torch.randn(3) for _ in range(3)]
    check(many, model, items)
    with torch.no_grad():
        model.layer.weight.mul_(2)
    check(many, model, items)
    model.scale = 3.0
    check(many, model, items)
    model.layer = nn.Linear(3, 3)
    check(many, model, items)


def test_what_cannot_be_batched_is_an_error_with_the_line() -> None:
    def prints(x: int) -> int:
        print(x)
        return x

    with pytest.raises(CaptureError, match="print"):
        stretto.batch(prints)([1])


def test_explain_says_what_ran_together_and_profile_where_time_goes() -> None:
    random.seed(0)
    torch.manual_seed(0)
    model = Tree()
    many = stretto.batch(model)
    assert "nothing has been compiled" in many.explain()
    trees = [tree(4) for _ in range(5)]
    many(trees)
    text = many.explain()
    assert "a batch is one launch" in text
    assert "cat, " in text
    found = many.profile(trees, runs=2)
    assert found.instances == 5 and found.launches == 1 and found.rows > 5
    assert "record" in str(found) and 0 <= found.host_share <= 1


def test_flattened_instances_are_read_once() -> None:
    random.seed(0)
    torch.manual_seed(0)
    model = Tree()
    many = stretto.batch(model)
    trees = [tree(4) for _ in range(5)]
    flat = stretto.flatten(trees)
    first = many(flat)
    check(many, model, trees)
    again = many(flat)
    assert all(map(torch.equal, first, again))
    assert len(flat) == 5
    with pytest.raises(ValueError, match="same length"):
        stretto.flatten(trees, [1])


@pytest.mark.parametrize("backend", ["emulator", "interpreter"])
def test_other_machines(backend: str) -> None:
    random.seed(0)
    torch.manual_seed(0)
    for model, instances in (
        (Tree(), [tree(3) for _ in range(4)]),
        (Halting(), [torch.randn(4) for _ in range(3)]),
    ):
        check(stretto.batch(model, backend=backend), model, instances)


@pytest.mark.whole
def test_the_cuda_machine_emulated() -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    random.seed(0)
    model = Tree()
    check(stretto.batch(model, backend="cuda-emulated"), model, [tree(2) for _ in range(3)])


@dataclass
class Holder:
    value: Any


@pytest.mark.whole
def test_tensors_of_different_shapes_in_one_place_are_grouped() -> None:
    def total(item: Holder) -> torch.Tensor:
        return (item.value * 2).sum()

    torch.manual_seed(0)
    shapes = ((2, 3), (2, 4), (4, 3), (2, 3), ())
    check(stretto.batch(total), total, [Holder(torch.randn(shape)) for shape in shapes])


@pytest.mark.whole
def test_another_dtype_extends_the_program() -> None:
    def steps(x: torch.Tensor, position: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = x * 2 + x[position.item()]  # pyright: ignore[reportArgumentType]
        return x

    many = stretto.batch(steps)
    for dtype in (torch.int64, torch.int32):
        check(many, steps, [torch.arange(4.0)], [torch.tensor(1, dtype=dtype)], [2])


def test_data_that_no_program_can_know_is_named() -> None:
    def doubled(item: Holder) -> int:
        return item.value * 2

    many = stretto.batch(doubled)
    check(many, doubled, [Holder(1), Holder(2)])
    with pytest.raises(CaptureError, match=r"item\[1\].value|instance 1"):
        many([Holder(1), Holder(1 << 70)])
    check(many, doubled, [Holder(3)])


def several_lengths(x: torch.Tensor, scale: float) -> Any:
    y = torch.ones(2, 3) if float(x.sum()) > 0 else x
    total = torch.zeros(3)
    for row in y:
        total = total + row
    numbers = torch.full((2,), scale), torch.tensor([scale, 1]), torch.arange(3) * scale
    return y * 2, total, x - x.mean(1, keepdim=True), x.unbind(), numbers


@pytest.mark.whole
def test_tensors_of_several_lengths_and_numbers_keep_their_types() -> None:
    torch.manual_seed(0)
    rows = [torch.randn(n, 3) for n in (2, 4, 1, 0, 3, 2, 5)]
    scales = [0.1 * n for n in range(7)]
    many = stretto.batch(several_lengths)
    order = random.Random(1).sample(range(7), 7)
    for chosen in (order, [], [3], range(7)):
        check(many, several_lengths, [rows[n] for n in chosen], [scales[n] for n in chosen])


def test_a_position_outside_is_that_of_the_instance_and_odd_lists_are_named() -> None:
    class Items(list[int]):
        pass

    def item(x: torch.Tensor, positions: list[int]) -> torch.Tensor:
        return (x * 2)[positions[0]]

    many = stretto.batch(item)
    x = torch.ones(3, 2)
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        many([x, x], [[0], [3]])
    with pytest.raises(CaptureError, match=r"positions\[1\] is an object of class Items"):
        many([x, x], [[0], Items([1])])
    check(many, item, [x, x + 1], [[2], [-3]])


def test_messages_show_strings_of_the_instance_as_the_function_says() -> None:
    def named(name: str, number: int) -> int:
        if number < 0:
            raise ValueError(f"{name} is {name!r}, not {number!r}: {'x'!r}")
        return number + 1

    many = stretto.batch(named)
    assert many(["a", "b"], [1, 2]) == [2, 3]
    for name in (
        "plain",
        "it's",
        'a "b"',
        "back\\slash",
        "new\nline",
        "ü\u200b",
        "\xad\U0001f600\U000e0001",
        "",
    ):
        with pytest.raises(ValueError) as wanted:
            named(name, -1)
        with pytest.raises(ValueError) as found:
            many(["a", name], [1, -1])
        assert found.value.args == wanted.value.args
