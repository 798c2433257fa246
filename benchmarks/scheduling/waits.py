"""Waits between tasks compared with a barrier per wave, over random cells (Rammer, 5.2.5).

    python -m benchmarks.scheduling.waits --output results.json [--cells 1000] [--device
    cpu:2]...

The times are simulated, or measured on two threads of this CPU (the device "measured").
Both programs have the same tasks on the same units in the same order. With barriers every
unit waits for every other one after each level of the dependences. Values share no memory,
since the order that makes sharing safe differs with barriers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated

import torch
import typer

from benchmarks.models.nasbench import NASBenchConfig, make
from stretto.call.compiler import begin, run_stages
from stretto.device.normalize import normalize
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.regions import Body
from stretto.device.tree import Tree, leaves, map_tree
from stretto.device.verifier import verify
from stretto.frontends.python import capture
from stretto.machines.machine import HOST, Machine, Stages
from stretto.machines.registry import default_machine
from stretto.machines.stages import TO_SCHEDULE, VERIFY
from stretto.options import Options
from stretto.schedule.footprint import leaf_nodes
from stretto.simulator.devices import costs_on, find_device
from stretto.simulator.simulate import simulate
from stretto.tools.simulate import target_machine

MEASURED = "measured"
CALLS = 30
"""Number of calls of each program of a cell."""


def with_barriers(program: DeviceProgram, levels: Mapping[str, int]) -> DeviceProgram:
    """Return the program with a barrier of all units after each level of kernels, instead of its
    own waits."""
    return replace(program, tree=map_tree(program.tree, lambda leaf: _barriers(leaf, levels)))


def _barriers(leaf: Schedule, levels: Mapping[str, int]) -> Schedule:
    """Order the same runs by their levels. The leaf of a cell has no other items."""
    last = max((levels[name] for name in leaf.kernels), default=0)
    units = range(len(leaf.units))
    return Schedule(tuple(_items(leaf, unit, levels, last) for unit in units), last + 1)


def _items(leaf: Schedule, unit: int, levels: Mapping[str, int], last: int) -> tuple[Item, ...]:
    runs = [item for item in leaf.units[unit] if isinstance(item, Run)]
    made: list[Item] = []
    for level in range(last + 1):
        made += [run for run in runs if levels[run.kernel] == level]
        if level < last and len(leaf.units) > 1:
            made += (Signal(level + 1), Wait(0, level + 1, len(leaf.units)))
    return tuple(made)


def levels_of(tree: Tree[Body]) -> dict[str, int]:
    """Return the level of each kernel in the dependences of its leaf."""
    bodies = (body for function in normalize(tree).functions for body in leaves(function.body))
    nodes = (node for body in bodies for node in leaf_nodes(body))
    return {node.item.name: node.depth for node in nodes if isinstance(node.item, Kernel)}


def simulated(seed: int, name: str) -> tuple[float, float]:
    """Simulate a cell on a device: seconds with its own waits, and with barriers."""
    machine = default_machine()
    device = find_device(name, machine.costs)
    if device.target:
        machine = target_machine(device.target, device.units)
        machine = replace(machine, costs=costs_on(device, machine.costs))
    both, _ = both_ways(seed, machine, Options(threads=device.units))
    costs = both[0].machine.costs
    own, barrier = (simulate(_device(made), device, costs=costs) for made in both)
    return own.seconds, barrier.seconds


def measured(seed: int) -> tuple[float, float]:
    """Measure a cell on this CPU: median seconds with its own waits, and with barriers, called in
    turns."""
    machine = default_machine()
    both, inputs = both_ways(seed, machine, Options(threads=2))
    behind = machine.stages[machine.stages.index(VERIFY) + 1 :]
    seconds: tuple[list[float], ...] = ([], [])
    for stages in both:
        run_stages(stages, behind)
    for _ in range(CALLS):
        for stages, found in zip(both, seconds, strict=True):
            assert stages.executable is not None
            start = time.perf_counter()
            stages.executable(list(inputs))
            found.append(time.perf_counter() - start)
    own, barrier = map(median, seconds)
    return own, barrier


def both_ways(
    seed: int, machine: Machine, options: Options
) -> tuple[tuple[Stages, Stages], tuple[torch.Tensor, ...]]:
    """Return a cell as it is scheduled and with barriers, and inputs for it."""
    machine = replace(machine, costs=replace(machine.costs, share_bytes=sys.maxsize))
    model, inputs = make(NASBenchConfig(cell=seed))
    with torch.no_grad():
        program = capture(model, inputs, {}, options).program
    stages = begin(program, machine, options, HOST)
    run_stages(stages, TO_SCHEDULE)
    assert stages.selected is not None and stages.scheduled is not None
    barred = with_barriers(_device(stages), levels_of(stages.selected.tree))
    verify(barred, normalize(stages.selected.tree))
    scheduled = replace(stages.scheduled, program=barred)
    return (stages, replace(stages, scheduled=scheduled)), inputs


def _device(stages: Stages) -> DeviceProgram:
    assert stages.device is not None
    return stages.device


def main(
    output: Annotated[Path, typer.Option(help="JSON of the results; more are added to it.")],
    cells: Annotated[int, typer.Option(help="Cells.")] = 1000,
    device: Annotated[list[str] | None, typer.Option(help="cpu:N, h200 ..., measured.")] = None,
    minutes: Annotated[float, typer.Option(help="Begin no cell after that long.")] = 25.0,
) -> None:
    """Simulate or measure the cells that have no result yet."""
    known = json.loads(output.read_text()) if output.exists() else {}
    until = time.monotonic() + 60 * minutes
    for name in device or ["cpu:2", "h200", "v100"]:
        rows: dict[str, list[float]] = known.setdefault(name, {})
        for seed in range(cells):
            if str(seed) not in rows and time.monotonic() < until:
                found = measured(seed) if name == MEASURED else simulated(seed, name)
                rows[str(seed)] = list(found)
        gains = [barrier / own for own, barrier in rows.values()]
        if gains:
            mean, most = geometric_mean(gains), max(gains)
            print(f"{name}: {len(gains)} cells, mean {mean:.3f}x, largest {most:.3f}x", flush=True)
        output.write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    typer.run(main)
