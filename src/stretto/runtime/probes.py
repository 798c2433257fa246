"""Native probes of Python's containers (probes.cpp), for the guards of programs on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stretto.options import Options
from stretto.runtime.compiler import NativeLibrary, python_functions

# In the order of `struct Python` in probes.cpp.
_PYTHON_FUNCTIONS = (
    "PyDict_GetItemWithError",
    "PyDict_Next",
    "PyDict_Size",
    "PyList_GetItem",
    "PyList_Size",
    "PySet_Size",
    "PyObject_Type",
    "Py_DecRef",
    "PyErr_Clear",
)


NOT_LOOKED_FOR = -1
"""Place of an entry in its dict before the first search."""


class ProbeTable:
    """ComparedRows, laid out for native code. A call returns True if all of them find the expected
    objects.

    rows: kind, subject, key, expected, as in probes.cpp. kept: the objects whose addresses are
    in the rows, to keep them alive.
    """

    def __init__(
        self, library: ctypes.PyDLL, rows: Sequence[tuple[int, int, int, int]], kept: list[object]
    ) -> None:
        self._kept = kept
        self._hold = library.stretto_probes_hold
        numbers = [number for row in rows for number in (*row, NOT_LOOKED_FOR)]
        self._rows = (ctypes.c_int64 * len(numbers))(*numbers)
        self._count = ctypes.c_int64(len(rows))

    def __call__(self) -> bool:
        return self._hold(self._rows, self._count) != 0


def _prepare(library: ctypes.PyDLL) -> None:
    # stretto_probes_hold has no argtypes, as its arguments need no conversion.
    library.stretto_probes_configure(python_functions(_PYTHON_FUNCTIONS))


SUPPORT = NativeLibrary(Path(__file__).with_name("probes.cpp"), _prepare)
built, load = SUPPORT.built, SUPPORT.load


class ComparedRows(Protocol):
    """ComparedRows that have been collected; see `ProbeTable`."""

    rows: list[tuple[int, int, int, int]]
    kept: list[object]


def native_check(options: Options) -> Callable[[ComparedRows], ProbeTable]:
    """Return the function that turns probes into one native check. Raises BuildError if the native
    code cannot be built."""
    library = load(options)
    return lambda found: ProbeTable(library, found.rows, found.kept)
