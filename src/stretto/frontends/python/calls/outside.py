"""Python functions that return another value at each call, or act on the world outside.

A capture would call random numbers and clocks once, and every later run of the program would find
the value of that first call. So calling one is a CaptureError, and so is what writes files, puts
into queues or starts processes. What is printed, warned of or logged goes into a journal
(`effects.py`).
"""

from __future__ import annotations

import builtins
import datetime
import inspect
import io
import json
import os
import pathlib
import pickle
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch

from stretto.frontends.python.calls.effects import stream_name
from stretto.frontends.python.source.bytecode import names_read
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


_OF_FRAMES: frozenset[Any] = frozenset(
    (sys._getframe, inspect.currentframe, inspect.stack, inspect.trace)  # pyright: ignore[reportPrivateUsage]
)


def check_frames(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fails for a function that looks at the frames of the user's code, which are others while it
    is captured."""
    if _is_one_of(function, _OF_FRAMES):
        fail(
            f"'{function.__name__}' looks at frames, which are others while capturing",
            "compile with fallback=True",
        )
    if not (function is eval or function is exec) or len(args) != 1 or kwargs:
        return
    code = args[0]
    if issubclass(type(code), str):  # texts of traced numbers are refused by what is called
        try:
            code = compile(code.strip(), "<string>", function.__name__)
        except SyntaxError:
            return  # the call raises it
    if isinstance(code, CodeType) and not names_read(code).globals <= vars(builtins).keys():
        fail(
            f"{function.__name__}() is called with a text that has variables",
            "give it a dict of the variables, or write the expression itself",
        )


_OF_OS = (
    *("chdir", "chmod", "kill", "link", "makedirs", "mkdir", "popen", "putenv", "remove"),
    *("removedirs", "rename", "renames", "replace", "rmdir", "symlink", "system", "truncate"),
    *("unlink", "unsetenv", "utime", "write"),
)
_OF_PATHS = frozenset(
    (
        *("chmod", "hardlink_to", "mkdir", "rename", "replace", "rmdir", "symlink_to", "touch"),
        *("unlink", "write_bytes", "write_text"),
    )
)
_WRITERS: frozenset[Any] = frozenset(
    (
        *(torch.save, np.save, np.savez, json.dump, pickle.dump, input, time.sleep),
        *(getattr(os, name) for name in _OF_OS if hasattr(os, name)),
    )
)
"""Functions that do something which later runs would not do again."""
_DIFFERENTIATE: frozenset[Any] = frozenset((torch.autograd.grad, torch.autograd.backward))
_CUT: frozenset[Any] = frozenset((open, torch.load, np.load))
"""Functions that may be called while capturing, but are cut where statements run in Python."""
_WRITING_MODULES = frozenset(
    (
        "_queue", "_socket", "_sqlite3", "multiprocessing", "queue", "shutil", "socket", "sqlite3",
        "subprocess", "tempfile",
    )
)  # fmt: skip
_CUT_MODULES = _WRITING_MODULES | {"_csv", "_pickle", "csv", "pickle", "threading"}


def check_harmless(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Fail for a function that changes the world outside of the program, where statements may run
    in Python also for one that reads; and for gradients."""
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
    acts = _writes(function, name, args, kwargs)
    if not acts and is_cut:
        acts = _is_one_of(function, _CUT) or _uses_files(function)
    if acts:
        fail(
            f"'{name}' acts on the world outside, which a compiled program would not do again",
            "call it outside of the compiled function, or compile with fallback=True",
        )


def _writes(function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes a file, a queue or another process."""
    if function is open:
        mode = args[1] if len(args) > 1 else kwargs.get("mode")
        return isinstance(mode, str) and not {*"wax+"}.isdisjoint(mode)
    owner = getattr(function, "__self__", None)
    if function is print:
        owner, name = kwargs.get("file"), "write"
    if isinstance(owner, io.IOBase):
        is_shown = stream_name(owner) is not None
        return name.startswith("write") and not is_shown and _is_shared_file(owner)
    if isinstance(owner, pathlib.Path):
        return name in _OF_PATHS
    if isinstance(owner, threading.Thread):
        return name == "start"
    return _is_one_of(function, _WRITERS) or _is_of_module(function, _WRITING_MODULES)


def _uses_files(function: Any) -> bool:
    """Whether a call uses a file or something of a module that acts."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, io.IOBase):
        return _is_shared_file(owner)
    return _is_of_module(function, _CUT_MODULES)


def _is_shared_file(owner: Any) -> bool:
    """Whether a file is more than a text in memory that the function has made."""
    is_text = isinstance(owner, io.StringIO | io.BytesIO)
    return not is_text or tracer().heap.knows(owner)


def _is_of_module(function: Any, modules: frozenset[str]) -> bool:
    owner = getattr(function, "__self__", None)
    kind = function if owner is None or isinstance(owner, ModuleType) else type(owner)
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] in modules


def _is_one_of(function: Any, functions: frozenset[Any]) -> bool:
    try:
        return function in functions
    except TypeError:  # it has no hash
        return False
