"""What a core takes, measured coarsely: with AVX-512, and with AVX2 alone."""

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
"""How many times as large packing may make the filters of a convolution: for tiles of 4 x 4
pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCosts(CostModel):
    """Rates are of one core."""

    registers: int = 32
    """Vector registers: how large the tiles are that stay in them."""
    dots_factor: float = 1.3
    """How much longer a product by dot products takes."""
    expensive_seconds: float = 0.12e-9
    """An element of pointwise work and a function that takes long, as tanh."""
    shared_bandwidth: float = 7e10
    """Bytes per second from the cache that the cores share."""
    shared_bytes: int = 24 << 20
    """What that cache holds from one kernel to the next one that reads the same."""
    load_seconds: float = 1e-10
    """A load of pointwise work."""
    patch_channels: int = 8
    """Copying the patches of a convolution costs as much as computing as many of its channels."""
    cached_rows: int = 256
    """Up to as many rows a unit keeps the packed columns of its tasks in its cache."""
    balanced_seconds: float = 4e-5
    """Tasks of this length balance what units have to do."""
    most_rounds: int = 8
    """More tasks per unit balance no better."""
    whole_seconds: float = 1e-6
    """Work that takes no longer is one task."""
    most_filtered: int = 4
    """The largest tiles of pixels that minimal filtering may compute at once; 0: none."""
    factors: tuple[tuple[str, float], ...] = ()
    """How much longer templates take than the other figures say, by name."""

    spread_figures: ClassVar[Mapping[str, float]] = {"flops": 1e3, "element_seconds": 1e-4}

    def factor(self, template: str) -> float:
        return next((factor for name, factor in self.factors if name == template), 1.0)

    def fitted(self, parameters: Mapping[str, float]) -> Self:
        """With parameters that were fitted to a device, of those that this model has; factors are
        named `factor.TEMPLATE`."""
        known = {field.name for field in fields(self) if field.name != "factors"}
        figures = {name: value for name, value in parameters.items() if name in known}
        factors = {
            name.removeprefix(FACTOR): value
            for name, value in sorted(parameters.items())
            if name.startswith(FACTOR)
        }
        return replace(self, **figures, factors=tuple(factors.items()))

    def with_constants(self, constants: Sequence[Buffer]) -> CpuCosts:
        """The costs in a program with these constants: those of a small one stay in the shared
        cache."""
        filters = sum(buffer.nbytes for buffer in constants if len(buffer.shape) > 2)
        others = sum(buffer.nbytes for buffer in constants if len(buffer.shape) <= 2)
        if filters * PACKED + others > self.shared_bytes:
            return self
        return replace(self, memory_bandwidth=max(self.memory_bandwidth, self.shared_bandwidth))


CPU_COSTS = CpuCosts()
"""A core with AVX-512 (Zen 5), and all others that `host_costs` does not tell apart."""

AVX2_COSTS = CpuCosts(
    registers=16,
    flops=90e9,
    bandwidth=7e10,
    shared_bandwidth=5e10,
    cache_bytes=1 << 19,
    element_seconds=0.2e-9,
    expensive_seconds=0.6e-9,
)
"""A core with AVX2 but no AVX-512 (Zen 3): two multiplications of 8 lanes a cycle, a second-level
cache of 512 KiB."""


@cache
def host_costs() -> CpuCosts:
    """The figures of this host, by its instruction sets."""
    found = instruction_sets()
    return AVX2_COSTS if "avx2" in found and "avx512f" not in found else CPU_COSTS
