"""Facts about a size that hold for every value of its symbols: limits, comparisons, maxima."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from math import gcd, inf, prod

from stretto.ir.sizes import (
    Atom,
    Bounds,
    Maximum,
    Product,
    Quantity,
    Quotient,
    Remainder,
    Size,
    Symbol,
    factors_of,
)

_MOST_CHOICES = 16
"""Largest number of parts when a sum of maxima is rewritten as one maximum."""


def at_most(smaller: int | Size, larger: int | Size) -> bool:
    """True if `smaller <= larger` holds for all values of the symbols in their ranges; False in
    doubt."""
    if isinstance(smaller, int) and isinstance(larger, int):
        return smaller <= larger
    low = _low(Size.of(larger) - smaller)
    return low is not None and low >= 0


def in_range(size: int | Size, symbol: Symbol) -> bool:
    """True if the size is certainly in the symbol's range."""
    return at_most(symbol.low, size) and (symbol.high is None or at_most(size, symbol.high))


def bounds(size: int | Size) -> Bounds:
    """Return a lower and an upper limit of the size; they need not be tight."""
    if isinstance(size, int):
        return size, size
    high = _low(-size)
    return _low(size), None if high is None else -high


@lru_cache(65536)
def _low(size: Size) -> int | None:
    """Return the best of several lower limits; None if there is none."""
    if not size.terms:
        return size.const
    for atom, coefficient in size.terms:
        if isinstance(atom, Maximum) and coefficient < 0:  # any part may be the largest
            lows = [_low(part) for part in _instead(size, atom, coefficient)]
            return None if None in lows else min(low for low in lows if low is not None)
    found = [_low_by_terms(size)]
    if any(isinstance(atom, Product) for atom, _ in size.terms):
        shifted = _shifted(size)
        found.append(None if shifted is None else _low_by_terms(shifted))
    for atom, coefficient in size.terms:
        match atom:
            case Maximum():  # a maximum is at least each of its parts
                found += [_low(part) for part in _instead(size, atom, coefficient)]
            case Quotient(index, int(divisor)):
                # index - divisor + 1 <= divisor * floor(index / divisor) <= index.
                scale = divisor // gcd(divisor, coefficient)
                rest = size + Size(((atom, -coefficient),))
                replaced = index if coefficient < 0 else index + (1 - divisor)
                low = _low(rest * scale + replaced * (coefficient * scale // divisor))
                found.append(None if low is None else -(-low // scale))
                break
            case _:
                pass
    return max((low for low in found if low is not None), default=None)


def _instead(size: Size, atom: Maximum, coefficient: int) -> list[Size]:
    """Return the size once per part of the maximum, with the part in place of the maximum."""
    rest = size + Size(((atom, -coefficient),))
    return [rest + part * coefficient for part in atom.parts]


def _low_by_terms(size: Size) -> int | None:
    """Return the sum of the terms' lower limits."""
    total = size.const
    for atom, coefficient in size.terms:
        low, high = _atom_bounds(atom)
        end = low if coefficient > 0 else high
        if end is None:
            return None
        total += coefficient * end
    return total


def _atom_bounds(atom: Atom) -> Bounds:
    match atom:
        case Quantity():
            return atom.bounds
        case Product(factors):
            found: Bounds = (1, 1)
            for factor in factors:
                found = _times(found, _atom_bounds(factor))
            return found
        case Quotient(index, divisor):
            low, high = bounds(index)
            if isinstance(divisor, int):
                return (
                    None if low is None else low // divisor,
                    None if high is None else high // divisor,
                )
            # Division moves a number towards 0, but a negative one no further than -1.
            return (
                None if low is None else min(low, 0),
                None if high is None else max(high, 0) if high >= 0 else -1,
            )
        case Remainder(_, divisor):
            high = bounds(divisor)[1]
            return 0, None if high is None else high - 1
        case Maximum(parts):
            pairs = [bounds(part) for part in parts]
            lows = [low for low, _ in pairs if low is not None]
            highs = [high for _, high in pairs if high is not None]
            return max(lows, default=None), max(highs) if len(highs) == len(pairs) else None


def _times(a: Bounds, b: Bounds) -> Bounds:
    """Return the range of the product of two ranges, each of which may be unbounded."""
    ends = [_product(x, y) for x in _ends(a) for y in _ends(b)]
    low, high = min(ends), max(ends)
    return None if low == -inf else int(low), None if high == inf else int(high)


def _ends(range: Bounds) -> tuple[float, float]:
    return -inf if range[0] is None else range[0], inf if range[1] is None else range[1]


def _product(one: float, other: float) -> float:
    return 0 if one == 0 or other == 0 else one * other


@dataclass(frozen=True, slots=True)
class _Excess(Quantity):
    """The difference between an atom and its lower limit."""

    atom: Atom
    high: int | None

    @property
    def bounds(self) -> Bounds:
        return 0, self.high


def _shifted(size: Size) -> Size | None:
    """Rewrite the polynomial in terms of the atoms' excess over their lower limits; None if one
    has none.

    That shows that `n*m - n` is not negative: with n = 1 + x and m = 1 + y it is y + x*y.
    """
    total = Size(const=size.const)
    for atom, coefficient in size.terms:
        product = Size(const=coefficient)
        for factor in factors_of(atom):
            low, high = _atom_bounds(factor)
            if low is None:
                return None
            product = product * (
                Size.of(_Excess(factor, None if high is None else high - low)) + low
            )
        total = total + product
    return total


# ---- maxima ----------------------------------------------------------------------------------


def maximum(*sizes: int | Size) -> Size:
    """Return the largest size, without the parts that are certainly not larger than another one."""
    parts = list(dict.fromkeys(part for size in sizes for part in parts_of_maximum(Size.of(size))))
    for part in list(parts):
        if any(other is not part and at_most(part, other) for other in parts):
            parts.remove(part)
    if len(parts) == 1:
        return parts[0]
    return Size.of(Maximum(tuple(sorted(parts, key=repr))))


def minimum(*sizes: int | Size) -> Size:
    """Return the smallest size, as the negated maximum of the negated sizes."""
    return -maximum(*(-Size.of(size) for size in sizes))


def parts_of_maximum(size: Size) -> tuple[Size, ...]:
    """Return the parts if the size is a maximum, else the size alone."""
    if len(size.terms) == 1 and not size.const and size.terms[0][1] == 1:
        atom = size.terms[0][0]
        if isinstance(atom, Maximum):
            return atom.parts
    return (size,)


def with_maximum_outside(size: Size) -> Size:
    """Move a size's only maximum to the outside: `n + max(-n, -1)` becomes `max(0, n - 1)`. Sizes
    in types have this form."""
    parts = parts_of_maximum(size)
    if len(parts) > 1:
        flat = maximum(*chain.from_iterable(map(_distributed, parts)))
        return flat if len(parts_of_maximum(flat)) <= len(parts) else size
    found = [(a, c) for a, c in size.terms if isinstance(a, Maximum)]
    if len(found) != 1 or found[0][1] not in (1, -1) or len(size.terms) + bool(size.const) == 1:
        return size
    ((atom, factor),) = found
    assert isinstance(atom, Maximum)
    rest = (size + Size(((atom, -factor),))) * factor
    return maximum(*(part + rest for part in atom.parts)) * factor


def _distributed(size: Size) -> Iterable[Size]:
    """Return the maximum-free sizes whose maximum equals a sum of maxima; the sum itself if it has
    a negated maximum or too many parts."""
    found = [(atom, factor) for atom, factor in size.terms if isinstance(atom, Maximum)]
    if not found or any(factor < 0 for _, factor in found):
        return (size,)
    if prod(len(atom.parts) for atom, _ in found) > _MOST_CHOICES:
        return (size,)
    rest = size - Size(tuple(found))
    choices = ([part * factor for part in atom.parts] for atom, factor in found)
    return (sum(choice, rest) for choice in product(*choices))


def substitute_symbols(size: Size, values: Mapping[Symbol, int | Size]) -> Size:
    """Return the size with symbols replaced, in canonical form."""
    found = size.evaluate(lambda item: Size.of(values.get(item, item)), maximum)
    return with_maximum_outside(Size.of(found))
