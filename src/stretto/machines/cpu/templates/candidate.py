"""What selection asks of a template, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from stretto.device.expr import Extent
from stretto.device.operator import Operator, Template
from stretto.kernels.groups import Member
from stretto.kernels.panels import Packings
from stretto.machines.cpu import costs


@dataclass(frozen=True, slots=True)
class Request:
    """An operator and its boxes, for `units` units; `packings` takes constants to be packed."""

    member: Member
    units: int
    packings: Packings

    @property
    def operator(self) -> Operator:
        return self.member.operator


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template with its cost, and what it asks of the tiles.

    multiples: tiles are multiples of this, per dim of the operator (0: the whole dim). seconds: of
    the whole operator on one unit. first, last: the dim to be cut before all others, and after all
    others. repeated: each task does over again what as many indices of `last` cost.
    """

    template: Template
    multiples: tuple[int, ...]
    seconds: float
    first: int | None = None
    last: int | None = None
    repeated: int = 0


def guessed(extent: Extent) -> int:
    """A size; 64 where only the run knows it."""
    return extent if isinstance(extent, int) else 64


def points(extents: tuple[Extent, ...]) -> int:
    return prod((guessed(extent) for extent in extents), start=1)


def product_seconds(operator: Operator) -> float:
    """The seconds of a sum of products in a register-tiled template."""
    flops = 2.0 * points(operator.dims) * points(operator.reduce)
    return flops / costs.FLOPS * (operator.out.buffer.dtype.itemsize / 4)
