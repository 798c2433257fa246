"""Upper limits of data-dependent sizes, in terms of sizes that are known at the call.

Memory for a tensor of data-dependent size is allocated by such a limit before the size is known,
so a limit that is too low would cause out-of-bounds writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.device.expr import Index, Reg
from stretto.ir.size_bounds import at_most, maximum, minimum
from stretto.ir.sizes import Atom, Maximum, Product, Quotient, Remainder, Size, Symbol

Range = tuple[int | Size, int | Size | None]
"""The least value of a register, and the largest; None if that is unknown."""
Ranges = Mapping[Reg, Range]


def most(size: Index, ranges: Ranges) -> Size | None:
    """Return a limit that a size never exceeds, whatever its registers hold; None if there is
    none."""
    total = Size(const=size.const)
    for atom, factor in size.terms:
        found = _most_of_term(atom, factor, ranges)
        if found is None:
            return None
        total = total + found
    return total


def _most_of_term(atom: Atom, factor: int, ranges: Ranges) -> Size | None:
    if factor > 0:
        found = _most_of(atom, ranges)
        return None if found is None else found * factor
    match atom:
        case Symbol():
            return Size.of(atom) * factor
        case Reg() if atom in ranges:
            return Size.of(ranges[atom][0]) * factor
        case Maximum(parts):  # with a negative factor a minimum, which is at most each part
            limits = [most(part * factor, ranges) for part in parts]
            known = [limit for limit in limits if limit is not None]
            return minimum(*known) if known else None
        case _:
            return None


def _most_of(atom: Atom, ranges: Ranges) -> Size | None:
    match atom:
        case Symbol():
            return Size.of(atom)
        case Reg():
            high = ranges.get(atom, (0, None))[1]
            return None if high is None else Size.of(high)
        case Product(factors):
            return _most_of_product(factors, ranges)
        case Quotient(index, divisor):
            found = most(index, ranges)
            if found is None or isinstance(divisor, int):
                return None if found is None else found // divisor
            return maximum(0, found)
        case Remainder(_, divisor):
            found = most(Index.of(divisor), ranges)
            return None if found is None else found - 1
        case Maximum(parts):
            limits = [most(part, ranges) for part in parts]
            known = [limit for limit in limits if limit is not None]
            return maximum(*known) if len(known) == len(limits) else None
        case _:
            return None


def _most_of_product(factors: tuple[Atom, ...], ranges: Ranges) -> Size | None:
    total = Size(const=1)
    for factor in factors:
        limit = _most_of(factor, ranges) if _is_not_negative(factor, ranges) else None
        if limit is None:
            return None
        total = total * limit
    return total


def _is_not_negative(atom: Atom, ranges: Ranges) -> bool:
    if isinstance(atom, Reg):
        return atom in ranges and at_most(0, ranges[atom][0])
    return isinstance(atom, Symbol) and atom.low >= 0
