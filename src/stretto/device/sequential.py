"""A tree as the program of a single unit, which does one thing after the other.

Operators become kernels of one task, every local buffer has a place of its own, nothing waits.
What is true of this program is true of the tree: trees are verified so, and it is the meaning that
any schedule must keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from stretto.device.expr import Buffer
from stretto.device.forms import Items, LeafItem
from stretto.device.normalize import normalize
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage
from stretto.device.program import (
    FRAME_ALIGNMENT,
    DeviceProgram,
    FrameLayout,
    Item,
    Placement,
    Run,
    Schedule,
    SizedPlacement,
    aligned,
    sized_bytes,
)
from stretto.device.regions import Body, Statement
from stretto.device.runs import apart_functions
from stretto.device.tree import (
    Call,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    children,
    is_parallel,
    leaves,
    map_leaves,
    map_tree,
    rebuilt,
)


def sequential(tree: Tree[Body]) -> DeviceProgram:
    """The program of a tree of kernels."""
    tree = normalize(tree)
    kernels: dict[str, Kernel] = {}
    others: list[Kernel] = []
    for kernel in tree_kernels(tree):
        if kernels.setdefault(kernel.name, kernel) != kernel:
            others.append(kernel)
    apart = apart_functions(tree)
    functions = tuple(f.with_body(_body(f.body, f.name in apart)) for f in tree.functions)
    return DeviceProgram(
        1,
        Tree(functions, tree.externals),
        (*kernels.values(), *others),
        tuple((function.name, _frame(function)) for function in tree.functions),
        tuple(buffer for buffer in tree.externals if buffer.kind == "list"),
    )


def tree_kernels(tree: Tree[Body]) -> Iterator[Kernel]:
    """All kernels, in the order of the text."""
    for function in tree.functions:
        for body in leaves(function.body):
            yield from (item for item in body if isinstance(item, Kernel))


def single_kernels(tree: Tree[Items]) -> Tree[Body]:
    """Every operator as a kernel of one task, which has the operator's name and a number."""
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


def _body(body: Node[Body], is_apart: bool) -> Node[Schedule]:
    """is_apart: a function that parallel loops call."""
    return map_leaves(body, lambda items: _schedule(items, 0)) if is_apart else _node(body)


def _node(node: Node[Body]) -> Node[Schedule]:
    match node:
        case Leaf(body):
            return Leaf(_schedule(body, 1))
        case Call():
            return cast("Call[Schedule]", node)
        case _ if is_parallel(node):
            return map_leaves(node, lambda body: _schedule(body, 0))
        case _:
            return rebuilt(node, [_node(child) for child in children(node)])


def _schedule(body: Body, steps: int) -> Schedule:
    items = tuple(_items(body))
    return Schedule((items,), steps if items else 0)


def _items(body: Body) -> Iterator[Item]:
    for item in body:
        if not isinstance(item, Kernel):
            yield item
        elif not item.is_static:
            yield Run(item.name, 0, None)
        elif item.tasks:
            yield Run(item.name, 0, item.tasks)


def _frame(function: TreeFunction[Body]) -> FrameLayout:
    placements: list[tuple[str, Placement]] = []
    end = 0
    for buffer in function.locals:
        if buffer.is_sized:
            continue
        size = _aligned(buffer)
        placements.append((buffer.name, Placement(end, size)))
        end += size
    sized = [(b.name, sized_bytes(b)) for b in function.locals if b.is_sized]
    slots = tuple(aligned(nbytes) for _, nbytes in sized)
    own = ((name, SizedPlacement(n, 0, nbytes)) for n, (name, nbytes) in enumerate(sized))
    return FrameLayout(end, tuple(placements), slots, tuple(own))


def _aligned(buffer: Buffer) -> int:
    return -(-buffer.nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
