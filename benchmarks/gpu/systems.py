"""The systems that run a model, each prepared in a worker of its kind."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..models.lstm import LSTM
from ..peers.base import Skipped, arrays_to_numpy, tensors_to_numpy
from . import saved
from .device import Bench
from .saved import Program, Saved

DATA_DEPENDENT = ("seq2seq", "blockdrop", "blockdrop_policy", "skipnet", "rae")
"""Models whose host code reads values from the GPU, which a capture cannot record."""
NOTES = {
    "stretto-graph": "stretto's call captured and replayed",
    "eager-graph": "torch.cuda.graph of eager, by hand",
    "cudnn-graph": "torch.nn.LSTM captured and replayed, so that the host does not bound it",
}


def environment(dry_run: bool) -> dict[str, str]:
    found = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return found | {"JAX_PLATFORMS": "cpu" if dry_run else "cuda"}


@dataclass(frozen=True, slots=True)
class Case:
    """A model on the device, and the same on the host for systems that convert its weights.
    program: stretto's default one. saved: the prepared folder."""

    program: Program
    saved: Saved
    config: Any
    module: nn.Module
    inputs: tuple[Tensor, ...]
    host_module: nn.Module
    host_inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A system to time. several: enqueues this many calls and waits for their results; only for a
    system whose work torch's CUDA events cannot see. details: called after the timed runs.
    simulated_us: of a call, if the system runs a program of stretto."""

    call: Callable[[], Any]
    outputs: Callable[[Any], list[Any]]
    note: str = ""
    several: Callable[[int], object] | None = None
    details: Callable[[], dict[str, Any]] = dict
    simulated_us: float | None = None


def prepare(system: str, case: Case, bench: Bench) -> Ready:
    """Prepare a system. Raises Skipped if it does not run the model."""
    match system:
        case "eager":
            return Ready(without_gradients(case.module, case.inputs), on_host)
        case "stretto":
            return own_system(case.program, case, loaded(case, case.program, bench))
        case "cudnn":
            return _cudnn(case, bench)
        case "jax":
            return _jax(case)
        case "compile-max-autotune":
            return _autotuned(case, bench)
        case _:
            return _graph(system, case, bench)


def loaded(case: Case, program: Program, bench: Bench) -> Any:
    """Load a program of stretto for the model."""
    return saved.load(program, case.module, bench, case.saved)


def without_gradients(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> Callable[[], Any]:
    @torch.no_grad()
    def call() -> Any:
        return function(*inputs)

    return call


def own_system(
    program: Program, case: Case, fast: Any, call: Callable[[], Any] | None = None
) -> Ready:
    """Return a system that calls a loaded program of stretto, by default with the same inputs each
    time."""
    call = call or without_gradients(fast, case.inputs)

    def details() -> dict[str, Any]:
        (entry,) = fast.signatures
        executable = entry.executable
        before = executable.launches
        call()
        return {
            "launches_per_call": executable.launches - before,
            "units": executable.program.units,
            "load_s": entry.seconds,
        }

    return Ready(call, on_host, details=details, simulated_us=simulated(program, case))


def simulated(program: Program, case: Case) -> float | None:
    """Return the simulated microseconds of a call, computed at home."""
    return case.saved.facts(program).get("simulated_us")


def _autotuned(case: Case, bench: Bench) -> Ready:
    if bench.dry_run:
        raise Skipped("a dry run does not generate code")
    inner = without_gradients(torch.compile(case.module, mode="max-autotune"), case.inputs)

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # earlier results may be overwritten
        return inner()

    return Ready(call, on_host)


def _graph(system: str, case: Case, bench: Bench) -> Ready:
    """Capture another system's call, and replay it."""
    inner = system.removesuffix("-graph")
    if inner == "eager" and case.program.model in DATA_DEPENDENT:
        raise Skipped("the host looks at values in the midst of it, which a capture cannot record")
    ready = prepare(inner, case, bench)
    note = NOTES[system]
    if bench.dry_run:
        return replace(ready, note=f"{note} (dry run: not captured)", details=dict)
    return replace(ready, call=captured(ready.call, bench), note=note, details=dict)


def captured(call: Callable[[], Any], bench: Bench, pool: Any = None) -> Callable[[], Any]:
    """Capture the call as a CUDA graph; return its replay, whose results are always the same
    tensors. pool: memory shared with other graphs."""
    for _ in range(3):
        call()
    bench.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results = call()

    def replay() -> Any:
        graph.replay()
        return results

    return replay


def _cudnn(case: Case, bench: Bench) -> Ready:
    if not isinstance(case.module, LSTM):
        raise Skipped("cuDNN has no such model")
    cells = list(case.module.cells)
    hidden = cells[0].hidden_map.in_features
    fused = nn.LSTM(hidden, hidden, num_layers=len(cells)).to(bench.device).eval()
    with torch.no_grad():
        for layer, cell in enumerate(cells):
            for part, map_ in (("ih", cell.input_map), ("hh", cell.hidden_map)):
                getattr(fused, f"weight_{part}_l{layer}").copy_(map_.weight)
                getattr(fused, f"bias_{part}_l{layer}").copy_(map_.bias)
    fused.flatten_parameters()
    return Ready(without_gradients(lambda x: fused(x)[0][-1], case.inputs), on_host)


def _jax(case: Case) -> Ready:
    """Run the programs of benchmarks/peers on JAX's GPU backend."""
    if importlib.util.find_spec("jax") is None:
        raise Skipped("jax is not installed")
    import jax

    from ..peers.jax_peer import PROGRAMS

    if type(case.host_module) not in PROGRAMS:
        raise Skipped(f"no JAX program is written for {type(case.host_module).__name__}")
    try:
        platform = jax.devices()[0].platform
    except RuntimeError as error:
        raise Skipped(f"JAX finds no device: {str(error).splitlines()[0]}") from error
    jax.config.update("jax_default_matmul_precision", "highest")
    module_name, function, note = PROGRAMS[type(case.host_module)]
    programs = importlib.import_module(f"..peers.{module_name}", __package__)
    program, weights = getattr(programs, function)(case.host_module, case.config)
    inputs = [jax.numpy.asarray(tensor.numpy()) for tensor in case.host_inputs]
    jitted = jax.jit(program)

    def call() -> Any:
        return jax.block_until_ready(jitted(weights, *inputs))

    def several(count: int) -> None:
        results = [jitted(weights, *inputs) for _ in range(count)]
        jax.block_until_ready(results[-1])

    return Ready(call, arrays_to_numpy, note, several, lambda: {"platform": platform})


def on_host(value: Any) -> list[Any]:
    """Return the tensors of a result as arrays."""
    if isinstance(value, Tensor):
        return tensors_to_numpy(value.cpu())
    return [array for item in value for array in on_host(item)]


def launches(ready: Ready, bench: Bench) -> int:
    """Count the kernels that one call runs on the GPU, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU if bench.dry_run else ProfilerActivity.CUDA]
    with profile(activities=kinds) as found:
        ready.call()
        bench.synchronize()
    if bench.dry_run:
        return len(found.events() or [])
    moves = ("memcpy", "memset")
    return sum(
        1
        for event in found.events() or []
        if "CUDA" in str(event.device_type) and not event.name.lower().startswith(moves)
    )
