"""The backends that a random function runs on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import stretto
from stretto.machines.registry import default_machine, find_machine, known_machines, registered
from stretto.options import Debug, Options
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


AS_GRAPHS = Options(enqueue="graph", debug=Debug(launches="per_kernel", control="host"))
"""Captured graphs of small launches, with branches and loops as nodes."""


@dataclass(frozen=True, slots=True)
class TrialMachine:
    """How random functions are tried on a machine; `name` tells the trials of one machine apart.

    units: how many it asks for. spread: work is cut finely and dealt over all units, however small
    it is. every: one function in this many is tried, since the machine is slow. options: what else
    is asked for.
    """

    name: str
    backend: str
    units: int = 1
    spread: bool = False
    every: int = 1
    options: Options = field(default_factory=Options)

    def compile(
        self,
        function: Callable[..., Any],
        seed: int,
        folder: str,
        dynamic: bool | None = None,
        compiler: Callable[..., Any] = stretto.compile,
    ) -> Callable[..., Any]:
        options = replace(
            self.options,
            threads=self.units,
            units=self.units,
            debug=replace(
                self.options.debug,
                unroll=seed % 4,
                seed=seed,
                skip=BRANCH_PASSES[: seed // 4 % (len(BRANCH_PASSES) + 1)],
            ),
            check=False,
            cache_dir=folder,
        )
        return compiler(function, backend=self.backend, options=options, dynamic=dynamic)


MACHINES = {
    machine.name: machine
    for machine in (
        TrialMachine("interpreter", "interpreter"),
        TrialMachine("cuda-emulated", "cuda-emulated", units=3, every=20),
        TrialMachine("cuda-emulated-graphs", "cuda-emulated", 3, every=20, options=AS_GRAPHS),
        TrialMachine("emulator", "emulator", units=3, spread=True),
        TrialMachine("cpu-1", "cpu"),
        TrialMachine("cpu-2", "cpu", units=2, spread=True),
    )
}
STANDARD = tuple(name for name, machine in MACHINES.items() if machine.every == 1)
"""Those that are fast enough for every function."""
ORACLES = tuple(name for name in MACHINES if find_machine(MACHINES[name].backend).is_oracle)
NATIVE = tuple(name for name in MACHINES if MACHINES[name].backend == default_machine().name)


@contextmanager
def spread() -> Generator[None]:
    """What compiles inside is cut finely and uses all units."""
    machines = known_machines().values()
    with registered(*(replace(machine, costs=machine.costs.spread()) for machine in machines)):
        yield
