"""stretto: a compiler and runtime for dynamic neural networks written in PyTorch.

>>> import stretto
>>> fast = stretto.compile(model)
>>> y = fast(x)
>>> many = stretto.batch(model_for_one_instance)
>>> results = many(instances)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stretto.errors import (
    BuildError,
    CaptureError,
    CodegenError,
    InternalError,
    LoadError,
    NotCaptured,
    PassError,
    RunError,
    SaveError,
    ScheduleError,
    StreamClosed,
    StreamFull,
    StrettoError,
    StrettoWarning,
    VerifyError,
)
from stretto.options import Debug, Options

if TYPE_CHECKING:
    from stretto.batching.batched import Batched, batch
    from stretto.batching.compiled import flatten
    from stretto.batching.markers import concurrent, phase
    from stretto.call import dynamo
    from stretto.call.compiled import Compiled, compile
    from stretto.call.loaded import Loaded, load
    from stretto.extending.declare import kernel
    from stretto.machines.cuda.graphs.store import graph_memory, limit_graph_memory

__version__ = "0.1.0"

__all__ = [
    "Batched",
    "BuildError",
    "CaptureError",
    "CodegenError",
    "Compiled",
    "Debug",
    "InternalError",
    "LoadError",
    "Loaded",
    "NotCaptured",
    "Options",
    "PassError",
    "RunError",
    "SaveError",
    "ScheduleError",
    "StreamClosed",
    "StreamFull",
    "StrettoError",
    "StrettoWarning",
    "VerifyError",
    "batch",
    "compile",
    "concurrent",
    "dynamo",
    "flatten",
    "graph_memory",
    "kernel",
    "limit_graph_memory",
    "load",
    "phase",
]


_MODULES = {
    "Batched": "batching.batched",
    "Compiled": "call.compiled",
    "Loaded": "call.loaded",
    "batch": "batching.batched",
    "compile": "call.compiled",
    "concurrent": "batching.markers",
    "flatten": "batching.compiled",
    "graph_memory": "machines.cuda.graphs.store",
    "kernel": "extending.declare",
    "limit_graph_memory": "machines.cuda.graphs.store",
    "load": "call.loaded",
    "phase": "batching.markers",
}
"""Modules of the names that are imported on first use: they import torch and every stage."""


def __getattr__(name: str) -> Any:
    """Import a name of the package on its first use."""
    if name == "dynamo":
        return import_module("stretto.call.dynamo")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"stretto.{_MODULES[name]}"), name)
    return value
