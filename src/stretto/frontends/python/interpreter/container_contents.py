"""The contents of lists, dicts, sets and deques: items, entries and keys."""

from __future__ import annotations

import ast
import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from operator import is_not
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.interpreter.data_dicts import DataDict, FixedItems
from stretto.frontends.python.interpreter.heap import (
    ATOMS,
    ITEMS,
    MAXLEN,
    MISSING,
    AttributeTable,
    HeapKey,
    Ref,
)
from stretto.frontends.python.lists import data_methods, operations
from stretto.frontends.python.tracing.signals import Abort, Poison, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import concrete, is_number, known_value, to_number
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class ContainerContents:
    """Reads and changes the contents of containers."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.active: Ref | None = None
        """The container of which a method runs."""

    def items(self, holder: Ref) -> Any:
        """Return the content: a tuple, a dict, or a list of the Program."""
        items = holder.table[ITEMS]
        if isinstance(items, Poison):
            items.fail()
        return items

    def changed_items(self, holder: Ref) -> Any:
        """Return the content, which is to be changed."""
        if id(holder.table) in self.heap.copies:
            self.heap.check_copies(holder.table)
        return self.items(holder)

    def unchanged(self, holder: Ref, operation: Callable[[], Any]) -> Any:
        """Run an operation that compares items of a container. Fails if a comparison of the program
        changes the container."""
        items = holder.table[ITEMS]
        found = operation()
        is_view = isinstance(holder.table, AttributeTable)  # its items are read at each access
        if not is_view and holder.table[ITEMS] is not items:
            fail(
                f"a comparison changes the {base_of(holder.kind).__name__} whose items it compares",
                "change it after the comparison",
            )
        return found

    def put(self, holder: Ref, items: Any) -> None:
        self.heap.set(holder.table, ITEMS, items)

    def with_content(self, holder: Ref, operation: Callable[[], Any]) -> Any:
        """Run an operation on a container; as a branch if its content is one of several."""
        items, before = self.items(holder), self.active
        if not isinstance(items, Either):
            self.active = holder
            try:
                return operation()
            finally:
                self.active = before

        def with_option(option: Any) -> Any:
            self.put(holder, option)
            return operation()

        return self.interpreter.regions.each_option(items, with_option)

    def entries(self, holder: Ref) -> dict[Any, Any]:
        """Return the content of a dict or set where all entries are needed."""
        items = self.items(holder)
        if isinstance(items, DataDict):
            if self.active is not None and self.active is not holder:
                tracer().data.become_data(self.active.table)
            fail("all entries of a dict of an instance are needed", "use a loop over its items")
        if any(self.interpreter.regions.is_bound(item) is not True for item in items.values()):
            fail(
                "all entries of a dict are needed, and one was added or removed in only one arm of "
                "a traced branch",
                "add it in both arms, or access single entries",
            )
        return items

    def new_like(self, holder: Ref, items: Any) -> Ref:
        """Return a new container as methods and operators of a class return it: one of a class of
        the user gives one of its base class."""
        kept = next((k for k in (OrderedDict, deque) if issubclass(holder.kind, k)), None)
        kind = holder.kind if kept is not None else base_of(holder.kind)
        made = self.heap.new(kind, items)
        for key in ("default_factory", MAXLEN):
            if (kind in (defaultdict, deque) or kept is deque) and key in holder.table:
                made.table[key] = holder.table[key]
        return made

    def copied(self, holder: Ref) -> Ref:
        items = self.items(holder)
        return self.new_like(
            holder, operations.copied(items) if isinstance(items, TracedList) else items
        )

    def key(self, key: Any, holder: Ref | None = None) -> Any:
        """Return the key of an entry of a dict or set, which the capture has to know."""
        found = self.asked_key(key)
        if isinstance(found, HeapKey):
            return found
        if tracer().data is not None:
            tracer().data.check_key(found, holder or self.active)
        if type(found) is tuple:
            items = tuple(map(self.key, found))
            return found if all(map(operator.is_, items, found)) else items
        return texts.settled(concrete(found, "number for a key") if is_number(found) else found)

    def asked_key(self, key: Any) -> Any:
        """Return a key to look up, which may be a number or a text that only the run knows."""
        if isinstance(key, HeapKey):
            return key
        if type(key) is slice:
            raise TypeError("unhashable type: 'slice'")
        if type(key) is tuple:
            for part in key:
                self.asked_key(part)
        if type(key) not in ATOMS and not isinstance(key, torch.Tensor | Either):
            hashed = self.interpreter.attributes.method(key, "__hash__")
            if hashed is None or (hashed is MISSING and isinstance(key, Ref)):
                kind = self.interpreter.attributes.type_of(key)
                raise TypeError(f"unhashable type: '{kind.__name__}'")
        if not self._has_own_hash(key):
            if isinstance(key, torch.SymBool | torch.SymFloat):
                return bool(key) if isinstance(key, torch.SymBool) else float(key)
            return fixed_key(key)
        return HeapKey(key, self._hash(key), self._are_equal)

    def _has_own_hash(self, key: Any) -> bool:
        """True for an object of the user whose class says how keys are compared."""
        if type(key) is tuple:
            return any(map(self._has_own_hash, key))
        if type(key) in ATOMS or isinstance(key, type | Enum | torch.Tensor | Either):
            return False
        names = ("__hash__", "__eq__")
        return any(self.interpreter.attributes.method(key, n) is not MISSING for n in names)

    def _hash(self, key: Any) -> int:
        if type(key) is tuple:
            return hash(tuple(map(self.key, key)))
        found = self.interpreter.calls.call(hash, (key,), {})
        if not isinstance(found, int):
            fail("the hash of a key depends on a tensor", "use a key that is known")
        return hash(found)

    def _are_equal(self, first: Any, second: Any) -> bool:
        operators = self.interpreter.operators
        found = operators.truth(operators.compare(ast.Eq, first, second))
        if not isinstance(found, bool):
            fail("whether two keys are equal depends on a tensor", "use keys that are known")
        return found

    def position(self, holder: Ref, index: Any) -> Any:
        """Return a position in a list: an int, or a traced number."""
        found = self.interpreter.operators.special(index, "__index__")
        index = index if found is NotImplemented else found
        if isinstance(index, TracedTensor) and index.number is not None:
            known = known_value(index)
            if known is None or isinstance(known, float | complex):
                return index
            index = known
        elif (
            isinstance(index, TracedTensor)
            and index.numel() == 1
            and not (index.dtype.is_floating_point or index.dtype.is_complex)
        ):
            return to_number(index)
        try:
            return operator.index(index)
        except TypeError:
            shown = self.interpreter.attributes.type_of(index).__name__
            base = base_of(holder.kind)
            what = (
                "sequence index must be integer"
                if base is deque
                else ("list indices must be integers or slices")
            )
            raise TypeError(
                f"{what}, not '{shown}'" if base is deque else f"{what}, not {shown}"
            ) from None

    def set_entry(self, holder: Ref, index: Any, value: Any) -> None:
        """Set an entry of a dict, or add an item to a set."""
        if not issubclass(holder.kind, dict | set):
            raise TypeError(f"'{holder.kind.__name__}' object does not support item assignment")
        key = self.key(index, holder)
        items = self.items(holder)
        if isinstance(items, FixedItems) and key in items:
            items.store(key, value)
            return
        held = self.unchanged(holder, lambda: items.get(key, MISSING))
        bound = self.interpreter.regions.is_bound(held)
        if key in items and bound is not True and next(reversed(items)) is not key:
            fail(
                "an entry of a dict that was added or removed in only one arm of a traced branch "
                "is set, which decides the order of the entries",
                "add it in both arms",
            )
        self.put(holder, {**items, key: value})

    def remove_entry(self, holder: Ref, index: Any, shown: Any = MISSING) -> Any:
        """Remove an entry of a dict or an item of a set, and return the value. Raises KeyError.
        shown: what the error names in place of the key."""
        key, regions = self.key(index, holder), self.interpreter.regions
        items = self.items(holder)
        found = self.unchanged(holder, lambda: items.get(key, MISSING))
        bound = regions.is_bound(found)

        def removed() -> Any:
            self.put(holder, {k: v for k, v in items.items() if k is not key and k != key})
            return regions.present(found)

        def missing() -> Any:
            named = index if shown is MISSING else shown
            raise KeyError(named.value if isinstance(named, HeapKey) else named)

        if isinstance(bound, bool):
            return removed() if bound else missing()
        return regions.branch(bound, removed, missing)

    def append(self, holder: Ref, item: Any) -> None:
        """Add an item at the end of a list or deque."""
        items = self.changed_items(holder)
        if isinstance(items, TracedList):
            operations.push(items, item)
            self.drop_beyond(holder)
        else:
            self.put_bounded(holder, (*items, item))

    def drop_beyond(self, holder: Ref, *, left: bool = False) -> None:
        """Drop an item of a deque of an instance that has no place any more, at the other end than
        that where one was added."""
        most = holder.table.get(MAXLEN) if issubclass(holder.kind, deque) else None
        if most is not None:
            drop = data_methods.drop_last if left else data_methods.drop_first
            self.interpreter.run_own(drop, holder, most)

    def put_bounded(self, holder: Ref, items: tuple[Any, ...], *, left: bool = False) -> None:
        """Store the items of a list, or of a deque, which drops those that it has no place for.
        left: items were added at the left end."""
        most = holder.table.get(MAXLEN) if issubclass(holder.kind, deque) else None
        if most is not None and len(items) > most:
            items = items[:most] if left else items[len(items) - most :]
        self.put(holder, items)

    def count(self, holder: Ref) -> Any:
        """Return the number of items of a container."""
        items = self.items(holder)
        if isinstance(items, DataDict):
            return items.length()
        if isinstance(items, TracedList):
            return operations.traced_length(items)
        if isinstance(items, dict):
            bound = [self.interpreter.regions.is_bound(x) for x in items.values()]
            known = sum(1 for b in bound if b is True)
            return functools.reduce(operator.add, [b for b in bound if type(b) is not bool], known)
        return len(items)


def base_of(kind: type) -> type:
    """Return the class of Python from which a class of containers is derived."""
    bases = (Counter, OrderedDict, defaultdict, dict, set, deque, list)
    return next(base for base in bases if issubclass(kind, base))


def fixed_key(key: Any) -> Any:
    """Return a dict key or set item with sizes as ints of this call, and traced numbers as Python
    numbers if they are the same in every run. Needed because keys persist from call to call."""
    if isinstance(key, torch.SymInt):
        return int(key)
    if is_number(key):
        try:
            return concrete(key, "number for a key")
        except Abort:
            return key
    if type(key) is not tuple:
        return key
    parts: Any = tuple(map(fixed_key, key))  # pyright: ignore[reportUnknownArgumentType]
    return parts if any(map(is_not, key, parts)) else key  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
