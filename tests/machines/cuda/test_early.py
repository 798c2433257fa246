"""Constants that are loaded before a task may begin: the split of a kernel, and its use."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

import stretto
from stretto.device import tree
from stretto.device.expr import Buffer, Reg
from stretto.device.operator import Kernel, TileDim
from stretto.device.program import Run, Wait
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.printer.early import STATES, EarlyLoads
from stretto.machines.cuda.printer.early_kernel import shared_bytes, split_early
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.statements import python_function
from stretto.machines.terms import Term, call, literal, variable
from stretto.options import Debug, Options
from stretto.schedule.barriers import BARRIER_STEP, BarrierStep, LeafSteps
from stretto.schedule.merge import RunStep, WaitStep

X = Buffer("x", DType.F32, (256,), "input", 0)
W = Buffer("w", DType.F32, (64, 256), "constant", 1)
Y = Buffer("y", DType.F32, (64,), "local")

OK, TASK = variable("ok"), variable("task")
P = [variable(f"p{n}") for n in range(3)]
BLOCK = (16, 256)


def load(name: str, buffer: Buffer, pointer: Term, shape: tuple[int, ...] = BLOCK) -> code.Assign:
    return code.Assign(
        variable(name), replace(call("tl.load", pointer), reads=(buffer,)), shape=shape
    )


G0 = code.Assign(variable("g0"), TASK * 16)
TOTAL = code.Assign(variable("a1"), call("tl.full", "[16, 256]", 0, "tl.float32"))
LANES = code.Assign(variable("x2"), literal("tl.arange(0, 256)[None, :]"), shape=(1, 256))
INPUT = load("v3", X, P[0] + variable("x2"), (1, 256))
WEIGHTS = load("v4", W, P[1] + variable("g0") * 256 + variable("x2"))
ADDED = code.Assign(variable("a1"), variable("a1") + variable("v3") * variable("v4"))
STORED = code.Store(Y, P[2] + variable("g0"), call("stretto_row_sum", variable("a1")))
PRODUCT = (G0, LANES, INPUT, WEIGHTS, TOTAL, ADDED, STORED, code.Return())


def kernel(body: code.Statements = PRODUCT) -> TritonKernel:
    function = code.FunctionDefinition((*P, variable("control"), TASK), body)
    return TritonKernel(function, (X, W, Y), ())


def changed(old: code.Statement, *new: code.Statement) -> code.Statements:
    return tuple(s for statement in PRODUCT for s in (new if statement == old else (statement,)))


def test_only_the_weights_come_first() -> None:
    split = split_early(kernel())
    assert split is not None
    assert split.loads == (WEIGHTS,)
    assert split.constants == (W,)
    assert split.nbytes == 16 * 256 * 4
    assert split.early.parameters == (P[1], TASK)
    assert split.early.body == (G0, LANES, WEIGHTS, code.Return((variable("v4"),)))
    assert split.body.parameters == (*P, variable("control"), TASK, variable("v4"))
    assert split.body.body == changed(WEIGHTS)


def test_what_stays_where_it_is() -> None:
    def stays(body: code.Statements) -> bool:
        return split_early(kernel(body)) is None

    no_constant = load("v4", X, P[0] + variable("g0") * 256 + variable("x2"))
    assert stays(changed(WEIGHTS, no_constant))
    read_from_memory = load("g0", X, P[0], ())
    assert stays(changed(G0, read_from_memory))
    may_fail = code.Assign(variable("g0"), call("stretto_checked", TASK, effect=True))
    assert stays(changed(G0, may_fail))
    in_a_loop = code.CountedLoop(variable("c5"), literal(0), literal(9), body=(WEIGHTS,))
    assert stays(changed(WEIGHTS, in_a_loop))
    assert not stays(changed(TOTAL))


def test_a_name_that_changes_is_no_place() -> None:
    again = code.Assign(variable("x2"), variable("x2") + 1)
    assert split_early(kernel(changed(INPUT, again, INPUT))) is None


def test_little_is_not_worth_it() -> None:
    small = load("v4", W, WEIGHTS.value, (16, 16))
    assert split_early(kernel(changed(WEIGHTS, small))) is None


# ---- where the loads go ----------------------------------------------------------------------
UNITS = 5
C, N = Reg("c", DType.BOOL), Reg("n", DType.I64)
WAITED = {unit: (Wait(0, 0, UNITS),) for unit in range(UNITS)}
Node = tree.Node[LeafSteps]


def run(name: str, start: int = 0, tasks: int = 4) -> RunStep:
    """Tasks that units have from unit `start` on."""
    each = {(start + n) % UNITS: n for n in range(min(tasks, UNITS))}
    counts = {n: len(range(n, tasks, UNITS)) for n in each.values()}
    return RunStep(name, {unit: (Run(name, n, counts[n], UNITS),) for unit, n in each.items()})


def wait() -> WaitStep:
    return WaitStep(WAITED)


def leaf(*steps: RunStep | WaitStep | BarrierStep) -> Node:
    return tree.Leaf(LeafSteps(steps))


def loop(*body: Node | RunStep) -> Node:
    nodes = (leaf(one) if isinstance(one, RunStep) else one for one in body)
    return tree.While(tree.Seq(()), C, tree.Seq(tuple(nodes)))


def branch(*then: Node) -> Node:
    return tree.If(C, tree.Seq(then), tree.Seq(()))


def early(
    budget: int = 40_000, shared: int = 0, tasks: int = 4, **texts: TritonKernel
) -> EarlyLoads:
    texts = texts or {"one": kernel(), "two": kernel()}
    names = iter(range(99))
    parts = SimpleNamespace(
        program=SimpleNamespace(units=UNITS),
        kernels={name: Kernel(name, (TileDim(tasks, 1),), ()) for name in texts},
        texts=texts,
        define=lambda hint, function, inline, kernel: hint,
        fresh=lambda hint: variable(f"{hint}_{next(names)}"),
        external=lambda buffer: variable(buffer.name),
    )
    return EarlyLoads(cast("ModuleParts", parts), budget, shared=shared)


def visited(loads: EarlyLoads, *nodes: Node) -> list[str]:
    """What nodes call once it is decided what comes early; see `calls`."""
    loads.visit(tree.Seq(nodes))
    return calls(loads, tree.Seq(nodes))


def calls(loads: EarlyLoads, node: Node, indent: str = "") -> list[str]:
    """The functions that a node calls, a wait as `wait`; those inside of loops and branches are
    indented."""
    lines: list[str] = []
    if isinstance(node, tree.Leaf):
        for step in node.body.items:
            if id(step) in loads.sections:
                lines.append(indent + loads.sections[id(step)][1].function)
            if isinstance(step, WaitStep):
                lines.append(f"{indent}wait")
            elif isinstance(step, RunStep):
                lines.append(indent + loads.tasks[id(step)][0])
        return lines
    before = (*loads.fills.get(id(node), ()), *loads.loads.get(id(node), ()))
    lines += [indent + load.function for load in before]
    for child in tree.children(node):
        lines += calls(loads, child, indent + "  " * (not isinstance(node, tree.Seq)))
    return lines


def values(loads: EarlyLoads, step: RunStep) -> list[str]:
    """The values that the tasks of a step are given, by the names in their kernel."""
    return [value.text.split("_")[1] for value in loads.tasks[id(step)][1].values]


def test_loads_go_ahead_of_the_waits() -> None:
    loads, first = early(), wait()
    assert visited(loads, leaf(first, wait(), BARRIER_STEP, run("one"))) == [
        "e_one", "wait", "wait", "k_one",
    ]  # fmt: skip
    assert loads.sections[id(first)][0] == 3
    assert loads.budget == 40_000 and not loads.held


def test_only_waits_that_directly_precede_a_kernel_have_loads_ahead() -> None:
    assert visited(early(), leaf(wait()), leaf(run("one"))) == ["wait", "k_one"]
    assert visited(early(), leaf(BARRIER_STEP, run("one"))) == ["k_one"]


def test_a_kernel_with_many_tasks_loads_for_itself() -> None:
    assert visited(early(tasks=9), leaf(wait(), run("one", tasks=9))) == ["wait", "k_one"]
    listed = RunStep("one", {0: (Run("one", 2), Run("one", 0), Run("one", 1), Run("one", 3))})
    assert visited(early(), leaf(wait(), listed)) == ["wait", "k_one"]


def test_a_loop_loads_what_every_iteration_runs() -> None:
    found = visited(early(), loop(leaf(wait(), run("one")), branch(leaf(run("two")))))
    assert found == ["e_one", "  wait", "  k_one", "    k_two"]


def test_other_tasks_of_the_kernel_do_not_take_the_values() -> None:
    """They would be weights of other rows."""
    loads, ours, theirs = early(), run("one"), run("one", start=1)
    visited(loads, loop(ours, branch(leaf(theirs))))
    assert values(loads, ours) == ["v4"] and not values(loads, theirs)


def test_registers_run_out_and_come_back() -> None:
    loads = early(20_000)
    found = visited(loads, loop(run("one"), run("two")), loop(run("two")))
    assert [line for line in found if line.startswith("e_")] == ["e_one", "e_two"]
    assert loads.budget == 20_000 and not loads.held


def two_loads(name: str, rows: int = 8) -> code.Statements:
    """Weights as warps have them, and a number for each row."""
    deep = load("v4", W, WEIGHTS.value, (128, 4, rows // 4))
    more = load("v5", W, WEIGHTS.value + 128, (128, 4, rows // 4))
    each = load("v6", W, WEIGHTS.value + 256, (32, 4, rows // 4))
    return changed(WEIGHTS, each, deep, more)


def test_what_a_block_takes_in_the_registers_of_all_warps() -> None:
    few, many = (split_early(kernel(two_loads("k")), warps) for warps in (4, 8))
    assert few is not None and many is not None
    assert [*few.sizes.values()] == [1024, 4096, 4096]
    assert [*many.sizes.values()] == [
        2048,
        8192,
        8192,
    ]  # four of the warps have the same as the others


def test_a_loop_keeps_the_large_blocks_that_fit() -> None:
    loads, step = early(5200, one=kernel(two_loads("one"))), run("one")
    assert visited(loads, loop(step)) == ["e_one", "  k_one"]
    assert values(loads, step) == ["v4"]  # a number for each row is not worth it
    assert loads.tasks[id(step)][1].scarce
    assert (loads.kept, loads.lacking) == (4096, 4096 + 1024)
    assert loads.shares == {"one": {"w": 4096 / (2 * 4096 + 1024)}}


def test_where_everything_fits_addresses_may_stay_too() -> None:
    loads, step = early(one=kernel(two_loads("one"))), run("one")
    visited(loads, loop(step))
    assert not loads.tasks[id(step)][1].scarce


def test_inner_loops_have_registers_first() -> None:
    loads = early(20_000)
    found = visited(loads, loop(run("one"), loop(run("two"))))
    assert [line for line in found if "e_" in line] == ["  e_two"]
    assert loads.budget == 20_000 and not loads.held


def test_states_of_recursive_functions_keep_what_they_read() -> None:
    def states(recurs: bool) -> list[str]:
        body, loads = leaf(wait(), run("one")), early()
        loads.loop(STATES, (body,), (body,) if recurs else ())
        return [load.function for load in loads.loads[STATES]] + calls(loads, body)

    assert states(True) == ["e_one", "wait", "k_one"]
    assert states(False) == ["e_one", "wait", "k_one"]


def test_branches_and_loops_with_calls_are_states() -> None:
    """Only what is around the calls; a branch without one is not always taken."""
    again: Node = tree.Call("main", (), ())
    loads = early()
    body = loop(leaf(run("one")), again, branch(leaf(run("two"))))
    loads.loop(STATES, (body,), (body,))
    assert [load.function for load in loads.loads[STATES]] == ["e_one"]
    assert calls(loads, body) == ["  k_one", "    k_two"]


# ---- shared memory ---------------------------------------------------------------------------
def test_shared_memory_keeps_what_registers_have_no_room_for() -> None:
    loads, step = early(5200, 9999, one=kernel(two_loads("one"))), run("one")
    around = loop(step)
    assert visited(loads, around) == ["s_one", "e_one", "  k_one"]
    assert (loads.kept, loads.lacking, loads.used) == (4096, 0, 4096 + 1024)
    assert loads.shares == {"one": {"w": 1.0}}
    assert loads.read == {"one": 4096 + 1024}
    assert loads.tasks[id(step)][1].scarce  # registers are as scarce as before
    filled, held = loads.around(id(around), code.WhileLoop(OK))
    assert isinstance(filled, code.Section) and filled.body[-1] == BARRIER
    assert isinstance(held, code.Section) and held.body[-1] == code.WhileLoop(OK)


def test_the_task_loads_from_shared_memory_before_the_first_use() -> None:
    body = two_loads("one")
    split = split_early(kernel(body), 4, [variable("v4")], {variable("v5"): 4096})
    assert split is not None
    assert [load.target.text for load in split.loads] == ["v4"]
    assert [load.target.text for load in split.shared] == ["v5"]
    fill = python_function("s", split.fill)
    assert "stretto_keep(end, 4096, v5, 128, 4, 2)" in fill and fill.count("v5 =") == 1
    lines = python_function("k", split.body).splitlines()
    assert not any("v5" in line for line in lines)  # nothing here uses it
    used = code.Assign(variable("a1"), variable("a1") + variable("v5"))
    kernels = kernel(tuple(s for one in body for s in ((used, one) if one == STORED else (one,))))
    split = split_early(kernels, 4, [variable("v4")], {variable("v5"): 4096})
    assert split is not None
    lines = [line.strip() for line in python_function("k", split.body).splitlines()]
    place = lines.index("v5 = stretto_kept(end, 4096, tl.float32, 128, 4, 2)")
    assert lines[place + 1] == "a1 = a1 + v5"
    assert lines.index("end = stretto_shared_end()") < place


def test_no_more_in_shared_memory_than_there_is_room_for() -> None:
    loads = early(5200, 4096, one=kernel(two_loads("one")))
    visited(loads, loop(run("one")))
    assert (loads.kept, loads.lacking, loads.used) == (4096, 1024, 4096)
    assert loads.shares == {"one": {"w": (4096 + 4096) / (2 * 4096 + 1024)}}


def test_shared_memory_is_filled_before_the_outermost_loop() -> None:
    """At most once in a launch: nobody stores where others may still read."""
    loads = early(0, 99_999)
    assert visited(loads, branch(loop(run("one"), loop(run("two"))))) == [
        "  s_one", "  s_two", "    k_one", "      k_two",
    ]  # fmt: skip
    assert loads.used == 2 * 16 * 256 * 4 and not loads.lacking


def test_inner_loops_have_shared_memory_first() -> None:
    found = visited(early(0, 20_000), loop(run("one"), loop(run("two"))))
    assert [line for line in found if "s_" in line] == ["s_two"]


def test_what_cannot_be_in_shared_memory() -> None:
    small = Buffer("w", DType.I8, (64, 256), "constant", 1)
    assert not shared_bytes(load("v4", small, WEIGHTS.value))
    assert not shared_bytes(load("v4", W, WEIGHTS.value, (2, 2, 2, 2)))
    assert shared_bytes(load("v4", W, WEIGHTS.value)) == 16 * 256 * 4
    assert shared_bytes(load("v4", W, WEIGHTS.value, ())) == 16
    assert shared_bytes(replace(load("v4", W, WEIGHTS.value, (32, 4, 2)), alike=True)) == 32
    wide = Buffer("w", DType.I64, (64, 256), "constant", 1)
    assert shared_bytes(load("v4", wide, WEIGHTS.value, (64,))) == 512


class Recurrence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(1, xs.shape[1])
        for x in xs:
            h, c = self.cell(x.unsqueeze(0), (h, c))
        return self.out(h)


@pytest.mark.parametrize("units", [1, 3, 16])
def test_a_loop_keeps_its_weights(units: int) -> None:
    torch.manual_seed(0)
    model, xs = Recurrence(72).requires_grad_(False), torch.randn(5, 72)
    fast = stretto.compile(
        model, backend="cuda-emulated", options=Options(units=units, debug=Debug(unroll=0))
    )
    for _ in range(2):
        torch.testing.assert_close(fast(xs), model(xs), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    entry = source.text[source.text.index("def stretto_run") :]
    if units == 16:  # with few units a unit has several tasks, and no registers for all
        pieces = re.findall(r"def piece_main.*?\n    return", source.text, re.DOTALL)
        (loop,) = [piece for piece in pieces if "while ok" in piece]
        assert loop.index("early") < loop.index("while ok")
        assert re.search(r"= piece_main\w*\(", entry)


def test_weights_are_under_way_while_a_unit_waits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    x = torch.randn(1, 512)
    fast = stretto.compile(
        model.requires_grad_(False), backend="cuda-emulated", options=Options(units=132)
    )
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    pieces = re.findall(r"def piece_main.*?\n    return", source.text, re.DOTALL)
    early = [piece for piece in pieces if "= e_" in piece]
    assert early
    for piece in early:
        load, wait = piece.index("= e_"), piece.index("ok = wait(")
        assert load < wait < piece.index("k_", wait)
        assert "early" in piece[piece.index("k_", wait) :]


COMBINE = nn.Linear(2 * 48, 48).requires_grad_(False)


def encode(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if n.sum() <= 1:
        return x * n
    left, right = encode(n - 1, x), encode(n - 2, torch.tanh(x))
    return torch.tanh(COMBINE(torch.cat([left, right])))


@pytest.mark.parametrize("units", [1, 5, 20])
def test_a_recursion_keeps_its_weights(units: int) -> None:
    """Those of the only product; no call of it is too many, and no call at all is none too few."""
    x = torch.randn(48)
    options = Options(units=units, debug=Debug(unroll=0))
    fast = stretto.compile(encode, backend="cuda-emulated", options=options)
    for n in (5, 1, 0, 3):
        depth = torch.tensor(n)
        torch.testing.assert_close(fast(depth, x), encode(depth, x), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    if units == 20:  # a unit with several tasks keeps nothing
        entry = source.text[source.text.index("def stretto_run") :]
        assert source.recursive and source.kept and not source.lacking
        assert entry.index("= e_") < entry.index("while ok")
