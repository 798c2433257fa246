"""Terms: expressions of the text that a machine prints, with the variables that they read.

A term is text with holes, and the variables that fill the holes. So what it uses is known when it
is built, and a variable can be renamed, without looking into any text. Operators put parentheses
where C++ or Python needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import and_

from stretto.device.expr import Buffer

# How tightly an operator binds. C++ and Python disagree on bit operators and comparisons, so an
# operand of one of these that is itself another one of these always gets parentheses.
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
    """An expression: `strings` with a variable of `names` between each two of them.

    binding: of its outermost operator. axes: bit n is set where the value varies along axis n of a
    block of lanes. reads: the buffers that it loads from. effect: it does more than to compute a
    value from its variables and `reads`, or reads other memory.
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
        """`self.to(kind)`, as Triton converts."""
        return joined(_within(self, self.binding > _ATOM), f".to({kind})")

    def along(self, axes: int) -> Term:
        """The same text of a value that varies along `axes`."""
        return self if self.axes == axes else replace(self, axes=axes)


Operand = Term | str | int
"""A string is literal text without a variable in it."""


@lru_cache(4096)
def variable(name: str, axes: int = 0) -> Term:
    return Term(("", ""), (name,), axes=axes)


@lru_cache(4096)
def _text(text: str) -> Term:
    return Term((text,))


def literal(text: Operand) -> Term:
    return text if isinstance(text, Term) else _text(str(text))


def joined(
    *pieces: Operand, binding: int = _ATOM, reads: tuple[Buffer, ...] = (), effect: bool = False
) -> Term:
    """The pieces one after the other. The caller knows that the whole binds as it says."""
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
    """`template` with a term in the place of each `{}`. It needs no parentheses around it."""
    first, *rest = template.split("{}")
    return joined(first, *(p for pair in zip(terms, rest, strict=True) for p in pair))


def _between(terms: Iterable[Operand], separator: str) -> list[Operand]:
    pieces: list[Operand] = []
    for term in terms:
        pieces += (separator, term)
    return pieces[1:]


def separated(terms: Iterable[Operand], separator: str = ", ") -> Term:
    return joined(*_between(terms, separator))


def call(
    function: str,
    *arguments: Operand,
    reads: tuple[Buffer, ...] = (),
    effect: bool = False,
    **keywords: Operand | None,
) -> Term:
    """`function(arguments, key=value)`; keywords that are None are left out."""
    named = [joined(f"{k}=", v) for k, v in keywords.items() if v is not None]
    pieces = _between((*arguments, *named), ", ")
    return joined(f"{function}(", *pieces, ")", reads=reads, effect=effect)


def infix(left: Term, operator: str, right: Term | int) -> Term:
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
    return joined(operator, _within(operand, operand.binding > _ATOM), binding=_UNARY)


def total(*terms: Term | None) -> Term | None:
    """The sum of the terms that are not None; None without any. Sums wrap around, so the terms of
    one that is a term need no parentheses."""
    found = [term for term in terms if term is not None]
    if len(found) < 2:
        return found[0] if found else None
    pieces = (_within(term, term.binding > _SUM) for term in found)
    return joined(*_between(pieces, " + "), binding=_SUM)


def every(*conditions: Term | None) -> Term | None:
    """The conjunction of the conditions that are not None; None without any."""
    found = [condition for condition in conditions if condition is not None]
    return reduce(and_, found) if found else None


def _within(term: Term, needed: bool) -> Term:
    return joined("(", term, ")") if needed else term
