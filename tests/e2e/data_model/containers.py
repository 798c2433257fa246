"""Items, lengths, membership, iteration and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.e2e.data_model.uses import Use, signed, use


class Bag:
    """A sequence by the old protocol: positions and a length."""

    def __init__(self, items: list[Tensor]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Tensor:
        item = self.items[index]
        if item.sum() > 0:
            return item
        return -item

    def __setitem__(self, index: Any, value: Tensor) -> None:
        self.items[index] = signed(value)

    def __delitem__(self, index: Any) -> None:
        self.items[index] = torch.zeros(3)

    def __contains__(self, value: Tensor) -> Any:
        if value.sum() > 0:
            return bool(value[0] > self.items[0][0])
        return False

    def __reversed__(self) -> Iterator[Tensor]:
        return iter([signed(item) for item in self.items[::-1]])


@use
def get_item() -> Use:
    return lambda x: Bag([x, x - 2])[1]


@use
def get_item_by_traced_position() -> Use:
    return lambda x: Bag([x, x - 2])[int(x[0] > 0)]


@use
def get_item_by_slice_and_text() -> Use:
    class Table:
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, slice):
                return key.start
            return len(key) if isinstance(key, tuple) else key

    table = Table()
    return lambda x: x + table[3:4] + table[1, 2] + len(table["abc"])


@use
def set_item() -> Use:
    def fn(x: Tensor) -> Tensor:
        bag = Bag([x, x])
        bag[1] = x + 1
        bag[0] += 2
        return bag.items[0] + bag.items[1]

    return fn


@use
def set_item_at_traced_position() -> Use:
    class Rows:
        def __init__(self, rows: Tensor) -> None:
            self.rows = rows

        def __setitem__(self, index: Any, value: Tensor) -> None:
            if value.sum() > 0:
                self.rows[index] = value

        def __delitem__(self, index: Any) -> None:
            self.rows[index] = 0

    def fn(x: Tensor) -> Tensor:
        rows = Rows(torch.zeros(3, 3))
        rows[int(x[0] > 0)] = x
        del rows[int(x[1] > 0)]
        return rows.rows

    return fn


@use
def delete_item() -> Use:
    def fn(x: Tensor) -> Tensor:
        bag = Bag([x, x + 1])
        del bag[0]
        return bag.items[0] + bag.items[1]

    return fn


@use
def length() -> Use:
    return lambda x: x + len(Bag([x, x])) + (1 if Bag([]) else 2)


@use
def length_by_tensor() -> Use:
    class Sized:
        def __init__(self, data: Tensor) -> None:
            self.data = data

        def __len__(self) -> int:
            return int((self.data > 0).sum())

    def fn(x: Tensor) -> Tensor:
        if Sized(x):
            x = x + 1
        return x * len(Sized(x))

    return fn


@use
def contained() -> Use:
    def fn(x: Tensor) -> Tensor:
        if x in Bag([x - 1]):
            return x + 1
        return x - 1

    return fn


@use
def not_contained() -> Use:
    return lambda x: x + (x not in Bag([x - 1]))


@use
def iterated_by_position() -> Use:
    class Old:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __getitem__(self, index: int) -> Tensor:
            if index > 2:
                raise IndexError(index)
            return signed(self.x - index)

    def fn(x: Tensor) -> Tensor:
        total = x * 0
        for item in Old(x):
            total = total + item
        return total + torch.stack(list(Old(x))).sum(0)

    return fn


@use
def reverse() -> Use:
    def fn(x: Tensor) -> Tensor:
        total = x * 0
        for item in reversed(Bag([x, x - 2])):
            total = total * 2 + item
        return total

    return fn


class Countdown:
    def __init__(self, x: Tensor, count: int) -> None:
        self.x, self.count = x, count

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Tensor:
        if not self.count:
            raise StopIteration
        self.count -= 1
        return signed(self.x - self.count)


@use
def iterated() -> Use:
    def fn(x: Tensor) -> Tensor:
        total = x * 0
        for item in Countdown(x, 3):
            total = total * 2 + item
        return total

    return fn


@use
def next_by_hand() -> Use:
    def fn(x: Tensor) -> Tensor:
        items = iter(Countdown(x, 3))
        return next(items) * 2 + next(items)

    return fn


@use
def unpacked() -> Use:
    def fn(x: Tensor) -> Tensor:
        first, *rest = Countdown(x, 3)
        return first * 2 + rest[1] + torch.stack([*Countdown(x, 2)]).sum(0)

    return fn


@use
def iterated_by_generator() -> Use:
    class Parts:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __iter__(self) -> Iterator[Tensor]:
            for number in range(3):
                if self.x[number] > 0:
                    yield self.x * number
                else:
                    yield self.x - number

    def fn(x: Tensor) -> Tensor:
        total = x * 0
        for item in Parts(x):
            total = total * 2 + item
        return total

    return fn


@use
def listed_by_generator() -> Use:
    class Parts:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __iter__(self) -> Iterator[Tensor]:
            for number in range(3):
                yield signed(self.x * number)

    return lambda x: sum(Parts(x)) + torch.stack(list(Parts(x))).sum(0)


class Key:
    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    def __hash__(self) -> int:
        self.asked += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.name == other.name


@use
def hashed() -> Use:
    def fn(x: Tensor) -> Tensor:
        table = {Key("a"): x, Key("b"): x * 2}
        key = Key("b")
        return table[key] + table.get(Key("c"), x) + key.asked + (Key("a") in table)

    return fn


@use
def hash_by_tensor() -> Use:
    class Hashed:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __hash__(self) -> int:
            return int(self.x[0])

    return lambda x: x + len({Hashed(x): 1})


@use
def missing() -> Use:
    class Defaults(dict[str, Tensor]):
        def __init__(self, x: Tensor) -> None:
            super().__init__(a=x)
            self.x = x

        def __missing__(self, key: str) -> Tensor:
            if self.x.sum() > 0:
                return self.x * len(key)
            return self.x

    return lambda x: Defaults(x)["abc"] + Defaults(x)["a"]


@use
def derived_containers() -> Use:
    class Doubling(list[Tensor]):
        def __getitem__(self, index: Any) -> Any:
            return signed(super().__getitem__(index))

        def append(self, item: Tensor) -> None:
            super().append(item * 2)

    class Table(dict[str, Tensor]):
        def __setitem__(self, key: str, value: Tensor) -> None:
            super().__setitem__(key, signed(value))

        def __contains__(self, key: object) -> bool:
            return True

    def fn(x: Tensor) -> Tensor:
        items = Doubling([x])
        items.append(x - 1)
        table = Table()
        table["a"] = x
        return items[0] + items[1] + table["a"] + ("z" in table)

    return fn
