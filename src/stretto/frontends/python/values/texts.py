"""Texts that show sizes: `f"{n} tokens"` where `n` is symbolic.

Most of them are made for a warning or an error that does not come, so making one settles nothing.
A `SizeText` shows the sizes of this capture. Where it is used as text, each of its sizes becomes
the number that it shows, by a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.sizes import Symbolic, plain

_NUMBERS: dict[type, Callable[[Any], Any]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}

TextPart = str | tuple[Any, int, str]
"""Part of an f-string: text, or a value with its conversion (or -1) and its format."""


class SizeText(str):
    """A text with the sizes that it shows."""

    sizes: tuple[Symbolic, ...]

    @staticmethod
    def of(text: str, sizes: Sequence[Symbolic]) -> SizeText:
        made = SizeText(text)
        made.sizes = tuple(sizes)
        tracer().has_texts = True
        return made

    @property
    def unsettled(self) -> str:
        return str.__str__(self)

    def settled(self) -> str:
        """The text, after its sizes have become numbers."""
        for size in self.sizes:
            _NUMBERS[type(size)](size)
        return self.unsettled

    def __add__(self, other: Any) -> Any:
        return _added(self, other)

    def __radd__(self, other: Any) -> Any:
        return _added(other, self)


def _added(first: Any, second: Any) -> Any:
    if not isinstance(first, str) or not isinstance(second, str):
        return NotImplemented
    return joined([(first, -1, ""), (second, -1, "")])


def _settling(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def settling(self: str, *args: Any, **kwargs: Any) -> Any:
        text = self.settled() if isinstance(self, SizeText) else self  # a call has settled it
        return method(text, *args, **kwargs)

    return settling


_KEPT = {"__new__", "__init__", "__getattribute__", "__add__", "__class__", "__doc__"}
for _name in vars(str).keys() - _KEPT:
    if callable(getattr(str, _name)) and _name != "maketrans":
        setattr(SizeText, _name, _settling(_name))


def joined(parts: Sequence[TextPart]) -> str:
    """An f-string of these parts."""
    pieces, sizes = list[str](), list[Symbolic]()
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        value, conversion, form = part
        value = value if active() is None else plain(value)
        if isinstance(value, Symbolic):
            sizes.append(value)
            value = value.node.hint
        value, form = (_unsettled(item, sizes) for item in (value, form))
        value = _CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value
        pieces.append(format(value, form))
    made = "".join(pieces)
    return SizeText.of(made, sizes) if sizes else made


def _unsettled(item: Any, sizes: list[Symbolic]) -> Any:
    if not isinstance(item, SizeText):
        return item
    sizes += item.sizes
    return item.unsettled


def settled_texts(value: Any) -> Any:
    """The value with texts of Python in it, as native code takes them."""
    state = active()
    if state is None or not state.has_texts:
        return value
    return tree_map_only(SizeText, SizeText.settled, value)
