"""Calls with special rules: autograd functions, single dispatch, dicts with missing entries, and
refused functions."""

from __future__ import annotations

import builtins
import datetime
import functools
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
from collections.abc import Callable, Mapping
from types import CodeType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.autograd.function import Function, FunctionCtx

from stretto.frontends.python.calls.output_journal import stream_name
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import Caller, tracer

# ---- `torch.autograd.Function`: its `forward` is traced like any other user function.
#
# Programs compute no gradients, so values saved for `backward` are dropped. As in eager PyTorch,
# `forward` runs without grad mode, and a returned argument that is not marked as dirty becomes a
# view of itself.


Traced = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""A function that traces a call."""

_APPLY: Any = Function.apply.__func__  # pyright: ignore[reportFunctionMemberAccess, reportUnknownMemberType]
_NO_SETUP: Any = Function.setup_context


def applied(function: Any) -> type[Function] | None:
    """Return the autograd.Function class if `function` is its `apply`; else None."""
    if not isinstance(function, MethodType) or function.__func__ is not _APPLY:
        return None
    owner: Any = function.__self__
    return owner


def apply(
    kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traced: Traced, context: Any
) -> Any:
    """Return the result of `kind.apply(*args, **kwargs)`. context: a new `AutogradContext`."""
    has_setup = kind.setup_context is not _NO_SETUP
    if has_setup:
        bound = inspect.signature(kind.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        fail(
            f"the apply of {kind.__name__}, an autograd.Function, is given keyword arguments",
            "pass them by position",
        )
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    for tensor in tensors:
        tracer().gradients.read(tensor)
    traced(setattr, (context, "needs_input_grad", (False,) * len(args)), {})
    with torch.no_grad():
        if has_setup:
            result = traced(kind.forward, args, {})
            traced(kind.setup_context, (context, args, result), {})
        else:
            result = traced(kind.forward, (context, *args), {})
        dirty = traced(getattr, (context, "dirty_tensors"), {})
        return _wrapped(result, tensors, dirty)


class AutogradContext(FunctionCtx):
    """The `ctx` argument of `forward` and `setup_context`."""

    dirty_tensors: tuple[Any, ...] = ()


def _wrapped(result: Any, tensors: list[torch.Tensor], dirty: tuple[Any, ...]) -> Any:
    outputs: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
    if not all(_is_among(tensor, outputs) for tensor in dirty):
        fail(
            "a tensor is marked as dirty in the forward of an autograd.Function, and not returned",
            "return the tensors that are changed in place",
        )
    given = [tensor for tensor in tensors if not _is_among(tensor, dirty)]
    outputs = tuple([x.view_as(x) if _is_among(x, given) else x for x in outputs])
    return outputs if isinstance(result, tuple) else outputs[0]


def _is_among(value: Any, others: Any) -> bool:
    return any(value is other for other in others)


# ---- `functools.singledispatch`: dispatches on the class of an argument; a traced number has its
# eager class.


@functools.singledispatch
def _function(value: object) -> None: ...


class _Holder:
    @functools.singledispatchmethod
    def method(self, value: object) -> None: ...


_OF_FUNCTIONS = _function.__code__  # type: ignore[attr-defined]
_OF_METHODS = getattr(_Holder().method, "__code__", None)


def dispatches_by(code: CodeType) -> Any:
    """Return the decorator whose wrapper has this code, if it chooses a function by the class of an
    argument; else None."""
    known = {_OF_FUNCTIONS: functools.singledispatch, _OF_METHODS: functools.singledispatchmethod}
    return known.get(code)


# ---- Python functions that return another value at each call, or act on the outside world.
#
# A capture would call a random generator or a clock once, and every later run would reuse that
# value. So calling one is a CaptureError, as is writing files, using queues or starting processes.
# Printing, warnings and logs are journalled (`effects.py`).


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
    """Fail for a function whose next call returns another value."""
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
    """Fail for a function that inspects the frames of the user's code, which differ during a
    capture."""
    if _is_one_of(function, _OF_FRAMES):
        fail(
            f"'{function.__name__}' looks at frames, which differ while capturing",
            "compile with fallback=True",
        )
    if not (function is eval or function is exec) or len(args) != 1 or kwargs:
        return
    code = args[0]
    if issubclass(type(code), str):  # eval and exec themselves refuse texts of traced numbers
        try:
            code = compile(code.strip(), "<string>", function.__name__)
        except SyntaxError:
            return  # the call raises it
    if isinstance(code, CodeType) and not names_read(code).globals <= vars(builtins).keys():
        fail(
            f"{function.__name__}() is called with a text that uses variables",
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
"""Functions with an outside effect that later runs would not repeat."""
_DIFFERENTIATE: frozenset[Any] = frozenset((torch.autograd.grad, torch.autograd.backward))
_CUT: frozenset[Any] = frozenset((open, torch.load, np.load))
"""Functions allowed in a fully compiled function, but run in Python where statements may be cut
out."""
_WRITING_MODULES = frozenset(
    (
        "_queue", "_socket", "_sqlite3", "multiprocessing", "queue", "shutil", "socket", "sqlite3",
        "subprocess", "tempfile",
    )
)  # fmt: skip
_CUT_MODULES = _WRITING_MODULES | {"_csv", "_pickle", "csv", "pickle", "threading"}


def check_harmless(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Fail for a function that changes the outside world, or that computes gradients. Where
    statements may run in Python, also for one that only reads files."""
    name = getattr(function, "__name__", type(function).__name__)
    is_cut = tracer().surroundings is not Caller.COMPILED
    owner = getattr(function, "__self__", None)
    of_tensor = isinstance(owner, torch.Tensor)
    if (
        _is_one_of(function, _DIFFERENTIATE)
        or (of_tensor and name == "backward")
        or (of_tensor and is_cut and name == "requires_grad_" and torch.is_grad_enabled())
    ):
        fail(
            f"'{name}' needs gradients, which programs do not compute",
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
    """Return True if a call changes a file, a queue or another process."""
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
    """Return True if a call uses a file, or a module with outside effects."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, io.IOBase):
        return _is_shared_file(owner)
    return _is_of_module(function, _CUT_MODULES)


def _is_shared_file(owner: Any) -> bool:
    """Return True unless the file is an in-memory buffer that the function has made."""
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


# ---- Entries of dicts that may be missing at run time: one arm of a traced branch added them.
#
# Such an entry is an Either with UNDEFINED among its options. Code that reads a single entry, or
# passes it as a keyword argument, gets a default in place of UNDEFINED.
