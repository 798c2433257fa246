"""What a control node says of itself, and that few files know the kinds of nodes one by one."""

from __future__ import annotations

import re
from pathlib import Path

from stretto.device.expr import Access, Const, Index, Position, Reg
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Seq,
    While,
    assigns,
    children,
    inputs,
    iterations,
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
        "lowering/control.py",
        "machines/control.py",
        "machines/cuda/graphs/record.py",
    }
