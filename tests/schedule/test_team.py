"""Teams of units: where tasks go, which waits they need, and that the programs are right."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.models import CORE, build
from stretto.device.costs import CostModel
from stretto.device.expr import Const, Index, Reg, Var
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Run, Signal, Wait
from stretto.device.regions import Body
from stretto.device.text import parse_program, print_program
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq, Tree, leaves
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.frontends.python import capture
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.types import DType
from stretto.lowering.lower_program import lower
from stretto.machines.cpu.select import select
from stretto.machines.emulator.run import Emulator
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from stretto.schedule.footprint import UnitTasks
from stretto.schedule.policies.team import deal
from stretto.schedule.scheduler import schedule, schedule_with_report
from tests.backends import SPREAD, Built, assert_close
from tests.schedule.random_trees import Generator, random_memory, random_tree
from tests.schedule.sequential import run_tree
from tests.schedule.test_random import wait_places, without
from tests.schedule.trees import EAGER, at, buffer, condition, load, map_kernel, number
from tests.schedule.trees import program as tree_of

TEAM = CostModel(wait_seconds=1e-6, uniform=True)
WIDTH = 64
X = buffer("x", WIDTH, kind="input", slot=0)
OUT = buffer("out", WIDTH, kind="output", slot=1)
A, B, C = (buffer(name, WIDTH) for name in "abc")


def copy(name: str, out, source, tile: int = 4, *, seconds: float = 1e-5) -> Kernel:  # pyright: ignore
    return map_kernel(name, out, load(source, Var(0)), tile, seconds=seconds)


def gather(name: str, out, source, tile: int = 4, *, seconds: float = 1e-5) -> Kernel:  # pyright: ignore
    """Every task reads all of `source`."""
    value = load(source, Var(1))
    return map_kernel(name, out, value, tile, seconds=seconds, reduce=(WIDTH,), combine="max")


def made(body: Node[Body], units: int, *locals, costs: CostModel = TEAM) -> DeviceProgram:  # pyright: ignore
    program = schedule(tree_of(body, locals, (X, OUT)), units, costs)
    verify(program)
    return program


def units_of(program: DeviceProgram, kernel: str) -> dict[int, Run]:
    return {
        unit: item
        for leaf in leaves(program.tree.main.body)
        for unit, items in enumerate(leaf.units)
        for item in items
        if isinstance(item, Run) and item.kernel == kernel
    }


def waits_of(program: DeviceProgram, unit: int) -> list[Wait]:
    every = [leaf.units[unit] for leaf in leaves(program.tree.main.body)]
    return [item for items in every for item in items if isinstance(item, Wait)]


def result(program: DeviceProgram, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    out = torch.zeros(WIDTH)
    Emulator(program, seed).run({0: x, 1: out})
    return out


# ---- where tasks go ------------------------------------------------------------------------------


def test_tasks_are_dealt() -> None:
    assert deal(5, 0, 4) == (
        UnitTasks(0, 0, 2, 4),
        UnitTasks(1, 1, 1, 4),
        UnitTasks(2, 2, 1, 4),
        UnitTasks(3, 3, 1, 4),
    )
    assert deal(2, 3, 4) == (UnitTasks(0, 1, 1, 4), UnitTasks(3, 0, 1, 4))


def test_kernels_of_a_level_stand_side_by_side() -> None:
    kernels = (copy("a", A, X), copy("b", B, X), gather("last", OUT, A))
    program = made(Leaf(kernels), 40, A, B)
    assert sorted(units_of(program, "a")) == list(range(16))
    assert sorted(units_of(program, "b")) == list(range(16, 32))
    # 8 units are left: what fits without wrapping around starts again at unit 0.
    assert sorted(units_of(program, "last")) == list(range(16))


def test_tasks_stay_with_what_they_read() -> None:
    program = made(Leaf((copy("a", A, X), copy("b", B, A), copy("c", OUT, B))), 20, A, B)
    assert not [unit for unit in range(20) if waits_of(program, unit)]
    assert units_of(program, "a").keys() == units_of(program, "c").keys()


def test_one_task_goes_where_its_input_is() -> None:
    one = copy("one", A, X, WIDTH)
    program = made(Leaf((copy("c", C, X), one, copy("two", OUT, A, WIDTH))), 20, A, C)
    assert units_of(program, "one").keys() == units_of(program, "two").keys() == {16}
    assert not waits_of(program, 16)


def test_a_small_kernel_is_not_split() -> None:
    one = copy("one", A, X, WIDTH)
    program = made(Leaf((one, copy("small", OUT, A, seconds=1e-8))), 20, A)
    assert units_of(program, "small") == {0: Run("small", 0, 16)}


# ---- waits ---------------------------------------------------------------------------------------


def test_one_wait_for_all_producers() -> None:
    program = made(Leaf((copy("a", A, X), gather("b", OUT, A))), 40, A)
    assert [waits_of(program, unit) for unit in (16, 31)] == [[Wait(0, 1, 16)]] * 2
    (leaf,) = leaves(program.tree.main.body)
    signals = [unit for unit in range(40) if Signal(1) in leaf.units[unit]]
    # Units 0 to 15 have nothing more to do: the end of the leaf publishes for them.
    assert signals == []
    assert result(program, torch.arange(64.0)).eq(63).all()


def test_a_loop_waits_twice_in_an_iteration() -> None:
    """An LSTM's pattern: all tasks read the vector that one task wrote."""
    step = Leaf((gather("wide", B, A), copy("narrow", C, B, WIDTH)))
    turning = For(Reg("i"), number(0), number(6), 1, step, ((A, C),))
    body = Seq((Leaf((copy("start", A, X),)), turning, Leaf((copy("end", OUT, A),))))
    program = made(body, 132, A, B, C)
    (narrow,) = units_of(program, "narrow")
    _, inside, _ = leaves(program.tree.main.body)
    counts = [sum(isinstance(item, Wait) for item in items) for items in inside.units]
    assert max(counts) == 1
    assert inside.units[15] == (Wait(narrow, 0), Run("wide", 15, 1, 132))
    assert inside.units[narrow][-2:] == (
        Wait(1 if narrow == 0 else 0, 1, 15 if narrow in (0, 15) else 16),
        Run("narrow", 0, 1),
    )
    assert result(program, torch.arange(64.0)).eq(63).all()


def test_a_loop_does_not_wait_for_what_was_before_it() -> None:
    turning = For(Reg("i"), number(0), number(3), 1, Leaf((gather("again", B, A),)))
    body = Seq((Leaf((copy("start", A, X),)), turning, Leaf((copy("end", OUT, B),))))
    program = made(body, 16, A, B)
    before, inside, _ = leaves(program.tree.main.body)
    assert all(isinstance(items[-1], Wait) for items in before.units)
    assert not any(isinstance(item, Wait) for items in inside.units for item in items)


def test_waits_that_a_body_makes_are_not_made_before_it() -> None:
    turning = For(Reg("i"), number(0), number(6), 1, Leaf((gather("step", B, A),)), ((A, B),))
    body = Seq((Leaf((copy("start", A, X),)), turning, Leaf((copy("end", OUT, A),))))
    program = made(body, 16, A, B)
    before, inside, _ = leaves(program.tree.main.body)
    assert not any(isinstance(item, Wait) for items in before.units for item in items)
    assert {items[0] for items in inside.units} == {Wait(0, 0, 16)}
    assert result(program, torch.arange(64.0)).eq(63).all()


@pytest.mark.whole
def test_a_missing_wait_is_found() -> None:
    """The verifier rejects the program, or the wait was redundant: then no run finds a race."""
    found = 0
    for seed in range(6):
        program = schedule(random_tree(seed), 7, TEAM)
        places = wait_places(program)
        for place in random.Random(seed).sample(places, min(8, len(places))):
            broken = without(program, place)
            try:
                verify(broken)
            except VerifyError:
                found += 1
            else:
                Emulator(broken, seed).run(random_memory(seed))
    assert found > 10


# ---- programs are right --------------------------------------------------------------------------


def check(tree: Tree[Body], units: int, seed: int, costs: CostModel) -> None:
    program = schedule(tree, units, costs)
    assert program.units == units
    verify(program)
    assert parse_program(print_program(program)) == program
    expected, memory = random_memory(seed), random_memory(seed)
    run_tree(tree, expected)
    Emulator(program, seed).run(memory)
    for slot, tensor in expected.items():
        torch.testing.assert_close(memory[slot], tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.whole
@given(st.integers(0, 100_000), st.sampled_from([1, 2, 5, 16]), st.sampled_from([0.0, 1e-6]))
@settings(max_examples=60)
def test_random_trees(seed: int, units: int, wait_seconds: float) -> None:
    check(random_tree(seed), units, seed, replace(EAGER, uniform=True, wait_seconds=wait_seconds))


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, 2])
def test_random_trees_on_a_whole_gpu(seed: int) -> None:
    check(random_tree(seed), 132, seed, TEAM)


@pytest.mark.whole
@given(st.integers(0, 100_000))
@settings(max_examples=12)
def test_random_trees_verify_on_a_whole_gpu(seed: int) -> None:
    verify(schedule(random_tree(seed), 132, TEAM))


def recursion_in_a_loop(seed: int) -> Tree[Body]:
    """for ...: if ...: for ...: f(...)"""
    generator = Generator(random.Random(seed))
    generator.recursive = True
    functions = [generator.callee()]
    generator.locals = []
    ready = [generator.x, generator.w]
    first = generator.straight(ready)
    calls = generator.recursion(ready, 0)
    assert isinstance(calls, Call)
    inner = For(Reg("j"), number(0), number(seed % 3), 1, calls)
    flag = Reg("flag", DType.BOOL)
    test = Leaf((Let(flag, condition("gt", at(Reg("i")), number(0))),))
    fill = Leaf((map_kernel("fill", ready[-1], Const(1.0, DType.F32), 5),))
    outer = For(Reg("i"), number(0), number(2), 1, Seq((test, If(flag, inner, Seq(())))))
    last = Leaf((generator.kernel(generator.out, ready),))
    main = Seq((first, fill, outer, last))
    tree = tree_of(main, tuple(generator.locals), ())
    externals = (generator.x, generator.w, generator.items, generator.out)
    return Tree((*tree.functions, *functions), externals)


@pytest.mark.parametrize("units", [1, 2, 5, 16])
def test_recursion_in_a_loop_in_a_branch(units: int) -> None:
    for seed in range(4):
        check(recursion_in_a_loop(seed), units, seed, TEAM)


@pytest.mark.parametrize("units", [1, 2, 5, 16])
@pytest.mark.parametrize("trips", [0, 1, 3])
def test_loops_that_may_not_run(units: int, trips: int) -> None:
    n = Reg("n")
    inner = For(Reg("j"), number(0), at(n), 1, Leaf((gather("b", B, A), copy("a", A, B))))
    outer = For(Reg("i"), number(0), at(n), 1, Seq((inner, Leaf((copy("c", A, X),)))))
    start = Leaf((Let(n, number(trips)), copy("start", A, X), copy("fill", B, X)))
    program = made(Seq((start, outer, Leaf((gather("end", OUT, B),)))), units, A, B)
    for seed in range(3):
        assert result(program, torch.arange(64.0), seed).eq(63).all()


@pytest.mark.parametrize("units", [1, 2, 5, 16, 132])
def test_dynamic_grids(units: int) -> None:
    n = Reg("n")
    grow = copy("grow", A, X)
    grow = replace(grow, grid=(replace(grow.grid[0], extent=n),))
    empty = map_kernel("none", buffer("e", 0), Const(0.0, DType.F32), 1)
    body = Leaf((Let(n, number(WIDTH)), grow, empty, gather("last", OUT, A)))
    program = made(body, units, A, buffer("e", 0))
    assert units_of(program, "grow")[units - 1] == Run("grow", units - 1, None, units)
    assert not units_of(program, "none")
    assert result(program, torch.arange(64.0)).eq(63).all()


def test_a_branch_reads_memory_on_every_unit() -> None:
    flag, zero = Reg("flag", DType.BOOL), Const(0.0, DType.F32)
    test = Let(flag, condition("gt", load(A, Index.of(3)), zero))
    arms = Leaf((gather("then", B, A),)), Leaf((copy("else", B, A, 8),))
    body = Seq((Leaf((copy("a", A, X), test)), If(flag, *arms), Leaf((copy("o", OUT, B, 16),))))
    program = made(body, 16, A, B)
    start, *_ = leaves(program.tree.main.body)
    # Unit 0 wrote what the test reads.
    assert [Wait(0, 1) in items for items in start.units] == [False] + [True] * 15
    for x in (torch.arange(64.0), -torch.arange(64.0)):
        torch.testing.assert_close(result(program, x), x.max().repeat(64) if x[3] > 0 else x)


# ---- who is scheduled as a team ------------------------------------------------------------------


def test_a_team_runs_whatever_it_gains() -> None:
    tree = tree_of(Leaf((copy("tiny", OUT, X, seconds=1e-9),)), (), (X, OUT))
    for units in (1, 2, 5, 132):
        assert schedule(tree, units, TEAM).units == units
    assert schedule(tree, 132).units == 1


def test_buffers_share_no_memory() -> None:
    kernels = copy("a", A, X), copy("b", B, A), copy("c", C, B), copy("o", OUT, C)
    tree = tree_of(Leaf(kernels), (A, B, C), (X, OUT))
    _, report = schedule_with_report(tree, 16, replace(TEAM, share_bytes=0))
    assert report.frame_bytes == report.separate_bytes == 3 * 256


def test_many_units_are_a_team() -> None:
    """Dealt tasks have the number of units as their stride."""
    tree = tree_of(Leaf((copy("a", OUT, X),)), (), (X, OUT))
    assert units_of(schedule(tree, 9, EAGER), "a")[0] == Run("a", 0, 2, 9)
    assert units_of(schedule(tree, 8, EAGER), "a")[0] == Run("a", 0, 2)


# ---- other machines -----------------------------------------------------------------------------


def test_printed_code_waits_for_several_units() -> None:
    model, inputs = build("lstm", "small")
    program = optimized(model, inputs)
    selected = select(lower(program), 3, Options().debug.fuse, SPREAD)
    device = schedule(selected.tree, 3, TEAM)
    verify(device)
    assert any(item.count > 1 for unit in range(3) for item in waits_of(device, unit))
    made = Built(selected.interface, device)
    tensors = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
    assert_close(made.cpu()(tensors), run(program, tensors))


def optimized(model: Any, inputs: Any) -> Program:
    return run_passes(capture(model, inputs, {}, Options()).program, pipeline())


# ---- the zoo -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORE)
def test_the_zoo_on_a_whole_gpu(name: str) -> None:
    model, inputs = build(name, "small")
    selected = select(lower(optimized(model, inputs)), 132, Options().debug.fuse)
    device = schedule(selected.tree, 132, TEAM)
    assert device.units == 132
    verify(device)
