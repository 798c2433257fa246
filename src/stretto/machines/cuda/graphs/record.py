"""Makes a captured graph of a stretch of a plan: launches, library calls, loops and branches.

Edges are those of the launch graph, not an order of streams. A branch is two conditional nodes, a
loop is one; between them the graph itself does what the host would do: it copies words with
registers and addresses, counts, and decides (`words`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from stretto.device.expr import Buffer, Expr, Reg
from stretto.device.operator import DRAWS, LibraryCall
from stretto.device.plan import Action, Launch, Library
from stretto.device.tree import Call, For, If, Leaf, Node, Rotation, Seq, While, children, walk
from stretto.machines.cuda.graphs.arrange import Arrangements
from stretto.machines.cuda.graphs.builder import CaptureError, GraphBuilder, GraphNode
from stretto.machines.cuda.graphs.words import Code, Operation
from stretto.machines.cuda.launch import Invocation

Ends = tuple[GraphNode, ...]
"""What comes behind a part of a graph comes after these."""


class RefusedCall(Exception):
    """A library call that cannot be captured."""

    def __init__(self, call: LibraryCall) -> None:
        super().__init__(call)
        self.call = call


class Host(Protocol):
    """What the host knows when it makes a graph."""

    def invocation(self, launch: Launch) -> Invocation:
        """A launch with its arguments."""
        ...

    def library_call(self, call: LibraryCall) -> Callable[[], None]:
        """What runs a call on the tensors of now."""
        ...

    def address_of_word(self, reg: Reg) -> int: ...
    def address_of_place(self, buffer: Buffer) -> int:
        """Of the word with a buffer's address."""
        ...

    def number_or_register(self, expr: Expr) -> int | Reg:
        """A bound of a loop."""
        ...

    def cells(self, count: int) -> torch.Tensor:
        """Words on the device that live as long as the graph."""
        ...

    @property
    def control(self) -> int:
        """The address of the control block."""
        ...


@dataclass(slots=True)
class Recorded:
    """launches: nodes of launches that can be patched, those in no body; fixed: launches in bodies,
    whose arguments cannot change."""

    launches: list[tuple[Launch, GraphNode]] = field(default_factory=list[tuple[Launch, GraphNode]])
    fixed: list[Launch] = field(default_factory=list[Launch])
    cells: list[torch.Tensor] = field(default_factory=list[torch.Tensor])


def can_record(node: Node[Action], moving: frozenset[Buffer]) -> bool:
    """Whether all of a node can be in a graph. moving: buffers whose place only the device knows.

    Not so functions that the host calls, and library calls that draw random numbers, whose sizes
    only the device knows, or that use what moves.
    """
    return all(_can_record(inner, moving) for inner in walk(node))


def _can_record(node: Node[Action], moving: frozenset[Buffer]) -> bool:
    match node:
        case Call():
            return False
        case Leaf(Library(call)):
            operands = call.operands
            return (
                DRAWS not in dict(call.kwargs)
                and not any(isinstance(operand, Reg) for operand in operands)
                and not any(operand in moving for operand in operands)
            )
        case _:
            return True


class Recorder:
    """Makes one graph. stream: where it is replayed; graphs on other streams may run beside it, so
    library calls share no memory with theirs. head: nodes that everything comes after."""

    def __init__(
        self, host: Host, arrangements: Arrangements, stream: int, head: Ends = ()
    ) -> None:
        self.stream = stream
        self.host = host
        self.arrangements = arrangements
        self.head = head
        self.made = Recorded()
        self._depth = 0
        self._lane: tuple[int, ...] = ()

    def parts(self, graph: GraphBuilder, node: Seq[Action], numbers: Sequence[int]) -> Ends:
        """Some children of a sequence, in the order in which it is arranged."""
        after = self.arrangements[id(node)].after
        lanes = self.arrangements[id(node)].arrangement.streams
        ends: dict[int, Ends] = {}
        followed: set[GraphNode] = set()
        for number in numbers:
            # What is of another graph has ended before this one begins.
            before = _all(ends[other] for other in after[number] if other in ends)
            followed.update(before)
            # Nodes of a lane are in an order; what is in a body runs while its node does.
            outer, self._lane = self._lane, (*self._lane, lanes[number])
            ends[number] = self.node(graph, node.children[number], before or self.head)
            self._lane = outer
        return tuple(one for one in _all(ends.values()) if one not in followed) or self.head

    def node(self, graph: GraphBuilder, node: Node[Action], after: Ends) -> Ends:
        """One node, behind others."""
        match node:
            case Leaf(Launch() as launch):
                return (self._launch(graph, launch, after),)
            case Leaf(Library(call)):
                try:
                    run = self.host.library_call(call)
                    return (graph.library(run, after, (self.stream, *self._lane)),)
                except CaptureError as error:
                    raise RefusedCall(call) from error
            case Seq(items):
                return self._sequence(graph, node, after) if items else after
            case If(condition, then, orelse):
                return self._branch(graph, condition, (then, orelse), after)
            case While(head, condition, body, rotate):
                return self._while(graph, head, condition, body, rotate, after)
            case For():
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

    def _sequence(self, graph: GraphBuilder, node: Seq[Action], after: Ends) -> Ends:
        outer, self.head = self.head, after
        ends = self.parts(graph, node, self.arrangements[id(node)].arrangement.order)
        self.head = outer
        return ends

    # ---- control -----------------------------------------------------------------------------
    def _branch(
        self, graph: GraphBuilder, condition: Reg, arms: Sequence[Node[Action]], after: Ends
    ) -> Ends:
        operations = [Operation(Code.TEST, self.host.address_of_word(condition))]
        taken: list[tuple[int, Node[Action]]] = []
        for code, arm in zip((Code.DECIDE, Code.REFUSE), arms, strict=True):
            if not is_empty(arm):
                taken.append((graph.handle(), arm))
                operations.append(Operation(code, taken[-1][0]))
        if not taken:
            return after
        decided = self._operations(graph, operations, after)
        ends: list[GraphNode] = []
        for handle, arm in taken:
            node, body = graph.conditional(handle, decided, loop=False)
            self._body(body, arm)
            ends.append(node)
        return tuple(ends)

    def _while(
        self,
        graph: GraphBuilder,
        head: Node[Action],
        condition: Reg,
        body: Node[Action],
        rotate: Rotation,
        after: Ends,
    ) -> Ends:
        handle = graph.handle()
        test = [
            Operation(Code.TEST, self.host.address_of_word(condition)),
            Operation(Code.DECIDE, handle),
        ]
        tested = self._operations(graph, test, self.node(graph, head, after))
        node, inner = graph.conditional(handle, tested, loop=True)
        ends = self._body(inner, body)
        self._depth += 1
        ends = self._operations(inner, self._turned(rotate), ends)
        ends = self.node(inner, head, ends)
        self._operations(inner, test, ends)
        self._depth -= 1
        return (node,)

    def _for(self, graph: GraphBuilder, node: For[Action], after: Ends) -> Ends:
        """The position is counted in a cell of its own: what the body finds in the index's word, it
        finds there behind the loop, too."""
        handle, index = graph.handle(), self.host.address_of_word(node.index)
        cells = self.host.cells(2)
        self.made.cells.append(cells)
        at, last = (cells.data_ptr() + place * cells.itemsize for place in range(2))
        begin = [self._set(at, node.start), self._set(last, node.stop)]
        test = [
            Operation(Code.LESS if node.step > 0 else Code.MORE, at, last),
            Operation(Code.MOVE, index, at),
            Operation(Code.DECIDE, handle),
        ]
        begun = self._operations(graph, [*begin, *test], after)
        loop, inner = graph.conditional(handle, begun, loop=True)
        ends = self._body(inner, node.body)
        further = [*self._turned(node.rotate), Operation(Code.ADD, at, node.step)]
        self._operations(inner, [*further, *test], ends)
        return (loop,)

    def _set(self, cell: int, bound: Expr) -> Operation:
        found = self.host.number_or_register(bound)
        if isinstance(found, Reg):
            return Operation(Code.COPY, cell, self.host.address_of_word(found))
        return Operation(Code.STORE, cell, found)

    def _turned(self, rotate: Rotation) -> list[Operation]:
        place = self.host.address_of_place
        return [Operation(Code.SWAP, place(a), place(b)) for a, b in rotate]

    def _body(self, graph: GraphBuilder, node: Node[Action]) -> Ends:
        outer, self.head = self.head, ()
        self._depth += 1
        ends = self.node(graph, node, ())
        self._depth -= 1
        self.head = outer
        return ends

    def _operations(
        self, graph: GraphBuilder, operations: Sequence[Operation], after: Ends
    ) -> Ends:
        if not operations:
            return after
        return (graph.words(operations, self.host.control, after),)


def is_empty(node: Node[Action]) -> bool:
    """Whether nothing is to be done."""
    return isinstance(node, Seq) and all(map(is_empty, children(node)))


def _all(ends: Iterable[Ends]) -> Ends:
    found: dict[GraphNode, None] = {}
    for one in ends:
        found.update(dict.fromkeys(one))
    return tuple(found)
