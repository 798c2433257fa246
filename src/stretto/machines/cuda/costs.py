"""Costs of a thread block of an H200 while all 132 run: design figures, and published measurements
(`simulator/devices.py` names them). Nothing here was measured with stretto's own kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.device.costs import CostModel

WARP = 32
"""Threads of a warp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaCosts(CostModel):
    """Cost model of the CUDA machine. Rates are of one unit, while all are busy."""

    start_seconds: float = 5e-8
    wait_seconds: float = 1e-6
    """Seconds of a wait: it accesses the second-level cache twice; a second task costs one
    access."""
    wake_seconds: float = 0.0
    uniform: bool = True
    gpu: str = "h200"
    slow_denormals: bool = False
    later_gain: float = 1.05

    bandwidth: float = 3.2e10
    """Bytes per second from memory."""
    shared_bytes: int = 50 << 20
    """Capacity of the second-level cache, which all units share."""
    shared_bandwidth: float = 4.2e10
    """Bytes per second from the second-level cache."""
    sector_bytes: int = 32
    """Smallest transfer from memory, in bytes."""
    latency_seconds: float = 7e-7
    """Seconds from a load to its use, and to the next load after a loop."""
    stage_seconds: float = 2e-7
    """Seconds of a barrier between two stages of a task."""
    shuffle_seconds: float = 5e-8
    """Seconds in which the lanes of a warp combine their values: five dependent shuffles."""
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
    """Seconds of a step along the depth of a product, however small."""
    level_bytes: float = 1 << 16
    """Bytes of weights that an activation reads, below which one unit computes it, without
    waits."""
    level_rows: int = 16
    """Activations that are computed at a time: the fewest rows that tensor cores multiply."""
    rows_before: bool = True
    activation_seconds: float = 0.0
    """Zero, so that recursions are not unrolled: the cost of a longer text was not measured."""
    in_turn: bool = False
    early_lookups: bool = True
    row_results: bool = True
    """Functions return row numbers instead of copies: a copy by one unit would make all units
    wait."""
    stacked_layers: int = 3

    spread_figures: ClassVar[Mapping[str, float]] = {
        "start_seconds": 1e-12,
        "stage_seconds": 1e-12,
        "latency_seconds": 1e-12,
        "depth_seconds": 1e-12,
    }

    @property
    def dependent_seconds(self) -> float:
        """Seconds of a wait, the first loads after it, a reduction, and the barrier before the
        signal."""
        return self.wait_seconds + self.latency_seconds + self.shuffle_seconds + self.stage_seconds

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float:
        rate = self.shared_bandwidth if nbytes <= self.shared_bytes else self.bandwidth
        return max(operations / self.flops, nbytes / rate) / units


CUDA_COSTS = CudaCosts()
