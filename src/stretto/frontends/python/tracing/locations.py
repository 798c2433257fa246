"""Which line of the user's source is being traced."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Generator
from contextlib import contextmanager
from cProfile import Profile
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mpmath
import sympy
import torch
import torch.fx

from stretto.errors import SourceLocation

_STRETTO = str(Path(__file__).parents[3]) + os.sep
_ITERATORS = _STRETTO + os.path.join("frontends", "python", "lists", "iterators.py")
_PROGRAMS = (
    _STRETTO + "_zoo",
    _STRETTO + os.path.join("tools", "calibration_probes.py"),
    _ITERATORS,
)
"""What the package has of programs that it compiles itself."""
_TORCH = str(Path(torch.__file__).parent) + os.sep
_SIZES = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (sympy, mpmath))
"""What torch computes sizes with that are not known yet: the tracer itself calls it."""
_DISTRIBUTIONS = _TORCH + "distributions" + os.sep
_STDLIB = sysconfig.get_path("stdlib")
_SITE = ("site-packages", "dist-packages")


class _Mark(threading.local):
    """The statement of a segment that is being captured. None: none was reached yet. blamed: those
    that made what cannot leave the segment."""

    def __init__(self) -> None:
        self.statement: int | None = None
        self.blamed: frozenset[int] = frozenset()

    def clear(self) -> None:
        self.statement, self.blamed = None, frozenset()


MARK = _Mark()


@cache
def package_of(value: Any) -> str:
    """The package that a class or function says it is of. What `exec` defines may say None."""
    return str(value.__module__).split(".")[0]


def is_user_file(filename: str) -> bool:
    """Whether code of this file is the user's (not torch, what torch computes sizes
    with, stretto or the standard library).
    torch.distributions counts as the user's: it branches on the values of tensors."""
    if filename.startswith(("<frozen", "<string>", "<attrs")):
        return False
    if filename.startswith((_STRETTO, _TORCH, *_SIZES)):
        return filename.startswith((*_PROGRAMS, _DISTRIBUTIONS))
    in_stdlib = filename.startswith(_STDLIB)
    return not in_stdlib or any(part in filename for part in _SITE)


def user_frame() -> FrameType | None:
    """The innermost frame of user code."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not _is_shown(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


_local = threading.local()


@contextmanager
def at(place: SourceLocation | None) -> Generator[None]:
    """What is traced inside was written at `place`, whatever frames there are. None: as before."""
    before = getattr(_local, "place", None)
    _local.place = place or before
    try:
        yield
    finally:
        _local.place = before


@contextmanager
def in_module(path: str) -> Generator[None]:
    """What is traced inside is computed by the module of this path; empty for the outermost one."""
    before = current_module()
    _local.module = path
    try:
        yield
    finally:
        _local.module = before


def current_module() -> str:
    """The path of the module whose `forward` is being traced; empty outside of modules."""
    return getattr(_local, "module", "")


@cache
def _is_shown(filename: str) -> bool:
    """Whether an error names a line of this file."""
    return is_user_file(filename) and not filename.startswith((_TORCH, _ITERATORS))


def user_location() -> SourceLocation | None:
    """Where the innermost user frame is, with columns, or the place that `at` has given."""
    place, module = _user_place(), current_module()
    return replace(place, module=module) if place is not None and module else place


def _user_place() -> SourceLocation | None:
    known: SourceLocation | None = getattr(_local, "place", None)
    if known is not None:
        return known
    frame = user_frame()
    if frame is None:
        return None
    lines = _graphs.get(frame.f_code.co_filename, {})
    found = lines.get(frame.f_lineno - frame.f_code.co_firstlineno)
    return found or located(frame.f_code, frame.f_lasti)


_graphs: dict[str, dict[int, SourceLocation]] = {}
"""For the code that torch has generated for a graph, by file name: the user's lines that its own
lines come from."""


def enter_graph(module: torch.fx.GraphModule) -> None:
    """From now on errors in the code of a graph name the lines that its nodes come from."""
    code = type(module).forward.__code__
    if code.co_filename in _graphs:
        return
    places = [place_of_trace(node.stack_trace) for node in module.graph.nodes]
    numbers: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    found = {line: places[number] for line, number in numbers.items() if number is not None}
    _graphs[code.co_filename] = {line: place for line, place in found.items() if place is not None}


def place_of_trace(trace: str | None) -> SourceLocation | None:
    """The innermost line of a stack trace, as nodes of graphs have it."""
    frames = _FRAME.findall(trace or "")
    if not frames:
        return None
    file, line, function = frames[-1]
    return SourceLocation(file, int(line), function=function)


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def code_key(code: CodeType) -> tuple[CodeType, str]:
    """What tells code objects apart where it matters in which file they are: those that were made
    of equal texts are equal."""
    return code, code.co_filename


def located(code: CodeType, instruction: int) -> SourceLocation:
    """The place of an instruction."""
    return _located(*code_key(code), instruction)


@cache
def _located(code: CodeType, file: str, instruction: int) -> SourceLocation:
    line, end_line, column, end_column = next(
        islice(code.co_positions(), instruction // 2, None), (None, None, None, None)
    )
    if end_line != line:
        end_column = None
    return SourceLocation(
        file,
        line or code.co_firstlineno,
        column,
        end_column,
        shown_function(code.co_qualname),
    )


def definition(code: CodeType) -> SourceLocation:
    """Where a function is defined."""
    name = shown_function(code.co_qualname)
    return SourceLocation(code.co_filename, code.co_firstlineno, function=name)


def shown_function(qualname: str) -> str:
    """The user's function: staged regions and factories are left out of the name."""
    parts = [part for part in qualname.split(".") if not part.startswith("__stretto")]
    shown = ".".join(part for part in parts if part != "<locals>")
    return shown or qualname


# ---- Which Python code runs while a function is captured.
#
# The tracer sees the calls that rewritten code makes. Getters of properties, special methods and
# whatever code without source calls run unseen; the interpreter says that they did.


class ExecutedCode:
    """The code objects that ran. Where the interpreter could not be asked, any may have."""

    def __init__(self) -> None:
        self._found: set[CodeType] = set()
        self._is_known = True
        self._profiler: Profile | None = None

    def may_have_run(self, code: CodeType) -> bool:
        return not self._is_known or code in self._found

    @contextmanager
    def collect(self) -> Generator[None]:
        """Adds what runs meanwhile. A tool that already watches the interpreter is left alone."""
        watch = self._monitored if sys.version_info >= (3, 12) else self._profiled
        with watch():
            yield

    @contextmanager
    def paused(self) -> Generator[None]:
        """Does not watch what is known to run no code of the user, where watching takes time."""
        profiler = self._profiler
        if profiler is None:
            yield
            return
        profiler.disable()
        try:
            yield
        finally:
            profiler.enable()

    @contextmanager
    def _profiled(self) -> Generator[None]:
        """The interpreter's own profiler lists what it has met. A function in Python that is called
        at each call and return would take half of the time of a capture."""
        if sys.getprofile() is not None:
            self._is_known = False
            yield
            return
        profiler = self._profiler = Profile(subcalls=False, builtins=False)
        profiler.enable()
        try:
            yield
        finally:
            profiler.disable()
            self._profiler = None
            met: list[Any] = [entry.code for entry in profiler.getstats()]
            self._found.update(code for code in met if isinstance(code, CodeType))

    @contextmanager
    def _monitored(self) -> Generator[None]:
        """Each code object calls back once only, so this takes no time."""
        monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

        def note(code: CodeType, offset: int) -> object:
            self._found.add(code)
            return monitoring.DISABLE

        free = [tool for tool in _TOOLS if monitoring.get_tool(tool) is None]
        if not free:
            self._is_known = False
            yield
            return
        tool, start = free[0], monitoring.events.PY_START
        monitoring.use_tool_id(tool, "stretto")
        try:
            monitoring.register_callback(tool, start, note)
            monitoring.set_events(tool, start)
            monitoring.restart_events()
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, start, None)
            monitoring.free_tool_id(tool)


_TOOLS = (4, 3, 5, 2)
"""Numbers of tools of `sys.monitoring`: those without a meaning first."""
