"""The control tree: sequences, loops, branches and calls around straight-line leaves.

The same node classes carry leaves of operators (after lowering), of kernels (after
fusion) and of per-unit schedules (a DeviceProgram). Control is decided by registers,
which every unit computes for itself, so all units take the same path. Registers are
assigned by `Let`. Loops carry tensors in *rotating* buffers: the body reads the first
of each pair and writes the second, and the two are swapped at the end of an iteration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeGuard, TypeVar, cast

from stretto.device.expr import (
    Access,
    Buffer,
    Expr,
    Index,
    Position,
    Reg,
    constant,
    expr_regs,
    loads,
)

L = TypeVar("L")
M = TypeVar("M")
S = TypeVar("S")

Rotation = tuple[tuple[Buffer, Buffer], ...]
"""Pairs of buffers that are swapped at the end of an iteration."""


@dataclass(frozen=True, slots=True)
class Let:
    """The assignment reg = value, on every unit. Loads in `value` read memory."""

    reg: Reg
    value: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)


class CheckCode(StrEnum):
    """The reason why a check stops the run."""

    LIST_FULL = "list_full"
    INDEX = "index"
    ASSERTION = "assertion"


@dataclass(frozen=True, slots=True)
class Check:
    """Stop the run with `code` and the value of `detail` unless `condition` holds (equal on
    every unit).

    subject: the slot of the list that is full, or the number of the failure to raise
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
    """A loop with index = start, start + step, ... as Python's range, assigned before each
    iteration.

    independent: "updated" buffers of which no iteration accesses an element that another
    one writes, and local buffers that only one iteration accesses. Data decide that, so it
    is not verified.

    parallel: iterations are divided among the units. Of n units, unit u runs all tasks of
    iterations u, u + n, u + 2n, ... by itself, without waits. Local buffers that only the
    loop accesses are *private*: each unit has its own copy (`Placement.copies`). Of all
    other memory that the loop writes, an iteration accesses only the rows at its index.
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
    """A loop: run `head`, test the register `condition`, run `body`, rotate, and repeat."""

    head: Node[L]
    condition: Reg
    body: Node[L]
    rotate: Rotation = ()


class Branching(StrEnum):
    """How a plan executes a branch. In all other forms branches are conditional."""

    CONDITIONAL = "conditional"
    """The taken arm starts once the condition is known."""
    PREDICATED = "predicated"
    """The launches of both arms are enqueued like those around them; those of the arm that is not
    taken return at once."""
    UNLIKELY_THEN = "unlikely_then"
    """The first arm is rarely taken: a captured graph omits it, and the host executes it and
    everything after it."""
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
    """A call of a function in a new frame: registers are passed by value, tensors by address,
    and register results are assigned.

    `tensors` binds each "param" buffer of the callee to the memory that starts at an
    `Access`, for arguments and for destinations of results.
    """

    function: str
    registers: tuple[tuple[Reg, Expr], ...]
    tensors: tuple[tuple[Buffer, Access], ...]
    results: tuple[tuple[Reg, Reg], ...] = ()
    """Pairs (register of the caller, register of the callee)."""


Loop = For[L] | While[L]
Conditional = If[L] | While[L]
Node = Leaf[L] | Seq[L] | For[L] | While[L] | If[L] | Call[L]


@dataclass(frozen=True, slots=True)
class TreeFunction(Generic[L]):
    """A function of a tree. params: registers by value. tensors: "param" buffers. results:
    registers returned.

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

    def walk(self) -> Iterator[Node[L]]:
        """Iterate over the nodes of all functions, in the order of the text."""
        return (node for function in self.functions for node in walk(function.body))

    def leaves(self) -> Iterator[L]:
        return (leaf for function in self.functions for leaf in leaves(function.body))


def children(node: Node[L]) -> tuple[Node[L], ...]:
    """Return the nodes directly below a node, in execution order."""
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
    """Return an inner node with its child nodes replaced."""
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


def joined(
    nodes: Iterable[Node[L]],
    merge: Callable[[L, L], L] | None = None,
    is_nothing: Callable[[L], bool] = lambda _: False,
) -> Node[L]:
    """Return the nodes in order as one node, with inner sequences flattened.

    merge: joins the bodies of adjacent leaves. is_nothing: bodies of leaves that are left out.
    """
    flat: list[Node[L]] = []
    for node in nodes:
        for item in node.children if isinstance(node, Seq) else (node,):
            last = flat[-1] if flat else None
            if merge is not None and isinstance(item, Leaf) and isinstance(last, Leaf):
                flat[-1] = Leaf(merge(last.body, item.body))
            elif not (isinstance(item, Leaf) and is_nothing(item.body)):
                flat.append(item)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def map_leaves(node: Node[L], change: Callable[[L], M]) -> Node[M]:
    """Return the tree with every leaf body replaced by `change` of it."""
    return grow_leaves(node, lambda body: Leaf(change(body)))


def grow_leaves(node: Node[L], change: Callable[[L], Node[M]]) -> Node[M]:
    """Return the tree with every leaf replaced by a node."""
    match node:
        case Leaf(body):
            return change(body)
        case Call():
            return cast("Call[M]", node)
        case _:
            return rebuilt(node, [grow_leaves(child, change) for child in children(node)])


def rotation(node: Node[L]) -> Rotation:
    """Return the buffer pairs that the node, if it is a loop, swaps after each iteration."""
    return node.rotate if isinstance(node, For | While) else ()


def rotating(node: Node[L]) -> set[Buffer]:
    """Return all buffers that are swapped by loops in a node."""
    return {buffer for item in walk(node) for pair in rotation(item) for buffer in pair}


def swaps(pairs: Rotation) -> dict[str, Buffer]:
    """Map each name of a rotation to the buffer that takes its place in the next iteration."""
    return {a.name: b for pair in pairs for a, b in (pair, pair[::-1])}


def renamed(node: Node[L]) -> Iterator[Buffer]:
    """Iterate over the buffers that get another name: those that a loop rotates, and those that a
    call binds to params."""
    yield from (buffer for pair in rotation(node) for buffer in pair)
    if isinstance(node, Call):
        yield from (access.buffer for _, access in node.tensors)


def control_buffers(node: Node[L]) -> Iterator[Buffer]:
    """Iterate over the buffers that a node itself reads or renames, without the contents of
    leaves."""
    yield from (load.access.buffer for value in inputs(node) for load in loads(value))
    yield from renamed(node)


def inputs(node: Node[L]) -> tuple[Expr, ...]:
    """Return the expressions that a control node itself evaluates, excluding those of nodes below
    it."""
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
    """Return the registers that a control node itself reads, excluding nodes below it."""
    return frozenset(register for value in inputs(node) for register in expr_regs(value))


def assigns(node: Node[L]) -> tuple[Reg, ...]:
    """Return the registers that a control node itself assigns, excluding nodes below it."""
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
    """Return a control node with its expressions mapped by `change` and its tensor arguments by
    `place`."""
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
    """Yield the node and everything below it, in execution order."""
    yield node
    for child in children(node):
        yield from walk(child)


def calls(node: Node[L]) -> Iterator[Call[L]]:
    """Yield the calls in a node, without those that their callees make."""
    return (item for item in walk(node) if isinstance(item, Call))


def iterations(node: Node[L]) -> int | None:
    """Return the number of times that the nodes below a node run per execution of it; None if data
    decide it."""
    match node:
        case For():
            return trip_count(node)
        case While():
            return None
        case _:
            return 1


def is_parallel(node: Node[L]) -> TypeGuard[For[L]]:
    """Return True if iterations of the node are divided among the units."""
    return isinstance(node, For) and node.parallel


def is_loop(node: Node[L]) -> TypeGuard[Loop[L]]:
    return isinstance(node, For | While)


def is_predicated(node: Node[L]) -> TypeGuard[If[L]]:
    """Return True if the node is a branch whose arms are both enqueued."""
    return isinstance(node, If) and node.branching is Branching.PREDICATED


def title(node: Node[L]) -> str:
    """Return the name of a control node for tables and messages."""
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
    """Return the number of iterations of a loop, or None unless its bounds are constants."""
    start, stop = constant(node.start), constant(node.stop)
    return None if start is None or stop is None else len(range(start, stop, node.step))


def flattened(
    node: Node[L], opens: Callable[[Node[L]], bool] = lambda _: False
) -> Iterator[Node[L]]:
    """Yield the nodes of a node in order: those of sequences, and of the loops and branches for
    which `opens` holds."""
    below = children(node)
    if isinstance(node, Seq) or (below and opens(node)):
        for child in below:
            yield from flattened(child, opens)
    else:
        yield node


def is_empty(node: Node[L]) -> bool:
    """Return True if a node is a sequence of nothing."""
    return next(flattened(node), None) is None


def leaves(node: Node[L]) -> Iterator[L]:
    for item in walk(node):
        if isinstance(item, Leaf):
            yield item.body


def map_tree(tree: Tree[L], change: Callable[[L], M]) -> Tree[M]:
    functions = tuple(f.with_body(map_leaves(f.body, change)) for f in tree.functions)
    return Tree(functions, tree.externals)


class Execution(ABC, Generic[L, S]):
    """The path of one run through a tree. Subclasses decide loops and branches and bind the
    arguments of calls; S is the state of one activation of a function.

    A method that yields continues once everything below the yielded node has run.
    """

    def leaves(self, node: Node[L], state: S) -> Iterator[tuple[Leaf[L], S]]:
        """Yield the leaves of a node in the order in which the run reaches them, each with the
        state of its activation. A leaf has run once the next one is requested.

        Calls may be nested deeper than Python's stack.
        """
        pending: list[Iterator[tuple[Node[L], S]]] = [iter(((node, state),))]
        while pending:
            for inner, at in pending[-1]:
                if isinstance(inner, Leaf):
                    yield inner, at
                else:
                    pending.append(self._below(inner, at))
                    break
            else:
                pending.pop()

    def _below(self, node: Node[L], state: S) -> Iterator[tuple[Node[L], S]]:
        """Yield the nodes that run for a control node, in order."""
        match node:
            case Leaf():
                yield node, state
            case Seq():
                for child in self.sequence(node, state):
                    yield child, state
            case For(body=body, rotate=pairs):
                for _ in self.trips(node, state):
                    yield body, state
                    self.rotate(pairs, state)
            case While(head=head, body=body, rotate=pairs):
                yield head, state
                done = 0
                while self.holds(node, state, done):
                    yield body, state
                    self.rotate(pairs, state)
                    yield head, state
                    done += 1
            case If():
                for arm in self.arms(node, state):
                    yield arm, state
            case Call():
                yield from self.call(node, state)

    def sequence(self, node: Seq[L], state: S) -> Iterable[Node[L]]:
        """Yield the nodes of a sequence."""
        return node.children

    def arms(self, node: If[L], state: S) -> Iterable[Node[L]]:
        """Yield the arms of a branch that run."""
        return (node.then if self.holds(node, state, 0) else node.orelse,)

    def rotate(self, pairs: Rotation, state: S) -> None:
        """Swap the buffers of each pair, at the end of an iteration."""

    @abstractmethod
    def trips(self, node: For[L], state: S) -> Iterator[None]:
        """Assign the index of a loop before each iteration, and yield for the iteration."""

    @abstractmethod
    def holds(self, node: Conditional[L], state: S, done: int) -> bool:
        """Return the condition of a branch, or of a loop after `done` iterations."""

    @abstractmethod
    def call(self, node: Call[L], state: S) -> Iterator[tuple[Node[L], S]]:
        """Yield the body of a called function with the state of its activation; then assign the
        results."""
