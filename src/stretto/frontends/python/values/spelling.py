"""Comparisons of traced texts with known ones, as comparisons of the values that they show.

`f"k{n}" == "k12"` is `n == 12`. The numbers that a format shows as one text form an
interval, since formats preserve order: `f"{v:.1f}" == "0.5"` is `0.45 <= v <= 0.55`, with
the first and the last double for which that is true, which bisection finds.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any

import torch

from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import Symbolic
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import is_number, number_of
from stretto.frontends.python.values.texts import (
    Formatted,
    Percent,
    Shown,
    TextParts,
    TracedText,
    is_never_empty,
    is_text,
    pieces_of,
    values_of,
)

_MOST_WAYS = 64
"""Maximum number of ways to divide a text among the values that it may show."""

_SAMPLES = (-10, 10, 11, 171)
"""Positions that a format shows as decimal numbers, if it shows any as decimal."""

Flag = Any
"""A bool, or a traced one."""


class Undecided(Exception):
    """No comparison of values decides if the texts are equal."""


def spelled(text: TracedText, other: Any) -> Any:
    """Return `text == other`."""
    if isinstance(other, Either):
        return Hooks.use(other, lambda option: option == text)
    if not isinstance(other, str):
        return False
    if tracer().data is not None:
        return tracer().data.compared("eq", text, other)
    with contextlib.suppress(Undecided):
        if not is_text(other):
            return _any(_ways(pieces_of(text), values_of(text), other))
        if pieces_of(other) == pieces_of(text):
            return _same(text, other)
    return Hooks.of_text(text, "__eq__", other)


def _same(one: TracedText, other: Any) -> Any:
    pairs = list(zip(values_of(one), values_of(other), strict=True))
    if all(first is second for first, second in pairs):
        return True
    pieces = [piece for piece in pieces_of(one) if isinstance(piece, Shown)]
    if len(pieces) != 1 or pieces[0].show != Formatted():
        raise Undecided
    (first, second) = pairs[0]
    if not all(_is_of(item, torch.int64) or _is_of(item, torch.bool) for item in (first, second)):
        raise Undecided
    return number_of(first == second)


def _is_of(value: Any, dtype: torch.dtype) -> bool:
    return is_number(value) and value.dtype == dtype


def _any(flags: Iterator[Flag]) -> Flag:
    found = [flag for flag in flags if flag is not False]
    if any(flag is True for flag in found):
        return True
    return number_of(reduce(torch.logical_or, found)) if found else False


def _both(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return number_of(torch.logical_and(first, second))


def _ways(pieces: TextParts, values: Sequence[Any], target: str) -> Iterator[Flag]:
    """Yield the conditions of which one holds if the pieces form the target."""
    if not pieces:
        yield target == ""
        return
    first, rest = pieces[0], pieces[1:]
    if isinstance(first, str):
        if target.startswith(first):
            yield from _ways(rest, values, target.removeprefix(first))
        return
    own, others = values[: first.count], values[first.count :]
    least = 1 if is_never_empty(first) else 0
    ends = (
        range(least, len(target) + 1) if rest else range(max(least, len(target)), len(target) + 1)
    )
    if len(ends) > _MOST_WAYS:
        raise Undecided
    for end in ends:
        following = _any(_ways(rest, others, target[end:]))
        if following is not False:
            yield _both(_shows(first, own, target[:end]), following)


def _shows(piece: Shown, values: Sequence[Any], target: str) -> Flag:
    """Return a flag that is true if a piece shows its value as the target. Raises Undecided."""
    if not isinstance(piece.show, Formatted | Percent) or len(values) != 1:
        raise Undecided
    show, (value,) = piece.show, values
    if isinstance(value, Symbolic):
        return show([settled_size(value)]) == target
    if not is_number(value):
        raise Undecided
    if value.dtype == torch.bool:
        options = [option for option in (True, False) if show([option]) == target]
        return len(options) == 2 or _is_one(value, options)
    if value.dtype == torch.int64:
        return _in_interval(value, _interval(lambda x: show([x]), target, -(2**63), 2**63 - 1))
    if show([math.nan]) == target:
        return number_of(torch.isnan(value))
    low, high = _order(-math.inf), _order(math.inf)
    found = _interval(lambda x: show([_double(x)]), target, low, high)
    return found is not None and _between(value, *map(_double, found))


def settled_size(value: Any) -> Any:
    """Return a size that is known at the call as a Python number."""
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)](value)


def _is_one(value: TracedTensor, options: list[bool]) -> Flag:
    if not options:
        return False
    return value if options[0] else Hooks.python.not_(value)


def _in_interval(value: TracedTensor, found: tuple[int, int] | None) -> Flag:
    if found is None:
        return False
    low, high = found
    return number_of(value == low) if low == high else _both(value >= low, value <= high)


def _between(value: TracedTensor, low: float, high: float) -> Flag:
    """Return a flag that is true if a float is in an interval in which -0.0 is less than 0.0."""
    inside: Any = value == low if low == high else torch.logical_and(value >= low, value <= high)
    if _is_zero(low, negative=False):
        inside = torch.logical_and(
            inside, torch.logical_or(value != 0, torch.reciprocal(value) > 0)
        )
    if _is_zero(high, negative=True):
        inside = torch.logical_and(
            inside, torch.logical_or(value != 0, torch.reciprocal(value) < 0)
        )
    return number_of(inside)


def _is_zero(number: float, *, negative: bool) -> bool:
    return number == 0 and (math.copysign(1, number) < 0) is negative


# ---- the interval of numbers that a format shows as the same text --------------------------------


def _order(number: float) -> int:
    """Return the position of a double in the order of all doubles, with -0.0 just before 0.0."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return bits if bits >= 0 else -(bits + 2**63) - 1


def _double(position: int) -> float:
    bits = position if position >= 0 else -(position + 1) - 2**63
    (number,) = struct.unpack("<d", struct.pack("<q", bits))
    return number


def _interval(
    show: Callable[[int], str], target: str, low: int, high: int
) -> tuple[int, int] | None:
    """Return the first and the last position that `show` shows as the target; None if there is
    none."""
    for position in _SAMPLES:
        _known_rank(show(position))
    wanted = _rank(target)
    if wanted is None:
        return None
    first = _least(lambda x: _known_rank(show(x)) >= wanted, low, high)
    if first is None or show(first) != target:
        return None
    last = _least(lambda x: _known_rank(show(x)) > wanted, first, high)
    last = high if last is None else last - 1
    if show(last) != target:
        raise Undecided
    return first, last


def _least(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the least position in `low..high` where a monotone condition holds; None if it never
    does."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _known_rank(text: str) -> tuple[Decimal, int]:
    found = _rank(text)
    if found is None:  # a base other than ten, or other fill characters
        raise Undecided
    return found


def _rank(text: str) -> tuple[Decimal, int] | None:
    """Return the number that a text spells, for comparisons, with -0.0 before 0.0; None if it is
    no number."""
    plain = text.strip().removesuffix("%").replace(",", "").replace("_", "")
    try:
        number = Decimal(plain)
    except InvalidOperation:
        return None
    return None if number.is_nan() else (number, 0 if number.is_signed() else 1)
