"""From measured ceilings to the constants of the cost model, beside those that the source has.

Nothing is estimated here: a constant whose measurement is missing is left out, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .results import PartRecord

Figure = Callable[[PartRecord], float | None]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the source and the measurement that it stands for."""

    place: str
    name: str
    basis: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Proposal:
    constant: Constant
    now: float | None
    measured: float | None


def _value(row: str, scale: float = 1.0) -> Figure:
    def figure(record: PartRecord) -> float | None:
        value = record.value(row)
        return None if value is None else value * scale

    return figure


def _share(row: str) -> Figure:
    """One unit's part of what all do together."""

    def figure(record: PartRecord) -> float | None:
        found = record.row(row)
        if found is None or found.status != "ok":
            return None
        return found.values["median"] / found.values["units"]

    return figure


def _step(record: PartRecord) -> float | None:
    found = record.row("a step of a small product")
    return found.values["step"]["median"] if found is not None and found.status == "ok" else None


def _best_gemv(record: PartRecord) -> float | None:
    """The most bytes per second and unit of any block shape from memory."""
    rates = [
        row.values["median"]
        for row in record.rows
        if row.status == "ok" and row.name.startswith("gemv fp32 memory")
    ]
    everywhere = record.row("wave over all units")
    if not rates or everywhere is None or everywhere.status != "ok":
        return None
    return max(rates) / everywhere.values["units"]


PLACE = "machines/cuda/costs.py"
OBJECT = "CUDA_COSTS"


def _constant(name: str, basis: str, figure: Figure) -> Constant:
    return Constant(PLACE, f"{OBJECT}.{name}", basis, figure)


CONSTANTS = (
    _constant("bandwidth", "best gemv from memory, a unit's part", _best_gemv),
    _constant("latency_seconds", "load to use, memory", _value("load to use, memory")),
    _constant("stage_seconds", "barrier of a unit", _value("barrier of a unit")),
    _constant("functions", "tanh per second of a unit", _value("function applications")),
    _constant("flops", "fp32 arithmetic of a unit", _value("fp32 arithmetic")),
    _constant("double_flops", "fp64 arithmetic of a unit", _value("fp64 arithmetic")),
    _constant("tensor_flops", "dot as three TF32", _value("tensor cores, fp32 as three TF32")),
    _constant("half_flops", "dot of bf16", _value("tensor cores, bf16")),
    _constant("depth_seconds", "a 16x16x32 step", _step),
    _constant("wait_seconds", "wave over all units", _value("wave over all units")),
    _constant("wait_seconds", "wait between two units", _value("wait between two units")),
    _constant("call_seconds", "operator of torch, device", _value("operator of torch, device")),
)


def proposals(ceilings: PartRecord) -> list[Proposal]:
    return [Proposal(c, in_source(c), c.figure(ceilings)) for c in CONSTANTS]


def in_source(constant: Constant) -> float | None:
    """What the source has now; None where it is not there any more."""
    import importlib

    module_name = "stretto." + constant.place.removesuffix(".py").replace("/", ".")
    try:
        found: object = importlib.import_module(module_name)
        for name in constant.name.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return float(found) if isinstance(found, int | float) else None


def proposal_lines(ceilings: PartRecord) -> list[str]:
    """A line per constant: where, what it is, what it should be by the measurement."""
    lines: list[str] = []
    for proposal in proposals(ceilings):
        constant = proposal.constant
        now = "not in the source" if proposal.now is None else f"{proposal.now:.2e}"
        wanted = "not measured" if proposal.measured is None else f"{proposal.measured:.2e}"
        lines.append(f"{constant.place} {constant.name}: {now} -> {wanted} ({constant.basis})")
    return lines
