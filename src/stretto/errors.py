"""All errors that stretto raises on purpose: one class hierarchy, with a class per stage.

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

    `line` counts from 1. Columns are those of `ast` and `co_positions`: they count from 0, in bytes
    of the line's UTF-8. `end_column` is None if the end is unknown or on a later line. `module` is
    the path of the module whose `forward` reached the place, as `layers.3.q_proj`; it does not
    count in comparisons, since many modules may share a place.
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
    def short(self) -> str:
        """The file's name without its folder, and the line: `model.py:12`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def is_of_library(self) -> bool:
        """True if the place is in an installed package, which the user does not change."""
        return "site-packages" in self.file or "dist-packages" in self.file

    def source(self) -> str:
        """Return the source line without its newline; empty if the source cannot be read."""
        return linecache.getline(self.file, self.line).rstrip()


class StrettoError(Exception):
    """Base class of all errors. `message` is the reason; the other fields are shown below it if
    known.

    `op` is the printed operator (or a larger part of the IR) that the error is about; `remedy` says
    what the user can change. `stage` names the stage of a compile that failed, and its pass; None
    if the function could not be captured, or if no compile was going on.
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
        # Only the message is in `args`: pickle calls the class with `args` and restores the
        # attributes from `__dict__`, so errors pass between processes complete.
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
        """Return the remedy to show."""
        return self.remedy


class CaptureError(StrettoError):
    """The user's Python cannot be turned into a Program."""

    def advice(self) -> str | None:
        """Return the remedy to show. For a place in a library, whose code the user does not
        change, it is fallback."""
        if self.location is not None and self.location.is_of_library:
            return "compile with fallback=True, which runs this line in Python"
        return self.remedy


class VerifyError(StrettoError):
    """A Program or DeviceProgram breaks a rule of its form: a bug in the stage that made it."""


class PassError(StrettoError):
    """A pass was requested to do something it cannot do, or its input is not what it needs."""


class InternalError(StrettoError):
    """A stage of the compiler failed in an unforeseen way: a bug of stretto."""


class ScheduleError(StrettoError):
    """Tasks cannot be placed on the units of the device, or memory cannot be planned."""


class CodegenError(StrettoError):
    """A DeviceProgram cannot be printed for the requested machine."""


class BuildError(StrettoError):
    """The compiler of the machine is missing or failed, or its result cannot be stored."""


class RunError(StrettoError):
    """A compiled program cannot run on these inputs, or stopped while running."""


class OtherProgram(RunError):
    """A condition on the content of tensors has another value than in the call that the program
    was captured for. A compiled function then runs the program for that value."""


class NotLowered(CaptureError, CodegenError):
    """A Program has something that no machine can run, such as a tensor that needs memory but
    whose size has no bound."""

    def __init__(self, message: str, *, remedy: str | None = None, **known: Any) -> None:
        usual = "or compile with fallback=True, which runs it in Python"
        super().__init__(message, remedy=f"{remedy}, {usual}" if remedy else usual[3:], **known)


class RaisesInPython(RunError):
    """A run comes to an exception that shows values of the run, or to something that only Python
    can do. A compiled function then runs in Python, from the start of the call."""


class OnlyInPython(RaisesInPython):
    """A run comes to something that only Python can do, such as an int beyond 64 bits. If it
    cannot run in Python, as for a function loaded from a file, the error is raised to the user."""


class LibraryLayoutError(NotLowered):
    """An operator without a kernel in stretto is called on a tensor whose memory layout it cannot
    take. target: the operator."""

    target: str = ""


class NotCaptured(CaptureError, RunError):
    """A run comes to an arm of a branch that its program lacks, since it could not be captured.
    The message says what could not be captured, and where."""

    def __init__(self, message: str, *, remedy: str | None = None, **known: Any) -> None:
        usual = "change the code there, or compile with fallback=True, which runs it in Python"
        super().__init__(message, remedy=remedy or usual, **known)


class StreamFull(RunError):
    """A stream of requests has no room for another one."""


class StreamClosed(RunError):
    """A request to a stream that is closed, or that closed before it took the request."""


class SaveError(StrettoError):
    """A compiled function has something that a file cannot hold, or the file cannot be written."""


class LoadError(StrettoError):
    """A file is damaged, of another version, or not written by stretto."""


class StrettoWarning(UserWarning):
    """The result is right, but was computed in a way that the user may not expect (eager, many
    signatures)."""


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
    """Write `label: text`; further lines of the text follow below, indented by one step."""
    first, *others = text.rstrip("\n").split("\n")
    lines.write(f"{label}: {first}")
    with lines.indent():
        for other in others:
            lines.write(other)
