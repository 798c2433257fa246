"""What passes may ask of the machine that a Program is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from stretto.ir.types import Dim


class PassCosts(Protocol):
    """The figures of `device.costs.CostModel` that choices of passes come from; seconds."""

    @property
    def uniform(self) -> bool: ...

    @property
    def wait_seconds(self) -> float: ...

    @property
    def wake_seconds(self) -> float: ...

    @property
    def start_seconds(self) -> float: ...

    @property
    def element_seconds(self) -> float: ...

    @property
    def branch_miss_seconds(self) -> float: ...

    @property
    def small_waits(self) -> float: ...

    @property
    def speculated_bytes(self) -> int: ...

    @property
    def early_lookups(self) -> bool: ...

    @property
    def rows_before(self) -> bool: ...

    @property
    def level_rows(self) -> int: ...

    @property
    def stacked_layers(self) -> int: ...

    @property
    def level_bytes(self) -> float: ...

    @property
    def activation_seconds(self) -> float: ...

    @property
    def in_turn(self) -> bool: ...

    @property
    def dependent_seconds(self) -> float: ...

    @property
    def unknown_trips(self) -> int: ...

    @property
    def unknown_activations(self) -> int: ...

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float: ...

    def size(self, extent: Dim, /) -> int: ...

    def points(self, extents: Iterable[Dim], /) -> int: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The machine's costs, and how many of its units the program gets."""

    costs: PassCosts
    units: int

    @property
    def is_alone(self) -> bool:
        """Whether one unit runs the program, and so waits for nobody."""
        return self.units == 1 and not self.costs.uniform
