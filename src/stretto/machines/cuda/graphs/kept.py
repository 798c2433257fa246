"""Records about captured graphs: stretches of a plan, the graphs of a state, and usage counts."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from stretto.device.expr import (
    Buffer,
)
from stretto.device.operator import LibraryCall
from stretto.device.plan import (
    Action,
    Launch,
)
from stretto.device.tree import If, Seq
from stretto.machines.cuda.graphs.graph_builder import GraphNode, Replay
from stretto.machines.cuda.graphs.store import (
    GraphStore,
    StoredGraph,
)
from stretto.machines.cuda.launcher import Launcher


@dataclass(slots=True)
class Hits:
    """Tensors of calls after the first one, and the number of them with the address of the
    previous call: what Grape (section 4.1) predicts of placeholders."""

    seen: int = 0
    hit: int = 0

    @property
    def rate(self) -> float | None:
        return self.hit / self.seen if self.seen else None


@dataclass(slots=True)
class GraphCounts:
    """Usage of graphs so far. made: graphs made. replayed: stretches replayed; as_they_were: those
    whose graph had all arguments already; patched: launches whose arguments changed; left: unlikely
    arms, which the host executed. inputs, results: tensors of calls with unchanged addresses."""

    made: int = 0
    replayed: int = 0
    as_they_were: int = 0
    patched: int = 0
    inputs: Hits = field(default_factory=lambda: Hits())
    results: Hits = field(default_factory=lambda: Hits())
    left: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive parts of a sequence, in the order of its arrangement. captured: True if they are
    one graph, else the host executes each. launches, calls: all of them, including those in
    bodies. outer: the launches in no body. sized: True if the graph depends on sizes. rotated:
    buffers that loops may have rotated. exits: branches that leave the graph."""

    sequence: Seq[Action]
    numbers: tuple[int, ...]
    captured: bool
    launches: tuple[Launch, ...] = ()
    outer: tuple[Launch, ...] = ()
    calls: tuple[LibraryCall, ...] = ()
    sized: bool = False
    rotated: frozenset[Buffer] = frozenset()
    exits: tuple[If[Action], ...] = ()

    @property
    def key(self) -> Hashable:
        return id(self.sequence), self.numbers


@dataclass(slots=True)
class StretchGraph:
    """A graph of a stretch. nodes: its launches that can be patched. words: their current
    arguments, one launch after the other, but only those that change from call to call
    (`ParameterPlaces.changing`). stored: its entry in the process's store."""

    replay: Replay
    nodes: list[tuple[Launch, GraphNode]]
    words: array[int]
    stored: StoredGraph | None = None

    @property
    def nbytes(self) -> int:
        return self.replay.nbytes + len(self.words) * self.words.itemsize


@dataclass(eq=False, slots=True, weakref_slot=True)
class Graphs:
    """The graphs of a state. lock: the state's. arena: the one that they were made for. words:
    registers and addresses; initial: their content before a run, with these `values`; reached:
    memory that they point to. counts: two words for each branch that is counted. left: as
    `ExitCells`; loops: `loop_cells`, by the `id` of the loop. addresses: of inputs and results
    of the last call, by slot. made: graphs by what they cannot be patched for. last: for each
    stretch, the memory and sizes of the last call, and its graph."""

    launcher: Launcher
    store: GraphStore
    stream: int
    lock: threading.Lock
    arena: torch.Tensor
    words: torch.Tensor
    initial: torch.Tensor
    counts: torch.Tensor
    left: torch.Tensor
    loops: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    values: tuple[int, ...] = ()
    addresses: dict[int, int] = field(default_factory=dict[int, int])
    reached: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    made: OrderedDict[Hashable, StretchGraph] = field(
        default_factory=OrderedDict[Hashable, StretchGraph]
    )
    last: dict[Hashable, tuple[Hashable, StretchGraph]] = field(
        default_factory=dict[Hashable, tuple[Hashable, StretchGraph]]
    )

    def drop(self, key: Hashable) -> None:
        """Drop a graph, after its replays have ended."""
        self.launcher.synchronize(self.stream)
        gone = self.made.pop(key)
        self.last = {place: one for place, one in self.last.items() if one[1] is not gone}
        if gone.stored is not None:
            self.store.remove(gone.stored)
