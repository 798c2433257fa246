"""Texts that show values, and methods of texts that take values."""

from __future__ import annotations

import _string  # type: ignore[import-not-found]
import itertools
import operator
from collections.abc import Callable, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.calls.texts import percent
from stretto.frontends.python.interpreter.heap import (
    ATOMS,
    ITEMS,
    MISSING,
    DictView,
    HeapKey,
    IteratorRef,
    Ref,
)
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either, first_either, replaced
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

Lookup = Callable[[int | str], Any]
_PLAIN_TEXTS = (BaseException.__str__, AttributeError.__str__)
"""Methods that show the arguments of an exception."""


class Strings:
    """Texts that show values."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.shown: list[Any] = []
        """The containers whose text is being made."""

    # -- showing values -------------------------------------------------------------------------

    def text(self, value: Any, kind: Any = str) -> Any:
        """Return `kind(value)`, for `str`, `repr` or `ascii`."""
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, lambda x: self.text(x, kind))
        for name in ("__str__", "__repr__") if kind is str else ("__repr__",):
            method = self.interpreter.attributes.method(value, name)
            if method is not MISSING:
                return self._checked(self.interpreter.calls.call(method, (), {}), name)
        if isinstance(value, Ref) and isinstance(value.table[ITEMS], Either):

            def again() -> Any:
                return self.text(value, kind)

            return self.interpreter.containers.with_content(value, again)
        if isinstance(value, BaseException):
            return self._of_error(value, kind)
        if isinstance(value, DictView):
            held = self.heap.new(list, self.interpreter.iteration.known(value))
            return self._enclosed(f"dict_{value.name}(", [self.text(held, repr)], ")")
        if kind is not ascii and self._has_own_text(value, ()):
            return self._of_items(value)
        return self.interpreter.calls.natives.call(kind, (value,), {})

    def _checked(self, found: Any, name: str) -> Any:
        if isinstance(found, Either):
            return self.interpreter.regions.each_option(found, lambda x: self._checked(x, name))
        if not self.interpreter.attributes.is_instance(found, str):
            kind = self.interpreter.attributes.type_of(found).__name__
            raise TypeError(f"{name} returned non-string (type {kind})")
        return found

    def _of_error(self, error: BaseException, kind: Any) -> Any:
        if kind is str and type(error).__str__ in _PLAIN_TEXTS:
            shown = [self.text(x, str if len(error.args) == 1 else repr) for x in error.args]
            return shown[0] if len(shown) == 1 else self._enclosed("(", shown, ")") if shown else ""
        shown = [self.text(item, repr) for item in error.args]
        if kind is str:
            is_key = type(error).__str__ is KeyError.__str__ and len(shown) == 1
            return shown[0] if is_key else str(error)
        return self._enclosed(f"{type(error).__name__}(", shown, ")")

    def _has_own_text(self, value: Any, outer: tuple[Any, ...]) -> bool:
        """True for a container with an item whose text a method of the program makes, or that
        contains itself. outer: the containers of which it is an item."""
        if type(value) in ATOMS:
            return False
        if isinstance(value, DictView) or any(value is holder for holder in outer):
            return True
        items = self._items(value)
        return items is not None and any(
            self.interpreter.attributes.method(item, "__repr__") is not MISSING
            or isinstance(item, Either)
            or self._has_own_text(item, (*outer, value))
            for item in items
        )

    def _items(self, value: Any) -> list[Any] | None:
        """Return the items that the text of a container shows; None for other values."""
        if not isinstance(value, Ref):
            return list(value) if type(value) is tuple else None
        content = value.table[ITEMS]
        if isinstance(content, TracedList) or value.kind not in (list, dict, set):
            return None
        if isinstance(content, dict):
            content = self.interpreter.containers.entries(value)
            keys = [key.value if isinstance(key, HeapKey) else key for key in content]
            return [*keys, *(() if value.kind is set else content.values())]
        return list(content)

    def _of_items(self, value: Any) -> Any:
        """Return the text of a container, item by item."""
        if any(value is holder for holder in self.shown):
            marks: dict[Any, str] = {list: "[...]", dict: "{...}", set: "set(...)"}
            return marks.get(getattr(value, "kind", tuple), "(...)")
        self.shown.append(value)
        try:
            shown = [self.text(item, repr) for item in self._items(value) or ()]
        finally:
            self.shown.pop()
        if type(value) is tuple:
            return self._enclosed("(", shown, ",)" if len(shown) == 1 else ")")
        if not shown:
            return self.interpreter.calls.natives.call(repr, (value,), {})
        if value.kind is not dict:
            return self._enclosed(*(("[", shown, "]") if value.kind is list else ("{", shown, "}")))
        count = len(shown) // 2
        pairs = zip(shown[:count], shown[count:], strict=True)
        return self._enclosed("{", [self._joined(": ", pair) for pair in pairs], "}")

    def _enclosed(self, start: str, shown: Sequence[Any], end: str) -> Any:
        return self._joined("", (start, self._joined(", ", shown), end))

    def _joined(self, separator: Any, parts: Sequence[Any]) -> Any:
        """Return `separator.join(parts)`, where parts may be one of several texts."""
        for number, part in enumerate(parts):
            if isinstance(part, Either):
                return self.interpreter.regions.each_option(
                    part,
                    lambda option, number=number: self._joined(
                        separator, (*parts[:number], option, *parts[number + 1 :])
                    ),
                )
            if not self.interpreter.attributes.is_instance(part, str):
                kind = self.interpreter.attributes.type_of(part).__name__
                raise TypeError(f"sequence item {number}: expected str instance, {kind} found")
        return texts.joined_texts(separator, list(parts))

    def formatted(self, value: Any, conversion: int, spec: Any) -> Any:
        """Return the part of an f-string that shows a value."""
        if isinstance(value, Either):
            shown = self.interpreter.regions.each_option(
                value, lambda option: texts.joined((self.formatted(option, conversion, spec),))
            )
            return (shown, -1, "")
        if conversion != -1:
            kind = {ord("s"): str, ord("r"): repr, ord("a"): ascii}[conversion]
            if kind is not ascii and self._is_shown_here(value):
                return (self.text(value, kind), -1, spec)
            return (self.heap.real(value), conversion, spec)
        method = self.interpreter.attributes.method(value, "__format__")
        if method is not MISSING:
            return (
                self._checked(self.interpreter.calls.call(method, (spec,), {}), "__format__"),
                -1,
                "",
            )
        if self._is_shown_here(value):
            if not isinstance(spec, str) or spec:
                format(object() if not isinstance(value, Ref) else [], spec)  # raises TypeError
            return (self.text(value, str), -1, "")
        return (value, -1, spec)

    def _is_shown_here(self, value: Any) -> bool:
        """True for a value whose text no rule for plain values makes."""
        kinds = (Ref, DictView, tuple, IteratorRef, BaseException)
        return isinstance(value, kinds) or any(
            self.interpreter.attributes.method(value, name) is not MISSING
            for name in ("__str__", "__repr__")
        )

    # -- methods of texts -----------------------------------------------------------------------

    def method(self, text: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of a text that shows its arguments, or takes their items; NotImplemented
        for other methods."""
        if name == "join" and len(args) == 1 and not kwargs:
            items = self.interpreter.iteration.collect(args[0])
            if isinstance(items, DataList):
                found = self.heap.new(list, items)
                return tracer().data.of_text(text, name, (found,), {})
            return self._joined(text, list(self.interpreter.iteration.iterate(items)))
        if name == "format":
            return self._filled(text, args, lambda key: apply(operator.getitem, kwargs, key))
        if name == "format_map" and len(args) == 1:
            getitem = self.interpreter.containers.getitem
            return self._filled(text, None, lambda key: getitem(args[0], key))
        return NotImplemented

    def _filled(self, form: Any, args: tuple[Any, ...] | None, named: Lookup) -> Any:
        """Return a text with values in place of its replacement fields. args: None if there are
        no positional ones."""
        taken, kinds = itertools.count(), set[bool]()

        def value_of(key: int | str) -> Any:
            if key != "" and not isinstance(key, int):
                return named(key)
            if args is None:
                raise ValueError("Format string contains positional fields")
            kinds.add(key == "")
            if len(kinds) > 1:
                ways = ("manual field specification", "automatic field numbering")
                before, now = ways if key == "" else ways[::-1]
                raise ValueError(f"cannot switch from {before} to {now}")
            place = next(taken) if key == "" else int(key)
            if place >= len(args):
                raise IndexError(
                    f"Replacement index {place} out of range for positional args tuple"
                )
            return args[place]

        return self._with_fields(texts.settled(form), value_of)

    def _with_fields(self, form: str, value_of: Lookup) -> Any:
        parts = list[Any]()
        for literal, field, spec, conversion in Formatter().parse(form):
            parts.append(literal)
            if field is None:
                continue
            first, rest = _string.formatter_field_name_split(field)
            value = value_of(first)
            for is_attribute, name in rest:
                if is_attribute:
                    value = self.interpreter.attributes.getattr(value, name)
                else:
                    value = self.interpreter.containers.getitem(value, name)
            if spec and "{" in spec:
                spec = self._with_fields(spec, value_of)
            if conversion and conversion not in "sra":
                raise ValueError(f"Unknown conversion specifier {conversion}")
            parts.append(self.formatted(value, ord(conversion) if conversion else -1, spec or ""))
        return texts.joined(tuple(parts))

    def percent(self, form: Any, values: Any) -> Any:
        """Return `form % values`."""
        if isinstance(values, Ref) and isinstance(values.table[ITEMS], dict):
            values = dict(self.interpreter.containers.mapping(values))
        found = first_either(values)
        if found is not None:
            return self.interpreter.regions.each_option(
                found, lambda option: self.percent(form, replaced(values, found, option))
            )
        return percent(form, values, self.text, self._number)

    def _number(self, value: Any) -> Any:
        """Return the operand of a conversion that shows numbers."""
        for name, kind in (("__float__", float), ("__index__", int), ("__int__", int)):
            if self.interpreter.attributes.method(value, name) is not MISSING:
                return self.interpreter.calls.call(kind, (value,), {})
        return self.heap.real(value)
