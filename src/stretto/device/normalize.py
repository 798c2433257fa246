"""Brings a tree into the form that the scheduler takes.

Neighbouring leaves become one. Memory is read by leaves only: an expression of a control node that
loads from a buffer moves into a `Let` of a leaf before the node.

    for i in 0 .. load(n)  ->  leaf { let control0 = load(n) };  for i in 0 .. control0
"""

from __future__ import annotations

from stretto.device.expr import Access, Apply, Expr, Index, Position, Reg, index_loads, loads
from stretto.device.regions import Body
from stretto.device.tree import (
    Call,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    children,
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
    """The nodes in order, neighbouring leaves joined, inner sequences dissolved."""
    flat: list[BodyNode] = []
    for node in nodes:
        for item in node.children if isinstance(node, Seq) else (node,):
            last = flat[-1] if flat else None
            if isinstance(item, Leaf) and isinstance(last, Leaf):
                flat[-1] = Leaf(last.body + item.body)
            elif not (isinstance(item, Leaf) and not item.body):
                flat.append(item)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


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
        match read:
            case Leaf() | Call():
                changed = read
            case Seq(parts):
                return sequence([self.node(part) for part in parts])
            case _:
                changed = rebuilt(read, [self.node(part) for part in children(read)])
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
