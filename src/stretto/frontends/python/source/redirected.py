"""User functions that are called by code that is not rewritten, while a capture is active.

Rewritten code passes its calls to the tracer. But special methods, properties, descriptors,
hooks and callbacks are called by the interpreter, by torch and by the standard library.
During a capture the code of every function that it may reach is therefore replaced by code
of the same signature that passes the call to the tracer too. Python itself then finds the
right method by its own rules, and the tracer sees the method's effects.
"""

from __future__ import annotations

import ast
import dis
import gc
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from itertools import islice
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import active

_REWRITTEN = weakref.WeakSet[CodeType]()
"""Rewritten code objects. Marked by code, since wrappers copy the attributes of a function."""
_TARGET = "__stretto_redirection"
_LAZY = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_MOST_STEPS = 5
"""Maximum number of standard-library objects between a class and a function that it calls."""

_READERS = ("__getattr__", "__getattribute__")
"""Methods that `isinstance` also calls, even in the tracer: for dunder names they run untraced,
with everything they call."""

RESULTS: dict[str, type] = {
    "__bool__": bool, "__len__": int, "__length_hint__": int, "__index__": int, "__int__": int,
    "__float__": float, "__complex__": complex, "__hash__": int, "__str__": str, "__repr__": str,
    "__format__": str, "__bytes__": bytes,
}  # fmt: skip
"""Methods whose results must be of a Python class if the interpreter calls them."""

_HANDLED: dict[str, tuple[type[Exception], ...]] = {
    "__getitem__": (IndexError, StopIteration), "__next__": (StopIteration,),
    "__getattr__": (AttributeError,), "__getattribute__": (AttributeError,),
    "__missing__": (KeyError,), "__len__": (TypeError,), "__length_hint__": (TypeError,),
}  # fmt: skip
"""Exceptions of methods that their caller may handle, as a loop does at its end."""

_OF_GENERATORS: tuple[FunctionType, ...] = tuple(
    function
    for function in (
        torch.random.manual_seed,
        torch.random.seed,
        torch.random.set_rng_state,
    )
    if isinstance(function, FunctionType)
)
"""Functions of torch that set random number generators."""


_PLAIN = frozenset(
    (
        "CACHE", "RESUME", "COPY_FREE_VARS", "NOP", "POP_TOP", "LOAD_FAST", "LOAD_CONST",
        "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "BINARY_OP", "BUILD_TUPLE", "RETURN_VALUE",
        "RETURN_CONST",
    )
)  # fmt: skip
"""Instructions that rewriting does not change."""


def mark(function: Any) -> Any:
    """Record that `function`'s code is already rewritten (it is local to rewritten code), and
    return it."""
    _REWRITTEN.add(function.__code__)
    return function


def is_rewritten(function: Any) -> bool:
    return isinstance(function, FunctionType) and function.__code__ in _REWRITTEN


_FRONTEND = Path(__file__).parents[1]
_LOOKS_INTO = tuple(
    str(_FRONTEND / part)
    for part in (
        *(
            "aliasing",
            "guards",
            "objects",
            "results",
            "values/leaves.py",
            "values/state.py",
            "values/stores.py",
        ),
    )
)


@dataclass(eq=False, slots=True)
class Redirection:
    """Passes calls of a function to the tracer during a capture. code: its own code. as_it_is: the
    function with its own code."""

    function: FunctionType
    code: CodeType
    as_it_is: FunctionType = field(init=False)

    def __post_init__(self) -> None:
        function: Any = self.function
        self.as_it_is = FunctionType(
            self.code, function.__globals__, function.__name__, None, function.__closure__
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        state = active()
        if state is None or state.is_native or _is_transforming():
            return self.as_it_is(*args, **kwargs)
        name = self.code.co_name
        is_asked = name in _READERS and args[1].startswith("__")
        if is_asked or _is_of_tracer(sys._getframe(2).f_code.co_filename):  # pyright: ignore[reportPrivateUsage]
            with state.running_natively():
                return self.as_it_is(*args, **kwargs)
        handled = _HANDLED.get(name, ())
        state.tries.handled.append(handled)
        try:
            return Hooks.returned(name, Hooks.call(self.function, *args, **kwargs))
        finally:
            state.tries.handled.pop()


@cache
def _is_of_tracer(filename: str) -> bool:
    """True for stretto's code that inspects the user's objects, which is not part of the
    program."""
    return filename.startswith(_LOOKS_INTO)


def _is_transforming() -> bool:
    """True inside functions that torch transforms, whose tensors are not the tracer's."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore


def code_of(function: FunctionType) -> CodeType:
    """Return the user's code of a function, redirected or not."""
    redirection = _redirection(function)
    return function.__code__ if redirection is None else redirection.code


def _redirection(function: FunctionType) -> Redirection | None:
    constants = function.__code__.co_consts
    last = constants[-1] if constants else None
    return last if isinstance(last, Redirection) else None


@dataclass(eq=False, slots=True)
class Redirected:
    """The redirected functions. known: objects that the capture can reach, a growing table."""

    known: dict[int, Any]
    functions: list[FunctionType] = field(default_factory=list[FunctionType])
    classes: set[type] = field(default_factory=set[type])
    done: int = 0

    def update(self) -> None:
        """Redirect the functions among objects that became known since the last call."""
        if self.done == len(self.known):
            return
        added = list(islice(self.known.values(), self.done, None))
        self.done = len(self.known)
        for value in added:
            self.add(value)

    def add(self, value: Any) -> None:
        """Redirect a function, or the functions of a class."""
        if isinstance(value, FunctionType):
            self._redirect(value)
        elif isinstance(value, type):
            for kind in (*type.mro(type(value)), *value.__mro__):
                self._add_class(kind)

    def _add_class(self, kind: type) -> None:
        if kind in self.classes or kind.__module__ in ("builtins", "abc"):
            return
        self.classes.add(kind)
        for entry in list(vars(kind).values()):
            for function in _functions(entry, _MOST_STEPS):
                self._redirect(function)

    def _redirect(self, function: FunctionType) -> None:
        """Redirect a user function, unless rewriting would not change its effect."""
        code = function.__code__
        if (
            not is_user_file(code.co_filename)
            or (code.co_flags & _LAZY and not _is_iteration(code))
            or code.co_name == "__del__"
            or _redirection(function) is not None
            or is_rewritten(function)
            or (_is_plain(code) and code.co_name not in RESULTS)
        ):
            return
        self.replace(function)

    def replace(self, function: FunctionType) -> None:
        """Redirect any function, the user's or not."""
        code = function.__code__
        redirection = Redirection(function, code)
        made = _redirecting(code)
        places = (*made.co_consts, redirection)
        function.__code__ = made.replace(
            co_consts=tuple(redirection if item == _TARGET else item for item in places)
        )
        self.functions.append(function)

    def leave(self, function: FunctionType) -> None:
        """Restore the function's own code."""
        redirection = _redirection(function)
        if redirection is not None:
            function.__code__ = redirection.code


@contextmanager
def redirected(known: dict[int, Any]) -> Generator[Redirected]:
    """Redirect the functions among `known`, those found later, and those of torch that set random
    number generators, which other torch code may call. Restores all of them on leaving."""
    made = Redirected(known)
    try:
        for function in _OF_GENERATORS:
            made.replace(function)
        made.update()
        yield made
    finally:
        for function in made.functions:
            made.leave(function)


def _functions(entry: Any, steps: int) -> Iterator[FunctionType]:
    """Yield the functions that a class entry calls: itself, or those that a property, a wrapper or
    another standard-library object refers to."""
    if isinstance(entry, FunctionType):
        yield entry
        held: list[Any] = [cell.cell_contents for cell in entry.__closure__ or () if _is_set(cell)]
    elif isinstance(entry, type | ModuleType | torch.Tensor) or not gc.is_tracked(entry):
        return
    else:
        held = gc.get_referents(entry)
    if steps:
        for item in held:
            yield from _functions(item, steps - 1)


def _is_set(cell: CellType) -> bool:
    return bool(gc.get_referents(cell))


def _is_iteration(code: CodeType) -> bool:
    """True for a generator `__iter__` or `__reversed__`, which only yields items and may be
    collected."""
    is_generator = code.co_flags & _LAZY == CO_GENERATOR
    return is_generator and code.co_name in ("__iter__", "__reversed__")


@cache
def _is_plain(code: CodeType) -> bool:
    """True if rewriting would not change the code's effect."""
    names = {dis.opname[operation] for operation in code.co_code[::2]}
    return names <= _PLAIN


@cache
def _redirecting(code: CodeType) -> CodeType:
    """Return code with the signature of `code` that calls a constant with its arguments."""
    names = code.co_varnames
    positional, count = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    extra = iter(names[count:])
    rest = next(extra) if code.co_flags & CO_VARARGS else None
    named = next(extra) if code.co_flags & CO_VARKEYWORDS else None
    only = names[positional:count]
    given = [f"{name}={name}" for name in only]
    given += [f"**{named}"] if named else []
    call = ", ".join([*names[:positional], *([f"*{rest}"] if rest else []), *given])
    signature = [*names[:positional]]
    if code.co_posonlyargcount:
        signature.insert(code.co_posonlyargcount, "/")
    signature += [f"*{rest}"] if rest else ["*"] if only else []
    signature += [*only, *([f"**{named}"] if named else [])]
    free = ", ".join(code.co_freevars)
    text = (
        f"def factory({free}):\n"
        f"  def function({', '.join(signature)}):\n"
        f"    if False: ({free})\n"
        f"    {_TARGET} = {_TARGET!r}\n"
        f"    return {_TARGET}({call})\n"
    )
    module = compile(ast.parse(text), code.co_filename, "exec", dont_inherit=True)
    made = _inner(_inner(module))
    return made.replace(
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
    )


def _inner(code: CodeType) -> CodeType:
    return next(item for item in code.co_consts if isinstance(item, CodeType))
