"""Behaviour of Python's lists beyond the list operators of the Program, written in terms of these.

The functions are traced like user code: where lengths or positions depend on the run, their
branches and loops become part of the Program.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# all arguments are traced values

from __future__ import annotations

from typing import Any

import torch


def collected(items: Any) -> Any:
    """Return a new list of the items."""
    made: Any = []
    for item in items:
        made.append(item)
    return made


def extend(items: Any, others: Any) -> None:
    for position in range(len(others)):
        items.append(others[position])


def insert(items: Any, index: Any, item: Any) -> None:
    length = len(items)
    if index < 0:
        index = index + length
        if index < 0:
            index = 0
    if index > length:
        index = length
    items.append(item)
    for position in range(length, index, -1):
        items[position] = items[position - 1]
    items[index] = item


def delete(items: Any, index: Any, message: str) -> None:
    length = len(items)
    if index < 0:
        index = index + length
    if index < 0 or index >= length:
        raise IndexError(message)
    for position in range(index, length - 1):
        items[position] = items[position + 1]
    items.pop()


def check_position(items: Any, index: Any, message: str) -> None:
    length = len(items)
    if index < -length or index >= length:
        raise IndexError(message)


def item_to_pop(items: Any, index: Any) -> Any:
    length = len(items)
    if length == 0:
        raise IndexError("pop from empty list")
    if index < -length or index >= length:
        raise IndexError("pop index out of range")
    return items[index]


def reverse(items: Any) -> None:
    length = len(items)
    for position in range(length // 2):
        other = length - 1 - position
        first = items[position]
        items[position] = items[other]
        items[other] = first


def repeat(items: Any, times: Any, once: Any) -> None:
    """Perform `items *= times`, where `once` is a copy of the items."""
    if times <= 0:
        items.clear()
    for _ in range(times - 1):
        for position in range(len(once)):
            items.append(once[position])


def bounded(items: Any, position: Any, step: int) -> Any:
    """Return the bound of a slice as a position between the ends."""
    length = len(items)
    lowest, highest = (0, length) if step > 0 else (-1, length - 1)
    if position < 0:
        position = position + length
        if position < lowest:
            position = lowest
    if position > highest:
        position = highest
    return position


def trips(first: Any, last: Any, step: int) -> Any:
    """Return the length of `range(first, last, step)`."""
    length = (last - first + step - 1) // step if step > 0 else (first - last - step - 1) // -step
    return length if length > 0 else 0


def part(items: Any, first: Any, length: Any, step: int, made: Any) -> None:
    """Append `length` items of `items` from the position `first` on, in steps, to `made`."""
    for place in range(length):
        made.append(items[first + place * step])


def contains(items: Any, number: Any) -> Any:
    """Return `number in items` for a list of numbers."""
    found = False
    for position in range(len(items)):
        if items[position] == number:
            found = True
    return found


def equal(items: Any, others: Any) -> Any:
    """Return `items == others` for lists of numbers."""
    same = len(items) == len(others)
    if same:
        for position in range(len(items)):
            if items[position] != others[position]:
                same = False
    return same


def compared(items: Any, others: Any, compare: Any) -> Any:
    """Return a flag that is true if lists of numbers are in the order given by `compare`: the
    first items that differ decide, or the lengths if none do."""
    length, other_length = len(items), len(others)
    outcome = compare(length, other_length)
    shorter = length if length < other_length else other_length
    for position in range(shorter - 1, -1, -1):
        if items[position] != others[position]:
            outcome = compare(items[position], others[position])
    return outcome


def count(items: Any, number: Any) -> Any:
    """Return `items.count(number)` for a list of numbers."""
    found = 0
    for position in range(len(items)):
        if items[position] == number:
            found = found + 1
    return found


def index(items: Any, number: Any, start: Any, stop: Any) -> Any:
    """Return `items.index(number, start, stop)` for a list of numbers."""
    found = -1
    for position in range(stop - 1, start - 1, -1):
        if items[position] == number:
            found = position
    if found < 0:
        raise ValueError("list.index(x): x not in list")
    return found


def best(items: Any, is_better: Any, name: str) -> Any:
    """Return the first item that no other one is better than."""
    length = len(items)
    if length == 0:
        raise ValueError(f"{name}() arg is an empty sequence")
    found = items[0]
    for position in range(1, length):
        item = items[position]
        if is_better(item, found):
            found = item
    return found


def places_by_insertion(numbers: Any, length: int, reverse: bool) -> Any:
    """Return the order in which Python's `list.sort` leaves a short list of numbers, even if
    comparisons contradict each other: a run at the start is kept or reversed, and each of the
    other numbers is inserted where a bisection places it.

    (CPython, Objects/listsort.txt.)
    """
    if reverse:
        numbers = numbers.flip(0)
    places = torch.arange(length)
    falls = numbers[1:] < numbers[:-1]
    run = int((falls == falls[0]).long().cumprod(0).sum()) + 1
    is_turned = torch.logical_and(falls[0], places < run)
    order = torch.where(is_turned, run - 1 - places, places)
    for position in range(run, length):
        chosen = numbers[order]
        pivot = chosen[position]
        low = torch.tensor(0)
        high = torch.tensor(0) + position
        for _ in range(length.bit_length()):
            middle = (low + high) // 2
            is_open = low < high
            is_less = pivot < chosen[middle]
            high = torch.where(torch.logical_and(is_open, is_less), middle, high)
            low = torch.where(torch.logical_and(is_open, ~is_less), middle + 1, low)
        shifted = torch.where(places == low, order[position], order.roll(1))
        is_moved = torch.logical_and(places >= low, places <= position)
        order = torch.where(is_moved, shifted, order)
    if reverse:
        order = (length - 1 - order).flip(0)
    return order
