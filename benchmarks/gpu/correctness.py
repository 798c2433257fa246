"""The part `correctness`: strict checks of everything that runs on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..harness import reference_outputs, relative_error
from ..models import CORE, ZOO
from ..peers.base import tensors_to_numpy
from . import launches, pytest_rows
from .device import TOLERANCE, Bench
from .engine import Job
from .worker import Reporter, WrongValue

DRY_MODELS = ("rae", "attention")
# What takes long to compile begins first.
FULL_ORDER = ("skipnet", "blockdrop_policy", "blockdrop", "deepspeech2", "lstm100", "lstm")


def jobs(dry_run: bool, chosen: tuple[str, ...]) -> list[Job]:
    if dry_run:
        return [Job("correctness", "dry", 120.0)]
    models = [name for name in CORE if not chosen or name in chosen]
    models.sort(key=lambda name: FULL_ORDER.index(name) if name in FULL_ORDER else 99)
    return [
        Job("correctness", "launches", 150.0),
        *(Job("correctness", f"zoo-full {name}", 185.0) for name in models),
        Job("correctness", "zoo-small", 150.0),
        Job("correctness", "dtypes", 120.0),
        Job("correctness", "pytest", 170.0),
    ]


def run(reporter: Reporter, bench: Bench) -> None:
    kind, _, model = reporter.job.partition(" ")
    models = DRY_MODELS if bench.dry_run else CORE
    chosen = [name for name in models if not reporter.chosen or name in reporter.chosen]
    match kind:
        case "zoo-small":
            check_small(reporter, bench, chosen)
        case "zoo-full":
            check = partial(check_model, bench, reporter, model, "full")
            reporter.row(f"zoo full {model}", 180.0, check)
        case "launches":
            launches.run(reporter, bench)
        case "dtypes":
            check_dtypes(reporter, bench)
        case "pytest":
            pytest_rows.run(reporter)
        case _:
            check_small(reporter, bench, chosen)
            check_dtypes(reporter, bench)
            launches.run(reporter, bench)


# ---- the zoo ---------------------------------------------------------------------------------


def check_small(reporter: Reporter, bench: Bench, chosen: list[str]) -> None:
    for name in chosen:
        check = partial(check_model, bench, reporter, name, "small")
        reporter.row(f"zoo small {name}", 60.0, check)


def check_model(bench: Bench, reporter: Reporter, name: str, preset: str) -> dict[str, Any]:
    """Several calls and other inputs of the same shapes, each against float64."""
    import stretto

    entry = ZOO[name]
    config = entry.presets[preset]
    module, inputs = entry.make(config, 0)
    cases = [inputs] if bench.dry_run else [inputs, entry.make(config, 5)[1]]
    wanted = [reference_outputs(module, case) for case in cases]
    placed = [bench.place(module, case)[1] for case in cases]
    options = stretto.Options(cache_dir=str(reporter.scratch / "programs"))
    fast = stretto.compile(module, backend=bench.backend, options=options)
    start = time.perf_counter()
    worst = 0.0
    with torch.no_grad():
        for turn in range(1 if bench.dry_run else 3):
            for number, case in enumerate(placed):
                error = relative_error(on_host(fast(*case)), wanted[number])
                if not error <= TOLERANCE:
                    raise WrongValue(f"error {error:.1e} in call {turn} of inputs {number}")
                worst = max(worst, error)
        first = time.perf_counter() - start
        (signature,) = fast.signatures
        executable = signature.executable
        before = executable.launches
        fast(*placed[0])
        launched = executable.launches - before
    synchronize = getattr(executable, "synchronize", None)
    if synchronize is not None:
        synchronize()
    values = {
        "error": worst,
        "compile_s": signature.seconds,
        "first_calls_s": first,
        "launches_per_call": launched,
        "units": executable.program.units,
        "stages_s": dict(signature.stages.seconds),
        "resources": [str(kernel.resources) for kernel in signature.stages.product.compiled],
    }
    if entry.one_launch and launched != 1:
        raise WrongValue(f"{launched} launches per call where one is promised; error {worst:.1e}")
    return values


def on_host(value: Any) -> list[Any]:
    """The tensors of a result as arrays."""
    if isinstance(value, Tensor):
        return tensors_to_numpy(value.cpu())
    return [array for item in value for array in on_host(item)]


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
    """A product, a row-wise softmax and pointwise functions: all templates."""

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
            reporter.row(name, 60.0, partial(check_layer, bench, reporter, dtype, shape, tolerance))
    for name, function in INTEGERS.items():
        reporter.row(f"integers: {name}", 60.0, partial(check_integers, bench, reporter, function))


def check_layer(
    bench: Bench,
    reporter: Reporter,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    tolerance: float,
) -> dict[str, Any]:
    import stretto

    rows, inner, columns = shape
    module = Layer(inner, columns).to(dtype)
    x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = reference_outputs(module, (x,))
    module, (x,) = bench.place(module, (x,))
    options = stretto.Options(cache_dir=str(reporter.scratch / "programs"))
    fast = stretto.compile(module, backend=bench.backend, options=options)
    with torch.no_grad():
        found = fast(x)
    if any(tensor.dtype is not dtype for tensor in found):
        raise WrongValue(f"results are {[str(tensor.dtype) for tensor in found]}")
    error = relative_error(on_host([tensor.double() for tensor in found]), wanted)
    if not error <= tolerance:
        raise WrongValue(f"error {error:.1e} is above {tolerance:.0e}")
    return {"error": error, "tolerance": tolerance}


def _counts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(dim=1), x.argmax(dim=1), (x * 3 - 7) // 2


def _masks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    odd = x % 2 != 0
    return odd.any(dim=1), odd & (x > 0), torch.where(odd, x, -x).cumsum(dim=1)


INTEGERS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {"counts": _counts, "masks": _masks}


def check_integers(
    bench: Bench, reporter: Reporter, function: Callable[[Tensor], tuple[Tensor, ...]]
) -> dict[str, Any]:
    import stretto

    generator = torch.Generator().manual_seed(3)
    options = stretto.Options(cache_dir=str(reporter.scratch / "programs"))
    for dtype in (torch.int64, torch.int32):
        size = (bench.size(33, 3), bench.size(700, 9))
        x = torch.randint(-50, 50, size, generator=generator).to(dtype)
        fast = stretto.compile(function, backend=bench.backend, options=options)
        found = fast(x.to(bench.device))
        for number, (one, other) in enumerate(zip(found, function(x), strict=True)):
            if one.dtype is not other.dtype or not torch.equal(one.cpu(), other):
                raise WrongValue(f"result {number} of {dtype} differs")
    return {}
