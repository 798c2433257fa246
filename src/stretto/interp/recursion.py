"""The recursion limit of Python, raised while a Program runs: its calls are many in Python."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from stretto.locks import ForkSafeLock
from stretto.stack import depth_within_stack

_PYTHON_CALLS_PER_CALL = 40
"""More than a call nested in several ifs and loops needs."""


@dataclass
class _Raised:
    """How many runs need a raised limit now, and the limit before the first of them."""

    runs: int = 0
    before: int = 0


_raised = _Raised()
_lock = ForkSafeLock()


@contextmanager
def deep_recursion(depth: int) -> Generator[None]:
    """Leaves room for Programs that call `depth` deep. Runs in several threads may overlap."""
    with _lock:
        if _raised.runs == 0:
            _raised.before = sys.getrecursionlimit()
        _raised.runs += 1
        needed = depth_within_stack(_raised.before + depth * _PYTHON_CALLS_PER_CALL)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed))
    try:
        yield
    finally:
        with _lock:
            _raised.runs -= 1
            if _raised.runs == 0:
                sys.setrecursionlimit(_raised.before)
