"""`vars`, `dir`, `globals` and `locals`: names of attributes and variables as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


def namespace_rules(interpreter: PythonInterpreter) -> dict[Any, Callable[..., Any]]:
    def vars_(*args: Any) -> Any:
        if not args:
            _variables()
        if isinstance(args[0], Either):
            return interpreter.regions.each_option(args[0], vars_)
        return interpreter.attributes.getattr(args[0], "__dict__")

    def dir_(*args: Any) -> Any:
        if not args:
            _variables()
        if interpreter.heap.is_own(args[0]) or not native_code.is_immutable(args[0]):
            _variables()
        return interpreter.calls.natives.call(dir, args, {})

    return {globals: _globals, locals: _variables, vars: vars_, dir: dir_}


def _globals() -> NoReturn:
    fail(
        "globals() is called, but its entries are not tracked while capturing",
        "name the variables; to assign one, declare it with `global`",
    )


def _variables() -> NoReturn:
    fail(
        "locals(), vars() or dir() is called, but variables differ while capturing",
        "name the variables, or compile with fallback=True",
    )
