"""The signals that end tracing early. The user's `except Exception` must catch none of them."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import NoReturn

import torch

from stretto.errors import CaptureError
from stretto.frontends.python.tracing.locations import definition, user_location


class CaptureSignal(BaseException):
    """Base of all signals; all but ArgumentsChange and GradientsWanted stay inside `capture`."""


class Abort(CaptureSignal):
    """The function cannot be captured; `capture` raises `error`."""

    def __init__(self, error: CaptureError) -> None:
        super().__init__(str(error))
        self.error = error
        self.abort = self


class TooMuchWork(CaptureSignal):
    """The capture would take too long, if it ended at all. No other way is tried."""

    def __init__(self, abort: Abort) -> None:
        super().__init__()
        self.abort = abort


@dataclass(eq=False)
class NeedsUnroll(CaptureSignal):
    """A loop's index was needed as a Python int: one of `loops` has to be unrolled."""

    loops: frozenset[int]
    abort: Abort


@dataclass(eq=False)
class NeedsPeel(CaptureSignal):
    """A loop variable changes its structure in the first iteration, which must be run by itself."""

    abort: Abort


class Replan(CaptureSignal):
    """The capture changes places that its plan does not know: it has to be tried again."""


class ArgumentsChange(CaptureSignal):
    """The function changes objects that are reached from its arguments: at the next call they hold
    something else, so what they hold has to be read at each call."""


class GradientsWanted(CaptureSignal):
    """The function reads, with grad mode on, a tensor that requires grad, which `tensor` is; or
    it makes one itself (None)."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        super().__init__()
        self.tensor = tensor


class KeepApart(CaptureSignal):
    """An object that may be one of several was joined to a copy, and the copy or one of the several
    is changed."""


@dataclass(eq=False)
class UnknownResult(CaptureSignal):
    """A recursive call whose result type is not known yet."""

    key: Hashable
    abort: Abort


@dataclass(eq=False)
class RecursionFound(CaptureSignal):
    """A call equals one that is being traced: tracing unwinds to that one and outlines it."""

    key: Hashable


def abort(message: str, remedy: str) -> Abort:
    """The signal for a CaptureError at the innermost user frame."""
    return Abort(CaptureError(message, location=user_location(), remedy=remedy))


def fail(message: str, remedy: str) -> NoReturn:
    """Stop capturing with a CaptureError at the innermost user frame."""
    raise abort(message, remedy)


@contextmanager
def about_definition(code: CodeType) -> Generator[None]:
    """Errors about a function that has returned are errors of that function, not of its caller: an
    error raised inside without a place of its own names the definition."""
    try:
        yield
    except (Abort, NeedsPeel) as signal:
        error = signal.abort.error
        if error.location == user_location():
            error.location = definition(code)
        raise


def growth(box: object) -> Abort:
    return abort(
        f"a {type(box).__name__} has more or fewer items after a branch or loop on a tensor, and "
        "it outlives the call, or is not a list",
        "change it outside of the branch or loop, collect tensors of one shape in a local list, or "
        "compile with fallback=True",
    )


def fail_growth(box: object) -> NoReturn:
    raise growth(box)
