"""What an AVX-512 core takes, measured coarsely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.device.costs import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCosts(CostModel):
    """Rates are of one core."""

    dots_factor: float = 1.3
    """How much longer a product by dot products takes."""
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

    spread_figures: ClassVar[Mapping[str, float]] = {"flops": 1e3, "element_seconds": 1e-4}


CPU_COSTS = CpuCosts()
