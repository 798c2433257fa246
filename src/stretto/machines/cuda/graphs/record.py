"""Recording of a stretch of a plan as a captured graph: launches, library calls, loops and
branches.

Edges are those of the launch graph, not an order of streams. A branch is two conditional nodes, a
loop is one; between them the graph itself does the host's work: it copies words with registers and
addresses, counts, and decides (`words`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from stretto.device import tree
from stretto.device.expr import Buffer, Expr, Reg
from stretto.device.operator import LibraryCall
from stretto.device.plan import (
    Action,
    Launch,
    Library,
    arms,
    enqueued_nodes,
    is_unlikely,
    needs_host,
    unlikely_guard,
)
from stretto.machines.cuda.graphs import words
from stretto.machines.cuda.graphs.graph_builder import (
    Arrangements,
    GraphBuilder,
    GraphCaptureError,
    GraphNode,
)
from stretto.machines.cuda.graphs.rehearsal import GraphCall, Refusal
from stretto.machines.cuda.launch import Invocation

# ---- Exits: branches of a graph whose unlikely arm the host executes, before it replays the rest.
#
# If such a branch takes the unlikely arm, the graph sets a word, *left*, and skips everything that
# depends on the branch: the rest of each stretch around it is in a conditional node that tests the
# word, and so do the loops around it. The host reads the word after the replay, executes the arm,
# and replays another graph with the part that the first one skipped (`GraphRecorder.rest`).


@dataclass(frozen=True, slots=True)
class ExitCells:
    """Addresses of words. left: holds the number of the exit that was taken, 0 for none. numbers:
    words with the numbers 0, 1, 2, ..."""

    left: int
    numbers: int

    def number(self, exit_number: int, word_bytes: int = 8) -> int:
        """Return the address of a word with this number."""
        return self.numbers + exit_number * word_bytes


def graph_walk(node: tree.Node[Action]) -> Iterator[tree.Node[Action]]:
    """Yield the node and everything below it that is in a graph, without unlikely arms."""
    yield node
    below = (likely_arm(node),) if is_unlikely(node) else tree.children(node)
    for child in below:
        yield from graph_walk(child)


def exits_of(nodes: Sequence[tree.Node[Action]]) -> tuple[tree.If[Action], ...]:
    """Return the branches that leave the graph of some nodes; numbered from 1 on, in this order."""
    return tuple(inner for node in nodes for inner in graph_walk(node) if is_unlikely(inner))


def leaves_graph(node: tree.Node[Action]) -> bool:
    return any(map(is_unlikely, graph_walk(node)))


def likely_arm(branch: tree.If[Action]) -> tree.Node[Action]:
    return next(arm for guard, arm in arms(branch) if guard != unlikely_guard(branch))


def unlikely_arm(branch: tree.If[Action]) -> tree.Node[Action]:
    return next(arm for guard, arm in arms(branch) if guard == unlikely_guard(branch))


def contains(node: tree.Node[Action], branch: tree.If[Action]) -> bool:
    return any(inner is branch for inner in tree.walk(node))


def place_of(branch: tree.If[Action], sequence: tree.Seq[Action], numbers: Sequence[int]) -> int:
    """Return which of some nodes of a sequence's stretch contains the branch."""
    parts = enqueued_nodes(sequence)
    return next(number for number in numbers if contains(parts[number], branch))


def rest_of(
    number: int,
    numbers: Sequence[int],
    after: Sequence[Sequence[int]],
    nodes: Sequence[tree.Node[Action]],
) -> list[int]:
    """Return the nodes of a stretch that follow an exit, of those in `numbers`: nodes that depend
    on it, and other exits, so that no two are taken at once. numbers: in an order that `after`
    allows."""
    rest: set[int] = {number}
    behind = numbers[numbers.index(number) + 1 :]
    for later in behind:
        if not rest.isdisjoint(after[later]) or leaves_graph(nodes[later]):
            rest.add(later)
    return [later for later in behind if later in rest]


Ends = tuple[GraphNode, ...]
"""The last nodes of a part of a graph; its successors come after them."""


class RefusedCall(Exception):
    """A library call cannot be captured."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class RecordingHost(Protocol):
    """The host's information for making a graph."""

    def invocation(self, launch: Launch) -> Invocation:
        """Return a launch with its arguments."""
        ...

    def library_call(self, call: LibraryCall) -> GraphCall:
        """Return a call on the current tensors."""
        ...

    def address_of_word(self, reg: Reg) -> int: ...
    def address_of_place(self, buffer: Buffer) -> int:
        """Return the address of the word that holds a buffer's address."""
        ...

    def number_or_register(self, expr: Expr) -> int | Reg:
        """Return a bound of a loop: a number, or the register that holds it."""
        ...

    def count_cells(self, condition: Reg) -> words.CountCells | None:
        """Return the cells that count the branches with this condition; None if they are not
        counted."""
        ...

    def loop_cells(self, loop: tree.For[Action]) -> tuple[int, int]:
        """Return the addresses of two words for a loop: its position, and its end. All graphs of a
        state use the same ones: they run one after the other."""
        ...

    @property
    def exit_cells(self) -> ExitCells: ...

    @property
    def control(self) -> int:
        """Address of the control block."""
        ...


@dataclass(slots=True)
class Recorded:
    """Recorded launches. launches: with their nodes, those that can be patched because they are in
    no body; fixed: launches in bodies, whose arguments cannot change."""

    launches: list[tuple[Launch, GraphNode]] = field(default_factory=list[tuple[Launch, GraphNode]])
    fixed: list[Launch] = field(default_factory=list[Launch])


def can_record(node: tree.Node[Action], moving: frozenset[Buffer]) -> bool:
    """Return True if all of a node can be in a graph. moving: buffers whose place only the
    device knows.

    Excluded are functions that the host calls, and library calls that draw random numbers,
    whose sizes only the device knows, or that use moving buffers.
    """
    return all(_can_record(inner, moving) for inner in graph_walk(node))


def _can_record(node: tree.Node[Action], moving: frozenset[Buffer]) -> bool:
    match node:
        case tree.Call():
            return False
        case tree.Leaf(Library(call)):
            return not needs_host(call) and not any(one in moving for one in call.operands)
        case _:
            return True


class GraphRecorder:
    """Makes one graph. stream: where it is replayed; graphs on other streams may run concurrently,
    so library calls share no memory with theirs. exits: the branches that leave the graph, as
    `exits_of` numbers them. head: nodes that everything comes after."""

    def __init__(
        self,
        host: RecordingHost,
        arrangements: Arrangements,
        stream: int,
        exits: Sequence[tree.If[Action]] = (),
        head: Ends = (),
    ) -> None:
        self.exits = exits
        self.stream = stream
        self.host = host
        self.arrangements = arrangements
        self.head = head
        self.made = Recorded()
        self._depth = 0
        self._lane: tuple[int, ...] = ()

    def parts(
        self,
        graph: GraphBuilder,
        node: tree.Seq[Action],
        numbers: Sequence[int],
        begun: Mapping[int, Ends] | None = None,
    ) -> Ends:
        """Add some nodes of a sequence's stretch, in the order of its arrangement. begun: the ends
        of other nodes that are in the graph already."""
        after, parts = self.arrangements[id(node)].after, enqueued_nodes(node)
        leaving = next((n for n in numbers if leaves_graph(parts[n])), None)
        rest = [] if leaving is None else rest_of(leaving, numbers, after, parts)
        lanes = self.arrangements[id(node)].arrangement.streams
        ends = dict(begun or {})
        followed: set[GraphNode] = set()
        for number in numbers:
            if number in rest or (number == leaving and is_unlikely(parts[number])):
                continue
            # Nodes of another graph have ended before this one begins.
            before = _all(ends[other] for other in after[number] if other in ends)
            followed.update(before)
            # Nodes of a lane are ordered; the nodes of a body run while its node does.
            outer, self._lane = self._lane, (*self._lane, lanes[number])
            ends[number] = self.node(graph, parts[number], before or self.head)
            self._lane = outer
        self._count_predicated(graph, node, ends)
        if leaving is not None:
            behind = _all(ends[n] for later in (leaving, *rest) for n in after[later] if n in ends)
            behind = _all((behind, ends.get(leaving, ()))) or self.head
            ends[leaving] = self._behind_exit(graph, node, leaving, rest, behind)
            followed.update(behind)
        return tuple(one for one in _all(ends.values()) if one not in followed) or self.head

    # ---- leaving the graph -------------------------------------------------------------------
    def _behind_exit(
        self,
        graph: GraphBuilder,
        node: tree.Seq[Action],
        leaving: int,
        rest: list[int],
        after: Ends,
    ) -> Ends:
        """Add an exit, or a node that contains one, and the rest of the stretch after it."""
        branch = enqueued_nodes(node)[leaving]
        if not is_unlikely(branch):
            if not rest:
                return after
            with self._unless_left(graph, after) as (made, inner):
                self.parts(inner, node, rest)
            return (made,)
        cells, condition = self.host.exit_cells, self.host.address_of_word(branch.condition)
        decide = [words.WordOperation(words.Opcode.TEST, condition)]
        if (counts := self.host.count_cells(branch.condition)) is not None:
            decide += words.counted(counts)
        code = words.Opcode.UNLESS if unlikely_guard(branch).negated else words.Opcode.ALSO
        number = next(n for n, one in enumerate(self.exits, start=1) if one is branch)
        decide += [
            words.WordOperation(words.Opcode.ALWAYS, 0),
            words.WordOperation(code, condition),
            words.WordOperation(words.Opcode.MOVE, cells.left, cells.number(number)),
        ]
        arm = likely_arm(branch)
        with self._unless_left(graph, after, decide) as (made, inner):
            ends = self.node(inner, arm, ())
            if not leaves_graph(arm):
                self.parts(inner, node, rest, {leaving: ends})
            elif rest:
                with self._unless_left(inner, ends) as (_, further):
                    self.parts(further, node, rest)
        return (made,)

    @contextmanager
    def _unless_left(
        self, graph: GraphBuilder, after: Ends, first: Sequence[words.WordOperation] = ()
    ) -> Generator[tuple[GraphNode, GraphBuilder]]:
        """Add a conditional node for everything that is skipped if the graph was left; yields it
        and its body. first: operations before the word is tested."""
        handle = graph.handle()
        look = [
            words.WordOperation(words.Opcode.ALWAYS, 0),
            words.WordOperation(words.Opcode.UNLESS, self.host.exit_cells.left),
            words.WordOperation(words.Opcode.DECIDE, handle),
        ]
        decided = self._operations(graph, [*first, *look], after)
        made, inner = graph.conditional(handle, decided, loop=False)
        outer, self.head = self.head, ()
        self._depth += 1
        yield made, inner
        self._depth -= 1
        self.head = outer

    def rest(
        self,
        graph: GraphBuilder,
        node: tree.Seq[Action],
        numbers: Sequence[int],
        branch: tree.If[Action],
    ) -> Ends:
        """Add the rest of some nodes of a stretch after the unlikely arm of a branch in them."""
        after, parts = self.arrangements[id(node)].after, enqueued_nodes(node)
        number = place_of(branch, node, numbers)
        rest = rest_of(number, list(numbers), after, parts)
        if parts[number] is branch:
            return self.parts(graph, node, rest)
        ends = self._rest_of_node(graph, parts[number], branch)
        if rest:
            with self._unless_left(graph, ends or self.head) as (made, inner):
                self.parts(inner, node, rest)
            return (made,)
        return ends

    def _rest_of_node(
        self, graph: GraphBuilder, node: tree.Node[Action], branch: tree.If[Action]
    ) -> Ends:
        """As `rest`, for a node that contains the branch."""
        match node:
            case tree.Seq():
                order = self.arrangements[id(node)].arrangement.order
                return self.rest(graph, node, order, branch)
            case tree.If():
                (arm,) = (child for child in tree.children(node) if contains(child, branch))
                return self._rest_of_node(graph, arm, branch)
            case tree.For(body=body):
                handle = graph.handle()
                ends = self._rest_of_node(graph, body, branch)
                return self._for_loop(graph, node, handle, self._next(graph, node, handle, ends))
            case tree.While(body=body):
                handle = graph.handle()
                ends = self._rest_of_node(graph, body, branch)
                return self._while_loop(graph, node, handle, self._again(graph, node, handle, ends))
            case _:
                raise TypeError(node)

    def _count_predicated(
        self, graph: GraphBuilder, node: tree.Seq[Action], ends: Mapping[int, Ends]
    ) -> None:
        """Add a node that counts the predicated branches that begin among some parts."""
        operations: list[words.WordOperation] = []
        registers: set[str] = set()
        for found in words.predicated_branches(node):
            cells = self.host.count_cells(found.branch.condition)
            if cells is not None and found.number in ends:
                operations += found.operations(cells, self.host.address_of_word)
                registers |= found.registers
        parts = enqueued_nodes(node)
        after = _all(ends[number] for number in ends if words.writes(parts[number], registers))
        self._operations(graph, operations, after or self.head)

    def node(self, graph: GraphBuilder, node: tree.Node[Action], after: Ends) -> Ends:
        """Add one node, after others."""
        match node:
            case tree.Leaf(Launch() as launch):
                return (self._launch(graph, launch, after),)
            case tree.Leaf(Library(call)):
                try:
                    made = self.host.library_call(call)
                    return (graph.library(made, after, (self.stream, *self._lane)),)
                except GraphCaptureError as error:
                    reason = str(error).strip().partition("\n")[0]
                    raise RefusedCall(Refusal(call, reason)) from error
            case tree.Seq(items):
                return self._sequence(graph, node, after) if items else after
            case tree.If(condition, then, orelse):
                return self._branch(graph, condition, (then, orelse), after)
            case tree.While():
                return self._while(graph, node, after)
            case tree.For():
                return self._for(graph, node, after)
            case _:
                raise TypeError(node)

    def _launch(self, graph: GraphBuilder, launch: Launch, after: Ends) -> GraphNode:
        made = graph.kernel(self.host.invocation(launch), after)
        if self._depth:
            self.made.fixed.append(launch)
        else:
            self.made.launches.append((launch, made))
        return made

    def _sequence(self, graph: GraphBuilder, node: tree.Seq[Action], after: Ends) -> Ends:
        outer, self.head = self.head, after
        ends = self.parts(graph, node, self.arrangements[id(node)].arrangement.order)
        self.head = outer
        return ends

    # ---- control -----------------------------------------------------------------------------
    def _branch(
        self, graph: GraphBuilder, condition: Reg, arms: Sequence[tree.Node[Action]], after: Ends
    ) -> Ends:
        operations = [words.WordOperation(words.Opcode.TEST, self.host.address_of_word(condition))]
        if (cells := self.host.count_cells(condition)) is not None:
            operations += words.counted(cells)
        taken: list[tuple[int, tree.Node[Action]]] = []
        for code, arm in zip((words.Opcode.DECIDE, words.Opcode.REFUSE), arms, strict=True):
            if not is_empty(arm):
                taken.append((graph.handle(), arm))
                operations.append(words.WordOperation(code, taken[-1][0]))
        if not taken:
            return after
        decided = self._operations(graph, operations, after)
        ends: list[GraphNode] = []
        for handle, arm in taken:
            node, body = graph.conditional(handle, decided, loop=False)
            self._body(body, arm)
            ends.append(node)
        return tuple(ends)

    def _while(self, graph: GraphBuilder, node: tree.While[Action], after: Ends) -> Ends:
        handle = graph.handle()
        head = self.node(graph, node.head, after)
        tested = self._operations(graph, self._holds(node, handle), head)
        return self._while_loop(graph, node, handle, tested)

    def _while_loop(
        self, graph: GraphBuilder, node: tree.While[Action], handle: int, tested: Ends
    ) -> Ends:
        """Add the loop, whose handle is set already."""
        made, inner = graph.conditional(handle, tested, loop=True)
        ends = self._body(inner, node.body)
        self._depth += 1
        self._again(inner, node, handle, ends)
        self._depth -= 1
        return (made,)

    def _again(
        self, graph: GraphBuilder, node: tree.While[Action], handle: int, after: Ends
    ) -> Ends:
        """End an iteration: rotate the buffers; the head decides whether there is another
        iteration."""
        turned = self._turned(node.rotate)
        if leaves_graph(node):
            with self._unless_left(graph, after) as (made, inner):
                ends = self._operations(inner, turned, ())
                self.node(inner, node.head, ends)
            after = (made,)
        else:
            after = self._operations(graph, turned, after)
            after = self.node(graph, node.head, after)
        return self._operations(graph, self._holds(node, handle), after)

    def _holds(self, node: tree.While[Action], handle: int) -> list[words.WordOperation]:
        test = words.WordOperation(words.Opcode.TEST, self.host.address_of_word(node.condition))
        return [test, *self._left(node), words.WordOperation(words.Opcode.DECIDE, handle)]

    def _left(self, loop: tree.Loop[Action]) -> list[words.WordOperation]:
        """Return operations that end a loop if the graph was left; none if it has no exits."""
        leaves = leaves_graph(loop)
        return (
            [words.WordOperation(words.Opcode.UNLESS, self.host.exit_cells.left)] if leaves else []
        )

    def _for(self, graph: GraphBuilder, node: tree.For[Action], after: Ends) -> Ends:
        """Add a loop. The position is counted in a separate cell, so that after the loop the
        index's word still has the value of the last iteration."""
        handle = graph.handle()
        at, last = self.host.loop_cells(node)
        begin = [self._set(at, node.start), self._set(last, node.stop)]
        begun = self._operations(graph, [*begin, *self._position(node, handle)], after)
        return self._for_loop(graph, node, handle, begun)

    def _for_loop(
        self, graph: GraphBuilder, node: tree.For[Action], handle: int, begun: Ends
    ) -> Ends:
        """Add the loop, whose handle is set already."""
        made, inner = graph.conditional(handle, begun, loop=True)
        self._next(inner, node, handle, self._body(inner, node.body))
        return (made,)

    def _next(self, graph: GraphBuilder, node: tree.For[Action], handle: int, after: Ends) -> Ends:
        """End an iteration: rotate the buffers, and advance the position."""
        at, _ = self.host.loop_cells(node)
        further = [*self._turned(node.rotate), words.WordOperation(words.Opcode.ADD, at, node.step)]
        if leaves_graph(node):
            with self._unless_left(graph, after) as (made, inner):
                self._operations(inner, further, ())
            after, further = (made,), []
        return self._operations(graph, [*further, *self._position(node, handle)], after)

    def _position(self, node: tree.For[Action], handle: int) -> list[words.WordOperation]:
        """Return operations that test whether there is an iteration at the position, and if so set
        the index."""
        at, last = self.host.loop_cells(node)
        return [
            words.WordOperation(
                words.Opcode.LESS if node.step > 0 else words.Opcode.MORE, at, last
            ),
            *self._left(node),
            words.WordOperation(words.Opcode.MOVE, self.host.address_of_word(node.index), at),
            words.WordOperation(words.Opcode.DECIDE, handle),
        ]

    def _set(self, cell: int, bound: Expr) -> words.WordOperation:
        found = self.host.number_or_register(bound)
        if isinstance(found, Reg):
            return words.WordOperation(words.Opcode.COPY, cell, self.host.address_of_word(found))
        return words.WordOperation(words.Opcode.STORE, cell, found)

    def _turned(self, rotate: tree.Rotation) -> list[words.WordOperation]:
        place = self.host.address_of_place
        return [words.WordOperation(words.Opcode.SWAP, place(a), place(b)) for a, b in rotate]

    def _body(self, graph: GraphBuilder, node: tree.Node[Action]) -> Ends:
        outer, self.head = self.head, ()
        self._depth += 1
        ends = self.node(graph, node, ())
        self._depth -= 1
        self.head = outer
        return ends

    def _operations(
        self, graph: GraphBuilder, operations: Sequence[words.WordOperation], after: Ends
    ) -> Ends:
        if not operations:
            return after
        return (graph.words(operations, self.host.control, after),)


def is_empty(node: tree.Node[Action]) -> bool:
    """Return True if a node does nothing."""
    return isinstance(node, tree.Seq) and all(map(is_empty, tree.children(node)))


def _all(ends: Iterable[Ends]) -> Ends:
    found: dict[GraphNode, None] = {}
    for one in ends:
        found.update(dict.fromkeys(one))
    return tuple(found)
