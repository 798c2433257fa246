"""Identity and membership, as Python's data model has them.

Containers compare items by identity first, and then with `==`. Two numbers of the program have no
identity of their own, since that depends on how Python computes them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.aliasing.aliases import overlapping
from stretto.frontends.python.calls.ordering import check_identity
from stretto.frontends.python.interpreter.data_dicts import DataDict
from stretto.frontends.python.interpreter.frames import HostFunction
from stretto.frontends.python.interpreter.heap import MISSING, DictView, HeapKey, IteratorRef, Ref
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.lists import data_methods, operations
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.data import DataObject
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.scalars import is_number, to_number
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class Membership:
    """Identity and membership."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def equal(self, first: Any, second: Any) -> Any:
        """Compare two items of containers: by identity, and then with `==`."""
        same = self.is_found(first, second)
        truth = self.interpreter.operators.truth
        return self.interpreter.regions.logical(
            False, same, lambda: truth(self.interpreter.operators.compare(ast.Eq, first, second))
        )

    def of_list(self, function: Callable[..., Any], items: DataList, *args: Any) -> Any:
        """Run a function that compares the items of a list of an instance. args: its arguments;
        after the first one, it gets the comparison."""
        found, *rest = args
        holder = self.heap.new(list, items)
        return self.interpreter.run_own(function, holder, found, HostFunction(self.equal), *rest)

    def some(self, items: Sequence[Any], holds: Callable[[Any], Any]) -> Any:
        """Return the truth that `holds` is true for an item; those after it are not asked."""
        for number, item in enumerate(items):
            found = holds(item)
            if found is True:
                return True
            if found is not False:

                def rest(others: Any = items[number + 1 :]) -> Any:
                    return self.some(others, holds)

                return self.interpreter.regions.logical(False, found, rest)
        return False

    def is_found(self, item: Any, other: Any) -> Any:
        """Return True, or a traced flag, if an item is the very object searched for."""
        if item is other:
            return True
        are_values = _is_late(item) or _is_late(other)
        return False if are_values else self.same(item, other)

    def same(self, first: Any, second: Any) -> Any:
        """Return `first is second`: a bool, or a traced flag."""
        if first is second:
            return True
        decided = self.interpreter.operators.decided
        first, second = _as_traced(decided(first), decided(second))
        if first is second:
            return True
        if not isinstance(first, Either):
            first, second = second, first
        regions, are_same = self.interpreter.regions, self._are_same
        if isinstance(first, Either):
            if isinstance(second, Either | TracedTensor):
                return regions.each_option(first, lambda option: self.same(option, second))
            return regions.flag_of_options(first, lambda option: are_same(option, second))
        if is_late_number(first) or is_late_number(second):
            return self._are_one_number(first, second)
        if isinstance(first, TracedTensor) and isinstance(second, TracedTensor):
            return _are_one_tensor(first, second)
        return are_same(first, second)

    def _are_same(self, first: Any, second: Any) -> Any:
        if isinstance(first, DataObject) or isinstance(second, DataObject):
            return tracer().data.are_same(first, second)
        are_texts = isinstance(first, str) and isinstance(second, str)
        if are_texts and (texts.is_text(first) or texts.is_text(second)):
            fail(
                "`is` compares two texts, of which one is known only when the program runs",
                "compare them with ==",
            )
        return self.heap.are_same(first, second)

    def _are_one_number(self, first: Any, second: Any) -> Any:
        """Bools are singletons; for other numbers this depends on how Python was built and how
        they were computed."""
        kinds = [self.interpreter.attributes.type_of(x) for x in (first, second)]
        if kinds[0] is not kinds[1]:
            return False
        if kinds[0] is bool:
            return self.interpreter.operators.truth(
                self.interpreter.operators.compare(ast.Eq, first, second)
            )
        fail(
            "`is` compares two numbers, of which one is known only when the program runs",
            "compare them with ==",
        )

    # -- membership -----------------------------------------------------------------------------

    def contains(self, container: Any, item: Any) -> Any:
        """Return `item in container`: a bool, or a traced flag."""
        interpreter = self.interpreter
        found = interpreter.operators.each(self.contains, container, item)
        if found is not NotImplemented:
            return found
        method = interpreter.attributes.method(container, "__contains__")
        if method is not MISSING:
            return interpreter.operators.truth(interpreter.calls.call(method, (item,), {}))
        if isinstance(container, Ref):

            def among() -> Any:
                return interpreter.containers.unchanged(
                    container, lambda: self.in_container(container, item)
                )

            return interpreter.containers.with_content(container, among)
        if isinstance(container, DictView):
            return self._in_view(container, item)
        names = ("__iter__", "__getitem__")
        is_written = any(interpreter.attributes.method(container, n) is not MISSING for n in names)
        if is_written or isinstance(container, IteratorRef | Indexed):
            return interpreter.iteration.is_any(container, lambda x: self.equal(x, item))
        return self._in_native(container, item)

    def in_container(self, holder: Ref, item: Any) -> Any:
        """Return whether an item is in a container, as its class in C decides it."""
        items = self.interpreter.containers.items(holder)
        if isinstance(items, DataDict):
            return items.has(item)
        if isinstance(items, DataList):
            return self.of_list(data_methods.contains, items, item)
        if isinstance(items, TracedList):
            return operations.contains(items, item)
        if isinstance(items, dict):
            if issubclass(holder.kind, set):
                item = self.interpreter.containers.item_to_find(item)
            return self._among_keys(items, self.interpreter.containers.asked_key(item))
        return self._among(items, item)

    def _in_view(self, view: DictView, item: Any) -> Any:
        if view.name == "keys":
            return self.in_container(view.holder, item)
        if view.name == "items" and not (isinstance(item, tuple) and len(item) == 2):
            return False
        return self._among(self.interpreter.iteration.known(view), item)

    def _in_native(self, container: Any, item: Any) -> Any:
        if is_number(container):
            kind = kind_of_number(container).__name__
            raise TypeError(f"argument of type '{kind}' is not iterable")
        if isinstance(container, str):
            is_late = texts.is_text(container) or texts.is_text(item)
            if is_late:
                return texts.has_part(container, item)
        if isinstance(container, tuple):
            return self._among(container, item)
        if isinstance(container, frozenset):
            containers = self.interpreter.containers
            key = containers.asked_key(containers.item_to_find(item))
            return self._among_keys(dict.fromkeys(container), key)
        if isinstance(container, range) and _is_late(item):
            return self._in_range(container, item)
        if isinstance(container, torch.Tensor):
            return self._in_tensor(container, item)
        iterators = self.interpreter.iteration.iterators
        if _is_late(item) and iterators.is_iterable(container):
            return self.interpreter.iteration.is_any(container, lambda x: self.equal(x, item))
        return self.interpreter.operators.truth(apply(operator.contains, container, item))

    def _among(self, items: Any, item: Any) -> Any:
        check_identity(items, item)
        return self.some(items, lambda other: self.equal(other, item))

    def _among_keys(self, items: dict[Any, Any], item: Any) -> Any:
        """Return True, or a traced flag, if an item is among keys. Tensors are found by identity
        only, since their hash depends on it."""
        regions, joint = self.interpreter.regions, self.interpreter.regions.logical
        if not _is_late(item) and not isinstance(item, torch.Tensor):
            return regions.is_bound(items.get(item, MISSING))
        found: Any = False
        for held, entry in items.items():
            key = held.value if isinstance(held, HeapKey) else held
            are_tensors = any(isinstance(x, torch.Tensor) and not is_number(x) for x in (key, item))
            is_it = self.same(key, item) if are_tensors else self.equal(key, item)
            is_it = joint(True, is_it, lambda entry=entry: regions.is_bound(entry))
            found = joint(False, found, lambda is_it=is_it: is_it)
        return found

    def _in_range(self, items: range, item: Any) -> Any:
        """A number of the program is in a range if it lies inside, and has the right rest."""
        if not len(items):
            return False
        number = to_number(item) if isinstance(item, TracedTensor) else item
        low, high = min(items[0], items[-1]), max(items[0], items[-1])
        step = abs(items.step)
        conditions = (
            lambda: number >= low,
            lambda: number <= high,
            lambda: number % step == low % step,
        )
        found: Any = True
        for condition in conditions:

            def rest(condition: Any = condition) -> Any:
                return self.interpreter.operators.truth(condition())

            found = self.interpreter.regions.logical(True, found, rest)
        return found

    def _in_tensor(self, container: Any, item: Any) -> Any:
        if not any(isinstance(value, TracedTensor) for value in (item, container)):
            return apply(operator.contains, container, item)
        if not isinstance(item, torch.Tensor | int | float | complex):
            return apply(operator.contains, container, item)  # raises what torch raises
        equal: Any = apply(operator.eq, item, container)
        return self.interpreter.operators.truth(equal.any())


def is_late_number(value: Any) -> bool:
    """True for a Python number that is known only when the program runs, or is a size."""
    return is_number(value) or isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_late(value: Any) -> bool:
    return is_late_number(value) or texts.is_text(value)


def _as_traced(*values: Any) -> list[Any]:
    """Return values with tensors of the Program in place of real ones, if some are of the run."""
    if not any(isinstance(value, TracedTensor | Either) for value in values):
        return [*values]
    is_real = [isinstance(x, torch.Tensor) and not isinstance(x, TracedTensor) for x in values]
    return [tracer().promote(x) if real else x for x, real in zip(values, is_real, strict=True)]


def _are_one_tensor(first: TracedTensor, second: TracedTensor) -> Any:
    """Compare the identity of tensors left by branches and loops."""
    if first.number is not None or second.memory not in overlapping(first.memory):
        return False
    if first.memory is second.memory:
        return False
    for source, tensor in ((first, second), (second, first)):
        flags = [item.flag() for item in tensor.memory.sources if item.tensor is source]
        if flags and flags[0] is not None and not tensor.steps:
            return tracer().number(flags[0])
    fail(
        "whether two variables are the same tensor depends on a traced branch or loop",
        "compare flags or numbers instead of tensors",
    )
