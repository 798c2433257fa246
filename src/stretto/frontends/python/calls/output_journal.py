"""Journal of what the captured function prints, warns about and logs."""

from __future__ import annotations

import builtins
import io
import logging
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache, partial
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.frontends.python.calls.journal import Journal, SideEffect
from stretto.frontends.python.calls.texts import shown
from stretto.frontends.python.source.definitions import is_user_function
from stretto.frontends.python.tracing.locations import (
    interpreted_lines,
    is_user_file,
    shown_function,
)
from stretto.frontends.python.tracing.signals import Poison, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.raises import shows_values
from stretto.frontends.python.values.state import TracedList
from stretto.frontends.python.values.texts import (
    RunValue,
    form_of,
    given,
    is_shown_late,
    is_text,
    settled,
)

# ---- Origin of output during a capture: whose code it is, and at which line.


_STRETTO = __file__.rpartition("frontends")[0]
_LOGGING = logging.__file__
_INTERPRETER = f"{_STRETTO}frontends/python/interpreter/"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the captured code, or, if `level` > 0, the frame `level` frames outside of the
    captured function."""

    file: str = ""
    line: int = 0
    function: str = ""
    namespace: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    level: int = 0

    def now(self) -> SourceLine:
        """Return the place at run time: if outside of the function, it is looked up in the
        caller's frames."""
        if not self.level:
            return self
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        left = self.level
        while frame is not None:
            left -= not frame.f_code.co_filename.startswith(_STRETTO)
            if not left:
                return _place_of(frame)
            frame = frame.f_back
        return SourceLine("sys", 1, "", {})


def _place_of(frame: FrameType) -> SourceLine:
    code = frame.f_code
    return SourceLine(
        code.co_filename,
        frame.f_lineno,
        shown_function(code.co_qualname).rpartition(".")[2],
        frame.f_globals,
    )


def place_at(level: int) -> SourceLine:
    """Return the place of the user's frame at `level` (1 is the innermost). Libraries that run
    natively are the innermost frames."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    left = max(level, 1)
    while frame is not None and not frame.f_code.co_filename.startswith(_INTERPRETER):
        if not frame.f_code.co_filename.startswith((_STRETTO, _LOGGING)):
            left -= 1
            if not left:
                return _place_of(frame)
        frame = frame.f_back
    lines = interpreted_lines() or []
    shown = [line for line in lines if not line.code.co_filename.startswith((_STRETTO, _LOGGING))]
    if left > len(shown):
        return SourceLine(level=left - len(shown))
    code, line, namespace = shown[left - 1]
    name = shown_function(code.co_qualname).rpartition(".")[2]
    return SourceLine(code.co_filename, line, name, namespace)


class _CodeOrigin(Enum):
    """Whose code a file is."""

    IMPORT = auto()
    TRACER = auto()
    USER = auto()
    LOGGING = auto()
    LIBRARY = auto()


@cache
def _speaker(file: str) -> _CodeOrigin:
    if file.startswith("<frozen importlib"):
        return _CodeOrigin.IMPORT
    if file.startswith(_STRETTO):
        return _CodeOrigin.TRACER
    if is_user_file(file):
        return _CodeOrigin.USER
    return _CodeOrigin.LOGGING if file in (_LOGGING, warnings.__file__) else _CodeOrigin.LIBRARY


def is_of_program() -> bool:
    """Return False if the tracer writes the message, or code that only the tracer calls: eager
    PyTorch would not write it."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    by_library = False
    while frame is not None:
        if frame.f_code.co_filename.startswith(_INTERPRETER) and not by_library:
            return True
        match _speaker(frame.f_code.co_filename):
            case _CodeOrigin.USER:
                return True
            case _CodeOrigin.IMPORT:
                return False
            case _CodeOrigin.TRACER if by_library:
                return frame.f_code.co_name == "_native"
            case _CodeOrigin.LIBRARY:
                by_library = True
            case _:
                pass
        frame = frame.f_back
    return False


_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device)
_KEPT = (*_ATOMS, torch.Size, range, slice, Enum, FunctionType, ModuleType, BaseException, Warning)


# ---- recording acts --------------------------------------------------------------------------


def record(key: Any, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Record that the run calls `function(*args, **kwargs)` here. key: identifies the line."""
    if not is_of_program():
        return
    if _SILENCE.collected is not None:
        _SILENCE.collected.append(function)
        return
    filled, values = given((args, kwargs), _form_of)
    kinds = tuple(kind_of(value) for value in values)
    if any(kind is None for kind in kinds):
        fail(
            "the run decides which of several values is printed or logged",
            "print each in its branch, or compile with fallback=True",
        )
    identity = tuple(map(_identity, filled.leaves))
    name = getattr(function, "__qualname__", "")
    whole = (key, name, repr(filled.structure), identity, kinds)

    def act(values: Sequence[Any]) -> None:
        positional, named = filled(values)
        function(*positional, **named)

    _enter(whole, act, values)


def _enter(key: Any, act: SideEffect, values: Sequence[Any]) -> None:
    journal: Journal = tracer().heap.journal
    lines = interpreted_lines()
    of_user = bool(lines) and is_user_file(lines[0].code.co_filename)
    site = journal.site(key, act, len(values), of_user)
    Hooks.call(journal.order.append, site.number)
    for column, value in zip(site.columns, values, strict=True):
        Hooks.call(column.append, value)


def _form_of(leaf: Any) -> tuple[Any, Sequence[Any]]:
    """Return the form in which an act stores a leaf, and the run-time values that it needs."""
    if isinstance(leaf, BaseException) and shows_values(leaf):
        return _form_of(shown(leaf, str))
    if isinstance(leaf, torch.Size) and any(isinstance(dim, torch.SymInt) for dim in leaf):
        return _form_of(shown(leaf, str))
    if not isinstance(leaf, _KEPT) and not is_shown_late(leaf):
        if not tracer().heap.knows(leaf):
            fail(
                f"a {type(leaf).__name__} that the function has made is printed or logged",
                "print or log its text: str(...), or compile with fallback=True",
            )
        tracer().heap.journal.referred.append(leaf)
    form, values = form_of(leaf)
    return form, [_of_size(value) for value in values]


def _of_size(value: Any) -> Any:
    return tracer().number_of_dim(value) if isinstance(value, torch.SymInt) else value


def _identity(leaf: Any) -> Any:
    """Return a key that distinguishes one constant of an act from another."""
    if isinstance(leaf, RunValue):
        return leaf
    return (type(leaf), repr(leaf)) if isinstance(leaf, _ATOMS) else ("object", id(leaf))


# ---- standard streams ------------------------------------------------------------------------


class RecordedStream:
    """Replacement of `sys.stdout` or `sys.stderr` while a function is captured."""

    def __init__(self, name: str, stream: Any) -> None:
        self._name = name
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: Any) -> Any:
        if active() is None:
            return self.stream.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        record(place_at(1), _written, self._name, text)
        return Poison(*_LENGTH) if is_text(text) else len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if active() is None:
            self.stream.flush()


_LENGTH = (
    "the number of characters that were written depends on the run",
    "do not use it, or compile with fallback=True",
)


def _written(name: str, text: str) -> None:
    getattr(sys, name).write(text)


def stream_name(owner: Any) -> str | None:
    """Return the name in `sys` of a standard stream; None for other objects."""
    for name, stream in _SILENCE.streams.items():
        if owner is stream or owner is stream.stream:
            return name
    return None


def printed(*args: Any, file: Any = None, **kwargs: Any) -> Any:
    """`print` in the user's code: recorded for the run. Files that outlive the call are refused."""
    stream = sys.stdout if file is None else file
    name = stream_name(stream)
    if name is not None:
        record(place_at(1), _printed, name, *map(_as_shown, args), **kwargs)
    elif isinstance(stream, io.StringIO) and not tracer().heap.knows(stream):
        builtins.print(*map(settled, map(_as_shown, args)), file=stream, **kwargs)
    else:
        fail(
            f"a {type(stream).__name__} that outlives the call is printed to",
            "print outside of the compiled function, or compile with fallback=True",
        )


def _printed(name: str, *args: Any, **kwargs: Any) -> None:
    builtins.print(*args, file=getattr(sys, name), **kwargs)


def _as_shown(value: Any) -> Any:
    """Return a value to print. User-defined texts of it, and texts of objects that the function
    has made, are traced; an object from before the call is shown as it is after the run."""
    if isinstance(value, Either):
        return Hooks.call(str, value)
    kind = type(value)
    name = "__repr__" if kind.__str__ is object.__str__ else "__str__"
    is_traced = isinstance(value, TracedTensor | TracedList | torch.SymInt | torch.SymFloat)
    if is_text(value) or isinstance(value, (TracedTensor, torch.SymInt, *_ATOMS)):
        return value
    if kind is torch.Tensor:
        return tracer().promote(value)
    is_traced |= pytree.tree_any(is_shown_late, value)
    if is_traced or is_user_function(getattr(kind, name)) or not tracer().heap.knows(value):
        return shown(value, str)
    return value


# ---- warnings --------------------------------------------------------------------------------

_warn, _warn_explicit = warnings.warn, warnings.warn_explicit


def warned(
    message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **options: Any
) -> None:
    """`warnings.warn`: recorded for the run, unless filters set by the captured function decide."""
    if active() is None:
        _warn(message, category, stacklevel + 1, source, **options)
        return
    if isinstance(message, Warning):
        category = type(message)
        message = shown(message, str) if shows_values(message) else message
    place = place_at(stacklevel)
    key = (place, stacklevel)
    filters = _action_here(message, category or UserWarning, place)
    if filters == "ignore":
        return
    if filters == "error":
        raise message if isinstance(message, Warning) else (category or UserWarning)(message)
    record(key, partial(_warned, place), message, category or UserWarning)


def _caught(*args: Any, **kwargs: Any) -> Any:
    """`warnings.catch_warnings`, which may set filters; recording of warnings is refused."""
    if args or kwargs.get("record"):
        fail(
            "warnings are recorded in the function, but are known only when the program runs",
            "record them outside of the compiled function, or compile with fallback=True",
        )
    return warnings.catch_warnings(**kwargs)


def _action_here(message: Any, category: type[Warning], place: SourceLine) -> str | None:
    """Return the action of warning filters that the captured function itself has set; None if it
    set none."""
    if list(warnings.filters) == _SILENCE.filters or is_text(message):
        return None
    text = str(message)
    for action, pattern, kind, module, line in warnings.filters:
        if (
            (pattern is None or pattern.match(text))
            and issubclass(category, kind)
            and (module is None or module.match(place.namespace.get("__name__", "")))
            and line in (0, place.line)
        ):
            return action
    return "default"


def _warned(place: SourceLine, message: Any, category: type[Warning]) -> None:
    at = place.now()
    registry = at.namespace.setdefault("__warningregistry__", {})
    module = at.namespace.get("__name__") or "<string>"
    _warn_explicit(message, category, at.file, at.line, module, registry, at.namespace)


def warned_explicitly(
    message: Any, category: Any, filename: str, lineno: int, *args: Any, **kwargs: Any
) -> None:
    """`warnings.warn_explicit`: recorded for the run."""
    if active() is None:
        _warn_explicit(message, category, filename, lineno, *args, **kwargs)
        return
    record((filename, lineno), _warn_explicit, message, category, filename, lineno, *args, **kwargs)


def _shown_by_torch(message: Any) -> None:
    """`warnings._showwarnmsg`, which C code calls directly. SyntaxWarnings are dropped: rewritten
    source is compiled again, and they were shown at import."""
    if active() is None:
        _SILENCE.show(message)
    elif not issubclass(message.category, SyntaxWarning):
        place = place_at(1)
        record(place, partial(_warned, place), message.message, message.category)


# ---- logs ------------------------------------------------------------------------------------

_TRACE = "torch.__trace"
"""torch's logger of records for the file named by TORCH_TRACE. Its handler removes itself at the
first record if no file is named; until then torch reads the stack for each record."""

_handle, _is_enabled = logging.Logger.handle, logging.Logger.isEnabledFor
LOG_METHODS = frozenset(
    ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
)
_OF_ROOT = {getattr(logging, name): name for name in LOG_METHODS if hasattr(logging, name)}


def rule_of(function: Any) -> Callable[..., Any] | None:
    """Return the rule for a function that logs, or for a method of a standard stream; else None."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, RecordedStream):
        return function
    if function is warnings.catch_warnings:
        return _caught
    name = stream_name(owner)
    if name is not None:
        return getattr(getattr(sys, name), function.__name__)
    if isinstance(owner, logging.Logger) and function.__name__ in LOG_METHODS:
        return partial(_logged, function)
    try:
        name = _OF_ROOT.get(function)
    except TypeError:
        return None
    return None if name is None else partial(_logged, getattr(logging.root, name))


def _logged(function: Any, *args: Any, stacklevel: int = 1, **kwargs: Any) -> None:
    before, _SILENCE.level = _SILENCE.level, stacklevel
    try:
        function(*args, **kwargs)
    finally:
        _SILENCE.level = before


def _handled(logger: logging.Logger, log: logging.LogRecord) -> None:
    """`Logger.handle`: recorded for the run; tracebacks are refused."""
    if active() is None or log.name == _TRACE or log.name.split(".")[0] == "stretto":
        _handle(logger, log)
        return
    if log.exc_info and log.exc_info[0] is not None:
        fail(
            "the traceback of an exception is logged",
            "log the exception itself, or compile with fallback=True",
        )
    place = place_at(_SILENCE.level)
    usual = vars(logging.makeLogRecord({})).keys()
    extra = {name: item for name, item in vars(log).items() if name not in usual}
    record(place, partial(_logged_again, logger, place, log.levelno), log.msg, log.args, extra)


def _logged_again(
    logger: logging.Logger, place: SourceLine, level: int, message: Any, args: Any, extra: Any
) -> None:
    if logger is logging.root and not logging.root.handlers:
        logging.basicConfig()
    if logger.isEnabledFor(level):
        at = place.now()
        args = (args,) if isinstance(args, dict) else args
        made = logger.makeRecord(
            logger.name, level, at.file, at.line, message, args, None, at.function, extra
        )
        logger.handle(made)


def _enabled(logger: logging.Logger, level: int) -> bool:
    """`Logger.isEnabledFor`. The answer is recorded: the program is valid while it holds."""
    state, found = active(), _is_enabled(logger, level)
    key = (id(logger), level)
    if state is not None and key not in state.asked and is_of_program():
        state.asked[key] = _Level(logger, level), found
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Reads whether a logger is enabled for a level."""

    logger: logging.Logger
    level: int

    @property
    def __name__(self) -> str:
        return f"the level of the logger {self.logger.name}"

    def __call__(self) -> bool:
        return _is_enabled(self.logger, self.level)


# ---- functions that are called once ----------------------------------------------------------


def called_once(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if a function with a cache (`functools.lru_cache`) prints, warns or logs. The
    call is then recorded: the run makes it, and the cache lets it act once for equal arguments."""
    before, _SILENCE.collected = _SILENCE.collected, []
    try:
        function.__wrapped__(*args, **kwargs)
        acts = bool(_SILENCE.collected)
    finally:
        _SILENCE.collected = before
    if acts:
        record(place_at(1), function, *args, **kwargs)
    return acts


# ---- intercepting output during a capture ----------------------------------------------------


@dataclass(eq=False)
class _Interception:
    """State of the interception while functions are captured, one at a time."""

    filters: list[Any] = field(default_factory=list[Any])
    show: Callable[[Any], None] = print
    level: int = 1
    collected: list[Any] | None = None
    streams: dict[str, RecordedStream] = field(default_factory=dict[str, RecordedStream])


_SILENCE = _Interception()


@contextmanager
def intercepted_output() -> Generator[None]:
    """Intercept the output of the captured function; other threads' output is shown as usual."""
    module: Any = warnings
    outer = _SILENCE.streams
    _SILENCE.streams = {
        name: RecordedStream(name, getattr(sys, name)) for name in ("stdout", "stderr")
    }
    places: list[tuple[Any, str, Any]] = [
        *((sys, name, stream) for name, stream in _SILENCE.streams.items()),
        (warnings, "warn", warned),
        (warnings, "warn_explicit", warned_explicitly),
        (warnings, "_showwarnmsg", _shown_by_torch),
        (logging.Logger, "handle", _handled),
        (logging.Logger, "isEnabledFor", _enabled),
    ]
    _SILENCE.filters, _SILENCE.show = list(warnings.filters), module._showwarnmsg
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, made in places:
        setattr(owner, name, made)
    try:
        yield
    finally:
        _SILENCE.streams = outer
        for (owner, name, was), (_, _, made) in zip(before, places, strict=True):
            if getattr(owner, name) is made:
                setattr(owner, name, was)


RULES: dict[Any, Callable[..., Any]] = {
    _warn: warned,
    warned: warned,
    _warn_explicit: warned_explicitly,
    warned_explicitly: warned_explicitly,
}
