"""Calls that need nothing of each other, on different units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import RunError
from stretto.ir.call_graph import called_from
from stretto.ir.core import Program
from stretto.ir.ops import CallOp, ForOp, IfOp
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.options import Options
from stretto.passes.fork_calls import ForkCalls
from stretto.passes.manager import Target
from stretto.passes.parallel_loops import ParallelLoops
from tests import backends
from tests.passes.loops import apply, check
from tests.passes.test_parallel_calls import functions_apart, stopped_alike, total, trees
from tests.passes.test_parallel_loops import captured, parallel
from tests.sampling import every

FORK = ForkCalls(always=True)


def forked(function: Callable[..., object], *inputs: Tensor, loops: int = 1) -> Program:
    """Calls fork, in so many places, and all machines give what the interpreter does."""
    after = apply(captured(function, *inputs), FORK, inputs=inputs)
    assert len(parallel(after)) == loops
    backends.check(after, list(inputs), units=(1, 2, 7), native=(2,))
    return after


def left_alone(function: Callable[..., object], *inputs: Tensor) -> None:
    program = captured(function, *inputs)
    assert not FORK.apply(program)


def one_tree(nodes: int = 15, width: int = 6) -> tuple[Tensor, ...]:
    roots, _, left, right, _ = trees(1, nodes)
    return roots[0], torch.randn(nodes, width), left, right, torch.randn(width, width) / 4


RECURSION = """
    func @{name}(%n: i64[], %x: f32[4]) -> (f32[4]) {{
      %c = aten.le.Scalar(%n, 0) : bool[]
      %r = if %c {{
        yield %x
      }} else {{
        %m = aten.sub.Scalar(%n, 1) : i64[]
        %e = aten.exp.default(%x) : f32[4]
        %s = call @{name}(%m, %e) : f32[4]
        yield %s
      }} : f32[4]
      return %r
    }}
"""


def test_two_calls_become_a_loop_of_two_iterations() -> None:
    """What reads the first result comes behind it, and what reads none before it."""
    recursion = RECURSION.format(name="f")
    check(
        f"""
        func @main(%n: i64[], %x: f32[4]) -> (f32[4]) {{
          %a = call @f(%n, %x) : f32[4]
          %m = aten.add.Scalar(%n, 2) : i64[]
          %t = aten.tanh.default(%a) : f32[4]
          %b = call @f(%m, %x) : f32[4]
          %s = aten.add.Tensor(%t, %b) : f32[4]
          return %s
        }}
        {recursion}
        """,
        FORK,
        f"""
        func @main(%n: i64[], %x: f32[4]) -> (f32[4]) {{
          %m = aten.add.Scalar(%n, 2) : i64[]
          %z = aten.zeros.default((2, 4), dtype=torch.float32) : f32[2, 4]
          %p = for %t in (0, 2, 1) parallel carry (%k = %z) {{
            %first = aten.eq.Scalar(%t, 0) : bool[]
            %y = if %first {{
              %u = call @f(%n, %x) : f32[4]
              yield %u
            }} else {{
              %v = call @f(%m, %x) : f32[4]
              yield %v
            }} : f32[4]
            %row = aten.unsqueeze.default(%y, 0) : f32[1, 4]
            %d = stretto.narrow_scatter.default(%k, %row, 0, %t) : f32[2, 4]
            yield %d
          }} : f32[2, 4]
          %a = aten.select.int(%p, 0, 0) : f32[4]
          %b = aten.select.int(%p, 0, 1) : f32[4]
          %q = aten.tanh.default(%a) : f32[4]
          %s = aten.add.Tensor(%q, %b) : f32[4]
          return %s
        }}
        {recursion}
        """,
    )


@pytest.mark.parametrize("seed", every(5, range(6)))
def test_the_first_level_of_a_tree(seed: int) -> None:
    """`main` has a copy of the function, the two calls of which fork; the others do not."""
    torch.manual_seed(seed)
    after = forked(total, *one_tree(7 + 6 * seed))
    assert functions_apart(after) == {"total"}
    (branch,) = [op for op in after.main.body.ops if isinstance(op, IfOp)]
    assert not any(isinstance(op, CallOp) for op in branch.then.walk())


def test_a_tree_that_is_a_leaf() -> None:
    _, x, left, right, w = one_tree()
    forked(total, torch.tensor(0), x, left, right, w)


def test_trees_of_a_call_come_before_their_halves() -> None:
    """Iterations that are apart already stay; the calls beside them fork, of copies."""

    def function(*inputs: Tensor) -> Tensor:
        roots, *rest = inputs
        out = []
        for t in range(roots.shape[0]):
            out.append(total(roots[t], *rest))
        return torch.stack(out) + total(roots[0], *rest) * total(roots[1], *rest)

    inputs = trees()
    program = captured(function, *inputs)
    after = apply(program, ParallelLoops(always=True), FORK, inputs=inputs)
    assert len(parallel(after)) == 2
    backends.check(after, list(inputs), units=(1, 2, 3), native=(2,))


@pytest.mark.whole
def test_three_calls_of_two_functions() -> None:
    def up(k: Tensor, x: Tensor, w: Tensor) -> Tensor:
        if k <= 0:
            return x
        return torch.tanh(up(k - 1, x @ w, w) + x)

    def down(k: Tensor, x: Tensor, w: Tensor) -> Tensor:
        if k <= 1:
            return x * 2.0
        return down(k - 1, torch.sort(x @ w)[0], w) - x.flip(0)

    def function(k: Tensor, x: Tensor, w: Tensor) -> Tensor:
        a = up(k, x, w)
        b = down(k + 1, x, w)
        c = up(k - 2, x + 1.0, w)
        return a + b * c

    after = forked(function, torch.tensor(5), torch.randn(6), torch.randn(6, 6) / 4)
    assert functions_apart(after) == {"up", "down"}
    assert parallel(after)[0].trips() == 3


@pytest.mark.whole
def test_several_results_of_different_types() -> None:
    def spread(k: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if k <= 0:
            return x, k, x.sum() > 0
        a, n, f = spread(k - 1, x * 0.5)
        b, m, g = spread(k - 2, x - 0.1)
        return a + b.flip(0), n * 2 - m, f & g

    forked(spread, torch.tensor(6), torch.randn(3, 5))


def test_results_and_arguments_without_elements() -> None:
    def emptied(k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if k <= 0:
            return x, x.sum()
        a, n = emptied(k - 1, x)
        b, m = emptied(k - 2, x)
        return a * b, n + m + 1.0

    forked(emptied, torch.tensor(5), torch.randn(0, 3))


def test_functions_that_call_each_other() -> None:
    def even(k: Tensor, x: Tensor) -> Tensor:
        if k <= 0:
            return x
        return odd(k - 1, x * 0.9) - even(k - 2, x)

    def odd(k: Tensor, x: Tensor) -> Tensor:
        if k <= 0:
            return -x
        return torch.tanh(even(k - 1, x) + odd(k - 3, x + 0.1))

    after = forked(even, torch.tensor(7), torch.randn(6))
    found = {name.removesuffix("_apart") for name in functions_apart(after)}
    assert {name.rstrip("_0123456789") for name in found} == {"even", "odd"}
    assert len(found) == 2


@pytest.mark.whole
def test_in_a_loop_in_a_branch() -> None:
    """The trip count of the outer loop is that of the data, and each iteration needs the last."""

    def function(*inputs: Tensor) -> Tensor:
        root, x, left, right, w = inputs
        state = x[0]
        if x.sum() > -1e9:
            while state.norm() < 4.0:
                for t in range(3):
                    state = state * 0.5 + total(root - t, x, left, right, w).abs() + 0.3
        return state

    forked(function, *one_tree())


@pytest.mark.whole
def test_in_a_recursion_of_all_units() -> None:
    """A function that keeps a list is run by all units together; calls in it fork."""

    def walked(k: Tensor, node: Tensor, tree: tuple[Tensor, ...], out: list[Tensor]) -> Tensor:
        if k <= 0:
            out.append(tree[0][node])
            return tree[0][node]
        s = total(node, *tree) + total(node - 1, *tree).abs()
        out.append(s)
        return walked(k - 1, node - 1, tree, out) - walked(k - 2, node - 1, tree, out) * s

    def function(k: Tensor, node: Tensor, *tree: Tensor) -> Tensor:
        out: list[Tensor] = []
        return walked(k, node, tree, out) + torch.stack(out).sum(0)

    inputs = torch.tensor(4), *one_tree()
    after = apply(captured(function, *inputs), FORK, inputs=inputs)
    (loop,) = [
        op for op in after.functions["walked"].body.walk() if isinstance(op, ForOp) and op.parallel
    ]
    assert called_from(after, [loop]) == {"total_apart"}
    backends.check(after, list(inputs), units=(1, 2, 7), native=(2,))


def test_a_call_that_needs_the_result_of_another_stays() -> None:
    def chained(k: Tensor, x: Tensor) -> Tensor:
        if k <= 0:
            return x
        return chained(k - 2, torch.tanh(chained(k - 1, x)))

    left_alone(chained, torch.tensor(5), torch.randn(6))


def test_what_draws_or_hands_over_lists_stays() -> None:
    def noisy(k: Tensor, x: Tensor) -> Tensor:
        if k <= 0:
            return x + torch.rand(6)
        return noisy(k - 1, x) + noisy(k - 2, x)

    def listed(k: Tensor, x: Tensor, out: list[Tensor]) -> Tensor:
        if k <= 0:
            out.append(x)
            return x
        return listed(k - 1, x, out) + listed(k - 2, x * 2.0, out)

    def several(k: Tensor, x: Tensor) -> Tensor:
        out: list[Tensor] = []
        return listed(k, x, out) + torch.stack(out).sum(0)

    left_alone(noisy, torch.tensor(5), torch.randn(6))
    left_alone(several, torch.tensor(5), torch.randn(6))


# ---- what stops the run ------------------------------------------------------------------------
def test_the_first_position_that_is_out_of_range_stops_the_run() -> None:
    """That of the second call is asked for behind the first call."""
    _, x, left, right, w = one_tree()
    root, lower = torch.tensor(14), torch.tensor(8)  # inner nodes: they ask for their right child
    left[root], left[lower] = lower, 0
    after = forked(total, root, x, left, right, w)
    for wrong in ({int(root): 99}, {int(root): 99, int(lower): 77}, {int(lower): -16}):
        bad = right.clone()
        for node, child in wrong.items():
            bad[node] = child
        stopped_alike(after, total, root, x, left, bad, w)
    stopped_alike(after, total, torch.tensor(15), x, left, right, w)


def test_what_stops_behind_a_result_is_met_before_the_next_call() -> None:
    def function(*inputs: Tensor) -> Tensor:
        root, x, left, right, w = inputs
        a = total(root, x, left, right, w)
        if a[0] > 100.0:
            raise ValueError("too large")
        return a + total(root - 1, x, left, right, w)

    root, x, left, right, w = one_tree()
    program = captured(function, root, x, left, right, w)
    FORK.apply(program)
    bad = right.clone()
    bad[root - 1] = 40
    left[root - 1], left[root] = 0, -1
    x[root, 0] = 101.0
    stopped_alike(program, function, root, x, left, bad, w)


@pytest.mark.whole
def test_what_both_calls_read_of_what_may_stop_the_run() -> None:
    """A position that is asked for between the calls, and wanted behind them, is no part of one."""

    def function(*inputs: Tensor) -> Tensor:
        root, x, left, right, w = inputs
        a = total(root, x, left, right, w)
        other = right[root - 1]
        b = total(other, x, left, right, w)
        return a + b * other

    inputs = one_tree()
    program = captured(function, *inputs)
    FORK.apply(program)
    backends.check(program, list(inputs), units=(1, 2, 7), native=(2,))
    inputs[3][inputs[0] - 1] = 15
    inputs[2][inputs[0] - 1] = 0
    stopped_alike(program, function, *inputs)


def test_a_recursion_without_end_in_one_of_two_calls() -> None:
    root, x, left, right, w = one_tree()
    wrong = right.clone()
    left[root], wrong[root] = 0, root
    for backend in ("cpu", "emulator"):
        options = Options(threads=2, max_depth=50)
        fast = stretto.compile(total, backend=backend, options=options)
        with pytest.raises(RunError, match="deeper than 50"):
            fast(root, x, left, wrong, w)
        right[root] = 1
        expected = total(root, x, left, right, w)
        torch.testing.assert_close(fast(root, x, left, right, w), expected)


# ---- whether it pays ---------------------------------------------------------------------------
def reasons(target: Target | None, *inputs: Tensor) -> str:
    program = captured(total, *inputs)
    changed = ForkCalls(target).apply(program)
    said = [remark.reason for remark, _ in program.remarks if remark.stage == "fork_calls"]
    assert changed is not bool(said)
    return said[0] if said else "forked"


def test_the_cost_model_decides() -> None:
    inputs = one_tree()
    assert reasons(Target(CPU_COSTS, 2), *inputs) == "forked"
    assert reasons(None, *inputs) == "no machine is known"
    assert reasons(Target(CPU_COSTS, 1), *inputs) == "one unit runs all calls"
    slow = replace(CPU_COSTS, wait_seconds=1.0)
    assert "2 calls take" in reasons(Target(slow, 2), *inputs)
    few = replace(CPU_COSTS, unknown_activations=2)
    assert "2 calls take" in reasons(Target(few, 2), *inputs)
    gpu = "the machine has no calls that run on one unit each"
    assert reasons(Target(CUDA_COSTS, 5), *inputs) == gpu


def test_products_that_all_units_compute_together_stay() -> None:
    """Of a product of 512 by 512 numbers each unit computes a half."""
    assert "2 calls take" in reasons(Target(CPU_COSTS, 2), *one_tree(15, 512))


def test_a_user_s_program_says_so() -> None:
    inputs = one_tree(63)
    fast = stretto.compile(total, inputs, options=Options(threads=2))
    torch.testing.assert_close(fast(*inputs), total(*inputs))
    told = fast.explain()
    assert "dealt to 2 units" in told
    assert "each unit has registers and frames of its own" in told
