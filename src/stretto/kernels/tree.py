"""The control tree: sequences, loops, branches and calls around straight-line leaves.

The same node classes carry leaves of operators (after lowering), of kernels (after fusion) and of
per-unit schedules (a DeviceProgram). Control is decided by registers, which every unit computes for
itself, so every unit takes the same way. Registers are assigned by `Let`; loops carry tensors in
*rotating* buffers: the body reads the first of each pair and writes the second, and at the end of
an iteration the two trade places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from stretto.kernels.expr import Access, Buffer, Const, Expr, Position, Reg

L = TypeVar("L")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Let:
    """reg = value, on every unit. Loads in `value` read memory."""

    reg: Reg
    value: Expr


@dataclass(frozen=True, slots=True)
class Check:
    """Stops the run with `code` and the value of `detail` unless `condition` holds (same on every
    unit).

    code: "list_full", "index", "assertion"; `subject` is the slot of the list, or the number of the
    failure that is raised (`Lowered.stops`).
    """

    condition: Expr
    code: str
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
    iteration.
    """

    index: Reg
    start: Expr
    stop: Expr
    step: int
    body: Node[L]
    rotate: tuple[tuple[Buffer, Buffer], ...] = ()


@dataclass(frozen=True, slots=True)
class While(Generic[L]):
    """Runs `head`, tests the register `condition`, runs `body`, rotates, and again."""

    head: Node[L]
    condition: Reg
    body: Node[L]
    rotate: tuple[tuple[Buffer, Buffer], ...] = ()


@dataclass(frozen=True, slots=True)
class If(Generic[L]):
    condition: Reg
    then: Node[L]
    orelse: Node[L]


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


def map_leaves(node: Node[L], change: Callable[[L], M]) -> Node[M]:
    """The same tree with every leaf replaced."""
    match node:
        case Leaf(body):
            return Leaf(change(body))
        case Seq(children):
            return Seq(tuple(map_leaves(child, change) for child in children))
        case For(index, start, stop, step, body, rotate):
            return For(index, start, stop, step, map_leaves(body, change), rotate)
        case While(head, condition, body, rotate):
            return While(map_leaves(head, change), condition, map_leaves(body, change), rotate)
        case If(condition, then, orelse):
            return If(condition, map_leaves(then, change), map_leaves(orelse, change))
        case Call(function, registers, tensors, results):
            return Call(function, registers, tensors, results)


def children(node: Node[L]) -> tuple[Node[L], ...]:
    match node:
        case Seq(items):
            return items
        case For() | While() | If():
            match node:
                case For():
                    return (node.body,)
                case While():
                    return (node.head, node.body)
                case If():
                    return (node.then, node.orelse)
        case Leaf() | Call():
            return ()


def walk(node: Node[L]) -> Iterator[Node[L]]:
    """The node and everything below it, in order."""
    yield node
    for child in children(node):
        yield from walk(child)


def trip_count(node: For[L]) -> int | None:
    """How many iterations a loop has, where its bounds are numbers."""
    bounds: list[int] = []
    for bound in (node.start, node.stop):
        match bound:
            case Const(value, _):
                bounds.append(int(value))
            case Position(index) if index.is_const:
                bounds.append(index.const)
            case _:
                return None
    return len(range(bounds[0], bounds[1], node.step))


def leaves(node: Node[L]) -> Iterator[L]:
    for item in walk(node):
        if isinstance(item, Leaf):
            yield item.body


def map_tree(tree: Tree[L], change: Callable[[L], M]) -> Tree[M]:
    functions = tuple(
        TreeFunction(
            f.name, f.params, f.tensors, f.written, f.results, f.locals, map_leaves(f.body, change)
        )
        for f in tree.functions
    )
    return Tree(functions, tree.externals)
