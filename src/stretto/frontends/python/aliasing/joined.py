"""Memory of the tensors that leave a traced branch: the facts of `aliases`.

In each arm, a joint tensor is memory from before the branch, or memory that the arm
created. Memory from before the branch becomes a source of the joint tensor. If several
joint tensors share memory that an arm created, that memory becomes a storage after the
branch, which is a source of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

from stretto.frontends.python.aliasing.aliases import connect, has_sources, link, link_same
from stretto.frontends.python.tracing.tensor import (
    MemorySource,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.scalars import LeafKind, logical
from stretto.ir.core import Value
from stretto.ir.ops import IfOp
from stretto.ir.types import FLAG


@dataclass(eq=False, slots=True)
class ExportedFlags:
    """Makes flags of one arm available after the branch, as results added on first use."""

    op: IfOp
    condition: Value
    regions: tuple[TracedRegion, TracedRegion]
    known: dict[MemorySource, Value | None] = field(
        default_factory=dict[MemorySource, Value | None]
    )

    def taken(self, side: int) -> Value | None:
        """Return a flag that is true if the arm was taken; None if it cannot be used here."""
        state = tracer()
        if not state.is_known(self.condition):
            return None
        return state.use(self.condition) if side == 0 else logical("not", self.condition)

    def inner(self, side: int, source: MemorySource) -> Value | None:
        """Return a flag that is true if the arm was taken and the flag of a source in it held;
        None if it cannot be used here."""
        state = tracer()
        scope = state.home.get(self.op.results[0])
        if scope is None or not scope.open:
            return None
        if source not in self.known:
            self.known[source] = self._exported(side, source)
        return self.known[source]

    def _exported(self, side: int, source: MemorySource) -> Value | None:
        state = tracer()
        with state.reopened(self.regions[side], {}):
            flag = source.flag()
        if flag is None:
            return None
        with state.reopened(self.regions[1 - side], {}):
            other = state.literal(False, FLAG.dtype)
        for region, value in ((self.regions[side], flag), (self.regions[1 - side], other)):
            region.scope.block.yields = (*region.scope.block.yields, value)
        result = Value(FLAG)
        state.home[result] = state.home[self.op.results[0]]
        self.op.results = (*self.op.results, result)
        return result


@dataclass(eq=False)
class JoinedAliases:
    """The memory of the tensors among `pairs`, which join two arms."""

    pairs: list[Any]
    condition: Value
    regions: tuple[TracedRegion, TracedRegion]
    hoisted: dict[Storage, Storage] = field(default_factory=dict[Storage, Storage])
    sides: dict[Storage, int] = field(default_factory=dict[Storage, int])
    lost: dict[Storage, list[Storage]] = field(default_factory=dict[Storage, list[Storage]])
    """Memory of an arm that cannot be read at its end, with the storages after the branch that may
    be that memory."""

    def shared(self) -> Iterator[tuple[Any, Any, LeafKind, Value]]:
        """Yield further results that the branch needs: memory of an arm that several tensors
        share."""
        state = tracer()
        users = Counter[Storage]()
        for pair in self.pairs:
            for side, leaf in enumerate((pair.first, pair.second)):
                if isinstance(leaf, TracedTensor) and leaf.number is None:
                    for storage, uses in _made_inside(leaf.memory, 1):
                        users[storage] += uses
                        self.sides[storage] = side
        for storage, count in users.items():
            if count > 1 and storage.state.stale is not None:
                self.lost[storage] = []
            elif count > 1 and storage.fake is not None:
                tensor = TracedTensor(storage.fake, storage)
                kind = kind_of(tensor)
                assert kind is not None
                value = Value(kind.type)
                state.home[value] = state.scope
                made = Storage(StorageState(value), state.scope, storage.fake)
                self.hoisted[storage] = made
                first = self.sides[storage] == 0
                yield (tensor if first else None, None if first else tensor, kind, value)

    def record(self, op: IfOp) -> None:
        """Record the facts, after the branch has been emitted."""
        flags = ExportedFlags(op, self.condition, self.regions)
        for storage, made in self.hoisted.items():
            found = self._inside(storage.sources, self.sides[storage], flags, (), made)
            has_sources(made, found)
            _take_links(made, storage)
        joint = [
            p
            for p in self.pairs
            if isinstance(p.made, TracedTensor) and p.made.number is None and p.kind.rows is None
        ]
        for pair in joint:
            sources = list[MemorySource]()
            for side, leaf in enumerate((pair.first, pair.second)):
                sources += self._sources(leaf, side, flags, pair.made.memory)
            has_sources(pair.made.memory, sources)
            for leaf in (pair.first, pair.second):
                if isinstance(leaf, TracedTensor) and not leaf.memory.scope.open:
                    _take_links(pair.made.memory, leaf.memory)
        self._link_neighbours(joint)
        for one, other in (pair for all in self.lost.values() for pair in combinations(all, 2)):
            link(one, [other])
        for storage, made in self.hoisted.items():
            connect(made, storage)
        for pair in joint:
            for leaf in (pair.first, pair.second):
                if isinstance(leaf, TracedTensor) and not leaf.memory.scope.open:
                    connect(pair.made.memory, leaf.memory)
        for pair in self.pairs:
            if not isinstance(pair.made, TracedTensor) or pair.kind.rows is not None:
                link_same(pair.made, [pair.first, pair.second])

    def _sources(
        self, leaf: Any, side: int, flags: ExportedFlags, joint: Storage
    ) -> list[MemorySource]:
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, TracedTensor):
            leaf = tracer().promote(leaf)
        if not isinstance(leaf, TracedTensor) or leaf.number is not None:
            return []
        if leaf.memory.scope.open:
            return [MemorySource(leaf, lambda: flags.taken(side))]
        made = self.hoisted.get(leaf.memory)
        if made is not None:
            moved = TracedTensor(leaf.fake, made, leaf.steps)
            return [MemorySource(moved, lambda: flags.taken(side))]
        return self._inside(leaf.memory.sources, side, flags, leaf.steps, joint, leaf.fake)

    def _inside(
        self,
        sources: tuple[MemorySource, ...],
        side: int,
        flags: ExportedFlags,
        steps: tuple[Any, ...],
        joint: Storage,
        fake: torch.Tensor | None = None,
    ) -> list[MemorySource]:
        """Return the sources of memory created in an arm, as seen after the branch, where that
        memory is `joint`."""
        found = list[MemorySource]()
        for source in sources:
            inner = source.tensor
            if inner.memory in self.lost:
                self.lost[inner.memory].append(joint)
                continue
            memory = self.hoisted.get(inner.memory, inner.memory)
            shape = inner.fake if fake is None else fake
            tensor = TracedTensor(shape, memory, (*inner.steps, *steps))
            found.append(MemorySource(tensor, lambda s=source: flags.inner(side, s)))
        return found

    def _link_neighbours(self, joint: list[Any]) -> None:
        """Link tensors whose memory was created in an arm and is linked there."""
        for number, pair in enumerate(joint):
            for other in joint[:number]:
                for one, two in ((pair.first, other.first), (pair.second, other.second)):
                    are_tensors = isinstance(one, TracedTensor) and isinstance(two, TracedTensor)
                    if are_tensors and two.memory in (one.memory.links or ()):
                        link(pair.made, [other.made])


def _take_links(made: Storage, storage: Storage) -> None:
    for other in list(storage.links or ()):
        connect(made, other)


def _made_inside(storage: Storage, uses: int) -> Iterator[tuple[Storage, int]]:
    """Yield the storages created in an arm that `storage` may be, each with the number of uses
    it counts for.

    The source of another storage counts twice, so that it becomes a separate storage after the
    branch as if it were shared.
    """
    pending = [(storage, uses)]
    while pending:
        storage, uses = pending.pop()
        if not storage.scope.open:
            yield storage, uses
            pending += [(source.tensor.memory, 2) for source in reversed(storage.sources)]
