"""Constants of the cost model, as measured and as in the source.

Nothing is estimated here: a constant whose measurement is missing has no value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.simulator.devices import costs_on, gpu_like

from .results import Rows
from .smoke import GPU

Figure = Callable[[Rows], float | None]
STAGE = "ceilings"


@dataclass(frozen=True, slots=True)
class Constant:
    """A field of `CudaCosts`. basis: the measurement that it comes from."""

    name: str
    basis: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Proposal:
    """A constant and its measured value. now: its value in the source, for the GPU that was
    measured."""

    constant: Constant
    now: float
    measured: float | None


def _value(row: str) -> Figure:
    return lambda rows: rows.value(STAGE, row)


def _share(row: str) -> Figure:
    """Return one unit's share of a rate that all units reach together."""

    def figure(rows: Rows) -> float | None:
        together, units = (rows.value(STAGE, row, key) for key in ("median", "units"))
        return None if together is None or units is None else together / units

    return figure


def _step(rows: Rows) -> float | None:
    found = rows.row(STAGE, "a step of a small product")
    return found.values["step"]["median"] if found is not None and found.status == "ok" else None


CONSTANTS = (
    Constant("bandwidth", "reads from memory, a unit's part", _share("read bandwidth, memory")),
    Constant("shared_bandwidth", "reads from L2, a unit's part", _share("read bandwidth, L2")),
    Constant("latency_seconds", "load to use, memory", _value("load to use, memory")),
    Constant("stage_seconds", "barrier of a unit", _value("barrier of a unit")),
    Constant("functions", "tanh per second of a unit", _value("function applications")),
    Constant("flops", "fp32 arithmetic of a unit", _value("fp32 arithmetic")),
    Constant("double_flops", "fp64 arithmetic of a unit", _value("fp64 arithmetic")),
    Constant("tensor_flops", "dot as three TF32", _value("tensor cores, fp32 as three TF32")),
    Constant("half_flops", "dot of bf16", _value("tensor cores, bf16")),
    Constant("depth_seconds", "a 16x16x32 step", _step),
    Constant("wait_seconds", "wave over all units", _value("wave over all units")),
    Constant("wait_seconds", "wait between two units", _value("wait between two units")),
    Constant("call_seconds", "operator of torch, device", _value("operator of torch, device")),
)


def proposals(rows: Rows) -> list[Proposal]:
    costs = CUDA_COSTS
    row = rows.row("facts", GPU)
    if row is not None and "gpu" in row.values:
        there = row.values["gpu"]
        major, minor = there["capability"]
        costs = costs_on(gpu_like(there["name"], (major, minor)), costs)
    return [Proposal(c, getattr(costs, c.name), c.figure(rows)) for c in CONSTANTS]
