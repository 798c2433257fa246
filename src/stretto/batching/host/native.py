"""The native functions of a host program that was built (flatten.cpp, results.cpp)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from stretto.batching.host.python import python_api
from stretto.runtime.support import load_library

_POINTER = ctypes.c_void_p
_OBJECT = ctypes.py_object
_INT64 = ctypes.c_int64


class TableView(ctypes.Structure):
    """results.cpp: TableView."""

    _fields_ = (
        ("steps", _POINTER),
        ("step_words", _INT64),
        ("indices", _POINTER),
        ("index_count", _INT64),
        ("numbers", _POINTER),
        ("number_count", _INT64),
        ("rows", _POINTER),
        ("largest", _INT64),
        ("longest", _INT64),
    )


# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "program": (_POINTER, ()),
    "configure": (None, (_POINTER,)),
    "share_stacks": (_POINTER, (_POINTER,)),
    "kept_new": (_POINTER, ()),
    "kept_count": (_INT64, (_POINTER,)),
    "kept_delete": (None, (_POINTER,)),
    "flatten": (_POINTER, (_POINTER, _POINTER, _POINTER, _OBJECT, _INT64, _POINTER, _POINTER)),
    "copy": (_INT64, (_POINTER, _POINTER, _POINTER)),
    "copy_shared": (_INT64, (_POINTER, _OBJECT, _POINTER, _POINTER)),
    "copy_count": (_INT64, (_POINTER,)),
    "copy_at": (_OBJECT, (_POINTER, _INT64, _POINTER)),
    "flat_delete": (None, (_POINTER,)),
    "start": (_POINTER, (_POINTER,)),
    "advance": (ctypes.c_int32, (_POINTER, _POINTER, _POINTER, _OBJECT)),
    "collect": (None, (_POINTER, _POINTER)),
    "wanted": (None, (_POINTER, _INT64, _POINTER)),
    "take": (ctypes.c_int32, (_POINTER, _INT64, _POINTER, _OBJECT)),
    "results": (ctypes.c_int32, (_POINTER, _OBJECT, _OBJECT, _OBJECT, _POINTER)),
    "times": (None, (_POINTER, _POINTER)),
    "delete": (None, (_POINTER,)),
}


_stacks: int | None = None
"""The unused stacks of fibers, for all programs of this process (fibers.cpp)."""


def library_of(path: Path) -> Any:
    """The functions of a shared object `stretto_host_*`, ready to be called, and `TableView`."""
    library = load_library(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"stretto_host_{name}")
        function.restype, function.argtypes = result, arguments
    library.stretto_host_configure(python_api())
    global _stacks
    _stacks = library.stretto_host_share_stacks(_stacks)
    library.TableView = TableView  # pyright: ignore
    return library
