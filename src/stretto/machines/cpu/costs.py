"""Costs of a CPU core, measured coarsely: with AVX-512, and with AVX2 alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import ClassVar, Self

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.runtime.compiler import instruction_sets

FACTOR = "factor."
PACKED = 4
"""Factor by which packing may enlarge the filters of a convolution: for tiles of 4 x 4 pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCosts(CostModel):
    """Costs of a CPU; rates are for one core."""

    registers: int = 32
    """Number of vector registers, which limits the tiles that stay in them."""
    dots_factor: float = 1.3
    """Factor by which a product by dot products is slower."""
    expensive_seconds: float = 0.12e-9
    """Seconds per element and expensive function, such as tanh, in pointwise work."""
    shared_bandwidth: float = 7e10
    """Bytes per second from the cache that the cores share."""
    shared_bytes: int = 24 << 20
    """Bytes that remain in that cache from one kernel to the next one that reads the same data."""
    load_seconds: float = 1e-10
    """Seconds of a load in pointwise work."""
    patch_channels: int = 8
    """Number of channels of a convolution whose computation costs as much as copying its
    patches."""
    cached_rows: int = 256
    """Number of rows up to which a unit's cache holds the packed columns of its tasks."""
    balanced_seconds: float = 4e-5
    """Task length that is short enough to balance the load of the units."""
    most_rounds: int = 8
    """Number of tasks per unit above which the balance does not improve."""
    whole_seconds: float = 1e-6
    """Work of at most this length is one task."""
    most_filtered: int = 4
    """Size of the largest tiles of pixels that minimal filtering may compute at once; 0: none."""
    factors: tuple[tuple[str, float], ...] = ()
    """Factors by which templates are slower than the other figures predict, by name."""

    spread_figures: ClassVar[Mapping[str, float]] = {"flops": 1e3, "element_seconds": 1e-4}

    def reading_seconds(self, size: float) -> float:
        """Return the seconds of reading weights of this size from beyond the second-level cache; 0
        if they fit."""
        return size / self.memory_bandwidth if size > self.cache_bytes else 0.0

    def factor(self, template: str) -> float:
        return next((factor for name, factor in self.factors if name == template), 1.0)

    def fitted(self, parameters: Mapping[str, float]) -> Self:
        """Return the costs with those of the given parameters, fitted to a device, that this model
        has; factors are named `factor.TEMPLATE`."""
        known = {field.name for field in fields(self) if field.name != "factors"}
        figures = {name: value for name, value in parameters.items() if name in known}
        factors = {
            name.removeprefix(FACTOR): value
            for name, value in sorted(parameters.items())
            if name.startswith(FACTOR)
        }
        return replace(self, **figures, factors=tuple(factors.items()))

    def with_constants(self, constants: Sequence[Buffer]) -> CpuCosts:
        """Return the costs for a program with these constants; if they fit, they stay in the
        shared cache."""
        filters = sum(buffer.nbytes for buffer in constants if len(buffer.shape) > 2)
        others = sum(buffer.nbytes for buffer in constants if len(buffer.shape) <= 2)
        if filters * PACKED + others > self.shared_bytes:
            return self
        return replace(self, memory_bandwidth=max(self.memory_bandwidth, self.shared_bandwidth))


CPU_COSTS = CpuCosts()
"""A core with AVX-512 (Zen 5), and every other core that `host_costs` does not distinguish."""

AVX2_COSTS = CpuCosts(
    registers=16,
    flops=90e9,
    bandwidth=7e10,
    shared_bandwidth=5e10,
    cache_bytes=1 << 19,
    element_seconds=0.2e-9,
    expensive_seconds=0.6e-9,
)
"""A core with AVX2 but no AVX-512 (Zen 3): two multiplications of 8 lanes per cycle, a second-
level cache of 512 KiB."""


@cache
def host_costs() -> CpuCosts:
    """Return the costs of this host, by its instruction sets."""
    found = instruction_sets()
    return AVX2_COSTS if "avx2" in found and "avx512f" not in found else CPU_COSTS
