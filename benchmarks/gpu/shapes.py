"""The stage `shapes`: memory of graphs for several shapes: stretto's one for all, torch's one
for each.

Each model and system runs in a separate process. It measures after the first shape, and
again after 4, 16 and 64, relative to the GPU's memory before any call. Shapes come largest
first, since later graphs can then use the memory of earlier ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..harness import reference_outputs, relative_error
from ..models.real import MissingPackage
from ..peers.base import Skipped
from .device import TOLERANCE, Bench
from .engine import Job, Settings, run_jobs
from .results import Keep, WrongValue
from .saved import Program, Saved, entry_of, load
from .systems import captured, on_host, without_gradients
from .worker import Reporter

if TYPE_CHECKING:
    from stretto.machines.cuda.graphs.kept import GraphCounts

SYSTEMS = ("stretto", "graph-each", "graph-each-one-pool")
"""One dynamic program in a captured graph; torch.cuda.graph of eager for each shape, with separate
memory, or from a pool that all of them share."""
SETTINGS = (("enqueue", "graph"), ("launches", "per_kernel"))
COUNTS, DRY_COUNTS = (1, 4, 16, 64), (1, 4)
ROW_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Dimension:
    """The dim in which the shapes of a model differ, the same for all inputs; `most` is its
    largest size."""

    dim: int
    most: int

    def sizes(self, count: int) -> list[int]:
        """Return `count` evenly spaced sizes, the largest first."""
        return [self.most - number * (self.most // count) for number in range(count)]


MODELS = {"deepfm": Dimension(0, 64), "bert_base": Dimension(1, 128)}
"""Number of instances; number of words of a text."""
DRY_MODELS = {"deepfm": Dimension(0, 4)}


def jobs(settings: Settings) -> list[Job]:
    """Return the jobs; in a dry run only stretto's, since it captures no CUDA graph."""
    return [
        Job("shapes", f"{model} {system}", 4 * ROW_LIMIT_S)
        for model in (DRY_MODELS if settings.dry_run else MODELS)
        if not settings.chosen or model in settings.chosen
        for system in (SYSTEMS[:1] if settings.dry_run else SYSTEMS)
    ]


def drive(settings: Settings, record: Keep, end: float) -> None:
    """Run the stage with one worker: others would use memory of the GPU meanwhile."""
    run_jobs(jobs(settings), settings, record, end, 1)


def row_name(model: str, system: str, count: int) -> str:
    return f"{model} memory {system}, {count} shape{'s' if count > 1 else ''}"


def run(reporter: Reporter, bench: Bench) -> None:
    """Measure, in a worker."""
    model, _, system = reporter.job.partition(" ")
    held: list[Held] = []

    def measure(count: int) -> dict[str, Any]:
        if not held:
            held.append(hold(model, system, bench, reporter.saved))
        return held[0].up_to(count)

    for count in DRY_COUNTS if bench.dry_run else COUNTS:
        reporter.row(row_name(model, system, count), ROW_LIMIT_S, partial(measure, count))


@dataclass(slots=True)
class Held:
    """A model, and the calls for its shapes so far.

    add: prepares inputs of one more shape, given on the host, and returns the call.
    fast: stretto's compiled function, None for graphs of eager. before: `memory` before
    any call.
    """

    bench: Bench
    module: nn.Module
    inputs: list[tuple[Tensor, ...]]
    add: Callable[[tuple[Tensor, ...]], Callable[[], Any]]
    fast: Any
    before: dict[str, int]
    calls: list[Callable[[], Any]] = field(default_factory=list[Callable[[], Any]])

    def up_to(self, count: int) -> dict[str, Any]:
        """Add shapes until there are `count`. Return the bytes of the GPU used since before the
        first call, by the driver and by torch's allocator, and the graphs. Raises WrongValue if
        the first or the last shape has a wrong result."""
        for inputs in self.inputs[len(self.calls) : count]:
            self.calls.append(self.add(inputs))
        found = memory(self.bench)
        values: dict[str, Any] = {"shapes": count}
        values |= {name: found[name] - self.before[name] for name in found}
        values |= {"graphs": count} if self.fast is None else graphs_of(self.fast)
        values["error"] = max(self._error(number) for number in {0, count - 1})
        if not values["error"] <= TOLERANCE:
            raise WrongValue(f"error {values['error']:.1e}")
        return values

    def _error(self, number: int) -> float:
        """Return the error of a shape. The reference is computed on the host, to use no memory of
        the GPU."""
        reference = reference_outputs(self.module, self.inputs[number])
        return relative_error(on_host(self.calls[number]()), reference)


def hold(model: str, system: str, bench: Bench, saved: Saved) -> Held:
    """Load a model and its shapes. Raises Skipped if a package of the model is missing."""
    preset = "small" if bench.dry_run else "full"
    config = entry_of(model).presets[preset]
    try:
        module, inputs = entry_of(model).make(config, 0)
        placed, _ = entry_of(model).make(config, 0)
    except MissingPackage as error:
        raise Skipped(str(error)) from error
    dimension = (DRY_MODELS if bench.dry_run else MODELS)[model]
    shaped = [
        tuple(resized(tensor, dimension.dim, size) for tensor in inputs)
        for size in dimension.sizes((DRY_COUNTS if bench.dry_run else COUNTS)[-1])
    ]
    placed, _ = bench.place(placed, ())
    before = memory(bench)
    if system == "stretto":
        program = Program(model, preset, "dynamic", SETTINGS, dynamic=True)
        fast = load(program, placed, bench, saved)
        return Held(bench, module, shaped, partial(_dynamic, fast, bench), fast, before)
    pool = None if system == "graph-each" else torch.cuda.graph_pool_handle()
    add = partial(_captured, placed, bench, pool)
    return Held(bench, module, shaped, add, None, before)


def resized(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Return the tensor with `size` elements along a dim, repeating its own."""
    return tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])


def _dynamic(fast: Any, bench: Bench, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Return a call that moves its inputs to the device each time and does not hold them."""

    @torch.no_grad()
    def call() -> Any:
        return fast(*(tensor.to(bench.device) for tensor in inputs))

    call()
    return call


def _captured(
    module: nn.Module, bench: Bench, pool: Any, inputs: tuple[Tensor, ...]
) -> Callable[[], Any]:
    """Return a call that replays a graph of this shape, which holds its inputs."""
    placed = tuple(tensor.to(bench.device) for tensor in inputs)
    return captured(without_gradients(module, placed), bench, pool)


def memory(bench: Bench) -> dict[str, int]:
    """Return the bytes of the GPU in use. driver_bytes: by all processes; the others are torch's
    in this process, without unused cached memory. Empty in a dry run: there is no GPU."""
    if bench.dry_run:
        return {}
    gc.collect()
    bench.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(bench.device)
    return {
        "driver_bytes": total - free,
        "allocated_bytes": torch.cuda.memory_allocated(bench.device),
        "reserved_bytes": torch.cuda.memory_reserved(bench.device),
    }


def counts_of(fast: Any) -> list[GraphCounts]:
    """Return the counts of each captured program of a compiled function."""
    from stretto.machines.cuda.graphs.graph_executable import GraphExecutable

    found = (entry.executable for entry in fast.signatures)
    return [one.counts for one in found if isinstance(one, GraphExecutable)]


def graphs_of(fast: Any) -> dict[str, int]:
    """Return numbers of graphs. graphs: those that exist; made: all so far; patched: launches
    whose arguments changed."""
    from stretto.machines.cuda.graphs.graph_executable import GraphExecutable

    found = (entry.executable for entry in fast.signatures)
    counts = counts_of(fast)
    return {
        "programs": len(fast.signatures),
        "graphs": sum(one.graph_count for one in found if isinstance(one, GraphExecutable)),
        "made": sum(one.made for one in counts),
        "patched": sum(one.patched for one in counts),
    }
