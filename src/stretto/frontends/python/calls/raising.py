"""Exceptions that rewritten code notes in place of raising them (`source/exceptions.py`)."""

from __future__ import annotations

from typing import Any, NoReturn

from stretto.frontends.python.calls.call import call
from stretto.frontends.python.control import branches
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import active
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.raises import shows_values

END = "the end of an iterator"
"""What an iterator that has no more items gives."""


def raised(value: Any, *cause: Any) -> Any:
    """The exception that `raise value from cause` raises. Equal ones are one object, so that loops
    know it again."""
    value = error(value)
    if isinstance(value, Either):
        return value
    if isinstance(value, type) and issubclass(value, BaseException):
        value = call(value)
    if not isinstance(value, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    for reason in cause:
        value.__cause__ = reason() if isinstance(reason, type) else reason
    state = active()
    if state is not None:
        state.tries.notes = True
    if state is None or cause or vars(value) or shows_values(value):
        return value
    return state.errors.setdefault((type(value), repr(value.args)), value)


def ends_by_jumping() -> None:
    """Fails before a `try` whose `finally` jumps, which ends whatever was on its way."""
    if active() is not None:
        fail(
            "a `finally` ends in return, break or continue",
            "put it behind the try, or compile with fallback=True",
        )


def is_caught(noted: Any, handled: Any) -> Any:
    """Whether a handler for a class, or several ones, is for the exception."""
    return call(isinstance, error(noted), handled)


def error(noted: Any) -> Any:
    """The exception that was noted, where one was."""
    return _without(noted, None)


def throw(noted: Any) -> NoReturn:
    """Raises an exception that no handler was for."""
    found = error(noted)
    if isinstance(found, Either):
        branches.use(found, throw)
    if not isinstance(found, BaseException):
        fail(
            "which exception is raised here depends on a tensor",
            "raise it where it is found, or compile with fallback=True",
        )
    raise found


def advanced(function: Any, iterator: Any) -> Any:
    """`next(iterator)`, or END."""
    return call(function, iterator, END) if function is next else call(function, iterator)


def is_end(item: Any) -> Any:
    return branches.which(item, lambda x: x is END) if isinstance(item, Either) else item is END


def item(found: Any) -> Any:
    """The item that an iterator gave, where it has not ended."""
    return _without(found, END)


def _without(value: Any, excluded: Any) -> Any:
    if not isinstance(value, Either):
        return value
    pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
    kept = [(flag, option) for flag, option in pairs if option is not excluded]
    return kept[0][1] if len(kept) == 1 else Either(*zip(*kept, strict=True))
