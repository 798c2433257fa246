"""Pointwise operators: lanes over the box, `block` at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from stretto.device.operator import Template
from stretto.machines.cuda.templates.stencil import Choice, Stencil, power, traffic

MAP_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Map(Template):
    name: ClassVar[str] = "map"
    block: int


def map_choice(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    points, costs = prod(sizes), stencil.costs
    block = min(max(power(points), 32), MAP_BLOCK)
    seconds = max(
        traffic(stencil, sizes) / costs.bandwidth,
        points * stencil.applies / costs.functions,
        ceil(points / block) * costs.latency_seconds / 2,
    )
    return Choice(Map(block), costs.latency_seconds + seconds, costs.latency_seconds + seconds)
