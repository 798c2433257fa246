"""Limit on the nesting of Python calls before the C stack overflows."""

from __future__ import annotations

import ctypes
import resource
from typing import Any

_BYTES_PER_CALL = 1024
"""A call takes about 900 bytes of the stack; rounded up."""
_USUAL_STACK = 8 << 20
"""Bytes to assume if the stack of the process has no limit."""


def depth_within_stack(wanted: int) -> int:
    """Return the number of Python calls that may be nested: `wanted`, or fewer if that many
    would end the process.

    Python runs a call of a Python function without a nested C call, unless another frame
    evaluation function is installed, as TorchDynamo does: then each call uses the C stack,
    and before Python 3.12 only the recursion limit keeps calls from overflowing it.
    """
    if _evaluates_frames_itself():
        return wanted
    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _USUAL_STACK if size == resource.RLIM_INFINITY else size
    return min(wanted, stack // _BYTES_PER_CALL)


def _evaluates_frames_itself() -> bool:
    """Return True if Python's own function evaluates the frames of this interpreter."""
    python: Any = ctypes.pythonapi
    try:
        current = python._PyInterpreterState_GetEvalFrameFunc
        default = python._PyEval_EvalFrameDefault
        interpreter = python.PyInterpreterState_Get
    except AttributeError:  # a Python that does not show it
        return True
    current.argtypes, current.restype = [ctypes.c_void_p], ctypes.c_void_p
    interpreter.argtypes, interpreter.restype = [], ctypes.c_void_p
    return current(interpreter()) == ctypes.cast(default, ctypes.c_void_p).value
