"""Gains of passes and choices: each is left out or replaced in turn, on CPU and simulated GPUs.

    python -m benchmarks.scheduling.ablation WHAT [NAMES] [--json F] [--picture F]

WHAT is loops, branches, kernels or launches (simulated plans of launches, GPUs only). On the CPU a
program is compiled once for each column, and these are called in turns; the medians are shown.
GPUs are simulated (docs/explanation/simulator.md): the figures are the gain of the schedule under
the estimates of tasks and waits, not the time on a GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

import stretto
from stretto.errors import ScheduleError
from stretto.options import Debug, Options
from stretto.tools.models import Model
from stretto.tools.simulate import simulate_model

from .programs import BRANCHES, KERNELS, LOOPS, Program, Programs

GPUS = ("h200", "v100")
CPU = "cpu:2"
WARM_CALLS = 3


@dataclass(frozen=True, slots=True)
class Ablation:
    """Programs, and the options to compare on each; the first column is the default. has_cpu: True
    if the CPU machine has all columns."""

    programs: Programs
    columns: Mapping[str, Options]
    has_cpu: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """Seconds of a call, and the length of the chain of waits (simulated runs only)."""

    seconds: float
    waits: int | None = None


Table = dict[str, dict[str, dict[str, Cell]]]
"""By program, device and column."""


def _without(*passes: str) -> dict[str, Options]:
    """All passes, and variants that leave out one."""
    left_out = {f"without {name}": Options(threads=2, debug=Debug(skip=(name,))) for name in passes}
    return {"all": Options(threads=2), **left_out}


ABLATIONS = {
    "loops": Ablation(LOOPS, _without("skew", "rotate", "parallel_loops")),
    "branches": Ablation(
        BRANCHES,
        _without(
            "merge_branches",
            "share_arms",
            "if_convert",
            "speculate",
            "recursion_levels",
            "fork_calls",
            "unroll_recursion",
        ),
    ),
    "kernels": Ablation(
        KERNELS,
        {
            kind: Options(threads=2, debug=Debug(kernels=kind))
            for kind in ("fastest", "efficient", "holistic")
        },
    ),
    "launches": Ablation(
        KERNELS,
        {
            "one launch": Options(debug=Debug(launches="one", control="units")),
            "per kernel, control on units": Options(
                debug=Debug(launches="per_kernel", control="units")
            ),
            "per kernel, control on host": Options(
                debug=Debug(launches="per_kernel", control="host")
            ),
        },
        has_cpu=False,
    ),
}


def measured(program: Program, columns: Mapping[str, Options], runs: int) -> dict[str, Cell]:
    """Measure calls on this CPU, in turns."""
    function, inputs = program
    with torch.no_grad():
        calls: dict[str, Callable[..., Any]] = {
            name: stretto.compile(function, inputs, options=options)
            for name, options in columns.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(runs + WARM_CALLS):
            for name, call in calls.items():
                start = time.perf_counter()
                call(*inputs)
                seconds[name].append(time.perf_counter() - start)
    return {name: Cell(median(found[WARM_CALLS:])) for name, found in seconds.items()}


def simulated(
    name: str, program: Program, columns: Mapping[str, Options], device: str
) -> dict[str, Cell]:
    """Simulate calls on a device that is absent; its branches go the same way as in a run here.
    Raises ScheduleError if the program for it has other branches, such as a recursion that is
    not computed level by level."""
    found: dict[str, Cell] = {}
    for column, options in columns.items():
        model = Model(name, *program)
        made = simulate_model(model, device, followed=True, options=options)
        if made.planned is not None:  # with several launches, units do not wait between them
            found[column] = Cell(made.planned)
        else:
            found[column] = Cell(made.result.seconds, made.result.dependent_waits)
    return found


def picture(table: Table, path: Path) -> None:
    """Draw the time of a call relative to the first column, one panel per device."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    devices = list(dict.fromkeys(device for row in table.values() for device in row))
    default, *others = next(iter(table.values()))[devices[0]]
    figure, panels = plt.subplots(
        1, len(devices), figsize=(4.5 * len(devices), 4), sharey=True, squeeze=False
    )
    for panel, device in zip(panels[0], devices, strict=True):
        rows = {name: row[device] for name, row in table.items() if device in row}
        width = 0.8 / len(others)
        for place, column in enumerate(others):
            more = [row[column].seconds / row[default].seconds - 1 for row in rows.values()]
            positions = [number + width * place for number in range(len(rows))]
            panel.bar(positions, more, width, bottom=1.0, label=column)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks([n + 0.4 - width / 2 for n in range(len(rows))], list(rows), rotation=30)
        panel.set_title(f"{device}, {'measured' if device == CPU else 'simulated'}")
    panels[0][0].set_yscale("log", base=2)
    panels[0][0].set_ylabel(f"time of a call, {default} = 1")
    panels[0][-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def load(path: Path) -> Table:
    """Read the table of a file that `store` wrote; an empty one if there is no file."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: {
            device: {column: Cell(*cell) for column, cell in cells.items()}
            for device, cells in row.items()
        }
        for name, row in found.items()
    }


def store(table: Table, path: Path) -> None:
    rows = {
        name: {
            device: {column: (cell.seconds, cell.waits) for column, cell in cells.items()}
            for device, cells in row.items()
        }
        for name, row in table.items()
    }
    path.write_text(json.dumps(rows, indent=1) + "\n")


def _print(name: str, device: str, cells: Mapping[str, Cell]) -> None:
    times = (f"{column} {cell.seconds * 1e6:.1f}" for column, cell in cells.items())
    print(f"{name} on {device}, us:", ", ".join(times), flush=True)
    if all(cell.waits is not None for cell in cells.values()):
        waits = (f"{column} {cell.waits}" for column, cell in cells.items())
        print("  waits, each for the one before:", ", ".join(waits), flush=True)


def main(
    what: Annotated[str, typer.Argument(help=f"Which comparison: {', '.join(ABLATIONS)}.")],
    names: Annotated[list[str] | None, typer.Argument(help="Programs; default: all.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="cpu:2, h200, v100 ...")] = None,
    runs: Annotated[int, typer.Option(help="Calls of each column on the CPU.")] = 200,
    output: Annotated[
        Path | None, typer.Option("--json", help="JSON; what it lacks is added to it.")
    ] = None,
    drawn: Annotated[Path | None, typer.Option("--picture", help="PNG.")] = None,
) -> None:
    """Measure or simulate, and print, all cells that are not in the JSON file yet."""
    if what not in ABLATIONS:
        raise typer.BadParameter(f"{what!r} is none of {', '.join(ABLATIONS)}")
    ablation = ABLATIONS[what]
    if unknown := [name for name in names or () if name not in ablation.programs]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ablation.programs)}")
    table = load(output) if output is not None else {}
    for name in names or ablation.programs:
        row = table.setdefault(name, {})
        for one in device or ((CPU, *GPUS) if ablation.has_cpu else GPUS):
            if one in row:
                continue
            torch.manual_seed(0)
            program = ablation.programs[name]()
            try:
                if one == CPU:
                    row[one] = measured(program, ablation.columns, runs)
                else:
                    row[one] = simulated(name, program, ablation.columns, one)
            except ScheduleError as refused:
                print(f"{name} on {one}: {refused}", flush=True)
                continue
            _print(name, one, row[one])
            if output is not None:
                store(table, output)
    if drawn is not None:
        picture(table, drawn)


if __name__ == "__main__":
    typer.run(main)
