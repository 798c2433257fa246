"""A variable that has no value the Program can represent; any use of it is a CaptureError."""

from __future__ import annotations

from typing import Any, NoReturn

from stretto.frontends.python.tracing.signals import Abort, abort, fail


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
