"""Resources of a multiprocessor that thread blocks need: threads, registers, shared memory.

The figures of devices are those of the CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; those of MI300X are of AMD's CDNA 3 white paper (512
KB of vector registers, 64 KB of local memory, and 32 waves of 64 threads for each compute
unit).
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.simulator.devices import Device


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Resources of one multiprocessor for the blocks that it holds at the same time."""

    threads: int
    registers: int
    shared_bytes: int
    blocks: int


_HOPPER = UnitLimits(2048, 65536, 228 << 10, 32)
LIMITS = {
    "h200": _HOPPER,
    "h100": _HOPPER,
    "a100": UnitLimits(2048, 65536, 164 << 10, 32),
    "v100": UnitLimits(2048, 65536, 96 << 10, 32),
    "rtx4090": UnitLimits(1536, 65536, 100 << 10, 24),
    "mi300x": UnitLimits(2048, 131072, 64 << 10, 32),
}


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """Resources that one block needs. registers: of each of its threads."""

    threads: int
    registers: int
    shared_bytes: int = 0

    def amounts(self) -> tuple[int, int, int, int]:
        """Threads, registers, bytes of shared memory, blocks."""
        return self.threads, self.threads * self.registers, self.shared_bytes, 1

    def per_unit(self, limits: UnitLimits) -> int:
        """Return the number of such blocks that one multiprocessor holds; at least 1, even for one
        that does not fit."""
        pairs = zip(unit_amounts(limits), self.amounts(), strict=True)
        return max(min(has // needs for has, needs in pairs if needs), 1)

    def share(self, limits: UnitLimits) -> float:
        """Return the part of a multiprocessor that one block takes, by the resource that it needs
        most of."""
        pairs = zip(unit_amounts(limits), self.amounts(), strict=True)
        return min(max(needs / has for has, needs in pairs), 1.0)


def unit_amounts(limits: UnitLimits) -> tuple[int, int, int, int]:
    return limits.threads, limits.registers, limits.shared_bytes, limits.blocks


def limits_of(device: Device) -> UnitLimits:
    """Return the limits of a device; those of an H200 if it has no figures."""
    return LIMITS.get(device.name, _HOPPER)


class Room:
    """Free resources of all multiprocessors of a device, added up: blocks are not placed on single
    ones, so the free room for a block may be fragmented in reality."""

    def __init__(self, device: Device) -> None:
        self._limits = limits_of(device)
        self._units = device.units
        self._free = [amount * device.units for amount in unit_amounts(self._limits)]

    def fits(self, needs: BlockNeeds, running: int) -> int:
        """Return the number of further blocks that could begin while `running` of them run."""
        most = needs.per_unit(self._limits) * self._units - running
        pairs = zip(self._free, self._capped(needs), strict=True)
        return max(min(most, *(free // need for free, need in pairs if need)), 0)

    def take(self, needs: BlockNeeds, count: int) -> None:
        """Take room for blocks; a negative count returns it."""
        for kind, need in enumerate(self._capped(needs)):
            self._free[kind] -= need * count

    def _capped(self, needs: BlockNeeds) -> tuple[int, ...]:
        pairs = zip(needs.amounts(), unit_amounts(self._limits), strict=True)
        return tuple(min(need, has) for need, has in pairs)
