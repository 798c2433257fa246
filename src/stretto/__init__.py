"""stretto: a compiler and runtime for dynamic neural networks written in PyTorch.

>>> import stretto
>>> fast = stretto.compile(model)
>>> y = fast(x)
>>> many = stretto.batch(model_for_one_instance)
>>> results = many(instances)
"""

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
    from stretto.api import Compiled, compile
    from stretto.batching.batched import Batched, batch
    from stretto.batching.compiled import flatten
    from stretto.batching.markers import concurrent, phase
    from stretto.extending.declare import kernel
    from stretto.machines.cuda.graphs.store import graph_memory, limit_graph_memory
    from stretto.saving.loaded import Loaded, load

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
    "flatten",
    "graph_memory",
    "kernel",
    "limit_graph_memory",
    "load",
    "phase",
]


def __getattr__(name: str) -> Any:
    """These are imported on first use: they bring torch and every stage along."""
    if name in ("compile", "Compiled"):
        from stretto import api as module

        globals()["Compiled"] = module.Compiled
        globals()["compile"] = module.compile
        return globals()[name]
    if name in ("batch", "Batched"):
        from stretto.batching import batched

        globals()["Batched"] = batched.Batched
        globals()["batch"] = batched.batch
        return globals()[name]
    if name in ("concurrent", "phase"):
        from stretto.batching import markers

        globals()[name] = getattr(markers, name)
        return globals()[name]
    if name in ("graph_memory", "limit_graph_memory"):
        from stretto.machines.cuda.graphs import store

        globals()[name] = getattr(store, name)
        return globals()[name]
    if name == "kernel":
        from stretto.extending import declare

        globals()["kernel"] = declare.kernel
        return globals()[name]
    if name == "flatten":
        from stretto.batching import compiled

        globals()["flatten"] = compiled.flatten
        return globals()[name]
    if name in ("load", "Loaded"):
        from stretto.saving import loaded

        globals()["Loaded"] = loaded.Loaded
        globals()["load"] = loaded.load
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
