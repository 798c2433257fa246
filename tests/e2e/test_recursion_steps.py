"""Recursions that GPUs compute by levels, each in a kernel: results, waits, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.models.rae import RAEConfig, make
from stretto.device.expr import Index, Position, Reg, is_split
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Wait
from stretto.device.tree import Let, Node, leaves, map_leaves
from stretto.device.verifier import verify
from stretto.errors import RunError, VerifyError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.text import parse_program
from stretto.lowering.lower_program import lower
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select
from stretto.options import Debug, Options
from stretto.passes.manager import Target, run_passes
from stretto.passes.pipeline import pipeline
from stretto.schedule.scheduler import schedule_with_report
from stretto.tools.models import Model
from stretto.tools.simulate import device_machine, scheduled_program
from tests.backends import Built, assert_close
from tests.passes.test_recursion_levels import inputs, is_walked, tree

SPREAD = CUDA_COSTS.spread()


def built(program: Program, units: int, rows: int = 16, fused: bool = True) -> Built:
    """Through all passes for a GPU; verified."""
    costs = replace(SPREAD, level_rows=rows)
    after = run_passes(program, pipeline(Target(costs, units)))
    assert is_walked(after)
    low = lower(after, costs)
    selected = select(low, units, fused, costs).tree
    device, _ = schedule_with_report(selected, units, costs)
    verify(device, selected)
    return Built(low.interface, device)


def check(program: Program, data: list[list[Tensor]], *, rows: int = 16) -> None:
    for units in (1, 2, 3):
        made = built(program, units, rows, fused=units != 2)
        runs = [made.emulator(seed=units), *([made.cuda(seed=units)] if units > 2 else [])]
        for values in data:
            expected = run(program, values)
            for one in runs:
                assert_close(one(values), expected)


# ---- programs ---------------------------------------------------------------------------------
PRODUCT = """
    %c1 = aten.cat.default((%a, %b), 0) : f32[8]
    %w2 = constant "w2" : f32[4, 8]
    %m = aten.linear.default(%c1, %w2) : f32[4]
    %t = aten.tanh.default(%m) : f32[4]
"""
KEPT = """
    %e = aten.mul.Tensor(%a, %o) : f32[4]
    %i = aten.mul.Tensor(%e, %l) : f32[4]
    %j = aten.softmax.int(%b, 0) : f32[4]
    %t = aten.add.Tensor(%i, %j) : f32[4]
"""
RESTS = {
    "pointwise": "%t = aten.sub.Tensor(%a, %b) : f32[4]",
    "product": PRODUCT,
    "records and a softmax": KEPT,
    "one result is not read": "%t = aten.add.Tensor(%b, 1) : f32[4]",
    "a chain": "%s = aten.mm.default(%w, %w) : f32[4, 4]\n"
    "%p = aten.mv.default(%s, %a) : f32[4]\n%q = aten.mv.default(%w, %p) : f32[4]\n"
    "%t = aten.sub.Tensor(%q, %b) : f32[4]",
}
DOUBLED = "%o = aten.add.Tensor(%o1, %o1) : f32[4]"


@pytest.mark.whole
@pytest.mark.parametrize("base", ["", DOUBLED], ids=("rows", "computed"))
@pytest.mark.parametrize("rest", sorted(RESTS))
def test_what_is_computed_by_levels(rest: str, base: str) -> None:
    """A leaf alone, chains and trees of all shapes, some levels of which take several steps."""
    text = RESTS[rest].replace("%o)", "%o1)") if base else RESTS[rest]
    program = tree(text, base=base)
    data = [inputs(leaves, seed) for leaves, seed in ((1, 0), (2, 1), (7, 0), (20, 2))]
    check(program, data, rows=3 if base else 16)


@pytest.mark.whole
def test_several_trees_in_a_loop_that_may_have_no_iterations() -> None:
    """Lists and results of one tree lie where those of the last one did."""
    program = tree(PRODUCT)
    text = """
        func @main(%x: f32[40, 4], %left: i64[40], %right: i64[40], %n: i64[], %k: i64[])
            -> (f32[4]) {
          %s = aten.select.int(%x, 0, 0) : f32[4]
          %z = for %i in (0, %k, 1) carry (%u = %s) {
            %m = aten.sub.Tensor(%n, %i) : i64[]
            %y = call @f(%m, %x, %left, %right) : f32[4]
            %g = aten.mul.Tensor(%u, %y) : f32[4]
            yield %g
          } : f32[4]
          return %z
        }
    """
    main = parse_program(text + _function_f()).functions["main"]
    program.functions["main"] = main
    x, left, right, root = inputs(9, 2)
    check(program, [[x, left, right, root, torch.tensor(k)] for k in (0, 1, 5)])


def _function_f() -> str:
    """A function of the type of the recursion, for the parser to know it."""
    return """
        func @f(%n: i64[], %x: f32[40, 4], %left: i64[40], %right: i64[40]) -> (f32[4]) {
          %o = aten.select.int(%x, 0, %n) : f32[4]
          return %o
        }
    """


# ---- a model ----------------------------------------------------------------------------------
def balanced(leaves: int) -> str:
    if leaves == 1:
        return "."
    return f"({balanced(leaves // 2)}{balanced(leaves - leaves // 2)})"


def chain(depth: int) -> str:
    return "(" * depth + "." + ".)" * depth


SHAPES = {
    "a leaf": ".",
    "an inner node": "(..)",
    "balanced": balanced(40),
    "a chain": chain(200),
    "both": f"({chain(9)}{balanced(21)})",
}


CASES = [
    ("a leaf", 3, 7),
    ("an inner node", 3, 7),
    ("balanced", 4, 24),
    ("a chain", 2, 7),
    ("both", 3, 24),
]


@pytest.mark.whole
@pytest.mark.parametrize(("shape", "units", "hidden"), CASES)
def test_an_autoencoder_of_trees(shape: str, units: int, hidden: int) -> None:
    """40 leaves are 20 nodes of one height, more than a step has."""
    model, data = make(RAEConfig(hidden=hidden, slots=401, shape=SHAPES[shape]))
    options = stretto.Options(units=units, debug=stretto.Debug(seed=units, recursion="levels"))
    fast = stretto.compile(model.eval(), backend="cuda-emulated", options=options)
    with torch.no_grad():
        torch.testing.assert_close(fast(*data), model(*data), rtol=1e-4, atol=1e-5)
    assert "encode_walk" in fast.explain()


@pytest.mark.whole
def test_an_option_keeps_calls() -> None:
    model, data = make(RAEConfig(hidden=256, slots=9, leaves=3))
    for recursion, is_by_levels in (("auto", True), ("levels", True), ("calls", False)):
        options = stretto.Options(units=2, debug=stretto.Debug(recursion=recursion))
        fast = stretto.compile(model.eval(), backend="cuda-emulated", options=options)
        with torch.no_grad():
            torch.testing.assert_close(fast(*data), model(*data), rtol=1e-4, atol=1e-5)
        assert ("encode_walk" in fast.explain()) == is_by_levels
    with pytest.raises(ValueError, match=r"Debug\.recursion"):
        stretto.Options(debug=stretto.Debug(recursion="rows"))


class Scored(nn.Module):
    """Two results, of which leaves compute one."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(12, 6)
        self.score = nn.Linear(6, 1)

    def encode(self, node: Tensor, x: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        if left[node] < 0:
            return x[node], x[node].sum()[None]
        first, one = self.encode(left[node], x, left, right)
        second, two = self.encode(right[node], x, left, right)
        h = torch.relu(self.both(torch.cat([first, second], -1)))
        return h, self.score(h) + torch.maximum(one, two)

    def forward(
        self, x: Tensor, left: Tensor, right: Tensor, node: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.encode(node, x, left, right)


@pytest.mark.whole
@pytest.mark.parametrize("leaves", [1, 2, 12])
def test_two_results(leaves: int) -> None:
    torch.manual_seed(leaves)
    model = Scored().eval()
    x, left, right, root = inputs(leaves, 1)
    data = (torch.cat([x, x[:, :2]], 1), left, right, root)
    options = stretto.Options(units=3, debug=stretto.Debug(recursion="levels"))
    fast = stretto.compile(model, backend="cuda-emulated", options=options)
    with torch.no_grad():
        torch.testing.assert_close(fast(*data), model(*data), rtol=1e-4, atol=1e-5)
    assert "encode_walk" in fast.explain()


def test_a_position_out_of_range_stops_the_run() -> None:
    model, data = make(RAEConfig(hidden=8, slots=9, leaves=4))
    leaf_vectors, left, right, is_leaf, root = data
    options = stretto.Options(units=3, debug=stretto.Debug(recursion="levels"))
    fast = stretto.compile(model.eval(), backend="cuda-emulated", options=options)
    with torch.no_grad():
        fast(*data)
        with pytest.raises((IndexError, RunError), match="out of (range|bounds)"):
            fast(leaf_vectors, left, torch.where(is_leaf, right, 77), is_leaf, root)
        torch.testing.assert_close(fast(*data), model(*data), rtol=1e-4, atol=1e-5)


# ---- waits ------------------------------------------------------------------------------------
@cache
def autoencoder() -> DeviceProgram:
    """For four units, each of which has columns of the results."""
    machine, _, options = device_machine("h200", 4, Options(debug=Debug(recursion="levels")))
    model, data = make(RAEConfig(hidden=512))
    return scheduled_program(Model("rae", model, data), machine, options)


def steps(program: DeviceProgram) -> list[Schedule]:
    """The leaves whose kernels read and write rows of one tensor."""
    kernels = {kernel.name: kernel for kernel in program.kernels}

    def is_step(schedule: Schedule) -> bool:
        return any(
            isinstance(atom, Reg) and is_split(atom)
            for name in schedule.kernels
            for stage in kernels[name].stages
            for index in stage.operator.out.index
            for atom in index.atoms()
        )

    found = [s for function in program.tree.functions for s in leaves(function.body)]
    return [schedule for schedule in found if is_step(schedule)]


def test_a_step_is_one_kernel_and_one_wait() -> None:
    program = autoencoder()
    (step,) = steps(program)
    assert len(step.kernels) == 1 and step.steps == 1
    waits = [sum(isinstance(item, Wait) for item in items) for items in step.units]
    assert waits == [1] * program.units


def test_the_walk_does_not_wait() -> None:
    """One unit pushes in all activations, and the others wait for it behind the call."""
    program = autoencoder()
    walk = next(f for f in program.tree.functions if f.name != "main")
    for schedule in leaves(walk.body):
        items = [item for unit in schedule.units for item in unit]
        assert not any(isinstance(item, Wait) for item in items)
        assert not any(isinstance(i, Run) for unit in schedule.units[1:] for i in unit)


def changed(program: DeviceProgram, change: Callable[[Schedule], Schedule]) -> DeviceProgram:
    def of(body: Node[Schedule]) -> Node[Schedule]:
        return map_leaves(body, change)

    functions = tuple(f.with_body(of(f.body)) for f in program.tree.functions)
    return replace(program, tree=replace(program.tree, functions=functions))


def without_waits(schedule: Schedule) -> Schedule:
    units = tuple(tuple(i for i in u if not isinstance(i, Wait)) for u in schedule.units)
    return replace(schedule, units=units)


def test_a_step_without_its_wait_is_refused() -> None:
    program = autoencoder()
    (step,) = steps(program)
    broken = changed(program, lambda s: without_waits(s) if s is step else s)
    with pytest.raises(VerifyError, match="race on"):
        verify(broken)


def test_a_wait_behind_the_walk_is_needed() -> None:
    """No other leaf than the one behind the call tells the units what the walk has pushed."""
    program = autoencoder()
    main = program.tree.main
    first = next(
        s for s in leaves(main.body) if any(isinstance(i, Wait) for u in s.units for i in u)
    )
    broken = changed(program, lambda s: without_waits(s) if s is first else s)
    with pytest.raises(VerifyError, match=r"race on encode_walk\.param"):
        verify(broken)


def test_a_split_that_changes_behind_its_kernel_is_refused() -> None:
    """Rows before it and behind it would be those of two places."""
    program = autoencoder()
    (step,) = steps(program)
    kernel = step.kernels[0] if isinstance(step.kernels, tuple) else next(iter(step.kernels))
    let = next(i for i in step.units[0] if isinstance(i, Let) and is_split(i.reg))

    def again(schedule: Schedule) -> Schedule:
        if schedule is not step:
            return schedule
        late: Item = Let(let.reg, Position(Index.of(let.reg) + -1))
        return replace(schedule, units=tuple((*items, late) for items in schedule.units))

    with pytest.raises(VerifyError, match=f"is assigned after kernel {kernel}"):
        verify(changed(program, again))
