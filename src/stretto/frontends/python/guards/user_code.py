"""The user's code, as opposed to the standard library, torch and other tools."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

_RUNNERS = {
    "IPython", "_pytest", "coverage", "debugpy", "execnet", "hypothesis", "ipykernel", "pluggy",
    "py", "pytest", "xdist",
}  # fmt: skip
"""Packages that run or watch programs and are not part of them. pytest gives every function with
an `assert` a name through which the whole test session can be reached."""

_TOOLS = {"torch", "sympy", "mpmath", "numpy", "stretto"}

_FOREIGN = {*sys.stdlib_module_names, *_RUNNERS, *_TOOLS} - {"__main__"}


def is_of_user(value: type | ModuleType) -> bool:
    """Return True if a class or module belongs neither to the standard library nor to torch and
    other tools."""
    name: Any = getattr(value, "__module__" if isinstance(value, type) else "__name__", None)
    if not isinstance(name, str):  # a metaclass may define a descriptor of this name
        return False
    return name.split(".")[0] not in _FOREIGN


def original(value: Any) -> Any:
    """Return the function from which stretto or torch.compile made a compiled function; any other
    object itself."""
    while True:
        kind = type(value)
        if kind.__module__ == "stretto.call.compiled" and "_function" in vars(value):
            value = vars(value)["_function"]
        elif kind is FunctionType and "_torchdynamo_orig_callable" in value.__dict__:
            value = value.__dict__["_torchdynamo_orig_callable"]
        elif kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame":
            value = vars(value)["_modules"]["_orig_mod"]
        else:
            return value
