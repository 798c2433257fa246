"""What a control node says of itself, how a tree is gone through, and that few files know the
kinds of nodes one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stretto.device.expr import Access, Const, Index, Position, Reg
from stretto.device.tree import (
    Call,
    Conditional,
    Execution,
    For,
    If,
    Leaf,
    Node,
    Rotation,
    Seq,
    While,
    assigns,
    children,
    flattened,
    inputs,
    is_empty,
    iterations,
    joined,
    reads,
    rebuilt,
    rotating,
    title,
    with_inputs,
)
from stretto.ir.types import DType
from tests.schedule.programs import A, B, X

SOURCE = Path(__file__).parents[2] / "src" / "stretto"
N, AT, GO = Reg("n"), Reg("i"), Reg("go", DType.BOOL)
END = Position(Index.of(N))
LOOP: For[int] = For(AT, Const(0, DType.I64), END, 1, Leaf(1), ((A, B),))
AGAIN: While[int] = While(Leaf(1), GO, Leaf(2))
EITHER: If[int] = If(GO, Leaf(1), Leaf(2))
CALL: Call[int] = Call("f", ((AT, END),), ((A, Access(X, (8,), (Index.of(N),))),), ((N, AT),))
DEPTH = 5000
NODES: tuple[Node[int], ...] = (LOOP, AGAIN, EITHER, CALL, Leaf(3), Seq((LOOP,)))


def test_what_nodes_say() -> None:
    assert [title(node) for node in NODES] == [
        "for i",
        "while go",
        "if go",
        "call f",
        "leaf",
        "seq",
    ]
    assert [iterations(node) for node in NODES] == [None, None, 1, 1, 1, 1]
    assert [reads(node) for node in NODES] == [{N}, {GO}, {GO}, {N}, set(), set()]
    assert [assigns(node) for node in NODES] == [(AT,), (), (), (N,), (), ()]
    assert [rotating(node) for node in NODES] == [{A, B}, set(), set(), set(), set(), {A, B}]


def test_nodes_are_rebuilt_of_their_parts() -> None:
    for node in NODES:
        assert with_inputs(node, lambda value: value, lambda access: access) == node
        if children(node):
            assert rebuilt(node, children(node)) == node


def test_inputs_are_changed() -> None:
    zero = Const(0, DType.I64)
    assert inputs(with_inputs(LOOP, lambda _: zero, lambda access: access)) == (zero, zero)
    changed = with_inputs(CALL, lambda _: zero, lambda access: Access(X, (8,), (Index(),)))
    assert inputs(changed) == (zero, Position(Index()))


class Counted(Execution[int, int]):
    """Every loop has two iterations, conditions hold, and `f` calls itself. The state is the depth
    of calls."""

    body: Node[int] = Seq((If(GO, CALL, Leaf(0)), Leaf(9)))
    swapped = 0

    def trips(self, node: For[int], state: int) -> Iterator[None]:
        yield from (None, None)

    def holds(self, node: Conditional[int], state: int, done: int) -> bool:
        return done < 2

    def arms(self, node: If[int], state: int) -> tuple[Node[int]]:
        return (node.then if state < DEPTH else node.orelse,)

    def call(self, node: Call[int], state: int) -> Iterator[tuple[Node[int], int]]:
        yield self.body, state + 1

    def rotate(self, pairs: Rotation, state: int) -> None:
        self.swapped += len(pairs)


def test_a_run_reaches_leaves_in_order() -> None:
    run = Counted()
    found = [(leaf.body, depth) for leaf, depth in run.leaves(Seq((LOOP, AGAIN, Leaf(3))), 0)]
    assert found == [(body, 0) for body in (1, 1, 1, 2, 1, 2, 1, 3)]
    assert run.swapped == 2


def test_calls_are_nested_deeper_than_the_stack_of_python() -> None:
    found = [(leaf.body, depth) for leaf, depth in Counted().leaves(CALL, 0)]
    assert found == [(0, DEPTH), *((9, depth) for depth in range(DEPTH, 0, -1))]


def test_sequences_are_flattened() -> None:
    inner = If(GO, Seq((Leaf(1), Seq(()))), Leaf(2))
    node: Node[int] = Seq((Seq((Leaf(0), inner)), LOOP))
    assert list(flattened(node)) == [Leaf(0), inner, LOOP]
    opened = flattened(node, lambda node: isinstance(node, If))
    assert list(opened) == [Leaf(0), Leaf(1), Leaf(2), LOOP]
    assert is_empty(Seq((Seq(()), Seq(()))))
    assert not is_empty(node)


def test_adjacent_leaves_are_joined() -> None:
    nodes: tuple[Node[int], ...] = (Leaf(1), Seq((Leaf(2), LOOP)), Leaf(0), Leaf(4))
    assert joined(nodes) == Seq((Leaf(1), Leaf(2), LOOP, Leaf(0), Leaf(4)))
    assert joined(nodes, lambda a, b: a + b) == Seq((Leaf(3), LOOP, Leaf(4)))
    assert joined((Leaf(0), Leaf(4)), is_nothing=lambda body: not body) == Leaf(4)


def test_few_files_know_a_while_loop() -> None:
    """Those that CONTRIBUTING.md names; tables may show more of the kinds that they know."""
    tables = {"machines/cuda/describe.py"}
    files = {
        str(path.relative_to(SOURCE))
        for folder in ("device", "kernels", "lowering", "machines", "runtime", "schedule", "tools")
        for path in (SOURCE / folder).rglob("*.py")
        if re.search(
            r"^from stretto\.device\.tree import \(?[^)]*?\bWhile\b", path.read_text(), re.M
        )
    }
    assert files - tables <= {
        "device/tree.py",
        "device/flow.py",
        "device/syntax.py",
        "lowering/lower_control.py",
        "machines/control_printer.py",
        "machines/cuda/graphs/record.py",
    }


def test_few_files_go_through_sequences_themselves() -> None:
    """Others use `Execution`, `flattened` or `walk`."""
    pattern = re.compile(r"case (\w+\.)?Seq\(")
    paths = (path for path in SOURCE.rglob("*.py") if pattern.search(path.read_text()))
    assert {str(path.relative_to(SOURCE)) for path in paths} <= {
        "device/tree.py",
        "device/flow.py",
        "machines/control_printer.py",
        "machines/cuda/graphs/record.py",
    }
