"""`functools.singledispatch`, which looks at the class of an argument. A traced number is of the
class of Python that it stands for."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from stretto.frontends.python.calls.builtins import RULES


@functools.singledispatch
def _function(value: object) -> None: ...


class _Holder:
    @functools.singledispatchmethod
    def method(self, value: object) -> None: ...


_OF_FUNCTIONS = _function.__code__  # type: ignore[attr-defined]
_OF_METHODS = getattr(_Holder().method, "__code__", None)


def implementation(function: FunctionType, args: tuple[Any, ...]) -> Any:
    """The function that a call goes to; None where it does not depend on a class."""
    code = function.__code__
    if not args or code not in (_OF_FUNCTIONS, _OF_METHODS):
        return None
    found = RULES[type](args[0])
    kind: type = type(args[0]) if found is NotImplemented else found
    if code is _OF_FUNCTIONS:
        return function.dispatch(kind)  # type: ignore[attr-defined]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells}
    return held["self"].dispatcher.dispatch(kind).__get__(held["obj"], held["cls"])
