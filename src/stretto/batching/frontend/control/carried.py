"""The variables that a loop carries, with a type for all its iterations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from stretto.batching.frontend.control.options import DATA, choice_of, numbered, without_data
from stretto.batching.frontend.control.tuples import as_list, is_tuple
from stretto.batching.frontend.state.builder import Gap, copies
from stretto.batching.frontend.state.frame import Exit, Frame
from stretto.batching.frontend.state.sameness import same
from stretto.batching.frontend.state.statics import is_data
from stretto.batching.frontend.state.values import (
    Choice,
    Dynamic,
    Static,
    TupleValue,
    Unbound,
    Value,
)
from stretto.batching.program import Assign, Operand, Variable
from stretto.batching.types import NEVER, Scalar, TupleType, Type, alternatives, union

_Key = tuple[str, tuple[int, ...]]
"""A local variable, or an item of the tuple that it holds."""


@dataclass(slots=True)
class Settled:
    """What is known of the variables that a loop carries, from one attempt to the next."""

    types: dict[_Key, Type] = field(default_factory=dict[_Key, Type])
    joined: set[_Key] = field(default_factory=set[_Key])
    """Tuples that are one variable, since other data takes their place."""
    lists: set[_Key] = field(default_factory=set[_Key])
    """Tuples that are not always of one length."""
    options: dict[_Key, list[Value]] = field(default_factory=dict[_Key, list[Value]])
    """What a variable may hold that is no data."""


def _lengths(type_: Type) -> set[int]:
    """The lengths of the tuples of known length that a value may be."""
    return {len(kind.items) for kind in alternatives(type_) if isinstance(kind, TupleType)}


class Attempt:
    """One evaluation of a loop's body, with variables of the types known so far."""

    def __init__(self, frame: Frame, entry: Gap, known: Settled) -> None:
        self._frame = frame
        self._entry = entry
        self._known = known

    def head(self, value: Value, name: str, path: tuple[int, ...]) -> Value:
        """The value of a variable at the head of the loop."""
        key = (name, path)
        if key in self._known.options:
            return self._choice(value, name, key)
        if isinstance(value, TupleValue) and key not in self._known.joined:
            items = tuple(
                self.head(item, name, (*path, number)) for number, item in enumerate(value.items)
            )
            return TupleValue(items, value.is_list)
        if not is_data(value):
            return value
        with self._frame.builder.into(self._entry.statements):
            if key in self._known.lists:
                value = as_list(self._frame, value, self._site(key))
            made = self._frame.dynamic(value)
            target = self._variable(name, union((made.type, self._type(key))))
            self._frame.builder.emit(Assign(target, "copy", (made.operand,)))
        return Dynamic(target, target.type)

    def _site(self, key: _Key) -> Hashable:
        return self._frame.site("tuple", key)

    def _type(self, key: _Key) -> Type:
        return self._known.types.get(key, NEVER)

    def _variable(self, name: str, type_: Type) -> Variable:
        self._frame.evaluation.settle(type_)
        return self._frame.builder.variable(name, type_)

    def _choice(self, value: Value, name: str, key: _Key) -> Choice:
        options = self._known.options[key]
        known = self._type(key)
        with self._frame.builder.into(self._entry.statements):
            number, made, type_ = numbered(self._frame, value, options)
            known = union((known, type_))
            index = self._frame.builder.variable(f"{name}_choice", Scalar.INT)
            self._frame.builder.emit(Assign(index, "copy", (number,)))
            if known == NEVER:
                return choice_of(index, options, None, NEVER)
            default, held = without_data(known)
            data = self._variable(name, held)
            source = default if made is None else made.operand
            self._frame.builder.emit(Assign(data, "copy", (source,)))
        return choice_of(index, options, data, known)

    def closes(self, heads: dict[str, Value], ends: list[Exit], names: frozenset[str]) -> bool:
        """Assigns the variables at the ends of iterations; False where types have grown."""
        settled = True
        for end in ends:
            pairs: list[tuple[Variable, Operand]] = []
            for name in sorted(names):
                value = end.locals.get(name, Unbound())
                settled &= self._close(heads[name], value, name, (), end.gap, pairs)
            end.gap.statements.extend(copies(pairs, self._frame.builder))
        return settled

    def _close(
        self,
        head: Value,
        value: Value,
        name: str,
        path: tuple[int, ...],
        gap: Gap,
        pairs: list[tuple[Variable, Operand]],
    ) -> bool:
        key = (name, path)
        if isinstance(head, Choice) and key in self._known.options:
            return self._close_choice(head, value, key, gap, pairs)
        if not isinstance(head, Dynamic | TupleValue):
            if same(head, value):
                return True
            return self._becomes_choice(head, value, key, gap)
        if not is_data(value):
            return self._becomes_choice(head, value, key, gap)
        if isinstance(head, TupleValue):
            parts = self._parts(value, len(head.items), gap)
            if parts is None:
                self._known.joined.add(key)
                if is_tuple(value):
                    self._known.lists.add(key)
                return False
            closed = [
                self._close(mine, part, name, (*path, number), gap, pairs)
                for number, (mine, part) in enumerate(zip(head.items, parts, strict=True))
            ]
            return all(closed)
        with self._frame.builder.into(gap.statements):
            if key in self._known.lists:
                value = as_list(self._frame, value, self._site(key))
            made = self._frame.dynamic(value)
        if _lengths(head.type) and _lengths(made.type) - _lengths(head.type):
            self._known.lists.add(key)
            return False
        assert isinstance(head.operand, Variable)
        if not self._grown(key, head.type, made.type):
            return False
        pairs.append((head.operand, made.operand))
        return True

    def _grown(self, key: _Key, known: Type, type_: Type) -> bool:
        """Whether a variable has the type already; it will have it in the next attempt."""
        grown = union((known, type_))
        if grown != known:
            self._known.types[key] = union((self._type(key), grown))
        return grown == known

    def _becomes_choice(self, head: Value, value: Value, key: _Key, gap: Gap) -> bool:
        """Some of what the variable holds is no data."""
        options = self._known.options.setdefault(key, [])
        with self._frame.builder.into(gap.statements):
            for item in (head, value):
                _, _, type_ = numbered(self._frame, item, options)
                self._known.types[key] = union((self._type(key), type_))
        return False

    def _close_choice(
        self,
        head: Choice,
        value: Value,
        key: _Key,
        gap: Gap,
        pairs: list[tuple[Variable, Operand]],
    ) -> bool:
        options = self._known.options[key]
        before = len(options)
        with self._frame.builder.into(gap.statements):
            number, made, type_ = numbered(self._frame, value, options)
        settled = self._grown(key, head.known, type_) and len(options) == before
        data = next((option for number, option in head.options if number == DATA), None)
        index = head.index.operand
        assert isinstance(index, Variable)
        if not settled:
            return False
        pairs.append((index, number))
        if data is not None:
            assert isinstance(data, Dynamic) and isinstance(data.operand, Variable)
            if made is not None and not self._grown(key, data.type, made.type):
                return False
            default, _ = without_data(head.known)
            pairs.append((data.operand, default if made is None else made.operand))
        return True

    def _parts(self, value: Value, length: int, gap: Gap) -> tuple[Value, ...] | None:
        """The items of a tuple of that length; None for any other value."""
        if isinstance(value, TupleValue):
            return value.items if len(value.items) == length else None
        if isinstance(value, Static) and type(value.value) is tuple:
            return tuple(map(Static, value.value)) if len(value.value) == length else None
        if isinstance(value, Dynamic) and isinstance(value.type, TupleType):
            if len(value.type.items) != length:
                return None
            with self._frame.builder.into(gap.statements):
                return tuple(
                    self._frame.assign("item", type_, value.operand, detail=number)
                    for number, type_ in enumerate(value.type.items)
                )
        return None
