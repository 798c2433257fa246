"""Functions whose results may be rows of a parameter, which they then hand back without a copy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from stretto.device.costs import HOST_COSTS
from stretto.device.forms import Items, Lowered
from stretto.device.operator import Operator
from stretto.device.program import DeviceProgram, Run
from stretto.device.tree import If, Node, TreeFunction, leaves, walk
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.lowering.lower_program import lower
from stretto.lowering.row_results import row_results
from stretto.machines.cpu.select import select
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select as select_cuda
from stretto.schedule.scheduler import schedule_with_report
from tests.backends import SPREAD, Built, assert_close
from tests.sampling import every
from tests.support import program_of

ROWS = replace(HOST_COSTS, row_results=True)


def tree(
    base: str = "%o = aten.select.int(%x, 0, %n) : f32[4]",
    orelse: str = "%t = aten.sub.Tensor(%a, %b) : f32[4]",
    main: str = "%y = call @f(%n, %x, %left, %right) : f32[4]",
) -> Program:
    """Leaves are the nodes before the third; the others give %t."""
    return program_of(
        f"""
        func @main(%x: f32[6, 4], %left: i64[6], %right: i64[6], %n: i64[]) -> (f32[4]) {{
          {main}
          return %y
        }}
        func @f(%n: i64[], %x: f32[6, 4], %left: i64[6], %right: i64[6]) -> (f32[4]) {{
          %c = aten.lt.Scalar(%n, 3) : bool[]
          %y = if %c {{
            {base}
            yield %o
          }} else {{
            %l = aten.select.int(%left, 0, %n) : i64[]
            %a = call @f(%l, %x, %left, %right) : f32[4]
            %r = aten.select.int(%right, 0, %n) : i64[]
            %b = call @f(%r, %x, %left, %right) : f32[4]
            {orelse}
            yield %t
          }} : f32[4]
          return %y
        }}
        """
    )


def data(node: int) -> list[torch.Tensor]:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(node))
    left, right = [0, 0, 0, 0, 3, 4], [0, 0, 0, 1, 2, -2]
    return [x, torch.tensor(left), torch.tensor(right), torch.tensor(node)]


def lowered(program: Program) -> TreeFunction[Items]:
    return lower(program, ROWS).tree.function("f")


def arms(function: TreeFunction[Items]) -> list[list[Operator]]:
    """The operators in the arms of the function's outer branch."""
    found = next(node for node in walk(function.body) if isinstance(node, If))
    return [operators(arm) for arm in (found.then, found.orelse)]


def operators(node: Node[Items]) -> list[Operator]:
    return [item for items in leaves(node) for item in items if isinstance(item, Operator)]


def check(program: Program, inputs: list[list[torch.Tensor]]) -> None:
    """The emulator, C++, and Triton's text give what the interpreter gives."""
    low = lower(program, ROWS)
    made: list[Built] = []
    for units in (1, 2, 3):
        tree = select(low, units, True, SPREAD).tree
        device, _ = schedule_with_report(tree, units, SPREAD)
        verify(device, tree)
        made.append(Built(low.interface, device))
    runs = [one.emulator(seed=n) for n, one in enumerate(made)]
    runs.append(made[1].cpu())
    for units in (1, 3):
        tree = select_cuda(low, units, True, CUDA_COSTS.spread()).tree
        device, _ = schedule_with_report(tree, units, CUDA_COSTS)
        verify(device, tree)
        runs.append(Built(low.interface, device).cuda(seed=units))
    for values in inputs:
        expected = run(program, values)
        for one in runs:
            assert_close(one(values), expected)


def test_a_leaf_computes_nothing() -> None:
    program = tree()
    leaf, inner = arms(lowered(program))
    assert not leaf and [one.name for one in inner] == ["t"]
    assert len(arms(lower(program).tree.function("f"))[0]) == 1  # the copy
    check(program, [data(node) for node in range(6)])


def test_nobody_waits_at_the_end_of_a_leaf() -> None:
    tree_ = select_cuda(lower(tree(), ROWS), 3, True, CUDA_COSTS).tree
    device, _ = schedule_with_report(tree_, 3, CUDA_COSTS)
    (branch,) = (node for node in walk(device.tree.function("f").body) if isinstance(node, If))
    items = [item for body in leaves(branch.then) for unit in body.units for item in unit]
    assert not any(isinstance(item, Run) for item in items)
    ends = [body for body in leaves(device.tree.function("f").body) if body.steps]
    waits = [
        body for body in ends if any("Wait" in type(i).__name__ for u in body.units for i in u)
    ]
    assert all(body in list(leaves(branch.orelse)) for body in waits) and waits


def test_negative_positions_count_from_the_end() -> None:
    program = tree(
        base="%m = aten.sub.Tensor(%n, 3) : i64[]\n%o = aten.select.int(%x, 0, %m) : f32[4]"
    )
    assert not arms(lowered(program))[0]
    check(program, [data(node) for node in range(6)])


NESTED = """
    %d = aten.eq.Scalar(%n, 1) : bool[]
    %o = if %d {
      %u = aten.select.int(%x, 0, %n) : f32[4]
      yield %u
    } else {
      %e = aten.eq.Scalar(%n, 0) : bool[]
      %w = if %e {
        %z = aten.select.int(%x, 0, 5) : f32[4]
        yield %z
      } else {
        %q = aten.select.int(%x, 0, %n) : f32[4]
        %p = aten.neg.default(%q) : f32[4]
        yield %p
      } : f32[4]
      yield %w
    } : f32[4]
"""


def test_branches_in_branches() -> None:
    """Of three leaves two are rows, one is computed."""
    program = tree(base=NESTED)
    assert [one.name for one in arms(lowered(program))[0]] == ["p"]
    check(program, [data(node) for node in range(6)])


def test_a_result_that_is_handed_on() -> None:
    """What a call gives is the caller's own result: a row stays a row."""
    program = tree(orelse="%t = aten.add.Tensor(%a, %a) : f32[4]")
    arm = program.functions["f"].body.ops[-1].blocks[1]
    second = arm.ops[-2]
    arm.yields = (second.results[0],)
    assert not arms(lowered(program))[1] or all(
        one.name != "b" for one in arms(lowered(program))[1]
    )
    check(program, [data(node) for node in range(6)])


@pytest.mark.whole
def test_a_call_with_another_tensor_in_its_place() -> None:
    """Rows of what the callee was given are no rows of what its caller was given."""
    program = tree(
        orelse="""
        %v = aten.neg.default(%x) : f32[6, 4]
        %k = call @f(%r, %v, %left, %right) : f32[4]
        %t = aten.sub.Tensor(%b, %k) : f32[4]
        """
    )
    check(program, [data(node) for node in range(5)])
    arm = program.functions["f"].body.ops[-1].blocks[1]
    arm.yields = (next(op for op in arm.ops if op.results[0].hint == "k").results[0],)
    check(program, [data(node) for node in range(5)])


def test_parts_of_a_larger_tensor() -> None:
    """Main passes rows 1 to 6 of a tensor, the function the same rows of what it made."""
    program = program_of(
        """
        func @main(%x: f32[8, 5], %n: i64[]) -> (f32[5], f32[5]) {
          %s = aten.slice.Tensor(%x, 0, 1, 7) : f32[6, 5]
          %y = call @f(%n, %s) : f32[5]
          %t = aten.t.default(%x) : f32[5, 8]
          %u = aten.slice.Tensor(%t, 1, 0, 5) : f32[5, 5]
          %v = aten.cat.default((%u, %x), 0) : f32[13, 5]
          %w = aten.slice.Tensor(%v, 0, 2, 8) : f32[6, 5]
          %z = call @f(%n, %w) : f32[5]
          return %y, %z
        }
        func @f(%n: i64[], %x: f32[6, 5]) -> (f32[5]) {
          %c = aten.lt.Scalar(%n, 3) : bool[]
          %y = if %c {
            %o = aten.select.int(%x, 0, %n) : f32[5]
            yield %o
          } else {
            %l = aten.sub.Tensor(%n, 2) : i64[]
            %a = call @f(%l, %x) : f32[5]
            %m = aten.mul.Tensor(%x, 2) : f32[6, 5]
            %k = aten.sub.Tensor(%n, 1) : i64[]
            %b = call @f(%k, %m) : f32[5]
            %t = aten.sub.Tensor(%a, %b) : f32[5]
            yield %t
          } : f32[5]
          return %y
        }
        """
    )
    x = torch.randn(8, 5)
    check(program, [[x, torch.tensor(node)] for node in range(6)])


def test_a_tensor_that_changes_behind_the_call() -> None:
    """A loop updates the tensor in place of which the call has given a row."""
    program = tree(
        main="""
        %z = for %i in (0, 5, 1) carry (%s = %x) {
          %a = call @f(%i, %s, %left, %right) : f32[4]
          %q = aten.select.int(%s, 0, 1) : f32[4]
          %p = aten.add.Tensor(%q, 1) : f32[4]
          %k = aten.select_scatter.default(%s, %p, 0, 1) : f32[6, 4]
          %e = aten.mul.Tensor(%a, 3) : f32[4]
          %g = aten.select_scatter.default(%k, %e, 0, %i) : f32[6, 4]
          yield %g
        } : f32[6, 4]
        %y = aten.sum.dim_IntList(%z, (0,)) : f32[4]
        """
    )
    check(program, [data(node) for node in range(3)])


def test_a_row_of_a_row_of_matrices() -> None:
    program = tree_of_matrices()
    check(program, [[torch.randn(4, 3, 3), torch.tensor(node)] for node in range(5)])


def tree_of_matrices() -> Program:
    return program_of(
        """
        func @main(%x: f32[4, 3, 3], %n: i64[]) -> (f32[3, 3]) {
          %y = call @f(%n, %x) : f32[3, 3]
          return %y
        }
        func @f(%n: i64[], %x: f32[4, 3, 3]) -> (f32[3, 3]) {
          %c = aten.lt.Scalar(%n, 2) : bool[]
          %y = if %c {
            %o = aten.select.int(%x, 0, %n) : f32[3, 3]
            yield %o
          } else {
            %l = aten.sub.Tensor(%n, 2) : i64[]
            %a = call @f(%l, %x) : f32[3, 3]
            %k = aten.sub.Tensor(%n, 1) : i64[]
            %b = call @f(%k, %x) : f32[3, 3]
            %m = aten.mm.default(%a, %b) : f32[3, 3]
            %t = aten.add.Tensor(%m, %b) : f32[3, 3]
            yield %t
          } : f32[3, 3]
          return %y
        }
        """
    )


@pytest.mark.parametrize(
    ("dtype", "rows", "width"), [("f32", 17, 33), ("f32", 1, 70), ("f16", 5, 40)]
)
def test_products_that_read_rows(dtype: str, rows: int, width: int) -> None:
    """Of sizes that no tile divides; halves are widened as they are read."""
    kind = f"{dtype}[{rows}, {width}]"
    program = program_of(
        f"""
        func @main(%x: {dtype}[4, {rows}, {width}], %n: i64[]) -> ({kind}) {{
          %y = call @f(%n, %x) : {kind}
          return %y
        }}
        func @f(%n: i64[], %x: {dtype}[4, {rows}, {width}]) -> ({kind}) {{
          %w = constant "w" : {dtype}[{width}, {width}]
          %c = aten.lt.Scalar(%n, 2) : bool[]
          %y = if %c {{
            %o = aten.select.int(%x, 0, %n) : {kind}
            yield %o
          }} else {{
            %l = aten.sub.Tensor(%n, 2) : i64[]
            %a = call @f(%l, %x) : {kind}
            %k = aten.sub.Tensor(%n, 1) : i64[]
            %b = call @f(%k, %x) : {kind}
            %p = aten.linear.default(%a, %w) : {kind}
            %q = aten.mm.default(%b, %w) : {kind}
            %s = aten.sub.Tensor(%p, %q) : {kind}
            %t = aten.tanh.default(%s) : {kind}
            yield %t
          }} : {kind}
          return %y
        }}
        """
    )
    assert [one.name for one in operators(lowered(program).body)].count("contraction") == 2
    assert not arms(lowered(program))[0]
    x = torch.randn(4, rows, width, generator=torch.Generator().manual_seed(rows))
    x = x.to(torch.float16 if dtype == "f16" else torch.float32)
    check(program, [[x, torch.tensor(node)] for node in (0, 2, 4)])


BRANCH = """
    %g = aten.gt.Scalar(%n, 4) : bool[]
    %t = if %g {
      %h = aten.sub.Tensor(%a, %b) : f32[4]
      yield %h
    } else {
      %i = aten.neg.default(%a) : f32[4]
      yield %i
    } : f32[4]
"""


def test_results_that_others_need_in_memory() -> None:
    """An operator in a branch reads it, who knows how often."""
    program = tree(orelse=BRANCH)
    assert not row_results(program, ["f"])
    assert len(arms(lowered(program))[0]) == 1
    check(program, [data(node) for node in range(6)])


@pytest.mark.parametrize(
    "base",
    [
        "%o = aten.neg.default(%x0) : f32[4]",
        "%p = aten.neg.default(%x) : f32[6, 4]\n%o = aten.select.int(%p, 0, %n) : f32[4]",
        "%p = aten.t.default(%x) : f32[4, 6]\n%o = aten.select.int(%p, 1, %n) : f32[4]",
    ],
)
def test_leaves_that_are_no_rows(base: str) -> None:
    program = tree(base="%x0 = aten.select.int(%x, 0, 0) : f32[4]\n" + base)
    assert not row_results(program, ["f"])
    check(program, [data(node) for node in range(6)])


def test_the_verifier_knows_that_a_call_may_write_a_result_that_may_be_a_row() -> None:
    """What lies at the same bytes is lost by the call."""
    program = tree(
        main="""
        %k = aten.softmax.int(%x, 1) : f32[6, 4]
        %z = call @f(%n, %x, %left, %right) : f32[4]
        %s = aten.sum.dim_IntList(%k, (0,)) : f32[4]
        %y = aten.add.Tensor(%z, %s) : f32[4]
        """
    )
    device = select_and_schedule(lower(program, ROWS), 1)
    verify(device)
    frame = device.frame("main")
    kept = next(b for b in device.tree.main.locals if b.kind == "local" and 6 in b.shape)
    result = next(b for b in device.tree.main.locals if b.kind == "items")
    shared = [
        (name, replace(place, offset=frame[kept.name].offset) if name == result.name else place)
        for name, place in frame.placements
    ]
    frames = {**dict(device.frames), "main": replace(frame, placements=tuple(shared))}
    with pytest.raises(VerifyError, match=kept.name):
        verify(replace(device, frames=tuple(frames.items())))


def select_and_schedule(low: Lowered, units: int) -> DeviceProgram:
    tree = select_cuda(low, units, True, CUDA_COSTS.spread()).tree
    device, _ = schedule_with_report(tree, units, CUDA_COSTS)
    return device


# ---- random recursions -----------------------------------------------------------------------
LEAVES = (
    "aten.select.int(%x, 0, %n)",
    "aten.select.int(%x, 0, 4)",
    "aten.select.int(%w, 0, %n)",
    "aten.select.int(%w, 0, -1)",
    "aten.neg.default(%first)",
    "aten.clone.default(%first)",
)
TABLES = ("%x, %w", "%w, %x", "%x, %x", "%v, %w", "%x, %v")
INNER = ("aten.sub.Tensor(%a, %b)", "aten.mul.Tensor(%b, %first)", "aten.add.Tensor(%a, %a)")


class Writer:
    """A recursion over a tree, with one or two results; which of them are rows chance decides."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.results = self.draw.choice((1, 1, 2))
        self.types = ", ".join(["f32[4]"] * self.results)

    def program(self) -> Program:
        names = ", ".join(f"%y{n}" for n in range(self.results))
        tables = "%x: f32[6, 4], %w: f32[6, 4], %left: i64[6], %right: i64[6]"
        return program_of(
            f"""
            func @main({tables}, %n: i64[]) -> ({self.types}) {{
              {names} = call @f(%n, %x, %w, %left, %right) : {self.types}
              return {names}
            }}
            func @f(%n: i64[], {tables}) -> ({self.types}) {{
              %first = aten.select.int(%x, 0, 0) : f32[4]
              {self.branch(0)}
              return {names}
            }}
            """
        )

    def branch(self, depth: int, names: str = "") -> str:
        """A branch that gives values of these names."""
        names = names or ", ".join(f"%y{n}" for n in range(self.results))
        test = f"%c{depth} = aten.lt.Scalar(%n, {3 - depth}) : bool[]"
        first = self.names(f"then{depth}")
        inner = depth < 2 and self.draw.random() < 0.5
        then = self.branch(depth + 1, first) if inner else self.leaf(first)
        second = self.names(f"else{depth}")
        orelse = self.leaf(second) if depth else self.calls()
        return f"""
            {test}
            {names} = if %c{depth} {{
              {then}
              yield {first}
            }} else {{
              {orelse}
              yield {second if depth else self.handed}
            }} : {self.types}
        """

    def names(self, stem: str) -> str:
        return ", ".join(f"%{stem}_{n}" for n in range(self.results))

    def leaf(self, names: str) -> str:
        return "\n".join(
            f"{name} = {self.draw.choice(LEAVES)} : f32[4]" for name in names.split(", ")
        )

    def calls(self) -> str:
        lines = ["%v = aten.mul.Tensor(%x, 0.5) : f32[6, 4]"]
        for name, table in (("a", "left"), ("b", "right")):
            results = [f"%{name}", "%unread"][: self.results]
            results = [f"{one}{name}" if one == "%unread" else one for one in results]
            passed = self.draw.choice(TABLES)
            lines += [
                f"%{table}_n = aten.select.int(%{table}, 0, %n) : i64[]",
                f"{', '.join(results)} = call @f(%{table}_n, {passed}, %left, %right) :"
                f" {self.types}",
            ]
        found = [f"%{name}" for name in ("a", "b", "t")]
        found += ["%unreada", "%unreadb"] if self.results > 1 else []
        lines.append(f"%t = {self.draw.choice(INNER)} : f32[4]")
        self.handed = ", ".join(self.draw.choice(found) for _ in range(self.results))
        return "\n".join(lines)


@pytest.mark.parametrize("seed", every(9, range(60)))
def test_random_recursions(seed: int) -> None:
    program = Writer(seed).program()
    generator = torch.Generator().manual_seed(seed)
    inputs: list[list[torch.Tensor]] = []
    for node in range(6):
        x, left, right, root = data(node)
        inputs.append([x, torch.randn(6, 4, generator=generator), left, right, root])
    check(program, inputs)


def test_random_recursions_have_rows() -> None:
    found = [len(row_results(Writer(seed).program(), ["f"])) for seed in range(120)]
    assert sum(map(bool, found)) > 60 and sum(count == 2 for count in found) > 5
