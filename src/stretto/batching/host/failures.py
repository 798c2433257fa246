"""The exceptions of instances that failed, made from what the host program says of them."""

from __future__ import annotations

from typing import Any

from stretto.batching.primitives import OVERFLOW, apply
from stretto.batching.program import Assign, InstanceProgram, Raise, Read, Statement
from stretto.batching.types import Scalar
from stretto.errors import RunError, SourceLocation

# include/run.h: Code.
_PYTHON, _OVERFLOW, _RECURSION, _INPUT, _COMPLEX, _MEMORY = range(6)
_READ: dict[Any, type] = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}


def exception(
    program: InstanceProgram,
    statement: Statement | None,
    code: int,
    arguments: tuple[Any, ...],
    instance: int,
) -> BaseException:
    """What running the instance alone raises; a note says which instance it was, and where.

    arguments: the operands of the statement that failed.
    """
    location = getattr(statement, "location", None)
    match code:
        case 0:
            assert statement is not None
            found = _raised(program, statement, arguments, location)
        case 1:
            found = OverflowError(OVERFLOW)
        case 2:
            found = RecursionError("maximum recursion depth exceeded")
        case 3:
            found = RunError(
                "an object that came in with the instance is changed",
                location=location,
                remedy="copy it first (`list(x)`, `dict(x)`, `copy.copy(x)`), and change the copy",
            )
        case 4:
            found = RunError(
                "a negative number to a power that is not whole is a complex number",
                location=location,
                remedy="take the power of a number that is not negative",
            )
        case _:
            found = MemoryError("an instance needs more memory than there is")
    place = f", at {location}" if location and not isinstance(found, RunError) else ""
    found.add_note(f"in instance {instance}{place}")
    return found


def _raised(
    program: InstanceProgram,
    statement: Statement,
    arguments: tuple[Any, ...],
    location: SourceLocation | None,
) -> BaseException:
    """What the statement raises in Python."""
    if isinstance(statement, Raise):
        return _own(statement, arguments)
    try:
        if isinstance(statement, Read):
            _READ[statement.target.type](*arguments)
        elif isinstance(statement, Assign):
            if len(arguments) == len(statement.args):
                apply(program, statement.op, statement.detail, list(arguments))
            else:
                raise TypeError(f"a number is needed, not {type(arguments[0]).__name__}")
    except Exception as error:
        return error.with_traceback(None)
    what = statement.op if isinstance(statement, Assign) else type(statement).__name__
    return RunError(
        f"`{what}` cannot be computed per instance for values of these types: "
        + ", ".join(type(argument).__name__ for argument in arguments),
        location=location,
    )


def _own(statement: Raise, arguments: tuple[Any, ...]) -> BaseException:
    """The exception of the user's code."""
    if not statement.parts:
        return statement.exception()
    values = iter(arguments)
    try:
        texts = [part if isinstance(part, str) else str(next(values)) for part in statement.parts]
        return statement.exception("".join(texts))
    except Exception as error:
        return error.with_traceback(None)
