"""GPU resources of the zoo's models, found by compilation alone: no GPU is used or needed.

    python -m benchmarks.resources --out benchmarks/results/README.md

compiles every model for one target, and also for others to check that they compile and
measure how long it takes. The table is written between the markers of the page, everything
else into a JSON record beside the results of the benchmark. The record is written after
each model; if a run was cut short, `--go-on` takes the models from it that it has already.
"""

import argparse
import datetime
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.describe import LaunchRow, host_rows, launch_rows
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.styles import GpuProgram, compile_plan
from stretto.machines.cuda.toolchain import GpuTarget, require_triton
from stretto.machines.machine import HOST, Machine
from stretto.options import Options
from stretto.text import bytes_text
from stretto.tools.models import find_model
from stretto.tools.names import UsageError, require_known
from stretto.tools.simulate import compile_model, target_machine

from .machine import git_commit, machine_line, versions
from .models import CORE, ZOO

TARGET = "sm_90"
OTHERS = ("sm_80", "sm_100", "gfx942")
BEGIN, END = "<!-- resources: begin -->", "<!-- resources: end -->"
RESULTS = Path(__file__).parent / "results"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelResources:
    """The resources of one model. seconds: of each stage. launches: those for the target. others:
    per other target, seconds that its compiler took for all launches, or why it failed.
    problem: why there are no results."""

    model: str
    seconds: dict[str, float]
    launches: tuple[LaunchRow, ...] = ()
    library_calls: int = 0
    host: tuple[str, ...] = ()
    others: dict[str, float | str] | None = None
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Survey:
    """All models for one target."""

    date: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    target: str
    units: int
    preset: str
    models: tuple[ModelResources, ...]

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def survey(
    models: Sequence[str],
    target: str = TARGET,
    others: Sequence[str] = OTHERS,
    *,
    units: int | None = None,
    preset: str = "full",
    cache: Path | None = None,
    tell: Tell = lambda text: None,
    known: Mapping[str, ModelResources] | None = None,
    keep: Callable[[Survey], None] = lambda found: None,
) -> Survey:
    """Compile the models. cache: a folder of compiled programs; None uses none. known: models
    compiled earlier. keep: called after each model with the results so far."""
    machine = target_machine(target, units)
    count = machine.units(Options(), HOST)
    found: list[ModelResources] = []
    commit = git_commit()  # read now: the checkout may change during the run
    with tempfile.TemporaryDirectory(prefix="stretto-") as fresh:
        options = Options(cache_dir=cache or fresh)
        made = Survey(
            datetime.date.today().isoformat(),
            commit,
            machine_line(1),
            {**versions(), "triton": require_triton()},
            target,
            count,
            preset,
            (),
        )
        for name in models:
            if known is not None and name in known:
                found.append(known[name])
                continue
            tell(f"{name}: {target}")
            found.append(_model(name, machine, others, count, preset, options, tell))
            keep(replace(made, models=tuple(found)))
    return replace(made, models=tuple(found))


def models_of(record: Path, target: str, preset: str) -> dict[str, ModelResources]:
    """Return the models in a JSON record of a survey. Raises ValueError if it is of another
    commit, target or preset."""
    found = json.loads(record.read_text())
    for name, value in (("commit", git_commit()), ("target", target), ("preset", preset)):
        if found[name] != value:
            raise ValueError(f"{record} is of {name} {found[name]}, not {value}")
    return {
        model["model"]: ModelResources(
            **{
                **model,
                "launches": tuple(LaunchRow(**row) for row in model["launches"]),
                "host": tuple(model["host"]),
            }
        )
        for model in found["models"]
    }


def _model(
    name: str,
    machine: Machine,
    others: Sequence[str],
    units: int,
    preset: str,
    options: Options,
    tell: Tell,
) -> ModelResources:
    start = time.perf_counter()
    try:
        model = find_model(name, small=preset == "small")
        _, stages = compile_model(model, machine, options)
    except StrettoError as error:
        spent = {"until it failed": time.perf_counter() - start}
        return ModelResources(name, spent, problem=f"{type(error).__name__}: {error.message}")
    spent: dict[str, float | str] = {}
    for other in others:
        tell(f"{name}: {other}")
        spent[other] = _seconds(gpu_program(stages), other, options)
    assert stages.device is not None
    made = gpu_program(stages)
    return ModelResources(
        name,
        stages.seconds,
        tuple(launch_rows(made, units)),
        sum(kernel.call is not None for kernel in stages.device.kernels),
        tuple(f"{row.what}: {row.why}" for row in host_rows(made.plan)),
        spent,
    )


def _seconds(made: GpuProgram, target: str, options: Options) -> float | str:
    """Return the seconds to compile the texts for a target, or why that failed. If they use more
    shared memory than the target has, other texts are made."""
    multiprocessor = GpuTarget.parse(target).multiprocessor
    most = multiprocessor.most_shared_bytes if multiprocessor is not None else 0
    try:
        if any(source.shared_bytes > most for source in made.sources):
            return sum(kernel.seconds for kernel in compile_plan(made, target, options).compiled)
        return sum(compile_source(source, target, options).seconds for source in made.sources)
    except StrettoError as error:
        return f"{type(error).__name__}: {error.message}"


# ---- the table -------------------------------------------------------------------------------

HEADERS = (
    "model",
    "launches",
    "kernels",
    "loops, branches",
    "waits on a unit",
    "registers",
    "shared",
    "spills",
    "stack",
    "units per SM",
    "binary",
    "schedule",
)


def markdown(found: Survey) -> str:
    """Return the table, followed by the settings and versions of the survey."""
    others = list(dict.fromkeys(o for model in found.models for o in model.others or ()))
    headers = [*HEADERS, found.target, *others]
    lines = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    lines += [f"| {' | '.join(_cells(model, others))} |" for model in found.models]
    lines += [
        "",
        f"{found.units} units, 4 warps each unless the row says otherwise. `schedule` is the time "
        f"from the captured program to the plan, `{found.target}` that of all texts tried for it "
        f"(until one spills nothing), the other targets' columns of the text chosen; all in "
        f"seconds, on a shared machine without a GPU ({found.machine}); Triton "
        f"{found.versions['triton']}, torch {found.versions.get('torch', '?')}, {found.date}, "
        f"commit {(found.commit or 'unknown')[:9]}"
        f"{' with changes' if (found.commit or '').endswith('-dirty') else ''}.",
    ]
    return "\n".join(lines)


def _cells(model: ModelResources, others: Sequence[str]) -> list[str]:
    rows = model.launches
    if not rows:
        problem = model.problem.replace("|", "/").splitlines()[0]
        return [model.model, f"failed: {problem}", *[""] * (len(HEADERS) - 1 + len(others))]
    tight = min(rows, key=lambda row: row.units_per_multiprocessor or 0)
    sizes = ("shared_bytes", "spill_bytes", "stack_bytes")
    shared, spills, stack = (max(getattr(row, size) or 0 for row in rows) for size in sizes)
    before = sum(s for name, s in model.seconds.items() if name not in ("capture", "compile"))
    spent = [(model.others or {}).get(other) for other in others]
    return [
        model.model,
        f"{len(rows)}" + (f" + {model.library_calls} calls" if model.library_calls else ""),
        str(sum(row.kernels for row in rows)),
        str(sum(row.control for row in rows)),
        str(max(row.waits for row in rows)),
        str(max(row.registers or 0 for row in rows)),
        *(bytes_text(size) for size in (shared, spills, stack)),
        f"{tight.units_per_multiprocessor} ({tight.limit})",
        bytes_text(sum(row.binary_bytes or 0 for row in rows)),
        f"{before:.1f}",
        f"{model.seconds['compile']:.1f}",
        *(f"{seconds:.1f}" if isinstance(seconds, float) else "failed" for seconds in spent),
    ]


def insert(page: Path, table: str) -> None:
    """Put the table between the page's markers. Raises ValueError if they are missing."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        require_known("model", options.models, ZOO)
        for name in (options.target, *options.others):
            target_machine(name)
    except UsageError as error:
        raise SystemExit(f"error: {error}") from None
    if options.out and not (options.out.is_file() and BEGIN in options.out.read_text()):
        raise SystemExit(f"{options.out} is not a page with a line {BEGIN}")
    path = options.json or RESULTS / f"{datetime.date.today()}-resources-{options.target}.json"
    try:
        known = models_of(path, options.target, options.preset) if options.go_on else None
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: cannot go on: {error}") from None
    found = survey(
        options.models or CORE,
        options.target,
        options.others,
        units=options.units,
        preset=options.preset,
        cache=options.cache,
        tell=lambda text: print(text, flush=True),
        known=known,
        keep=lambda part: part.write_json(path),
    )
    table = markdown(found)
    print(table)
    found.write_json(path)
    print(f"wrote {path}")
    if options.out:
        insert(options.out, table)
        print(f"wrote the table into {options.out}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resources", description="What the zoo needs of a GPU."
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: the core of the zoo")
    parser.add_argument("--target", default=TARGET, help="default: %(default)s")
    parser.add_argument(
        "--others",
        default=OTHERS,
        type=lambda text: tuple(name for name in text.split(",") if name),
        help=f"only for their compile times (default: {','.join(OTHERS)})",
    )
    parser.add_argument("--units", type=int, help="default: multiprocessors of a usual GPU")
    parser.add_argument("--preset", default="full", choices=("full", "small"))
    parser.add_argument("--out", type=Path, help="a page with markers that gets the table")
    parser.add_argument("--json", type=Path, help="default: a dated file in benchmarks/results")
    parser.add_argument("--go-on", action="store_true", help="with the models the record lacks")
    parser.add_argument("--cache", type=Path, help="a folder of compiled programs to use")
    return parser


if __name__ == "__main__":
    main()
