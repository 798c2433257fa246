"""Dicts and sets of instances: objects of the data dialect.

A dict whose keys only the run knows has a `DataDict` as its content: reading and changing it are
ops. A set is such a dict, whose values are None. Their methods are the functions of this module,
which the interpreter runs: `holder[key]`, `key in holder`, `len(holder)`, `del holder[key]` and
`holder.keys()` are ops there. As in Python, keys are in the order in which they were added.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# arguments of the functions that are run are values of the interpreter

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, Ref
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataTable
from stretto.ir.core import Value
from stretto.ir.types import Scalar

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.containers import Containers

Rule = Callable[..., Any]


class DataDict:
    """The content of a dict or a set of an instance."""

    __slots__ = ("stored",)

    def __init__(self, value: Value) -> None:
        self.stored = value

    @property
    def value(self) -> Value:
        return tracer().use(self.stored)

    def made(self, op: str, type: Any, *args: Any) -> Any:
        return tracer().data.made(op, (self.value, *args), type)

    def length(self) -> Any:
        return self.made("len", Scalar.INT)

    def has(self, key: Any) -> Any:
        at = tracer().data.key_of(self.stored.type, key)
        return False if at is None else self.made("contains", Scalar.BOOL, at)

    def lookup(self, key: Any) -> Any:
        data = tracer().data
        at = data.key_of(self.stored.type, key)
        error = KeyError(key)
        if at is None:
            raise error
        return self.made("lookup", data.value_type(self.stored.type, error), at)

    def store(self, key: Any, item: Any) -> None:
        data = tracer().data
        at, held = data.new_key(self.stored.type, key), data.stored_in(self.stored.type, item)
        data.change("store", self.value, at, held)

    def remove(self, key: Any) -> Any:
        data = tracer().data
        at = data.key_of(self.stored.type, key)
        error = KeyError(key)
        if at is None:
            raise error
        return self.made("remove", data.value_type(self.stored.type, error), at)

    def keys(self) -> DataList:
        return tracer().data.keys(self.value)

    def clear(self) -> None:
        tracer().data.change("clear", self.value)


class FixedItems(dict[Any, Any]):
    """The content of a dict of an instance whose keys are known: each entry is read when it is
    asked for. table: that of the entries."""

    def __init__(self, keys: tuple[Any, ...], table: DataTable) -> None:
        super().__init__(dict.fromkeys(keys))
        self.table = table

    def store(self, key: Any, item: Any) -> None:
        self.table.store(key, item)

    def __iter__(self) -> Any:  # so that `{**items}` asks for the entries
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        return self.table.get(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self.table.get(key) if key in self else default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def rule_of(holder: Ref, name: str) -> Rule | None:
    """Return the rule for a method of a dict or a set of an instance; None if it has none."""
    primitive = _PRIMITIVES.get(name)
    if primitive is not None:
        return primitive
    if name == "__init__" and issubclass(holder.kind, defaultdict):
        return _init_default
    function = (_OF_SETS if issubclass(holder.kind, set) else _OF_DICTS).get(name)
    if function is None:
        return None

    def rule(self: Containers, holder: Ref, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.recursion.run(function, (holder, *args), kwargs)

    return rule


def item(self: Containers, holder: Ref, key: Any) -> Any:
    """Return `holder[key]`."""
    items = holder.table[ITEMS]
    if issubclass(holder.kind, set):
        raise TypeError(f"'{holder.kind.__name__}' object is not subscriptable")
    has_factory = issubclass(holder.kind, defaultdict) and holder.table.get("default_factory")
    if not has_factory and self.interpreter.attributes.method(holder, "__missing__") is MISSING:
        return items.lookup(key)
    return self.interpreter.regions.branch(
        items.has(key), lambda: items.lookup(key), lambda: self.missing_entry(holder, key)
    )


def delete(self: Containers, holder: Ref, key: Any) -> None:
    """Perform `del holder[key]`."""
    holder.table[ITEMS].remove(key)


_PRIMITIVES: dict[str, Rule] = {
    "__len__": lambda self, holder: holder.table[ITEMS].length(),
    "__contains__": lambda self, holder, key: holder.table[ITEMS].has(key),
    "__getitem__": item,
    "__setitem__": lambda self, holder, key, value: holder.table[ITEMS].store(key, value),
    "__delitem__": delete,
    "keys": lambda self, holder: self.heap.new(list, holder.table[ITEMS].keys()),
    "clear": lambda self, holder: holder.table[ITEMS].clear(),
    "add": lambda self, holder, key: holder.table[ITEMS].store(key, None),
}


def _init_default(self: Containers, holder: Ref, *args: Any, **kwargs: Any) -> None:
    self.heap.set(holder.table, "default_factory", args[0] if args else None)
    self.interpreter.recursion.run(_init, (holder, *args[1:]), kwargs)


def in_any_order(self: Containers, value: Any) -> Any:
    """Return the keys of a dict or a set of an instance as a list, for what does not depend on
    their order; other values as they are."""
    if isinstance(value, Ref) and isinstance(value.table[ITEMS], DataDict):
        return self.heap.new(list, value.table[ITEMS].keys())
    return value


def members(items: Any) -> Any:
    """Return what `in_any_order` returns. The interpreter has a rule for this function."""
    raise AssertionError(items)


def drop(container: Any, key: Any) -> None:
    """Remove a key. The interpreter has a rule for this function."""
    raise AssertionError(container, key)


def empty_like(container: Any) -> Any:
    """Return an empty dict or set of the class of one. The interpreter has a rule for this."""
    raise AssertionError(container)


def of_functions(self: Containers) -> dict[Any, Rule]:
    """Return the rules of these functions."""
    return {
        members: lambda items: in_any_order(self, items),
        drop: lambda container, key: delete(self, container, key),
        empty_like: lambda container: self.new_like(container, {}),
    }


# -- functions that are run: all containers -------------------------------------------------------


def _init(self, *args, **kwargs):
    self.clear()
    if len(args) > 0:
        self.update(args[0])
    for key in kwargs:
        self[key] = kwargs[key]


def _iter(self):
    return iter(members(self))


def _copy(self):
    made = empty_like(self)
    made.update(self)
    return made


# -- dicts ----------------------------------------------------------------------------------------


def _values(self):
    return [self[key] for key in members(self)]


def _items(self):
    return [(key, self[key]) for key in members(self)]


def _get(self, key, default=None):
    return self[key] if key in self else default  # noqa: SIM401


def _setdefault(self, key, default=None):
    if key not in self:
        self[key] = default
    return self[key]


def _pop(self, key, *default):
    if len(default) > 0 and key not in self:
        return default[0]
    found = self[key]
    del self[key]
    return found


def _popitem(self, last=True):
    keys = members(self)
    if len(keys) == 0:
        raise KeyError("popitem(): dictionary is empty")
    key = keys[-1] if last else keys[0]
    found = self[key]
    del self[key]
    return key, found


def _update_here(self, other):
    self.update(other)
    return self


def _update(self, *others, **kwargs):
    for other in others:
        if isinstance(other, dict):
            for key in members(other):
                self[key] = other[key]
        else:
            for key, value in other:
                self[key] = value
    for key in kwargs:
        self[key] = kwargs[key]


def _equal_dicts(self, other):
    if not isinstance(other, dict):
        return NotImplemented
    if len(self) != len(other):
        return False
    return all(not (key not in other or self[key] != other[key]) for key in members(self))


def _unequal(self, other):
    found = self.__eq__(other)
    return found if found is NotImplemented else not found


def _joint(self, other):
    if not isinstance(other, dict):
        return NotImplemented
    made = self.copy()
    made.update(other)
    return made


# -- sets -----------------------------------------------------------------------------------------


def _discard(self, key):
    if key in self:
        drop(self, key)


def _remove(self, key):
    drop(self, key)


def _update_set(self, *others):
    for other in others:
        for key in list(members(other)):
            self.add(key)


def _union(self, *others):
    made = self.copy()
    made.update(*others)
    return made


def _intersection(self, *others):
    made = empty_like(self)
    for key in members(self):
        if all(key in other for other in others):
            made.add(key)
    return made


def _difference(self, *others):
    made = empty_like(self)
    for key in members(self):
        if not any(key in other for other in others):
            made.add(key)
    return made


def _symmetric_difference(self, other):
    made = self.difference(other)
    for key in members(other):
        if key not in self:
            made.add(key)
    return made


def _is_subset(self, other):
    return all(key in other for key in members(self))


def _is_superset(self, other):
    return all(key in self for key in members(other))


def _is_disjoint(self, other):
    return all(key not in self for key in members(other))


def _equal_sets(self, other):
    if not isinstance(other, (set, frozenset)):
        return NotImplemented
    return len(self) == len(other) and self.issubset(other)


def _less(self, other):
    return len(self) < len(other) and self.issubset(other)


def _greater(self, other):
    return len(self) > len(other) and self.issuperset(other)


_OF_ALL: dict[str, Callable[..., Any]] = {
    "__init__": _init, "copy": _copy, "__copy__": _copy, "__ne__": _unequal,
}  # fmt: skip
_OF_DICTS: dict[str, Callable[..., Any]] = {
    **_OF_ALL, "__iter__": _iter, "values": _values, "items": _items, "get": _get,
    "setdefault": _setdefault,
    "pop": _pop, "popitem": _popitem, "update": _update, "__eq__": _equal_dicts, "__or__": _joint,
    "__ior__": _update_here,
}  # fmt: skip
_OF_SETS: dict[str, Callable[..., Any]] = {
    **_OF_ALL, "discard": _discard, "remove": _remove, "update": _update_set,
    "union": _union, "__or__": _union, "intersection": _intersection, "__and__": _intersection,
    "difference": _difference, "__sub__": _difference, "__ior__": _update_here,
    "symmetric_difference": _symmetric_difference, "__xor__": _symmetric_difference,
    "issubset": _is_subset, "issuperset": _is_superset, "isdisjoint": _is_disjoint,
    "__le__": _is_subset, "__ge__": _is_superset, "__lt__": _less, "__gt__": _greater,
    "__eq__": _equal_sets,
}  # fmt: skip
