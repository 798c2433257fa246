"""Terms: expressions of the text that a machine prints, with the variables that they read.

A term is text with holes, and the variables that fill the holes. So its variables are known when it
is built and can be renamed without parsing text. Operators add parentheses where C++ or Python
needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import and_

from stretto.device.expr import Buffer

# Binding strength of operators; lower binds tighter. C++ and Python disagree on bit operators and
# comparisons, so a different one of these as an operand always gets parentheses.
_ATOM, _UNARY, _PRODUCT, _SUM, _BITS, _COMPARISON = 0, 1, 2, 3, 4, 7
_BINDING = {
    **dict.fromkeys(("*", "/", "//", "%"), _PRODUCT),
    **dict.fromkeys(("+", "-"), _SUM),
    "&": _BITS,
    "^": 5,
    "|": 6,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARISON),
}


@dataclass(frozen=True, slots=True)
class Term:
    """An expression: `strings` with one variable of `names` between each two of them.

    binding: binding strength of its outermost operator. axes: bit n is set if the value varies
    along axis n of a block of lanes. reads: the buffers that it loads from. effect: it does more
    than compute a value from its variables and `reads`, or it reads other memory.
    """

    strings: tuple[str, ...]
    names: tuple[str, ...] = ()
    binding: int = _ATOM
    axes: int = 0
    reads: tuple[Buffer, ...] = field(default=(), compare=False)
    effect: bool = False

    @property
    def text(self) -> str:
        if not self.names:
            return self.strings[0]
        pairs = zip(self.names, self.strings[1:], strict=True)
        return self.strings[0] + "".join(name + string for name, string in pairs)

    @property
    def is_name(self) -> bool:
        return self.strings == ("", "")

    def __add__(self, other: Term | int) -> Term:
        return infix(self, "+", other)

    def __sub__(self, other: Term | int) -> Term:
        return infix(self, "-", other)

    def __mul__(self, other: Term | int) -> Term:
        return infix(self, "*", other)

    def __and__(self, other: Term) -> Term:
        return infix(self, "&", other)

    def to(self, kind: str) -> Term:
        """Return `self.to(kind)`, the conversion in Triton."""
        return joined(_within(self, self.binding > _ATOM), f".to({kind})")

    def along(self, axes: int) -> Term:
        """Return the same text as a value that varies along `axes`."""
        return self if self.axes == axes else replace(self, axes=axes)


Operand = Term | str | int
"""A string is literal text without a variable in it."""


@lru_cache(4096)
def variable(name: str, axes: int = 0) -> Term:
    """Return a term that is a variable."""
    return Term(("", ""), (name,), axes=axes)


@lru_cache(4096)
def _text(text: str) -> Term:
    return Term((text,))


def literal(text: Operand) -> Term:
    """Return the operand as a term without variables, unless it is a term already."""
    return text if isinstance(text, Term) else _text(str(text))


def joined(
    *pieces: Operand, binding: int = _ATOM, reads: tuple[Buffer, ...] = (), effect: bool = False
) -> Term:
    """Return the concatenation of the pieces. The caller gives the binding of the whole."""
    strings: list[str] = [""]
    names: list[str] = []
    axes = 0
    for piece in pieces:
        if isinstance(piece, Term):
            first, *rest = piece.strings
            strings[-1] += first
            strings += rest
            names += piece.names
            axes |= piece.axes
            if piece.reads:
                reads += tuple(b for b in piece.reads if b not in reads)
            effect |= piece.effect
        else:
            strings[-1] += str(piece)
    return Term(tuple(strings), tuple(names), binding, axes, reads, effect)


def filled(template: str, *terms: Operand) -> Term:
    """Return `template` with a term in place of each `{}`. The result needs no parentheses around
    it."""
    first, *rest = template.split("{}")
    return joined(first, *(p for pair in zip(terms, rest, strict=True) for p in pair))


def _between(terms: Iterable[Operand], separator: str) -> list[Operand]:
    pieces: list[Operand] = []
    for term in terms:
        pieces += (separator, term)
    return pieces[1:]


def separated(terms: Iterable[Operand]) -> Term:
    """Return the terms with commas between them."""
    return joined(*_between(terms, ", "))


def call(
    function: str,
    *arguments: Operand,
    reads: tuple[Buffer, ...] = (),
    effect: bool = False,
    **keywords: Operand | None,
) -> Term:
    """Return `function(arguments, key=value)`; keywords that are None are left out."""
    named = [joined(f"{k}=", v) for k, v in keywords.items() if v is not None]
    pieces = _between((*arguments, *named), ", ")
    return joined(f"{function}(", *pieces, ")", reads=reads, effect=effect)


def infix(left: Term, operator: str, right: Term | int) -> Term:
    """Return `left operator right`, with parentheses where needed."""
    binding, right = _BINDING[operator], literal(right)
    bits = binding >= _BITS
    around_left = left.binding > binding or (bits and _BITS <= left.binding != binding)
    around_left |= left.binding == binding == _COMPARISON
    around_right = right.binding >= (_BITS if bits else binding)
    return joined(
        _within(left, around_left),
        f" {operator} ",
        _within(right, around_right),
        binding=binding,
    )


def prefix(operator: str, operand: Term) -> Term:
    """Return `operator operand`, with parentheses where needed."""
    return joined(operator, _within(operand, operand.binding > _ATOM), binding=_UNARY)


def scaled(value: Term, factor: int) -> Term:
    return value if factor == 1 else value * factor


def total(*terms: Term | None) -> Term | None:
    """Return the sum of the terms that are not None; None without any. Integer sums wrap around
    and so are associative: a term that is itself a sum needs no parentheses."""
    found = [term for term in terms if term is not None]
    if len(found) < 2:
        return found[0] if found else None
    pieces = (_within(term, term.binding > _SUM) for term in found)
    return joined(*_between(pieces, " + "), binding=_SUM)


def every(*conditions: Term | None) -> Term | None:
    """Return the conjunction of the conditions that are not None; None without any."""
    found = [condition for condition in conditions if condition is not None]
    return reduce(and_, found) if found else None


def _within(term: Term, needed: bool) -> Term:
    return joined("(", term, ")") if needed else term
