"""Failures of a compile stage: record which stage failed, and how to report a bug.

A compile ends in an error of `errors.py` that names its stage, whatever exception the stage raises.
So `fallback=True` can tell a failure of a compile from one of a run, and a user can report a bug.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stretto.errors import (
    CaptureError,
    CodegenError,
    InternalError,
    PassError,
    RunError,
    ScheduleError,
    StrettoError,
    VerifyError,
)

REPORT = (
    "please report this bug of stretto, with the files that Debug(dump_dir=...) writes; until it "
    "is mended, compile with fallback=True, which runs in Python what is not compiled"
)

_DEFECTS = (CodegenError, InternalError, PassError, ScheduleError, VerifyError)
_COMPILER = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
"""Folders of code that runs during a compile: stretto itself, and libraries."""


@contextmanager
def stage_failures(stage: str) -> Generator[None]:
    """Turn every exception of a compile stage into a StrettoError that names the stage.

    Of nested stages the innermost is named. Exceptions of the user's own handlers, such as
    a signal handler, pass unchanged.
    """
    try:
        yield
    except StrettoError as error:
        _name_stage(error, stage)
        raise
    except MemoryError:
        raise
    except Exception as error:  # users must not take a bug of stretto for their own exception
        if not _is_of_compiler(error):
            raise
        failure = internal_error(error)
        _name_stage(failure, stage)
        raise failure from error


def internal_error(error: Exception) -> InternalError:
    """Return the error that a user sees for an exception that is a bug of stretto."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return InternalError(f"internal error in {place}: {reason}")


def is_assertion(error: Exception) -> bool:
    """Return True if an `assert` of stretto itself failed."""
    if not isinstance(error, AssertionError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_COMPILER[0])


def is_compile_failure(error: StrettoError) -> bool:
    """Return True if the error is from a compile, not from a run."""
    return error.stage is not None or isinstance(error, CaptureError)


def is_reportable_bug(error: StrettoError) -> bool:
    """Return True if the failure is a bug of stretto that the user should report."""
    return error.remedy is not None and REPORT in error.remedy


def _name_stage(error: StrettoError, stage: str) -> None:
    """Set the stage of an error, unless it has one or is no failure of a compile, and the remedy
    of a bug."""
    if error.stage is not None or isinstance(error, CaptureError | RunError):
        return
    error.stage = stage
    if isinstance(error, _DEFECTS) and error.remedy is None:
        error.remedy = REPORT


def _is_of_compiler(error: Exception) -> bool:
    """Return True if code of stretto or of a library raised the error, not the user's."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.filename.startswith(("<", *_COMPILER))
