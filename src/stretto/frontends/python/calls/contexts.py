"""`with` in the user's code, where its context may handle what is raised inside.

Such a context is like a `try` with handlers: what may be raised depending on the run is refused
inside of it (`tracing/tries.py`). Others, as torch's own, are as in Python.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from stretto.frontends.python.source.redirected import code_of
from stretto.frontends.python.source.rewrite import is_user_function
from stretto.frontends.python.tracing.signals import CaptureSignal, fail
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.tracing.tries import ErrorClasses

_EVERY = (BaseException,)
_OF_GENERATORS = contextlib._GeneratorContextManager  # pyright: ignore[reportPrivateUsage]


@dataclass(eq=False, slots=True)
class Handling:
    """A context that may handle exceptions of the classes."""

    context: Any
    classes: ErrorClasses

    def __enter__(self) -> Any:
        entered = type(self.context).__enter__(self.context)
        tracer().tries.handled.append(self.classes)
        return entered

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        tracer().tries.handled.pop()
        left = type(self.context).__exit__(self.context, kind, error, trace)
        return None if error is None or isinstance(error, CaptureSignal) else left


def context(value: Any, notes: bool = False) -> Any:
    """The context of a `with`. notes: exceptions inside are noted for a `try` around it in place
    of being raised, so that the context does not see them."""
    classes = () if active() is None else _handled(value)
    if not classes:
        return value
    if notes:
        fail(
            f"an exception is raised in a `with` of a {type(value).__name__}, which may handle it, "
            "inside of a try",
            "move the `with` into a function of its own, or compile with fallback=True",
        )
    return Handling(value, classes)


def _handled(context: Any) -> ErrorClasses:
    """The classes of exceptions that a context may handle, as far as that is known."""
    match context:
        case contextlib.suppress():
            classes: Any = context._exceptions  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]
            return classes
        case contextlib.ExitStack():
            return _EVERY
        case _OF_GENERATORS():
            function: Any = context.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            own = isinstance(function, FunctionType) and is_user_function(function)
            return _EVERY if own and _has_handlers(code_of(function)) else ()
        case _:
            leave: Any = getattr(type(context), "__exit__", None)
            return _EVERY if is_user_function(leave) and _may_return_true(code_of(leave)) else ()


@cache
def _has_handlers(code: CodeType) -> bool:
    """True if code has an `except`, with a class or for all of them, or names `suppress`."""
    names = [step.opname for step in dis.get_instructions(code)]
    bare = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    return bare or "CHECK_EXC_MATCH" in names or "suppress" in code.co_names


@cache
def _may_return_true(code: CodeType) -> bool:
    """False if all that code returns is the constant None or False."""
    steps = list(dis.get_instructions(code))
    returned = [one for one, step in itertools.pairwise(steps) if step.opname == "RETURN_VALUE"]
    returned += [step for step in steps if step.opname == "RETURN_CONST"]
    constants = [one for one in returned if one.opname in ("LOAD_CONST", "RETURN_CONST")]
    return constants != returned or any(one.argval not in (None, False) for one in constants)
