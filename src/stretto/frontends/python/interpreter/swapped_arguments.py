"""The arguments of the call that is captured, as values of the interpreter."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from stretto.frontends.python.interpreter.heap import ITEMS, PythonHeap, Ref, rebuild_tuple


def has_twice(arguments: Any) -> bool:
    """True if a container is found twice among the arguments."""
    pending, seen = [arguments], set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, list | dict | deque):
            if id(value) in seen:
                return True
            seen.add(id(value))
            pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple):
            pending += tuple.__iter__(value)
    return False


class SwappedArguments:
    """Makes the arguments of the interpreted call: tensors and ints are replaced, in pytree order,
    and containers become references."""

    def __init__(
        self,
        heap: PythonHeap,
        tensors: Iterator[Any],
        numbers: Iterator[Any],
        are_read: bool,
    ) -> None:
        """are_read: each call reads which containers are the same."""
        self.heap, self.tensors, self.numbers, self.are_read = heap, tensors, numbers, are_read

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(self.tensors)
        if type(value) is int:
            return next(self.numbers)
        if isinstance(value, tuple) and not tree_flatten(value)[1].is_leaf():
            return rebuild_tuple(value, [self.value(item) for item in value])
        if type(value) in _FILLED:
            return self._container(value)
        leaves, tree = tree_flatten(value)
        if tree.is_leaf():
            return self.heap.adopt(value)
        return tree_unflatten([self.value(leaf) for leaf in leaves], tree)

    def _container(self, value: Any) -> Ref:
        known = self.heap.refs.get(id(value))
        if self.are_read and known is not None:
            return known[1]
        table: dict[Any, Any] = {}
        made = Ref(type(value), table, 0, value)
        self.heap.outside.arguments.add(id(value))
        self.heap.outside.meet(value)
        if self.are_read:
            self.heap.refs[id(value)] = value, made
        else:
            self.heap.refs[id(made)] = made, made
        if isinstance(value, dict):
            counted = self.heap.outside.numbers
            found = {key: self.value(item) for key, item in value.items()}
            table[ITEMS] = {k: counted.get((id(value), k), item) for k, item in found.items()}
        else:
            table[ITEMS] = tuple([self.value(item) for item in value])
        if isinstance(value, defaultdict):
            table["default_factory"] = value.default_factory
        return made


_FILLED = (list, dict, OrderedDict, defaultdict, deque)
