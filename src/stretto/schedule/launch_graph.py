"""Launch graphs of a plan: the dependences between its actions, by what these read and write.

The plan's own order is known to be correct. The order of two actions matters only if they overlap
in memory or use the same register (`device/launch_graph.py: dependences`). The memory that an
action touches is that of the verified kernels it runs. The graph drops the rest of the plan's
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from stretto.components import reachable
from stretto.device.expr import Buffer, Reg
from stretto.device.launch_graph import (
    COUNTERS,
    STACK,
    Arrangement,
    GraphNode,
    LaunchGraph,
    NodeKind,
    dependences,
    needed,
)
from stretto.device.plan import Action, Launch, Library, Plan, address_name, enqueued_nodes
from stretto.device.program import DeviceProgram, FrameLayout, Placement, Schedule, aligned
from stretto.device.regions import Region, Statement, item_regions, merged, whole
from stretto.device.runs import call_graph, called
from stretto.device.tree import (
    Call,
    Check,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    assigns,
    calls,
    children,
    leaves,
    reads,
    rotation,
    title,
)
from stretto.simulator.devices import Device, limits_of
from stretto.simulator.graph_run import NodeProfile

OWN = ("local", "items", "param")
"""Kinds of buffers that belong to one activation of a function."""


def plan_graph(plan: Plan, function: str = "main") -> LaunchGraph:
    """Return the launch graph of a function that the host executes."""
    return _Grapher(plan, function).graph(plan.tree.function(function).body, function)


def with_own_memory(program: DeviceProgram) -> DeviceProgram:
    """Return the program with every local buffer of known size at a separate place of its frame.
    Then no two launches have to wait for each other because they share bytes; the frames are
    larger."""
    frames = tuple((name, _apart(frame)) for name, frame in program.frames)
    return replace(program, frames=frames)


def _apart(frame: FrameLayout) -> FrameLayout:
    """Return the frame with all placements one after the other. One that each unit has a copy of
    is unchanged."""
    if frame.copies > 1:
        return frame
    end = 0
    placed: list[tuple[str, Placement]] = []
    for name, place in sorted(frame.placements, key=lambda item: item[1].offset):
        placed.append((name, replace(place, offset=end)))
        following = aligned(placed[-1][1].end)
        assert isinstance(following, int)
        end = following
    return replace(frame, nbytes=max(end, frame.nbytes), placements=tuple(placed))


@dataclass(frozen=True, slots=True)
class _Touched:
    """Memory and registers that an action touches, as in `GraphNode`."""

    regions: tuple[Region, ...] = ()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    stops: bool = False

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(
            merged((*self.regions, *other.regions)),
            self.reads | other.reads,
            self.writes | other.writes,
            self.stops or other.stops,
        )

    def node(self, kind: NodeKind, name: str, *bodies: LaunchGraph) -> GraphNode:
        names = (tuple(sorted(self.reads)), tuple(sorted(self.writes)))
        return GraphNode(kind, name, self.regions, *names, self.stops, bodies)


class _Grapher:
    """Builder of the graphs of one function of a plan."""

    def __init__(self, plan: Plan, function: str) -> None:
        self._program = plan.program
        self._kernels = {kernel.name: kernel for kernel in plan.program.kernels}
        self._words = plan.words[function]
        self._shares = shared_bytes(plan.program.frame(function))

    def graph(self, body: Node[Action], name: str) -> LaunchGraph:
        """Return the graph of a body; `name` is its title."""
        parts = enqueued_nodes(body)
        touched = [self._touched(part) for part in parts]
        nodes = tuple(self._node(*pair) for pair in zip(parts, touched, strict=True))
        met = {region.buffer.name for node in nodes for region in node.regions}
        shares = tuple(pair for pair in self._shares if met.issuperset(pair))
        return LaunchGraph(name, nodes, tuple(dependences(nodes, shares)), shares)

    def _node(self, node: Node[Action], touched: _Touched) -> GraphNode:
        match node:
            case Leaf(Launch(program, guards=guards)):
                made = touched.node(NodeKind.LAUNCH, _launch_name(program))
                return replace(made, guards=guards)
            case Leaf(Library(_, kernel)):
                return touched.node(NodeKind.LIBRARY, kernel)
            case _:
                name = title(node)
                bodies = (
                    self.graph(child, f"{name}.{n}") for n, child in enumerate(children(node))
                )
                return touched.node(NodeKind.CONTROL, name, *bodies)

    def _touched(self, node: Node[Action]) -> _Touched:
        """Return what an action or a control node with its body touches."""
        match node:
            case Leaf(Launch() as launch):
                return self._launch(launch) | _Touched(writes=self._addresses(launch.rotated))
            case Leaf(Library(call, kernel)):
                regions = _regions(self._kernels[kernel])
                return _Touched(regions, _names(call.operands) | self._moving(regions))
            case Call():
                return self._call(node) | self._control(node)
            case _:
                found = self._control(node)
                for child in children(node):
                    found |= self._touched(child)
                return found

    def _control(self, node: Node[Action]) -> _Touched:
        """Return what the host itself reads and changes for a control node."""
        moved = tuple(buffer for pair in rotation(node) for buffer in pair)
        written = _names(assigns(node)) | self._addresses(moved)
        return _Touched((), _names(reads(node)), written)

    def _call(self, node: Call[Action]) -> _Touched:
        """Return what a function that the host executes touches; it runs in a separate frame."""
        inner = self._called(self._program.tree, node.function)
        bound = tuple(whole(access.buffer, True) for _, access in node.tensors)
        return inner | _Touched(bound, self._moving(bound), stops=True)

    def _launch(self, launch: Launch) -> _Touched:
        """Return what a launch touches: its leaves, the functions it calls, and the words it reads
        and writes."""
        program = launch.program
        main = program.tree.main
        found = self._body(main)
        for name in sorted(called(main.body)):
            found |= self._called(program.tree, name)
        bound = (access.buffer for call in calls(main.body) for _, access in call.tensors)
        regions = [whole(buffer, True) for buffer in bound]
        alone = {STACK} if called(main.body) else set[str]()
        if launch.units_wait:
            alone.add(COUNTERS)
        found |= _Touched(tuple(regions))
        taken = _names(main.params) | self._moving(found.regions)
        taken |= _names(guard.register for guard in launch.guards)
        return found | _Touched((), taken, _names(main.results) | alone)

    def _body(self, function: TreeFunction[Schedule]) -> _Touched:
        """Return the memory that the leaves of a function touch, and record if one contains a
        check."""
        found: list[Region] = []
        stops = False
        for schedule in leaves(function.body):
            for name in sorted(schedule.kernels):
                found += _regions(self._kernels[name])
            for statement in schedule.statements:
                found += _regions(statement)
                stops = stops or isinstance(statement, Check)
        return _Touched(merged(found), stops=stops)

    def _called(self, tree: Tree[Schedule], name: str) -> _Touched:
        """Return what a function and its callees touch outside their own frames."""
        found = _Touched(stops=True)  # A recursion that is too deep stops the run.
        for callee in sorted(reachable((name,), call_graph(tree.functions))):
            inner = self._body(tree.function(callee))
            outside = tuple(r for r in inner.regions if r.buffer.kind not in OWN)
            found |= replace(inner, regions=outside)
        return found

    def _addresses(self, buffers: tuple[Buffer, ...]) -> frozenset[str]:
        """Return the words that hold the addresses of these buffers."""
        names = map(address_name, buffers)
        return frozenset(name for name in names if name in self._words)

    def _moving(self, regions: tuple[Region, ...]) -> frozenset[str]:
        """Return the words with the addresses of the touched buffers, for buffers that may be
        rotated."""
        return self._addresses(tuple(region.buffer for region in regions))


def shared_bytes(frame: FrameLayout) -> tuple[tuple[str, str], ...]:
    """Return the pairs of buffers of a frame that have, or may have, bytes in common."""
    found: list[tuple[str, str]] = []
    placed = sorted(frame.placements, key=lambda item: (item[1].offset, item[0]))
    open_: list[tuple[str, Placement]] = []
    for name, place in placed:
        open_ = [(other, before) for other, before in open_ if before.end > place.offset]
        found += ((other, name) for other, before in open_ if before.nbytes and place.nbytes)
        open_.append((name, place))
    slots: dict[int, list[str]] = {}
    for name, place in frame.sized:
        found += ((other, name) for other in slots.get(place.slot, ()))
        slots.setdefault(place.slot, []).append(name)
    return tuple(found)


def _regions(item: Statement) -> tuple[Region, ...]:
    """Return the regions of an item for any values of its registers: these change between graph
    nodes."""
    return merged(region.lasting() for region in item_regions(item))


def _names(items: Iterable[object]) -> frozenset[str]:
    """Return the names of the registers among `items`."""
    return frozenset(item.name for item in items if isinstance(item, Reg))


def _launch_name(program: DeviceProgram) -> str:
    """Return the name of a launch: its first kernel, and the number of further ones."""
    used = {name for schedule in leaves(program.tree.main.body) for name in schedule.kernels}
    names = [kernel.name for kernel in program.kernels if kernel.name in used]
    if not names:
        return "registers"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return names[0] + more


# ---- Order, streams and events with which the nodes of a launch graph are enqueued.
#
# `Opara` is algorithm 2 of Opara (section 3.3): among the nodes whose predecessors are all
# enqueued, memory-bound and compute-bound ones are taken in turns, and of either kind the one
# that needs least of a multiprocessor comes first. Need is the largest of its shares of threads,
# registers and shared memory; the paper's own implementation considers shared memory only. Each
# part can be switched off.


# ---- Which stream each node of a graph of launches is enqueued on, and which events that takes.
#
# `opara_streams` is algorithm 1 of Opara (Chen et al., "Opara: Exploiting Operator Parallelism
# for Expediting DNN Inference on GPUs", section 3.1): a node goes behind the first of the nodes
# before it that no other node has gone behind, or else on a new stream. `fewest_events` leaves
# out what streams and other events imply; `events_between` does not.


Before = Sequence[Sequence[int]]
"""Predecessors of each node. The numbering of the nodes is a topological order."""
Events = tuple[tuple[int, int], ...]


def one_stream(before: Before) -> tuple[int, ...]:
    """Return stream 0 for every node."""
    return (0,) * len(before)


def opara_streams(before: Before) -> tuple[int, ...]:
    """Return the stream of each node. Only direct predecessors (those no other edge implies)
    count, so that no second stream is used where one already gives the order."""
    streams: list[int] = []
    followed: set[int] = set()
    count = 0
    for earlier in needed(before, range(len(before))):
        free = next((one for one in earlier if one not in followed), None)
        if free is None:
            streams.append(count)
            count += 1
        else:
            followed.add(free)
            streams.append(streams[free])
    return tuple(streams)


def fewest_events(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    """Return the smallest set of events with which the streams keep the order.

    Streams and events together must make a node wait for all its predecessors, and for nothing else
    except what the streams themselves add. That order has a unique smallest set of pairs that
    implies it; the pairs that cross streams are the events, so there cannot be fewer.
    """
    both = [list(earlier) for earlier in before]
    for number, earlier in enumerate(Arrangement(tuple(order), tuple(streams)).waits):
        both[number] += earlier
    kept = needed(both, order)
    return events_between(kept, order, streams)


def events_between(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    """An event for each edge between two streams."""
    return tuple(
        (earlier, number)
        for number in order
        for earlier in sorted(before[number])
        if streams[earlier] != streams[number]
    )


def arranged(before: Before, order: Sequence[int], streams: Sequence[int]) -> Arrangement:
    """Return the arrangement of an order and its streams, with the events they require."""
    return Arrangement(tuple(order), tuple(streams), fewest_events(before, order, streams))


Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opara:
    """Options of Opara's order.

    in_turns: alternate between memory-bound and compute-bound nodes. by_needs: the node with the
    least need comes first, else the one that became ready first. only_shared: need is shared memory
    alone.
    """

    in_turns: bool = True
    by_needs: bool = True
    only_shared: bool = False

    def order(self, before: Before, profiles: Sequence[NodeProfile], device: Device) -> Order:
        """Return the order of Opara's algorithm 2 on this device."""
        limits = limits_of(device)
        queues: tuple[list[tuple[float, int, int]], ...] = ([], [])
        entered = 0

        def enter(number: int) -> None:
            nonlocal entered
            profile = profiles[number]
            kind = int(self.in_turns and not profile.is_memory_bound(device))
            needs = profile.needs.share(limits)
            if self.only_shared:
                needs = profile.needs.shared_bytes / limits.shared_bytes
            heappush(queues[kind], (needs if self.by_needs else 0.0, entered, number))
            entered += 1

        def take(turn: int) -> int:
            queue = queues[turn % 2] or queues[1 - turn % 2]
            return heappop(queue)[2]

        return taken_one_by_one(before, enter, take)


def program_order(before: Before) -> Order:
    """Return the order of the plan."""
    return tuple(range(len(before)))


def taken_one_by_one(
    before: Before, enter: Callable[[int], None], take: Callable[[int], int]
) -> Order:
    """The order in which nodes are taken. enter: is called with each node that waits for nothing
    any more. take: returns the next node, given the number of nodes that were taken before."""
    left = [len(set(earlier)) for earlier in before]
    followers: list[list[int]] = [[] for _ in before]
    for number, earlier in enumerate(before):
        for other in set(earlier):
            followers[other].append(number)
    for number, count in enumerate(left):
        if not count:
            enter(number)
    order: list[int] = []
    while len(order) < len(before):
        number = take(len(order))
        order.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                enter(follower)
    return tuple(order)
