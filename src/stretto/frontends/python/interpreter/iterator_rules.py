"""Rules for functions that make iterators, or go through iterables."""

from __future__ import annotations

import ast
import functools
import heapq
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.interpreter.data_dicts import in_any_order
from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    RESULT,
    DataRef,
    IteratorRef,
    Ref,
)
from stretto.frontends.python.interpreter.iterators import (
    AT,
    CALL_ITERATOR,
    DONE,
    FUNCTION,
    LAST,
    LEFT,
    SOURCE,
    STEP,
)
from stretto.frontends.python.lists import data_methods, sources
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

Rule = Callable[..., Any]


def _bound(args: tuple[Any, ...]) -> str:
    return "most 2 arguments" if args else "least 1 argument"


def _error_of(function: Any) -> str:
    try:
        return str(function(()))
    except ValueError as error:
        return str(error)


_NO_ITEMS = {function: _error_of(function) for function in (min, max)}
"""The messages of this version of Python for `min` and `max` of nothing."""
_OF_DATA: dict[Any, Any] = {
    (itertools.product,): data_methods.product,
    (itertools.combinations, 2): data_methods.pairs,
}


class IteratorRules:
    """The functions of `builtins` and `itertools` that make iterators."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.iteration = interpreter.iteration
        self.iterators = interpreter.iteration.iterators

    def iter(self, *args: Any) -> Any:
        if len(args) == 1:
            return self.iteration.iterator(args[0])
        if len(args) != 2:
            raise TypeError(f"iter expected at {_bound(args)}, got {len(args)}")
        function, last = args
        if not self.interpreter.calls.call(callable, (function,), {}):
            raise TypeError("iter(v, w): v must be callable")
        return self.iterators.new(CALL_ITERATOR, {FUNCTION: function, LAST: last, DONE: False})

    def enumerate(self, iterable: Any, start: Any = 0) -> Any:
        return self.iterators.over(enumerate, (iterable,), {AT: self._index(start)})

    def _index(self, number: Any) -> Any:
        if isinstance(number, TracedTensor):
            return number
        return operator.index(number)

    def zip(self, *iterables: Any, strict: Any = False) -> Any:
        return self.iterators.over(zip, iterables, {LEFT: strict})

    def zip_longest(self, *iterables: Any, fillvalue: Any = None) -> Any:
        return self.iterators.over(itertools.zip_longest, iterables, {LAST: fillvalue})

    def map(self, function: Any, *iterables: Any) -> Any:
        if not iterables:
            raise TypeError("map() must have at least two arguments.")
        return self.iterators.over(map, iterables, {FUNCTION: function})

    def with_function(self, kind: Any) -> Rule:
        """Return the rule of a class that is given a function and an iterable."""

        def rule(function: Any, iterable: Any) -> Any:
            return self.iterators.over(
                kind, (iterable,), {FUNCTION: function, DONE: False, LAST: MISSING}
            )

        return rule

    def reversed(self, items: Any) -> Any:
        interpreter = self.interpreter
        if isinstance(items, Either):
            return interpreter.regions.each_option(items, self.reversed)
        method = interpreter.attributes.method(items, "__reversed__")
        if method is not MISSING:
            return interpreter.calls.call(method, (), {})
        kind = interpreter.attributes.type_of(items)
        if not hasattr(kind, "__reversed__") and not hasattr(kind, "__getitem__"):
            raise TypeError(f"'{kind.__name__}' object is not reversible")
        if isinstance(items, torch.Tensor) and interpreter.attributes.type_of(items) is not int:
            return items.flip(0) if items.dim() else items  # a tensor in PyTorch too
        rest = self.iteration.rest(items)
        if rest is not None:
            given = items.table[ITEMS] if isinstance(items, Ref) else items
            kind = type(iter(range(0))) if isinstance(given, range) else reversed
            return self.iterators.of_sequence(sources.backwards(given), kind)
        if interpreter.attributes.method(items, "__getitem__") is not MISSING:
            length = interpreter.containers.length(items)
            if not isinstance(length, int):
                fail("the length of what is reversed depends on a tensor", "use a list")
            found = [interpreter.containers.getitem(items, n) for n in range(length)]
            return self.iterators.of_items(found[::-1], items, reversed)
        return self.iterators.of_items(self.iteration.known(items)[::-1], items, reversed)

    def count(self, start: Any = 0, step: Any = 1) -> Any:
        for number in (start, step):
            kind = self.interpreter.attributes.type_of(number)
            names = ("__index__", "__float__", "__complex__")
            if not any(hasattr(kind, name) for name in names):
                raise TypeError("a number is required")
        return self.iterators.new(itertools.count, {AT: start, STEP: step})

    def repeat(self, object: Any, times: Any = MISSING) -> Any:
        left = None if times is MISSING else self._index(times)
        left = max(left, 0) if isinstance(left, int) else left
        return self.iterators.new(itertools.repeat, {SOURCE: object, LEFT: left})

    def cycle(self, iterable: Any) -> Any:
        items: Any = ()
        if isinstance(iterable, Ref) and isinstance(iterable.table[ITEMS], tuple):
            items = iterable.table[ITEMS]
        elif isinstance(iterable, tuple):
            iterable = self.interpreter.heap.list(iterable)
            items = iterable.table[ITEMS]
        return self.iterators.over(itertools.cycle, (iterable,), {LAST: items, AT: 0})

    def chain(self, *iterables: Any) -> Any:
        return self.chain_from(iterables)

    def chain_from(self, iterables: Any) -> Any:
        if isinstance(iterables, DataRef) or (
            isinstance(iterables, tuple) and any(isinstance(x, DataRef) for x in iterables)
        ):
            made = self.interpreter.run_own(data_methods.chained, iterables)
            return self.iterators.of_sequence(made)
        return self.iterators.over(itertools.chain, (iterables,), {LAST: None})

    def accumulate(self, iterable: Any, function: Any = None, *, initial: Any = None) -> Any:
        has_initial = initial is not None
        last = initial if has_initial else MISSING
        return self.iterators.over(
            itertools.accumulate,
            (iterable,),
            {FUNCTION: function, LAST: last, DONE: not has_initial},
        )

    def pairwise(self, iterable: Any) -> Any:
        return self.iterators.over(itertools.pairwise, (iterable,), {LAST: MISSING})

    def islice(self, iterable: Any, *bounds: Any) -> Any:
        start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        start, step = (0 if start is None else start), (1 if step is None else step)
        if any(isinstance(bound, TracedTensor) for bound in (start, step)):
            fail("the start or step of a slice of an iterator depends on a tensor", "use a list")
        is_bad = [
            bound is not None
            and not isinstance(bound, TracedTensor)
            and operator.index(bound) < low
            for bound, low in ((start, 0), (stop, 0), (step, 1))
        ]
        if any(is_bad):
            list(itertools.islice((), start, stop, step))
        return self.iterators.over(
            itertools.islice, (iterable,), {AT: start, LEFT: stop, STEP: step}
        )

    def listed(self, make: Rule) -> Rule:
        """Return the rule of a function that takes all items at its call."""

        def rule(*args: Any, **kwargs: Any) -> Any:
            def is_number(x: Any) -> Any:
                return isinstance(x, int) or x is None

            args = tuple(arg if is_number(arg) else self._taken(arg) for arg in args)
            if any(isinstance(x, DataRef) for x in args):
                function = _OF_DATA.get((make, *(x for x in args[1:] if isinstance(x, int))))
                if function is None:
                    fail(f"{make.__name__} of a list of an instance", "write it as loops")
                return self.interpreter.run_own(
                    function, *(x for x in args if not isinstance(x, int)), **kwargs
                )
            given = [arg if is_number(arg) else self.iteration.known(arg) for arg in args]
            return self.iterators.of_sequence(tuple(make(*given, **kwargs)))

        return rule

    # -- functions that go through iterables ----------------------------------------------------

    def tuple(self, items: Any = ()) -> Any:
        if type(items) is tuple:
            return items
        found = self.iteration.collect(items)
        if isinstance(found, DataList):
            return self.interpreter.heap.new(tuple, found.copied(is_tuple=True))
        return self.interpreter.regions.of_each(
            found, lambda x: x if isinstance(x, tuple) else sources.tuple_of(x)
        )

    def any(self, items: Any) -> Any:
        return self.iteration.is_any(items, self.interpreter.operators.truth)

    def all(self, items: Any) -> Any:
        regions, truth = self.interpreter.regions, self.interpreter.operators.truth
        fails = self.iteration.is_any(items, lambda item: regions.negated(truth(item)))
        return regions.negated(fails)

    def sum(self, items: Any, start: Any = 0) -> Any:
        interpreter = self.interpreter
        if isinstance(start, str | bytes | bytearray):
            return sum((), start if isinstance(start, bytes | bytearray) else "")  # fails
        items = self._taken(items)
        if isinstance(items, DataRef):
            return interpreter.run_own(data_methods.total, items, start)
        rest = None if isinstance(items, IteratorRef) else self.iteration.rest(items)
        if rest is not None and not isinstance(rest.source.length, int):
            return interpreter.calls.native(sum, (rest.source, start), {})
        table = interpreter.heap.new_table()
        interpreter.heap.set(table, RESULT, start)

        def add(item: Any) -> None:
            total = interpreter.operators.binary("add", table[RESULT], item)
            interpreter.heap.set(table, RESULT, total)

        self.iteration.through_all(items, add)
        return table[RESULT]

    def extreme(self, function: Any) -> Rule:
        """Return the rule for `min` or `max`."""
        interpreter = self.interpreter

        def rule(*args: Any, **kwargs: Any) -> Any:
            if not args:
                raise TypeError(f"{function.__name__} expected at least 1 argument, got 0")
            first, *others = args

            def of(*given: Any) -> Any:
                return interpreter.calls.natives.call(function, given, kwargs)

            is_plain = interpreter.calls.is_plain
            if others:
                if not all(map(is_plain, args)):
                    return self._best(function, args, **kwargs)
                return of(*args)
            first = self._taken(first)
            if isinstance(first, DataRef):
                return self._extreme_of_data(function, first, **kwargs)
            rest = None if isinstance(first, IteratorRef) else self.iteration.rest(first)
            if rest is not None and not isinstance(rest.source.length, int):
                return of(rest.source)
            found = self.iteration.collect(first)
            return interpreter.regions.of_each(
                found,
                lambda items: (
                    self._best(function, items, **kwargs)
                    if isinstance(items, tuple) and not all(map(is_plain, items))
                    else of(interpreter.heap.new(list, items))
                ),
            )

        return rule

    def _taken(self, items: Any) -> Any:
        """While a function for one instance is captured, return the items of an iterable: a tuple
        if they are known, else a list of the instance."""
        if tracer().data is None or isinstance(items, Either):
            return items
        found = self.iteration.collect(in_any_order(self.interpreter.containers, items))
        return self.interpreter.heap.new(list, found) if isinstance(found, DataList) else found

    def _extreme_of_data(
        self, function: Any, items: Ref, key: Any = None, default: Any = MISSING
    ) -> Any:
        run, is_least = self.interpreter.run_own, function is min

        def found() -> Any:
            if key is None:
                return run(data_methods.least if is_least else data_methods.greatest, items)
            by_key = data_methods.least_by if is_least else data_methods.greatest_by
            return run(by_key, items, key)

        if default is MISSING:
            run(data_methods.check_some, items, _NO_ITEMS[function])
            return found()
        is_empty = self.interpreter.operators.compare(
            ast.Eq, self.interpreter.containers.length(items), 0
        )
        return self.interpreter.regions.branch(is_empty, lambda: default, found)

    def _best(self, function: Any, items: Any, key: Any = None, default: Any = MISSING) -> Any:
        """Return `min` or `max` of objects, which are compared as the program does it."""
        interpreter, op = self.interpreter, ast.Gt if function is max else ast.Lt
        operators = interpreter.operators

        def mark_of(item: Any) -> Any:
            return item if key is None else interpreter.calls.call(key, (item,), {})

        best, mark = items[0], mark_of(items[0])
        for item in items[1:]:
            found = mark_of(item)
            is_better = operators.truth(operators.compare(op, found, mark))
            chosen, before = (item, found), (best, mark)
            best, mark = interpreter.regions.branch(
                is_better, lambda made=chosen: made, lambda made=before: made
            )
        return best

    def reduce(self, function: Any, items: Any, *start: Any) -> Any:
        interpreter = self.interpreter
        items = items if start else self._taken(items)
        if not start and isinstance(items, DataRef):
            return interpreter.run_own(data_methods.reduced, function, items)
        table = interpreter.heap.new_table()
        source = self.iteration.iterator(items)
        if not start:
            first = self.iteration.advance(source)
            if interpreter.regions.is_bound(first) is not True:
                if first is not MISSING:
                    fail("functools.reduce has no start, and perhaps no items", "give it a start")
                raise TypeError("reduce() of empty iterable with no initial value")
            start = (first,)
        interpreter.heap.set(table, RESULT, start[0])

        def step(item: Any) -> None:
            made = interpreter.calls.call(function, (table[RESULT], item), {})
            interpreter.heap.set(table, RESULT, made)

        self.iteration.through_all(source, step)
        return table[RESULT]

    def largest(self, count: Any, items: Any, key: Any = None) -> Any:
        containers = self.interpreter.containers
        found = containers.sorted(items, key=key, reverse=True)
        return containers.getitem(found, slice(0, self.interpreter.calls.call(max, (count, 0), {})))

    def of_functions(self) -> dict[Any, Rule]:
        """Return the rules by function."""
        return {
            iter: self.iter, next: self.iteration.next, enumerate: self.enumerate,
            zip: self.zip, map: self.map, filter: self.with_function(filter),
            reversed: self.reversed, tuple: self.tuple, any: self.any, all: self.all,
            sum: self.sum, min: self.extreme(min), max: self.extreme(max),
            functools.reduce: self.reduce, heapq.nlargest: self.largest,
            itertools.count: self.count, itertools.repeat: self.repeat,
            itertools.cycle: self.cycle, itertools.chain: self.chain,
            itertools.chain.from_iterable: self.chain_from,
            itertools.accumulate: self.accumulate, itertools.pairwise: self.pairwise,
            itertools.islice: self.islice, itertools.zip_longest: self.zip_longest,
            **{
                kind: self.with_function(kind)
                for kind in (
                    itertools.filterfalse, itertools.starmap, itertools.takewhile,
                    itertools.dropwhile,
                )
            },
            **{
                make: self.listed(make)
                for make in (
                    itertools.product, itertools.permutations, itertools.combinations,
                    itertools.combinations_with_replacement,
                )
            },
        }  # fmt: skip
