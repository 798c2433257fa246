"""The algebra of sizes: dims, strides, extents, bytes of frames, and positions in buffers.

A `Size` is an integer polynomial. Its atoms are quantities (such as the `Symbol` of a dim that
is known only at the call), products of atoms, floor divisions, remainders and maxima. Sizes are
canonical: equal polynomials are equal objects. The device language adds its own quantities
(iteration variables, registers, positions read from memory) and calls the same class `Index`.

    2*n*m + 1      ((n + 1) // 2)      (n % 4)      max(0, n - 3)      min(n, 8)

A minimum is a negated maximum; division rounds down. Limits of sizes: see `size_bounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

Bounds = tuple[int | None, int | None]
"""The smallest and the largest value; None if there is no limit or none is known."""

UNKNOWN: Bounds = (None, None)


class Quantity:
    """An atom that the algebra treats as opaque.

    is_plain: reading it costs nothing. is_any: it may be any 64-bit number, so that arithmetic
    with it may wrap around.
    """

    __slots__ = ()
    is_plain: ClassVar[bool] = True
    is_any: ClassVar[bool] = False

    @property
    def bounds(self) -> Bounds:
        return UNKNOWN

    def inner_atoms(self) -> Iterator[Atom]:
        """Iterate over the atoms of the sizes inside the quantity."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Var(Quantity):
    """Iteration variable number `number` of the current operator."""

    number: int

    def __hash__(self) -> int:  # sets hold many of them: faster than hashing a tuple
        return hash(self.number)


@dataclass(frozen=True, slots=True)
class Symbol(Quantity):
    """A size that is known when the program is called, or when a list has been filled.

    It is at least `low` and at most `high`, if that is not None. usual: a size that was seen
    when the program was compiled, if it is larger than `USUAL`. Kernels are chosen for it; no
    proof relies on it.
    """

    name: str
    low: int = 1
    high: int | None = None
    usual: int | None = None

    def __hash__(self) -> int:  # sets hold many symbols, and the name alone rarely collides
        return hash(self.name)

    @property
    def bounds(self) -> Bounds:
        return self.low, self.high

    @property
    def is_default(self) -> bool:
        """True if it has the default range and no usual size."""
        return self.low == 1 and self.high is None and self.usual is None

    @property
    def declaration(self) -> str:
        """The name with its limits, such as `0 <= n <= 64`."""
        return f"{self.low} <= {self.name}" + ("" if self.high is None else f" <= {self.high}")

    @property
    def assumed(self) -> int:
        """The value to assume in cost estimates: `usual` (or `USUAL`), clamped to the range."""
        usual = self.usual or USUAL
        return max(self.low, usual if self.high is None else min(usual, self.high))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two or more atoms. The factors are sorted by text and are not products."""

    factors: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(index / divisor). The divisor is positive."""

    index: Size
    divisor: int | Size


@dataclass(frozen=True, slots=True)
class Remainder:
    """index mod divisor, in 0 .. divisor-1. The divisor is positive."""

    index: Size
    divisor: int | Size


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest of two or more parts, sorted by text; no part is known to be at most another
    one."""

    parts: tuple[Size, ...]


Atom = Quantity | Product | Quotient | Remainder | Maximum
Number = Any
"""The domain that sizes are evaluated in: int, torch.SymInt, arrays and tensors of ints,
or Size."""


@dataclass(frozen=True, slots=True)
class Size:
    """const + sum(coefficient * atom). Terms are unique, have nonzero coefficients and are
    sorted by text.

    A constant dim, stride or extent is an int, never a Size without terms (see `dim`).
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    @staticmethod
    def of(item: int | Atom | Size) -> Size:
        """Return a number or an atom as a size."""
        if isinstance(item, Size):
            return item
        return Size(const=item) if isinstance(item, int) else Size(((item, 1),))

    def __add__(self, other: int | Atom | Size) -> Size:
        other = Size.of(other)
        if not other.terms:
            return Size(self.terms, self.const + other.const)
        if not self.terms:
            return Size(other.terms, self.const + other.const)
        total: dict[Atom, int] = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
        return Size(_sorted_terms(total), self.const + other.const)

    __radd__ = __add__

    def __mul__(self, factor: int | Atom | Size) -> Size:
        if isinstance(factor, int):
            if factor == 0:
                return Size()
            return Size(tuple((a, c * factor) for a, c in self.terms), self.const * factor)
        return _product(self, Size.of(factor))

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: int | Atom | Size) -> Size:
        return self + Size.of(other) * -1

    def __rsub__(self, other: int | Atom | Size) -> Size:
        return self * -1 + other

    def __floordiv__(self, divisor: int | Size) -> Size:
        if not isinstance(divisor, int):
            return _divided(self, divisor)
        if divisor == 1:
            return self
        if all(c % divisor == 0 for _, c in self.terms):
            return Size(tuple((a, c // divisor) for a, c in self.terms), self.const // divisor)
        match self.terms:
            case ((Quotient(of, int() as inner), 1),):
                # (of // inner + const) // divisor is canonical as a single division.
                return (of + inner * self.const) // (inner * divisor)
            case _:
                return Size.of(Quotient(self, divisor))

    def __mod__(self, divisor: int | Size) -> Size:
        if not isinstance(divisor, int):
            return self % divisor.const if divisor.is_const else _remainder(self, divisor)
        if divisor == 1:
            return Size()
        if all(c % divisor == 0 for _, c in self.terms):
            return Size(const=self.const % divisor)
        return Size.of(Remainder(self, divisor))

    def __rfloordiv__(self, number: int) -> Size:
        return _divided(Size(const=number), self)

    def __rmod__(self, number: int) -> Size:
        return Size(const=number) % self

    def __str__(self) -> str:
        return _text(self)

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def dim(self) -> int | Size:
        """The size as a dim: an int if it is constant."""
        return self if self.terms else self.const

    def coefficient(self, atom: Atom) -> int:
        """Return the factor of `atom` as a direct term (0 if it is not one)."""
        return dict(self.terms).get(atom, 0)

    def atoms(self) -> Iterator[Atom]:
        """Iterate over all atoms, nested ones included."""
        for atom, _ in self.terms:
            yield from _atoms(atom)

    def vars(self) -> set[int]:
        """Return the numbers of the iteration variables that occur anywhere in the size."""
        return {atom.number for atom in self.atoms() if isinstance(atom, Var)}

    @property
    def may_wrap(self) -> bool:
        """True if it computes with registers or elements, whose values are not limited."""
        if not self.const and all(factor == 1 for _, factor in self.terms) and len(self.terms) == 1:
            return False
        return any(isinstance(atom, Quantity) and atom.is_any for atom in self.atoms())

    @property
    def is_affine(self) -> bool:
        """True if every atom is a variable, a register or a symbol."""
        return all(isinstance(atom, Quantity) and atom.is_plain for atom, _ in self.terms)

    @property
    def symbol(self) -> Symbol | None:
        """The symbol, if the size is exactly one symbol; else None."""
        if len(self.terms) == 1 and not self.const and self.terms[0][1] == 1:
            atom = self.terms[0][0]
            return atom if isinstance(atom, Symbol) else None
        return None

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols that occur, in order, without repeats."""
        return tuple(dict.fromkeys(atom for atom in self.atoms() if isinstance(atom, Symbol)))

    def evaluate(
        self,
        lookup: Callable[[Any], Number],
        largest: Callable[[Number, Number], Number] = max,
        settle: Callable[[Number], Number] | None = None,
    ) -> Number:
        """Return the value: `lookup` gives that of each quantity, `largest` the larger of two.
        `settle` reduces a sum to a machine integer where numbers wrap around at 64 bits, also
        before it is divided or compared."""
        total: Number = self.const
        for atom, factor in self.terms:
            value = _value(atom, lookup, largest, settle)
            value = value if factor == 1 else value * factor
            total = value if isinstance(total, int) and not total else total + value
        return total if settle is None else settle(total)


def symbol(name: str, low: int = 1, high: int | None = None) -> Size:
    """Return the size that is just the named symbol."""
    return Size.of(Symbol(name, low, high))


def ceil_div(size: int | Size, divisor: int | Size) -> Size:
    """Return `size / divisor` rounded up: the number of blocks of `divisor` that cover `size`."""
    return -(-Size.of(size) // divisor)


USUAL = 64
"""Assumed value of symbols for which no size was seen."""


def usual_value(size: int | Size, taken: Mapping[Symbol, int] | None = None) -> int:
    """Return the size with each symbol at its value in `taken`, or else at its assumed value."""
    if isinstance(size, int):
        return size
    known = taken or {}
    return size.evaluate(lambda item: known.get(item, getattr(item, "assumed", USUAL)))


def _sorted_terms(total: Mapping[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    return tuple(sorted(((a, c) for a, c in total.items() if c), key=lambda term: _key(term[0])))


@lru_cache(1 << 14)
def _key(atom: Atom) -> str:
    """Return the text that terms are sorted by. It is cached, because it can be long."""
    return repr(atom)


def _product(left: Size, right: Size) -> Size:
    if not right.terms:
        return left * right.const
    if not left.terms:
        return right * left.const
    total = left * right.const + right * left.const
    total = Size(total.terms, left.const * right.const)
    for a, c in left.terms:
        for b, d in right.terms:
            factors = (*factors_of(a), *factors_of(b))
            product = Product(tuple(sorted(factors, key=repr)))
            total = total + Size(((product, c * d),))
    return total


def factors_of(atom: Atom) -> tuple[Atom, ...]:
    """Return the factors of a product, or the atom alone."""
    return atom.factors if isinstance(atom, Product) else (atom,)


def _divided(size: Size, divisor: Size) -> Size:
    if divisor.is_const:
        return size // divisor.const
    exact = _exact(size, divisor)
    if exact is not None:
        return exact
    return Size.of(Quotient(size, divisor))


def _remainder(size: Size, divisor: Size) -> Size:
    return Size() if _exact(size, divisor) is not None else Size.of(Remainder(size, divisor))


def _exact(size: Size, divisor: Size) -> Size | None:
    """Return size / divisor if the divisor is one term that divides every term of the size, else
    None."""
    if len(divisor.terms) != 1 or divisor.const or size.const:
        return None
    ((atom, number),) = divisor.terms
    total = Size()
    for term, coefficient in size.terms:
        rest = list(factors_of(term))
        for factor in factors_of(atom):
            if factor not in rest:
                return None
            rest.remove(factor)
        if coefficient % number:
            return None
        quotient = Size(const=coefficient // number)
        for factor in rest:
            quotient = quotient * factor
        total = total + quotient
    return total


def _atoms(atom: Atom) -> Iterator[Atom]:
    yield atom
    match atom:
        case Quantity():
            yield from atom.inner_atoms()
        case Product(factors):
            for factor in factors:
                yield from _atoms(factor)
        case Quotient(index, divisor) | Remainder(index, divisor):
            yield from index.atoms()
            if isinstance(divisor, Size):
                yield from divisor.atoms()
        case Maximum(parts):
            for part in parts:
                yield from part.atoms()


def _value(
    atom: Atom,
    lookup: Callable[[Any], Number],
    largest: Callable[[Number, Number], Number],
    settle: Callable[[Number], Number] | None,
) -> Number:
    match atom:
        case Quantity():
            return lookup(atom)
        case Product((first, *rest)):
            value = _value(first, lookup, largest, settle)
            for factor in rest:
                value = value * _value(factor, lookup, largest, settle)
            return value
        case Quotient(index, divisor) | Remainder(index, divisor):
            value = index.evaluate(lookup, largest, settle)
            if isinstance(divisor, Size):
                divisor = divisor.evaluate(lookup, largest, settle)
            return value // divisor if isinstance(atom, Quotient) else value % divisor
        case Maximum((first, *rest)):
            value = first.evaluate(lookup, largest, settle)
            for part in rest:
                value = largest(value, part.evaluate(lookup, largest, settle))
            return value
        case _:
            raise AssertionError(f"{atom!r} has too few parts")


# ---- text ------------------------------------------------------------------------------------


def _text(size: Size) -> str:
    pieces = [_term_text(atom, coefficient) for atom, coefficient in size.terms]
    if size.const or not pieces:
        pieces.append(str(size.const))
    text = pieces[0]
    for piece in pieces[1:]:
        text += f" - {piece[1:]}" if piece.startswith("-") else f" + {piece}"
    return text


def _term_text(atom: Atom, coefficient: int) -> str:
    if isinstance(atom, Maximum) and coefficient < 0:
        inner = ", ".join(_text(-part) for part in atom.parts)
        text, coefficient = f"min({inner})", -coefficient
    else:
        text = _atom_text(atom)
    if coefficient == 1:
        return text
    return f"-{text}" if coefficient == -1 else f"{coefficient}*{text}"


def _atom_text(atom: Atom) -> str:
    match atom:
        case Product(factors):
            return "*".join(_atom_text(factor) for factor in factors)
        case Quotient(index, divisor) | Remainder(index, divisor):
            sign = "//" if isinstance(atom, Quotient) else "%"
            return f"({_operand(index)} {sign} {_operand(divisor)})"
        case Maximum(parts):
            return f"max({', '.join(_text(part) for part in parts)})"
        case Quantity():
            return str(atom)


def _operand(size: int | Size) -> str:
    text = str(size)
    return text if text.isalnum() else f"({text})"


def symbols_in(sizes: Iterable[int | Size]) -> tuple[Symbol, ...]:
    """Return the symbols of all the sizes, in order, without repeats."""
    found: dict[Symbol, None] = {}
    for size in sizes:
        if isinstance(size, Size):
            found.update(dict.fromkeys(size.symbols))
    return tuple(found)
