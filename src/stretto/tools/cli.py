"""The command line: `stretto doctor | demo | explain | bench | cache`.

Commands import what they run when they run it: torch alone takes a second to import, which
`stretto --help` should not.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import stretto
from stretto.errors import StrettoError
from stretto.options import Options
from stretto.text import bytes_text
from stretto.tools.cache import CacheFolder
from stretto.tools.names import UsageError, require_known

app = typer.Typer(
    name="stretto",
    help="Compiles dynamic PyTorch programs: loops, branches and recursion run as one native call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

BACKENDS = ("cpu", "emulator", "interpreter")
TIMELINES = (".html", ".json", ".png")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Threads = Annotated[
    int | None, typer.Option(min=1, help="Execution units; by default one per physical core.")
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stretto {stretto.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compiles dynamic PyTorch programs: loops, branches and recursion run as one native call."""


@contextmanager
def told() -> Generator[None]:
    """Shows what the user can do something about as a message, not as a traceback."""
    try:
        yield
    except UsageError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except StrettoError as error:
        text = f"{type(error).__name__}: {error}"
        errors.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


@contextmanager
def progress(steps: int) -> Generator[Progress]:
    """A bar that disappears when the work is done."""
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as shown:
        shown.add_task("starting", total=steps)
        yield shown


@app.command()
def doctor() -> None:
    """Check what this machine has and what will work. Exit code 1: the CPU backend will not."""
    from stretto.tools.doctor import checks

    broken = False
    for check in checks(Options()):
        broken |= check.status == "fail"
        console.print(f"[{STYLES[check.status]}]{check.status:4}[/]  {check.name:16}", end="")
        console.print(check.detail, markup=False, highlight=False, soft_wrap=True)
        if check.status != "ok":
            remedy = f"{'':24}{check.remedy}"
            console.print(remedy, style="dim", markup=False, highlight=False, soft_wrap=True)
    if broken:
        raise typer.Exit(1)


@app.command(name="demo")
def demo_command(
    threads: Threads = None,
    output: Annotated[Path, typer.Option(help="Folder for the timeline.")] = Path("out"),
    small: Annotated[bool, typer.Option(help="Tiny models, few runs: a check.")] = False,
) -> None:
    """Compile four models of the zoo and run them against eager PyTorch."""
    from stretto.tools.demo import MODELS, demo, results_table

    options = Options(threads=threads)
    with told():
        with progress(4 * len(MODELS) + 1) as shown:
            preset = "small" if small else "full"
            results, written = demo(
                options,
                output,
                lambda text: shown.update(shown.task_ids[0], description=text, advance=1),
                preset=preset,
                quick=small,
            )
        console.print(results_table(results, options.unit_count()))
        for path in written:
            console.print(f"timeline: {path}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A zoo model, path.py:function or module:name.")],
    backend: Annotated[str, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = "cpu",
    threads: Threads = None,
    small: Annotated[bool, typer.Option(help="The zoo model's small preset.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Also draw one run: .html, .json or .png.")
    ] = None,
) -> None:
    """Compile a model and print what was captured, fused, scheduled and built.

    Inputs of a model of your own come from a function `example_inputs()` beside it.
    """
    from stretto.tools.models import find_model

    with told():
        require_known("backend", [backend], BACKENDS)
        if timeline is not None:
            require_known("kind of timeline", [timeline.suffix], TIMELINES)
        found = find_model(model, small=small)
        with errors.status(f"compiling {found.name}"):
            options = Options(threads=threads)
            fast = stretto.compile(found.function, found.inputs, backend=backend, options=options)
        typer.echo(fast.explain(), nl=False)
        if timeline is not None:
            fast.timeline(timeline)
            console.print(f"wrote {timeline}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(help="Default: the core of the zoo.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Systems to measure, by commas; default: all.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each system.")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Instances per call.")] = 1,
    small: Annotated[bool, typer.Option(help="The models' small presets.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the speed-ups into this PNG.")] = None,
    quick: Annotated[bool, typer.Option(help="Few runs: a check, not a measurement.")] = False,
) -> None:
    """Time the zoo on stretto and its peers."""
    from stretto.tools.models import zoo_module

    with told():
        zoo, harness, report = (zoo_module(name) for name in ("models", "harness", "report"))
        known, measure = zoo_module("peers").PEERS, zoo_module("measure")
        chosen = list(models or zoo.CORE)
        systems = peers.split(",") if peers else list(known)
        require_known("model", chosen, zoo.ZOO)
        require_known("peer", systems, known)
        with report.shown_progress(errors) as observe:
            record = harness.run(
                chosen,
                systems,
                threads,
                preset="small" if small else "full",
                batch=batch,
                protocol=measure.Protocol.quick() if quick else measure.Protocol(),
                observe=observe,
            )
        report.publish(record, console, json, plot)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all compiled programs.")] = False,
) -> None:
    """Show the folder of compiled programs, or empty it."""
    folder = CacheFolder(Options().cache_path())
    size = bytes_text(folder.nbytes)
    with told():
        if clear:
            typer.echo(f"removed {folder.clear()} programs, {size}, from {folder.path}")
        else:
            typer.echo(f"{folder.path}: {folder.entries} programs, {size}")
