"""Operators, comparisons, truth, calls, numbers and texts of objects."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from torch import Tensor

from tests.e2e.data_model.uses import Use, signed, use


class Value:
    """A tensor with operators, each with control flow on it."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, (Value, int, float)):
            return NotImplemented
        added = other.data if isinstance(other, Value) else other
        if self.data.sum() > 0:
            return Value(self.data + added)
        return Value(self.data - added)

    def __radd__(self, other: Any) -> Any:
        if self.data.sum() > 0:
            return Value(other + self.data * 3)
        return Value(other - self.data)

    def __iadd__(self, other: Any) -> Any:
        if self.data.sum() > 0:
            self.data = self.data + other
        else:
            self.data = self.data - 2 * other
        return self

    def __sub__(self, other: Any) -> Any:
        return Value(signed(self.data) - other)

    def __rsub__(self, other: Any) -> Any:
        return Value(other - signed(self.data))

    def __mul__(self, other: Any) -> Any:
        return Value(signed(self.data) * other)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Any:
        return signed(self.data) @ other

    def __rmatmul__(self, other: Any) -> Any:
        return other @ signed(self.data)

    def __truediv__(self, other: Any) -> Any:
        return Value(signed(self.data) / other)

    def __floordiv__(self, other: Any) -> Any:
        return Value(signed(self.data) // other)

    def __mod__(self, other: Any) -> Any:
        return Value(signed(self.data) % other)

    def __pow__(self, other: Any) -> Any:
        return Value(signed(self.data) ** other)

    def __neg__(self) -> Any:
        return Value(-signed(self.data))

    def __pos__(self) -> Any:
        return Value(signed(self.data))

    def __abs__(self) -> Any:
        return Value(signed(self.data).abs())

    def __invert__(self) -> Any:
        return Value(1 / signed(self.data))

    def __and__(self, other: Any) -> Any:
        return Value(torch.minimum(signed(self.data), other))

    def __lshift__(self, other: Any) -> Any:
        return Value(signed(self.data) + other * 4)

    def __divmod__(self, other: Any) -> Any:
        return signed(self.data) // other, self.data % other

    def __round__(self, digits: int = 0) -> Any:
        return signed(self.data) + digits

    def __floor__(self) -> Any:
        return signed(self.data).floor()

    def __lt__(self, other: Any) -> Any:
        return signed(self.data) < other.data

    def __gt__(self, other: Any) -> Any:
        return signed(self.data).sum() > other.data.sum()

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Value):
            return NotImplemented
        if self.data.sum() > 0:
            return bool((self.data == other.data).all())
        return False


class Called:
    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __call__(self, x: Tensor, scale: float = 1.5) -> Tensor:
        if x.sum() > 0:
            return x * scale
        return self.data


@use
def add() -> Use:
    return lambda x: (Value(x) + 2).data


@use
def add_values() -> Use:
    held = Value(torch.tensor([1.0, 2.0, -3.5]))
    return lambda x: (Value(x) + held).data


@use
def reflected_add() -> Use:
    return lambda x: (5 + Value(x)).data


@use
def reflected_add_of_a_tensor() -> Use:
    return lambda x: (3.0 - Value(x)).data


@use
def inplace_add() -> Use:
    def fn(x: Tensor) -> Tensor:
        value = Value(x)
        value += 2
        return value.data

    return fn


@use
def inplace_falls_back() -> Use:
    def fn(x: Tensor) -> Tensor:
        value = Value(x)
        value -= 2
        value *= 3
        return value.data

    return fn


@use
def inplace_attribute() -> Use:
    class Box:
        pass

    def fn(x: Tensor) -> Tensor:
        box = Box()
        box.value = Value(x)
        box.value += 2
        items = [Value(x)]
        items[0] += 1
        return box.value.data + items[0].data

    return fn


@use
def arithmetic() -> Use:
    def fn(x: Tensor) -> Tensor:
        one = ((Value(x) - 1) * 2 / 3) ** 2
        two = (2 * Value(x)) % 3 // 2
        return one.data + two.data + (Value(x) @ x) + (x @ Value(x).data)

    return fn


@use
def reflected_matmul() -> Use:
    w = [[1.0, 2.0, 3.0]]
    return lambda x: torch.tensor(w) @ (+Value(x)).data


@use
def unary() -> Use:
    return lambda x: (-Value(x)).data + (~Value(x)).data + abs(Value(x)).data + (+Value(x)).data


@use
def bits() -> Use:
    return lambda x: (Value(x) & x).data + (Value(x) << 2).data


@use
def numeric_functions() -> Use:
    def fn(x: Tensor) -> Tensor:
        first, second = divmod(Value(x), 2)
        return first + second + round(Value(x), 3) + math.floor(Value(x))

    return fn


@use
def compare() -> Use:
    return lambda x: torch.where(Value(x) < Value(x * 1.5), x, -x)


@use
def compare_decides() -> Use:
    held = Value(torch.tensor([0.5, 0.5, 0.5]))

    def fn(x: Tensor) -> Tensor:
        if Value(x) > held:
            return x + 1
        return x - 1

    return fn


@use
def reflected_compare() -> Use:
    held = Value(torch.tensor([0.5, 0.5, 0.5]))

    class Other:
        def __init__(self, data: Tensor) -> None:
            self.data = data

    return lambda x: x + (Other(x) < held)


@use
def chained_compare() -> Use:
    small, large = Value(torch.full((3,), -9.0)), Value(torch.full((3,), 9.0))

    def fn(x: Tensor) -> Tensor:
        if large > Value(x) > small:
            return x + 1
        return x - 1

    return fn


@use
def equal() -> Use:
    held = Value(torch.ones(3))

    def fn(x: Tensor) -> Tensor:
        if Value(x) == held:
            return x + 1
        return x - 1

    return fn


@use
def not_equal() -> Use:
    held = Value(torch.ones(3))

    def fn(x: Tensor) -> Tensor:
        if Value(x) != held:
            return x + 1
        return x - 1

    return fn


@use
def equal_in_list() -> Use:
    held = [Value(torch.ones(3)), Value(torch.zeros(3))]

    def fn(x: Tensor) -> Tensor:
        if Value(x) in held:
            return x + 1
        return x - 1

    return fn


@use
def call_object() -> Use:
    held = Called(torch.ones(3))
    return lambda x: held(x) + held(x, scale=3.0) + held(x, 4.0)


@use
def call_inherited() -> Use:
    class Derived(Called):
        pass

    held = Derived(torch.ones(3))
    return lambda x: held(x, scale=2.0)


@use
def sum_of_values() -> Use:
    return lambda x: sum([Value(x), Value(x + 1)]).data


@use
def operator_functions() -> Use:
    return lambda x: operator.add(Value(x), 2).data + operator.neg(Value(x)).data


@use
def reduced() -> Use:
    return lambda x: functools.reduce(operator.add, [Value(x), Value(x * 2), Value(x - 1)]).data


class Truth:
    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __bool__(self) -> bool:
        return bool(self.data.sum() > 0)


@use
def truth_in_if() -> Use:
    def fn(x: Tensor) -> Tensor:
        if Truth(x):
            return x + 1
        return x - 1

    return fn


@use
def truth_negated() -> Use:
    return lambda x: x + 1 if not Truth(x) else x * 5


@use
def truth_in_and() -> Use:
    def fn(x: Tensor) -> Tensor:
        found = Truth(x) and Truth(x - 1)
        return found.data * 2

    return fn


@use
def truth_in_or() -> Use:
    return lambda x: (Truth(x) or Truth(x - 1)).data * 2


@use
def truth_by_bool() -> Use:
    return lambda x: x + bool(Truth(x))


@use
def truth_in_while() -> Use:
    def fn(x: Tensor) -> Tensor:
        while Truth(x):
            x = x - 1
        return x

    return fn


@use
def truth_in_any() -> Use:
    return lambda x: x + any([Truth(x), Truth(x + 1)])


class AskedTruth(Truth):
    """It counts how often it is asked."""

    def __init__(self, data: Tensor) -> None:
        super().__init__(data)
        self.times = 0

    def __bool__(self) -> bool:
        self.times += 1
        return super().__bool__()


@use
def truths_asked_once() -> Use:
    def fn(x: Tensor) -> Tensor:
        asked = AskedTruth(x), AskedTruth(-x), AskedTruth(x + 1)
        found = x + any(asked) + 2 * all(asked)
        return found + sum(item.times * 10**place for place, item in enumerate(asked))

    return fn


@use
def truth_asserted() -> Use:
    def fn(x: Tensor) -> Tensor:
        assert Truth(x * x + 1), "no"
        return x

    return fn


class Number:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __index__(self) -> int:
        return 2

    def __int__(self) -> int:
        return int(self.x.sum())

    def __float__(self) -> float:
        if self.x.sum() > 0:
            return float(self.x[0])
        return 0.5

    def __complex__(self) -> complex:
        return 1j


@use
def as_index() -> Use:
    return lambda x: [x, x + 1, x + 2][Number(x)] + range(5)[Number(x)] + x[Number(x)]


@use
def as_int() -> Use:
    return lambda x: x + int(Number(x))


@use
def as_float() -> Use:
    return lambda x: x + float(Number(x))


@use
def as_float_for_math() -> Use:
    return lambda x: x + math.sqrt(Number(x * x + 1))


class Shown:
    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.count = 0

    def __str__(self) -> str:
        self.count += 1
        return "abc"

    def __repr__(self) -> str:
        self.count += 10
        return "abcd"

    def __format__(self, form: str) -> str:
        self.count += 100
        return "abcde" + form


@use
def texts() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Shown(x)
        count = len(str(held)) + len(repr(held)) + len(f"{held:xy}") + len(f"{held!r}")
        count += len("%s" % held) + len(f"{held}")  # noqa: UP031
        return x * count + held.count

    return fn


@use
def text_by_tensor() -> Use:
    class Sign:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __str__(self) -> str:
            if self.x.sum() > 0:
                return "plus"
            return "no"

    def fn(x: Tensor) -> Tensor:
        if str(Sign(x)) == "plus":
            return x + 1
        return x - 1

    return fn
