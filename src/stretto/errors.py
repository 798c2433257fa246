"""Every error stretto raises on purpose: one tree, a class per stage.

An error says what went wrong, where in the user's source, and what to do about it. Exceptions
raised by the user's own function are never wrapped; a bare `ValueError` is raised only for a
wrong argument of stretto's public functions.
"""

import linecache
from dataclasses import dataclass, field
from typing import Any

from stretto.text import Writer, caret


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in the user's source.

    `line` counts from 1. Columns are what `ast` and `co_positions` give: they count from 0, in
    bytes of the line's UTF-8. `end_column` is None where the end is unknown or on a later line.
    `module` is the path of the module in whose `forward` the place was reached, as
    `layers.3.q_proj`; it is no part of the place, which many modules may share.
    """

    file: str
    line: int
    column: int | None = None
    end_column: int | None = None
    function: str | None = None
    module: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}, in {self.function}" if self.function else place

    @property
    def is_of_library(self) -> bool:
        """True if the place is in an installed package, which the user does not change."""
        return "site-packages" in self.file or "dist-packages" in self.file

    def source(self) -> str:
        """The source line without its newline; empty where the source cannot be read."""
        return linecache.getline(self.file, self.line).rstrip()


class StrettoError(Exception):
    """Base of the tree. `message` is the reason, the rest is shown below it where it is known.

    `op` is the printed operator (or a larger piece of IR) that the error is about; `remedy` says
    what the user can change. `stage` names the stage of a compile that failed, and its pass; None:
    the function was not captured, or no compile was going on.
    """

    stage: str | None = None

    def __init__(
        self,
        message: str,
        *,
        location: SourceLocation | None = None,
        remedy: str | None = None,
        op: str | None = None,
    ) -> None:
        # Only the message goes into `args`: pickle calls the class with `args` and restores the
        # attributes from `__dict__`, so errors cross process borders whole.
        super().__init__(message)
        self.message = message
        self.location = location
        self.remedy = remedy
        self.op = op

    def __str__(self) -> str:
        lines = Writer()
        lines.write(f"{self.location}: {self.message}" if self.location else self.message)
        with lines.indent():
            if self.location:
                _write_source(lines, self.location)
            if self.op:
                _write_labelled(lines, "op", self.op)
            if self.stage:
                _write_labelled(lines, "stage", self.stage)
            if remedy := self.advice():
                _write_labelled(lines, "remedy", remedy)
        return lines.text().rstrip("\n")

    def advice(self) -> str | None:
        """The remedy that is shown."""
        return self.remedy


class CaptureError(StrettoError):
    """The user's Python cannot be turned into a Program."""

    def advice(self) -> str | None:
        """The remedy that is shown. Nobody changes the code of a library for it."""
        if self.location is not None and self.location.is_of_library:
            return "compile with fallback=True, which runs this line in Python"
        return self.remedy


class VerifyError(StrettoError):
    """A Program or DeviceProgram breaks a rule of its form: a bug in the stage that made it."""


class PassError(StrettoError):
    """A pass was asked for something it cannot do, or its input is not what it needs."""


class InternalError(StrettoError):
    """A stage of the compiler failed in a way that it does not provide for: a bug of stretto."""


class ScheduleError(StrettoError):
    """Tasks cannot be placed on the units of the device, or memory cannot be planned."""


class CodegenError(StrettoError):
    """A DeviceProgram cannot be printed for the machine that was asked for."""


class BuildError(StrettoError):
    """The compiler of the machine is missing or failed, or its result cannot be stored."""


class RunError(StrettoError):
    """A compiled program cannot run on these inputs, or stopped while running."""


class OtherProgram(RunError):
    """A condition on the content of tensors goes another way than in the call that the program was
    captured for. A compiled function then runs the program for that way."""


class NotLowered(CaptureError, CodegenError):
    """A Program has something that no machine can run, such as a tensor whose size nothing bounds
    where memory for it has to be set apart."""

    def __init__(self, message: str, *, remedy: str | None = None, **known: Any) -> None:
        usual = "or compile with fallback=True, which runs it in Python"
        super().__init__(message, remedy=f"{remedy}, {usual}" if remedy else usual[3:], **known)


class RaisesInPython(RunError):
    """A run comes to an exception that shows values of the run, or to what only Python can do. A
    compiled function then runs in Python, from the start of the call."""


class OnlyInPython(RaisesInPython):
    """A run comes to what only Python can do, such as an int beyond 64 bits. Where there is no
    Python to run in, as for a function loaded from a file, it is an error of the run."""


class LibraryLayoutError(NotLowered):
    """An operator without a kernel of its own is called on a tensor whose memory it cannot take.
    target: the operator."""

    target: str = ""


class NotCaptured(CaptureError, RunError):
    """A run comes to an arm of a branch that its program does not have, since that could not be
    captured. What could not, and where, is in the message."""

    def __init__(self, message: str, *, remedy: str | None = None, **known: Any) -> None:
        usual = "change the code there, or compile with fallback=True, which runs it in Python"
        super().__init__(message, remedy=remedy or usual, **known)


class StreamFull(RunError):
    """A stream of requests has no room for another one."""


class StreamClosed(RunError):
    """A request for a stream that has been closed, or was closed before it took the request."""


class SaveError(StrettoError):
    """A compiled function holds what a file cannot, or the file cannot be written."""


class LoadError(StrettoError):
    """A file is damaged, of another version, or not one that stretto has saved."""


class StrettoWarning(UserWarning):
    """The result is right, but not got the way the user may expect (eager, many signatures)."""


def _write_source(lines: Writer, location: SourceLocation) -> None:
    source = location.source()
    if not source.strip():
        return
    with lines.indent():
        lines.write(source.lstrip())
        if location.column is not None:
            lines.write(_underline(source, location.column, location.end_column))


def _underline(source: str, column: int, end_column: int | None) -> str:
    """Carets under byte columns of `source`, for the line shown without its indentation."""
    shown = source.lstrip()
    indentation = len(source) - len(shown)
    start = max(0, _characters(source, column) - indentation)
    end = None if end_column is None else _characters(source, end_column) - indentation
    return caret(shown, start, end)


def _characters(source: str, byte_column: int) -> int:
    return len(source.encode()[:byte_column].decode(errors="replace"))


def _write_labelled(lines: Writer, label: str, text: str) -> None:
    """`label: text`, where further lines of a longer text stand below, one step in."""
    first, *others = text.rstrip("\n").split("\n")
    lines.write(f"{label}: {first}")
    with lines.indent():
        for other in others:
            lines.write(other)
