"""What is known of a size for every value of its symbols: limits, comparisons, maxima."""

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
"""Of how many sizes a sum of maxima may be the maximum, if it is written as one."""


def at_most(smaller: int | Size, larger: int | Size) -> bool:
    """Is `smaller <= larger` sure, whatever the symbols are in their ranges? False in doubt."""
    if isinstance(smaller, int) and isinstance(larger, int):
        return smaller <= larger
    low = _low(Size.of(larger) - smaller)
    return low is not None and low >= 0


def in_range(size: int | Size, symbol: Symbol) -> bool:
    """Is it sure that the symbol may stand for the size?"""
    return at_most(symbol.low, size) and (symbol.high is None or at_most(size, symbol.high))


def bounds(size: int | Size) -> Bounds:
    """Limits that the size surely keeps; they need not be reached."""
    if isinstance(size, int):
        return size, size
    high = _low(-size)
    return _low(size), None if high is None else -high


@lru_cache(65536)
def _low(size: Size) -> int | None:
    """The best of several lower limits."""
    if not size.terms:
        return size.const
    for atom, coefficient in size.terms:
        if isinstance(atom, Maximum) and coefficient < 0:  # whichever part it is
            lows = [_low(part) for part in _instead(size, atom, coefficient)]
            return None if None in lows else min(low for low in lows if low is not None)
    found = [_low_by_terms(size)]
    if any(isinstance(atom, Product) for atom, _ in size.terms):
        shifted = _shifted(size)
        found.append(None if shifted is None else _low_by_terms(shifted))
    for atom, coefficient in size.terms:
        match atom:
            case Maximum():  # at least each part
                found += [_low(part) for part in _instead(size, atom, coefficient)]
            case Quotient(index, int(divisor)):
                # divisor * floor(index / divisor) lies between index - divisor + 1 and index.
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
    """The size with each part in the place of its maximum."""
    rest = size + Size(((atom, -coefficient),))
    return [rest + part * coefficient for part in atom.parts]


def _low_by_terms(size: Size) -> int | None:
    """The sum of what each term is at least."""
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
            # Dividing brings a number nearer to 0, and a negative one at most to -1.
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
    """The product of two ranges, of which each may lack ends."""
    ends = [_product(x, y) for x in _ends(a) for y in _ends(b)]
    low, high = min(ends), max(ends)
    return None if low == -inf else int(low), None if high == inf else int(high)


def _ends(range: Bounds) -> tuple[float, float]:
    return -inf if range[0] is None else range[0], inf if range[1] is None else range[1]


def _product(one: float, other: float) -> float:
    return 0 if one == 0 or other == 0 else one * other


@dataclass(frozen=True, slots=True)
class _Excess(Quantity):
    """How much an atom is above its lower limit."""

    atom: Atom
    high: int | None

    @property
    def bounds(self) -> Bounds:
        return 0, self.high


def _shifted(size: Size) -> Size | None:
    """The polynomial in what its atoms are above their lower limits, where `n*m - n` shows that it
    is not negative: with n = 1 + x and m = 1 + y it is y + x*y."""
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
    """The largest, without the parts that surely are not."""
    parts = list(dict.fromkeys(part for size in sizes for part in parts_of_maximum(Size.of(size))))
    for part in list(parts):
        if any(other is not part and at_most(part, other) for other in parts):
            parts.remove(part)
    if len(parts) == 1:
        return parts[0]
    return Size.of(Maximum(tuple(sorted(parts, key=repr))))


def minimum(*sizes: int | Size) -> Size:
    """The smallest, as the negated maximum of the negated sizes."""
    return -maximum(*(-Size.of(size) for size in sizes))


def parts_of_maximum(size: Size) -> tuple[Size, ...]:
    """What a size is the maximum of: itself, if it is none."""
    if len(size.terms) == 1 and not size.const and size.terms[0][1] == 1:
        atom = size.terms[0][0]
        if isinstance(atom, Maximum):
            return atom.parts
    return (size,)


def with_maximum_outside(size: Size) -> Size:
    """The same size without anything beside its maximum, if it has just one: `n + max(-n, -1)` is
    `max(0, n - 1)`. Sizes of types have this form."""
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
    """Sizes without maxima whose maximum is a sum of maxima; the sum itself if some are negated."""
    found = [(atom, factor) for atom, factor in size.terms if isinstance(atom, Maximum)]
    if not found or any(factor < 0 for _, factor in found):
        return (size,)
    if prod(len(atom.parts) for atom, _ in found) > _MOST_CHOICES:
        return (size,)
    rest = size - Size(tuple(found))
    choices = ([part * factor for part in atom.parts] for atom, factor in found)
    return (sum(choice, rest) for choice in product(*choices))


def substitute_symbols(size: Size, values: Mapping[Symbol, int | Size]) -> Size:
    """The size with symbols replaced, canonical again."""
    found = size.evaluate(lambda item: Size.of(values.get(item, item)), maximum)
    return with_maximum_outside(Size.of(found))
