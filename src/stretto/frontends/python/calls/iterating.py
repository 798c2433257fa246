"""Rules for `zip`, `enumerate`, `iter`, `next` and `itertools`.

They make the iterators of `lists/iterators.py`, whose positions are part of the state, if all
items can be accessed by position. Other iterators are foreign objects. A loop over an unused
iterator that no other code can see needs no position: it runs over the underlying items.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.calls.generated import Generated
from stretto.frontends.python.lists import iterators, sources
from stretto.frontends.python.lists.iterators import TracedIterator
from stretto.frontends.python.objects.foreign import note_made
from stretto.frontends.python.source.rewrite import rewritten
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.values.scalars import cast_number
from stretto.frontends.python.values.state import Snapshot, TracedList

Rule = Callable[..., Any]
_SEQUENCES = (list, tuple, str, bytes, torch.Size, TracedList, sources.Indexed)
_KEYS, _VALUES, _ITEMS = type({}.keys()), type({}.values()), type({}.items())


def iterator_of(iterable: Any) -> Any:
    """Return an iterator with a position over the items; None if there can be none."""
    match iterable:
        case TracedIterator():
            return iterable
        case Iterator() | Generated():
            return None
        case list() | dict() | tuple() | set() if type(iterable).__iter__ not in _PLAIN:  # pyright: ignore
            return None
        case dict():
            return _of_dict(iterable, iterable, lambda owner, key: key)  # pyright: ignore
        case _KEYS():
            return _of_dict(iterable, iterable.mapping, lambda owner, key: key)
        case _VALUES():
            return _of_dict(iterable, iterable.mapping, lambda owner, key: owner[key])
        case _ITEMS():
            return _of_dict(iterable, iterable.mapping, lambda owner, key: (key, owner[key]))
        case torch.Tensor() | range():
            source = sources.as_source(iterable)
            return None if source is None else _new_iterator(iterators.Positioned, source)
        case nn.ModuleList() | nn.Sequential() | nn.ParameterList() | nn.ModuleDict():
            return _new_iterator(iterators.Positioned, list(iterable))
        case _ if isinstance(iterable, _SEQUENCES):
            return _new_iterator(iterators.Positioned, iterable)
        case set() | frozenset():
            return _new_iterator(iterators.Positioned, list(iterable))  # pyright: ignore
        case _:
            return None


_PLAIN = (list.__iter__, dict.__iter__, tuple.__iter__, set.__iter__)


def _of_dict(view: Any, owner: Any, give: Rule) -> TracedIterator:
    return _new_iterator(iterators.DictIterator, view, owner, give)


def _new_iterator(kind: type[TracedIterator], *args: Any, **kwargs: Any) -> TracedIterator:
    return Hooks.call(kind, *args, **kwargs)


def _all(iterables: tuple[Any, ...]) -> list[Any] | None:
    found = [iterator_of(item) for item in iterables]
    return None if any(item is None for item in found) else found


def _iter(*args: Any) -> Any:
    if len(args) == 2:
        return _new_iterator(iterators.CallIterator, *args)
    found = iterator_of(args[0]) if len(args) == 1 else None
    return NotImplemented if found is None else found


def _next(iterator: Any, *default: Any) -> Any:
    if not isinstance(iterator, TracedIterator):
        return NotImplemented
    if default:
        return rewritten(iterators.next_or)(iterator, *default)
    return rewritten(iterators.next_of)(iterator)


def _over_one(kind: type[TracedIterator]) -> Rule:
    """Return a rule for a function whose last argument is the iterable."""

    def rule(*args: Any) -> Any:
        *given, items = args
        inner = iterator_of(items)
        return NotImplemented if inner is None else _new_iterator(kind, *given, inner)

    return rule


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    inner = iterator_of(iterable)
    if inner is None:
        return NotImplemented
    return _new_iterator(iterators.Enumerated, iterable, inner, _int_of(start))


def _zip(*iterables: Any, strict: bool = False) -> Any:
    inner = _all(iterables)
    if inner is not None:
        gone_through = [id(item) for one in inner for item in _with_inner_iterators(one)]
        if len(set(gone_through)) < len(gone_through):
            fail(
                "zip takes items from the same iterator more than once",
                "take them from the sequence by their positions",
            )
        return _new_iterator(iterators.Zipped, iterables, inner, strict)
    if any(isinstance(item, TracedList) for item in iterables):
        return sources.zipped(*iterables, strict=strict)
    return NotImplemented


def _with_inner_iterators(iterator: TracedIterator) -> Iterator[TracedIterator]:
    """Yield the iterator and all iterators that it takes its items from."""
    yield iterator
    inner: Any = getattr(iterator, "inner", ())
    for one in (inner,) if isinstance(inner, TracedIterator) else inner:
        yield from _with_inner_iterators(one)


def _map(function: Any, *iterables: Any) -> Any:
    known = sources.mapped(function, *iterables)
    if known is not NotImplemented:
        return known
    inner = _all(iterables)
    if not iterables or inner is None:
        return NotImplemented
    return _new_iterator(iterators.Mapped, function, iterables, inner)


def _filter_false(function: Any, iterable: Any) -> Any:
    inner = iterator_of(iterable)
    if inner is None:
        return NotImplemented
    return _new_iterator(iterators.Filtered, function, inner, False)


def _cycle(iterable: Any) -> Any:
    if isinstance(iterable, torch.Tensor | range):
        return _new_iterator(iterators.Cycled, sources.as_source(iterable))
    if type(iterable) is list:
        return _new_iterator(iterators.Cycled, _unchanged(iterable))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(iterable, tuple | str):
        return _new_iterator(iterators.Cycled, iterable)
    return NotImplemented


def _unchanged(items: list[Any]) -> sources.Indexed:
    """Return the items of a list as a source that fails if the list changes meanwhile."""
    held = tuple(items)

    def item(index: Any) -> Any:
        if len(items) != len(held) or any(a is not b for a, b in zip(items, held, strict=True)):
            fail("a list is changed while itertools.cycle iterates over it", "pass it a copy")
        return Hooks.staging.getitem(held, index)

    return sources.Indexed(len(held), item)


def _chain(*iterables: Any) -> Any:
    inner = _all(iterables)
    return NotImplemented if inner is None else _new_iterator(iterators.Chained, inner)


def _chain_of(iterables: Any) -> Any:
    return _chain(*iterables) if isinstance(iterables, list | tuple) else NotImplemented


def _islice(iterable: Any, *bounds: Any) -> Any:
    inner = iterator_of(iterable)
    if inner is None or not 1 <= len(bounds) <= 3:
        return NotImplemented
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return _new_iterator(iterators.Sliced, inner, start or 0, stop, 1 if step is None else step)


def _accumulate(iterable: Any, func: Any = None, *, initial: Any = None) -> Any:
    inner = iterator_of(iterable)
    if inner is None:
        return NotImplemented
    return _new_iterator(iterators.Accumulated, inner, func, initial)


def _repeat(object: Any, times: Any = UNDEFINED) -> Any:
    return _new_iterator(
        iterators.Repeated, object, *(() if times is UNDEFINED else (_int_of(times),))
    )


def _int_of(number: Any) -> Any:
    """Return a number like `operator.index`; it may stay traced. Raises TypeError."""
    if isinstance(number, torch.SymInt):
        return number
    if not isinstance(number, TracedTensor):
        return operator.index(number)
    if number.dtype.is_floating_point or number.numel() != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return cast_number(number.reshape(()), int)


def _listed(make: Rule) -> Rule:
    """Return a rule for an itertools function that lists all results at the call."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        given = [drained(item) if isinstance(item, TracedIterator) else item for item in args]
        if not all(isinstance(item, list | tuple | range | str | int) for item in given):
            return NotImplemented
        return _new_iterator(iterators.Positioned, tuple(make(*given, **kwargs)))

    return rule


def loop_over(iterable: Any) -> Any:
    """Return what a loop or a comprehension runs over: the underlying items for an unused iterator
    that no other code can see, else `iterable`."""
    if (
        isinstance(iterable, TracedIterator)
        and iterable.touched is False
        and not _is_visible(iterable)
    ):
        found = _untouched(iterable)
        if isinstance(found, Iterator):
            note_made(found, loop_over, iterable.made_of)
        return found
    return iterable


def _is_visible(iterator: TracedIterator) -> bool:
    return id(iterator) in Snapshot.take().boxes


def _untouched(iterator: TracedIterator) -> Any:
    """Return the items of an unused iterator without positions, or the iterator itself if it needs
    them."""
    given = [loop_over(item) for item in iterator.made_of]
    if any(isinstance(item, TracedIterator) for item in given):
        return iterator
    match iterator:
        case iterators.Backwards(items=items):
            return sources.backwards(items)
        case iterators.Positioned(items=items):
            return items
        case iterators.DictIterator():
            return given[0]
        case iterators.Enumerated():
            return sources.enumerated(*given)
        case iterators.Mapped(function=function):
            joined: Any = sources.zipped(*given)
            return (Hooks.call(function, *items) for items in joined)
        case iterators.Zipped(strict=strict):
            return sources.zipped(*given, strict=strict)
        case _:
            return iterator


def drained(iterator: TracedIterator) -> Any:
    """Return all remaining items, for a function that uses them all."""
    if _is_endless(iterator):
        fail(
            f"all items are taken from an iterator of class {iterator.kind.__name__}, which has no "
            "end",
            "take them in a for statement with break",
        )
    items = loop_over(iterator)
    return rewritten(iterators.rest_of)(iterator) if items is iterator else items


def _is_endless(iterator: TracedIterator) -> bool:
    match iterator:
        case iterators.Counted() | iterators.Cycled() | iterators.Repeated(left=None):
            return True
        case iterators.Zipped(inner=inner):
            return bool(inner) and all(map(_is_endless, inner))
        case iterators.Chained(inner=inner):
            return any(map(_is_endless, inner))
        case iterators.Sliced(stop=stop):
            return stop is None and _is_endless(iterator.inner)
        case iterators.Over():
            return not isinstance(iterator, iterators.TakeWhile) and _is_endless(iterator.inner)
        case _:
            return False


def contains(iterator: TracedIterator, item: Any) -> Any:
    """`item in iterator`."""
    return rewritten(iterators.contains)(iterator, item)


def _reversed(items: Any) -> Any:
    if isinstance(items, torch.Tensor):
        return sources.backwards(items)
    if isinstance(items, range):
        items = sources.as_source(items)
    if type(items) in (list, tuple, str) or isinstance(items, TracedList | sources.Indexed):
        return _new_iterator(iterators.Backwards, items)
    return NotImplemented


USE_ALL: frozenset[Any] = frozenset((list, tuple, sum, min, max, sorted))
"""Functions with rules that consume an iterator completely."""
RULES: dict[Any, Rule] = {
    iter: _iter,
    next: _next,
    enumerate: _enumerate,
    zip: _zip,
    map: _map,
    filter: _over_one(iterators.Filtered),
    reversed: _reversed,
    itertools.count: lambda *args, **kwargs: _new_iterator(iterators.Counted, *args, **kwargs),
    itertools.repeat: _repeat,
    itertools.cycle: _cycle,
    itertools.chain: _chain,
    itertools.chain.from_iterable: _chain_of,
    itertools.islice: _islice,
    itertools.accumulate: _accumulate,
    itertools.pairwise: _over_one(iterators.Paired),
    itertools.starmap: _over_one(iterators.StarMap),
    itertools.takewhile: _over_one(iterators.TakeWhile),
    itertools.dropwhile: _over_one(iterators.DropWhile),
    itertools.filterfalse: _filter_false,
    **{
        make: _listed(make)
        for make in (
            itertools.product,
            itertools.permutations,
            itertools.combinations,
            itertools.combinations_with_replacement,
        )
    },
}
