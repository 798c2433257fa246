"""Lists, dicts, sets and deques: their content, items and lengths."""

from __future__ import annotations

import ast
import functools
import operator
import sys
from collections import defaultdict, deque
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.calls import ordering
from stretto.frontends.python.calls.builtins import length_of
from stretto.frontends.python.interpreter import data_dicts
from stretto.frontends.python.interpreter.container_contents import ContainerContents, base_of
from stretto.frontends.python.interpreter.container_methods import IN_PLACE, Rule, method_of
from stretto.frontends.python.interpreter.data_dicts import DataDict
from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    DictView,
    IteratorRef,
    Ref,
)
from stretto.frontends.python.interpreter.host import apply, call_rule
from stretto.frontends.python.lists import data_methods, indexing, operations, sources
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either, first_either, replaced
from stretto.frontends.python.values.scalars import known_value
from stretto.frontends.python.values.state import TracedList
from stretto.ir.types import Scalar


class _OrderedInRun(Exception):
    """Items of an instance are sorted, and only the run knows their order."""


class Containers(ContainerContents):
    """Subscripts and lengths of all objects, and what Python's containers do."""

    # -- subscripts -----------------------------------------------------------------------------

    def getitem(self, holder: Any, index: Any) -> Any:
        """Return `holder[index]`."""
        if isinstance(holder, Either):
            return self.interpreter.regions.each_option(holder, lambda x: self.getitem(x, index))
        found = first_either(index)
        if found is not None:

            def on_option(x: Any) -> Any:
                return self.getitem(holder, replaced(index, found, x))

            return self.interpreter.regions.each_option(found, on_option)
        method = self.interpreter.attributes.method(holder, "__getitem__")
        is_sequence = isinstance(holder, sources.SEQUENCES) and indexing.has_position(index)
        if is_sequence and getattr(method, "__module__", "torch").startswith("torch"):
            return sources.item_of_sequence(holder, index)
        if method is not MISSING:
            if isinstance(index, TracedTensor) and getattr(method, "__func__", None) in _OF_MODULES:
                return self._module_at(holder, index)
            return self.interpreter.calls.call(method, (index,), {})
        if isinstance(holder, type):
            return self._of_class(holder, index)
        if isinstance(holder, Ref):
            return self.with_content(holder, lambda: self.item(holder, index))
        return self._of_native(holder, index)

    def _of_class(self, kind: type, index: Any) -> Any:
        method = self.interpreter.attributes.lookup(kind, "__class_getitem__")
        if isinstance(getattr(method, "__func__", None), type(_of_no_class)):
            return self.interpreter.calls.call(method, (index,), {})
        known: Any = kind
        return known[self.heap.real(index)]

    def _of_native(self, holder: Any, index: Any) -> Any:
        """Return an item of a tensor, a tuple or another object of native code."""
        if isinstance(holder, IteratorRef | DictView) or self.heap.is_own(holder):
            kind = self.interpreter.attributes.type_of(holder).__name__
            raise TypeError(f"'{kind}' object is not subscriptable")
        index = self.index(index)
        if isinstance(holder, str) and tracer().data is not None and indexing.has_position(index):
            return tracer().data.of_text(holder, "__getitem__", (index,), {})
        if isinstance(holder, tuple) and isinstance(index, int):
            return apply(operator.getitem, holder, index)
        return self.heap.adopt(self._listed(sources.item_of(holder, index)))

    def _listed(self, found: Any) -> Any:
        return self.heap.new(list, found) if isinstance(found, TracedList) else found

    def item(self, holder: Ref, index: Any) -> Any:
        """Return an item of a container, as its class in C gives it."""
        items = self.items(holder)
        if isinstance(items, DataDict):
            return data_dicts.item(self, holder, index)
        if isinstance(items, dict):
            return self._entry(holder, items, index)
        if isinstance(index, Either):
            return self.interpreter.regions.each_option(index, lambda x: self.item(holder, x))
        if isinstance(index, slice):
            return self._slice(holder, items, index)
        if isinstance(items, TracedList):
            return operations.get_item(items, index)
        at = self.position(holder, index)
        if not isinstance(at, int):
            return sources.item_of_sequence(list(items), at)
        if not -len(items) <= at < len(items):
            raise IndexError(f"{base_of(holder.kind).__name__} index out of range")
        return items[at]

    def _module_at(self, holder: Any, index: Any) -> Any:
        """Return a module of a list of modules at a traced position."""
        held = self.interpreter.iteration.known(holder)
        is_unchanged = len(held) == len(holder) and all(map(operator.is_, held, holder))
        return sources.item_of_sequence(holder if is_unchanged else held, index)

    def _slice(self, holder: Ref, items: Any, index: slice) -> Any:
        if issubclass(holder.kind, deque):
            raise TypeError("sequence index must be integer, not 'slice'")
        parts = [
            x if x is None else self._bound(holder, x)
            for x in (index.start, index.stop, index.step)
        ]
        if isinstance(items, TracedList):
            made = operations.get_item(items, slice(*parts))
            if isinstance(made, DataList):
                return self.heap.new(holder.kind, made)
        elif all(x is None or isinstance(x, int) for x in parts):
            made = items[slice(*parts)]
        else:
            made = sources.item_of_sequence(list(items), slice(*parts))
            if isinstance(made, sources.Indexed):
                return made
        return self.heap.new(list, made if isinstance(made, TracedList) else tuple(made))

    def _bound(self, holder: Ref, bound: Any) -> Any:
        found = self.interpreter.operators.special(bound, "__index__")
        bound = operations.checked_bound(bound if found is NotImplemented else found)
        known = known_value(bound) if isinstance(bound, TracedTensor) else None
        if isinstance(bound, torch.SymInt):
            return bound
        return (
            bound
            if known is None and isinstance(bound, TracedTensor)
            else operator.index(bound if known is None else known)
        )

    def unpacked(self, holder: Ref, count: int, star: int | None = None) -> list[Any]:
        """Return the items of a list of an instance for `count` targets, the one at `star` with a
        star."""
        run, is_open = self.interpreter.run_own, star is not None
        items = self.heap.new(list, self.interpreter.iteration.collect(holder))
        run(data_methods.check_count, items, count - is_open, is_open)
        if star is None:
            return [self.getitem(items, place) for place in range(count)]
        rest = count - star - 1
        middle = self.getitem(items, slice(star, -rest if rest else None))
        first = [self.getitem(items, place) for place in range(star)]
        return [*first, middle, *(self.getitem(items, place - rest) for place in range(rest))]

    def _entry(self, holder: Ref, items: dict[Any, Any], index: Any) -> Any:
        if not issubclass(holder.kind, dict):
            raise TypeError(f"'{holder.kind.__name__}' object is not subscriptable")
        regions = self.interpreter.regions
        at = self.asked_key(index)
        if isinstance(at, Either):
            return regions.each_option(at, lambda x: self._entry(holder, items, x))
        if isinstance(at, TracedTensor) and at.number is not None:
            return sources.entry_of_dict(self.entries(holder), at)
        if texts.is_text(at):
            return sources.entry_by_text(
                self.entries(holder), at, lambda: self.missing_entry(holder, index)
            )
        found = items.get(at, MISSING)
        bound = regions.is_bound(found)
        if bound is True:
            return found

        def missing() -> Any:
            return self.missing_entry(holder, index)

        if bound is False:
            return missing()
        return regions.branch(bound, lambda: regions.present(found), missing)

    def missing_entry(self, holder: Ref, key: Any) -> Any:
        missing = self.interpreter.operators.special(holder, "__missing__", key)
        if missing is not NotImplemented:
            return missing
        factory = holder.table.get("default_factory")
        if factory is None or not issubclass(holder.kind, defaultdict):
            raise KeyError(key)
        made = self.interpreter.calls.call(factory, (), {})
        self.setitem(holder, key, made)
        return made

    def setitem(self, holder: Any, index: Any, value: Any) -> None:
        """Perform `holder[index] = value`."""
        if isinstance(holder, Either):
            self.interpreter.regions.each_option(holder, lambda x: self.setitem(x, index, value))
            return
        method = self.interpreter.attributes.method(holder, "__setitem__")
        if method is not MISSING:
            self.interpreter.calls.call(method, (index, value), {})
        elif isinstance(holder, Ref):
            self.with_content(holder, lambda: self.set_item(holder, index, value))
        else:
            self._set_of_native(holder, index, value)

    def _set_of_native(self, holder: Any, index: Any, value: Any) -> None:
        if not isinstance(holder, torch.Tensor):
            kind = self.interpreter.attributes.type_of(holder)
            if not hasattr(kind, "__setitem__"):
                raise TypeError(f"'{kind.__name__}' object does not support item assignment")
            self.interpreter.calls.native(holder.__setitem__, (index, value), {})
            return
        found = first_either((index, value))
        if found is not None:

            def on_option(x: Any) -> None:
                self._set_of_native(holder, *replaced((index, value), found, x))

            self.interpreter.regions.each_option(found, on_option)
            return
        sources.set_item_of(holder, self.index(index), self.heap.real(value))

    def index(self, index: Any) -> Any:
        """Return an index for native code, with numbers in place of objects with `__index__`."""
        if isinstance(index, slice):
            return slice(*map(self.index, (index.start, index.stop, index.step)))
        if type(index) is tuple:
            return tuple(map(self.index, index))
        found = self.interpreter.operators.special(index, "__index__")
        return self.heap.real(index if found is NotImplemented else found)

    def set_item(self, holder: Ref, index: Any, value: Any) -> None:
        """Set an item of a container, as its class in C does."""
        items = self.changed_items(holder)
        found = first_either(index)
        if found is not None:

            def on_option(x: Any) -> Any:
                return self.set_item(holder, replaced(index, found, x), value)

            self.interpreter.regions.each_option(found, on_option)
        elif isinstance(items, DataDict):
            items.store(index, value)
        elif isinstance(items, dict):
            self.set_entry(holder, index, value)
        elif isinstance(items, TracedList):
            operations.set_item(items, index, value)
        elif isinstance(index, slice):
            changed = list(items)
            parts = (
                x if x is None else self._bound(holder, x)
                for x in (index.start, index.stop, index.step)
            )
            changed[slice(*map(_known_bound, parts))] = self.interpreter.iteration.known(value)
            self.put(holder, tuple(changed))
        else:
            at = self.position(holder, index)
            if not isinstance(at, int):
                made = self.interpreter.operators.as_traced(items)
                operations.set_item(made, at, value)
                self.put(holder, made)
                return
            if not -len(items) <= at < len(items):
                what = "deque index" if issubclass(holder.kind, deque) else "list assignment index"
                raise IndexError(f"{what} out of range")
            changed = list(items)
            changed[at] = value
            self.put(holder, tuple(changed))

    def delitem(self, holder: Any, index: Any) -> None:
        """Perform `del holder[index]`."""
        if isinstance(holder, Either):
            self.interpreter.regions.each_option(holder, lambda x: self.delitem(x, index))
            return
        method = self.interpreter.attributes.method(holder, "__delitem__")
        if method is not MISSING:
            self.interpreter.calls.call(method, (index,), {})
        elif isinstance(holder, Ref):
            self.with_content(holder, lambda: self.delete_item(holder, index))
        else:
            kind = self.interpreter.attributes.type_of(holder)
            if isinstance(holder, torch.Tensor) or not hasattr(kind, "__delitem__"):
                raise TypeError(f"'{kind.__name__}' object doesn't support item deletion")
            self.interpreter.calls.native(holder.__delitem__, (index,), {})

    def delete_item(self, holder: Ref, index: Any) -> None:
        """Delete an item of a container, as its class in C does."""
        items = self.changed_items(holder)
        found = first_either(index)
        if found is not None:

            def on_option(x: Any) -> Any:
                return self.delete_item(holder, replaced(index, found, x))

            self.interpreter.regions.each_option(found, on_option)
        elif isinstance(items, DataDict):
            items.remove(index)
        elif isinstance(items, TracedList):
            operations.delete_item(items, index)
        elif isinstance(items, dict):
            self.remove_entry(holder, index)
        elif isinstance(index, slice):
            parts = (
                x if x is None else self._bound(holder, x)
                for x in (index.start, index.stop, index.step)
            )
            changed = list(items)
            del changed[slice(*map(_known_bound, parts))]
            self.put(holder, tuple(changed))
        else:
            at = self.position(holder, index)
            if not isinstance(at, int):
                made = self.interpreter.operators.as_traced(items)
                operations.delete_item(made, at)
                self.put(holder, made)
                return
            if not -len(items) <= at < len(items):
                what = "deque index" if issubclass(holder.kind, deque) else "list assignment index"
                raise IndexError(f"{what} out of range")
            self.put(holder, items[:at] + items[at + 1 :] if at != -1 else items[:-1])

    def rule_of(self, holder: Ref, name: str) -> Rule | None:
        """Return the rule for a method of a container; None if there is none."""
        if isinstance(holder.table.get(ITEMS), DataDict):
            return data_dicts.rule_of(holder, name)
        return method_of(holder.kind, name)

    # -- methods and operators ------------------------------------------------------------------

    def method_call(self, holder: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of a container or an object that Python implements in C."""
        if isinstance(holder, IteratorRef):
            return self.interpreter.iteration.of_iterator(holder, name, args)
        if isinstance(holder, DictView):
            holder = self._of_view(holder, name)
        if isinstance(holder, Ref):
            rule = self.rule_of(holder, name)
            if rule is not None:
                return self.with_content(
                    holder, lambda: call_rule(rule, self, holder, *args, **kwargs)
                )
        if isinstance(holder, BaseException) and name == "__init__" and self.heap.is_own(holder):
            holder.args = args
            return None
        found = self.interpreter.attributes.of_object(holder, name, args, kwargs)
        if found is NotImplemented and name not in ("__eq__", "__ne__"):
            kind = self.interpreter.attributes.type_of(holder).__name__
            fail(f"the method {name} of {kind} has no rule", "write it in Python")
        return found

    def _of_view(self, view: DictView, name: str) -> Ref:
        """Return the container that a method of a view concerns."""
        if view.name == "values" or name in ("__len__", "__iter__"):
            return self.heap.new(list, self.interpreter.iteration.known(view))
        return self.as_set(view)

    def compared(self, method: str, holder: Ref | DictView, other: Any) -> Any:
        """Return a comparison as the class in C of a container gives it."""
        holder = self.as_set(holder)
        if not isinstance(holder, Ref):
            return NotImplemented
        rule = self.rule_of(holder, f"__{method}__")
        if rule is None:
            return NotImplemented
        return self.with_content(holder, lambda: rule(self, holder, other))

    def augment(self, name: str, holder: Ref, value: Any) -> Any:
        """Perform `holder <operator>= value`; NotImplemented if the class in C has no such
        method."""
        rule = next(
            (r[name] for k, r in IN_PLACE.items() if issubclass(holder.kind, k) and name in r), None
        )
        if name == "mul" and issubclass(holder.kind, list | deque):
            made = self.interpreter.operators.binary(name, holder, value)
            self.put(holder, self.items(made))
            return holder
        if isinstance(holder.table.get(ITEMS), DataDict):
            rule = data_dicts.rule_of(holder, f"__i{name}__")
        if rule is None:
            return NotImplemented
        found = self.with_content(holder, lambda: rule(self, holder, value))
        return found if found is NotImplemented else holder

    def as_set(self, value: Any) -> Any:
        """Return a set with the items of a view of keys or items; other values as they are."""
        if isinstance(value, DictView) and value.name != "values":
            items = self.interpreter.iteration.known(value)
            return self.heap.new(set, dict.fromkeys(map(self.key, items)))
        return value

    def _set_of(self, value: Any) -> Any:
        """Return a set of the items of an operand of a view; values without items as they are."""
        is_set = isinstance(value, DictView | frozenset) or (
            isinstance(value, Ref) and issubclass(value.kind, set)
        )
        kind = self.interpreter.attributes.type_of(value)
        if is_set or not hasattr(kind, "__iter__") or isinstance(value, torch.Tensor):
            return value
        return self.heap.new(
            set, dict.fromkeys(map(self.key, self.interpreter.iteration.known(value)))
        )

    def item_to_find(self, item: Any) -> Any:
        """Return an item to look up in a set: a set stands for a frozenset of its items."""
        if isinstance(item, Ref) and issubclass(item.kind, set):
            hashed = self.interpreter.attributes.method(item, "__hash__")
            if hashed is MISSING or hashed is None:
                return frozenset(self.entries(item))
        return item

    def of_operator(self, name: str, first: Any, second: Any) -> Any:
        """Return what a container says of a binary operator; NotImplemented if it has none."""
        if isinstance(first, DictView) and first.name != "values":
            second = self._set_of(second)
        elif isinstance(second, DictView) and second.name != "values":
            first = self._set_of(first)
        first, second = self.as_set(first), self.as_set(second)
        for held, method, other in ((first, name, second), (second, f"r{name}", first)):
            rule = self.rule_of(held, f"__{method}__") if isinstance(held, Ref) else None
            if rule is not None:

                def run(rule: Any = rule, held: Any = held, other: Any = other) -> Any:
                    return rule(self, held, other)

                found = self.with_content(held, run)
                if found is not NotImplemented:
                    return found
        return NotImplemented

    def length(self, value: Any) -> Any:
        """Return `len(value)`."""
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, self.length)
        method = self.interpreter.attributes.method(value, "__len__")
        if method is not MISSING:
            return self.checked_length(self.interpreter.calls.call(method, (), {}))
        if isinstance(value, DictView):
            value = value.holder
        if isinstance(value, Ref):
            return self.with_content(value, lambda: self.count(value))
        if isinstance(value, IteratorRef) or self.heap.is_own(value):
            kind = self.interpreter.attributes.type_of(value).__name__
            raise TypeError(f"object of type '{kind}' has no len()")
        found = length_of(value)
        return apply(len, value) if found is NotImplemented else found

    def checked_length(self, found: Any) -> Any:
        """Return the result of `__len__`, which has to be an integer that is not negative."""
        position = self.interpreter.operators.special(found, "__index__")
        found = found if position is NotImplemented else position
        kind = self.interpreter.attributes.type_of(found)
        if not issubclass(kind, int):
            raise TypeError(f"'{kind.__name__}' object cannot be interpreted as an integer")
        if isinstance(found, int) and found < 0:
            raise ValueError("__len__() should return >= 0")
        if isinstance(found, int) and found > sys.maxsize:
            raise OverflowError("cannot fit 'int' into an index-sized integer")
        return found

    def keywords(self, value: Any) -> dict[Any, Any]:
        """Return a mapping as keyword arguments, of which some may be missing in some runs."""
        if isinstance(value, Ref) and value.kind is dict:
            items = self.items(value)
            if isinstance(items, dict):
                return items
        return self.mapping(value)

    def mapping(self, value: Any) -> dict[Any, Any]:
        """Return a mapping, or pairs, as a dict."""
        interpreter = self.interpreter
        is_dict = isinstance(value, Ref) and issubclass(value.kind, dict)
        if is_dict and interpreter.attributes.method(value, "__iter__") is MISSING:
            return self.entries(value)
        keys = interpreter.attributes.lookup(value, "keys")
        if keys is not MISSING:
            found = interpreter.iteration.known(interpreter.calls.call(keys, (), {}))
            return {self.key(k): self.getitem(value, k) for k in found}
        made: dict[Any, Any] = {}
        for number, pair in enumerate(interpreter.iteration.known(value)):
            parts = tuple(interpreter.iteration.known(pair))
            if len(parts) != 2:
                raise ValueError(
                    f"dictionary update sequence element #{number} has length {len(parts)}; "
                    "2 is required"
                )
            made[self.key(parts[0])] = parts[1]
        return made

    def sorted(self, items: Any, *, key: Any = None, reverse: Any = False) -> Any:
        content = self.interpreter.iteration.collect(data_dicts.in_any_order(self, items))
        return self.interpreter.regions.of_each(
            content, lambda found: self._sorted(found, key, reverse)
        )

    def _sorted(self, found: Any, key: Any, reverse: Any) -> Any:
        kind = self.interpreter.attributes.type_of(reverse)
        if kind in (list, dict, tuple, str, float, type(None)):  # some versions of Python refuse it
            apply(sorted, [], reverse=self.heap.real(reverse))
        interpreter = self.interpreter
        if isinstance(found, DataList):
            made = self.heap.new(list, operations.copied(found))
            are_floats = key is not None or found.item_type is not Scalar.INT
            interpreter.run_own(data_methods.sort, made, key, reverse, are_floats)
            return made
        if isinstance(found, TracedList):
            given = None if key is None else interpreter.calls.as_host_function(key)
            made = ordering.in_order(found, key=given, reverse=reverse)
            if made is NotImplemented:
                fail(
                    "sorted() or list.sort on a list that grows in a traced loop is not captured",
                    "use torch.stack(list) and torch.sort",
                )
            return self.heap.list_of(made)
        keys = given = list(found)
        if key is not None:
            keys = [interpreter.calls.call(key, (item,), {}) for item in found]
        if any(map(is_traced, keys)):
            made = ordering.by_keys(given, keys, reverse)
            if made is not NotImplemented:
                return self.heap.list_of(made)

        def is_less(one: int, other: int) -> bool:
            less = interpreter.operators.compare(ast.Lt, keys[one], keys[other])
            found = interpreter.operators.truth(less)
            if tracer().data is not None and not isinstance(found, bool):
                raise _OrderedInRun
            return interpreter.expressions.known(found)

        def compare(a: Any, b: Any) -> Any:
            return -1 if is_less(a, b) else int(is_less(b, a))

        try:
            order = sorted(
                range(len(found)), key=functools.cmp_to_key(compare), reverse=bool(reverse)
            )
        except _OrderedInRun:
            return self._sorted(tracer().data.new_content(given), key, reverse)
        return self.heap.new(list, tuple(found[n] for n in order))


def is_traced(value: Any) -> bool:
    """True if the run decides a value, or a part of a tuple."""
    return isinstance(value, TracedTensor) or (
        isinstance(value, tuple) and any(map(is_traced, value))
    )


_OF_MODULES = frozenset(
    (nn.ModuleList.__getitem__, nn.Sequential.__getitem__, nn.ParameterList.__getitem__)
)


def _of_no_class() -> None:
    return


def _known_bound(bound: Any) -> Any:
    if isinstance(bound, TracedTensor):
        fail(
            "a slice of a list is set or deleted, and its bounds depend on a tensor",
            "set or delete single items, or make a new list",
        )
    return bound
