"""The names that the planner still uses for the cost model."""

from __future__ import annotations

from stretto.device.costs import CostModel as MachineCosts

GPU_COSTS = MachineCosts(wait_seconds=1e-6, wake_seconds=0.0, team=True)

__all__ = ["GPU_COSTS", "MachineCosts"]
