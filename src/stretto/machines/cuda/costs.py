"""Costs of a thread block of an H200 while all 132 run: design figures, and measurements of others
(`simulator/devices.py` says which). Nothing here was measured with stretto's own kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.device.costs import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaCosts(CostModel):
    """Rates are of one unit, while all are busy."""

    start_seconds: float = 5e-8
    wait_seconds: float = 1e-6
    """A wait goes through the second-level cache twice; a second task costs one."""
    wake_seconds: float = 0.0
    uniform: bool = True
    gpu: str = "h200"
    slow_denormals: bool = False
    later_gain: float = 1.05

    bandwidth: float = 3.2e10
    """Bytes per second from memory."""
    shared_bytes: int = 50 << 20
    """What the second-level cache, which all units share, holds."""
    shared_bandwidth: float = 4.2e10
    """Bytes per second from it."""
    sector_bytes: int = 32
    """What memory hands over at least."""
    latency_seconds: float = 7e-7
    """From a load to its use, and to the next load behind a loop."""
    stage_seconds: float = 2e-7
    """A barrier between two stages of a task."""
    shuffle_seconds: float = 5e-8
    """The lanes of a warp combine what they have: five dependent shuffles."""
    functions: float = 1.5e11
    """Function applications per second."""
    element_seconds: float = 1 / 1.5e11
    flops: float = 4e11
    """f32 operations per second without tensor cores."""
    double_flops: float = 2e11
    """f64 operations per second."""
    tensor_flops: float = 7e11
    """f32 operations per second of tensor cores, as three products of TF32."""
    half_flops: float = 4e12
    """f16 and bf16 operations per second of tensor cores."""
    depth_seconds: float = 1.2e-7
    """A step along the depth of a product, however small."""
    level_bytes: float = 1 << 16
    """With fewer one unit computes an activation, and nobody waits."""
    level_rows: int = 16
    """The fewest rows that tensor cores multiply."""
    rows_before: bool = True
    activation_seconds: float = 0.0
    """Recursions stay as short as they are: what a longer text costs was not measured."""
    in_turn: bool = False
    early_lookups: bool = True
    row_results: bool = True
    """The copy of one unit is a wait for all."""
    stacked_layers: int = 3

    spread_figures: ClassVar[Mapping[str, float]] = {
        "start_seconds": 1e-12,
        "stage_seconds": 1e-12,
        "latency_seconds": 1e-12,
        "depth_seconds": 1e-12,
    }

    @property
    def dependent_seconds(self) -> float:
        """A wait, the first loads behind it, a reduction, and the barrier before the signal."""
        return self.wait_seconds + self.latency_seconds + self.shuffle_seconds + self.stage_seconds

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float:
        rate = self.shared_bandwidth if nbytes <= self.shared_bytes else self.bandwidth
        return max(operations / self.flops, nbytes / rate) / units


CUDA_COSTS = CudaCosts()
