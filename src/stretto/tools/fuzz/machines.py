"""The backends that a random function runs on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import stretto
from stretto.api import Compiled
from stretto.kernels import fuse as fusion
from stretto.machines.cpu import costs as cpu_costs
from stretto.machines.registry import known_machines, registered
from stretto.options import Options
from stretto.schedule.costs import MachineCosts

EAGER = MachineCosts(wait_seconds=1e-12, wake_seconds=-1e9, small_waits=0.0, share_bytes=0)
"""Costs under which even the smallest program is spread over all units and memory is shared."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A backend with its units. `spread`: work is cut finely and dealt over all units, however
    small it is."""

    name: str
    backend: str
    units: int
    spread: bool = False

    def compile(self, function: Callable[..., Any], seed: int, folder: str) -> Compiled:
        options = Options(
            threads=self.units,
            units=self.units if self.backend == "cuda-emulated" else None,
            unroll=seed % 4,
            seed=seed,
            check=False,  # the trial compares with eager
            cache_dir=folder,
        )
        return stretto.compile(function, backend=self.backend, options=options)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("interpreter", "interpreter", 1),
        Machine("emulator", "emulator", 3, spread=True),
        Machine("cpu-1", "cpu", 1),
        Machine("cpu-2", "cpu", 2, spread=True),
        Machine("cuda-emulated", "cuda-emulated", 3),
    )
}
STANDARD = ("interpreter", "emulator", "cpu-1", "cpu-2")


@contextmanager
def spread() -> Generator[None]:
    """What compiles inside is cut finely and uses all units. Changes the whole process."""
    changes: list[tuple[Any, str, Any]] = [
        (cpu_costs, "ELEMENT", 1e-4),
        (cpu_costs, "FLOPS", 1e3),
        (fusion, "SMALL_WORK", 0),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with registered(*(replace(m, costs=EAGER) for m in known_machines().values())):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
