"""Loads the worker pool (pool.cpp), of which a process has one."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

from stretto.errors import BuildError
from stretto.locks import ForkSafeLock
from stretto.options import Options
from stretto.runtime.compiler import compile_shared

# pool.cpp: struct Python, in its order.
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
"""`launch(entry, context)` runs a program's units and gives back the status of abi.h. It releases
the GIL, and raises what a signal handler or a library call raised."""

_loading = ForkSafeLock()
_loaded: list[ctypes.PyDLL] = []


def launcher(options: Options) -> Launcher:
    """The pool's launch function; the first call in a process builds and loads the pool."""
    with _loading:
        if not _loaded:
            _loaded.append(_load(options))
    # No argtypes: the arguments are c_void_p objects made once, which need no conversion.
    return _loaded[0].stretto_pool_launch


def load_library(path: Path) -> ctypes.PyDLL:
    """Loads a shared object of the cache. Raises BuildError where the system refuses."""
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"a compiled program cannot be loaded: {error}",
            remedy=f"remove {path.parent} and try again; the folder must be on a file system "
            "that allows execution",
        ) from error


def built(options: Options) -> Path:
    """The pool as a shared object of the cache that the options name; not a profiled build, so that
    all programs of a process share one pool."""
    source = Path(__file__).with_name("pool.cpp").read_text()
    return compile_shared(source, Options(cache_dir=options.cache_path())).path


def _load(options: Options) -> ctypes.PyDLL:
    library = load_library(built(options))
    library.stretto_pool_configure(python_functions(_PYTHON_FUNCTIONS))
    return library


def python_functions(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of functions of Python's C interface."""
    found = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names)
    return (ctypes.c_void_p * len(names))(*found)
