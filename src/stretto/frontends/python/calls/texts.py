"""Functions and methods that make texts of traced values, and methods of traced texts."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.frontends.python.lists import operations
from stretto.frontends.python.source.definitions import is_user_function
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import is_number, number_kind
from stretto.frontends.python.values.spelling import spelled
from stretto.frontends.python.values.state import TracedList
from stretto.frontends.python.values.texts import (
    Applied,
    Formatted,
    Percent,
    RunValue,
    Shown,
    TextCall,
    TextOf,
    TracedText,
    form_of,
    formatted,
    given,
    is_shown_late,
    is_text,
    joined,
    joined_texts,
    made_text,
    pieces_of,
    settled,
    values_of,
)

Rule = Callable[..., Any]

_MAKES_TEXT = frozenset(
    (
        "__format__", "__repr__", "__rmod__", "capitalize", "casefold", "center", "expandtabs",
        "ljust", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rjust", "rstrip",
        "strip", "swapcase", "title", "translate", "upper", "zfill",
    )
)  # fmt: skip
"""Methods of texts that return a text and raise nothing for arguments of the right classes."""
_PERCENT = re.compile(r"%(?:\((\w+)\))?([#0\- +]*\d*(?:\.\d+)?)[hlL]?([a-zA-Z%])|%")


@dataclass(frozen=True, slots=True)
class TextMethod:
    """A bound method of a traced text."""

    text: TracedText
    name: str

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return of_text(self.text, self.name, *args, **kwargs)


def _by_method(text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a text's method. If that is NotImplemented, the operator tries the
    other operand."""
    made = getattr(text, name)(*args, **kwargs)
    return getattr(operator, name)(text, *args) if made is NotImplemented else made


def of_text(text: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a traced text."""
    if tracer().data is not None:
        return tracer().data.of_text(text, name, args, kwargs)
    are_known = not kwargs and not any(map(is_shown_late, args))
    if name in _MAKES_TEXT and are_known:
        return _made_by(text, name, args)
    if name == "__getitem__" and are_known and type(args[0]) is slice:
        return _made_by(text, name, args)
    if name in ("startswith", "endswith") and len(args) == 1 and type(args[0]) is str:
        found = _has_affix(text, args[0], at_end=name == "endswith")
        if found is not None:
            return found
    if name == "__contains__" and type(args[0]) is str:
        parts = [piece for piece in pieces_of(text) if isinstance(piece, str)]
        if any(args[0] in part for part in parts):
            return True
    by_flag = _for_each_flag(text, lambda known: _by_method(known, name, args, kwargs))
    if by_flag is not UNDEFINED:
        return by_flag
    return getattr(settled(text), name)(*map(settled, args), **kwargs)


def _made_by(text: Any, name: str, args: tuple[Any, ...]) -> Any:
    getattr("", name)(*args)  # raises what the method raises for such arguments
    values = values_of(text)
    return made_text([Shown(TextCall(name, args, pieces_of(text)), len(values))], values)


def _has_affix(text: Any, affix: str, *, at_end: bool) -> bool | None:
    """Return True if the text begins or ends with an affix; None if its known parts do not decide
    that."""
    pieces = pieces_of(text)
    edge = pieces[-1 if at_end else 0]
    if not isinstance(edge, str):
        return _has_number(edge, values_of(text), affix, at_end=at_end)
    shorter = min(len(edge), len(affix))
    if not shorter:
        return True
    ends = (edge[-shorter:], affix[-shorter:]) if at_end else (edge[:shorter], affix[:shorter])
    if ends[0] != ends[1]:
        return False
    return True if len(affix) <= len(edge) else None


def _has_number(piece: Shown, values: tuple[Any, ...], affix: str, *, at_end: bool) -> bool | None:
    """The same if the text begins or ends with a traced integer."""
    value = values[-1 if at_end else 0]
    if piece.show != Formatted() or number_kind(value) is not int or not affix:
        return None if affix else True
    return None if affix[-1 if at_end else 0] in "-0123456789" else False


_MOST_FLAGS = 3


def _for_each_flag(text: Any, use: Callable[[Any], Any]) -> Any:
    """Apply `use` to a text whose traced parts are at most three bools, with a branch for each;
    UNDEFINED for other texts."""
    values = values_of(text)
    are_flags = all(is_number(value) and value.dtype == torch.bool for value in values)
    if not are_flags or len(values) > _MOST_FLAGS:
        return UNDEFINED
    return _with_flags(text, list(values), [], use)


def _with_flags(text: Any, left: list[Any], known: list[bool], use: Callable[[Any], Any]) -> Any:
    if not left:
        return use(TextOf(pieces_of(text))(known))
    first, *rest = left
    return Hooks.python.branch(
        first,
        lambda: _with_flags(text, rest, [*known, True], use),
        lambda: _with_flags(text, rest, [*known, False], use),
    )


# ---- making texts ----------------------------------------------------------------------------


def shown(value: Any, function: Callable[[Any], str]) -> Any:
    """`function(value)`, where `function` is `str`, `repr` or `ascii`."""
    conversion = ord("s" if function is str else "r" if function is repr else "a")
    if isinstance(value, TracedList):
        return _applied(function, operations.copied(value))
    if is_shown_late(value):
        return formatted(value, conversion, "")
    if isinstance(value, torch.Size):
        is_late = any(isinstance(dim, torch.SymInt) for dim in value)
        return _applied(_text_of_size, list(value)) if is_late else str(value)
    kind = type(value)
    if kind.__str__ is BaseException.__str__ and function is str:
        args = value.args
        return "" if not args else shown(args[0], str) if len(args) == 1 else shown(args, repr)
    name = "__str__" if function is str and kind.__str__ is not object.__str__ else "__repr__"
    method = getattr(kind, name)
    if is_user_function(method) and function is not ascii:
        return Hooks.call(method, value)
    if pytree.tree_any(lambda leaf: is_shown_late(leaf) or isinstance(leaf, TracedList), value):
        return _applied(function, value)
    return function(value)


def _text_of_size(dims: list[int]) -> str:
    return str(torch.Size(dims))


def _applied(function: Callable[..., str], value: Any, **options: Any) -> Any:
    """Return the text that a function makes, in the run, of containers with traced values."""
    filled, values = given(value, _form_of)
    show = Applied(function, filled, tuple(options.items()))
    return made_text([Shown(show, len(values))], values)


def _form_of(leaf: Any) -> tuple[Any, Any]:
    if isinstance(leaf, TracedList):
        return RunValue(), [operations.copied(leaf)]
    if isinstance(leaf, torch.Size):
        leaf = torch.Size([int(dim) for dim in leaf])
    return form_of(leaf)


def _shown_by(function: Callable[[Any], str]) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        return shown(args[0], function) if len(args) == 1 and not kwargs else NotImplemented

    return rule


def _in_base(form: str) -> Rule:
    def rule(value: Any) -> Any:
        if not isinstance(value, TracedTensor | torch.SymInt):
            return NotImplemented
        is_integer = isinstance(value, torch.SymInt) or number_kind(value) in (int, bool)
        return joined([(value, -1, form)]) if is_integer else NotImplemented

    return rule


def _dumps(value: Any, **options: Any) -> Any:
    is_plain = not {"cls", "default"} & options.keys()
    leaves = pytree.tree_leaves(value)
    late = [leaf for leaf in leaves if is_shown_late(leaf)]
    are_known_to_json = all(is_number(x) or not isinstance(x, torch.Tensor) for x in late)
    if not late or not is_plain or not are_known_to_json:
        return NotImplemented
    return _applied(json.dumps, value, **options)


def percent(
    form: Any,
    values: Any,
    show: Callable[[Any, Any], Any] | None = None,
    number: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """`form % values`, with traced values among them. show: makes the texts of values, if that is
    not a matter of plain Python. number: returns the operand of other conversions."""
    given = values if isinstance(values, tuple) else (values,)
    named = values if isinstance(values, dict) else {}
    is_plain = show is None and not any(map(_needs_late, (*given, *named.values())))
    if not isinstance(form, str) or is_plain:
        return form % settled(values)
    if is_text(form):
        return settled(form) % values
    supply = iter(given)
    parts, at = list[Any](), 0
    for match in _PERCENT.finditer(form):
        parts.append(form[at : match.start()])
        at = match.end()
        name, flags, kind = match.groups()
        if name is not None and not isinstance(values, dict):
            raise TypeError("format requires a mapping")
        if kind is None:
            return form % tuple(settled(number(item)) for item in given)
        if kind == "%":
            parts.append("%")
            continue
        value = named[name] if name is not None else next(supply, UNDEFINED)
        if value is UNDEFINED:
            raise TypeError("not enough arguments for format string")
        if kind in "sra":
            function = {"s": str, "r": repr, "a": ascii}[kind]
            parts.append(_padded(flags, (show or shown)(value, function)))
        else:
            parts.append(_by_percent(flags, kind, number(value)))
    if not named and next(supply, UNDEFINED) is not UNDEFINED:
        raise TypeError("not all arguments converted during string formatting")
    return joined_texts("", [*parts, form[at:]])


def _needs_late(value: Any) -> bool:
    return pytree.tree_any(lambda leaf: is_shown_late(leaf) or isinstance(leaf, TracedList), value)


def _padded(flags: str, text: Any) -> Any:
    if flags and is_text(text):
        return _made_by(text, "__rmod__", (f"%{flags}s",))
    return f"%{flags}s" % text if flags else text


def _by_percent(flags: str, kind: str, value: Any) -> Any:
    if isinstance(value, TracedTensor):
        value = Hooks.item(value)
        if kind == "c" or (kind in "diuxXo" and number_kind(value) is float):
            settled(joined([(value, -1, "")]))  # it raises for some of these values
    if is_shown_late(value):
        return made_text([Shown(Percent(f"%{flags}{kind}"))], [value])
    return f"%{flags}{kind}" % value


RULES: dict[Any, Rule] = {
    str: _shown_by(str),
    repr: _shown_by(repr),
    ascii: _shown_by(ascii),
    hex: _in_base("#x"),
    oct: _in_base("#o"),
    bin: _in_base("#b"),
    json.dumps: _dumps,
}

Hooks.of_text = of_text
Hooks.text_method = TextMethod
Hooks.shown = shown
Hooks.spelled = spelled
