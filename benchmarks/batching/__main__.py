"""Command line: python -m benchmarks.batching measure | report | part."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from .. import batched
from ..measure import Protocol
from ..streams import service
from . import parts, pictures, suite, tables

app = typer.Typer(no_args_is_help=True, add_completion=False)

SHORT = Protocol(rounds=3, runs=6, short_runs=30, prepare_limit_s=60.0)
"""The protocol for the models other than those with published times."""

Folder = Annotated[Path, typer.Option(help="Where the records are.")]


@app.command()
def measure(
    only: Annotated[str, typer.Option(help="Jobs whose name begins so.")] = "",
    minutes: Annotated[float, typer.Option(help="Begin no job after that long.")] = 25.0,
    runs: Annotated[int, typer.Option(help="Runs of the configurations with published times.")] = 3,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the records first.")] = False,
    folder: Folder = suite.RESULTS,
    cache: Annotated[
        Path | None, typer.Option(help="A folder of compiled programs that stays.")
    ] = None,
) -> None:
    """Run the jobs that have no record; STRETTO_TREE_SHAPES names the file of the treebank's
    trees."""
    jobs = [job for job in suite.all_jobs(runs) if job.name.startswith(only)]
    if fresh:
        for job in jobs:
            job.record(folder).unlink(missing_ok=True)
    until = time.monotonic() + 60.0 * minutes
    with tempfile.TemporaryDirectory(prefix="stretto-batching-") as removed:
        suite.run_jobs(jobs, folder, cache or Path(removed), until)


@app.command()
def report(
    folder: Folder = suite.RESULTS, docs: Path = tables.DOCS, images: Path = tables.IMAGES
) -> None:
    """Write the tables into the docs, between their marks, and the pictures."""
    tables.write_docs(folder, docs)
    for made in pictures.draw_all(folder, images):
        print(f"wrote {made}")


@app.command()
def part(
    kind: str,
    arguments: Annotated[list[str] | None, typer.Argument()] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    cache: Annotated[Path | None, typer.Option(help="The folder of compiled programs.")] = None,
) -> None:
    """Measure one thing in this process: first, ablation, sizes, peers or service."""
    torch.set_num_threads(parts.THREADS)
    given = arguments or []
    with torch.no_grad(), tempfile.TemporaryDirectory() as empty:
        folder = cache or Path(empty)
        match kind, given:
            case "peers", [model, batch, systems, protocol]:
                chosen = Protocol() if protocol == "full" else SHORT
                names = systems.split(",")
                record = batched.run(
                    [model], names, parts.THREADS, batch=int(batch), protocol=chosen
                ).as_dict()
            case "service", []:
                options = service.StreamOptions(max_batch=64, max_wait_ms=10.0)
                size = suite.INSTANCE_ZOO["treelstm"].sizes[0]
                measured = service.measure(
                    ["stretto"], "treelstm", size, service.Load(), options, parts.THREADS
                )
                record = measured.as_dict()
            case "first", [model, batch]:
                record = first(model, int(batch))
            case "once", [model, batch]:
                record = parts.first_result(model, int(batch), folder)
            case "ablation", [model, batch]:
                found = parts.ablation(model, int(batch), folder)
                record = {**parts.head(model, int(batch)), **found}
            case "sizes", [model]:
                record = {**parts.head(model, max(parts.SIZES)), **parts.by_size(model, folder)}
            case _:
                raise typer.BadParameter(f"no part {kind!r} with {len(given)} arguments")
    text = json.dumps(record, indent=1) + "\n"
    if json_file is None:
        print(text)
    else:
        json_file.write_text(text)


def first(model: str, batch: int) -> dict[str, object]:
    """Measure first results in separate processes, with an empty cache and then with a full one;
    then the activities."""
    record: dict[str, object] = parts.head(model, batch)
    with tempfile.TemporaryDirectory(prefix="stretto-first-") as folder:
        cache = Path(folder)
        for name in ("empty_cache", "full_cache"):
            found = cache / f"{name}.json"
            command = [sys.executable, "-m", "benchmarks.batching", "part", "once", model]
            command += [str(batch), "--json", str(found), "--cache", str(cache)]
            subprocess.run(command, check=True, timeout=60.0)
            record[name] = json.loads(found.read_text())
        record["activities"] = parts.activities(model, batch, cache)
    return record


if __name__ == "__main__":
    app()
