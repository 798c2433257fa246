"""How deep calls of Python may be before the stack of C ends."""

from __future__ import annotations

import ctypes
import resource
from typing import Any

_BYTES_PER_CALL = 1024
"""A call takes some 900 bytes of the stack."""
_USUAL_STACK = 8 << 20
"""Bytes, where the process has no limit."""


def depth_within_stack(wanted: int) -> int:
    """Returns how many calls of Python may be nested: the wanted number, or fewer, if more would
    end the process.

    Python calls a function of Python without a call in C, until something sets another function
    that evaluates frames, as TorchDynamo does: then each call takes of the stack of C, and before
    Python 3.12 only the recursion limit keeps calls from running over its end.
    """
    if _evaluates_frames_itself():
        return wanted
    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _USUAL_STACK if size == resource.RLIM_INFINITY else size
    return min(wanted, stack // _BYTES_PER_CALL)


def _evaluates_frames_itself() -> bool:
    """True if Python's own function evaluates the frames of this interpreter."""
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
