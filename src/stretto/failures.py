"""Failures of a stage of the compiler: which stage it was, and how a bug is reported.

A compile ends in an error of the tree (`errors.py`) that names its stage, whatever a stage raises.
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
"""Folders of code that runs while a program is compiled: stretto itself, and libraries."""


@contextmanager
def stage_failures(stage: str) -> Generator[None]:
    """Around a stage of a compile: what it raises is an error of the tree that names the stage.

    The innermost stage is named. What a handler of the user's raises meanwhile, as that of a
    signal, passes unchanged.
    """
    try:
        yield
    except StrettoError as error:
        _name_stage(error, stage)
        raise
    except MemoryError:
        raise
    except Exception as error:  # whatever a stage raises: it must not reach users as their own
        if not _is_of_compiler(error):
            raise
        failure = internal_error(error)
        _name_stage(failure, stage)
        raise failure from error


def internal_error(error: Exception) -> InternalError:
    """The error that a user sees for one that is a bug of stretto."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return InternalError(f"internal error in {place}: {reason}")


def is_assertion(error: Exception) -> bool:
    """Whether an `assert` of stretto itself does not hold."""
    if not isinstance(error, AssertionError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_COMPILER[0])


def is_of_compile(error: StrettoError) -> bool:
    """Whether a compile failed, and no run."""
    return error.stage is not None or isinstance(error, CaptureError)


def is_defect(error: StrettoError) -> bool:
    """Whether the failure of a compile is to be reported."""
    return error.remedy is not None and REPORT in error.remedy


def _name_stage(error: StrettoError, stage: str) -> None:
    if error.stage is not None or isinstance(error, CaptureError | RunError):
        return
    error.stage = stage
    if isinstance(error, _DEFECTS) and error.remedy is None:
        error.remedy = REPORT


def _is_of_compiler(error: Exception) -> bool:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.filename.startswith(("<", *_COMPILER))
