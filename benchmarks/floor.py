"""The physical floor: the least time that a model's operations and bytes can take here.

The rates are measured in the same run by a small C++ program, `floor_probe.cpp`. A phase of a
model takes at least its operations at the peak rate, and at least its bytes at the bandwidth of
the nearest memory that holds them; phases follow one another.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .machine import cache_sizes
from .models.entry import Phase

PROBE = Path(__file__).with_name("floor_probe.cpp")
DEFAULT_CACHES = {"L2": 1 << 20, "L3": 16 << 20}


class FloorError(Exception):
    """Raised if the rates could not be measured, with the reason."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of `threads` cores together, and the cache bytes they share or add up to."""

    threads: int
    flops_per_s: float
    l2_bytes_per_s: float
    l3_bytes_per_s: float
    memory_bytes_per_s: float
    l2_bytes: int
    l3_bytes: int

    def bandwidth(self, resident: float) -> float:
        """Return the bytes per second of repeatedly reading data of `resident` bytes."""
        if resident <= self.l2_bytes:
            return self.l2_bytes_per_s
        return self.l3_bytes_per_s if resident <= self.l3_bytes else self.memory_bytes_per_s


def floor_seconds(phases: tuple[Phase, ...], rates: Rates) -> float:
    """Sum over the phases the longer of computing and reading."""
    return sum(
        max(phase.flops / rates.flops_per_s, phase.bytes / rates.bandwidth(phase.resident))
        for phase in phases
    )


def best_rates(first: Rates, second: Rates) -> Rates:
    """Return the higher of each rate: other load on the machine can only have lowered one."""
    return Rates(
        first.threads,
        max(first.flops_per_s, second.flops_per_s),
        max(first.l2_bytes_per_s, second.l2_bytes_per_s),
        max(first.l3_bytes_per_s, second.l3_bytes_per_s),
        max(first.memory_bytes_per_s, second.memory_bytes_per_s),
        first.l2_bytes,
        first.l3_bytes,
    )


def measure_rates(threads: int) -> Rates:
    """Build and run the probe (about a second). Raises `FloorError` without a compiler."""
    caches = DEFAULT_CACHES | cache_sizes()
    l2, l3 = caches["L2"], caches["L3"]
    sets = (l2 // 2, max(l2 * 2, l3 // 2 // threads), max(l3 * 4, 256 << 20) // threads)
    with tempfile.TemporaryDirectory(prefix="stretto-floor-") as folder:
        program = str(Path(folder) / "probe")
        compiler = os.environ.get("CXX", "g++")
        flags = ("-O3", "-march=native", "-std=c++17", "-pthread")
        _run([compiler, *flags, str(PROBE), "-o", program])
        text = _run([program, str(threads), *(str(size) for size in sets)])
    flops, l2_rate, l3_rate, memory_rate = (float(line) for line in text.split())
    return Rates(threads, flops, l2_rate, l3_rate, memory_rate, threads * l2, l3)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FloorError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise FloorError(f"{command[0]} failed: {last[0]}")
    return done.stdout
