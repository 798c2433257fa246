"""Loader of the worker pool (pool.cpp); a process has one pool."""

import ctypes
from collections.abc import Callable
from pathlib import Path

from stretto.options import Options
from stretto.runtime.compiler import NativeLibrary, python_functions

HEADERS = Path(__file__).with_name("include")
"""Folder of the headers that the pool and printed programs include."""

# The order must be that of `struct Python` in pool.cpp.
_PYTHON_FUNCTIONS = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_CheckSignals",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyObject_CallFunction",
    "Py_DecRef",
)

Launcher = Callable[[ctypes.c_void_p, ctypes.c_void_p], int]
"""`launch(entry, context)` runs a program's units and returns a status of abi.h. It releases the
GIL, and raises what a signal handler or a library call raised."""

Herald = Callable[[int], object]
"""`expect(units)` announces a launch: threads that sleep wake up, and stay awake for a while."""


def _prepare(library: ctypes.PyDLL) -> None:
    library.stretto_pool_configure(python_functions(_PYTHON_FUNCTIONS))


SUPPORT = NativeLibrary(Path(__file__).with_name("pool.cpp"), _prepare, HEADERS)
built, load = SUPPORT.built, SUPPORT.load


def launcher(options: Options) -> tuple[Launcher, Herald]:
    """Return the pool's launch function, and the one that announces a launch. The first call in a
    process builds and loads the pool."""
    # Without argtypes, because the arguments are prebuilt c_void_p objects that need no conversion.
    library = load(options)
    return library.stretto_pool_launch, library.stretto_pool_expect
