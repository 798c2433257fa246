"""The signals that end tracing early. The user's `except Exception` must catch none of them."""

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


# ---- A variable that has no value the Program can represent; any use of it is a CaptureError.


class Poison:
    """Stands in for a variable. The error `origin` is shown when it is used."""

    __slots__ = ("origin",)

    def __init__(self, reason: str, remedy: str) -> None:
        self.origin = abort(reason, remedy)

    @classmethod
    def of(cls, origin: Abort) -> Poison:
        """A variable whose use is the error `origin`."""
        made = cls.__new__(cls)
        made.origin = origin
        return made

    def fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(self.origin.error.message, self.origin.error.remedy or "")

    def fail_at_origin(self) -> NoReturn:
        """The same error, at the branch or loop that made the value unknown."""
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
"""Python's binary operators, each of which also has a reflected form and one in place."""
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


def poisons(value: Any) -> Poison | None:
    """The first poison inside a value."""
    if isinstance(value, Poison):
        return value
    if isinstance(value, tuple | list):
        return next((found for item in value if (found := poisons(item))), None)
    if isinstance(value, dict):
        return poisons(list(value.values()))
    return None
