"""A number of Python that is read from a tensor is the tensor's state at that point, whoever owns
the tensor, and however it is read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

COUNT = torch.tensor(0)
ROWS = torch.arange(12.0).reshape(4, 3) / 7

WAYS: dict[str, Callable[[Any], Any]] = {
    "item": lambda n: n.item(),
    "tolist": lambda n: n.tolist(),
    "int": lambda n: int(n),
    "float": lambda n: float(n),
    "bool": lambda n: bool(n),
    "index": lambda n: operator.index(n),
    "round": lambda n: round(n.item() + 0.25),
    "floor": lambda n: math.floor(float(n) / 2),
    "if": lambda n: "more" if n > 2 else "less",
    "if not": lambda n: "none" if not n else "some",
    "range": lambda n: sum(i + 1 for i in range(n)),
    "text": lambda n: f"{n.item()} of {int(n):03d}",
    "compared": lambda n: n.item() == 2,
    "comparison chain": lambda n: 1 < int(n) <= 4,
    "minimum": lambda n: min(int(n), 3),
    "of a list": lambda n: [5, 6, 7, 8, 9, 10, 11, 12][int(n)],
    "list": lambda n: [n.item(), int(n) + 1],
    "division": lambda n: 1.0 / (float(n) + 0.5),
    "tensor": lambda n: torch.tensor([int(n), 2]),
    "row": lambda n: ROWS[int(n) % 4],
    "rows": lambda n: ROWS[: int(n)].sum(0),
    "rows by tensor": lambda n: ROWS[:n].sum(0),
    "last rows": lambda n: ROWS[-int(n) - 1 :].sum(0),
    "alpha": lambda n: torch.add(ROWS, ROWS, alpha=int(n)),
    "value": lambda n: torch.addcmul(ROWS, ROWS, ROWS, value=float(n)),
    "rolled": lambda n: ROWS.roll(int(n), 0),
    "filled": lambda n: torch.full((2,), float(n)),
    "zeros": lambda n: torch.zeros(int(n), 2),
}


class OfModule(nn.Module):
    def __init__(self, way: Callable[[Any], Any]) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(1))
        self.way = way

    def forward(self, x: Tensor) -> Any:
        before = self.way(self.n)
        self.n.add_(1)
        return x * self.n, before, self.way(self.n)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_read_before_and_after_a_write(way: str) -> None:
    check(lambda: OfModule(WAYS[way]), ROWS, ROWS, ROWS)


def check(make: Callable[[], Any], *inputs: Tensor) -> None:
    """Compares calls of a compiled object with those of an equal one in eager PyTorch."""
    eager, plain = make(), make()
    compiled = stretto.compile(plain, backend="interpreter")
    with torch.no_grad():
        for x in inputs:
            try:
                expected = eager(x)
            except Exception as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            assert_same(compiled(x), expected)
            assert_same(state(plain), state(eager))


def state(held: Any) -> dict[str, Any]:
    if isinstance(held, nn.Module):
        return {name: tensor.clone() for name, tensor in held.named_buffers()}
    return {name: item.clone() for name, item in vars(held).items() if isinstance(item, Tensor)}


# ---- control flow ------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        raise NotImplementedError


class InLoop(Counter):
    def forward(self, x: Tensor) -> Any:
        rounds = 0
        while x.abs().max() > 0.5 and rounds < 5:
            self.n.add_(1)
            x = x * 0.5 + 0.1 / float(self.n)
            rounds += 1
        return x, rounds, int(self.n)


class BeforeInLoop(Counter):
    def forward(self, x: Tensor) -> Any:
        total = 0.0
        for row in x:
            if row.sum() > 0.5:
                total += 1.0 / (1 + int(self.n))
                self.n += 1
        return total, self.n.item()


class InArm(Counter):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 1:
            self.n.add_(2)
        else:
            self.n.sub_(1)
        return x * int(self.n), self.n.item() > 0


class DecidesLoop(Counter):
    def forward(self, x: Tensor) -> Any:
        while int(self.n) < 5:
            self.n += 1
            x = x + self.n.item()
        return x


class DecidesBranch(Counter):
    def forward(self, x: Tensor) -> Any:
        self.n.add_(x.shape[0])
        if self.n.item() >= 9:
            return x.mean(0)
        return x.sum(0)


class DrawnFromData(Counter):
    def forward(self, x: Tensor) -> Any:
        self.n.copy_((x > 0.5).sum())
        return x[: int(self.n)].sum(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10][int(self.n)]


class InFunction(Counter):
    def bump(self, by: int) -> int:
        self.n.add_(by)
        return int(self.n)

    def forward(self, x: Tensor) -> Any:
        first = self.bump(1)
        second = self.bump(first)
        return x * first + second


class Mean(Counter):
    """A running mean as in batch norm without momentum."""

    def forward(self, x: Tensor) -> Any:
        for row in x:
            self.n += 1
            factor = 1.0 / self.n.item()
            self.seen.mul_(1 - factor).add_(row, alpha=factor)
        return self.seen.clone()


class Warmup(Counter):
    """An average whose decay grows with the number of calls."""

    def forward(self, x: Tensor) -> Any:
        self.n.add_(1)
        decay = min(0.9, (1 + int(self.n)) / (10 + int(self.n)))
        self.seen.lerp_(x.mean(0), 1 - decay)
        return self.seen * 1.0, decay


class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(6, 3))
        self.register_buffer("pos", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        for row in x:
            self.k[self.pos % 6] = row
            self.pos += 1
        if self.pos < 6:
            return self.k[: int(self.pos)].sum(0)
        return self.k.roll(-int(self.pos % 6), 0)[0]


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(12, 3))
        self.register_buffer("pos", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        start = int(self.pos)
        self.k[start : start + x.shape[0]] = x
        self.pos += x.shape[0]
        end = self.pos.item()
        return self.k[:end].sum(0), self.k[: self.pos].mean(), end


LOOPS = (
    InLoop, BeforeInLoop, InArm, DecidesLoop, DecidesBranch, DrawnFromData, InFunction, Mean,
    Warmup, Ring, Cache,
)  # fmt: skip


@pytest.mark.parametrize("kind", LOOPS)
def test_counters_in_control_flow(kind: type[nn.Module]) -> None:
    check(kind, ROWS, -ROWS, ROWS[:1] * 3, ROWS, ROWS[:2])


def test_a_position_that_is_counted_takes_no_program_of_its_own() -> None:
    cache = Cache()
    compiled = stretto.compile(cache, backend="interpreter")
    with torch.no_grad():
        for _ in range(5):
            compiled(ROWS[:2])
    assert len(compiled.signatures) == 1


# ---- owners ------------------------------------------------------------------------------------


class OfParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        self.w.mul_(2)
        return x * self.w, float(self.w[0]), self.w.sum().item(), isinstance(self.w, nn.Parameter)


class OfObject:
    def __init__(self) -> None:
        self.n = torch.tensor(1)

    def __call__(self, x: Tensor) -> Any:
        self.n.add_(1)
        return x * int(self.n)


class OfSlots:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = torch.tensor(1)

    def bump(self) -> int:
        self.n.add_(1)
        return int(self.n)


@pytest.mark.parametrize("kind", [OfParameter, OfObject])
def test_parameters_and_attributes(kind: type) -> None:
    check(kind, ROWS, ROWS, ROWS[:2])


def _of_list(held: Tensor) -> Callable[[Tensor], Any]:
    items = [held, 3]

    def function(x: Tensor) -> Any:
        items[0].add_(1)
        return x * int(items[0])

    return function


def _of_dict(held: Tensor) -> Callable[[Tensor], Any]:
    table = {"n": (held,)}

    def function(x: Tensor) -> Any:
        table["n"][0].add_(1)
        return x * table["n"][0].item()

    return function


def _of_closure(held: Tensor) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        held.add_(1)
        return x * int(held)

    return function


def _of_default(held: Tensor) -> Callable[[Tensor], Any]:
    def function(x: Tensor, n: Tensor = held) -> Any:
        n.add_(1)
        return x * int(n)

    return function


def _of_namespace(held: Tensor) -> Callable[[Tensor], Any]:
    space = SimpleNamespace(n=held)

    def function(x: Tensor) -> Any:
        space.n += 1
        return x * int(space.n)

    return function


def _of_slots(held: Tensor) -> Callable[[Tensor], Any]:
    box = OfSlots()
    box.n = held
    return lambda x: x * box.bump()


def _of_two(held: Tensor) -> Callable[[Tensor], Any]:
    """Two names of one tensor."""
    one, other = {"n": held}, SimpleNamespace(n=held)

    def function(x: Tensor) -> Any:
        one["n"].add_(1)
        return x * int(other.n), one["n"] is other.n

    return function


def _of_alias(held: Tensor) -> Callable[[Tensor], Any]:
    """Written by an alias that the function makes."""

    def function(x: Tensor) -> Any:
        held.data.add_(1)
        held.detach().add_(1)
        return x * int(held)

    return function


OWNERS = (
    _of_list,
    _of_dict,
    _of_closure,
    _of_default,
    _of_namespace,
    _of_slots,
    _of_two,
    _of_alias,
)


@pytest.mark.parametrize("owner", OWNERS)
def test_owners(owner: Callable[[Tensor], Callable[[Tensor], Any]]) -> None:
    eager_held, held = torch.tensor(1), torch.tensor(1)
    eager, compiled = owner(eager_held), stretto.compile(owner(held), backend="interpreter")
    for x in (ROWS, ROWS, -ROWS):
        assert_same(compiled(x), eager(x))
        assert_same(held, eager_held)


def _count(x: Tensor) -> Any:
    COUNT.add_(1)
    return x * int(COUNT)


def test_a_global() -> None:
    compiled = stretto.compile(_count, backend="interpreter")
    for calls in range(1, 4):
        COUNT.fill_(calls - 1)
        assert_same(compiled(ROWS), ROWS * calls)
        assert int(COUNT) == calls


def _argument(x: Tensor, n: Tensor) -> Any:
    n.add_(1)
    return x[: int(n)] * n.item()


def test_an_argument() -> None:
    compiled, n = stretto.compile(_argument, backend="interpreter"), torch.tensor(0)
    for calls in range(1, 4):
        assert_same(compiled(ROWS, n), ROWS[:calls] * calls)


class Deep(Counter):
    def down(self, x: Tensor, depth: Tensor) -> Tensor:
        self.n.add_(1)
        if depth <= 0:
            return x * self.n.item()
        return self.down(x + 1, depth - 1)

    def forward(self, x: Tensor) -> Any:
        return self.down(x, x.shape[0] + (x.sum() > 0).long())


def test_recursion_is_right_or_refused() -> None:
    eager, plain = Deep(), Deep()
    compiled = stretto.compile(plain, backend="interpreter", fallback=True)
    for x in (ROWS, ROWS[:2], -ROWS):
        assert_same(compiled(x), eager(x))
        assert_same(plain.n, eager.n)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_batch_norm_without_momentum(kind: type[nn.Module]) -> None:
    shape = (4, 3) if kind is nn.BatchNorm1d else (4, 3, 2, 2)

    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm: Any = kind(3, momentum=None)

        def forward(self, x: Tensor) -> Tensor:
            rounds = 0
            while x.abs().max() > 0.5 and rounds < 4:
                x = self.norm(x) * 0.5
                rounds += 1
            return self.norm(x)

    torch.manual_seed(0)
    check(lambda: Rounds().train().requires_grad_(False), *(torch.randn(shape) for _ in range(3)))
