"""The backends that a random function runs on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import stretto
from stretto.machines.machine import Trial
from stretto.machines.registry import default_machine, find_machine, known_machines, registered
from stretto.passes.if_convert import IfConvert
from stretto.passes.merge_branches import MergeBranches
from stretto.passes.recursion_levels import RecursionLevels
from stretto.passes.share_arms import ShareArms
from stretto.passes.speculate import Speculate

BRANCH_PASSES = (
    RecursionLevels.name,
    IfConvert.name,
    MergeBranches.name,
    ShareArms.name,
    Speculate.name,
)
"""Passes that not all functions are tried with, so that there are branches of all kinds."""


@dataclass(frozen=True, slots=True)
class TrialMachine:
    """A machine as random functions are tried on it; `name` tells its trials apart."""

    name: str
    backend: str
    trial: Trial

    def compile(
        self,
        function: Callable[..., Any],
        seed: int,
        folder: str,
        dynamic: bool | None = None,
        compiler: Callable[..., Any] = stretto.compile,
    ) -> Callable[..., Any]:
        options = replace(
            self.trial.options,
            threads=self.trial.units,
            units=self.trial.units,
            unroll=seed % 4,
            seed=seed,
            skip=BRANCH_PASSES[: seed // 4 % (len(BRANCH_PASSES) + 1)],
            check=False,  # the trial compares with eager
            cache_dir=folder,
        )
        return compiler(function, backend=self.backend, options=options, dynamic=dynamic)


def _trial_machines() -> dict[str, TrialMachine]:
    """Those of all machines, the oracle's first and those of native code last."""
    found: dict[str, TrialMachine] = {}
    machines = known_machines().values()
    for machine in sorted(machines, key=lambda m: (not m.is_oracle, not m.is_emulated)):
        for trial in machine.trials:
            plain = [other for other in machine.trials if other.label is None]
            label = trial.label or (f"{trial.units}" if len(plain) > 1 else None)
            name = machine.name if label is None else f"{machine.name}-{label}"
            found[name] = TrialMachine(name, machine.name, trial)
    return found


MACHINES = _trial_machines()
STANDARD = tuple(name for name, machine in MACHINES.items() if machine.trial.every == 1)
"""Those that are fast enough for every function."""
ORACLES = tuple(name for name in MACHINES if find_machine(MACHINES[name].backend).is_oracle)
NATIVE = tuple(name for name in MACHINES if MACHINES[name].backend == default_machine().name)


@contextmanager
def spread() -> Generator[None]:
    """What compiles inside is cut finely and uses all units."""
    machines = known_machines().values()
    with registered(*(replace(machine, costs=machine.costs.spread()) for machine in machines)):
        yield
