"""The line of the user's source that is being traced."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import mpmath
import sympy
import torch
import torch.fx

from stretto.errors import SourceLocation

_STRETTO = str(Path(__file__).parents[3]) + os.sep
_PROGRAMS = (
    _STRETTO + "_zoo",
    _STRETTO + os.path.join("tools", "calibrate.py"),
)
"""Paths of programs in this package that it compiles itself."""
_TORCH = str(Path(torch.__file__).parent) + os.sep
_SIZES = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (sympy, mpmath))
"""Packages that torch computes symbolic sizes with; the tracer itself calls them."""
_DISTRIBUTIONS = _TORCH + "distributions" + os.sep
_STDLIB = sysconfig.get_path("stdlib")
_SITE = ("site-packages", "dist-packages")


class _Mark(threading.local):
    """The statement of a segment that is being captured; None if none was reached yet. blamed: the
    statements that created values that cannot leave the segment."""

    def __init__(self) -> None:
        self.statement: int | None = None
        self.blamed: frozenset[int] = frozenset()

    def clear(self) -> None:
        self.statement, self.blamed = None, frozenset()


MARK = _Mark()


@cache
def package_of(value: Any) -> str:
    """Return the package of a class or function by its `__module__`, which may be None for code
    from `exec`, and for a type of `ctypes` is that of the first code to make it."""
    of_ctypes = type(value).__module__ == "_ctypes"
    return "ctypes" if of_ctypes else str(value.__module__).split(".")[0]


def is_user_file(filename: str) -> bool:
    """True if code of this file is the user's: not torch, torch's symbolic packages, stretto or
    the standard library. torch.distributions counts as the user's because it branches on values
    of tensors."""
    if filename.startswith(("<frozen", "<string>", "<attrs")):
        return False
    if filename.startswith((_STRETTO, _TORCH, *_SIZES)):
        return filename.startswith((*_PROGRAMS, _DISTRIBUTIONS))
    in_stdlib = filename.startswith(_STDLIB)
    return not in_stdlib or any(part in filename for part in _SITE)


def user_frame() -> FrameType | None:
    """Return the innermost frame of user code, or None."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not is_shown(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


_local = threading.local()


@contextmanager
def at(place: SourceLocation | None) -> Generator[None]:
    """Set `place` as the location of everything traced inside, regardless of frames. None:
    unchanged."""
    before = getattr(_local, "place", None)
    _local.place = place or before
    try:
        yield
    finally:
        _local.place = before


class InterpretedLine(NamedTuple):
    """A line of an interpreted function that is executed."""

    code: CodeType
    line: int
    namespace: dict[str, Any]


@contextmanager
def interpreted_at(
    place: Callable[[], SourceLocation | None], lines: Callable[[], list[InterpretedLine]]
) -> Generator[None]:
    """Let an interpreter of Python tell the user's line that it executes. lines: those of all its
    frames, the innermost first."""
    before = getattr(_local, "interpreted", None), getattr(_local, "lines", None)
    _local.interpreted, _local.lines = place, lines
    try:
        yield
    finally:
        _local.interpreted, _local.lines = before


def interpreted_lines() -> list[InterpretedLine] | None:
    """Return the lines that an interpreter executes, the innermost first; None if none does."""
    lines: Callable[[], list[InterpretedLine]] | None = getattr(_local, "lines", None)
    return None if lines is None else lines()


@contextmanager
def in_module(path: str) -> Generator[None]:
    """Set the module path of everything traced inside; empty for the outermost module."""
    before = current_module()
    _local.module = path
    try:
        yield
    finally:
        _local.module = before


def current_module() -> str:
    """Return the path of the module whose `forward` is being traced; empty outside of modules."""
    return getattr(_local, "module", "")


@cache
def is_shown(filename: str) -> bool:
    """True if errors may name lines of this file."""
    return is_user_file(filename) and not filename.startswith(_TORCH)


def user_location() -> SourceLocation | None:
    """Return the location of the innermost user frame, with columns, or the one set by `at`."""
    place, module = _user_place(), current_module()
    return replace(place, module=module) if place is not None and module else place


def _user_place() -> SourceLocation | None:
    known: SourceLocation | None = getattr(_local, "place", None)
    if known is not None:
        return known
    interpreted: Callable[[], SourceLocation | None] | None = getattr(_local, "interpreted", None)
    found = None if interpreted is None else interpreted()
    if found is not None:
        return found
    frame = user_frame()
    if frame is None:
        return None
    found = place_in_graph(frame.f_code, frame.f_lineno)
    return found or located(frame.f_code, frame.f_lasti)


_graphs: dict[str, dict[int, SourceLocation]] = {}
"""The user's lines that code generated by torch for a graph comes from, by file name and line."""


def enter_graph(module: torch.fx.GraphModule) -> None:
    """Make errors in a graph's code name the user lines that its nodes come from."""
    code = type(module).forward.__code__
    if code.co_filename in _graphs:
        return
    places = [place_of_trace(node.stack_trace) for node in module.graph.nodes]
    numbers: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    found = {line: places[number] for line, number in numbers.items() if number is not None}
    _graphs[code.co_filename] = {line: place for line, place in found.items() if place is not None}


def place_in_graph(code: CodeType, line: int) -> SourceLocation | None:
    """Return the user's line that a line of a graph's code comes from; None for other code."""
    return _graphs.get(code.co_filename, {}).get(line - code.co_firstlineno)


def place_of_trace(trace: str | None) -> SourceLocation | None:
    """Return the innermost line of a graph node's stack trace, or None."""
    frames = _FRAME.findall(trace or "")
    if not frames:
        return None
    file, line, function = frames[-1]
    return SourceLocation(file, int(line), function=function)


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def code_key(code: CodeType) -> tuple[CodeType, str]:
    """Return a key that also distinguishes files: code objects compiled from equal texts are
    equal."""
    return code, code.co_filename


def located(code: CodeType, instruction: int) -> SourceLocation:
    """Return the place of an instruction."""
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
    """Return the place where a function is defined."""
    name = shown_function(code.co_qualname)
    return SourceLocation(code.co_filename, code.co_firstlineno, function=name)


def shown_function(qualname: str) -> str:
    """Return the user's name of a function, without staged regions and factories."""
    parts = [part for part in qualname.split(".") if not part.startswith("__stretto")]
    shown = ".".join(part for part in parts if part != "<locals>")
    return shown or qualname
