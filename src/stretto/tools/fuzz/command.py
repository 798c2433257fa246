"""`stretto fuzz`: the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from stretto.tools.names import require_known

PART_NAMES = (
    *("functions", "operators", "special", "modules", "exportdb", "sanitizers", "mutants"),
)
MACHINE_NAMES = ("interpreter", "emulator", "cpu-1", "cpu-2", "cuda-emulated")
"""The keys of `parts.PARTS` and `machines.MACHINES`, which a look at `--help` does not import."""


def fuzz(
    part: Annotated[
        list[str] | None, typer.Option(help=f"Any of {', '.join(PART_NAMES)}; default: all.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=0, help="Cases of each part, drawn by the seed; 0 is all there are.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The first random function; draws samples.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one per CPU.")
    ] = None,
    machines: Annotated[
        str | None,
        typer.Option(help=f"Of {', '.join(MACHINE_NAMES)}; default: by part."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Longer than this is a hang.")] = 60.0,
    json: Annotated[Path | None, typer.Option(help="Write all outcomes to this file.")] = None,
    reduce: Annotated[bool, typer.Option(help="Cut the sources of failures down.")] = True,
    known: Annotated[
        bool, typer.Option("--update-known", help="Take the refusals of a whole run for known.")
    ] = False,
) -> None:
    """Try random functions and torch's own databases, and compare with eager PyTorch.

    Ends with exit code 1 where anything came out wrong, failed inside, or did not end.
    """
    import torch

    from stretto.tools.fuzz.known import update_known
    from stretto.tools.fuzz.parts import DATABASES, PARTS, Settings, failed, run_part
    from stretto.tools.fuzz.report import PartReport, show, summary, write_json

    chosen = tuple(machines.split(",")) if machines else ()
    require_known("machine", chosen, MACHINE_NAMES)
    require_known("part", part or [], PART_NAMES)
    torch.set_num_threads(1)  # before workers are forked: torch's own threads do not survive that
    settings = Settings(
        count, seed, jobs or len(os.sched_getaffinity(0)), seconds, chosen, reduce=reduce
    )
    console = Console()
    reports: list[PartReport] = []
    for name in part or list(PARTS):
        with Progress(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(name, total=None)

            def update(done: int, total: int, task=task, shown=shown) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
                shown.update(task, completed=done, total=total)

            reports.append(run_part(name, settings, update))
        if known and name in DATABASES:
            update_known(name, reports[-1].outcomes)
        show(reports[-1], console)
    console.print(summary(reports))
    if json is not None:
        write_json(reports, json)
    if failed(reports):
        raise typer.Exit(1)
