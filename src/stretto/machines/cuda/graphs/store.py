"""All captured graphs of a process on a device: their memory, and their eviction.

The graphs of all programs share one limit in bytes. When a new one exceeds it, the least recently
used ones of any program are dropped, except those of a program that is in a call at the moment. All
others are dropped if the device has no memory left for a graph. Dropped graphs are made again when
they are needed.

Counted are the memory that the driver takes when a graph is instantiated (the free memory before
and after), but at least the parameters of its nodes; tables and cells of words; and the copies of
arguments that detect changes. Memory of library calls is counted by *pool*: a pool belongs to a
stream of the device and a lane of an arrangement. All graphs that are replayed on that stream, of
all programs, have their calls of that lane in it, since they run one after the other.

For GPT-2 with up to 1,024 tokens Grape (section 2.2) counts 20 GB of graphs, one for each length,
and compresses them, by up to 36 times (section 5.4). Here a graph serves further shapes
(`graph_executable.py`), so that there are few of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from stretto.errors import RunError
from stretto.machines.cuda.driver import OUT_OF_MEMORY, CudaError
from stretto.text import bytes_text, counted

MOST_BYTES = 1 << 30
"""Limit of a device, unless a smaller or another one applies."""
PART = 16
"""Graphs take at most 1/PART of a device's memory, unless another limit is set."""
SETTING = "STRETTO_GRAPH_BYTES"
"""Environment variable with another limit, in bytes."""


class GraphOwner(Protocol):
    """The graphs of a program on one stream. lock: held while the program is in a call there."""

    @property
    def lock(self) -> threading.Lock: ...
    def drop(self, key: Hashable) -> None:
        """Drop a graph, once it has ended, and remove it from the store. The lock is held."""
        ...


@dataclass(eq=False, slots=True)
class StoredGraph:
    """The store's entry for a graph. key: the owner's. nbytes: of its nodes, tables and arguments.
    pools: those that its library calls use."""

    owner: weakref.ref[GraphOwner]
    key: Hashable
    nbytes: int
    pools: tuple[Pool, ...] = ()


@dataclass(eq=False, slots=True)
class Pool:
    """Memory of library calls of a lane. handle: the allocator's. nbytes: that captures have added
    to it. users: number of graphs that use it."""

    lane: Hashable
    handle: object
    nbytes: int = 0
    users: int = 0


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Memory of captured graphs on a device, in bytes.

    graphs: their number, of all programs of the process. graph_bytes: of their nodes, tables and
    arguments. pool_bytes: of the memory of their library calls. limit: of both together. evicted:
    number of graphs dropped because of the limit, or of an allocation that failed.
    """

    device: str
    graphs: int
    graph_bytes: int
    pool_bytes: int
    limit: int
    evicted: int

    @property
    def nbytes(self) -> int:
        return self.graph_bytes + self.pool_bytes

    def __str__(self) -> str:
        pools = f" and {bytes_text(self.pool_bytes)} for library calls" if self.pool_bytes else ""
        return (
            f"{counted(self.graphs, 'graph')} on {self.device}: {bytes_text(self.graph_bytes)}"
            f"{pools}, of {bytes_text(self.limit)}; {self.evicted} evicted"
        )


@dataclass(slots=True)
class GraphStore:
    """The graphs of one device. Safe to call from several threads. capturing: held while library
    calls are captured, since a pool takes one capture at a time."""

    device: str
    limit: int
    evicted: int = 0
    graphs: OrderedDict[StoredGraph, None] = field(default_factory=OrderedDict["StoredGraph", None])
    pools: dict[Hashable, Pool] = field(default_factory=dict[Hashable, Pool])
    capturing: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def memory(self) -> GraphMemory:
        with self._lock:
            self._forget_dead()
            graph_bytes = sum(graph.nbytes for graph in self.graphs)
            pool_bytes = sum(pool.nbytes for pool in self.pools.values())
            return GraphMemory(
                self.device, len(self.graphs), graph_bytes, pool_bytes, self.limit, self.evicted
            )

    def add(
        self, owner: GraphOwner, key: Hashable, nbytes: int, pools: Sequence[Pool]
    ) -> StoredGraph:
        """Add a new graph; its owner is in a call. Others are dropped if the limit is exceeded."""
        graph = StoredGraph(weakref.ref(owner), key, nbytes, tuple(dict.fromkeys(pools)))
        with self._lock:
            for pool in graph.pools:
                pool.users += 1
                self.pools.setdefault(pool.lane, pool)
            self.graphs[graph] = None
        self._evict(owner, keep=graph, until=self.limit)
        return graph

    def use(self, graph: StoredGraph) -> None:
        """Mark the graph as the most recently used one."""
        with self._lock:
            if graph in self.graphs:
                self.graphs.move_to_end(graph)

    def remove(self, graph: StoredGraph) -> None:
        """Remove a graph that its owner has dropped."""
        with self._lock:
            if graph in self.graphs:
                self._remove(graph)

    def make_room(self, owner: GraphOwner) -> bool:
        """Drop all graphs that are not in use, since memory is exhausted. owner: of the graph to
        be made, which is in a call. Returns True if any were dropped."""
        before = self.evicted
        self._evict(owner, keep=None, until=0)
        return self.evicted > before

    @contextmanager
    def pool(self, lane: Hashable, make: Callable[[], object]) -> Generator[Pool]:
        """Yield the pool of a lane, for a capture; made at the first use."""
        with self.capturing:
            with self._lock:
                pool = self.pools.get(lane)
            yield pool or Pool(lane, make())

    # ---- one graph ---------------------------------------------------------------------------
    def _remove(self, graph: StoredGraph) -> None:
        del self.graphs[graph]
        for pool in graph.pools:
            pool.users -= 1
            if not pool.users and self.pools.get(pool.lane) is pool:
                del self.pools[pool.lane]  # returns its memory to the allocator

    def _forget_dead(self) -> None:
        for graph in [graph for graph in self.graphs if graph.owner() is None]:
            self._remove(graph)

    # ---- eviction ----------------------------------------------------------------------------
    def _evict(self, owner: GraphOwner, keep: StoredGraph | None, until: int) -> None:
        with self._lock:
            self._forget_dead()
            waiting = list(self.graphs)
        for graph in waiting:
            if self.memory().nbytes <= until:
                return
            if graph is not keep:
                self._drop(graph, owner)

    def _drop(self, graph: StoredGraph, caller: GraphOwner) -> None:
        """Drop a graph, unless its program is in a call on another thread."""
        owner = graph.owner()
        if owner is None:
            return
        if owner is not caller and not owner.lock.acquire(blocking=False):
            return
        try:
            with self._lock:
                is_here = graph in self.graphs  # else its owner has removed it meanwhile
            if is_here:
                owner.drop(graph.key)
                self.evicted += 1
        finally:
            if owner is not caller:
                owner.lock.release()


@dataclass(slots=True)
class _Process:
    """State of the process. limit: set by `limit_graph_memory`, None if it was not called."""

    stores: dict[str, GraphStore] = field(default_factory=dict[str, GraphStore])
    limit: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_PROCESS = _Process()


def store_of(device: torch.device, memory: int) -> GraphStore:
    """Return the one store of a device. memory: its bytes. Raises ValueError if the environment
    variable is not a number of bytes."""
    name = str(device)
    with _PROCESS.lock:
        if name not in _PROCESS.stores:
            _PROCESS.stores[name] = GraphStore(name, _first_limit(memory))
        return _PROCESS.stores[name]


def _first_limit(memory: int) -> int:
    if _PROCESS.limit is not None:
        return _PROCESS.limit
    setting = os.environ.get(SETTING)
    if setting is None:
        return min(MOST_BYTES, memory // PART)
    if not setting.isdecimal():
        raise ValueError(f"{SETTING} must be a number of bytes, not {setting!r}")
    return int(setting)


def graph_memory() -> tuple[GraphMemory, ...]:
    """Return the memory of the captured graphs of this process, of all programs, by device.

    Graphs are made by calls with `Options(enqueue="graph")`; a device without any is not listed.
    """
    with _PROCESS.lock:
        stores = list(_PROCESS.stores.values())
    return tuple(store.memory() for store in stores)


def limit_graph_memory(nbytes: int) -> None:
    """Set the limit in bytes of captured graphs of this process, on each device that has some. It
    replaces `$STRETTO_GRAPH_BYTES`, and the default of 1 GiB or a 16th of the device's memory.

    If the limit is exceeded, graphs are dropped when the next one is made. Raises ValueError unless
    `nbytes` is an int of at least 0.
    """
    if type(nbytes) is not int or nbytes < 0:
        raise ValueError(f"the limit must be a number of bytes, not {nbytes!r}")
    with _PROCESS.lock:
        _PROCESS.limit = nbytes
        for store in _PROCESS.stores.values():
            store.limit = nbytes


def is_out_of_memory(error: Exception) -> bool:
    """Return True if torch or the driver had no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    cause = error.__cause__
    return isinstance(cause, CudaError) and cause.code == OUT_OF_MEMORY


def no_memory_for_graph(kept: GraphMemory, error: Exception) -> RunError:
    """Return the error for a graph that cannot be made, although all others have been dropped."""
    what = str(error).splitlines()[0]
    return RunError(
        f"there is no memory for a captured graph of the program: {what}; kept are {kept}",
        remedy="free memory of the GPU: other processes may use it (`nvidia-smi`), or leave graphs "
        'out: Options(enqueue="stream")',
    )
