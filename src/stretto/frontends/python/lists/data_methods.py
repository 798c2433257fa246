"""Functions of Python's library on lists of instances, whose lengths only the run knows.

The interpreter runs these functions, whose arguments are its values. `operations` and the rules of
built-in functions call them.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

_LONGEST_BY_INSERTION = 63
"""Python sorts lists of more items by merging parts (CPython, Objects/listsort.txt)."""


def total(items: Any, start: Any) -> Any:
    if len(items) == 0:
        return start
    found = start + items[0]
    for position in range(1, len(items)):
        found = found + items[position]
    return found


def reduced(function: Any, items: Any) -> Any:
    if len(items) == 0:
        raise TypeError("reduce() of empty iterable with no initial value")
    found = items[0]
    for position in range(1, len(items)):
        found = function(found, items[position])
    return found


def least(items: Any) -> Any:
    found = items[0]
    for position in range(1, len(items)):
        if items[position] < found:
            found = items[position]
    return found


def greatest(items: Any) -> Any:
    found = items[0]
    for position in range(1, len(items)):
        if items[position] > found:
            found = items[position]
    return found


def least_by(items: Any, key: Any) -> Any:
    place, mark = 0, key(items[0])
    for position in range(1, len(items)):
        other = key(items[position])
        if other < mark:
            place, mark = position, other
    return items[place]


def greatest_by(items: Any, key: Any) -> Any:
    place, mark = 0, key(items[0])
    for position in range(1, len(items)):
        other = key(items[position])
        if other > mark:
            place, mark = position, other
    return items[place]


def check_some(items: Any, message: str) -> None:
    if len(items) == 0:
        raise ValueError(message)


def check_count(items: Any, count: int, is_open: bool) -> None:
    """Raise what Python raises where a list is unpacked. is_open: a target takes all the rest."""
    length = len(items)
    if is_open and length < count:
        raise ValueError(f"not enough values to unpack (expected at least {count}, got {length})")
    if not is_open and length < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {length})")
    if not is_open and length > count:
        raise ValueError(f"too many values to unpack (expected {count})")


def sort(items: Any, key: Any, reverse: Any, are_floats: Any) -> None:
    """Sort a list in place: stably, and short lists with the comparisons that Python makes."""
    marks = [key(item) for item in items] if key is not None else list(items)
    length = len(items)
    if are_floats and length > _LONGEST_BY_INSERTION:
        for mark in marks:
            if mark != mark:
                raise ValueError("a list of many items with NaN is sorted")
    if reverse:
        items.reverse()
        marks.reverse()
    run = 1
    if length > 1:
        run = 2
        if marks[1] < marks[0]:
            while run < length and marks[run] < marks[run - 1]:
                run += 1
            for position in range(run - 1):
                items.insert(position, items.pop(run - 1))
                marks.insert(position, marks.pop(run - 1))
        else:
            while run < length and not marks[run] < marks[run - 1]:
                run += 1
    for position in range(run, length):
        item, mark = items[position], marks[position]
        low, high = 0, position
        while low < high:
            middle = low + (high - low) // 2
            if mark < marks[middle]:
                high = middle
            else:
                low = middle + 1
        items.pop(position)
        items.insert(low, item)
        marks.pop(position)
        marks.insert(low, mark)
    if reverse:
        items.reverse()


# same: compares two items as containers do, by identity and then with `==`.


def contains(items: Any, wanted: Any, same: Any) -> Any:
    return any(same(items[position], wanted) for position in range(len(items)))


def index(items: Any, wanted: Any, same: Any, start: Any, stop: Any) -> Any:
    for position in range(start, stop):
        if same(items[position], wanted):
            return position
    raise ValueError(f"{wanted!r} is not in list")


def count(items: Any, wanted: Any, same: Any) -> Any:
    found = 0
    for position in range(len(items)):
        if same(items[position], wanted):
            found += 1
    return found


def remove(items: Any, wanted: Any, same: Any, message: str) -> None:
    for position in range(len(items)):
        if same(items[position], wanted):
            items.pop(position)
            return
    raise ValueError(message)


def are_equal(items: Any, others: Any, same: Any) -> Any:
    if len(items) != len(others):
        return False
    return all(same(items[position], others[position]) for position in range(len(items)))


def compared(items: Any, others: Any, same: Any, compare: Any) -> Any:
    """Return a comparison of two lists by `compare`, which compares two items."""
    for position in range(min(len(items), len(others))):
        if not same(items[position], others[position]):
            return compare(items[position], others[position])
    return compare(len(items), len(others))


def extend(items: Any, others: Any) -> None:
    for item in others:
        items.append(item)


def extend_left(items: Any, others: Any) -> None:
    for item in others:
        items.appendleft(item)


def check_deque(items: Any) -> None:
    if len(items) == 0:
        raise IndexError("pop from an empty deque")


def drop_first(items: Any, most: Any) -> None:
    if len(items) > most:
        items.popleft()


def drop_last(items: Any, most: Any) -> None:
    if len(items) > most:
        items.pop()


def rotate(items: Any, steps: Any) -> None:
    for _ in range(steps):
        if len(items) > 1:
            items.insert(0, items.pop())
    for _ in range(-steps):
        if len(items) > 1:
            items.append(items.pop(0))


def product(first: Any, *others: Any) -> Any:
    if len(others) == 0:
        return [(item,) for item in first]
    if len(others) == 1:
        second = list(others[0])
        return [(a, b) for a in first for b in second]
    rest = list(product(*others))
    return [(a, *other) for a in first for other in rest]


def chained(parts: Any) -> Any:
    """Return a list of the items of several iterables, which is made at once."""
    found: Any = []
    for part in parts:
        found.extend(part)
    return found


def pairs(items: Any) -> Any:
    """Return `itertools.combinations(items, 2)`."""
    return [
        (items[one], items[other])
        for one in range(len(items))
        for other in range(one + 1, len(items))
    ]
