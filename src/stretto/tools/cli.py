"""The command line: `stretto doctor | demo | explain | calibrate | tune | simulate | opt |
bench | streams | cache`.

Commands import their implementation when they run: torch alone takes a second to
import, which `stretto --help` must not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import stretto
from stretto.errors import StrettoError
from stretto.options import POLICIES, Debug, Options
from stretto.text import bytes_text
from stretto.tools.names import UsageError, require_known

if TYPE_CHECKING:
    from stretto.machines.machine import Machine

app = typer.Typer(
    name="stretto",
    help="Compiles dynamic PyTorch programs: loops, branches and recursion run as one native call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

BACKEND_HELP = "The machine; `stretto doctor` lists them. By default this host's own."
PRESETS = ("full", "small")
TIMELINES = (".html", ".json", ".png")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Units = Annotated[
    int | None,
    typer.Option(min=1, help="Execution units of a GPU; by default one per multiprocessor."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Execution units; by default one per physical core.")
]
PolicyName = Annotated[
    str, typer.Option("--policy", help=f"Places tasks on units: {', '.join(POLICIES)}.")
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
    """Print errors that the user can act on as messages, without a traceback, and exit."""
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
    """Show a progress bar that disappears when the work is done."""
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
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    units: Units = None,
) -> None:
    """Compile four models of the zoo and run them against eager PyTorch."""
    from stretto.tools.demo import MODELS, demo, results_table
    from stretto.tools.models import require_device

    options = Options(threads=threads, units=units)
    with told():
        machine = _machine(backend)
        if machine.is_emulated and not small:
            raise UsageError(f"the backend {machine.name} is slow: give --small too")
        require_device(machine)
        with progress(4 * len(MODELS) + 1) as shown:
            results, written = demo(
                options,
                machine,
                output if machine.is_native else None,
                lambda text: shown.update(shown.task_ids[0], description=text, advance=1),
                preset="small" if small else "full",
                quick=small,
            )
        typer.echo(results_table(results, options.unit_count(), machine), nl=False)
        for path in written:
            console.print(f"timeline: {path}", highlight=False, markup=False, soft_wrap=True)


def _machine(name: str | None) -> Machine:
    """Return the machine of that name, or the default of this host. Raise UsageError for an
    unknown name."""
    from stretto.machines.registry import default_machine, find_machine, known_machines

    if name is None:
        return default_machine()
    require_known("backend", [name], known_machines())
    return find_machine(name)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A zoo model, path.py:function or module:name.")],
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Compile for a GPU that need not be there, as sm_90; nothing is run."),
    ] = None,
    threads: Threads = None,
    units: Units = None,
    policy: PolicyName = "auto",
    preset: Annotated[str, typer.Option(help="Preset of a zoo model: full or small.")] = "full",
    small: Annotated[bool, typer.Option(help="The same as --preset small.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Also draw one run: .html, .json or .png.")
    ] = None,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="Print only the remarks: what stages declined to do.")
    ] = False,
) -> None:
    """Compile a model and print what was captured, fused, scheduled and built.

    Inputs of your own model come from a function `example_inputs()` next to it.
    """
    with told():
        require_known("preset", [preset], PRESETS)
        require_known("policy", [policy], POLICIES)
        if timeline is not None:
            require_known("kind of timeline", [timeline.suffix], TIMELINES)
        is_small = small or preset == "small"
        if target is None:
            options = Options(threads=threads, units=units, debug=Debug(policy=policy))
            fast = _explain_here(model, _machine(backend), options, is_small, remarks)
            if timeline is not None:
                fast.timeline(timeline)
                console.print(f"wrote {timeline}", highlight=False, markup=False, soft_wrap=True)
        elif backend is not None or timeline is not None:
            other = "--backend" if backend is not None else "--timeline"
            raise UsageError(f"--target only compiles: it does not go with {other}")
        else:
            _explain_target(
                model, target, units, Options(debug=Debug(policy=policy)), is_small, remarks
            )


def _explain_here(
    model: str, machine: Machine, options: Options, small: bool, remarks: bool
) -> stretto.Compiled:
    """Compile a model for a machine that is present, and print the explanation."""
    from stretto.tools.explain import remarks_text
    from stretto.tools.models import find_model, on_device, require_device

    require_device(machine)
    found = on_device(find_model(model, small=small), machine)
    with errors.status(f"compiling {found.name}"):
        fast = stretto.compile(found.function, found.inputs, backend=machine.name, options=options)
    shown = remarks_text(fast.signatures[0].stages) if remarks else fast.explain()
    typer.echo(shown, nl=False)
    return fast


def _explain_target(
    model: str, target: str, units: int | None, options: Options, small: bool, remarks: bool
) -> None:
    """Compile a model for a GPU that need not be present, and print the explanation."""
    from stretto.tools.explain import explain_target, remarks_text
    from stretto.tools.models import find_model
    from stretto.tools.simulate import compile_model, target_machine

    machine = target_machine(target, units)
    found = find_model(model, small=small)
    with errors.status(f"compiling {found.name} for {target}"):
        captured, stages = compile_model(found, machine, options)
    shown = remarks_text(stages) if remarks else explain_target(target, found, captured, stages)
    typer.echo(shown, nl=False)


def _said(text: str) -> None:
    """Print a line without animation, which would take time from what is measured."""
    errors.print(text, style="dim", markup=False, highlight=False)


@app.command(name="calibrate")
def calibrate_command(
    threads: Threads = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove all measurements instead.")
    ] = False,
) -> None:
    """Fit the parameters of the cost model to this CPU, in about half a minute."""
    from stretto.tools.calibrate import calibrate, fitted_table
    from stretto.tuning import Database

    options = Options(threads=threads)
    database = Database(options.cache_path())
    with told():
        if forget:
            database.forget()
            typer.echo(f"removed all measurements from {database.path}")
            return
        fitted = calibrate(options, lambda what: _said(f"measuring {what}"))
        typer.echo(fitted_table(fitted), nl=False)
        typer.echo(f"stored in {database.path}")


@app.command(name="tune")
def tune_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Zoo models, path.py:function or module:name. Default: the zoo's."),
    ] = None,
    threads: Threads = None,
    small: Annotated[bool, typer.Option(help="Use the small presets of zoo models.")] = False,
) -> None:
    """Time all variants of the kernels of models; later compilations use the fastest ones."""
    from stretto.tools.models import find_model, zoo_module
    from stretto.tools.tune import tune_model, tuned_table

    options = Options(threads=threads)
    with told():
        names = models or list(zoo_module("models").CORE)
        found = [tune_model(find_model(name, small=small), options, _said) for name in names]
        typer.echo(tuned_table(found), nl=False)


@app.command(name="simulate")
def simulate_command(
    model: Annotated[str, typer.Argument(help="A zoo model, path.py:function or module:name.")],
    device: Annotated[
        str, typer.Option(help="h200, a100, v100, mi300x, or cpu:N for N cores.")
    ] = "cpu:2",
    units: Annotated[
        int | None, typer.Option(min=1, help="Execution units; by default those of the device.")
    ] = None,
    trips: Annotated[
        int | None, typer.Option(min=0, help="Assumed iterations of loops that data end.")
    ] = None,
    depth: Annotated[
        int, typer.Option(min=1, max=64, help="Assumed depth of recursion that data end.")
    ] = 4,
    measured: Annotated[
        bool, typer.Option("--measured", help="For cpu:N: use task times measured on this CPU.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Take the branches and trips of one run on this CPU.")
    ] = False,
    policy: PolicyName = "auto",
    small: Annotated[bool, typer.Option(help="Use the small preset of a zoo model.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Also draw the run: .html, .json or .png.")
    ] = None,
) -> None:
    """Predict the time of a model on a device that need not be there."""
    from stretto.tools.models import find_model
    from stretto.tools.simulate import report, simulate_model, write_simulated_timeline

    with told():
        if timeline is not None:
            require_known("kind of timeline", [timeline.suffix], TIMELINES)
        require_known("policy", [policy], POLICIES)
        found = find_model(model, small=small)
        with errors.status(f"simulating {found.name} on {device}"):
            simulated = simulate_model(
                found,
                device,
                units,
                trips=trips,
                depth=depth,
                measured=measured,
                followed=follow,
                options=Options(debug=Debug(policy=policy)),
            )
        typer.echo(report(simulated), nl=False)
        if timeline is not None:
            write_simulated_timeline(simulated, timeline)
            console.print(f"wrote {timeline}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def opt(
    file: Annotated[Path, typer.Argument(help="A dump, as Debug(dump_dir=...) writes them.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Its form; default: by its first word.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", help="The form to print; default: the same.")
    ] = None,
    passes: Annotated[
        list[str] | None, typer.Option("--pass", help="Run only this pass; may be repeated.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run it and print the results.")] = False,
    inputs: Annotated[
        Path | None, typer.Option(help="A list of tensors, by torch.save; default: drawn.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(help="Tensors by name, by torch.save; others are drawn.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of drawn tensors.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which a run ends; not on GPUs.")
    ] = 60.0,
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    threads: Threads = None,
    units: Units = None,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="Also print what stages declined to do.")
    ] = False,
) -> None:
    """Read a dump, edited or not, verify it, continue from there, and print another form or run it.

    Forms, in order: captured, optimised, operators, kernels, scheduled, then those of the machine.
    """
    from stretto.tools.explain import remarks_text
    from stretto.tools.opt import Optimiser, load_constants, load_inputs

    with told():
        known = None if constants is None else load_constants(constants)
        options = Options(threads=threads, units=units, debug=Debug(seed=seed), timeout=timeout)
        optimiser = Optimiser(
            file, _machine(backend), options, source=source, passes=passes or (), constants=known
        )
        if run and target is not None:
            raise UsageError("--run goes through all forms: it does not go with --to")
        if not run:
            typer.echo(optimiser.to(target), nl=False)
        else:
            given = None if inputs is None else load_inputs(inputs)
            for number, result in enumerate(optimiser.run(given)):
                typer.echo(f"result {number}: {result}")
        if remarks:
            typer.echo(remarks_text(optimiser.stages), err=True, nl=False)


@app.command()
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Default: the core of the zoo; `real`: models in common use."),
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Systems to measure, by commas; default: all.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each system.")] = 2,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Instances per call; default: 1, with --batched 64.")
    ] = None,
    batched: Annotated[
        bool, typer.Option(help="Models written for one instance, run for a batch.")
    ] = False,
    small: Annotated[bool, typer.Option(help="The models' small presets.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the speed-ups into this PNG.")] = None,
    quick: Annotated[bool, typer.Option(help="Few runs: a check, not a measurement.")] = False,
    prepare_limit: Annotated[
        float | None, typer.Option(min=0, help="Seconds to prepare a system; default: 300.")
    ] = None,
) -> None:
    """Time the zoo on stretto and its peers."""
    from stretto.tools.models import zoo_module

    with told():
        measure, report = zoo_module("measure"), zoo_module("report")
        protocol = measure.Protocol.quick() if quick else measure.Protocol()
        if prepare_limit is not None:
            protocol = replace(protocol, prepare_limit_s=prepare_limit)
        systems = peers.split(",") if peers else None
        run = _bench_batched if batched else _bench_zoo
        measured = run(models, systems, small)
        with report.shown_progress(errors) as observe:
            count = batch or (64 if batched else 1)
            record = measured(threads=threads, batch=count, protocol=protocol, observe=observe)
        report.publish(record, console, json, plot)


def _bench_zoo(
    models: list[str] | None, peers: list[str] | None, small: bool
) -> Callable[..., Any]:
    """Return a function that measures the zoo, after checking the names."""
    from stretto.tools.models import zoo_module

    zoo, harness, known = (zoo_module(name) for name in ("models", "harness", "peers"))
    chosen = zoo_module("models.groups").expanded(models or zoo.CORE)
    systems = peers or list(known.DEFAULT)
    require_known("model", chosen, harness.ALL)
    require_known("peer", systems, known.PEERS)
    return partial(harness.run, chosen, systems, preset="small" if small else "full")


def _bench_batched(
    models: list[str] | None, peers: list[str] | None, small: bool
) -> Callable[..., Any]:
    """Return a function that measures models written for one instance, after checking the names."""
    from stretto.tools.models import zoo_module

    batched, known = zoo_module("batched"), zoo_module("peers.instances").INSTANCE_PEERS
    chosen = models or list(batched.DEFAULT_MODELS)
    require_known("model", [name.partition(":")[0] for name in chosen], batched.INSTANCE_ZOO)
    for name in chosen:
        model, _, size = name.partition(":")
        if size:
            require_known("size", [size], batched.INSTANCE_ZOO[model].presets)
    require_known("peer", peers or (), known)
    return partial(batched.run, chosen, peers or list(known), small=small)


@app.command()
def streams(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all streams.")] = None,
    systems: Annotated[
        str | None, typer.Option(help="Systems to measure, by commas; default: all.")
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Calls of a stream.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each system, in turns.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each system.")] = 2,
    small: Annotated[bool, typer.Option(help="Small models and sizes.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Time streams of calls whose sizes change with every call, on stretto and its peers."""
    from stretto.tools.models import zoo_module

    with told():
        suite, report = zoo_module("streams.suite"), zoo_module("report")
        known, made = zoo_module("streams.models").STREAMS, zoo_module("streams.systems").SYSTEMS
        chosen, measured = names or list(known), systems.split(",") if systems else list(made)
        require_known("stream", chosen, known)
        require_known("system", measured, made)
        with report.shown_progress(errors) as observe:
            record = suite.run(
                chosen,
                measured,
                calls=calls,
                rounds=rounds,
                threads=threads,
                small=small,
                observe=observe,
            )
        suite.publish(record, console, json)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all compiled programs.")] = False,
) -> None:
    """Show the folder of compiled programs, or empty it."""
    from stretto.tools.doctor import CacheFolder

    folder = CacheFolder(Options().cache_path())
    size = bytes_text(folder.nbytes)
    with told():
        if clear:
            typer.echo(f"removed {folder.clear()} programs, {size}, from {folder.path}")
        else:
            typer.echo(f"{folder.path}: {folder.entries} programs, {size}")
