"""What may share memory, and what a write in place does to it.

In eager PyTorch a variable that leaves a branch, a loop or a recursive call may be one of several
tensors; in the Program it has a storage of its own. Two facts are kept of storages:

- *sources*: where the flag of a source holds, a storage is the memory that the source's tensor
  views; where none holds, it is memory of its own. After a write to one storage of such a family,
  all others are computed anew, selected by the flags.
- *links*: two storages may share memory. After a write to one of them the other is *stale*: to
  read it is an error, unless it has been written as a whole in between. A list is linked to its
  items, and to other lists that hold some of them; `same_list` are those that may be the same
  Python object.

The links of a storage are closed: they include what its sources, and what it is a source of, are
linked to. `link` and `has_sources`, called when a storage is made, keep it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from stretto.frontends.python.tracing.signals import Abort, abort
from stretto.frontends.python.tracing.tensor import (
    Hooks,
    MemorySource,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import logical, select
from stretto.frontends.python.values.state import Snapshot, TracedList, children, parts_of
from stretto.ir.core import Value
from stretto.ir.types import FLAG


def storages_of(value: Any) -> list[Storage]:
    """Storages of the tensors and lists directly inside a leaf. Numbers have no memory."""
    if isinstance(value, TracedTensor):
        return [value.memory] if value.number is None else []
    if isinstance(value, TracedList):
        return [value.memory]
    if isinstance(value, torch.Tensor):
        return [tracer().promote(value).memory]
    if isinstance(value, Storage):
        return [value]
    if isinstance(value, list | tuple | Either):
        items = value.stretto_options if isinstance(value, Either) else value
        return [storage for item in items for storage in storages_of(item)]
    return []


# -- what is known ------------------------------------------------------------------------------


def _sources(storage: Storage) -> Iterator[Storage]:
    for source in storage.sources:
        yield source.tensor.memory


def _parts(storage: Storage) -> Iterator[Storage]:
    yield from storage.parts or ()


def _reached(start: Iterable[Storage], following: Any) -> list[Storage]:
    """`start` and what is reached from it; each storage comes before those reached from it."""
    order, seen = list[Storage](), set[Storage]()

    def visit(storage: Storage) -> None:
        if storage not in seen:
            seen.add(storage)
            for other in following(storage):
                visit(other)
            order.append(storage)

    for storage in start:
        visit(storage)
    return order[::-1]


def _family(storage: Storage) -> list[Storage]:
    """Storages whose memory may be that of `storage` by their sources; sources come first."""
    if not storage.sources and not storage.parts:
        return [storage]
    return _reached(_reached([storage], _sources), _parts)


def overlapping(storage: Storage) -> set[Storage]:
    """Storages that may share memory with `storage`, itself included."""
    return {*_family(storage), *(storage.links or ())}


def connect(first: Storage, second: Storage) -> None:
    """Notes that two storages may share memory. Their other links stay as they are."""
    if first is not second:
        for one, other in ((first, second), (second, first)):
            one.links = one.links or WeakSet()
            one.links.add(other)


def link(made: Any, sources: Iterable[Any]) -> None:
    """Notes that `made` may share memory with `sources`, and with all that these may share memory
    with."""
    others = set[Storage]().union(*map(overlapping, storages_of(list(sources))))
    for target in storages_of(made):
        family = {one for one in _family(target) if one.scope.open and one is not target}
        for other in others:
            connect(target, other)
            if family and other.scope.open and other not in family:
                for one in family:
                    connect(one, other)


def link_same(made: Any, sources: Iterable[Any]) -> None:
    """Like `link`. If `made` is a list, it may also be the same Python object as one of
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
    """Whether a list among the storages `first` may be one of `second`."""
    lists = (storage for storage in first if storage.fake is None)
    return any(not second.isdisjoint((one, *(one.same_list or ()))) for one in lists)


def has_sources(made: Storage, sources: Iterable[MemorySource]) -> None:
    """Notes that `made` is the memory of the source whose flag holds, or fresh memory if none
    holds."""
    made.sources = tuple(sources)
    for storage in _sources(made):
        if storage.parts is None:
            storage.parts = WeakKeyDictionary()
        storage.parts[made] = None
        for other in list(storage.links or ()):
            connect(made, other)


def is_one_of(made: TracedTensor, items: list[Any], index: TracedTensor) -> None:
    """Notes that `made` is the item of a Python list at a position known only at run time."""
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
    """Called after a write to `storage`: updates the other storages of its family, and marks those
    that are linked to it as stale."""
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
    """Brings a family of storages up to date after one of them was written."""

    def __init__(self, written: Storage, family: list[Storage], origin: Abort) -> None:
        self.written = written
        self.family = family
        self.origin = origin
        self.changed: dict[Storage, Value | None] = {written: None}
        self.is_ambiguous = False

    def run(self) -> None:
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
        """Writes to the memory of `source` where `storage` is that memory and was changed."""
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
        """Reads `storage` anew from the memory of each source where that is what it is."""
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
    """The flag of a source. None where the flag, or a position that its view depends on, cannot be
    used at this place."""
    state = tracer()
    values = [value for step in source.tensor.steps for value in step.values]
    if not all(state.is_known(value) for value in values):
        return None
    flag = source.flag()
    return flag if flag is not None and state.is_known(flag) else None


def visible() -> set[Storage]:
    """Storages that the user's code, or the caller of the function, can still see."""
    state = tracer()
    found = {traced.memory for traced in state.inputs.values()}
    found |= {constant.memory for constant in state.constants.values()}
    found |= {storage for region in state.regions for storage in region.kept}
    pending = list(Snapshot.take().values())
    while pending:
        value = pending.pop()
        if isinstance(value, TracedTensor | TracedList):
            found.add(value.memory)
        elif parts_of(value) is not None:
            pending.extend(children(value))
    return found


Hooks.written = written
