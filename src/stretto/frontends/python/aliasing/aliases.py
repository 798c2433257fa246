"""Storages that may share memory, and the effect of in-place writes on them.

In eager PyTorch a variable that leaves a branch, a loop or a recursive call may be one of
several tensors; in the Program it has its own storage. Two facts are recorded for storages:

- *sources*: if the flag of a source holds, the storage is the memory that the source's tensor
  views; if none holds, it is its own memory. After a write to one storage of such a family, all
  others are computed anew, selected by the flags.
- *links*: two storages may share memory. After a write to one of them the other is *stale*:
  reading it is an error, unless it has been written as a whole in between. A list is linked to
  its items, and to other lists that hold some of them; `same_list` has those that may be the same
  Python object.

The links of a storage are closed: they include everything that its sources, and the
storages it is a source of, are linked to. `link` and `has_sources`, called when a storage
is created, maintain this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from stretto.frontends.python.tracing.signals import Abort, abort, fail
from stretto.frontends.python.tracing.tensor import (
    Hooks,
    MemorySource,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataUnion
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import logical, select
from stretto.frontends.python.values.state import TracedList, children, parts_of
from stretto.ir.core import Value
from stretto.ir.types import FLAG


def storages_of(value: Any) -> list[Storage]:
    """Return the storages of the tensors and lists directly inside a leaf. Numbers have no
    memory."""
    if isinstance(value, TracedTensor):
        return [value.memory] if value.number is None else []
    if isinstance(value, TracedList):
        return [value.memory]
    if isinstance(value, torch.Tensor):
        return [tracer().promote(value).memory]
    if isinstance(value, Storage):
        return [value]
    if isinstance(value, list | tuple | Either) and not isinstance(value, DataUnion):
        items = value.stretto_options if isinstance(value, Either) else value
        return [storage for item in items for storage in storages_of(item)]
    return []


# -- recorded facts -----------------------------------------------------------------------------


def _sources(storage: Storage) -> Iterator[Storage]:
    for source in storage.sources:
        yield source.tensor.memory


def _parts(storage: Storage) -> Iterator[Storage]:
    yield from storage.parts or ()


def _reached(start: Iterable[Storage], following: Any) -> list[Storage]:
    """Return `start` and everything reachable from it; each storage precedes those reached from
    it."""
    order, seen = list[Storage](), set[Storage]()
    for first in start:
        pending = [] if first in seen else [(first, iter(following(first)))]
        seen.add(first)
        while pending:
            storage, others = pending[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                order.append(storage)
                pending.pop()
            else:
                seen.add(other)
                pending.append((other, iter(following(other))))
    return order[::-1]


def _family(storage: Storage) -> list[Storage]:
    """Return the storages whose memory may be that of `storage` by their sources; sources come
    first."""
    if not storage.sources and not storage.parts:
        return [storage]
    return _reached(_reached([storage], _sources), _parts)


def overlapping(storage: Storage) -> set[Storage]:
    """Return the storages that may share memory with `storage`, itself included."""
    return {*_family(storage), *(storage.links or ())}


def connect(first: Storage, second: Storage) -> None:
    """Record that two storages may share memory. Their other links are unchanged."""
    if first is not second:
        for one, other in ((first, second), (second, first)):
            one.links = one.links or WeakSet()
            one.links.add(other)


def link(made: Any, sources: Iterable[Any]) -> None:
    """Record that `made` may share memory with `sources`, and with everything that these may share
    memory with."""
    others = set[Storage]().union(*map(overlapping, storages_of(list(sources))))
    for target in storages_of(made):
        family = {one for one in _family(target) if one.scope.open and one is not target}
        for other in others:
            connect(target, other)
            if family and other.scope.open and other not in family:
                for one in family:
                    connect(one, other)


def link_same(made: Any, sources: Iterable[Any]) -> None:
    """Like `link`; if `made` is a list, it may also be the same Python object as one of
    `sources`."""
    sources = list(sources)
    link(made, sources)
    if not isinstance(made, TracedList):
        return
    for source in sources:
        if isinstance(source, TracedList) and source is not made:
            for other in (source.memory, *(source.memory.same_list or ())):
                for one, same in ((made.memory, other), (other, made.memory)):
                    if one is not same:
                        one.same_list = one.same_list or WeakSet()
                        one.same_list.add(same)


def may_be_same(first: set[Storage], second: set[Storage]) -> bool:
    """True if a list among the storages `first` may be one of `second`."""
    lists = (storage for storage in first if storage.fake is None)
    return any(not second.isdisjoint((one, *(one.same_list or ()))) for one in lists)


def has_sources(made: Storage, sources: Iterable[MemorySource]) -> None:
    """Record that `made` is the memory of the source whose flag holds, or fresh memory if none
    holds."""
    made.sources = tuple(sources)
    for storage in _sources(made):
        if storage.parts is None:
            storage.parts = WeakKeyDictionary()
        storage.parts[made] = None
        for other in list(storage.links or ()):
            connect(made, other)


def is_one_of(made: TracedTensor, items: list[Any], index: TracedTensor) -> None:
    """Record that `made` is the item of a Python list at a position known only at run time."""
    state = tracer()
    position = state.read(index)

    def is_at(number: int) -> Value | None:
        if not state.is_known(position):
            return None
        here = state.use(position)
        flags = [
            state.tensor_op("aten.eq.Scalar", (here, wanted), FLAG)
            for wanted in (number, number - len(items))
        ]
        return logical("or", *flags)

    has_sources(
        made.memory,
        [
            MemorySource(item if isinstance(item, TracedTensor) else state.promote(item), flag)
            for item, flag in ((item, lambda n=n: is_at(n)) for n, item in enumerate(items))
        ],
    )


# -- writes -------------------------------------------------------------------------------------


def written(storage: Storage) -> None:
    """After a write to `storage`, update the other storages of its family, and mark those linked
    to it as stale."""
    _check_arrays(storage)
    if storage.fake is None:
        if storage.same_list:
            _stale(storage.same_list, _origin())
        return
    family = _family(storage)
    if len(family) == 1 and not storage.links:
        return
    origin = _origin()
    if len(family) > 1:
        _Update(storage, family, origin).run()
    _stale(storage.links or (), origin)


def _check_arrays(storage: Storage) -> None:
    """Fail if an array shares the memory of `storage` in eager PyTorch: here it is a copy."""
    state = tracer()
    if not state.arrays:
        return
    arrays = [tensor for array, tensor in state.arrays if state.heap.may_be_reached(array)]
    if arrays and not overlapping(storage).isdisjoint(storages_of(arrays)):
        fail(
            "a tensor is changed in place whose memory a NumPy array or another buffer shares in "
            "eager PyTorch",
            "call clone() before: on the tensor of which the array is made, or that is made of it",
        )


def _origin() -> Abort:
    return abort(
        "a tensor is changed in place that may share memory with another one, depending on "
        "a traced branch, loop, call or list, and the other one is used afterwards",
        "call clone() before, or use the out-of-place operator",
    )


def _stale(storages: Iterable[Storage], origin: Abort) -> None:
    state = tracer()
    for storage in list(storages):
        if storage.scope.open and storage.state.stale is None:
            before = storage.state
            state.set_state(storage, StorageState(before.base, before.length, origin))


class _Update:
    """Updates a family of storages after one of them was written."""

    def __init__(self, written: Storage, family: list[Storage], origin: Abort) -> None:
        self.written = written
        self.family = family
        self.origin = origin
        self.changed: dict[Storage, Value | None] = {written: None}
        self.is_ambiguous = False

    def run(self) -> None:
        """Write upwards to the sources of the written storage, then read the other visible
        storages anew; mark the invisible ones stale."""
        seen = visible()
        others = [storage for storage in self.family if storage is not self.written]
        if seen.isdisjoint(others):
            _stale(others, self.origin)
            return
        upwards = _reached([self.written], _sources)
        for storage in upwards:
            for source in storage.sources:
                self._write_source(storage, source)
        for storage in others:
            is_seen = not seen.isdisjoint(_reached([storage], _parts))
            if storage not in upwards and not is_seen:
                _stale([storage], self.origin)
            elif storage not in upwards or self.is_ambiguous:
                self._read_sources(storage)

    def _write_source(self, storage: Storage, source: MemorySource) -> None:
        """Write to the memory of `source` if `storage` is that memory and was changed."""
        state, target = tracer(), source.tensor.memory
        is_lost = storage.state.stale or target.state.stale
        is_writable = all(step.is_writable for step in source.tensor.steps)
        flag = _flag_of(source) if is_writable and not is_lost else None
        if flag is None:
            _stale([target], self.origin)
            return
        before = self.changed[storage]
        condition = flag if before is None else logical("and", before, flag)
        value = state.replaced(source.tensor, state.current(storage))
        state.set_state(target, StorageState(select(condition, value, state.current(target))))
        known = self.changed.get(target)
        if known is not None:
            self.is_ambiguous = True
            condition = logical("or", known, condition)
        self.changed[target] = condition

    def _read_sources(self, storage: Storage) -> None:
        """Read `storage` anew from the memory of each source, if it is that memory."""
        state = tracer()
        if storage.state.stale:
            return
        value = state.current(storage)
        for source in storage.sources:
            flag = None if source.tensor.memory.state.stale else _flag_of(source)
            if flag is None:
                _stale([storage], self.origin)
                return
            value = select(flag, state.read(source.tensor), value)
        state.set_state(storage, StorageState(value))


def _flag_of(source: MemorySource) -> Value | None:
    """Return the flag of a source; None if the flag, or a position that its view depends on,
    cannot be used here."""
    state = tracer()
    values = [value for step in source.tensor.steps for value in step.values]
    if not all(state.is_known(value) for value in values):
        return None
    flag = source.flag()
    return flag if flag is not None and state.is_known(flag) else None


def visible() -> set[Storage]:
    """Return the storages that the user's code or the function's caller can still access."""
    state = tracer()
    found = {traced.memory for traced in state.inputs.values()}
    found |= {constant.memory for constant in state.constants.values()}
    found |= {storage for region in state.regions for storage in region.kept}
    pending = list(Hooks.values_in_use())
    while pending:
        value = pending.pop()
        if isinstance(value, TracedTensor | TracedList):
            found.add(value.memory)
        elif parts_of(value) is not None:
            pending.extend(children(value))
    return found


Hooks.written = written
