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
from stretto.machines.machine import Trial
from stretto.machines.registry import default_machine, known_machines, registered
from stretto.options import Options
from stretto.schedule.costs import MachineCosts

EAGER = MachineCosts(wait_seconds=1e-12, wake_seconds=-1e9, small_waits=0.0, share_bytes=0)
"""Costs under which even the smallest program is spread over all units and memory is shared."""


@dataclass(frozen=True, slots=True)
class TrialMachine:
    """A machine as random functions are tried on it; `name` tells its trials apart."""

    name: str
    backend: str
    trial: Trial

    def compile(self, function: Callable[..., Any], seed: int, folder: str) -> Compiled:
        options = Options(
            threads=self.trial.units,
            units=self.trial.units,
            unroll=seed % 4,
            seed=seed,
            check=False,  # the trial compares with eager
            cache_dir=folder,
        )
        return stretto.compile(function, backend=self.backend, options=options)


def _trial_machines() -> dict[str, TrialMachine]:
    """Those of all machines, the oracle's first and those of native code last."""
    found: dict[str, TrialMachine] = {}
    machines = known_machines().values()
    for machine in sorted(machines, key=lambda m: (not m.is_oracle, not m.is_emulated)):
        for trial in machine.trials:
            name = machine.name if len(machine.trials) == 1 else f"{machine.name}-{trial.units}"
            found[name] = TrialMachine(name, machine.name, trial)
    return found


MACHINES = _trial_machines()
STANDARD = tuple(name for name, machine in MACHINES.items() if machine.trial.every == 1)
"""Those that are fast enough for every function."""
NATIVE = tuple(name for name in MACHINES if MACHINES[name].backend == default_machine().name)


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
