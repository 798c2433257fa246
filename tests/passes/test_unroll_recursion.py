"""Recursive functions that hold copies of themselves in place of their calls."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stretto
from stretto.device.costs import HOST_COSTS
from stretto.errors import RunError
from stretto.interp.interpreter import run
from stretto.ir.call_graph import recursive_functions
from stretto.ir.core import Program
from stretto.ir.ops import CallOp
from stretto.ir.text import print_program
from stretto.ir.verifier import verify
from stretto.machines.cuda.costs import CudaCosts
from stretto.options import Options
from stretto.passes.manager import Target, run_passes
from stretto.passes.unroll_recursion import MOST_OPS, UnrollRecursion
from tests.property.programs import programs
from tests.support import assert_same, program_of, random_inputs

FIBONACCI = """
func @main(%n: i64[]) -> (i64[]) {
  %r = call @f(%n) : i64[]
  return %r
}
func @f(%n: i64[]) -> (i64[]) {
  %c = aten.lt.Scalar(%n, 2) : bool[]
  %r = if %c {
    yield %n
  } else {
    %l = aten.sub.Scalar(%n, 1) : i64[]
    %a = call @f(%l) : i64[]
    %k = aten.sub.Scalar(%n, 2) : i64[]
    %b = call @f(%k) : i64[]
    %s = aten.add.Tensor(%a, %b) : i64[]
    yield %s
  } : i64[]
  return %r
}
"""
MUTUAL = """
func @main(%n: i64[]) -> (i64[]) {
  %r = call @even(%n) : i64[]
  return %r
}
func @even(%n: i64[]) -> (i64[]) {
  %c = aten.lt.Scalar(%n, 1) : bool[]
  %r = if %c {
    yield %n
  } else {
    %l = aten.sub.Scalar(%n, 1) : i64[]
    %a = call @odd(%l) : i64[]
    yield %a
  } : i64[]
  return %r
}
func @odd(%n: i64[]) -> (i64[]) {
  %l = aten.sub.Scalar(%n, 1) : i64[]
  %a = call @even(%l) : i64[]
  return %a
}
"""
HOST = Target(HOST_COSTS, 2)


def reason(program: Program, step: UnrollRecursion) -> str:
    """Why a recursion stays as it is."""
    result = run_passes(program, (step,))
    assert print_program(result) == print_program(program)
    return [remark.reason for remark, _ in result.remarks if remark.stage == step.name][-1]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_levels_of_copies(depth: int) -> None:
    program = program_of(FIBONACCI)
    result = run_passes(program, (UnrollRecursion(depth=depth),))
    body = result.functions["f"].body
    assert sum(isinstance(op, CallOp) for op in body.walk()) == 2 ** (depth + 1)
    assert recursive_functions(result) == {"f"}
    for n in range(12):
        assert_same(run(result, [torch.tensor(n)]), run(program, [torch.tensor(n)]))


def test_the_target_decides() -> None:
    program = program_of(FIBONACCI)
    body = run_passes(program, (UnrollRecursion(HOST),)).functions["f"].body
    assert sum(isinstance(op, CallOp) for op in body.walk()) == 4
    assert len(list(body.walk())) <= MOST_OPS
    assert "not known" in reason(program, UnrollRecursion())
    assert "its call takes little" in reason(program, UnrollRecursion(Target(CudaCosts(), 132)))
    dear = replace(HOST_COSTS, element_seconds=1e-6)
    assert "its call takes little" in reason(program, UnrollRecursion(Target(dear, 2)))


def test_what_calls_another_recursive_function_stays() -> None:
    assert "another recursive function" in reason(program_of(MUTUAL), UnrollRecursion(HOST))


def test_a_body_of_many_operators_stays() -> None:
    long = "\n".join(f"%x{i} = aten.neg.default(%x{i - 1}) : i64[]" for i in range(1, 80))
    text = FIBONACCI.replace("%s = aten", f"%x0 = aten.neg.default(%a) : i64[]\n{long}\n%s = aten")
    text = text.replace("(%a, %b)", "(%x79, %b)")
    assert "too many" in reason(program_of(text), UnrollRecursion(HOST))


@given(programs(), st.integers(1, 2))
def test_random_programs(drawn: Program, depth: int) -> None:
    result = run_passes(drawn, (UnrollRecursion(depth=depth),))
    verify(result)
    inputs = random_inputs(drawn)
    assert_same(run(result, inputs), run(drawn, inputs))


def visited(tree: torch.Tensor, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """A walk with loops and branches around its calls."""
    total = x[n]
    for place in range(3):
        child = tree[n, place]
        if child >= 0:
            if x[child] > 0:
                total = total + visited(tree, x, child)
            else:
                total = total - 2 * visited(tree, x, child)
    return total


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_end_to_end(threads: int, seed: int) -> None:
    draw = random.Random(seed)
    tree = torch.full((40, 3), -1)
    for node in range(1, 40):
        parent = draw.randrange(node)
        free = [place for place in range(3) if tree[parent, place] < 0]
        if free:
            tree[parent, draw.choice(free)] = node
    x = torch.randint(-9, 9, (40,), generator=torch.Generator().manual_seed(seed)).double()
    compiled = stretto.compile(visited, options=Options(threads=threads))
    for root in (0, 1, 39):
        inputs = tree, x, torch.tensor(root)
        torch.testing.assert_close(compiled(*inputs), visited(*inputs))


def test_a_recursion_without_end_is_stopped() -> None:
    def endless(n: torch.Tensor) -> torch.Tensor:
        return n if n < 0 else endless(n + 1)

    compiled = stretto.compile(endless, options=Options(max_depth=500))
    with pytest.raises(RunError, match="deeper than 500"):
        compiled(torch.tensor(0))
    assert compiled(torch.tensor(-1)) == -1
