"""Methods of dicts and sets. See `container_methods`."""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    AttributeTable,
    DictView,
    HeapKey,
    Ref,
)
from stretto.frontends.python.lists import sources
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.containers import Containers

from stretto.frontends.python.interpreter.sequence_methods import Rule, given

# ---- dicts ---------------------------------------------------------------------------------------


def init_dict(self: Containers, holder: Ref, /, *args: Any, **kwargs: Any) -> None:
    if len(args) > 1:
        raise TypeError(f"dict expected at most 1 argument, got {len(args)}")
    update(self, holder, *args, **kwargs)


def init_defaultdict(self: Containers, holder: Ref, /, *args: Any, **kwargs: Any) -> None:
    factory = args[0] if args else None
    if factory is not None and not self.interpreter.calls.call(callable, (factory,), {}):
        raise TypeError("first argument must be callable or None")
    self.heap.set(holder.table, "default_factory", factory)
    update(self, holder, *args[1:], **kwargs)


def update(self: Containers, holder: Ref, /, *args: Any, **kwargs: Any) -> None:
    found = dict(self.mapping(args[0])) if args else {}
    found |= kwargs
    sets = self.interpreter.attributes.method(holder, "__setitem__")
    if issubclass(holder.kind, OrderedDict) and sets is not MISSING:
        for key, value in found.items():
            self.interpreter.calls.call(sets, (key, value), {})
        return
    source = args[0] if args and isinstance(args[0], Ref) else None
    if source is not None and isinstance(source.table, AttributeTable):
        source = None  # its items are read at each access
    before = None if source is None else source.table[ITEMS]
    for key, value in found.items():
        self.set_entry(holder, key, value)
        if source is not None and source is not holder and source.table[ITEMS] is not before:
            raise RuntimeError("dict mutated during update")


def get(self: Containers, holder: Ref, key: Any, default: Any = None) -> Any:
    regions = self.interpreter.regions
    if isinstance(key, Either):
        return regions.each_option(key, lambda option: get(self, holder, option, default))
    at = self.asked_key(key)
    if texts.is_text(at):
        return sources.entry_by_text(self.entries(holder), at, lambda: default)
    found = self.items(holder).get(self.key(at), MISSING)
    bound = regions.is_bound(found)
    if isinstance(bound, bool):
        return found if bound else default
    return regions.branch(bound, lambda: regions.present(found), lambda: default)


def set_default(self: Containers, holder: Ref, key: Any, default: Any = None) -> Any:
    regions, key = self.interpreter.regions, self.key(key)
    found = self.items(holder).get(key, MISSING)
    bound = regions.is_bound(found)

    def added() -> Any:
        self.set_entry(holder, key, default)
        return default

    if isinstance(bound, bool):
        return found if bound else added()
    return regions.branch(bound, lambda: regions.present(found), added)


def pop_entry(self: Containers, holder: Ref, key: Any, *default: Any) -> Any:
    regions = self.interpreter.regions
    if not default:
        return self.remove_entry(holder, key)
    key = self.key(key)
    bound = regions.is_bound(self.items(holder).get(key, MISSING))
    if isinstance(bound, bool):
        return self.remove_entry(holder, key) if bound else default[0]
    return regions.branch(bound, lambda: self.remove_entry(holder, key), lambda: default[0])


def pop_item(self: Containers, holder: Ref, last: Any = True) -> tuple[Any, Any]:
    items = self.entries(holder)
    if not items:
        raise KeyError(
            "dictionary is empty"
            if issubclass(holder.kind, OrderedDict)
            else "popitem(): dictionary is empty"
        )
    key = next(reversed(items) if last else iter(items))
    found = key.value if isinstance(key, HeapKey) else key
    return found, self.remove_entry(holder, found)


def move_to_end(self: Containers, holder: Ref, key: Any, last: Any = True) -> None:
    items = dict(self.entries(holder))
    at = self.key(key)
    if at not in items:
        raise KeyError(key)
    at = dict(zip(items, items, strict=True))[at]  # the key stays the object that it is
    value = items.pop(at)
    self.put(holder, {**items, at: value} if last else {at: value, **items})


def missing(self: Containers, holder: Ref, key: Any) -> Any:
    factory = holder.table.get("default_factory")
    if factory is None:
        raise KeyError(key)
    made = self.interpreter.calls.call(factory, (), {})
    self.setitem(holder, key, made)
    return made


def view(name: str) -> Rule:
    return lambda self, holder: DictView(holder, name)


def joint_dict(self: Containers, holder: Ref, other: Any) -> Any:
    if not isinstance(other, Ref) or not issubclass(other.kind, dict):
        return NotImplemented
    is_other = other.kind is not holder.kind and issubclass(other.kind, holder.kind)
    like = other if is_other and other.kind in (OrderedDict, defaultdict) else holder
    return self.new_like(like, {**self.entries(holder), **self.entries(other)})


def compared_dicts(self: Containers, holder: Ref, other: Any) -> Any:
    if not isinstance(other, Ref) or not issubclass(other.kind, dict):
        return NotImplemented
    a, b = self.entries(holder), self.entries(other)
    if a.keys() != b.keys():
        return False
    ordered = issubclass(holder.kind, OrderedDict) and issubclass(other.kind, OrderedDict)
    if ordered and list(a) != list(b):
        return False
    values = tuple(a.values()), tuple(b[key] for key in a)
    return self.interpreter.operators.compare_containers(ast.Eq, *values)


def differ(rule: Rule) -> Rule:
    """Return the rule for `!=` from that for `==`."""

    def negated(self: Containers, holder: Ref, other: Any) -> Any:
        found = rule(self, holder, other)
        if found is NotImplemented:
            return found
        return self.interpreter.regions.negated(self.interpreter.operators.truth(found))

    return negated


# ---- sets ----------------------------------------------------------------------------------------


def items_of_set(self: Containers, other: Any) -> dict[Any, Any] | None:
    """Return the items of a set, or of a view of a dict's keys; None for other objects."""
    if isinstance(other, Ref) and issubclass(other.kind, set):
        return self.entries(other)
    if isinstance(other, DictView) and other.name != "values":
        return keys_of(self, other)
    return dict.fromkeys(other) if isinstance(other, frozenset) else None


def keys_of(self: Containers, items: Any) -> dict[Any, Any]:
    """Return the items of an argument as keys."""
    return dict.fromkeys(self.key(item) for item in given(self, items))


def init_set(self: Containers, holder: Ref, items: Any = ()) -> None:
    self.put(holder, keys_of(self, items))


def add(self: Containers, holder: Ref, item: Any) -> None:
    item = self.key(item)
    held = self.items(holder).get(item, MISSING)
    if self.interpreter.regions.is_bound(held) is not True:
        self.set_entry(holder, item, None)


def discard(self: Containers, holder: Ref, item: Any) -> None:
    pop_entry(self, holder, self.item_to_find(item), None)


def remove_of_set(self: Containers, holder: Ref, item: Any) -> None:
    self.remove_entry(holder, self.item_to_find(item), item)


def pop_of_set(self: Containers, holder: Ref) -> Any:
    items = self.entries(holder)
    if not items:
        raise KeyError("pop from an empty set")
    key = next(iter(set(items)))
    found = key.value if isinstance(key, HeapKey) else key
    self.remove_entry(holder, found)
    return found


def union_of(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    return {**a, **b}


def intersection_of(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    return {key: None for key in a if key in b}


def difference_of(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    return {key: None for key in a if key not in b}


def exclusive_of(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    return {**difference_of(a, b), **difference_of(b, a)}


Combination = Callable[[dict[Any, Any], dict[Any, Any]], dict[Any, Any]]


def combined(combine: Combination) -> Rule:
    """Return the rule for a method that makes a new set of this and others."""

    def rule(self: Containers, holder: Ref, *others: Any) -> Ref:
        items = self.entries(holder)
        for other in others:
            items = combine(items, keys_of(self, other))
        return self.new_like(holder, items)

    return rule


def combined_here(combine: Combination) -> Rule:
    """Return the rule for a method that changes this set by others."""

    def rule(self: Containers, holder: Ref, *others: Any) -> None:
        for other in others:
            self.put(holder, combine(self.entries(holder), keys_of(self, other)))

    return rule


def set_operator(combine: Combination, *, swapped: bool = False, here: bool = False) -> Rule:
    """Return the rule for an operator, whose other operand has to be a set, too."""

    def rule(self: Containers, holder: Ref, other: Any) -> Any:
        items = items_of_set(self, other)
        if items is None:
            return NotImplemented
        own = self.entries(holder)
        made = combine(items, own) if swapped else combine(own, items)
        if here:
            self.put(holder, made)
            return holder
        if swapped and isinstance(other, frozenset):
            return frozenset(made)
        return self.new_like(holder, made)

    return rule


def set_comparison(compare: Callable[[Any, Any], bool]) -> Rule:
    def rule(self: Containers, holder: Ref, other: Any) -> Any:
        items = items_of_set(self, other)
        return (
            NotImplemented if items is None else compare(self.entries(holder).keys(), items.keys())
        )

    return rule


def set_method(compare: Callable[[Any, Any], bool]) -> Rule:
    def rule(self: Containers, holder: Ref, other: Any) -> bool:
        return compare(self.entries(holder).keys(), keys_of(self, other).keys())

    return rule
