"""Texts of instances: what Python does with a `str` that only the run knows.

A text of an instance is a `TracedText` with a hole for a value of the data dialect. Joining texts
only collects their pieces; what looks into a text is a function of this module, which the
interpreter runs. Only a few of them are ops of the dialect: `characters`, `joined`, `is_part`.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# arguments of the functions that are run are values of the interpreter

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.texts import is_text, joined_texts
from stretto.ir.types import Scalar

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


def of_text(interpreter: PythonInterpreter, text: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Call a method of a text, which may be known itself if an argument is not."""
    data = tracer().data
    if name == "__add__":
        return joined_texts("", (text, *args))
    if name == "__repr__":
        return data.text("repr", data.text_value(text))
    function = _METHODS.get(name)
    if function is None:
        fail(
            f"'{name}' of a text of an instance is used",
            "compare it, join it with others, or go through its characters",
        )
    try:
        inspect.signature(function).bind(text, *args, **kwargs)
    except TypeError:
        fail(f"'{name}' of a text of an instance gets these arguments", "use fewer of them")
    return interpreter.recursion.run(function, (text, *args), kwargs)


def repeated(interpreter: PythonInterpreter, text: Any, count: Any) -> Any:
    """Return `text * count`."""
    if type(count) is int:
        return joined_texts("", [text] * count)
    return interpreter.run_own(_repeated, text, count)


def of_functions(interpreter: PythonInterpreter) -> dict[Any, Callable[..., Any]]:
    """Return the rules of functions on texts."""

    def characters_of(text: Any) -> Any:
        return interpreter.heap.new(list, tracer().data.characters(text))

    def joined_items(items: Any) -> Any:
        data = tracer().data
        return data.text("join_all", data.list_of_texts(items))

    def is_part_of(part: Any, text: Any) -> Any:
        data = tracer().data
        return data.made("contains", (data.text_value(text), data.text_value(part)), Scalar.BOOL)

    def code_of(character: Any) -> Any:
        if tracer().data is None or not is_text(character):
            return interpreter.calls.native(ord, (character,), {})
        data = tracer().data
        return data.made("ord", (data.text_value(character),), Scalar.INT)

    return {characters: characters_of, joined: joined_items, is_part: is_part_of, ord: code_of}


def characters(text: Any) -> Any:
    """Return a list of the characters. The interpreter has a rule for this function."""
    raise AssertionError(text)


def joined(items: Any) -> Any:
    """Return the text of a list of texts. The interpreter has a rule for this function."""
    raise AssertionError(items)


def is_part(part: Any, text: Any) -> Any:
    """Return `part in text`. The interpreter has a rule for this function."""
    raise AssertionError(part, text)


# -- functions that are run -----------------------------------------------------------------------


def _length(self):
    return len(characters(self))


def _iterator(self):
    return iter(characters(self))


def _contains(self, part):
    if not isinstance(part, str):
        kind = type(part).__name__
        raise TypeError(f"'in <string>' requires string as left operand, not {kind}")
    return is_part(part, self)


def _item(self, index):
    parts = characters(self)
    if isinstance(index, slice):
        return joined(parts[index])
    if not isinstance(index, int):
        raise TypeError(f"string indices must be integers, not '{type(index).__name__}'")
    if index >= len(parts) or index < -len(parts):
        raise IndexError("string index out of range")
    return parts[index]


def _repeated(self, count):
    return joined(characters(self) * count)


def _join(self, items):
    found = ""
    for number, item in enumerate(items):
        if not isinstance(item, str):
            kind = type(item).__name__
            raise TypeError(f"sequence item {number}: expected str instance, {kind} found")
        found = found + self + item if number > 0 else item
    return found


def _starts_with(self, prefix):
    if isinstance(prefix, tuple):
        return any([self.startswith(one) for one in prefix])  # noqa: C419
    return self[: len(prefix)] == prefix


def _ends_with(self, suffix):
    if isinstance(suffix, tuple):
        return any([self.endswith(one) for one in suffix])  # noqa: C419
    start = len(self) - len(suffix)
    return start >= 0 and self[start:] == suffix


def _find(self, part):
    size = len(part)
    for start in range(len(self) - size + 1):
        if self[start : start + size] == part:
            return start
    return -1


def _find_last(self, part):
    size = len(part)
    last = len(self) - size
    for step in range(last + 1):
        if self[last - step : last - step + size] == part:
            return last - step
    return -1


def _index(self, part):
    found = self.find(part)
    if found < 0:
        raise ValueError("substring not found")
    return found


def _index_of_last(self, part):
    found = self.rfind(part)
    if found < 0:
        raise ValueError("substring not found")
    return found


def _count(self, part):
    size, last = len(part), len(self) - len(part)
    if size == 0:
        return last + 1
    found, start = 0, 0
    while start <= last:
        if self[start : start + size] == part:
            found, start = found + 1, start + size
        else:
            start += 1
    return found


def _replace(self, old, new):
    if len(old) == 0:
        return "".join([new + one for one in characters(self)]) + new
    return new.join(self.split(old))


def _split(self, separator=None):
    parts, part = [], ""
    if separator is None:
        for one in characters(self):
            if one not in _SPACE:
                part += one
            elif part != "":
                parts.append(part)
                part = ""
        if part != "":
            parts.append(part)
        return parts
    size, start = len(separator), 0
    if size == 0:
        raise ValueError("empty separator")
    length = len(self)
    while start < length:
        if self[start : start + size] == separator:
            parts.append(part)
            part, start = "", start + size
        else:
            part, start = part + self[start], start + 1
    parts.append(part)
    return parts


def _strip(self, removed=None):
    return self.lstrip(removed).rstrip(removed)


def _strip_left(self, removed=None):
    removed = _SPACE if removed is None else removed
    start, length = 0, len(self)
    while start < length and self[start] in removed:
        start += 1
    return self[start:]


def _strip_right(self, removed=None):
    removed = _SPACE if removed is None else removed
    end = len(self)
    while end > 0 and self[end - 1] in removed:
        end -= 1
    return self[:end]


def _without_prefix(self, prefix):
    return self[len(prefix) :] if self.startswith(prefix) else self[:]


def _without_suffix(self, suffix):
    return self[: len(self) - len(suffix)] if self.endswith(suffix) else self[:]


def _justified_left(self, width, fill=" "):
    return self + fill * (width - len(self))


def _justified_right(self, width, fill=" "):
    return fill * (width - len(self)) + self


_SPACE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""The characters that `str.strip` and `str.split` remove."""
_METHODS: dict[str, Callable[..., Any]] = {
    "__len__": _length, "__iter__": _iterator, "__contains__": _contains, "__getitem__": _item,
    "join": _join, "startswith": _starts_with, "endswith": _ends_with, "find": _find,
    "rfind": _find_last, "index": _index, "rindex": _index_of_last, "count": _count,
    "replace": _replace, "split": _split, "strip": _strip, "lstrip": _strip_left,
    "rstrip": _strip_right, "removeprefix": _without_prefix, "removesuffix": _without_suffix,
    "ljust": _justified_left, "rjust": _justified_right,
}  # fmt: skip
