"""Decisions of the policy, and where waits stand in control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from stretto.device.costs import CostModel
from stretto.device.expr import Access, Const, Index, Load, Reg, Var
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage, TileDim
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.regions import Body
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq, Tree, leaves, walk
from stretto.device.verifier import verify
from stretto.errors import ScheduleError
from stretto.ir.types import DType
from stretto.machines.emulator.run import Emulator
from stretto.schedule.policy import equal_blocks
from stretto.schedule.scheduler import schedule, schedule_with_report
from tests.schedule.programs import OUT, A, B, X, kernel, mixing
from tests.schedule.trees import (
    EAGER,
    F32,
    at,
    buffer,
    call,
    condition,
    function,
    load,
    map_kernel,
    number,
    program,
)

T = Reg("t")


def lstm(width: int, steps: int, tile: int) -> Tree[Body]:
    """One layer of an LSTM whose input projection `xs` is done: what its step becomes."""
    xs = buffer("xs", steps, 4 * width, kind="input", slot=0)
    w = buffer("w", 4 * width, width, kind="constant", slot=1)
    out = buffer("out", steps, width, kind="output", slot=2)
    h, next_h = buffer("h", width), buffer("next_h", width)
    c, next_c = buffer("c", width), buffer("next_c", width)
    g = buffer("g", 4, width)
    row, column = Index.of(Var(0)), Index.of(Var(1))
    product = call("mul", load(w, row * width + column, Var(2)), load(h, Var(2)))
    gates = Operator(
        "gates", (4, width), (width,), "sum", product, Access(g, g.shape, (row, column))
    )
    spans = (Span(4), Span(width, grid=0))
    first = Kernel("gates", (TileDim(width, tile),), (Stage(gates, spans),), 3e-6)

    def gate(number: int):  # pyright: ignore
        return call("add", load(g, number, Var(0)), load(xs, T, row + number * width))

    kept = call("mul", call("sigmoid", gate(0)), load(c, Var(0)))
    new = call("mul", call("sigmoid", gate(1)), call("tanh", gate(2)))
    cell = map_kernel("cell", next_c, call("add", kept, new), tile * 2, seconds=1e-7)
    shown = call("mul", call("sigmoid", gate(3)), call("tanh", load(next_c, Var(0))))
    hidden = map_kernel("hidden", next_h, shown, tile * 2, seconds=1e-7)
    push = map_kernel(
        "push", out, load(next_h, Var(0)), tile * 2, seconds=1e-8, index=(Index.of(T), row)
    )
    zero = Const(0.0, F32)
    start = Leaf((map_kernel("h0", h, zero, tile), map_kernel("c0", c, zero, tile)))
    body = Leaf((first, cell, hidden, push))
    loop = For(T, number(0), number(steps), 1, body, ((h, next_h), (c, next_c)))
    return program(Seq((start, loop)), (h, next_h, c, next_c, g), (xs, w, out))


def test_an_lstm_waits_once_per_unit_and_step() -> None:
    made = schedule(lstm(256, 100, 32), 2)
    verify(made)
    start, step = leaves(made.tree.main.body)
    assert not any(isinstance(item, Wait) for items in start.units for item in items)
    for unit, other in ((0, 1), (1, 0)):
        blocks = [("gates", 4), ("cell", 2), ("hidden", 2), ("push", 2)]
        runs = tuple(Run(name, unit * count, count) for name, count in blocks)
        assert step.units[unit] == (Wait(other, 0), *runs)
    assert step.steps == 1


@pytest.mark.parametrize("units", [1, 2, 3])
def test_an_lstm_is_right(units: int) -> None:
    width, steps = 48, 5
    made = schedule(lstm(width, steps, 8), units, EAGER)
    verify(made)
    xs, w, out = torch.randn(steps, 4 * width), torch.randn(4 * width, width) / 7, torch.zeros(240)
    Emulator(made).run({0: xs, 1: w, 2: out})
    h = c = torch.zeros(width)
    for t in range(steps):
        keep, take, value, show = (w @ h + xs[t]).view(4, width)
        c = keep.sigmoid() * c + take.sigmoid() * value.tanh()
        h = show.sigmoid() * c.tanh()
        torch.testing.assert_close(out.view(steps, width)[t], h)


def items(made: DeviceProgram) -> Iterator[tuple[int, Item]]:
    for leaf in leaves(made.tree.main.body):
        for unit, listed in enumerate(leaf.units):
            yield from ((unit, item) for item in listed)


def units_of(made: DeviceProgram, name: str) -> list[int]:
    return [u for u, item in items(made) if isinstance(item, Run) and item.kernel == name]


def waits(made: DeviceProgram) -> int:
    return sum(isinstance(item, Wait) for _, item in items(made))


def straight(*kernels: Kernel, costs: CostModel | None = None, units: int = 2) -> DeviceProgram:
    made = schedule(program(Leaf(kernels), (A, B), (X, OUT)), units, costs)
    verify(made)
    return made


def slow(made: Kernel, seconds: float = 1e-4) -> Kernel:
    return replace(made, seconds=seconds)


def whole(made: Kernel, seconds: float = 1e-4) -> Kernel:
    """As one task."""
    return replace(made, grid=(replace(made.grid[0], tile=8),), seconds=seconds)


# One unit or several


def test_a_tiny_program_uses_one_unit() -> None:
    made = straight(kernel("k", OUT, X))
    assert made.units == 1
    assert list(items(made)) == [(0, Run("k", 0, 2))]


def test_work_that_cannot_be_shared_out_uses_one_unit() -> None:
    assert straight(whole(kernel("a", A, X)), whole(kernel("b", OUT, A))).units == 1


def test_large_work_uses_all_units() -> None:
    assert straight(slow(kernel("k", OUT, X))).units == 2


def test_a_loop_of_unknown_length_counts_as_long() -> None:
    n = Reg("n")
    body = Leaf((slow(kernel("k", OUT, X), 1e-6),))
    start = Leaf((Let(n, number(3)),))
    tree = program(Seq((start, For(T, number(0), at(n), 1, body))), (), (X, OUT))
    assert schedule(tree, 2).units == 2
    assert schedule(program(body, (), (X, OUT)), 2).units == 1


def test_the_report() -> None:
    kernels = (slow(kernel("a", A, X)), slow(mixing("b", OUT, A)))
    tree = program(Leaf(kernels), (A,), (X, OUT))
    _, report = schedule_with_report(tree, 2)
    assert report.units == 2
    assert report.alone == pytest.approx(4e-4)
    assert report.seconds == pytest.approx(2e-4, rel=0.01)
    assert (report.leaves, report.waves, report.waits, report.signals) == (1, 2, 2, 2)
    assert report.frame_bytes == 64


# Which unit


def test_equal_blocks() -> None:
    parts = [(p.unit, p.first, p.count) for p in equal_blocks(5, 2)]
    assert parts == [(0, 0, 3), (1, 3, 2)]
    assert [p.unit for p in equal_blocks(2, 5)] == [0, 2]
    for tasks in range(1, 20):
        for units in range(1, 8):
            owners = [p.unit for p in equal_blocks(tasks, units) for _ in range(p.count or 0)]
            assert owners == [task * units // tasks for task in range(tasks)]


def test_consumers_stay_where_their_inputs_are() -> None:
    made = straight(slow(kernel("a", A, X)), slow(kernel("b", OUT, A, mirrored=False)))
    assert waits(made) == 0
    assert (units_of(made, "a"), units_of(made, "b")) == ([0, 1], [0, 1])


def test_independent_kernels_run_side_by_side() -> None:
    last = slow(kernel("c", OUT, A, B))
    made = straight(whole(kernel("a", A, X)), whole(kernel("b", B, X)), last)
    assert units_of(made, "a") != units_of(made, "b")
    assert waits(made) == 2


def test_the_longest_goes_first() -> None:
    """Two short kernels beside one long: the long one has a unit for itself."""
    c = buffer("c", 8)
    kernels = (
        whole(kernel("short1", A, X), 1e-4),
        whole(kernel("short2", B, X), 1e-4),
        whole(kernel("long", c, X), 2e-4),
    )
    made = schedule(program(Leaf(kernels), (A, B, c), (X, OUT)), 2)
    assert units_of(made, "short1") == units_of(made, "short2") != units_of(made, "long")


def test_consumers_follow_where_that_saves_a_wait() -> None:
    """Each half of `b` reads the other half of `a`: the units trade the halves."""
    made = straight(slow(kernel("a", A, X)), slow(kernel("b", OUT, A)))
    assert waits(made) == 0
    runs = [(unit, item.first) for unit, item in items(made) if isinstance(item, Run)]
    assert runs == [(0, 0), (0, 1), (1, 1), (1, 0)]


def test_small_work_is_not_split() -> None:
    """Its inputs are on both units, so splitting it would make both wait."""
    small = slow(mixing("small", B, A), 1e-8)
    made = straight(slow(kernel("a", A, X)), small, slow(kernel("c", OUT, B)))
    assert len(units_of(made, "small")) == 1


def test_library_calls_run_on_the_first_unit() -> None:
    sort = LibraryCall("sort", "aten.sort", (X,), (), (A,), "")
    made = straight(Kernel("sort", (), (), call=sort), slow(kernel("b", OUT, A)))
    assert units_of(made, "sort") == [0]
    assert waits(made) == 1


def test_dynamic_grids_are_strided() -> None:
    n = Reg("n")
    made = kernel("k", OUT, X)
    made = replace(made, grid=(replace(made.grid[0], extent=n),))
    tree = program(Leaf((Let(n, number(8)), made)), (), (X, OUT))
    result = schedule(tree, 3, EAGER)
    verify(result)
    runs = [item for _, item in items(result) if isinstance(item, Run)]
    assert runs == [Run("k", unit, None, 3) for unit in range(3)]


def test_empty_kernels_vanish() -> None:
    empty = map_kernel("none", buffer("e", 0), Const(0.0, F32), 1)
    made = schedule(program(Leaf((empty,)), (), (X, OUT)), 1)
    verify(made)
    assert list(items(made)) == []


def test_a_wave_closes_when_someone_waits() -> None:
    """Unit 0 runs a chain of three; unit 1 needs the first of it and must not wait for the rest."""
    c, d = buffer("c", 8), buffer("d", 8)
    kernels = (
        whole(kernel("a", A, X)),
        whole(kernel("b", B, A), 3e-4),
        whole(kernel("c", c, B), 1e-5),
        whole(kernel("d", d, A), 2e-4),
    )
    made = schedule(program(Leaf(kernels), (A, B, c, d), (X, OUT)), 2)
    verify(made)
    (leaf,) = leaves(made.tree.main.body)
    first = next(u for u in leaf.units if u[0] == Run("a", 0))
    assert first[1] == Signal(1)


# Control


def test_neighbouring_leaves_are_joined() -> None:
    tree = program(
        Seq((Leaf((kernel("a", A, X),)), Seq((Leaf(()), Leaf((kernel("b", OUT, A),)))))),
        (A,),
        (X, OUT),
    )
    assert isinstance(schedule(tree, 1).tree.main.body, Leaf)


def test_bounds_are_read_in_a_leaf() -> None:
    bound = buffer("n", 1)
    inputs = replace(bound, dtype=DType.I64, kind="input", slot=2)
    loop = For(
        T, number(0), Load(Access(inputs, (1,), (Index(),))), 1, Leaf((kernel("a", OUT, X),))
    )
    made = schedule(program(loop, (), (X, OUT, inputs)), 2, EAGER)
    verify(made)
    body = made.tree.main.body
    assert isinstance(body, Seq)
    assert isinstance(body.children[0], Leaf)
    assert isinstance(body.children[1], For)
    assert body.children[1].stop == at(Reg("control0"))


def test_a_float_argument_cannot_be_read() -> None:
    f = function("f", Seq(()), params=(Reg("v", F32),))
    start = Call("f", ((Reg("v", F32), load(X, 0)),), ())
    with pytest.raises(ScheduleError, match="reads a floating-point value"):
        schedule(Tree((function("main", start), f), (X, OUT)), 1)


def test_registers_keep_their_order() -> None:
    """n is read by a kernel, changed, and read again: on each unit in this order."""
    n = Reg("n")
    rows = buffer("rows", 2, 8, kind="list", slot=2)
    first = map_kernel("first", rows, load(X, Var(0)), 4, index=(Index.of(n), Index.of(Var(0))))
    second = replace(first, name="second")
    body = Leaf((Let(n, number(0)), first, Let(n, call("add", at(n), number(1))), second))
    made = schedule(program(body, (), (X, OUT, rows)), 2, EAGER)
    verify(made)
    for listed in next(leaves(made.tree.main.body)).units:
        kinds = [item.kernel if isinstance(item, Run) else type(item).__name__ for item in listed]
        assert kinds == ["Let", "first", "Let", "second"]


def test_waits_stand_before_a_loop_if_its_body_does_not_need_them() -> None:
    """The loop reads what was written before it: once, not in every iteration."""
    loop = For(T, number(0), number(9), 1, Leaf((slow(mixing("b", OUT, A)),)))
    tree = program(Seq((Leaf((slow(kernel("a", A, X)),)), loop)), (A,), (X, OUT))
    made = schedule(tree, 2)
    verify(made)
    before, body = leaves(made.tree.main.body)
    assert [items[-2:] for items in before.units] == [
        (Signal(1), Wait(1, 1)),
        (Signal(1), Wait(0, 1)),
    ]
    assert not any(isinstance(item, Wait) for listed in body.units for item in listed)


def test_a_branch_waits_in_the_arm_that_needs_it() -> None:
    flag = Reg("flag", DType.BOOL)
    start = Leaf((slow(kernel("a", A, X)), Let(flag, condition("lt", number(0), number(1)))))
    then, orelse = Leaf((slow(mixing("b", OUT, A)),)), Leaf((slow(kernel("c", OUT, X)),))
    made = schedule(program(Seq((start, If(flag, then, orelse))), (A,), (X, OUT)), 2)
    verify(made)
    (branch,) = [node for node in walk(made.tree.main.body) if isinstance(node, If)]
    found = [count_waits(arm) for arm in (branch.then, branch.orelse)]
    assert found == [2, 0]


def count_waits(node: Node[Schedule]) -> int:
    return sum(isinstance(i, Wait) for leaf in leaves(node) for u in leaf.units for i in u)


def test_params_of_memory_that_nobody_writes_need_no_waits() -> None:
    """A recursion that reads only inputs, in registers: no barrier anywhere."""
    p, n, go = buffer("p", 8, kind="param"), Reg("n"), Reg("go", DType.BOOL)
    test = Let(go, condition("lt", load(p, 0), load(p, 1)))
    again = Call("f", ((n, at(n)),), ((p, Access(p, p.shape, (Index(),))),))
    f = function("f", Seq((Leaf((test,)), If(go, again, Seq(())))), tensors=(p,), params=(n,))
    start = Call("f", ((n, number(3)),), ((p, Access(X, X.shape, (Index(),))),))
    made = schedule(Tree((function("main", start), f), (X, OUT)), 2, EAGER)
    verify(made)
    assert made.units == 2
    assert sum(count_waits(each.body) for each in made.tree.functions) == 0


def test_two_kernels_of_one_name() -> None:
    with pytest.raises(ScheduleError, match="two different kernels have the name k"):
        straight(kernel("k", A, X), kernel("k", OUT, A))
