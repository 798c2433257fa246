"""Interface of captured graphs, emulated graphs, and the arrangement of a plan's sequences.

A graph is made node by node; each names the nodes that it comes after, and nothing else orders
them. Whatever a node reads by address is fixed when it is made, and is changed only by `patch`: the
arguments of a launch, the tensors of a library call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stretto.device.costs import CostModel
from stretto.device.launch_graph import Arrangement, LaunchGraph, needed
from stretto.device.plan import Action, Plan, enqueued_nodes
from stretto.device.tree import Node, Seq, children
from stretto.device.verifier.plans import verify_arrangement, verify_graph
from stretto.errors import ScheduleError
from stretto.machines.cuda.graphs.rehearsal import GraphCall
from stretto.machines.cuda.graphs.store import Pool
from stretto.machines.cuda.graphs.words import WORD, WordOperation, encoded, follow
from stretto.machines.cuda.interpretation import Interpretation
from stretto.machines.cuda.launch import Invocation, Replayable
from stretto.schedule.launch_graph import (
    Opara,
    arranged,
    opara_streams,
    plan_graph,
    program_order,
    taken_one_by_one,
)
from stretto.schedule.plan_cost import profiles_of
from stretto.simulator.devices import device_for

GraphNode = int
"""A node of a graph: a number of its builder, or a handle of the driver."""
After = Sequence[GraphNode]
NODE_BYTES = 72
"""Bytes that the driver receives for a node, besides its parameters: CUDA_KERNEL_NODE_PARAMS."""


WAITS_IN_BODIES = (12, 6)
"""First CUDA version whose driver supports cooperative launches (those whose blocks wait for each
other) in bodies of conditional nodes. The nodes themselves need CUDA 12.4."""


class GraphBuilder(Protocol):
    """A graph under construction, or the body of one of its conditional nodes."""

    def kernel(self, invocation: Invocation, after: After) -> GraphNode:
        """Add a launch with its current arguments."""
        ...

    def library(self, call: GraphCall, after: After, lane: Hashable) -> GraphNode:
        """Add a library call, which is rehearsed first unless a similar one has been. lane: nodes
        of one lane may share memory, since they are ordered. Raises GraphCaptureError if it cannot
        be captured."""
        ...

    def words(self, operations: Sequence[WordOperation], control: int, after: After) -> GraphNode:
        """Add operations on words, in order. control: the address of a control block."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: After) -> GraphNode:
        """Add a copy of one tensor on the device to another one of the same size."""
        ...

    def handle(self) -> int:
        """Return a handle for a conditional node of this very graph, to be set by `Code.DECIDE`."""
        ...

    def conditional(
        self, handle: int, after: After, *, loop: bool
    ) -> tuple[GraphNode, GraphBuilder]:
        """Add a node that runs its body once if the handle is set, or repeatedly while it is;
        return it and its body."""
        ...

    def instantiate(self) -> Replay:
        """Return the whole graph, ready to be replayed. Not for a body."""
        ...


class Replay(Replayable, Protocol):
    """A graph that can be replayed, which keeps alive whatever its nodes use."""

    @property
    def nbytes(self) -> int:
        """Bytes of its nodes and tables of words, as far as known."""
        ...

    @property
    def pools(self) -> Sequence[Pool]:
        """Memory pools of its library calls."""
        ...

    def patch(self, node: GraphNode, invocation: Invocation) -> None:
        """Give a launch that is in no body its current arguments, from the next replay on."""
        ...


class GraphCaptureError(Exception):
    """A library call cannot be captured; the host executes it."""


# ---- emulated --------------------------------------------------------------------------------
@dataclass(slots=True)
class _EmulatedNode:
    """run: receives the handles, which it may change."""

    run: Callable[[dict[int, bool]], None]
    after: tuple[GraphNode, ...]


class EmulatedGraph:
    """A graph on the CPU. Each replay runs its nodes in another random order that its edges allow,
    so that a missing edge gives wrong results sooner or later."""

    joint = True
    """True: emulated replays always run one after the other."""

    def __init__(self, seed: int = 0, root: EmulatedGraph | None = None) -> None:
        self.root = root or self
        self.steps: list[_EmulatedNode] = []
        self.order = random.Random(seed) if root is None else root.order
        self.handles: dict[int, bool] = {} if root is None else root.handles
        self.owned: set[int] = set()
        self.nbytes = 0

    @property
    def pools(self) -> Sequence[Pool]:
        """Empty: library calls are not captured; each run allocates its memory."""
        return ()

    def kernel(self, invocation: Invocation, after: After) -> GraphNode:
        self.root.nbytes += NODE_BYTES + WORD * invocation.count
        return self._add(_launch_of(invocation), after)

    def library(self, call: GraphCall, after: After, lane: Hashable) -> GraphNode:
        return self._add(lambda handles: call.run(), after)

    def words(self, operations: Sequence[WordOperation], control: int, after: After) -> GraphNode:
        list_ = encoded(operations)
        self.root.nbytes += NODE_BYTES + WORD * len(list_)

        def run(handles: dict[int, bool]) -> None:
            follow(list_, control, handles.__setitem__)

        return self._add(run, after)

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: After) -> GraphNode:
        return self._add(lambda handles: _ignore(target.copy_(source)), after)

    def handle(self) -> int:
        made = len(self.handles) + 1
        self.handles[made] = False
        self.owned.add(made)
        return made

    def conditional(
        self, handle: int, after: After, *, loop: bool
    ) -> tuple[GraphNode, EmulatedGraph]:
        if handle not in self.owned:
            raise ValueError("the handle belongs to another graph than its conditional node")
        body = EmulatedGraph(root=self.root)

        def run(handles: dict[int, bool]) -> None:
            while handles[handle]:
                body.run(handles)
                if not loop:
                    break

        return self._add(run, after), body

    def instantiate(self) -> EmulatedGraph:
        assert self.root is self
        return self

    def patch(self, node: GraphNode, invocation: Invocation) -> None:
        self.steps[node].run = _launch_of(invocation)

    def launch(self, stream: int) -> None:
        # Handles are reset at the beginning of each replay.
        self.run(dict.fromkeys(self.handles, False))

    def run(self, handles: dict[int, bool]) -> None:
        """Run all nodes once."""
        ready: list[int] = []

        def take(turn: int) -> int:
            number = ready.pop(self.order.randrange(len(ready)))
            self.steps[number].run(handles)
            return number

        taken_one_by_one([step.after for step in self.steps], ready.append, take)

    def _add(self, run: Callable[[dict[int, bool]], None], after: After) -> GraphNode:
        self.steps.append(_EmulatedNode(run, tuple(after)))
        return len(self.steps) - 1


def _launch_of(invocation: Invocation) -> Callable[[dict[int, bool]], None]:
    """Return a launch with the current arguments."""
    assert isinstance(invocation, Interpretation)
    launch = invocation.frozen()
    return lambda handles: launch(0)


def _ignore(value: object) -> None:
    pass


# ---- Arrangement of each sequence of a plan: its order, streams, events and edges.
#
# Sequences inside of loops, branches and functions have separate graphs, and are arranged alike.


@dataclass(frozen=True, slots=True)
class Arranged:
    """A stretch of a plan. arrangement: verified. after: for each node the nodes that it must
    follow, without transitively implied ones."""

    arrangement: Arrangement
    after: tuple[tuple[int, ...], ...]


ONE_NODE = Arranged(Arrangement((0,), (0,)), ((),))
"""A stretch with one part."""

Arrangements = Mapping[int, Arranged]
"""Arrangement of each sequence that the host executes, by its `id`."""


def arrangements(plan: Plan, costs: CostModel) -> Arrangements:
    """Arrange every sequence of a plan by Opara's two algorithms, with profiles on a device like
    that of the costs; in the plan's order if a launch cannot be simulated. Raises VerifyError
    for a graph that lacks an edge."""
    found: dict[int, Arranged] = {}
    for function in plan.tree.functions:
        graph = plan_graph(plan, function.name)
        verify_graph(graph)
        _collect(plan, costs, function.body, graph, found)
    return found


def _collect(
    plan: Plan,
    costs: CostModel,
    body: Node[Action],
    graph: LaunchGraph,
    found: dict[int, Arranged],
) -> None:
    if isinstance(body, Seq):
        found[id(body)] = _arranged(plan, costs, body, graph)
    for part, node in zip(enqueued_nodes(body), graph.nodes, strict=True):
        for child, inner in zip(children(part), node.bodies, strict=True):
            _collect(plan, costs, child, inner, found)


def _arranged(plan: Plan, costs: CostModel, body: Seq[Action], graph: LaunchGraph) -> Arranged:
    before = graph.before
    device = device_for(costs, plan.program.units)
    try:
        order = Opara().order(before, profiles_of(plan, body, device, costs), device)
    except ScheduleError:  # a launch is too long to be simulated
        order = program_order(before)
    made = arranged(before, order, opara_streams(before))
    verify_arrangement(graph, made)
    return Arranged(made, needed(before, range(len(graph.nodes))))
