"""Graphs of a plan: the dependences between its actions, by what these read and write.

The plan's own order is one that is known to be right. Of two actions the order matters where they
meet in memory or in a register (`device/launch_graph.py: dependences`); what each touches is that
of the verified kernels that it runs. All else of the plan's order is left out of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stretto.device.expr import Buffer, Reg
from stretto.device.launch_graph import (
    COUNTERS,
    STACK,
    GraphNode,
    LaunchGraph,
    NodeKind,
    dependences,
)
from stretto.device.plan import Action, Launch, Library, Plan, address_name, stretch
from stretto.device.program import DeviceProgram, FrameLayout, Placement, Schedule, aligned
from stretto.device.regions import Region, item_regions, merged, whole
from stretto.device.runs import called, reached
from stretto.device.tree import (
    Call,
    Check,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    assigns,
    children,
    leaves,
    reads,
    rotation,
    title,
    walk,
)

OWN = ("local", "items", "param")
"""Kinds of buffers that belong to one activation of a function."""


def plan_graph(plan: Plan, function: str = "main") -> LaunchGraph:
    """The graph of a function that the host executes."""
    return _Grapher(plan, function).graph(plan.tree.function(function).body, function)


def with_own_memory(program: DeviceProgram) -> DeviceProgram:
    """The program with every local buffer at a place of its own, where its size is known. Then no
    two launches have to wait for each other because of shared bytes; the frames are larger."""
    frames = tuple((name, _apart(frame)) for name, frame in program.frames)
    return replace(program, frames=frames)


def _apart(frame: FrameLayout) -> FrameLayout:
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
    """What an action touches, as in GraphNode."""

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
    """Makes the graphs of one function of a plan."""

    def __init__(self, plan: Plan, function: str) -> None:
        self._program = plan.program
        self._kernels = {kernel.name: kernel for kernel in plan.program.kernels}
        self._words = plan.words[function]
        self._shares = shared_bytes(plan.program.frame(function))

    def graph(self, body: Node[Action], name: str) -> LaunchGraph:
        parts = stretch(body)
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
        match node:
            case Leaf(Launch() as launch):
                return self._launch(launch) | _Touched(writes=self._addresses(launch.rotated))
            case Leaf(Library(call, kernel)):
                regions = item_regions(self._kernels[kernel])
                return _Touched(regions, _names(call.operands) | self._moving(regions))
            case Call():
                return self._call(node) | self._control(node)
            case _:
                found = self._control(node)
                for child in children(node):
                    found |= self._touched(child)
                return found

    def _control(self, node: Node[Action]) -> _Touched:
        """What the host itself reads and changes for a control node."""
        moved = tuple(buffer for pair in rotation(node) for buffer in pair)
        written = _names(assigns(node)) | self._addresses(moved)
        return _Touched((), _names(reads(node)), written)

    def _call(self, node: Call[Action]) -> _Touched:
        """A function that the host executes, in memory of its own."""
        inner = self._called(self._program.tree, node.function)
        bound = tuple(whole(access.buffer, True) for _, access in node.tensors)
        return inner | _Touched(bound, self._moving(bound), stops=True)

    def _launch(self, launch: Launch) -> _Touched:
        program = launch.program
        main = program.tree.main
        found = self._body(main)
        for name in sorted(called(main.body)):
            found |= self._called(program.tree, name)
        regions: list[Region] = []
        for node in walk(main.body):
            if isinstance(node, Call):
                regions += (whole(access.buffer, True) for _, access in node.tensors)
        alone = {STACK} if called(main.body) else set[str]()
        if launch.units_wait:
            alone.add(COUNTERS)
        found |= _Touched(tuple(regions))
        taken = _names(main.params) | self._moving(found.regions)
        taken |= _names(guard.register for guard in launch.guards)
        return found | _Touched((), taken, _names(main.results) | alone)

    def _body(self, function: TreeFunction[Schedule]) -> _Touched:
        """The memory that the leaves of a function touch, and whether a check is in it."""
        found: list[Region] = []
        stops = False
        for schedule in leaves(function.body):
            for name in sorted(schedule.kernels):
                found += item_regions(self._kernels[name])
            for statement in schedule.statements:
                found += item_regions(statement)
                stops = stops or isinstance(statement, Check)
        return _Touched(merged(found), stops=stops)

    def _called(self, tree: Tree[Schedule], name: str) -> _Touched:
        """What a function and all that it calls touch outside of their own memory."""
        callees = {function.name: called(function.body) for function in tree.functions}
        found = _Touched(stops=True)  # it may call itself too often
        for callee in sorted({name, *reached(name, callees)}):
            inner = self._body(tree.function(callee))
            outside = tuple(r for r in inner.regions if r.buffer.kind not in OWN)
            found |= replace(inner, regions=outside)
        return found

    def _addresses(self, buffers: tuple[Buffer, ...]) -> frozenset[str]:
        names = map(address_name, buffers)
        return frozenset(name for name in names if name in self._words)

    def _moving(self, regions: tuple[Region, ...]) -> frozenset[str]:
        """The words with the addresses of what is touched, of buffers that may trade places."""
        return self._addresses(tuple(region.buffer for region in regions))


def shared_bytes(frame: FrameLayout) -> tuple[tuple[str, str], ...]:
    """The pairs of buffers of a frame that have bytes in common, or may have."""
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


def _names(items: Iterable[object]) -> frozenset[str]:
    """The names of the registers among some items."""
    return frozenset(item.name for item in items if isinstance(item, Reg))


def _launch_name(program: DeviceProgram) -> str:
    used = {name for schedule in leaves(program.tree.main.body) for name in schedule.kernels}
    names = [kernel.name for kernel in program.kernels if kernel.name in used]
    if not names:
        return "registers"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return names[0] + more
