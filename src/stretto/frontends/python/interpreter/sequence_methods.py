"""Methods of lists and deques, and those that all containers have. See `container_methods`."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.calls import ordering
from stretto.frontends.python.interpreter.data_dicts import in_any_order
from stretto.frontends.python.interpreter.heap import ITEMS, MAXLEN, Ref
from stretto.frontends.python.lists import data_methods, operations
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.containers import Containers

Rule = Callable[..., Any]


def given(self: Containers, items: Any) -> tuple[Any, ...]:
    """Return the items of an argument, whose number has to be known."""
    if tracer().data is not None and self.active is not None:
        found = self.interpreter.iteration.collect(in_any_order(self, items))
        if isinstance(found, tuple):
            return found
        tracer().data.become_data(self.active.table)
    return self.interpreter.iteration.known(items)


# ---- lists and deques ----------------------------------------------------------------------------


def init_list(self: Containers, holder: Ref, items: Any = ()) -> None:
    found = self.interpreter.iteration.collect(items)
    self.put(holder, operations.copied(found) if isinstance(found, TracedList) else found)


def init_deque(self: Containers, holder: Ref, items: Any = (), maxlen: Any = None) -> None:
    if maxlen is not None:
        kind = self.interpreter.attributes.type_of(maxlen)
        if not issubclass(kind, int):
            raise TypeError("an integer is required")
        if not isinstance(maxlen, int):
            fail("the length of a deque depends on a tensor", "use a Python int")
        if maxlen < 0:
            raise ValueError("maxlen must be non-negative")
    self.heap.set(holder.table, MAXLEN, maxlen)
    if isinstance(self.items(holder), DataList):
        extend(self, holder, items)
        return
    self.put_bounded(holder, given(self, items))


def append(self: Containers, holder: Ref, item: Any) -> None:
    self.append(holder, item)


def append_left(self: Containers, holder: Ref, item: Any) -> None:
    items = self.items(holder)
    if isinstance(items, DataList):
        items.insert(0, item)
        self.drop_beyond(holder, left=True)
        return
    self.put_bounded(holder, (item, *_static(self, holder)), left=True)


def _static(self: Containers, holder: Ref) -> tuple[Any, ...]:
    """Return the items of a list or deque of known length."""
    items = self.items(holder)
    return tuple(operations.to_python(items)) if isinstance(items, TracedList) else items


def extend(self: Containers, holder: Ref, items: Any) -> None:
    before = self.changed_items(holder)
    more = self.interpreter.iteration.collect(items)
    self.interpreter.regions.of_each(more, lambda one: _extend(self, holder, before, one))


def _extend(self: Containers, holder: Ref, before: Any, more: Any) -> None:
    if isinstance(before, DataList):
        content = more if isinstance(more, tuple) else operations.copied(more)
        if holder.table.get(MAXLEN) is None:
            operations.extend(before, content)
        else:
            self.interpreter.run_own(data_methods.extend, holder, self.heap.list_of(content))
        return
    if isinstance(before, tuple) and isinstance(more, tuple):
        self.put_bounded(holder, (*before, *more))
        return
    made = operations.copied(more) if before == () else self.interpreter.operators.as_traced(before)
    if before != ():
        operations.extend(made, more if isinstance(more, TracedList) else list(more))
    self.put(holder, made)


def extend_left(self: Containers, holder: Ref, items: Any) -> None:
    if isinstance(self.items(holder), DataList):
        content = self.interpreter.iteration.collect(items)
        self.interpreter.run_own(data_methods.extend_left, holder, self.heap.list_of(content))
        return
    more = given(self, items)
    self.put_bounded(holder, (*reversed(more), *_static(self, holder)), left=True)


def insert(self: Containers, holder: Ref, index: Any, item: Any) -> None:
    items, at = self.changed_items(holder), self.position(holder, index)
    most = holder.table.get(MAXLEN) if issubclass(holder.kind, deque) else None
    if most is not None and len(items) >= most:
        raise IndexError("deque already at its maximum size")
    if isinstance(items, TracedList) or not isinstance(at, int):
        made = self.interpreter.operators.as_traced(items)
        operations.insert(made, at, item)
        self.put(holder, made)
        return
    changed = list(items)
    changed.insert(at, item)
    self.put(holder, tuple(changed))


def pop(self: Containers, holder: Ref, index: Any = -1) -> Any:
    items = self.changed_items(holder)
    if isinstance(items, DataList) and issubclass(holder.kind, deque):
        self.interpreter.run_own(data_methods.check_deque, holder)
    if isinstance(items, TracedList):
        return operations.pop(items, index)
    name = "deque" if issubclass(holder.kind, deque) else "list"
    if not items:
        shown = "an empty deque" if name == "deque" else "empty list"
        raise IndexError(f"pop from {shown}")
    at = self.position(holder, index)
    if not isinstance(at, int):
        made = self.interpreter.operators.as_traced(items)
        found = operations.pop(made, at)
        self.put(holder, made)
        return found
    if not -len(items) <= at < len(items):
        raise IndexError("pop index out of range")
    changed = list(items)
    found = changed.pop(at)
    self.put(holder, tuple(changed))
    return found


def pop_of_deque(self: Containers, holder: Ref) -> Any:
    return pop(self, holder)


def pop_left(self: Containers, holder: Ref) -> Any:
    return pop(self, holder, 0)


def remove(self: Containers, holder: Ref, item: Any) -> None:
    items = self.items(holder)
    name = "list.remove(x): x not in list"
    if issubclass(holder.kind, deque):
        name = "deque.remove(x): x not in deque"
    if isinstance(items, DataList):
        self.interpreter.membership.of_list(data_methods.remove, items, item, name)
        return
    if not isinstance(items, TracedList):
        ordering.check_identity(items, item)
    at = self.unchanged(holder, lambda: _position(self, items, item, 0, None, lambda: name))
    self.delete_item(holder, at)


def _position(
    self: Containers, items: Any, item: Any, start: int, stop: Any, message: Callable[[], Any]
) -> Any:
    """Return the position of an item. Raises ValueError if there is none."""
    if isinstance(items, TracedList):
        return operations.index(items, item, start, stop)
    stop = len(items) if stop is None else min(stop, len(items))
    for at in range(start, stop):
        found = self.interpreter.membership.equal(items[at], item)
        if found is True:
            return at
        if found is not False:

            def rest(after: int = at + 1) -> Any:
                return _position(self, items, item, after, stop, message)

            return self.interpreter.regions.branch(found, lambda at=at: at, rest)
    raise ValueError(message())


def index_of(self: Containers, holder: Ref, item: Any, *bounds: Any) -> Any:
    items = self.items(holder)
    if isinstance(items, DataList):
        return _index_in_data(self, items, item, *bounds)
    if isinstance(items, TracedList):
        return operations.index(items, item, *bounds)
    places = [self.position(holder, bound) for bound in bounds]
    if not all(isinstance(place, int) for place in places):
        return operations.index(self.interpreter.operators.as_traced(items), item, *places)
    start, stop, _ = slice(*(places or [None]) if len(places) != 1 else (places[0], None)).indices(
        len(items)
    )
    ordering.check_identity(items, item)

    def message() -> Any:
        base = "list" if issubclass(holder.kind, list) else "deque"
        shown = self.interpreter.strings.text(item, repr)
        return self.interpreter.operators.binary("add", shown, f" is not in {base}")

    return self.unchanged(holder, lambda: _position(self, items, item, start, stop, message))


def _index_in_data(
    self: Containers, items: DataList, item: Any, start: Any = 0, stop: Any = None
) -> Any:
    stop = items.length() if stop is None else operations.bounded(items, stop)
    start = start if type(start) is int and start == 0 else operations.bounded(items, start)
    return self.interpreter.membership.of_list(data_methods.index, items, item, start, stop)


def count(self: Containers, holder: Ref, item: Any) -> Any:
    return self.unchanged(holder, lambda: _count(self, holder, item))


def _count(self: Containers, holder: Ref, item: Any) -> Any:
    items, operators = self.items(holder), self.interpreter.operators
    if isinstance(items, DataList):
        return self.interpreter.membership.of_list(data_methods.count, items, item)
    if isinstance(items, TracedList):
        return operations.count(items, item)
    ordering.check_identity(items, item)
    found: Any = 0
    for other in items:
        is_equal = self.interpreter.membership.equal(other, item)
        if is_equal is not False:
            found = operators.binary("add", found, is_equal)
    return found


def of_tuple(self: Containers, items: tuple[Any, ...], name: str, item: Any, *bounds: Any) -> Any:
    """Return the count of an item of a tuple, or its position."""
    if name == "count":
        return count(self, self.heap.list(items), item)
    places = [self.position(self.heap.list(items), bound) for bound in bounds]
    if not all(isinstance(place, int) for place in places):
        fail("the part of a tuple that is searched depends on a tensor", "use a list")
    start, stop, _ = slice(*[*places, None, None][:2]).indices(len(items))
    ordering.check_identity(items, item)
    return _position(self, items, item, start, stop, lambda: "tuple.index(x): x not in tuple")


def reverse(self: Containers, holder: Ref) -> None:
    items = self.changed_items(holder)
    if isinstance(items, TracedList):
        operations.reverse(items)
    else:
        self.put(holder, items[::-1])


def clear(self: Containers, holder: Ref) -> None:
    items = self.changed_items(holder)
    if isinstance(items, TracedList):
        operations.clear(items)
    else:
        self.put(holder, {} if isinstance(items, dict) else ())


def copy(self: Containers, holder: Ref) -> Ref:
    return self.copied(holder)


def sort(self: Containers, holder: Ref, *, key: Any = None, reverse: Any = False) -> None:
    items = self.heap.new(list, self.items(holder))
    found = self.unchanged(holder, lambda: self.sorted(items, key=key, reverse=reverse))
    self.put(holder, found.table[ITEMS])


def rotate(self: Containers, holder: Ref, steps: Any = 1) -> None:
    if isinstance(self.items(holder), DataList):
        self.interpreter.run_own(data_methods.rotate, holder, steps)
        return
    items, count = _static(self, holder), self.position(holder, steps)
    if not isinstance(count, int):
        fail("a deque is rotated by a number that depends on a tensor", "use a Python int")
    if items:
        at = -count % len(items)
        self.put(holder, items[at:] + items[:at])


def reversed_of(self: Containers, holder: Ref) -> Any:
    return self.interpreter.calls.call(reversed, (holder,), {})


# ---- all containers ------------------------------------------------------------------------------


def length(self: Containers, holder: Ref) -> Any:
    return self.count(holder)


def iterator(self: Containers, holder: Ref) -> Any:
    return self.interpreter.iteration.of_container(holder)


def contains(self: Containers, holder: Ref, item: Any) -> Any:
    return self.interpreter.operators.among(holder, item)


def get_item(self: Containers, holder: Ref, index: Any) -> Any:
    return self.item(holder, index)


def set_item(self: Containers, holder: Ref, index: Any, value: Any) -> None:
    self.set_item(holder, index, value)


def delete_item(self: Containers, holder: Ref, index: Any) -> None:
    self.delete_item(holder, index)


def hash_of(self: Containers, holder: Ref) -> Any:
    raise TypeError(f"unhashable type: '{holder.kind.__name__}'")


def comparison(op: type[ast.cmpop], base: type) -> Rule:
    """Return the rule for a comparison of sequences with others of their class."""

    def rule(self: Containers, holder: Ref, other: Any) -> Any:
        if not isinstance(other, Ref) or not issubclass(other.kind, base):
            return NotImplemented
        if holder is other and op in (ast.Eq, ast.NotEq):
            return op is ast.Eq

        def compare() -> Any:
            return self.interpreter.operators.compare_containers(
                op, self.items(holder), self.items(other)
            )

        def with_other() -> Any:
            return self.unchanged(holder, lambda: self.unchanged(other, compare))

        return self.with_content(other, with_other)

    return rule
