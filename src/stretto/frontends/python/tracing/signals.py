"""Signals that end tracing early. They are BaseExceptions, so the user's `except Exception`
catches none of them."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

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


class NoAlternative(CaptureSignal):
    """No alternative is tried: the capture would take too long, if it ended at all, or has changed
    an object that it cannot change back."""

    def __init__(self, abort: Abort) -> None:
        super().__init__()
        self.abort = abort


@dataclass(eq=False)
class NeedsUnroll(CaptureSignal):
    """A loop's index is needed as a Python int: one of `loops` has to be unrolled."""

    loops: frozenset[int]
    abort: Abort


@dataclass(eq=False)
class NeedsPeel(CaptureSignal):
    """A loop variable changes its structure in the first iteration, which must be traced
    separately."""

    abort: Abort


class Replan(CaptureSignal):
    """The capture changes locations that its plan does not include: it has to be repeated."""


class ArgumentsChange(CaptureSignal):
    """The function changes objects reached from its arguments, so their contents have to be read
    at each call."""


class GradientsWanted(CaptureSignal):
    """With grad mode on, the function reads `tensor`, which requires grad, or creates one that
    does (None)."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        super().__init__()
        self.tensor = tensor


class KeepApart(CaptureSignal):
    """An object that may be one of several was merged into a copy, and the copy or one of the
    several is changed."""


@dataclass(eq=False)
class UnknownResult(CaptureSignal):
    """The result type of a recursive call is not known yet."""

    key: Hashable
    abort: Abort


@dataclass(eq=False)
class RecursionFound(CaptureSignal):
    """A call equals one that is being traced: tracing unwinds to that one and outlines it."""

    key: Hashable


def abort(message: str, remedy: str) -> Abort:
    """Return the signal for a CaptureError at the innermost user frame."""
    return Abort(CaptureError(message, location=user_location(), remedy=remedy))


def fail(message: str, remedy: str) -> NoReturn:
    """Stop capturing with a CaptureError at the innermost user frame."""
    raise abort(message, remedy)


@contextmanager
def about_definition(code: CodeType) -> Generator[None]:
    """Attribute errors raised inside without their own place to the definition of the function
    `code`, which has returned, instead of its caller."""
    try:
        yield
    except (Abort, NeedsPeel) as signal:
        error = signal.abort.error
        if error.location == user_location():
            error.location = definition(code)
        raise


# ---- Variables whose value the Program cannot represent; any use of one is a CaptureError.


class Poison:
    """The value of a variable that cannot be represented. Using it raises the error `origin`."""

    __slots__ = ("origin",)

    def __init__(self, reason: str, remedy: str) -> None:
        self.origin = abort(reason, remedy)

    @classmethod
    def of(cls, origin: Abort) -> Poison:
        """Return a variable whose use raises `origin`."""
        made = cls.__new__(cls)
        made.origin = origin
        return made

    def fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error `origin` at the user's line."""
        fail(self.origin.error.message, self.origin.error.remedy or "")

    def fail_at_origin(self) -> NoReturn:
        """Raise the error at the branch or loop that made the value unknown."""
        raise self.origin

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self.fail()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pending = [*args, *(kwargs or {}).values()]
        while pending:
            item = pending.pop()
            if isinstance(item, Poison):
                item.fail()
            if isinstance(item, tuple | list):
                pending.extend(item)
        raise AssertionError("no poison among the arguments")


def _fail(self: Poison, *args: Any, **kwargs: Any) -> NoReturn:
    self.fail()


BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
)  # fmt: skip
"""Python's binary operators, each of which also has a reflected and an in-place form."""
UNARY = ("neg", "pos", "abs", "invert")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

_OTHERS = (
    "bool", "int", "float", "index", "len", "iter", "next", "getitem", "setitem", "contains",
    "call", "enter", "exit", "format", "str", "repr",
)  # fmt: skip
_OPERATIONS = (*BINARY, *(f"r{name}" for name in BINARY), *UNARY, *COMPARISONS, *_OTHERS)

for _operation in _OPERATIONS:
    setattr(Poison, f"__{_operation}__", _fail)
Poison.__hash__ = object.__hash__  # type: ignore[method-assign]
