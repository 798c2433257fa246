"""`python -m checks.fuzz`: the command, which `make fuzz` calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from stretto.tools.cli import told
from stretto.tools.names import require_known

app = typer.Typer()

PART_NAMES = (
    *("functions", "python", "operators", "special", "sizes", "instances", "operator-sizes"),
    *("operator-instances", "modules", "module-instances", "exportdb", "python-tests"),
    *("sanitizers", "mutants", "schedules"),
)
"""The keys of `parts.PARTS`, which a look at `--help` does not import."""


@app.command()
@told()
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
        typer.Option(help="Names by commas; a wrong one lists all. Default: by part."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Longer than this is a hang.")] = 60.0,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Add each outcome to this file when it comes, as a line of JSON. Cases that "
            "the file has for these machines are not tried again."
        ),
    ] = None,
    only_show: Annotated[
        bool, typer.Option("--show", help="Try nothing, show what the file of --json has.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare with the outcomes in this file of --json, which may be compressed with "
            "xz: every case that has another verdict or reason is shown, and counts as a failure."
        ),
    ] = None,
    reduce: Annotated[bool, typer.Option(help="Cut the sources of failures down.")] = True,
    known: Annotated[
        bool, typer.Option("--update-known", help="Take the refusals of a whole run for known.")
    ] = False,
) -> None:
    """Try random functions and torch's own databases, and compare with eager PyTorch.

    Ends with exit code 1 where anything came out wrong, failed inside, or did not end.
    """
    import torch

    from checks.fuzz.journal import Journal, read
    from checks.fuzz.known import update_known
    from checks.fuzz.machines import MACHINES
    from checks.fuzz.parts import DATABASES, PARTS, Settings, failed, report_of, run_part
    from checks.fuzz.report import PartReport, show, show_changes, summary

    chosen = tuple(machines.split(",")) if machines else ()
    require_known("machine", chosen, MACHINES)
    require_known("part", part or [], PART_NAMES)
    torch.set_num_threads(1)  # before workers are forked: torch's own threads do not survive that
    settings = Settings(
        count, seed, jobs or len(os.sched_getaffinity(0)), seconds, chosen, reduce=reduce
    )
    if only_show and json is None:
        raise typer.BadParameter("--show needs the file of --json")
    journal = Journal(json, chosen) if json is not None else None
    console = Console()
    others = 0
    reports: list[PartReport] = []
    for name in journal.parts() if journal and only_show else part or list(PARTS):
        if journal and only_show:
            reports.append(report_of(name, journal.outcomes(name)))
        else:
            with _progress(name) as update:
                reports.append(run_part(name, settings, update, journal))
        if known and name in DATABASES:
            update_known(name, reports[-1].outcomes)
        show(reports[-1], console)
        others += 0 if against is None else show_changes(reports[-1], read(against), console)
    console.print(summary(reports))
    if failed(reports) or others:
        raise typer.Exit(1)


@contextmanager
def _progress(name: str) -> Generator[Callable[[int, int], None]]:
    """A bar on the terminal, and what moves it."""
    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=None)

        def update(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield update
