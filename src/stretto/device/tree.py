"""The control tree: sequences, loops, branches and calls around straight-line leaves.

The same node classes carry leaves of operators (after lowering), of kernels (after fusion) and of
per-unit schedules (a DeviceProgram). Control is decided by registers, which every unit computes for
itself, so every unit takes the same way. Registers are assigned by `Let`; loops carry tensors in
*rotating* buffers: the body reads the first of each pair and writes the second, and at the end of
an iteration the two trade places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeGuard, TypeVar, cast

from stretto.device.expr import Access, Buffer, Expr, Index, Position, Reg, constant, expr_regs

L = TypeVar("L")
M = TypeVar("M")

Rotation = tuple[tuple[Buffer, Buffer], ...]
"""Pairs of buffers that trade places at the end of an iteration."""


@dataclass(frozen=True, slots=True)
class Let:
    """reg = value, on every unit. Loads in `value` read memory."""

    reg: Reg
    value: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)


class CheckCode(StrEnum):
    """What a run is stopped for."""

    LIST_FULL = "list_full"
    INDEX = "index"
    ASSERTION = "assertion"


@dataclass(frozen=True, slots=True)
class Check:
    """Stops the run with `code` and the value of `detail` unless `condition` holds (same on every
    unit).

    subject: the slot of the list that is full, or the number of the failure that is raised
    (`ProgramInterface.stops`).
    """

    condition: Expr
    code: CheckCode
    subject: int = 0
    detail: Expr | None = None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.condition,) if self.detail is None else (self.condition, self.detail)


@dataclass(frozen=True, slots=True)
class Leaf(Generic[L]):
    body: L


@dataclass(frozen=True, slots=True)
class Seq(Generic[L]):
    children: tuple[Node[L], ...]


@dataclass(frozen=True, slots=True)
class For(Generic[L]):
    """index = start, start + step, ... as Python's range. `index` is assigned before each
    iteration. independent: "updated" buffers of which no iteration accesses what another writes,
    and local ones that one iteration alone accesses.

    parallel: iterations run on units of their own. Of n units, unit u runs all tasks of iterations
    u, u + n, u + 2n, ... by itself, without waits. Local buffers that only the loop accesses are
    *private*: each unit has its own copy (`Placement.copies`). Of all other memory that the loop
    writes, an iteration accesses the rows with its index alone.
    """

    index: Reg
    start: Expr
    stop: Expr
    step: int
    body: Node[L]
    rotate: Rotation = ()
    independent: tuple[Buffer, ...] = ()
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class While(Generic[L]):
    """Runs `head`, tests the register `condition`, runs `body`, rotates, and again."""

    head: Node[L]
    condition: Reg
    body: Node[L]
    rotate: Rotation = ()


class Branching(StrEnum):
    """How a plan executes a branch. In all other forms branches are conditional."""

    CONDITIONAL = "conditional"
    """One arm is begun when the condition is known."""
    PREDICATED = "predicated"
    """The launches of both arms are enqueued like those around them; those of the arm that is not
    taken return at once."""
    UNLIKELY_THEN = "unlikely_then"
    """The first arm is hardly ever taken: a captured graph does without it, and the host executes
    it, and the rest behind it."""
    UNLIKELY_ELSE = "unlikely_else"
    """The same for the second arm."""


@dataclass(frozen=True, slots=True)
class If(Generic[L]):
    condition: Reg
    then: Node[L]
    orelse: Node[L]
    branching: Branching = Branching.CONDITIONAL


@dataclass(frozen=True, slots=True)
class Call(Generic[L]):
    """Runs a function in a new frame: registers by value, tensors by address, register results
    assigned.

    `tensors` binds each "param" buffer of the callee to the memory from `Access` on (arguments and
    the places of results alike).
    """

    function: str
    registers: tuple[tuple[Reg, Expr], ...]
    tensors: tuple[tuple[Buffer, Access], ...]
    results: tuple[tuple[Reg, Reg], ...] = ()
    """(register of the caller, register of the callee) pairs."""


Loop = For[L] | While[L]
Node = Leaf[L] | Seq[L] | For[L] | While[L] | If[L] | Call[L]


@dataclass(frozen=True, slots=True)
class TreeFunction(Generic[L]):
    """params: registers by value. tensors: "param" buffers. results: registers handed back.

    `locals` are the buffers of a frame; `written` the params that the function writes.
    """

    name: str
    params: tuple[Reg, ...]
    tensors: tuple[Buffer, ...]
    written: tuple[Buffer, ...]
    results: tuple[Reg, ...]
    locals: tuple[Buffer, ...]
    body: Node[L]

    def with_body(self, body: Node[M]) -> TreeFunction[M]:
        return TreeFunction(
            self.name, self.params, self.tensors, self.written, self.results, self.locals, body
        )


@dataclass(frozen=True, slots=True)
class Tree(Generic[L]):
    """A whole program. `externals` are the buffers of the argument block, by slot."""

    functions: tuple[TreeFunction[L], ...]
    externals: tuple[Buffer, ...]

    def function(self, name: str) -> TreeFunction[L]:
        return next(function for function in self.functions if function.name == name)

    @property
    def main(self) -> TreeFunction[L]:
        return self.function("main")


def children(node: Node[L]) -> tuple[Node[L], ...]:
    """The nodes below a node, in the order of the run."""
    match node:
        case Leaf() | Call():
            return ()
        case Seq(items):
            return items
        case For(body=body):
            return (body,)
        case While(head=head, body=body):
            return head, body
        case If(then=then, orelse=orelse):
            return then, orelse


def rebuilt(node: Node[L], parts: Sequence[Node[M]]) -> Node[M]:
    """An inner node with other nodes below it."""
    match node:
        case Seq():
            return Seq(tuple(parts))
        case For(index, start, stop, step, _, rotate, independent, parallel):
            return For(index, start, stop, step, parts[0], rotate, independent, parallel)
        case While(_, condition, _, rotate):
            return While(parts[0], condition, parts[1], rotate)
        case If(condition, branching=branching):
            return If(condition, parts[0], parts[1], branching)
        case Leaf() | Call():
            raise TypeError(f"a {type(node).__name__} has nothing below it")


def joined(nodes: Sequence[Node[L]]) -> Node[L]:
    """The nodes in order, inner sequences dissolved."""
    flat: list[Node[L]] = []
    for node in nodes:
        flat.extend(node.children if isinstance(node, Seq) else (node,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def map_leaves(node: Node[L], change: Callable[[L], M]) -> Node[M]:
    """The same tree with every leaf replaced."""
    return grow_leaves(node, lambda body: Leaf(change(body)))


def grow_leaves(node: Node[L], change: Callable[[L], Node[M]]) -> Node[M]:
    """The same tree with a node in place of every leaf."""
    match node:
        case Leaf(body):
            return change(body)
        case Call():
            return cast("Call[M]", node)
        case _:
            return rebuilt(node, [grow_leaves(child, change) for child in children(node)])


def rotation(node: Node[L]) -> Rotation:
    """The buffers that trade places at the end of an iteration of the node."""
    return node.rotate if isinstance(node, For | While) else ()


def rotating(node: Node[L]) -> set[Buffer]:
    """The buffers that trade places somewhere in a node."""
    return {buffer for item in walk(node) for pair in rotation(item) for buffer in pair}


def swaps(pairs: Rotation) -> dict[str, Buffer]:
    """For each name the buffer that has its place in the next iteration."""
    return {a.name: b for pair in pairs for a, b in (pair, pair[::-1])}


def inputs(node: Node[L]) -> tuple[Expr, ...]:
    """The expressions that a control node itself evaluates, without what is below it."""
    match node:
        case For(start=start, stop=stop):
            return start, stop
        case While(condition=condition) | If(condition=condition):
            return (Position(Index.of(condition)),)
        case Call(registers=registers, tensors=tensors):
            places = (Position(access.offset) for _, access in tensors)
            return (*(value for _, value in registers), *places)
        case Leaf() | Seq():
            return ()


def reads(node: Node[L]) -> frozenset[Reg]:
    """The registers that a control node itself reads, without what is below it."""
    return frozenset(register for value in inputs(node) for register in expr_regs(value))


def assigns(node: Node[L]) -> tuple[Reg, ...]:
    """The registers that a control node itself assigns, without what is below it."""
    match node:
        case For(index=index):
            return (index,)
        case Call(results=results):
            return tuple(mine for mine, _ in results)
        case _:
            return ()


def with_inputs(
    node: Node[L], change: Callable[[Expr], Expr], place: Callable[[Access], Access]
) -> Node[L]:
    """A control node with other expressions, and with other places bound to tensors."""
    match node:
        case For(start=start, stop=stop):
            return replace(node, start=change(start), stop=change(stop))
        case Call(registers=registers, tensors=tensors):
            return replace(
                node,
                registers=tuple((register, change(value)) for register, value in registers),
                tensors=tuple((buffer, place(access)) for buffer, access in tensors),
            )
        case _:
            return node


def walk(node: Node[L]) -> Iterator[Node[L]]:
    """The node and everything below it, in order."""
    yield node
    for child in children(node):
        yield from walk(child)


def iterations(node: Node[L]) -> int | None:
    """How often what is below a node runs each time; None where values decide."""
    match node:
        case For():
            return trip_count(node)
        case While():
            return None
        case _:
            return 1


def is_parallel(node: Node[L]) -> TypeGuard[For[L]]:
    """Whether iterations of the node run on units of their own."""
    return isinstance(node, For) and node.parallel


def is_loop(node: Node[L]) -> TypeGuard[Loop[L]]:
    return isinstance(node, For | While)


def is_predicated(node: Node[L]) -> TypeGuard[If[L]]:
    """Whether the node is a branch whose arms are both enqueued."""
    return isinstance(node, If) and node.branching is Branching.PREDICATED


def title(node: Node[L]) -> str:
    """What a control node is called in tables and messages."""
    match node:
        case For(index=index):
            return f"for {index.name}"
        case While(condition=condition):
            return f"while {condition.name}"
        case If(condition=condition):
            return f"if {condition.name}"
        case Call(function=name):
            return f"call {name}"
        case Leaf() | Seq():
            return type(node).__name__.lower()


def trip_count(node: For[L]) -> int | None:
    """How many iterations a loop has, where its bounds are numbers."""
    start, stop = constant(node.start), constant(node.stop)
    return None if start is None or stop is None else len(range(start, stop, node.step))


def leaves(node: Node[L]) -> Iterator[L]:
    for item in walk(node):
        if isinstance(item, Leaf):
            yield item.body


def map_tree(tree: Tree[L], change: Callable[[L], M]) -> Tree[M]:
    functions = tuple(f.with_body(map_leaves(f.body, change)) for f in tree.functions)
    return Tree(functions, tree.externals)
