"""Ranges of values whose ends are sizes or registers, and their arithmetic.

`regions.index_range` has numbers as ends; here variable 0 of an operator over n rows is in
0 .. n-1, and i0 + m is in m .. n+m-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.device.expr import Index
from stretto.ir.size_bounds import at_most, maximum
from stretto.ir.sizes import Quantity


@dataclass(frozen=True, slots=True)
class Range:
    """The values from `low` to `last`. None: that end is not known."""

    low: Index | None = None
    last: Index | None = None

    @staticmethod
    def of(value: int | Index | Range) -> Range:
        return value if isinstance(value, Range) else Range(Index.of(value), Index.of(value))

    def map(self, change: Callable[[Index], Index | None]) -> Range:
        """Apply `change` to the known ends."""
        ends = (None if end is None else change(end) for end in (self.low, self.last))
        return Range(*ends)

    @property
    def single(self) -> Index | None:
        """The value if there is only one; None otherwise."""
        return self.low if self.low == self.last else None

    def __add__(self, other: int | Range) -> Range:
        other = Range.of(other)
        return Range(_sum(self.low, other.low), _sum(self.last, other.last))

    __radd__ = __add__

    def __mul__(self, other: int | Range) -> Range:
        if isinstance(other, int):
            found = self.map(lambda end: end * other)
            return found if other >= 0 else Range(found.last, found.low)
        one, two = self.single, other.single
        if one is not None and two is not None:
            return Range.of(one * two)
        if not (self.is_natural and other.is_natural):
            return Range()
        return Range(_product(self.low, other.low), _product(self.last, other.last))

    __rmul__ = __mul__

    @property
    def is_natural(self) -> bool:
        return self.low is not None and at_most(0, self.low)

    def __floordiv__(self, divisor: int | Range) -> Range:
        number = Range.of(divisor).single
        return Range() if number is None else self.map(lambda end: end // number.dim)

    def __mod__(self, divisor: int | Range) -> Range:
        number = Range.of(divisor).single
        if number is None:
            return Range()
        if self.low is not None and self.last is not None:
            if at_most(0, self.low) and at_most(self.last + 1, number):
                return self
            if self.low // number.dim == self.last // number.dim:
                return self.map(lambda end: end % number.dim)
        return Range(Index(), number - 1)


def _sum(a: Index | None, b: Index | None) -> Index | None:
    return None if a is None or b is None else a + b


def _product(a: Index | None, b: Index | None) -> Index | None:
    return None if a is None or b is None else a * b


def larger(a: int | Range, b: int | Range) -> Range:
    """Return the range of the maximum of two values."""
    a, b = Range.of(a), Range.of(b)
    lows = [low for low in (a.low, b.low) if low is not None]
    last = None if a.last is None or b.last is None else maximum(a.last, b.last)
    return Range(maximum(*lows) if lows else None, last)


def range_of(index: Index, lookup: Callable[[Quantity], Range]) -> Range:
    """Return the range of an index; `lookup` gives that of each quantity in it."""
    return Range.of(index.evaluate(lookup, larger))
