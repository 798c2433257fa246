"""Execution of plans as captured graphs: each stretch that can be captured is one replay.

A graph is made in the first call, and used by later ones. If these come with other addresses or
sizes, the arguments of its launches are *patched*: launches have the same number of blocks for any
size, so a further shape takes no further memory. Launches in bodies of conditional nodes cannot be
patched: they read addresses and sizes from a block of words, as the graph reads bounds of loops
there. Anything else that cannot be patched, such as the tensors of library calls, takes a separate
graph; a state keeps `MOST_GRAPHS`, and all programs together the bytes that `store.py` allows.

Nodes that cannot be captured are executed by the host between two graphs, as in plans without
graphs.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from stretto.device.evaluate import resolve
from stretto.device.expr import (
    Buffer,
    Expr,
    Index,
    Position,
    Reg,
    depends_on_sizes,
)
from stretto.device.forms import ProgramInterface
from stretto.device.operator import LibraryCall
from stretto.device.plan import (
    Action,
    Launch,
    Library,
    Plan,
    address_name,
    enqueued_nodes,
    formula_name,
    is_unlikely,
)
from stretto.device.tree import (
    For,
    If,
    Leaf,
    Node,
    Seq,
    flattened,
    rotating,
    rotation,
    walk,
)
from stretto.errors import RunError, StrettoWarning
from stretto.machines.cuda.graphs.graph_builder import (
    ONE_NODE,
    WAITS_IN_BODIES,
    Arrangements,
    GraphNode,
)
from stretto.machines.cuda.graphs.kept import GraphCounts, Graphs, Stretch, StretchGraph
from stretto.machines.cuda.graphs.record import (
    ExitCells,
    GraphRecorder,
    RefusedCall,
    can_record,
    exits_of,
    graph_walk,
    leaves_graph,
    unlikely_arm,
)
from stretto.machines.cuda.graphs.rehearsal import GraphCall, Refusal
from stretto.machines.cuda.graphs.store import (
    is_out_of_memory,
    no_memory_for_graph,
    store_of,
)
from stretto.machines.cuda.graphs.words import BranchCount, CountCells
from stretto.machines.cuda.host import Activation, Host, PlanExecutable, host_number, register_of
from stretto.machines.cuda.launch import Invocation
from stretto.machines.cuda.launcher import Launcher
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.state import Job, LaunchState
from stretto.options import Options
from stretto.runtime.library import run_call

MOST_GRAPHS = 16
"""Graphs that a state keeps; the least recently used one is dropped."""


class GraphExecutable(PlanExecutable):
    """A plan whose stretches are captured graphs."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[TritonSource],
        interface: ProgramInterface,
        options: Options,
        launcher: Launcher,
        arrangements: Arrangements,
    ) -> None:
        body = plan.tree.main.body
        if not isinstance(body, Seq | Leaf):  # a loop is a graph, too
            whole = Seq((body,))
            main = plan.tree.main.with_body(whole)
            functions = tuple(main if f.name == "main" else f for f in plan.tree.functions)
            plan = replace(plan, tree=replace(plan.tree, functions=functions))
            arrangements = {**arrangements, id(whole): ONE_NODE}
        super().__init__(plan, sources, interface, options, launcher)
        self.arrangements = arrangements
        places, formulas = plan.words["main"], _formulas(plan.tree.main.body)
        self.formulas = [(places[n], index) for n, index in formulas.items() if n in places]
        self.formulas_have_words = len(self.formulas) == len(formulas)
        names = {n.condition.name for n in walk(plan.tree.main.body) if isinstance(n, If)}
        self.counted = sorted(names) if options.debug.branches == "auto" else []
        self.count_words: list[torch.Tensor] = []
        self.exit_count = sum(map(is_unlikely, walk(plan.tree.main.body)))
        self.counts = GraphCounts()
        self.store = store_of(launcher.device, launcher.memory())
        self.changing = [places.changing for places in self.places]
        self._refused: dict[int, Refusal] = {}
        self._stretches: dict[Hashable, tuple[Stretch, ...]] = {}
        launches = [launch for _, launch in plan.launches]
        self.moves = frozenset(rotating(plan.tree.main.body)).union(*(x.rotated for x in launches))
        # The body of a conditional node cannot have launches that wait, if the driver is too old.
        self.waits_in_bodies = launcher.cuda >= WAITS_IN_BODIES
        self.any_waits = any(launch.units_wait for launch in launches)
        self.waits = self.is_read or self._host_decides()

    @property
    def needs_newer_driver(self) -> tuple[Node[Action], ...]:
        """The loops and branches of main that the host executes because launches in them wait and
        the driver is too old."""
        body = self.plan.tree.main.body
        outer = enqueued_nodes(body) if isinstance(body, Seq) else ()
        return tuple(n for n in outer if can_record(n, self.moves) and self._lacks_driver(n))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The library calls that the host executes because they could not be captured."""
        return tuple(self._refused.values())

    @property
    def graph_count(self) -> int:
        """Number of graphs that all states keep now."""
        kept = (state.graphs for state in list(self.states.values()))
        return sum(len(graphs.made) for graphs in kept if isinstance(graphs, Graphs))

    @property
    def graph_bytes(self) -> int:
        """Bytes of these graphs, without the memory of library calls."""
        kept = (state.graphs for state in list(self.states.values()))
        all_made = (g.made.values() for g in kept if isinstance(g, Graphs))
        return sum(made.nbytes for found in all_made for made in list(found))

    def branch_counts(self) -> dict[str, BranchCount]:
        """Return the counts of main's branches so far, by the names of their conditions; waits for
        all enqueued work. Empty if they are not counted, that is unless `Debug.branches` is
        "auto"."""
        for state in list(self.states.values()):
            self.launcher.synchronize(state.stream)
        sums = [sum(column) for column in zip(*(w.tolist() for w in self.count_words), strict=True)]
        pairs = zip(sums[::2], sums[1::2], strict=False)
        return {name: BranchCount(*pair) for name, pair in zip(self.counted, pairs, strict=False)}

    def host(self, job: Job) -> Host:
        # A caller who captures launches does so in a graph of their own.
        return super().host(job) if job.state.capture else GraphHost(self, job)

    def graphs_of(self, state: LaunchState) -> Graphs:
        """Return the graphs of a state; they are dropped if its arena has been reallocated."""
        arena = self.arena(state)
        kept = state.graphs
        if not isinstance(kept, Graphs) or kept.arena is not arena:
            if isinstance(kept, Graphs):
                self.launcher.synchronize(state.stream)
            nothing = [0] * max(len(self.plan.words["main"]), 1)
            words, initial = self.launcher.numbers(nothing), self.launcher.numbers(nothing)
            counts = self.launcher.numbers([0] * max(2 * len(self.counted), 1))
            self.count_words.append(counts)
            left = self.launcher.numbers([0, *range(self.exit_count + 1)])
            kept = state.graphs = Graphs(
                self.launcher, self.store, state.stream, state.lock,
                arena, words, initial, counts, left,
            )  # fmt: skip
        return kept

    def stretches(self, sequence: Seq[Action], numbers: Sequence[int]) -> tuple[Stretch, ...]:
        """Cut the parts of a sequence, in an order that its graph allows, into stretches: as few
        graphs as possible."""
        key = id(sequence), tuple(numbers)
        if key not in self._stretches:
            found: list[Stretch] = []
            parts = enqueued_nodes(sequence)
            for captured, group in groupby(
                numbers, lambda number: self._can_capture(parts[number])
            ):
                found += self._stretch(sequence, tuple(group), captured)
            self._stretches[key] = tuple(found)
        return self._stretches[key]

    def refuse(self, refusal: Refusal) -> None:
        """Let the host execute a call that cannot be captured from now on, and warn the user."""
        self._refused[id(refusal.call)] = refusal
        self._stretches.clear()
        self.waits = self.is_read or self._host_decides()
        warnings.warn(
            f"library call {refusal.call.name} cannot be captured ({refusal.reason}): the host "
            "enqueues it between two graphs, in every call",
            StrettoWarning,
            stacklevel=2,
        )

    def _host_decides(self) -> bool:
        """Return True if the host reads values during a run."""
        body = self.plan.tree.main.body
        if not isinstance(body, Seq):
            return False
        everything = self.stretches(body, self.arrangements[id(body)].arrangement.order)
        if any(part.exits for part in everything):
            return True
        alone = [
            enqueued_nodes(s.sequence)[n] for s in everything if not s.captured for n in s.numbers
        ]
        calls = _calls(alone)
        return (
            any(not isinstance(node, Leaf) for node in alone)
            or any(isinstance(operand, Reg) for call in calls for operand in call.operands)
            # The host reads the address at which a loop has left a buffer.
            or (bool(calls) and bool(self.moves))
        )

    def _can_capture(self, node: Node[Action]) -> bool:
        return (
            can_record(node, self.moves)
            and not self._lacks_driver(node)
            and not any(id(call) in self._refused for call in _calls([node]))
        )

    def _lacks_driver(self, node: Node[Action]) -> bool:
        """Return True if the graph would have a launch that waits in the body of a conditional
        node, and the driver does not support that. After a node that leaves the graph
        everything is in a body."""
        if self.waits_in_bodies or isinstance(node, Leaf):
            return False
        return any(one.units_wait for one in _launches([node])) or (
            self.any_waits and leaves_graph(node)
        )

    def _stretch(
        self, sequence: Seq[Action], numbers: tuple[int, ...], captured: bool
    ) -> list[Stretch]:
        nodes = [enqueued_nodes(sequence)[number] for number in numbers]
        if not captured or (len(nodes) == 1 and isinstance(nodes[0], Leaf)):
            return [Stretch(sequence, numbers, False)]
        inside = [inner for node in nodes for inner in graph_walk(node)]
        calls, exits = tuple(_calls(nodes)), exits_of(nodes)
        return [
            Stretch(
                sequence,
                numbers,
                True,
                tuple(_launches(nodes)),
                # Whatever follows an exit is in bodies, and in another graph.
                () if exits else tuple(launch for node in nodes for launch in _outer(node)),
                calls,
                bool(calls) or not self.formulas_have_words,
                frozenset(b for node in inside for pair in rotation(node) for b in pair),
                exits,
            )
        ]


class GraphHost(Host):
    """The host's part of one run that replays graphs."""

    executable: GraphExecutable

    def main(self) -> Activation:
        executable = self.executable
        self.graphs = executable.graphs_of(self.job.state)
        sizes = executable.symbols.registers(self.job.sizes)
        function = executable.functions["main"]
        at = Activation(function, self.graphs.arena, self.graphs.words, 0, sizes)
        places = executable.plan.words["main"]
        values = [0] * max(len(places), 1)
        for buffer in executable.moving["main"]:
            at.moving[buffer] = self.fixed(at, buffer)
            values[places[address_name(buffer)]] = at.moving[buffer].data_ptr()
        for name, value in sizes.items():
            if name in places:
                values[places[name]] = value
        for place, index in executable.formulas:
            values[place] = resolve(index, sizes)
        if self.graphs.values != tuple(values):
            self.graphs.values = tuple(values)
            executable.launcher.write(self.graphs.initial, values)
        self.graphs.reached[:] = at.moving.values()
        if executable.exit_count:  # a run that was stopped may have left it set
            self.graphs.left[0].fill_(0)
        self.begun = False
        addresses = {slot: tensor.data_ptr() for slot, tensor in self.job.memory.items()}
        self.count(addresses)
        self.signature = (
            tuple(addresses.values()),
            tuple(self.job.sizes),
            tuple(self.job.capacities.items()),
        )
        self.run(at)
        return at

    def count(self, addresses: dict[int, int]) -> None:
        """Count the tensors whose addresses are those of the previous call on this stream."""
        before, self.graphs.addresses = self.graphs.addresses, addresses
        if not before:
            return
        inputs = set(self.executable.inputs)
        for slot, address in addresses.items():
            hits = self.executable.counts.inputs
            if slot not in inputs:
                hits = self.executable.counts.results
            hits.seen += 1
            hits.hit += before.get(slot) == address

    def reached(self, at: Activation) -> list[torch.Tensor]:
        return list(at.moving.values()) if at.depth else self.graphs.reached

    def sequence(self, node: Seq[Action], state: Activation) -> Iterable[Node[Action]]:
        if state.depth:
            return super().sequence(node, state)
        return self.parts(node, self.executable.arrangements[id(node)].arrangement.order, state)

    def parts(
        self, node: Seq[Action], numbers: Sequence[int], at: Activation
    ) -> Iterator[Node[Action]]:
        """Yield those of some children of a sequence that the host executes, in this order, and
        replay graphs of the others."""
        nodes = enqueued_nodes(node)
        for part in self.executable.stretches(node, numbers):
            if not part.captured:
                self.begin_words(at)
                yield from (nodes[number] for number in part.numbers)
                continue
            try:
                made = self.graph(part, at)
            except RefusedCall as refused:
                self.executable.refuse(refused.refusal)
                yield from self.parts(node, part.numbers, at)
                continue
            self.begun = True
            self.replay(part, made, at)
            while exit_number := self.left(part):
                yield from self.go_on(part, exit_number, at)

    def replay(self, part: Stretch, made: StretchGraph, at: Activation) -> None:
        """Enqueue a replay."""
        self.executable.counts.replayed += 1
        self.executable.launcher.replay(made.replay, self.job.stream)
        at.lost |= part.rotated
        for launch in part.launches:
            at.lost |= set(launch.rotated)

    def left(self, part: Stretch) -> int:
        """Return the number of the exit by which a graph was left; 0 for none. Waits for the
        replay if the graph has exits."""
        if not part.exits:
            return 0
        self.wait()
        return int(self.graphs.left[0].item())

    def go_on(self, part: Stretch, exit_number: int, at: Activation) -> Iterator[Node[Action]]:
        """Yield the unlikely arm of a branch, and replay the rest."""
        branch = part.exits[exit_number - 1]
        self.graphs.left[0].fill_(0)
        self.executable.counts.left += 1
        yield unlikely_arm(branch)
        try:
            rest = self.graph(part, at, branch)
        except RefusedCall as refused:
            raise RunError(
                f"library call {refused.refusal.call.name} was captured before, but now cannot be: "
                f"{refused.refusal.reason}"
            ) from refused
        self.replay(part, rest, at)

    def begin_words(self, at: Activation) -> None:
        """Initialise the words, unless a graph of this run has done so."""
        if not self.begun:
            self.begun = True
            at.words.copy_(self.graphs.initial)

    # ---- graphs ------------------------------------------------------------------------------
    def graph(
        self, stretch: Stretch, at: Activation, behind: If[Action] | None = None
    ) -> StretchGraph:
        """Return the graph of a stretch, with the arguments of this call. behind: a branch whose
        unlikely arm was executed; then the graph of the rest after it."""
        key = stretch.key, self.begun, id(behind)
        known = self.graphs.last.get(key)
        if known is not None and known[0] == self.signature:
            self.executable.counts.as_they_were += 1
            self.use(known[1])
            return known[1]
        rigid = key, self.rigid(stretch, at)
        made = self.graphs.made.get(rigid)
        if made is None:
            made = self.made(stretch, at, behind)
            self.graphs.made[rigid] = made
            self.evict()
            store = self.executable.store
            made.stored = store.add(self.graphs, rigid, made.nbytes, made.replay.pools)
        else:
            self.graphs.made.move_to_end(rigid)
            self.use(made)
            self.patch(made, at)
        self.graphs.last[key] = self.signature, made
        return made

    def rigid(self, stretch: Stretch, at: Activation) -> Hashable:
        """Return the values for which the graph of a stretch cannot be patched."""
        outer, memory = set(map(id, stretch.outer)), self.job.memory
        fixed = [one for one in stretch.launches if id(one) not in outer]
        used = {b.slot for call in stretch.calls for b in call.operands if isinstance(b, Buffer)}
        return (
            tuple(self.job.sizes) if stretch.sized else (),
            tuple(memory[slot].data_ptr() for slot in sorted(used) if slot in memory),
            tuple(self.changing_words(launch, at) for launch in fixed),
        )

    def use(self, made: StretchGraph) -> None:
        if made.stored is not None:
            self.executable.store.use(made.stored)

    def changing_words(self, launch: Launch, at: Activation) -> tuple[int, ...]:
        """Return the arguments of a launch that change from call to call, as in this call."""
        changing = self.executable.changing[self.executable.numbers[id(launch)]]
        return self.invocation(launch, at).words_at(changing)

    def patch(self, made: StretchGraph, at: Activation) -> None:
        """Give launches the arguments of this call."""
        executable = self.executable
        unchanged, place = True, 0
        for launch, node in made.nodes:
            changing = executable.changing[executable.numbers[id(launch)]]
            if not changing:
                continue
            invocation = self.invocation(launch, at)
            words, end = array("Q", invocation.words_at(changing)), place + len(changing)
            if words != made.words[place:end]:
                made.replay.patch(node, invocation)
                made.words[place:end] = words
                executable.counts.patched += 1
                unchanged = False
            place = end
        executable.counts.as_they_were += unchanged

    def made(self, stretch: Stretch, at: Activation, behind: If[Action] | None) -> StretchGraph:
        """Make a new graph. If memory is exhausted, graphs of all programs that are not in use are
        dropped, and it is tried once more. Raises RunError if that fails, too."""
        try:
            return self.tried(stretch, at, behind)
        except (RunError, torch.OutOfMemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not self.executable.store.make_room(self.graphs):
                raise no_memory_for_graph(self.executable.store.memory(), error) from error
        try:
            return self.tried(stretch, at, behind)
        except (RunError, torch.OutOfMemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise no_memory_for_graph(self.executable.store.memory(), error) from error

    def tried(self, stretch: Stretch, at: Activation, behind: If[Action] | None) -> StretchGraph:
        """Record and instantiate a graph."""
        executable = self.executable
        graph = executable.launcher.graph()
        head: tuple[GraphNode, ...] = ()
        if not self.begun:
            head = (graph.copy(at.words, self.graphs.initial, ()),)
        recording = _Recording(self, at)
        arranged = executable.arrangements
        recorder = GraphRecorder(recording, arranged, self.job.state.stream, stretch.exits, head)
        if behind is None:
            recorder.parts(graph, stretch.sequence, stretch.numbers)
        else:
            recorder.rest(graph, stretch.sequence, stretch.numbers, behind)
        nodes = recorder.made.launches
        words = array("Q")
        for launch, _ in nodes:
            words.extend(self.changing_words(launch, at))
        replay = graph.instantiate()
        executable.counts.made += 1
        return StretchGraph(replay, nodes, words)

    def evict(self) -> None:
        """Drop the least recently used graphs. Each exit allows two more graphs: of the arm, and
        of the rest."""
        kept = self.graphs
        while len(kept.made) > MOST_GRAPHS + 2 * self.executable.exit_count:
            kept.drop(next(iter(kept.made)))


@dataclass(frozen=True, slots=True)
class _Recording:
    """The recorder's view of a host during a run."""

    host: GraphHost
    at: Activation

    @property
    def control(self) -> int:
        return self.host.job.state.control.data_ptr()

    def invocation(self, launch: Launch) -> Invocation:
        return self.host.invocation(launch, self.at)

    def library_call(self, call: LibraryCall) -> GraphCall:
        operands = self.host.operands(call, self.at)

        def run() -> None:
            self.host.executable.library_runs += 1
            run_call(call, operands)

        return GraphCall(call, operands, run)

    def address_of_word(self, reg: Reg) -> int:
        return self.host.word(self.at, reg).data_ptr()

    def address_of_place(self, buffer: Buffer) -> int:
        return self.host.address(self.at, buffer).data_ptr()

    def number_or_register(self, expr: Expr) -> int | Reg:
        if isinstance(expr, Position) and depends_on_sizes(expr.index):
            name = formula_name(expr.index)
            if name in self.host.executable.plan.words["main"]:
                return Reg(name)  # the host writes its word before a replay
        known = host_number(expr, self.at.sizes)
        return register_of(expr) if known is None else known

    def count_cells(self, condition: Reg) -> CountCells | None:
        counted = self.host.executable.counted
        if condition.name not in counted:
            return None
        cells = self.host.graphs.counts[2 * counted.index(condition.name) :]
        return CountCells(cells.data_ptr(), cells.data_ptr() + cells.itemsize)

    def loop_cells(self, loop: For[Action]) -> tuple[int, int]:
        loops = self.host.graphs.loops
        if id(loop) not in loops:
            loops[id(loop)] = self.host.executable.launcher.numbers([0, 0])
        cells = loops[id(loop)]
        return cells.data_ptr(), cells.data_ptr() + cells.itemsize

    @property
    def exit_cells(self) -> ExitCells:
        left = self.host.graphs.left
        return ExitCells(left.data_ptr(), left.data_ptr() + left.itemsize)


def _formulas(node: Node[Action]) -> dict[str, Index]:
    """Return the bounds of loops that follow from sizes, by the names of their words."""
    loops = [inner for inner in walk(node) if isinstance(inner, For)]
    bounds = (bound for loop in loops for bound in (loop.start, loop.stop))
    indices = (bound.index for bound in bounds if isinstance(bound, Position))
    return {formula_name(index): index for index in indices if depends_on_sizes(index)}


def _launches(nodes: Sequence[Node[Action]]) -> list[Launch]:
    leaves = (inner for node in nodes for inner in graph_walk(node) if isinstance(inner, Leaf))
    return [leaf.body for leaf in leaves if isinstance(leaf.body, Launch)]


def _calls(nodes: Sequence[Node[Action]]) -> list[LibraryCall]:
    leaves = (inner for node in nodes for inner in graph_walk(node) if isinstance(inner, Leaf))
    return [leaf.body.call for leaf in leaves if isinstance(leaf.body, Library)]


def _outer(node: Node[Action]) -> list[Launch]:
    """Return the launches of a node that are in no loop or branch."""
    bodies = (part.body for part in flattened(node) if isinstance(part, Leaf))
    return [body for body in bodies if isinstance(body, Launch)]
