"""Loops that surely have an iteration."""

from __future__ import annotations

import pytest

from stretto.device.expr import Apply, Const, Expr, Index, Position, Reg
from stretto.device.program import Item, Schedule
from stretto.device.tree import For, If, Leaf, Let, Node, Seq, While, is_loop, walk
from stretto.ir.sizes import Symbol
from stretto.ir.types import DType
from stretto.schedule.barriers import BarrierInsertion, ProgramAccesses, merged_leaves
from tests.schedule.programs import X, device
from tests.schedule.trees import at, call, condition, load, number

N, T, U = Reg("n"), Reg("t"), Reg("u")
GO, FLAG = Reg("go", DType.BOOL), Reg("flag", DType.BOOL)


def leaf(*items: Item) -> Leaf[Schedule]:
    return Leaf(Schedule((items,), 1))


def loop(
    start: Expr, stop: Expr, step: int = 1, body: Node[Schedule] | None = None
) -> For[Schedule]:
    return For(T, start, stop, step, body or leaf())


def below(limit: int) -> Node[Schedule]:
    """while n < limit: n = n + 1."""
    head = leaf(Let(GO, condition("lt", at(N), number(limit))))
    return While(head, GO, leaf(Let(N, Position(Index.of(N) + 1))))


def until_flag() -> Node[Schedule]:
    """while not flag: flag = x[0]."""
    is_set = Apply("cast", (condition("ne", at(FLAG), number(0)),), DType.BOOL)
    return While(leaf(Let(GO, call("not", is_set))), GO, leaf(Let(FLAG, load(X, 0))))


ZERO = leaf(Let(N, number(0)))
LOADED = leaf(Let(N, load(X, 0)))
SIZE = Position(Index.of(Symbol("s")))
EMPTY = Position(Index.of(Symbol("s", low=0)))
CASES: dict[str, tuple[Node[Schedule], list[bool]]] = {
    "numbers": (loop(number(0), number(3)), [True]),
    "no iteration": (loop(number(3), number(3)), [False]),
    "backwards": (loop(number(3), number(0), -1), [True]),
    "the wrong way": (loop(number(0), number(3), -1), [False]),
    "a size": (loop(number(0), SIZE), [True]),
    "a size that may be 0": (loop(number(0), EMPTY), [False]),
    "a register that is a number": (Seq((ZERO, loop(at(N), number(1)))), [True]),
    "a register that is loaded": (Seq((LOADED, loop(at(N), number(1)))), [False]),
    "a counter": (Seq((ZERO, below(3))), [True]),
    "a counter that is too large": (Seq((ZERO, below(0))), [False]),
    "a counter that nobody sets": (below(3), [False]),
    "a counter that another loop has moved": (Seq((ZERO, below(3), below(9))), [True, False]),
    "a counter that goes on": (
        Seq((ZERO, loop(number(0), number(2), body=below(3)))),
        [True, False],
    ),
    "a counter that each iteration resets": (
        loop(number(0), number(2), body=Seq((ZERO, below(3)))),
        [True, True],
    ),
    "one arm sets it": (
        Seq(
            (
                leaf(Let(GO, condition("lt", load(X, 0), Const(1, DType.F32)))),
                If(GO, ZERO, leaf()),
                below(3),
            )
        ),
        [False],
    ),
    "both arms set it": (Seq((leaf(Let(GO, load(X, 0))), If(GO, ZERO, ZERO), below(3))), [True]),
    "a bound that an outer loop counts": (
        loop(number(0), number(2), body=For(U, number(0), at(T), 1, leaf())),
        [True, False],
    ),
    "a flag": (Seq((leaf(Let(FLAG, Const(False, DType.BOOL))), until_flag())), [True]),
    "a flag that is set": (Seq((leaf(Let(FLAG, Const(True, DType.BOOL))), until_flag())), [False]),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_that_surely_have_an_iteration(name: str) -> None:
    body, expected = CASES[name]
    program = device(body)
    function = merged_leaves(program)["main"]
    analysis = BarrierInsertion(ProgramAccesses(program, {}), function)
    analysis.placed("main")
    loops = [node for node in walk(function.body) if is_loop(node)]
    assert [analysis.entered[id(node)] for node in loops] == expected
