"""Python functions that return another value at each call, or act on the world outside.

A capture would call random numbers and clocks once, and every later run of the program would find
the value of that first call. So calling one is a CaptureError. What is printed, logged or written
to a file would be so while capturing only; where statements may run in Python (`fallback=True`),
those that do so run there, and files of tensors cannot be written from a capture at all.
"""

from __future__ import annotations

import datetime
import io
import json
import logging
import os
import random
import secrets
import time
import uuid
from types import ModuleType
from typing import Any

import numpy as np
import torch

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import Surroundings, tracer

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


_WRITERS: frozenset[Any] = frozenset((torch.save, np.save, np.savez))
_DIFFERENTIATE: frozenset[Any] = frozenset((torch.autograd.grad, torch.autograd.backward))
_ACTORS: frozenset[Any] = frozenset(
    (print, open, input, time.sleep, json.dump, torch.load, np.load)
)
_LOGS = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "warn": logging.WARNING, "error": logging.ERROR, "exception": logging.ERROR,
    "critical": logging.CRITICAL, "log": None,
}  # fmt: skip
_ACTING_MODULES = frozenset(
    (
        "_csv", "_pickle", "_queue", "_socket", "_sqlite3", "csv", "multiprocessing", "pickle",
        "queue", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "threading",
    )
)  # fmt: skip


def check_harmless(function: Any, args: tuple[Any, ...]) -> None:
    """Fail for a function that acts on the world outside of the program, where statements may run
    in Python; for one that writes tensors to a file; and for gradients."""
    name = getattr(function, "__name__", type(function).__name__)
    is_cut = tracer().surroundings is not Surroundings.COMPILED
    owner = getattr(function, "__self__", None)
    of_tensor = isinstance(owner, torch.Tensor)
    if (
        _is_one_of(function, _DIFFERENTIATE)
        or (of_tensor and name == "backward")
        or (of_tensor and is_cut and name == "requires_grad_" and torch.is_grad_enabled())
    ):
        fail(
            f"'{name}' is about gradients, which programs do not compute",
            "use torch.func.grad, or call it outside of the compiled function",
        )
    acts = _is_one_of(function, _WRITERS)
    if not acts and is_cut:
        acts = _is_one_of(function, _ACTORS) or _acts(function, name, args)
    if acts:
        fail(
            f"'{name}' acts on the world outside, which a compiled program would not do again",
            "call it outside of the compiled function",
        )


def _acts(function: Any, name: str, args: tuple[Any, ...]) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, logging.Logger):
        level = _LOGS.get(name, logging.NOTSET)
        if level is None and args:
            level = args[0]
        return name in _LOGS and (not isinstance(level, int) or owner.isEnabledFor(level))
    if isinstance(owner, io.IOBase):
        is_text = isinstance(owner, io.StringIO | io.BytesIO)
        return not is_text or tracer().heap.knows(owner)
    kind = function if owner is None or isinstance(owner, ModuleType) else type(owner)
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] in _ACTING_MODULES


def _is_one_of(function: Any, functions: frozenset[Any]) -> bool:
    try:
        return function in functions
    except TypeError:  # it has no hash
        return False
