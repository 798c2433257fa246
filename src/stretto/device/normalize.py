"""Normalisation of a tree for the scheduler, and its sequential program.

Adjacent leaves are joined. Only leaves read memory: an expression of a control node
that loads from a buffer moves into a `Let` of a leaf before the node.

    for i in 0 .. load(n)  ->  leaf { let control0 = load(n) };  for i in 0 .. control0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from stretto.device import program
from stretto.device.expr import (
    Access,
    Apply,
    Expr,
    Index,
    Position,
    Reg,
    index_loads,
    loads,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage
from stretto.device.regions import Body, Statement
from stretto.device.runs import functions_in_parallel_loops
from stretto.device.tree import (
    Call,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    children,
    is_parallel,
    joined,
    map_leaves,
    map_tree,
    rebuilt,
    with_inputs,
)
from stretto.errors import ScheduleError
from stretto.ir.types import DType

BodyNode = Node[Body]


def normalize(tree: Tree[Body]) -> Tree[Body]:
    functions = tuple(_function(function) for function in tree.functions)
    return Tree(functions, tree.externals)


def sequence(nodes: list[BodyNode]) -> BodyNode:
    """Return the nodes in order as one node, with leaves joined and inner sequences flattened."""
    return joined(nodes, lambda one, other: one + other, lambda body: not body)


def _function(function: TreeFunction[Body]) -> TreeFunction[Body]:
    return function.with_body(_Normalizer().node(function.body))


class _Normalizer:
    def __init__(self) -> None:
        self._count = 0

    def node(self, node: BodyNode) -> BodyNode:
        lets: list[Let] = []
        read = with_inputs(
            node,
            lambda value: self._without_loads(value, lets),
            lambda access: self._access(access, lets),
        )
        parts = [self.node(part) for part in children(read)]
        if isinstance(read, Seq):
            return sequence(parts)
        changed = rebuilt(read, parts) if parts else read
        return sequence([Leaf(tuple(lets)), changed]) if lets else changed

    def _without_loads(self, expr: Expr, lets: list[Let]) -> Expr:
        if next(loads(expr), None) is None:
            return expr
        if expr.dtype.is_float:
            raise ScheduleError(
                "a control node reads a floating-point value from memory",
                remedy="pass it to the function as a tensor",
            )
        register = self._let(expr, lets)
        if register.dtype is DType.BOOL:
            return Apply("cast", (Position(Index.of(register)),), DType.BOOL)
        return Position(Index.of(register))

    def _access(self, access: Access, lets: list[Let]) -> Access:
        indices = tuple(
            Index.of(self._let(Position(index), lets)) if any(index_loads(index)) else index
            for index in access.index
        )
        return Access(access.buffer, access.shape, indices)

    def _let(self, expr: Expr, lets: list[Let]) -> Reg:
        register = Reg(f"control{self._count}", expr.dtype)
        self._count += 1
        lets.append(Let(register, expr))
        return register


# ---- A tree as the sequential program of a single unit.
#
# Operators become kernels of one task, every local buffer has a separate place, nothing waits. Any
# property of this program is one of the tree: trees are verified through it, and it defines the
# meaning that any schedule must preserve.


def sequential(tree: Tree[Body]) -> program.DeviceProgram:
    """Return the single-unit program of a tree of kernels. Different kernels of one name are all
    listed, so that verification rejects them."""
    tree = normalize(tree)
    kernels: dict[str, Kernel] = {}
    others: list[Kernel] = []
    for kernel in tree_kernels(tree):
        if kernels.setdefault(kernel.name, kernel) != kernel:
            others.append(kernel)
    apart = functions_in_parallel_loops(tree)
    functions = tuple(f.with_body(_body(f.body, f.name in apart)) for f in tree.functions)
    return program.DeviceProgram(
        1,
        Tree(functions, tree.externals),
        (*kernels.values(), *others),
        tuple((function.name, _frame(function)) for function in tree.functions),
        tuple(buffer for buffer in tree.externals if buffer.kind == "list"),
    )


def tree_kernels(tree: Tree[Body]) -> Iterator[Kernel]:
    """Yield all kernels, in the order of the text."""
    return (item for body in tree.leaves() for item in body if isinstance(item, Kernel))


def single_kernels(tree: Tree[Items]) -> Tree[Body]:
    """Turn every operator into a kernel of one task, named after the operator with a number."""
    made = 0

    def kernel(item: LeafItem) -> Statement:
        nonlocal made
        match item:
            case Operator(name=name, dims=dims):
                made += 1
                stage = Stage(item, tuple(map(Span, dims)))
                return Kernel(f"{name}.{made}", (), (stage,))
            case LibraryCall(name=name):
                made += 1
                return Kernel(f"{name}.{made}", (), (), call=item)
            case _:
                return item

    return map_tree(tree, lambda items: tuple(map(kernel, items)))


def _body(body: Node[Body], is_apart: bool) -> Node[program.Schedule]:
    """Schedule a body for one unit. is_apart: parallel loops call the function."""
    return map_leaves(body, lambda items: _schedule(items, 0)) if is_apart else _node(body)


def _node(node: Node[Body]) -> Node[program.Schedule]:
    match node:
        case Leaf(body):
            return Leaf(_schedule(body, 1))
        case Call():
            return cast("Call[program.Schedule]", node)
        case _ if is_parallel(node):
            return map_leaves(node, lambda body: _schedule(body, 0))
        case _:
            return rebuilt(node, [_node(child) for child in children(node)])


def _schedule(body: Body, steps: int) -> program.Schedule:
    items = tuple(_items(body))
    return program.Schedule((items,), steps if items else 0)


def _items(body: Body) -> Iterator[program.Item]:
    for item in body:
        if not isinstance(item, Kernel):
            yield item
        elif not item.is_static:
            yield program.Run(item.name, 0, None)
        elif item.tasks:
            yield program.Run(item.name, 0, item.tasks)


def _frame(function: TreeFunction[Body]) -> program.FrameLayout:
    placements: list[tuple[str, program.Placement]] = []
    end = 0
    for buffer in function.locals:
        if buffer.is_sized:
            continue
        size = program.aligned(buffer.nbytes)
        placements.append((buffer.name, program.Placement(end, size)))
        end += size
    sized = [(b.name, program.sized_bytes(b)) for b in function.locals if b.is_sized]
    slots = tuple(program.aligned(nbytes) for _, nbytes in sized)
    own = ((name, program.SizedPlacement(n, 0, nbytes)) for n, (name, nbytes) in enumerate(sized))
    return program.FrameLayout(end, tuple(placements), slots, tuple(own))
