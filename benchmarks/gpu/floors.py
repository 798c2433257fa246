"""The least time that a model can take on the GPU, by rates that the part `ceilings` measured."""

from __future__ import annotations

from ..models.entry import Phase
from .results import PartRecord, Row
from .shortened import config_of, entry_of


def row(model: str, dry_run: bool, ceilings: PartRecord | None) -> Row:
    """floor_ms: every weight once from memory. reread_ms: every weight from L2 as often as the
    model's steps need it, as where it does not stay in the units."""
    phases = entry_of(model).work(config_of(model, dry_run))
    name = f"{model} floor"
    if ceilings is None:
        return Row(name, "skipped", "the part `ceilings` has left no rates")
    flops = ceilings.value("fp32 matmul")
    memory = ceilings.value("copy bandwidth")
    near = ceilings.value("read bandwidth, L2")
    if flops is None or memory is None:
        return Row(name, "skipped", "no rate of products or no bandwidth was measured")
    values = {"floor_ms": 1e3 * _seconds(phases, flops, memory, once=True)}
    if near is not None:
        values["reread_ms"] = 1e3 * _seconds(phases, flops, near, once=False)
    return Row(name, "ok", values=values)


def _seconds(phases: tuple[Phase, ...], flops: float, bandwidth: float, once: bool) -> float:
    return sum(
        max(phase.flops / flops, (phase.resident if once else phase.bytes) / bandwidth)
        for phase in phases
    )
