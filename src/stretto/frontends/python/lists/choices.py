"""Items of Python sequences and dicts at positions that the run decides.

Items of one shape and dtype become a list of the Program. Others, such as the modules of an
`nn.ModuleList` or functions, become a value that is one of them: each use of it is a branch on the
position, which makes the call of a chosen expert a switch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.aliasing.aliases import is_one_of, link
from stretto.frontends.python.lists import operations
from stretto.frontends.python.lists.parts import Parts, tuple_of
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import Abort, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import items_kind, to_traced_list
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    concrete,
    known_value,
    number_kind,
    number_of,
    to_number,
)

SEQUENCES = (list, tuple, nn.ModuleList, nn.ParameterList, nn.Sequential)


def item_of_sequence(holder: Any, index: Any) -> Any:
    """`holder[index]` at a traced position."""
    if isinstance(index, slice):
        return _part_of_sequence(holder, index)
    known = known_value(index)
    if known is not None:
        return holder[known]
    with contextlib.suppress(Abort):  # unroll the loop of the index, if it has one
        return holder[concrete(index, "int")]
    items: list[Any] = list(holder)
    kinds = list(dict.fromkeys(map(number_kind, items)))
    if len(kinds) > 1 and None not in kinds:
        return _number_of_sequence(items, kinds, index)
    if items and (len(kinds) > 1 or items_kind(items) is None):
        return _one_of(items, index, _message(holder))
    made = operations.get_item(to_traced_list(items), index)
    if isinstance(made, TracedTensor) and made.number is None:
        is_one_of(made, items, index)
    return made


def _part_of_sequence(holder: Any, index: slice) -> Any:
    """`holder[start:stop:step]` with traced bounds, of which the run decides the length."""
    start, stop, step = operations.bounds_of(index)
    bounds = start, stop
    items: list[Any] = list(holder)
    step = 1 if step is None else int(step)
    with contextlib.suppress(Abort):
        known = [concrete(p, "int") if isinstance(p, TracedTensor) else p for p in bounds]
        return holder[slice(known[0], known[1], step)]
    if not items:
        return holder[::step]
    if isinstance(holder, list | tuple) and items_kind(items) is not None:
        traced = to_traced_list(items)
        link(traced, items)
        made = operations.get_item(traced, slice(*bounds, step))
        return tuple_of(made) if isinstance(holder, tuple) else made
    if isinstance(holder, nn.Sequential):
        fail(
            "a Sequential is sliced at a position that depends on a tensor",
            "loop over its modules and stop there, or compile with fallback=True",
        )
    first, length = operations.extent(items, *bounds, step)
    kind = Parts if isinstance(holder, tuple) else Indexed
    return kind(length, lambda place: item_of_sequence(items, place * step + first))


def entry_of_dict(holder: dict[Any, Any], index: Any) -> Any:
    """`holder[index]` for a traced number as the key."""
    known = known_value(index)
    if known is not None or not _are_numbers(holder):
        return holder[concrete(index, "int")]
    with contextlib.suppress(Abort):
        return holder[concrete(index, "int")]
    key = to_number(index, TypeError)
    flags = [number_of(key == one) for one in holder]
    found: Any = flags[0]
    for flag in flags[1:]:
        found = torch.logical_or(found, flag)
    check(found, "KeyError", "{}", _detail(key))
    return Either(flags, list(holder.values()))


def entry_by_text(holder: dict[Any, Any], text: Any, *default: Any) -> Any:
    """`holder[text]` for a traced text as the key: a branch for each key that it may be. default:
    of `holder.get`."""
    keys = [key for key in holder if isinstance(key, str)]
    return _by_text(holder, keys, text, default)


def _by_text(holder: dict[Any, Any], keys: list[str], text: Any, default: tuple[Any, ...]) -> Any:
    for number, key in enumerate(keys):
        found = text == key
        if found is True:
            return holder[key]
        if found is not False:
            rest = keys[number + 1 :]
            return Hooks.staging.ifexp(
                found,
                lambda key=key: holder[key],
                lambda rest=rest: _by_text(holder, rest, text, default),
            )
    if default:
        return default[0]
    raise KeyError(text)


def _are_numbers(holder: dict[Any, Any]) -> bool:
    return bool(holder) and all(type(key) is int for key in holder)


def _one_of(items: Sequence[Any], index: Any, message: str) -> Either:
    """One of the items, which have no place in a list of the Program."""
    position, size = to_number(index, TypeError), len(items)
    if position.dtype.is_floating_point or position.dtype == torch.bool:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    inside = torch.logical_and(position >= -size, position < size)
    check(inside, "IndexError", message, _detail(position))
    place = torch.remainder(position, size)
    return Either([number_of(place == number) for number in range(size)], items)


def _detail(number: TracedTensor) -> Any:
    return tracer().read(number)


def _message(holder: Any) -> str:
    if isinstance(holder, nn.Module):
        return "index {} is out of range"
    return f"{type(holder).__name__} index out of range"


def _number_of_sequence(items: list[Any], kinds: list[Any], index: Any) -> Any:
    """An item of a list of ints and floats, which is one or the other."""
    are_kind = [[number_kind(item) is kind for item in items] for kind in kinds]
    flags = [operations.get_item(to_traced_list(marks), index) for marks in are_kind]
    options = [
        operations.get_item(to_traced_list([x if is_it else kind() for x, is_it in pairs]), index)
        for kind, pairs in zip(kinds, (zip(items, m, strict=True) for m in are_kind), strict=True)
    ]
    return Either(flags, options)
