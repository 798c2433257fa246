"""Functions that rewritten statements call: `with`, `match`, and `raise` inside of `try`."""

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

# ---- `with` in the user's code, where its context may handle what is raised inside.
#
# Such a context is like a `try` with handlers: what may be raised depending on the run is refused
# inside of it (`tracing/frames.py`). Others, as torch's own, are as in Python.


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


# ---- What patterns of `match` ask of their subject: called by rewritten code
# (`source/desugar.py`).


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""The flags of classes whose objects match patterns of sequences, and of mappings."""
_MATCHES_ITSELF = 1 << 22
"""The flag of classes like int and str, whose only positional pattern is for the object itself."""


def length(value: Any) -> Any:
    return call(len, value)


def is_sequence(value: Any) -> Any:
    if isinstance(value, Either):
        return branches.use(value, is_sequence)
    if isinstance(value, TracedList | Indexed):
        return not isinstance(value, Iterated)
    return bool(type(value).__flags__ & _SEQUENCE)


def is_mapping(value: Any) -> Any:
    if isinstance(value, Either):
        return branches.use(value, is_mapping)
    return bool(type(value).__flags__ & _MAPPING)


def is_instance(value: Any, kind: Any, positional: int) -> Any:
    """`isinstance(value, kind)`. positional: how many patterns without a name there are."""
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
    """The attributes that positional patterns are for; None for the object itself."""
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
    name = _name(kind, place)
    return True if name is None else call(hasattr, value, name)


def part(value: Any, kind: type, place: int | str) -> Any:
    """What the pattern at a position, or of an attribute, is compared with."""
    name = _name(kind, place)
    return value if name is None else call(getattr, value, name)


def between(value: Any, before: int, after: int) -> list[Any]:
    """The items of a sequence without the first and last ones, of which these are the numbers."""
    places = range(before, len(value) - after)
    return [Hooks.staging.getitem(value, place) for place in places]


def rest(value: Any, *keys: Any) -> dict[Any, Any]:
    return {key: item for key, item in value.items() if key not in keys}


# ---- Exceptions that rewritten code notes in place of raising them (`source/jumps.py`).


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
