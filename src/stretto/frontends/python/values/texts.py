"""Texts that show values of the run: `f"step {n}"` where `n` is a traced number.

A `TracedText` holds the pieces of a text and the values that they show. It is no `str`, so no C
function can read it. A program builds the text itself at each run if it is returned, stored,
printed or the message of an exception. Comparisons with known texts become comparisons of the
values (`spelling`). Any other use needs the values as Python numbers (`settled`): sizes become
numbers by guards, the counter of a loop by unrolling it, all others are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stretto.frontends.python.tracing.contents import content
from stretto.frontends.python.tracing.signals import Abort
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.data import DataObject
from stretto.frontends.python.values.data_dependent_sizes import Symbolic, plain
from stretto.frontends.python.values.either import Either, needs_text
from stretto.frontends.python.values.number_methods import own_method
from stretto.frontends.python.values.scalars import (
    concrete,
    is_number,
    known_value,
    python_kind,
)
from stretto.ir.types import DType

_NUMBERS: dict[type, Callable[[Any], Any]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}

TextPart = str | tuple[Any, int, Any]
"""Part of an f-string: text, or a value with its conversion (or -1) and its format."""


@dataclass(frozen=True, slots=True)
class Formatted:
    """Formats one value as an f-string does."""

    conversion: int = -1
    form: str = ""

    def __call__(self, values: Sequence[Any]) -> str:
        (value,) = values
        value = _CONVERSIONS[self.conversion](value) if self.conversion in _CONVERSIONS else value
        return format(value, self.form)


@dataclass(frozen=True, slots=True)
class Percent:
    """Formats one value as `%` does: `"%05.2f" % value`."""

    form: str

    def __call__(self, values: Sequence[Any]) -> str:
        return self.form % tuple(values)


@dataclass(frozen=True, slots=True)
class RunValue:
    """Placeholder for a value of the run, or for a text of `count` of them."""

    text: TextOf | None = None
    count: int = 1

    def __call__(self, values: Sequence[Any]) -> Any:
        return values[0] if self.text is None else self.text(values)


@dataclass(frozen=True, slots=True)
class FilledContainers:
    """Containers of constants, with placeholders for values of the run."""

    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec = field(hash=False)

    def __call__(self, values: Sequence[Any]) -> Any:
        made, at = list[Any](), 0
        for leaf in self.leaves:
            if isinstance(leaf, RunValue):
                made.append(leaf(values[at : at + leaf.count]))
                at += leaf.count
            else:
                made.append(leaf)
        return pytree.tree_unflatten(made, self.structure)


@dataclass(frozen=True, slots=True)
class Applied:
    """A function that makes a text from containers with values of the run in them."""

    function: Callable[..., str]
    given: FilledContainers
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, values: Sequence[Any]) -> str:
        return self.function(self.given(values), **dict(self.options))


@dataclass(frozen=True, slots=True)
class TextCall:
    """A method of texts, with known arguments, applied to the text of some pieces."""

    method: str
    arguments: tuple[Any, ...]
    pieces: TextParts

    def __call__(self, values: Sequence[Any]) -> str:
        return getattr(str, self.method)(TextOf(self.pieces)(values), *self.arguments)


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece that shows the next `count` values."""

    show: Formatted | Percent | Applied | TextCall
    count: int = 1


TextParts = tuple[str | Shown, ...]


@dataclass(frozen=True, slots=True)
class TextOf:
    """Builds a text from its pieces and the values of a run."""

    pieces: TextParts

    def __call__(self, values: Sequence[Any]) -> str:
        supply = iter(values)
        return "".join(
            piece
            if isinstance(piece, str)
            else piece.show([next(supply) for _ in range(piece.count)])
            for piece in self.pieces
        )


class TracedText:
    """A text that shows values of the run; see the module's docstring."""

    __slots__ = ("__weakref__", "stretto_pieces", "stretto_values")

    def __init__(self, pieces: TextParts, values: Sequence[Any]) -> None:
        self.stretto_pieces = pieces
        self.stretto_values = tuple(values)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(str, name):
            raise AttributeError(f"'str' object has no attribute '{name}'")
        return Hooks.text_method(self, name)

    def __add__(self, other: Any) -> Any:
        return added(self, other)

    def __radd__(self, other: Any) -> Any:
        return added(other, self)

    def __mul__(self, times: Any) -> Any:
        return joined_texts("", [self] * times) if type(times) is int else settled(self) * times

    def __mod__(self, values: Any) -> Any:
        return Hooks.python.modulo(settled(self), values)

    def __getitem__(self, index: Any) -> Any:
        return Hooks.of_text(self, "__getitem__", index)

    def __eq__(self, other: object) -> Any:
        return Hooks.spelled(self, other)

    def __ne__(self, other: object) -> Any:
        return Hooks.python.not_(Hooks.spelled(self, other))

    def __hash__(self) -> int:
        return hash(settled(self))

    def __str__(self) -> str:
        return settled(self)

    def __repr__(self) -> str:
        return repr(settled(self))

    def __format__(self, form: str) -> str:
        return format(settled(self), form)

    def __len__(self) -> int:
        return len(settled(self))

    def __bool__(self) -> bool:
        shows = any(isinstance(piece, Shown) and is_never_empty(piece) for piece in pieces_of(self))
        return shows or any(map(bool, constants_of(self))) or bool(settled(self))

    def __iter__(self) -> Iterator[str]:
        return iter(settled(self))

    def __contains__(self, item: Any) -> bool:
        return item in settled(self)

    def __deepcopy__(self, memo: Any) -> TracedText:
        return self


def _settling(name: str) -> Callable[[TracedText, Any], Any]:
    return lambda text, other: getattr(settled(text), name)(settled(other))


for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(TracedText, _name, _settling(_name))
TracedText.__name__ = "str"  # the name that Python's error messages show to the user


def is_text(value: object) -> bool:
    """True for a traced text, whose `__class__` is `str`."""
    return type(value) is TracedText


def pieces_of(value: Any) -> TextParts:
    """Return the pieces of a text, traced or not."""
    return value.stretto_pieces if is_text(value) else (value,)


def values_of(value: Any) -> tuple[Any, ...]:
    """Return the values that a text shows."""
    return value.stretto_values if is_text(value) else ()


def constants_of(value: Any) -> list[str]:
    """Return the parts of a text that are the same in all runs."""
    return [piece for piece in pieces_of(value) if isinstance(piece, str)]


def is_never_empty(piece: Shown) -> bool:
    """True if a piece shows at least one character for every value."""
    return isinstance(piece.show, Formatted | Percent)


def made_text(pieces: Sequence[str | Shown], values: Sequence[Any]) -> Any:
    """Return the text of these pieces: a `str` if it shows no value of the run."""
    merged, last = list[str | Shown](), ""
    for piece in pieces:
        if isinstance(piece, str):
            last += piece
            continue
        merged += [last, piece] if last else [piece]
        last = ""
    merged += [last] if last else []
    if not any(isinstance(piece, Shown) for piece in merged):
        return "".join(piece for piece in merged if isinstance(piece, str))
    tracer().has_texts = True
    return TracedText(tuple(merged), values)


def joined_texts(separator: Any, texts: Sequence[Any]) -> Any:
    """Return `separator.join(texts)`, where any of them may be traced."""
    pieces, values = list[str | Shown](), list[Any]()
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f"sequence item {number}: expected str instance, {kind} found")
        for part in (separator, text) if number else (text,):
            pieces += pieces_of(part)
            values += values_of(part)
    return made_text(pieces, values)


def added(first: Any, second: Any) -> Any:
    """Return `first + second`, where at least one is a traced text."""
    if isinstance(first, Either) or isinstance(second, Either):
        one, other = (first, second) if isinstance(first, Either) else (second, first)
        is_first = one is first
        return Hooks.use(one, lambda x: added(x, other) if is_first else added(other, x))
    if not isinstance(first, str) or not isinstance(second, str):
        return NotImplemented
    return joined_texts("", [first, second])


def has_part(text: Any, part: Any) -> Any:
    """Return `part in text`, where at least one is a traced text."""
    if not isinstance(part, str):
        raise TypeError(f"'in <string>' requires string as left operand, not {type(part).__name__}")
    if tracer().data is not None:
        return Hooks.of_text(text, "__contains__", part)
    return (
        Hooks.of_text(text, "__contains__", settled(part))
        if is_text(text)
        else settled(part) in text
    )


def is_shown_late(value: Any) -> bool:
    """True if the text that shows a value is known only when the program runs."""
    return isinstance(value, torch.Tensor | Symbolic) or is_text(value)


def kept(value: Any) -> Any:
    """Return the value for a text built later: a tensor is copied, so that the text shows its
    present contents."""
    if isinstance(value, nn.Parameter) and not isinstance(value, TracedTensor):
        held = content(value, "text")
        with tracer().native():
            return nn.Parameter(held.clone(), value.requires_grad)
    if isinstance(value, torch.Tensor) and not is_number(value):
        with tracer().mode:
            return value.clone()
    return value


def given(
    value: Any, form_of: Callable[[Any], tuple[Any, Sequence[Any]]]
) -> tuple[FilledContainers, list[Any]]:
    """Return containers to be filled after the run, and the values of the run that they take."""
    leaves, structure = pytree.tree_flatten(value)
    forms, values = list[Any](), list[Any]()
    for leaf in leaves:
        form, needed = form_of(plain(leaf))
        forms.append(form)
        values += needed
    return FilledContainers(tuple(forms), structure), values


def form_of(leaf: Any) -> tuple[Any, Sequence[Any]]:
    """Return the placeholder for a leaf of a container, and the values of the run that it takes."""
    if is_text(leaf):
        return RunValue(TextOf(leaf.stretto_pieces), len(leaf.stretto_values)), leaf.stretto_values
    return (RunValue(), [kept(leaf)]) if is_shown_late(leaf) else (leaf, ())


def joined(parts: Sequence[TextPart]) -> Any:
    """Return an f-string of these parts."""
    if active() is None:
        return "".join(p if isinstance(p, str) else Formatted(p[1], p[2])([p[0]]) for p in parts)
    pieces, values = list[str | Shown](), list[Any]()
    for number, part in enumerate(parts):
        if isinstance(part, str):
            pieces.append(part)
            continue
        value, conversion, form = part
        if isinstance(value, Either):
            return Hooks.use(value, partial(_joined_with, parts, number))
        text = formatted(plain(value), conversion, settled(form))
        pieces += pieces_of(text)
        values += values_of(text)
    return made_text(pieces, values)


def _joined_with(parts: Sequence[TextPart], number: int, option: Any) -> Any:
    part = (option, *parts[number][1:])
    return joined([*parts[:number], part, *parts[number + 1 :]])  # pyright: ignore[reportArgumentType]


def formatted(value: Any, conversion: int, form: str) -> Any:
    """Return the text of one value in an f-string."""
    if is_text(value):
        if conversion in (ord("r"), ord("a")):
            value = Hooks.of_text(value, "__repr__")
        return value if not form else Hooks.of_text(value, "__format__", form)
    known = known_value(value) if isinstance(value, TracedTensor) else None
    if known is not None:
        value = bool(known) if value.dtype == torch.bool else known
    if isinstance(value, TracedTensor) and value.number is None and conversion == -1:
        if value.dim() and form:
            raise TypeError("unsupported format string passed to Tensor.__format__")
        value = value if value.dim() else Hooks.item(value)
    if is_shown_late(value):
        show = Formatted(conversion, form)
        if is_number(value):
            show([python_kind(DType.from_torch(value.dtype))()])  # raises for a wrong format
        return made_text([Shown(show)], [kept(value)])
    own = own_method(value, "__format__") if conversion == -1 else None
    if own is not None:
        return Hooks.call(own, form)
    if conversion == -1 and form:
        return format(value, form)
    shown = Hooks.shown(value, _CONVERSIONS.get(conversion, str))
    return format(shown, form) if not is_text(shown) else formatted(shown, -1, form)


def settled(value: Any) -> Any:
    """Return a text with all its values turned into Python numbers; any other value unchanged."""
    if not is_text(value):
        return value
    return TextOf(value.stretto_pieces)([_number(item) for item in value.stretto_values])


def _number(value: Any) -> Any:
    if isinstance(value, Symbolic):
        return _NUMBERS[type(value)](value)
    if isinstance(value, DataObject):
        needs_text()
    if not isinstance(value, torch.Tensor | Either):
        return settled(value)
    with contextlib.suppress(Abort):
        if isinstance(value, TracedTensor) and value.number is not None:
            return concrete(value, "text")
        if isinstance(value, torch.Tensor):
            return content(value, "text")
    needs_text()


def settled_texts(value: Any) -> Any:
    """Return the value with its traced texts turned into Python texts, as native code
    needs them."""
    state = active()
    if state is None or not state.has_texts:
        return value
    with state.running_natively():  # methods of the user's containers are not traced here
        if not pytree.tree_any(is_text, value):
            return value
        return pytree.tree_map(settled, value)
