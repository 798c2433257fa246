"""How a product on tensor cores walks through its depth: in steps that are powers of two.

Whole steps come first, and what is left is taken in smaller ones, so that few lanes have nothing to
multiply: 3 x 3 taps of 16 channels, a depth of 144, are steps of 128 and 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.machines.cuda.stencil import power

LEAST_DEPTH = 16
"""The least depth that tensor cores multiply."""
MOST_REST = 64
"""The deepest step that is not shared by warps: each of them has all of a factor in registers."""


def floor_power(value: int) -> int:
    """The power of two from `value` down."""
    return 1 << (value.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """`count` pieces of the depth, one behind the other from `start` on, each `deep` numbers of
    `parts` parts."""

    start: int
    parts: int
    deep: int
    count: int = 1

    @property
    def size(self) -> int:
        return self.parts * self.deep


def steps_of(depth: int, deep: int, parts: int) -> list[Step]:
    """The whole steps of a depth; then the rest in powers of two, of which only the last may have
    lanes without an element."""
    whole, rest = divmod(depth, deep)
    found = [Step(0, parts, deep // parts, whole)] if whole else []
    start, most = whole * deep, deep if parts == 1 else MOST_REST
    while rest > 0:
        size = min(max(power(rest), LEAST_DEPTH), most)
        if size - rest >= max(LEAST_DEPTH, size // 4):
            size = max(floor_power(rest), LEAST_DEPTH)
        found.append(Step(start, 1, size))
        start, rest = start + size, rest - size
    return found
