"""Texts of instances as values of the Program.

A text of an instance is a `TracedText`: one whose only piece shows a value of the data dialect, or
one that the program has joined of several pieces. It becomes a value where the program stores it,
compares it or looks into it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from stretto.frontends.python.interpreter import data_texts
from stretto.frontends.python.interpreter.heap import ITEMS
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject, DataTable
from stretto.frontends.python.values.leaves import kind_of, materialize
from stretto.frontends.python.values.scalars import LeafKind
from stretto.frontends.python.values.texts import Formatted, Shown, TracedText, is_text
from stretto.ir.core import Literal, Value
from stretto.ir.types import ListType, Scalar


def _no_attribute(name: str, *new: Any) -> NoReturn:
    fail(f"the attribute '{name}' of a text of an instance is used", "compare the text only")


def _is_shown_plainly(piece: Shown, value: Any) -> bool:
    show = piece.show
    if not isinstance(show, Formatted) or show.form or show.conversion == ord("a"):
        return False
    is_number = isinstance(value, TracedTensor) and value.number is not None
    return isinstance(value, DataObject) or (is_number and not value.dtype.is_floating_point)


class InstanceTexts(ABC):
    """The part of `InstanceData` that concerns texts."""

    evaluation: Any
    interpreter: Any

    @abstractmethod
    def made(self, op: str, args: tuple[Any, ...], type: Any, detail: Any = None) -> Any:
        """Emit an op on data, and return its result."""

    @abstractmethod
    def emit(self, op: str, args: tuple[Any, ...], type: Any, detail: Any = None) -> Value:
        """Emit an op, and return the value of the Program."""

    @abstractmethod
    def new_content(self, items: Any) -> DataList:
        """Return the content of a new list with some items."""

    def compared(self, name: str, first: Any, second: Any) -> Any:
        """Return a comparison of texts."""
        if not isinstance(first, str) or not isinstance(second, str):
            return NotImplemented
        args = tuple(self.text_value(x) if is_text(x) else Literal(x) for x in (first, second))
        return self.made(name, args, Scalar.BOOL)

    def text_of(self, value: Value) -> TracedText:
        """Return a text of the Program as a text with one hole."""
        hole = DataObject(str, DataTable(tuple, _no_attribute, _no_attribute), value)
        tracer().has_texts = True
        return TracedText((Shown(Formatted()),), (hole,))

    def text(self, op: str, value: Value) -> TracedText:
        """Emit an op that makes a text."""
        return self.text_of(self.emit(op, (value,), Scalar.STR))

    def kind_of_text(self, text: TracedText) -> LeafKind | None:
        """Return the kind of a text; None if it shows values in a way that data do not."""
        shown = [piece for piece in text.stretto_pieces if isinstance(piece, Shown)]
        are_plain = len(shown) == len(text.stretto_values) and all(
            map(_is_shown_plainly, shown, text.stretto_values)
        )
        of_text: Any = Scalar.STR
        return LeafKind(of_text, False) if are_plain else None

    def text_value(self, text: Any) -> Value:
        """Return a text as a value of the Program."""
        if not is_text(text):
            return self.emit("copy", (Literal(text),), Scalar.STR)
        if self.kind_of_text(text) is None:
            fail(
                "a text of an instance shows a value in another way than str(x) of an int, bool "
                "or str",
                "make the text of the result, outside of the batch",
            )
        found, values = None, iter(text.stretto_values)
        for piece in text.stretto_pieces:
            part: Any = Literal(piece)
            if isinstance(piece, Shown):
                part = self._shown(piece, next(values))
            found = part if found is None else self.emit("join_str", (found, part), Scalar.STR)
        assert found is not None and not isinstance(found, Literal)
        return found

    def _shown(self, piece: Shown, value: Any) -> Value:
        is_repr = isinstance(piece.show, Formatted) and piece.show.conversion == ord("r")
        if isinstance(value, DataObject):
            return self.emit("repr", (value.value,), Scalar.STR) if is_repr else value.value
        kind = kind_of(value)
        assert kind is not None
        return self.emit("text", (materialize(value, kind),), Scalar.STR)

    def of_text(self, text: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of a text."""
        return data_texts.of_text(self.interpreter, text, name, args, kwargs)

    def characters(self, text: Any) -> DataList:
        type = ListType(self.evaluation.cell("characters"))
        self.evaluation.grow(type.cell, Scalar.STR)
        return DataList(self.emit("characters", (self.text_value(text),), type))

    def list_of_texts(self, items: Any) -> Value:
        """Return a list of texts as a value of the Program."""
        content = items.table[ITEMS]
        return content.value if isinstance(content, DataList) else self.new_content(content).value
