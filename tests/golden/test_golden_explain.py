"""The whole text of `explain()` for a loop with a branch, on each backend, without its times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import stretto
from stretto.machines import registry
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cpu.machine import CpuMachine
from tests.tools.masks import mask_times
from tests.tools.programs import DECAY, decay


@pytest.mark.parametrize("backend", ["cpu", "emulator", "interpreter"])
def test_explain(
    backend: str,
    golden: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask_times(monkeypatch)
    # The same text on every host: with the figures of AVX-512.
    machines = [
        replace(machine, costs=CPU_COSTS) if isinstance(machine, CpuMachine) else machine
        for machine in registry.known_machines().values()
    ]
    monkeypatch.setattr(registry, "_machines", lambda: machines)
    options = stretto.Options(threads=2, cache_dir=tmp_path)
    fast = stretto.compile(decay, DECAY, backend=backend, options=options)
    golden(fast.explain(), f"explain-{backend}.txt")
