"""Parts of Python's library, written in the Python that the front end can evaluate.

A call of one of these in a user's function is evaluated as a call of its version here, so that
they need no handlers. Functions that return iterators in Python return lists here: a program
consumes an iterator only once (`Frame.check_iterator`).
"""

from __future__ import annotations

import collections

import torch

# pyright: basic


LIBRARY, MODULE = __file__, __name__


def reduce(function, iterable, /, *initial):
    if len(initial) > 1:
        raise TypeError("reduce expected at most 3 arguments")
    if len(initial) > 0:
        found = initial[0]
        for item in iterable:
            found = function(found, item)
        return found
    rest = list(iterable)
    if len(rest) == 0:
        raise TypeError("reduce() of empty iterable with no initial value")
    found = rest[0]
    for item in rest[1:]:
        found = function(found, item)
    return found


def chain(*iterables):
    found = []
    for part in iterables:
        found.extend(part)
    return found


def from_iterable(iterable, /):
    found = []
    for part in iterable:
        found.extend(part)
    return found


def accumulate(iterable, func=None, *, initial=None):
    found = [] if initial is None else [initial]
    for item in iterable:
        if len(found) == 0:
            found.append(item)
        elif func is None:
            found.append(found[-1] + item)
        else:
            found.append(func(found[-1], item))
    return found


def product(first, *others):
    if len(others) == 0:
        return [(a,) for a in first]
    if len(others) == 1:
        second = list(others[0])
        return [(a, b) for a in first for b in second]
    rest = product(*others)
    return [(a, *other) for a in first for other in rest]


def pairwise(iterable, /):
    rest = list(iterable)
    return [(rest[i], rest[i + 1]) for i in range(len(rest) - 1)]


def islice(items, start, stop, step):
    first = 0 if start is None else start
    stride = 1 if step is None else step
    if not isinstance(first, int) or first < 0:
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if stop is not None and (not isinstance(stop, int) or stop < 0):
        raise ValueError(
            "Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize."
        )
    if not isinstance(stride, int) or stride < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    found = []
    if stop is not None and stop == 0:
        return found
    place = 0
    for item in items:
        if place >= first and (place - first) % stride == 0:
            found.append(item)
        place += 1  # noqa: SIM113
        if stop is not None and place >= stop:
            break
    return found


def combinations(pool, *count):
    """All choices of as many items as `count` has."""
    if len(count) == 0:
        return [()]
    if len(count) == 1:
        return [(item,) for item in pool]
    return [
        (pool[i], *rest)
        for i in range(len(pool))
        for rest in combinations(pool[i + 1 :], *count[1:])
    ]


def smallest(items, key):
    place, score = 0, key(items[0])
    for i in range(1, len(items)):
        other = key(items[i])
        if other < score:
            place, score = i, other
    return items[place]


def largest(items, key):
    place, score = 0, key(items[0])
    for i in range(1, len(items)):
        other = key(items[i])
        if other > score:
            place, score = i, other
    return items[place]


def join(separator, items):
    found = ""
    first = True
    for item in items:
        if not isinstance(item, str):
            raise TypeError("an item of a sequence that is joined is no str")
        found = item if first else found + separator + item
        first = False
    return found


def tensor(items, dtype):
    if len(items) == 0:
        return torch.stack([torch.tensor(0, dtype=dtype)])[1:]
    return torch.stack([torch.tensor(item, dtype=dtype) for item in items])


def tensor_of_some(items, dtype):
    if len(items) == 0:
        raise RuntimeError("torch.tensor of an empty list is a tensor of floats; give it a dtype")
    return torch.stack([torch.tensor(item, dtype=dtype) for item in items])


def rows_as_many(count, row):
    if count < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {count}")
    return torch.stack([row] + [row for _ in range(count)])[1:]


def rows_between(table, start, stop, size):
    first = 0 if start is None else start
    last = size if stop is None else stop
    if first < 0:
        first = max(first + size, 0)
    if last < 0:
        last = max(last + size, 0)
    first = min(first, size)
    return table[first + torch.arange(max(min(last, size) - first, 0))]


class Deque(collections.deque):
    """collections.deque"""

    def __init__(self, iterable=(), maxlen=None):
        if maxlen is not None and not isinstance(maxlen, int):
            raise TypeError("an integer is required")
        if maxlen is not None and maxlen < 0:
            raise ValueError("maxlen must be non-negative")
        self.held = []
        self.most = maxlen
        self.extend(iterable)

    @property
    def maxlen(self):
        return self.most

    def append(self, item):
        self.held.append(item)
        if self.most is not None and len(self.held) > self.most:
            self.held.pop(0)

    def appendleft(self, item):
        self.held.insert(0, item)
        if self.most is not None and len(self.held) > self.most:
            self.held.pop()

    def extend(self, items):
        for item in list(items):  # which may be the deque itself
            self.append(item)

    def extendleft(self, items):
        for item in list(items):
            self.appendleft(item)

    def pop(self):
        if len(self.held) == 0:
            raise IndexError("pop from an empty deque")
        return self.held.pop()

    def popleft(self):
        if len(self.held) == 0:
            raise IndexError("pop from an empty deque")
        return self.held.pop(0)

    def clear(self):
        self.held.clear()

    def reverse(self):
        self.held.reverse()

    def count(self, item):
        return self.held.count(item)

    def rotate(self, steps=1):
        for _ in range(steps):
            if len(self.held) > 1:
                self.held.insert(0, self.held.pop())
        for _ in range(-steps):
            if len(self.held) > 1:
                self.held.append(self.held.pop(0))

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return iter(self.held)

    def __contains__(self, item):
        return item in self.held

    def __eq__(self, other):
        return isinstance(other, collections.deque) and self.held == other.held  # pyright: ignore

    def __getitem__(self, place):
        if place >= len(self.held) or place < -len(self.held):
            raise IndexError("deque index out of range")
        return self.held[place]

    def __setitem__(self, place, item):
        if place >= len(self.held) or place < -len(self.held):
            raise IndexError("deque index out of range")
        self.held[place] = item


class Mapping:
    """Base class of the dicts in this module."""

    held: dict

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __contains__(self, key):
        return key in self.held

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return iter(self.held)

    def get(self, key, default=None):
        return self.held.get(key, default)

    def setdefault(self, key, default=None):
        return self.held.setdefault(key, default)

    def pop(self, key):
        return self.held.pop(key)

    def items(self):
        return self.held.items()

    def keys(self):
        return self.held.keys()

    def values(self):
        return self.held.values()

    def clear(self):
        self.held.clear()


class DefaultDict(Mapping, collections.defaultdict):
    """collections.defaultdict; each factory gets a subclass."""

    factory = int

    def __init__(self):
        self.held = {}

    def __getitem__(self, key):
        if key not in self.held:
            self.held[key] = self.factory()
        return self.held[key]

    def __eq__(self, other):
        return self.held == plain(other)


class Counter(Mapping, collections.Counter):
    """collections.Counter"""

    def __init__(self, iterable=None, /):
        self.held = {}
        self.update(iterable)

    def update(self, iterable=None, /):
        if isinstance(iterable, dict):
            for key, count in iterable.items():
                self.held[key] = count + self.held.get(key, 0)
        elif iterable is not None:
            for item in iterable:
                self.held[item] = self.held.get(item, 0) + 1

    def __getitem__(self, key):
        return self.held.get(key, 0)

    def __delitem__(self, key):
        if key in self.held:
            self.held.pop(key)

    def __eq__(self, other):
        if not isinstance(other, collections.Counter):
            return self.held == plain(other)
        mine = all(count == other[key] for key, count in self.items())
        return mine and all(count == self[key] for key, count in other.items())

    def most_common(self, n=None):
        found = sorted(self.held.items(), key=lambda pair: pair[1], reverse=True)
        return found if n is None else found[: max(n, 0)]


def plain(value):
    """The plain dict in one of these; any other value is itself."""
    return value.held if isinstance(value, Mapping) else value


class Set(set):
    """A set of ints or strings, without operations that depend on the order of its members."""

    def __init__(self, iterable=(), /):
        self.held = {}
        self.update(iterable)

    def add(self, item):
        self.held[item] = True

    def discard(self, item):
        if item in self.held:
            self.held.pop(item)

    def remove(self, item):
        self.held.pop(item)

    def clear(self):
        self.held.clear()

    def update(self, *several):
        for items in several:
            for item in members(items):
                self.held[item] = True

    def copy(self):
        return Set(self)

    def union(self, *several):
        found = Set(self)
        found.update(*several)
        return found

    def intersection(self, *several):
        found = Set(self)
        for items in several:
            found = found & Set(items)
        return found

    def difference(self, *several):
        found = Set(self)
        for items in several:
            found = found - Set(items)
        return found

    def issubset(self, other):
        return self <= Set(other)

    def issuperset(self, other):
        return Set(other) <= self

    def isdisjoint(self, other):
        return len(self & Set(other)) == 0

    def __or__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        found = Set(self)
        found.update(other)
        return found

    def __and__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return Set([item for item in members(self) if item in other])

    def __sub__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return Set([item for item in members(self) if item not in other])

    def __xor__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return (self - other) | (other - self)

    def __ior__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        self.update(other)
        return self

    def __le__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return all(item in other for item in members(self))

    def __ge__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return all(item in self for item in members(other))

    def __lt__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return len(self) < len(other) and self <= other

    def __gt__(self, other):
        if not isinstance(other, set):
            return NotImplemented
        return len(self) > len(other) and self >= other

    def __eq__(self, other):
        return isinstance(other, set) and len(self) == len(other) and self <= other

    def __contains__(self, item):
        return item in self.held

    def __len__(self):
        return len(self.held)


def members(items):
    """Return the members of a set in any order; any other value unchanged."""
    if isinstance(items, set):
        return items.held.keys()  # pyright: ignore
    return items
