"""Programs of levels: sizes that data decide cut into parts, and pools changed where they lie."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import stretto
from stretto.call.compiler import build
from stretto.device.operator import Kernel, Operator
from stretto.device.program import Wait
from stretto.device.regions import Body
from stretto.device.text import parse_program, print_program
from stretto.device.tree import If, Tree, leaves, walk
from stretto.device.verifier import verify
from stretto.errors import CodegenError, VerifyError
from stretto.interp.interpreter import run
from stretto.lowering.lower_program import lower
from stretto.lowering.targets import NO_UPDATES, InputUpdates
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.machines.registry import find_machine
from stretto.options import Debug, Options
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD, assert_close
from tests.e2e.levels import UPDATES, inputs, program
from tests.support import program_of

SIZES = [[], [0], [1], [3, 0, 1, 2], [7, 40, 13, 5, 2, 1, 1, 0, 9], [1] * 12]


@pytest.mark.parametrize(
    ("backend", "threads"), [("interpreter", 1), ("emulator", 2), ("cpu", 1), ("cpu", 3)]
)
@pytest.mark.parametrize("updates", [NO_UPDATES, UPDATES])
def test_levels(backend: str, threads: int, updates: InputUpdates) -> None:
    options = Options(threads=threads)
    made = build(program(), find_machine(backend), options, updates=updates).executable
    assert made is not None
    for seed, sizes in enumerate(SIZES):
        given = inputs(sizes, seed)
        expected = run(program(), given)
        data = [tensor.clone() for tensor in given]
        found = made(data)
        assert_close(found, expected)
        if updates.pairs:
            assert all(found[result] is data[parameter] for parameter, result in updates.pairs) or (
                backend == "emulator"
            )
            assert_close(data[2:], expected)
        else:
            assert_close(data, given)


@pytest.mark.parametrize("updates", [NO_UPDATES, UPDATES])
def test_levels_on_a_gpu(updates: InputUpdates) -> None:
    machine = find_machine("cuda-emulated")
    made = build(program(), machine, Options(units=3), updates=updates).executable
    assert made is not None
    for seed, sizes in enumerate(([], [3, 0, 1], [2, 7, 12, 5])):
        given = inputs(list(sizes), seed)
        expected = run(program(), given)
        assert_close(made([tensor.clone() for tensor in given]), expected)


@pytest.mark.parametrize("units", [2, 3, 9])
@pytest.mark.parametrize("repeatable", [False, True])
def test_any_order_of_the_units(units: int, repeatable: bool) -> None:
    """Steps of few rows have kernels of their own; with many units columns are cut, too."""
    found = select(
        lower(program(), SPREAD, replace(UPDATES, repeatable=repeatable)), units, True, SPREAD
    )
    scheduled = schedule(found.tree, units, SPREAD)
    assert scheduled.units == units
    verify(scheduled, found.tree)
    branches = [node for node in walk(scheduled.tree.main.body) if isinstance(node, If)]
    assert len(branches) == 2 + 2
    for seed in range(4):
        made = EmulatedExecutable(
            scheduled, found.interface, Options(threads=units, debug=Debug(seed=seed))
        )
        given = inputs([5, 9, 2, 30, 1, 4, 0, 40, 3], seed)
        expected = run(program(), given)
        assert_close(made(given), expected)


def test_few_rows_are_columns_of_all_units() -> None:
    found = select(lower(program(), SPREAD, UPDATES), 2, True, SPREAD)
    cuts = {
        kernel.grid
        for body in leaves(found.tree.main.body)
        for kernel in body
        if isinstance(kernel, Kernel)
    }
    assert {grid[0].parts for grid in cuts} == {1, 2}
    alone = select(lower(program(), SPREAD, UPDATES), 1, True, SPREAD)
    assert not any(
        "<=" in node.condition.name for node in walk(alone.tree.main.body) if isinstance(node, If)
    )
    plain = select(lower(program(), updates=UPDATES), 2)
    assert not any(
        "<=" in node.condition.name for node in walk(plain.tree.main.body) if isinstance(node, If)
    )


def selected(units: int) -> Tree[Body]:
    return select(lower(program(), SPREAD, UPDATES), units, True, SPREAD).tree


def text_of(units: int) -> str:
    return print_program(schedule(selected(units), units, SPREAD))


def test_pools_are_not_copied() -> None:
    lowered = lower(program(), updates=UPDATES)
    made = [i for f in lowered.tree.functions for b in leaves(f.body) for i in b]
    operators = [item for item in made if isinstance(item, Operator)]
    pools = {buffer for buffer in lowered.tree.externals if buffer.kind == "updated"}
    assert {item.out.buffer for item in operators if item.name == "update"} == pools
    assert not [o for o in operators if o.name != "update" and o.out.buffer in pools]


def test_a_unit_keeps_its_rows() -> None:
    """Each arm waits where its rows may be another unit's, and before these are overwritten."""
    made = schedule(selected(2), 2, SPREAD)
    verify(made, selected(2))
    kernels = {kernel.name: kernel for kernel in made.kernels}
    for leaf in leaves(made.tree.main.body):
        waits = [item for items in leaf.units for item in items if isinstance(item, Wait)]
        assert len(waits) <= 2 * 3
    cut = [kernel for kernel in kernels.values() if kernel.grid and kernel.grid[0].parts]
    assert cut and all(kernel.grid[0].is_cut_by_register for kernel in cut)


def test_every_wait_is_needed() -> None:
    lines = text_of(2).splitlines()
    verify(parse_program("\n".join(lines) + "\n", TEMPLATES))
    waits = [number for number, line in enumerate(lines) if line.strip().startswith("wait")]
    assert waits
    for number in waits:
        mutant = "\n".join([*lines[:number], *lines[number + 1 :]])
        with pytest.raises(VerifyError):
            verify(parse_program(mutant + "\n", TEMPLATES))


def test_parts_of_one_execution_are_not_those_of_the_next() -> None:
    """What another unit wrote in the last iteration lies in other rows than its part of now."""
    text = print_program(schedule(carried(), 2, SPREAD))
    verify(parse_program(text, TEMPLATES))
    assert " in 2" in text
    mutants = list(re.finditer(r"\n *wait [01] step [0-9]+", text))
    assert mutants
    for found in mutants:
        mutant = text[: found.start()] + text[found.end() :]
        with pytest.raises(VerifyError):
            verify(parse_program(mutant, TEMPLATES))


CARRIED = """
func @main[0 <= c, 0 <= n, 0 <= t](%sizes: i64[t], %x: f32[c, 40]) -> (f32[c, 40]) {
  %y = for %i in (0, t, 1) carry (%a = %x) {
    %count = aten.select.int(%sizes, 0, %i) : i64[]
    %m = size n <= c = %count : i64[]
    %part = stretto.narrow(%a, 0, 0, n) : f32[n, 40]
    %soft = aten._softmax.default(%part, 1, False) : f32[n, 40]
    %b = stretto.narrow_scatter(%a, %soft, 0, 0) : f32[c, 40]
    yield %b
  } : f32[c, 40]
  return %y
}
"""


def carried() -> Tree[Body]:
    return select(
        lower(program_of(CARRIED), SPREAD, InputUpdates(((1, 0),))), 2, False, SPREAD
    ).tree


def test_a_register_is_not_assigned_behind_what_it_cuts() -> None:
    text = print_program(schedule(carried(), 2, SPREAD))
    (let,) = set(re.findall(r"let \$main\.n\.[0-9]+ = .*", text))
    (kernel, *_) = re.findall(r"run (softmax)\b", text)
    mutant = re.sub(rf"( *)(run {kernel} [0-9]+ .*)\n", rf"\1\2\n\1{re.escape(let)}\n", text)
    mutant = mutant.replace("\\", "")
    with pytest.raises(VerifyError, match="is assigned after kernel"):
        verify(parse_program(mutant, TEMPLATES))


MIXED = """
func @main[0 <= n](%x: f32[n, 4], %w: f32[4, 4]) -> (f32[n, 4], f32[n, 4], f32[n, 4]) {
  %a = aten.add.Tensor(%x, 1.0) : f32[n, 4]
  %b = aten.flip.default(%x, (0,)) : f32[n, 4]
  %c = aten.mm.default(%b, %w) : f32[n, 4]
  %d = aten.flip.default(%c, (0, 1)) : f32[n, 4]
  return %d, %a, %x
}
"""


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("result", [0, 1])
def test_other_results_have_what_was_there_before(backend: str, result: int) -> None:
    updates = InputUpdates(((0, result),))
    made = build(program_of(MIXED), find_machine(backend), Options(threads=2), updates=updates)
    assert made.executable is not None
    for n in (0, 1, 5, 64):
        data = [torch.randn(n, 4), torch.randn(4, 4)]
        expected = [t.clone() for t in run(program_of(MIXED), data) if isinstance(t, torch.Tensor)]
        assert_close(made.executable(data), expected)
        assert_close(data[:1], [expected[result]])


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        (((0, 0), (0, 1)), "named twice"),
        (((0, 1), (1, 1)), "named twice"),
        (((0, 3),), "no parameter 0 or no result 3"),
        (((1, 0),), "cannot lie in the memory of parameter 1"),
    ],
)
def test_updates_that_cannot_be(updates: tuple[tuple[int, int], ...], reason: str) -> None:
    with pytest.raises(CodegenError, match=reason):
        lower(program_of(MIXED), updates=InputUpdates(updates))


CALLED = """
func @twice(%x: f32[4]) -> (f32[4]) {
  %y = aten.add.Tensor(%x, %x) : f32[4]
  return %y
}
func @main(%x: f32[4]) -> (f32[4]) {
  %y = call @twice(%x) : f32[4]
  return %y
}
"""


def test_what_may_begin_anew_must_be_repeatable() -> None:
    with pytest.raises(CodegenError, match="only if it is repeatable"):
        lower(program_of(CALLED), updates=InputUpdates(((0, 0),)))
    assert lower(program_of(CALLED), updates=InputUpdates(((0, 0),), repeatable=True))


@pytest.mark.parametrize("repeatable", [False, True])
def test_only_repeatable_launches_are_given_up(repeatable: bool) -> None:
    """Another process may have the core of a unit: who began to change an input must go on."""
    updates = InputUpdates(((1, 0),), repeatable)
    options = Options(threads=2)
    made = build(program_of(CARRIED), find_machine("cpu"), options, updates=updates).executable
    assert isinstance(made, CpuExecutable)
    assert made.native.interface.once is not repeatable
    plain = build(program_of(CARRIED), find_machine("cpu"), options).executable
    assert isinstance(plain, CpuExecutable) and not plain.native.interface.once


def look_up(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.where(x[rows] > 0, x[rows], x[rows.flip(0)]) * 2


@pytest.mark.parametrize("rows", [[0, -1, 3], [], [2, 9, 0], [-5, 0, 0]])
@pytest.mark.parametrize("columns", [0, 1, 33])
def test_positions_are_checked_once_per_row(rows: list[int], columns: int) -> None:
    """The row of a look-up is read before the loop over its columns, and checked there."""
    compiled = stretto.compile(look_up, backend="cpu")
    x, given = torch.randn(4, columns), torch.tensor(rows, dtype=torch.int64)
    try:
        expected = look_up(x, given)
    except IndexError:
        with pytest.raises(IndexError, match="out of bounds|out of range"):
            compiled(x, given)
        return
    torch.testing.assert_close(compiled(x, given), expected)
