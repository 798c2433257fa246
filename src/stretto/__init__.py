"""stretto: a compiler and runtime for dynamic neural networks written in PyTorch.

>>> import stretto
>>> fast = stretto.compile(model)
>>> y = fast(x)
"""

from typing import TYPE_CHECKING, Any

from stretto.errors import (
    BuildError,
    CaptureError,
    CodegenError,
    PassError,
    RunError,
    ScheduleError,
    StrettoError,
    StrettoWarning,
    VerifyError,
)
from stretto.options import Options

if TYPE_CHECKING:
    from stretto.api import Compiled, compile

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "CaptureError",
    "CodegenError",
    "Compiled",
    "Options",
    "PassError",
    "RunError",
    "ScheduleError",
    "StrettoError",
    "StrettoWarning",
    "VerifyError",
    "compile",
]


def __getattr__(name: str) -> Any:
    """`compile` is imported on first use: it brings torch and every stage along."""
    if name in ("compile", "Compiled"):
        from stretto import api as module

        globals()["Compiled"] = module.Compiled
        globals()["compile"] = module.compile
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
