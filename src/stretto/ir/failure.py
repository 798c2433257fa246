"""Exceptions that a failing check raises.

An error that ATen would raise gets a class that derives from both `RunError` and the class that
eager PyTorch raises, so that `except IndexError` and `except stretto.RunError` both work.
Exceptions of the user's own `raise` and `assert` are raised unchanged.
"""

from __future__ import annotations

import builtins
import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from stretto.errors import (
    NotCaptured,
    OnlyInPython,
    OtherProgram,
    RaisesInPython,
    RunError,
    SourceLocation,
)

_OTHERS: dict[str, type[Exception]] = {
    "LinAlgError": torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
    "_LinAlgError": torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
    OtherProgram.__name__: OtherProgram,
    NotCaptured.__name__: NotCaptured,
    RaisesInPython.__name__: RaisesInPython,
    OnlyInPython.__name__: OnlyInPython,
}
"""Exception classes that are not builtins, by their name in a printed Program."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that a check raises.

    error: name of the class that eager PyTorch raises. message: its text, in which `{}` is
    replaced by the value of the check's `detail`. raised: the exception of the user's own
    `raise` or `assert`, of which a copy is raised; it is not printed. added: the size of a dim
    that was added to a negative detail, and is subtracted again for the message.
    """

    error: str
    message: str
    raised: Exception | None = field(default=None, compare=False)
    added: int = 0

    @staticmethod
    def of(raised: Exception) -> Failure:
        """Return the failure that raises the user's own exception."""
        return Failure(type(raised).__name__, str(raised), raised)

    def exception(self, location: SourceLocation | None, detail: int | None = None) -> Exception:
        """Return a new exception to raise, with `detail` in its message if that shows one."""
        if self.raised is not None:
            return _copied(self.raised, location)
        message = self.message
        if detail is not None:
            shown = detail - self.added if detail < 0 else detail
            message = message.replace("{}", str(shown), 1)
        return run_error(eager_class(self.error), message, location)


@dataclass(frozen=True, slots=True)
class Stop:
    """A failure at a place in the user's source: an entry of a program's table of checks."""

    failure: Failure
    location: SourceLocation | None

    def exception(self, detail: int | None = None) -> Exception:
        """Return a new exception to raise, with the location and `detail`."""
        return self.failure.exception(self.location, detail)


NUMBER_BITS = 16
"""Bits of a failed check's number in the 64-bit word that it leaves; its detail is in the bits
above."""

_LARGEST = (1 << (63 - NUMBER_BITS)) - 1


def packed_detail(number: int, detail: int | None) -> int:
    """Return the word for a check's number and its detail, which is clamped to 48 bits."""
    value = 0 if detail is None else max(-_LARGEST - 1, min(detail, _LARGEST))
    return (value << NUMBER_BITS) | number


def unpacked_detail(word: int) -> tuple[int, int]:
    """Return the check's number and the detail packed in `word`."""
    return word & ((1 << NUMBER_BITS) - 1), word >> NUMBER_BITS


def eager_class(name: str) -> type[Exception]:
    """Return the exception class of that name; RuntimeError if there is none."""
    found: object = _OTHERS.get(name) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def run_error(
    eager: type[Exception], message: str, location: SourceLocation | None = None
) -> RunError:
    """Return a RunError that is also an instance of the `eager` class."""
    return _class(eager)(message, location=location)


@cache
def _class(eager: type[Exception]) -> type[RunError]:
    if issubclass(eager, RunError):
        return eager
    try:
        made = type(eager.__name__, (RunError, eager), {"__reduce__": _reduce})
    except TypeError:  # the memory layouts of the two classes cannot be combined
        return RunError
    made.__module__ = "stretto"
    return made


def _reduce(error: RunError) -> tuple[Any, ...]:
    """Pickle by calling `run_error` again: the combined classes cannot be imported by name."""
    eager = type(error).__bases__[1]
    return run_error, (eager, error.message), error.__dict__


def _copied(raised: Exception, location: SourceLocation | None) -> Exception:
    """Return a copy of the user's exception, with a note that says where it was raised."""
    kind = type(raised)
    if kind.__module__ == "builtins":
        made = copy.copy(raised)
    else:  # do not run the user's `__init__` again: it ran when the program was captured
        made = kind.__new__(kind, *raised.args)
        made.args = raised.args
        made.__dict__.update(copy.copy(raised.__dict__))
    made.__cause__, made.__suppress_context__ = raised.__cause__, raised.__suppress_context__
    if location is not None:
        made.__dict__.pop("__notes__", None)
        for note in getattr(raised, "__notes__", ()):
            made.add_note(note)
        source = location.source().strip()
        made.add_note(f"raised at {location}" + (f"\n  {source}" if source else ""))
    return made
