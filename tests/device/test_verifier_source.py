"""Rules of the verifier about a program and its source, each broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stretto.device.expr import Reg
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.regions import Body
from stretto.device.tree import Check, For, If, Leaf, Let, Node, Seq, Tree
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.ir.types import DType
from tests.device.test_verifier_memory import N, listed, push
from tests.schedule.programs import NEXT, NOW, OUT, A, B, T, X, device, kernel, leaf, with_body
from tests.schedule.trees import at, call, condition, function, load, map_kernel, number, program

FIRST, SECOND, THIRD = kernel("first", A, X), kernel("second", B, X), kernel("third", OUT, A)
FLAG = Reg("flag", DType.BOOL)


def source(*items: object) -> Tree[Body]:
    return program(Leaf(tuple(items)), (A, B), (X, OUT))  # pyright: ignore[reportArgumentType]


def runs(*names: str) -> tuple[Item, ...]:
    return tuple(Run(name, 0, 2) for name in names)


def on_one_unit(*items: Item) -> DeviceProgram:
    return device(leaf(1, items), FIRST, SECOND, THIRD, units=1)


def rejected(made: DeviceProgram, tree: Tree[Body], reason: str) -> None:
    verify(made)
    with pytest.raises(VerifyError, match=reason):
        verify(made, tree)


def test_independent_kernels_may_change_places() -> None:
    tree = source(FIRST, SECOND, THIRD)
    verify(on_one_unit(*runs("first", "second", "third")), tree)
    verify(on_one_unit(*runs("second", "first", "third")), tree)


def test_every_kernel_of_the_source_runs() -> None:
    tree = source(FIRST, SECOND, THIRD)
    rejected(on_one_unit(*runs("first", "third")), tree, "a leaf does not run kernel second")
    rejected(on_one_unit(*runs("first", "second", "third")), source(FIRST, THIRD), "runs kernel s")


def test_kernels_are_those_of_the_source() -> None:
    other = kernel("first", A, X, mirrored=False)
    made = on_one_unit(*runs("first", "second", "third"))
    rejected(made, source(other, SECOND, THIRD), "kernel first is not that of the source")


def test_accesses_keep_their_order_on_one_unit() -> None:
    again = map_kernel("again", A, call("tanh", load(X, 0)), 4)
    tree = program(Leaf((FIRST, again, THIRD)), (A, B), (X, OUT))
    kernels = FIRST, again, THIRD
    verify(device(leaf(1, runs("first", "again", "third")), *kernels, units=1), tree)
    turned = device(leaf(1, runs("again", "first", "third")), *kernels, units=1)
    rejected(turned, tree, "kernel again accesses a before kernel first, which comes first")


def test_accesses_keep_their_order_between_units() -> None:
    """The units order the kernels, but the other way round."""
    again = map_kernel("again", A, call("tanh", load(X, 0)), 4)
    tree = program(Leaf((FIRST, again)), (A, B), (X, OUT))

    def ordered(one: str, other: str) -> DeviceProgram:
        after = (Wait(0, 1), *runs(other))
        return device(leaf(2, (*runs(one), Signal(1)), after), FIRST, again)

    verify(ordered("first", "again"), tree)
    rejected(ordered("again", "first"), tree, "race on a: nothing orders")


def test_a_push_stays_before_the_length_grows() -> None:
    grow = Let(N, call("add", at(N), number(1)))
    made = listed(offsets={})
    last = next(k for k in made.kernels if k.name == "last")
    tree = replace(
        program(Leaf((Let(N, number(0)), push(), grow, last)), made.tree.main.locals, (X, OUT))
    )
    start = Let(N, number(0))
    verify(with_body(made, leaf(1, (start, Run("push", 0, 2), grow, Run("last", 0, 2)))), tree)
    moved = with_body(made, leaf(1, (start, grow, Run("push", 0, 2), Run("last", 0, 2))))
    rejected(moved, tree, "kernel push reads register n before or after an assignment")


def test_a_kernel_stays_behind_the_checks_it_relies_on() -> None:
    check = Check(condition("lt", number(0), number(1)), "index")
    tree = source(check, FIRST, THIRD)
    verify(on_one_unit(check, *runs("first", "third")), tree)
    verify(on_one_unit(*runs("first"), check, *runs("third")), source(FIRST, check, THIRD))
    rejected(on_one_unit(*runs("first"), check, *runs("third")), tree, "before a check that it may")


def test_statements_are_those_of_the_source() -> None:
    one, two = Let(N, number(1)), Let(N, number(2))
    verify(on_one_unit(one, two), source(one, two))
    rejected(on_one_unit(two, one), source(one, two), "the register statements of a leaf")


# Control

STEP = kernel("step", NEXT, NOW)
START, END = kernel("start", NOW, X), kernel("end", OUT, NOW)


def turning(
    trips: int = 3, rotate: tuple[tuple[object, object], ...] = ((NOW, NEXT),), **fields: object
) -> DeviceProgram:
    inside = leaf(1, runs("step"))
    made = For(T, number(0), number(trips), 1, inside, rotate)  # pyright: ignore[reportArgumentType]
    made = replace(made, **fields)  # pyright: ignore[reportArgumentType]
    body = Seq((leaf(1, runs("start")), made, leaf(1, runs("end"))))
    return device(body, START, STEP, END, units=1, locals=(NOW, NEXT))


def test_loops_are_those_of_the_source() -> None:
    loop: Node[Body] = For(T, number(0), number(3), 1, Leaf((STEP,)), ((NOW, NEXT),))
    tree = program(Seq((Leaf((START,)), loop, Leaf((END,)))), (NOW, NEXT), (X, OUT))
    verify(turning(), tree)
    rejected(turning(4), tree, "a For node is not that of the source")
    rejected(turning(rotate=()), tree, "a For node is not that of the source")
    rejected(turning(step=2), tree, "a For node is not that of the source")
    body = turning().tree.main.body
    assert isinstance(body, Seq)
    dropped = with_body(turning(), Seq(body.children[:1] + body.children[2:]))
    rejected(dropped, tree, "has a Leaf node where its source has a For node")
    rejected(with_body(turning(), Seq(body.children[:2])), tree, "more or fewer control nodes")


def branch(change: Callable[[If[Schedule]], Node[Schedule]]) -> DeviceProgram:
    choose = leaf(1, (Let(FLAG, condition("lt", number(0), number(1))),))
    made = If(FLAG, leaf(1, runs("first")), leaf(1, runs("second")))
    return device(Seq((choose, change(made))), FIRST, SECOND, units=1)


def test_branches_are_those_of_the_source() -> None:
    choose = Leaf((Let(FLAG, condition("lt", number(0), number(1))),))
    tree = program(Seq((choose, If(FLAG, Leaf((FIRST,)), Leaf((SECOND,))))), (A, B), (X, OUT))
    verify(branch(lambda made: made), tree)
    swapped = branch(lambda made: replace(made, then=made.orelse, orelse=made.then))
    rejected(swapped, tree, "a leaf (does not run|runs) kernel first")
    rejected(branch(lambda made: made.then), tree, "has a Leaf node where its source has a If")
    rejected(branch(lambda made: replace(made, then=Seq(()))), tree, "more or fewer control nodes")


def test_declarations_are_those_of_the_source() -> None:
    made = on_one_unit(*runs("first", "second", "third"))
    tree = source(FIRST, SECOND, THIRD)
    fewer = replace(tree, functions=(replace(tree.main, locals=(A,)),))
    rejected(made, fewer, "the locals of function main are not those of the source")
    rejected(made, Tree(tree.functions, (X,)), "the external buffers are not those of the source")
    more = Tree((*tree.functions, function("f", Seq(()))), tree.externals)
    rejected(made, more, "the functions are not those of the source")


def test_waits_may_stand_anywhere() -> None:
    made = on_one_unit(*runs("first", "second", "third"))
    padded = Seq((leaf(0, ()), made.tree.main.body, leaf(0, ())))
    verify(with_body(made, padded), source(FIRST, SECOND, THIRD))
