"""Methods and operators of lists, dicts, sets and deques, one rule each.

A rule gets the containers of the interpreter, the container, and the arguments. A container of
which only the run knows the length has a list of the Program as its content.
"""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict, deque

from stretto.frontends.python.interpreter.keyed_methods import (
    add,
    combined,
    combined_here,
    compared_dicts,
    differ,
    difference_of,
    discard,
    exclusive_of,
    get,
    init_defaultdict,
    init_dict,
    init_set,
    intersection_of,
    joint_dict,
    missing,
    move_to_end,
    pop_entry,
    pop_item,
    pop_of_set,
    remove_of_set,
    set_comparison,
    set_default,
    set_method,
    set_operator,
    union_of,
    update,
    view,
)
from stretto.frontends.python.interpreter.sequence_methods import (
    Rule,
    append,
    append_left,
    clear,
    comparison,
    contains,
    copy,
    count,
    delete_item,
    extend,
    extend_left,
    get_item,
    hash_of,
    index_of,
    init_deque,
    init_list,
    insert,
    iterator,
    length,
    pop,
    pop_left,
    pop_of_deque,
    remove,
    reverse,
    reversed_of,
    rotate,
    set_item,
    sort,
)


def method_of(kind: type, name: str) -> Rule | None:
    """Return the rule for a method of a class of containers; None if there is none."""
    for base, rules in METHODS.items():
        if issubclass(kind, base) and name in rules:
            return rules[name]
    return None


# ---- the tables ----------------------------------------------------------------------------------

_ALL: dict[str, Rule] = {
    "__len__": length, "__iter__": iterator, "__contains__": contains, "__hash__": hash_of,
    "clear": clear, "copy": copy, "__copy__": copy,
}  # fmt: skip
_ITEMS: dict[str, Rule] = {
    "__getitem__": get_item, "__setitem__": set_item, "__delitem__": delete_item,
}  # fmt: skip
_OPS = {"eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE}
_COMBINE = {"or": union_of, "and": intersection_of, "sub": difference_of, "xor": exclusive_of}
_NAMED = {
    "union": union_of, "intersection": intersection_of, "difference": difference_of,
    "symmetric_difference": exclusive_of,
}  # fmt: skip


def _sequence(base: type) -> dict[str, Rule]:
    compared = {f"__{name}__": comparison(op, base) for name, op in _OPS.items()}
    return {
        **_ALL, **_ITEMS, **compared, "append": append, "extend": extend, "insert": insert,
        "remove": remove, "index": index_of, "count": count, "reverse": reverse,
        "__reversed__": reversed_of,
    }  # fmt: skip


_CHANGES = (
    "__setitem__",
    "__delitem__",
    "append",
    "extend",
    "insert",
    "remove",
    "reverse",
    "clear",
)
METHODS: dict[type, dict[str, Rule]] = {
    tuple: {name: rule for name, rule in _sequence(tuple).items() if name not in _CHANGES},
    list: {**_sequence(list), "__init__": init_list, "pop": pop, "sort": sort},
    deque: {
        **_sequence(deque), "__init__": init_deque, "pop": pop_of_deque, "popleft": pop_left,
        "appendleft": append_left, "extendleft": extend_left, "rotate": rotate,
    },
    OrderedDict: {"popitem": pop_item, "move_to_end": move_to_end},
    defaultdict: {"__init__": init_defaultdict, "__missing__": missing},
    dict: {
        **_ALL, **_ITEMS, "__init__": init_dict, "update": update, "get": get,
        "setdefault": set_default, "pop": pop_entry, "popitem": lambda self, d: pop_item(self, d),
        "keys": view("keys"), "values": view("values"), "items": view("items"),
        "__or__": joint_dict, "__eq__": compared_dicts, "__ne__": differ(compared_dicts),
        "__reversed__": reversed_of,
    },
    set: {
        **_ALL, "__init__": init_set, "add": add, "discard": discard, "remove": remove_of_set,
        "pop": pop_of_set, "update": combined_here(union_of),
        **{name: combined(combine) for name, combine in _NAMED.items()},
        **{f"{name}_update": combined_here(combine) for name, combine in _NAMED.items()},
        **{f"__{name}__": set_operator(combine) for name, combine in _COMBINE.items()},
        **{f"__r{name}__": set_operator(c, swapped=True) for name, c in _COMBINE.items()},
        "issubset": set_method(lambda a, b: a <= b), "issuperset": set_method(lambda a, b: a >= b),
        "isdisjoint": set_method(lambda a, b: not a & b),
        "__eq__": set_comparison(lambda a, b: a == b),
        "__ne__": set_comparison(lambda a, b: a != b),
        "__lt__": set_comparison(lambda a, b: a < b), "__le__": set_comparison(lambda a, b: a <= b),
        "__gt__": set_comparison(lambda a, b: a > b), "__ge__": set_comparison(lambda a, b: a >= b),
    },
}  # fmt: skip
"""Rules by class and name; a class has those of the classes from which it is derived, too."""

IN_PLACE: dict[type, dict[str, Rule]] = {
    list: {"add": extend},
    deque: {"add": extend},
    dict: {"or": update},
    set: {name: set_operator(combine, here=True) for name, combine in _COMBINE.items()},
}
"""Rules for augmented assignments, which change the container itself."""
