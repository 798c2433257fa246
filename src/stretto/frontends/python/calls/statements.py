"""Functions called by rewritten statements: `with`, `match`, and `raise` inside of `try`."""

from __future__ import annotations

import contextlib
import dis
import itertools
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn

from stretto.frontends.python.calls.call import call
from stretto.frontends.python.control import branches
from stretto.frontends.python.lists.sources import Indexed, Iterated
from stretto.frontends.python.source.redirected import code_of
from stretto.frontends.python.source.rewrite import is_user_function
from stretto.frontends.python.tracing.frames import ErrorClasses
from stretto.frontends.python.tracing.signals import CaptureSignal, fail
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.raises import shows_values
from stretto.frontends.python.values.state import TracedList

# ---- `with` in the user's code, if its context may handle exceptions raised inside.
#
# Such a context is like a `try` with handlers: exceptions that depend on the run are refused inside
# of it (`tracing/frames.py`). Other contexts, such as torch's, work as in Python.


_EVERY = (BaseException,)
_OF_GENERATORS = contextlib._GeneratorContextManager  # pyright: ignore[reportPrivateUsage]


@dataclass(eq=False, slots=True)
class Handling:
    """A context that may handle exceptions of `classes`."""

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
    """Return the context of a `with`. notes: exceptions inside are noted for an enclosing `try`
    instead of being raised, so that the context does not see them."""
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
    """Return the exception classes that a context may handle, as far as they are known."""
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
    """Return True if code has an `except` clause, or names `suppress`."""
    names = [step.opname for step in dis.get_instructions(code)]
    bare = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    return bare or "CHECK_EXC_MATCH" in names or "suppress" in code.co_names


@cache
def _may_return_true(code: CodeType) -> bool:
    """Return False if code returns nothing but the constants None and False."""
    steps = list(dis.get_instructions(code))
    returned = [one for one, step in itertools.pairwise(steps) if step.opname == "RETURN_VALUE"]
    returned += [step for step in steps if step.opname == "RETURN_CONST"]
    constants = [one for one in returned if one.opname in ("LOAD_CONST", "RETURN_CONST")]
    return constants != returned or any(one.argval not in (None, False) for one in constants)


# ---- Tests that `match` patterns make on their subject: called by rewritten code
# (`source/desugar.py`).


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""Type flags of classes whose objects match sequence patterns, and mapping patterns."""
_MATCHES_ITSELF = 1 << 22
"""Type flag of classes such as int and str, whose single positional pattern matches the object
itself."""


def length(value: Any) -> Any:
    """Return the length of a subject, for a sequence pattern."""
    return call(len, value)


def is_sequence(value: Any) -> Any:
    """Return True, or a traced flag, if a sequence pattern may match the value."""
    if isinstance(value, Either):
        return branches.for_each_option(value, is_sequence)
    if isinstance(value, TracedList | Indexed):
        return not isinstance(value, Iterated)
    return bool(type(value).__flags__ & _SEQUENCE)


def is_mapping(value: Any) -> Any:
    """Return True, or a traced flag, if a mapping pattern may match the value."""
    if isinstance(value, Either):
        return branches.for_each_option(value, is_mapping)
    return bool(type(value).__flags__ & _MAPPING)


def is_instance(value: Any, kind: Any, positional: int) -> Any:
    """`isinstance(value, kind)` in a class pattern. positional: number of positional sub-patterns.
    Raises TypeError if there are too many."""
    if not isinstance(kind, type):
        raise TypeError("called match pattern must be a class")
    found = call(isinstance, value, kind)
    most = 0 if found is False or not positional else len(_names(kind))
    if positional > most and found is not False:
        plural = "" if most == 1 else "s"
        raise TypeError(
            f"{kind.__name__}() accepts {most} positional sub-pattern{plural} ({positional} given)"
        )
    return found


def _names(kind: type) -> tuple[Any, ...]:
    """Return the attributes that positional patterns match; an item None is the object itself."""
    names = getattr(kind, "__match_args__", None)
    if names is not None and type(names) is not tuple:
        found = f"(got {type(names).__name__})"
        raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple {found}")
    if names is not None:
        return names
    return (None,) if kind.__flags__ & _MATCHES_ITSELF else ()


def _name(kind: type, place: int | str) -> str | None:
    if isinstance(place, str):
        return place
    found = _names(kind)[place]
    if not isinstance(found, str | None):
        kinds = f"(got {type(found).__name__})"
        raise TypeError(f"__match_args__ elements must be strings {kinds}")
    return found


def has_part(value: Any, kind: type, place: int | str) -> Any:
    """Return True, or a traced flag, if the value has the attribute of a sub-pattern."""
    name = _name(kind, place)
    return True if name is None else call(hasattr, value, name)


def part(value: Any, kind: type, place: int | str) -> Any:
    """Return the value that a sub-pattern (a position or an attribute name) is matched with."""
    name = _name(kind, place)
    return value if name is None else call(getattr, value, name)


def between(value: Any, before: int, after: int) -> list[Any]:
    """Return the items of a sequence without the first `before` and the last `after`."""
    places = range(before, len(value) - after)
    return [Hooks.staging.getitem(value, place) for place in places]


def rest(value: Any, *keys: Any) -> dict[Any, Any]:
    """Return the entries of a mapping without `keys`: what `**rest` in a pattern binds."""
    return {key: item for key, item in value.items() if key not in keys}


# ---- Exceptions that rewritten code notes instead of raising (`source/jumps.py`).


END = "the end of an iterator"
"""Result of advancing an iterator that has no more items."""


def raised(value: Any, *cause: Any) -> Any:
    """Return the exception that `raise value from cause` raises. Equal ones are one object, so
    that loops recognise them."""
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
    """Fail for a `try` whose `finally` jumps, which would discard the exception or jump in
    progress."""
    if active() is not None:
        fail(
            "a `finally` ends in return, break or continue",
            "put it after the try, or compile with fallback=True",
        )


def is_caught(noted: Any, handled: Any) -> Any:
    """Return True, or a traced flag, if a handler of class(es) `handled` catches the noted
    exception."""
    return call(isinstance, error(noted), handled)


def error(noted: Any) -> Any:
    """Return the noted exception, without the option that there is none."""
    return _without(noted, None)


def throw(noted: Any) -> NoReturn:
    """Raise a noted exception that no handler caught."""
    found = error(noted)
    if isinstance(found, Either):
        branches.for_each_option(found, throw)
    if not isinstance(found, BaseException):
        fail(
            "which exception is raised here depends on a tensor",
            "raise it where it is found, or compile with fallback=True",
        )
    raise found


def advanced(function: Any, iterator: Any) -> Any:
    """`next(iterator)`, or END if there are no more items."""
    return call(function, iterator, END) if function is next else call(function, iterator)


def is_end(item: Any) -> Any:
    """Return True, or a traced flag, if an advanced iterator has ended."""
    return (
        branches.flag_of_options(item, lambda x: x is END)
        if isinstance(item, Either)
        else item is END
    )


def item(found: Any) -> Any:
    """Return the item of an advanced iterator, without the option that it ended."""
    return _without(found, END)


def _without(value: Any, excluded: Any) -> Any:
    if not isinstance(value, Either):
        return value
    pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
    kept = [(flag, option) for flag, option in pairs if option is not excluded]
    return kept[0][1] if len(kept) == 1 else Either(*zip(*kept, strict=True))
