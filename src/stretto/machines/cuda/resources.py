"""What a compiled kernel needs of a multiprocessor, and how many of its units fit on one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import BuildError
from stretto.machines.cuda.toolchain import Multiprocessor

_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one unit (thread block) and all functions that it calls.

    registers: of one thread. spill_bytes: registers that went to memory for want of room, stores
    and loads of all functions together. stack_bytes: the largest frame of one function; without
    spills it holds what calls keep. units_per_sm: how many units one multiprocessor holds at once,
    and `limit` says what there are not more of: registers, shared memory, threads or blocks. 0 and
    "unknown" where only compilation is supported.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    warps: int
    units_per_sm: int
    limit: str


def resources(
    usage: dict[str, tuple[int, int]],
    spill_bytes: int,
    shared_bytes: int,
    warps: int,
    machine: Multiprocessor | None,
) -> Resources:
    """`usage`: registers and stack bytes by function."""
    registers = max((registers for registers, _ in usage.values()), default=0)
    stack = max((stack for _, stack in usage.values()), default=0)
    units, limit = 0, "unknown"
    if machine is not None:
        units, limit = units_per_multiprocessor(registers, shared_bytes, warps, machine)
    return Resources(registers, shared_bytes, spill_bytes, stack, warps, units, limit)


def units_per_multiprocessor(
    registers: int, shared_bytes: int, warps: int, machine: Multiprocessor
) -> tuple[int, str]:
    """How many thread blocks fit, and what limits them (CUDA's occupancy calculator).

    0 where not even one fits.
    """
    per_warp = _up(max(registers, 1) * 32, machine.register_unit)
    # A warp's registers lie in one of the four partitions of a multiprocessor.
    with_registers = machine.registers // 4 // per_warp * 4
    shared = _up(shared_bytes + machine.reserved_shared_bytes, machine.shared_unit)
    limits = {
        "registers": with_registers // warps,
        "shared memory": machine.shared_bytes // shared,
        "threads": machine.warps // warps,
        "blocks": machine.blocks,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def function_usage(cubin: bytes, cuobjdump: str) -> dict[str, tuple[int, int]]:
    """Registers and stack bytes of each function of a binary, the kernel's own among them."""
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        output = _run([cuobjdump, "-res-usage", str(file)])
    usage = {
        name: (int(registers), int(stack) + int(local))
        for name, registers, stack, _, local in _USAGE.findall(output)
    }
    if not usage:
        raise BuildError(f"cuobjdump does not say what the kernel needs:\n{output.strip()}")
    return usage


def spilled_bytes(log: str) -> int:
    """Bytes that all functions together store to and load from memory for want of registers, of
    what `ptxas -v` says."""
    return sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(log))


def _run(command: list[str]) -> str:
    """What a tool of Triton's says on both streams."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise BuildError(
            f"{command[0]} cannot say what the kernel needs: {detail.strip()}",
            remedy="install Triton anew; its CUDA tools are part of it",
        ) from error
    return result.stdout + result.stderr


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
