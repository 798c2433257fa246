"""The systems that a model is run by, each made ready in a worker of its own kind.

A *group* is what one process holds: systems that share what they prepare, and whose failures
should not touch others.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..models.lstm import LSTM
from ..peers.base import Skipped, arrays_to_numpy
from .correctness import on_host
from .device import Bench

DATA_DEPENDENT = ("seq2seq", "blockdrop", "blockdrop_policy", "skipnet", "rae")
"""Models whose host code looks at values on the GPU, which no capture records."""

XLA_GRAPHS = (
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,"
    "DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE --xla_gpu_graph_min_graph_size=1"
)

# Group: its systems, and the environment of its process.
GROUPS: dict[str, tuple[str, ...]] = {
    "stretto": ("stretto", "stretto-graph"),
    "library": ("eager", "eager-graph", "cudnn", "cudnn-graph"),
    "jax": ("jax",),
    "jax-graphs": ("jax-graphs",),
    "compile": ("compile", "compile-graph"),
    "reduce-overhead": ("compile-reduce-overhead",),
    "max-autotune": ("compile-max-autotune",),
}
UNROLLING = ("compile", "reduce-overhead", "max-autotune")
"""Groups that unroll loops over steps: by the minute, where there are many."""
NOTES = {
    "stretto-graph": "stretto's call captured and replayed",
    "eager-graph": "torch.cuda.graph of eager, by hand",
    "compile-graph": "torch.cuda.graph of the default torch.compile, by hand",
    "cudnn": "torch.nn.LSTM",
    "cudnn-graph": "torch.nn.LSTM captured and replayed, so that the host does not bound it",
    "jax-graphs": "XLA command buffers with WHILE and CONDITIONAL nodes",
}


def environment(group: str, dry_run: bool) -> dict[str, str]:
    found = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    found["JAX_PLATFORMS"] = "cpu" if dry_run else "cuda"
    if group == "jax-graphs" and not dry_run:
        found["XLA_FLAGS"] = XLA_GRAPHS
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """A model on the device, and the same on the host for those that convert its weights."""

    name: str
    config: Any
    module: nn.Module
    inputs: tuple[Tensor, ...]
    host_module: nn.Module
    host_inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A system to time. several: enqueues so many calls and waits for their results; only of a
    system whose work CUDA events of torch cannot see. details: told once it has run."""

    call: Callable[[], Any]
    outputs: Callable[[Any], list[Any]]
    note: str = ""
    several: Callable[[int], object] | None = None
    details: Callable[[], dict[str, Any]] = dict


def prepare(system: str, case: Case, bench: Bench, cache: str) -> Ready:
    """Raises Skipped for a system that does not run the model."""
    match system.removeprefix("compile-"):
        case "eager":
            return Ready(without_gradients(case.module, case.inputs), on_host)
        case "stretto":
            return own_system(compiled(case, bench, cache), case.inputs)
        case "cudnn":
            return _cudnn(case, bench)
        case "jax" | "jax-graphs":
            return _jax(case)
        case "stretto-graph" | "eager-graph" | "cudnn-graph" | "graph":
            return _graph(system, case, bench, cache)
        case mode:
            return _compile(mode, case, bench)


def without_gradients(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> Callable[[], Any]:
    @torch.no_grad()
    def call() -> Any:
        return function(*inputs)

    return call


def compiled(
    case: Case, bench: Bench, cache: str, dynamic: bool | None = None, **settings: Any
) -> Any:
    """stretto's form of a model, with these settings of its options."""
    import stretto

    options = stretto.Options(cache_dir=cache, **settings)
    return stretto.compile(case.module, backend=bench.backend, options=options, dynamic=dynamic)


def own_system(
    fast: Any, inputs: tuple[Tensor, ...], call: Callable[[], Any] | None = None
) -> Ready:
    """stretto's call of a compiled model, by default with these inputs each time."""
    call = call or without_gradients(fast, inputs)

    def details() -> dict[str, Any]:
        (entry,) = fast.signatures
        stages = entry.stages
        front = {name: s for name, s in stages.seconds.items() if name != "compile"}
        cold = sum(front.values()) + sum(kernel.seconds for kernel in stages.product.compiled)
        executable = entry.executable
        before = executable.launches
        call()
        return {
            "launches_per_call": executable.launches - before,
            "units": executable.program.units,
            "compile_cold_s": cold,
            "kernels_from_cache": [kernel.from_cache for kernel in stages.product.compiled],
            "resources": [str(kernel.resources) for kernel in stages.product.compiled],
        }

    return Ready(call, on_host, details=details)


def _compile(mode: str, case: Case, bench: Bench) -> Ready:
    if bench.dry_run:
        if mode != "compile":
            raise Skipped("a dry run has the default mode only, without code generation")
        module = torch.compile(case.module, backend="eager")
    else:
        module = torch.compile(case.module, mode="default" if mode == "compile" else mode)
    inner = without_gradients(module, case.inputs)
    if mode == "compile":
        return Ready(inner, on_host)

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # the results of the call before may go
        return inner()

    return Ready(call, on_host)


def _graph(system: str, case: Case, bench: Bench, cache: str) -> Ready:
    """A capture of another system's call, replayed."""
    of = system.removesuffix("-graph")
    if of in ("eager", "compile") and case.name in DATA_DEPENDENT:
        raise Skipped("the host looks at values in the midst of it, which a capture cannot record")
    inner = prepare(of, case, bench, cache)
    if bench.dry_run:
        return Ready(inner.call, inner.outputs, NOTES[system] + " (dry run: not captured)")
    return Ready(captured(inner.call, bench), inner.outputs, NOTES[system])


def captured(call: Callable[[], Any], bench: Bench, pool: Any = None) -> Callable[[], Any]:
    """Replays of a CUDA graph of the call, which all give the same tensors. pool: memory that the
    graph shares with others."""
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
    return Ready(without_gradients(lambda x: fused(x)[0][-1], case.inputs), on_host, NOTES["cudnn"])


def _jax(case: Case) -> Ready:
    """The programs of benchmarks/peers, on JAX's GPU backend."""
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

    flags = os.environ.get("XLA_FLAGS", "")
    details = {"platform": platform, "xla_flags": flags}
    return Ready(call, arrays_to_numpy, note, several, lambda: details)


def launches(ready: Ready, bench: Bench) -> int:
    """Kernels that one call runs on the GPU, by torch's profiler."""
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


__all__ = [
    "GROUPS",
    "Case",
    "Ready",
    "captured",
    "compiled",
    "environment",
    "launches",
    "own_system",
    "prepare",
    "without_gradients",
]
