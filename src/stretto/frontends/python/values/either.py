"""Either: a value that is one of several things of different kinds, depending on the run.

After `if t: self.h = x`, an attribute that was None before is a tensor or None. A flag tells which
one. Every use of such a value is a branch on its flags; in each arm it is one of the options. An
exception of eager PyTorch for one option is therefore raised when the program reaches it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from stretto.frontends.python.tracing.signals import BINARY, COMPARISONS, UNARY, fail
from stretto.frontends.python.tracing.tensor import Hooks


class Either:
    """One of `stretto_options`, selected by `stretto_flags`: Python or traced bools of which
    exactly one holds. Other attributes are those of the options."""

    __slots__ = ("__weakref__", "stretto_flags", "stretto_options")

    def __init__(self, flags: Sequence[Any], options: Sequence[Any]) -> None:
        self.stretto_flags = tuple(flags)
        self.stretto_options = tuple(options)

    def __getitem__(self, index: Any) -> Any:
        return Hooks.python.getitem(self, index)

    def __len__(self) -> int:
        return Hooks.call(len, self).__index__()

    def __iter__(self) -> Iterator[Any]:
        options = self.stretto_options
        are_indexed = all(hasattr(x, "__getitem__") and not hasattr(x, "keys") for x in options)
        items = self if are_indexed else Hooks.call(list, self)
        return iter([items[index] for index in range(len(items))])

    def __bool__(self) -> bool:
        return bool(Hooks.call(bool, self))

    def __hash__(self) -> int:
        fail(
            "a value that is one of several is a key of a dict, or an item of a set",
            "use it in each arm of the branch that chooses it, or compare with ==",
        )

    def __str__(self) -> str:
        return _text(Hooks.call(str, self))

    def __repr__(self) -> str:
        return _text(Hooks.call(repr, self))

    def __format__(self, spec: str) -> str:
        return _text(Hooks.call(format, self, spec))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, dict(kwargs or {}))
        outcome = Hooks.of_function(func, *given)
        if outcome is not NotImplemented:
            return outcome
        found = first_either(given)
        assert found is not None

        def with_option(option: Any) -> Any:
            others, named = replaced(given, found, option)
            made = func(*others, **named)
            if made is NotImplemented:
                kind = type(option).__name__
                raise TypeError(f"unsupported operand type for {func.__name__}: '{kind}'")
            return made

        return Hooks.use(found, with_option)


def needs_text() -> NoReturn:
    """Raise Abort for a Python text that is known only at run time."""
    fail(
        "the text itself is needed here, and it shows a value that is known only when the program "
        "runs",
        "compare the value in place of the text; a text can be returned, stored, printed or be the "
        "message of an exception; or compile with fallback=True",
    )


def _text(value: Any) -> str:
    """Return a Python `str`, as Python's own methods require one."""
    return needs_text() if isinstance(value, Either) else str(value)


def first_either(value: Any) -> Either | None:
    """Return the first Either in tuples, lists, dicts and slices; None if there is none."""
    kind = type(value)
    if issubclass(kind, Either):
        return value
    if issubclass(kind, (tuple, list)):
        return next((e for item in value if (e := first_either(item)) is not None), None)
    if issubclass(kind, dict):
        return first_either(list(value.values()))
    if kind is slice:
        return first_either((value.start, value.stop, value.step))
    return None


def replaced(value: Any, either: Either, option: Any) -> Any:
    """Return `value` with `either` replaced by `option`."""
    if value is either:
        return option
    if isinstance(value, Either) or first_either(value) is None:
        return value
    if isinstance(value, dict):
        return {key: replaced(item, either, option) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, slice):
        return slice(*replaced((value.start, value.stop, value.step), either, option))
    items = [replaced(item, either, option) for item in value]
    if isinstance(value, list):
        return items
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


NONE: Any = object()
"""Represents an option that a value does not have."""


def options_of(value: Any) -> tuple[Any, ...]:
    """Return the possible options of a value; the value itself if it is no Either."""
    if not isinstance(value, Either):
        return (value,)
    pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
    return tuple(option for flag, option in pairs if flag is not False)


def _delegate(
    name: str, operation: Callable[..., Any], swapped: bool = False
) -> Callable[..., Any]:
    def on_option(option: Any, *others: Any) -> Any:
        return operation(*others, option) if swapped else operation(option, *others)

    def method(self: Either, *others: Any) -> Any:
        outcome = Hooks.of_operator(name, on_option, self, others)
        if outcome is not NotImplemented:
            return outcome
        return Hooks.use(self, lambda option: on_option(option, *others))

    return method


for _name in BINARY:
    _operation = getattr(operator, f"__{_name}__")
    setattr(Either, f"__{_name}__", _delegate(_name, _operation))
    setattr(Either, f"__r{_name}__", _delegate(_name, _operation, swapped=True))
    setattr(Either, f"__i{_name}__", _delegate(_name, getattr(operator, f"__i{_name}__")))
for _name in (*UNARY, *COMPARISONS):
    setattr(Either, f"__{_name}__", _delegate(_name, getattr(operator, f"__{_name}__")))


# ---- entries of dicts ------------------------------------------------------------------------
