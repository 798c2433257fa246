"""Tracebacks of exceptions that leave interpreted functions: they show the user's lines.

The host's traceback has the frames of the interpreter. When an exception leaves a function that is
interpreted, they are replaced by one entry with the name, the file and the line of that function.
A traceback needs a real frame, so a small piece of code with the same place is executed for it.
"""

from __future__ import annotations

import ast
import types
from functools import cache
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.values.raises import is_by_statement, raises

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.frames import PythonFrame
    from stretto.frontends.python.interpreter.heap import PythonHeap

_PACKAGE = __file__.rpartition("frontends")[0]


class _Probe(Exception):
    """Raised to get a frame."""


def leave(error: Exception, frame: PythonFrame) -> None:
    """Replace the entries of the interpreter in the traceback of an exception that leaves a frame.
    Errors of the interpreter itself keep theirs, too."""
    if not raises(error):
        error.__traceback__ = _entry(frame, error.__traceback__)
        return
    entries = list[types.TracebackType]()
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    last = entries[-1:]
    chain = None
    for entry in reversed(entries):
        is_last = entry in last and not is_by_statement(entry.tb_frame.f_code)
        if is_last or _is_shown(entry.tb_frame.f_code.co_filename):
            chain = types.TracebackType(chain, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = _entry(frame, chain)


def check_interpreted(error: Exception, heap: PythonHeap) -> None:
    """Fail for an exception out of code of the user that native code has called: it has run on
    objects whose attributes, and in functions whose variables, only the heap knows."""
    entry = error.__traceback__
    while entry is not None:
        code, space = entry.tb_frame.f_code, entry.tb_frame.f_globals
        if "__probe" not in space and is_user_file(code.co_filename):
            has_cells = isinstance(error, NameError) and code.co_freevars
            if has_cells or any(map(heap.is_own, entry.tb_frame.f_locals.values())):
                fail(
                    f"native code calls '{code.co_name}' with objects of the program",
                    "call it in Python",
                )
        entry = entry.tb_next


def _is_shown(file: str) -> bool:
    return not file.startswith(_PACKAGE) or is_user_file(file)


def _entry(frame: PythonFrame, following: types.TracebackType | None) -> types.TracebackType:
    node: Any = frame.node
    line = getattr(node, "lineno", 0) or frame.code.co_firstlineno
    if getattr(node, "end_lineno", None) is None or not getattr(node, "lineno", 0):
        place = line, 0, line, 0
    else:
        place = line, node.col_offset, node.end_lineno, node.end_col_offset
    made = _code(frame.code.co_filename, place)
    made = made.replace(co_name=frame.code.co_name, co_qualname=frame.code.co_qualname)
    space = {"__name__": frame.function.__globals__.get("__name__"), "__probe": _Probe}
    try:
        exec(made, space)
    except _Probe as probe:
        assert probe.__traceback__ is not None
        found = probe.__traceback__.tb_next
        assert found is not None
        return types.TracebackType(following, found.tb_frame, found.tb_lasti, found.tb_lineno)
    raise AssertionError


@cache
def _code(file: str, place: tuple[int, int, int, int]) -> types.CodeType:
    line, column, end_line, end_column = place
    name, tree = ast.Name("__probe", ast.Load()), ast.Raise()
    tree.exc = name
    for node in (name, tree):
        node.lineno, node.col_offset = line, column
        node.end_lineno, node.end_col_offset = end_line, end_column
    return compile(ast.Module([tree], []), file, "exec")
