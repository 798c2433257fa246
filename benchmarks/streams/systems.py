"""The systems that run a stream: each prepares a module once and is then called with any size."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..peers.base import Skipped, tensors_to_numpy
from ..peers.onnxruntime_peer import exported, session_of
from .models import Stream

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Running:
    """A prepared system. call: takes the inputs of one call. compilations: their number so far;
    None if the system does not report it. outputs: the results of a call, as arrays."""

    call: Call
    compilations: Callable[[], int | None]
    outputs: Callable[[Any], list[Any]] = tensors_to_numpy


def eager(stream: Stream, module: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Running:
    return Running(module, lambda: 0)


def compiled(
    stream: Stream, module: nn.Module, inputs: tuple[Tensor, ...], threads: int
) -> Running:
    """torch.compile(dynamic=True), in an empty cache folder."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    fresh_cache().__enter__()  # never left: the process runs this system only
    torch._dynamo.config.allow_rnn = True
    return Running(torch.compile(module, dynamic=True), lambda: counters["stats"]["unique_graphs"])


def stretto(stream: Stream, module: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Running:
    import stretto

    folder = tempfile.mkdtemp(prefix="stretto-bench-")
    options = stretto.Options(threads=threads, cache_dir=folder)
    fast = stretto.compile(module, backend="cpu", options=options)
    return Running(fast, lambda: sum(entry.builds for entry in fast.signatures))


def onnxruntime(
    stream: Stream, module: nn.Module, inputs: tuple[Tensor, ...], threads: int
) -> Running:
    """A model exported by torch.onnx, with dynamic axes."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed (pip install 'stretto[bench]')")
    session = session_of(exported(module, inputs, stream.dynamic), threads)
    names = [declared.name for declared in session.get_inputs()]

    def call(*tensors: Tensor) -> Any:
        feeds = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        return session.run(None, feeds)

    return Running(call, lambda: 1, list)


def padded_jax(
    stream: Stream, module: nn.Module, inputs: tuple[Tensor, ...], threads: int
) -> Running:
    """JAX, whose programs have fixed sizes: a program for each power of two."""
    if importlib.util.find_spec("jax") is None:
        raise Skipped("jax is not installed (pip install 'stretto[bench]')")
    from .jax_systems import prepared

    call, compilations = prepared(stream.name, module)
    return Running(call, compilations, list)


Prepare = Callable[[Stream, nn.Module, tuple[Tensor, ...], int], Running]
SYSTEMS: Mapping[str, Prepare] = {
    "eager": eager,
    "compile": compiled,
    "onnxruntime": onnxruntime,
    "jax": padded_jax,
    "stretto": stretto,
}
