"""Python functions that return another value at each call: random numbers, clocks.

A capture would call them once, and every later run of the program would find the value of that
first call. So calling one is a CaptureError, like drawing a random tensor.
"""

from __future__ import annotations

import datetime
import os
import random
import secrets
import time
import uuid
from typing import Any

from stretto.frontends.python.tracing.signals import fail

_CLOCKS: frozenset[Any] = frozenset(
    getattr(time, name)
    for name in (
        *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"),
        *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime"),
        *("clock_gettime_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"),
    )
    if hasattr(time, name)
)
_RANDOM: frozenset[Any] = frozenset(
    (os.urandom, uuid.uuid1, uuid.uuid4, secrets.token_bytes, secrets.token_hex)
)
_NOW = ("now", "utcnow", "today")


def check_repeatable(function: Any) -> None:
    """Fail for a function whose next call gives another value than this one."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    is_of_numpy = type(owner).__module__.startswith("numpy.random")
    if isinstance(owner, random.Random) or is_of_numpy or _is_one_of(function, _RANDOM):
        fail(
            f"'{name}' gives another value at each call, which a compiled program would not",
            "pass the value as an argument",
        )
    is_date = isinstance(owner, type) and issubclass(owner, datetime.date) and name in _NOW
    if is_date or _is_one_of(function, _CLOCKS):
        fail(
            f"'{name}' reads a clock, which a compiled program would not do again",
            "pass the time as an argument; measure durations outside of the compiled function",
        )


def _is_one_of(function: Any, functions: frozenset[Any]) -> bool:
    try:
        return function in functions
    except TypeError:  # it has no hash
        return False
