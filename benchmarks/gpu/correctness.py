"""The stage `correctness`: strict checks of everything that runs on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import stretto

from ..harness import reference_outputs, relative_error
from ..models import CORE
from ..peers.base import Skipped
from . import launches, saved
from .device import TOLERANCE, Bench
from .engine import ROOT, Job, Settings, run_jobs
from .results import Keep, WrongValue
from .saved import SEEDS, Program, entry_of
from .systems import on_host
from .worker import Reporter

FULL = ("deepspeech2", "blockdrop", "nasrnn", "lstm", "seq2seq", "attention", "rae")
"""The models of full size; those that take longest begin first."""
CALLS = 3
TESTS = ROOT / "tests"
NO_TESTS = 5
"""pytest's exit code if it ran no tests."""


def programs(dry_run: bool, chosen: tuple[str, ...]) -> list[Program]:
    full = [Program(model, "small" if dry_run else "full") for model in FULL]
    small = [] if dry_run else [Program(model, "small") for model in CORE]
    return [one for one in (*full, *small) if not chosen or one.model in chosen]


def jobs(settings: Settings) -> list[Job]:
    models = [model for model in FULL if not settings.chosen or model in settings.chosen]
    found = [Job("correctness", f"full {model}", 80.0) for model in models]
    if not settings.dry_run:
        found.append(Job("correctness", "zoo", 85.0))
    found += [Job("correctness", name, 85.0) for name in ("launches", "dtypes")]
    return found if settings.dry_run else [*found, Job("correctness", "pytest", 85.0)]


def drive(settings: Settings, record: Keep, end: float) -> None:
    run_jobs(jobs(settings), settings, record, end, settings.workers)


def run(reporter: Reporter, bench: Bench) -> None:
    """Run the checks of a job, in a worker."""
    kind, _, model = reporter.job.partition(" ")
    match kind:
        case "full":
            program = Program(model, "small" if bench.dry_run else "full")
            check = partial(check_model, bench, reporter, program)
            reporter.row(f"full {model}", 80.0, check)
        case "zoo":
            for name in CORE:
                if not reporter.chosen or name in reporter.chosen:
                    check = partial(check_model, bench, reporter, Program(name, "small"))
                    reporter.row(f"small {name}", 30.0, check)
        case "launches":
            launches.run(reporter, bench)
        case "dtypes":
            check_dtypes(reporter, bench)
        case _:
            reporter.row("tests marked gpu", 85.0, partial(marked_tests, reporter))


# ---- the zoo ---------------------------------------------------------------------------------


@torch.no_grad()
def check_model(bench: Bench, reporter: Reporter, program: Program) -> dict[str, Any]:
    """Compare several calls, with other inputs of the same shapes, with float64."""
    folder = reporter.saved
    entry = entry_of(program.model)
    config = entry.presets[program.preset]
    module, first = entry.make(config, SEEDS[0])
    cases = [first, *(entry.make(config, seed)[1] for seed in SEEDS[1:])]
    wanted = [
        folder.reference(program, seed, module, case)
        for seed, case in zip(SEEDS, cases, strict=True)
    ]
    placed = [bench.place(module, case)[1] for case in cases]
    start = time.perf_counter()
    fast = saved.load(program, module, bench, folder)
    worst = 0.0
    for turn in range(1 if bench.dry_run else CALLS):
        for number, case in enumerate(placed):
            error = relative_error(on_host(fast(*case)), wanted[number][0])
            if not error <= TOLERANCE:
                raise WrongValue(f"error {error:.1e} in call {turn} of inputs {number}")
            worst = max(worst, error)
    seconds = time.perf_counter() - start
    (signature,) = fast.signatures
    executable = signature.executable
    before = executable.launches
    fast(*placed[0])
    launched = executable.launches - before
    executable.synchronize()
    if entry.one_launch and launched != 1:
        raise WrongValue(f"{launched} launches per call where one is promised; error {worst:.1e}")
    known = folder.facts(program)
    return {
        "error": worst,
        "reference": wanted[0][1],
        "load_s": signature.seconds,
        "first_calls_s": seconds,
        "launches_per_call": launched,
        "units": executable.program.units,
        "simulated_us": known.get("simulated_us"),
        "resources": known.get("resources", []),
    }


# ---- tests -----------------------------------------------------------------------------------


def marked_tests(reporter: Reporter) -> dict[str, Any]:
    """Run the tests that need a GPU; their output is written to the log."""
    files = [file for file in TESTS.rglob("test_*.py") if "pytest.mark.gpu" in file.read_text()]
    missing = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if not files or missing:
        raise Skipped(f"{missing[0]} is not installed" if missing else "there are no such tests")
    without = [f"-pno:{plugin}" for plugin in ("xdist", "timeout", "cacheprovider")]
    options = ["-m", "pytest", "-q", "--disable-warnings", "--whole", "-m", "gpu", *without]
    done = subprocess.run(
        [sys.executable, *options, *map(str, sorted(files))],
        cwd=TESTS.parent,
        env={**os.environ, "STRETTO_CACHE": str(reporter.programs)},
        capture_output=True,
        text=True,
        errors="replace",
    )
    print(done.stdout, done.stderr, file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1:] or ["it said nothing"]
    if done.returncode not in (0, NO_TESTS):
        raise WrongValue(last[0])
    return {"summary": last[0]}


# ---- kernels by dtype ------------------------------------------------------------------------

# Largest error against float64, relative to the output's largest value.
DTYPES = {
    torch.float64: 1e-12,
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
}
SHAPES = ((1, 256, 1024), (4, 512, 96), (64, 256, 128), (100, 77, 130))
DRY_SHAPES = ((1, 32, 16), (5, 7, 18))


class Layer(nn.Module):
    """A product, a row-wise softmax and pointwise functions: together they use all templates."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(inner)
        weight = torch.randn(inner, columns, generator=generator) / inner**0.5
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.matmul(x, self.weight)
        return torch.tanh(y) + torch.sigmoid(y * 0.5), torch.softmax(y, dim=-1)


def check_dtypes(reporter: Reporter, bench: Bench) -> None:
    for dtype, tolerance in DTYPES.items():
        for shape in DRY_SHAPES if bench.dry_run else SHAPES:
            name = f"dtype {str(dtype).removeprefix('torch.')} {'x'.join(map(str, shape))}"
            reporter.row(name, 30.0, partial(check_layer, bench, reporter, dtype, shape, tolerance))
    for name, function in INTEGERS.items():
        reporter.row(f"integers: {name}", 30.0, partial(check_integers, bench, reporter, function))


def functions(bench: Bench) -> Iterator[tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Yield the functions that these rows compile, with their inputs."""
    yield from (layer(dtype, shape) for dtype in DTYPES for shape in SHAPES)
    for function in INTEGERS.values():
        yield from ((function, (x,)) for x in integers(bench))


def layer(dtype: torch.dtype, shape: tuple[int, int, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    rows, inner, columns = shape
    x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(1)).to(dtype)
    return Layer(inner, columns).to(dtype), (x,)


def check_layer(
    bench: Bench,
    reporter: Reporter,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    tolerance: float,
) -> dict[str, Any]:
    module, inputs = layer(dtype, shape)
    wanted = reference_outputs(module, inputs)
    module, (x,) = bench.place(module, inputs)
    fast = _compiled(bench, reporter, module)
    with torch.no_grad():
        found = fast(x)
    if any(tensor.dtype is not dtype for tensor in found):
        raise WrongValue(f"results are {[str(tensor.dtype) for tensor in found]}")
    error = relative_error(on_host([tensor.double() for tensor in found]), wanted)
    if not error <= tolerance:
        raise WrongValue(f"error {error:.1e} is above {tolerance:.0e}")
    return {"error": error, "tolerance": tolerance}


def _compiled(bench: Bench, reporter: Reporter, function: Callable[..., Any]) -> Any:
    options = stretto.Options(cache_dir=str(reporter.programs))
    return stretto.compile(function, backend=bench.backend, options=options)


def _counts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(dim=1), x.argmax(dim=1), (x * 3 - 7) // 2


def _masks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    odd = x % 2 != 0
    return odd.any(dim=1), odd & (x > 0), torch.where(odd, x, -x).cumsum(dim=1)


INTEGERS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {"counts": _counts, "masks": _masks}


def integers(bench: Bench) -> list[Tensor]:
    size = (bench.size(33, 3), bench.size(700, 9))
    x = torch.randint(-50, 50, size, generator=torch.Generator().manual_seed(3))
    return [x, x.to(torch.int32)]


def check_integers(
    bench: Bench, reporter: Reporter, function: Callable[[Tensor], tuple[Tensor, ...]]
) -> dict[str, Any]:
    for x in integers(bench):
        found = _compiled(bench, reporter, function)(x.to(bench.device))
        for number, (one, other) in enumerate(zip(found, function(x), strict=True)):
            if one.dtype is not other.dtype or not torch.equal(one.cpu(), other):
                raise WrongValue(f"result {number} of {x.dtype} differs")
    return {}
