"""Iterations on units of their own that stop the run, or call functions."""

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
from stretto.ir.ops import WhileOp
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.options import Options
from stretto.passes.manager import Target
from stretto.passes.parallel_loops import ParallelLoops
from tests import backends
from tests.passes.loops import targets
from tests.passes.test_parallel_loops import W, X, captured, parallel, tried
from tests.sampling import every


# ---- iterations that stop the run --------------------------------------------------------------
def picked(x: Tensor, ids: Tensor) -> Tensor:
    """The fixed points of the rows that are asked for."""
    out = []
    for t in range(5):
        h = x[ids[t]]
        while h.norm() > 0.5:
            h = torch.tanh(h * 1.3) * 0.6
        out.append(h)
    return torch.stack(out)


def refused(x: Tensor, ids: Tensor) -> Tensor:
    """Raises for a row that begins with 0, and halves others until they are small."""
    out = []
    for t in range(6):
        h = x[ids[t]]
        if h[0] == 0.0:
            raise ValueError("a row begins with 0")
        while h.norm() > 0.5:
            h = h * 0.5
        out.append(h)
    return torch.stack(out)


def stopped_alike(program: Program, function: Callable[..., object], *inputs: Tensor) -> None:
    """All machines raise what eager raises."""
    with pytest.raises((IndexError, ValueError)) as eager:
        function(*inputs)
    for units in (2, 3, 7):
        built = backends.built(program, units)
        machines = [built.emulator(seed) for seed in (0, 1)]
        for machine in (*machines, built.cpu()) if units == 2 else machines:
            with pytest.raises(type(eager.value)) as found:
                machine(list(inputs))
            assert str(eager.value) in str(found.value)


@pytest.mark.whole
def test_the_first_of_several_positions_that_are_out_of_range_stops_the_run() -> None:
    after = tried(picked, X, torch.tensor([4, 0, 2, 2, 1]))
    (loop,) = parallel(after)
    assert any("index" in target or "select" in target for target in targets(loop.body))
    for bad in ([4, 0, 2, 5, 9], [0, 7, 8, 9, 6], [1, 1, 1, 1, -6], [8, 1, 1, 1, 9]):
        stopped_alike(after, picked, X, torch.tensor(bad))


def test_the_first_iteration_that_raises_is_told_of() -> None:
    x = torch.rand(6, 4) + 1.0
    after = tried(refused, x, torch.arange(6))
    x[2, 0] = 0.0
    stopped_alike(after, refused, x, torch.arange(6))
    stopped_alike(after, refused, x, torch.tensor([0, 1, 2, 6, 7, 8]))
    stopped_alike(after, refused, x, torch.tensor([0, 1, 6, 2, 2, 2]))


def test_what_is_left_may_not_stop_the_run_too() -> None:
    """An iteration that is left would have stopped it before those behind it are computed."""

    def function(x: Tensor, ids: Tensor) -> Tensor:
        total = torch.zeros(6)
        for t in range(5):
            h = x[ids[t]]
            while h.norm() > 0.5:
                h = torch.tanh(h * 1.3) * 0.6
            total = torch.tanh(total + h)
            if total[0] > 0.9:
                raise ValueError("too much")
        return total

    ids = torch.arange(5)
    program = captured(function, X, ids)
    ParallelLoops(always=True).apply(program)
    assert not any("index" in target for loop in parallel(program) for target in targets(loop.body))
    stopped_alike(program, function, X, torch.tensor([0, 1, 2, 3, 5]))


def test_what_is_left_may_stop_the_run_before_a_loop_without_end() -> None:
    """Of the third row eager never comes to: the second one raises."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros(6)
        for t in range(4):
            h = torch.tanh(x[t] @ w)
            while h[0] > 0.5:
                h = h * 1.0
            total = total + h
            if total[1] > 0.9:
                raise ValueError("too much")
        return total

    x, w = torch.zeros(4, 6), torch.eye(6)
    program = captured(function, x, w)
    ParallelLoops(always=True).apply(program)
    assert not any(isinstance(op, WhileOp) for loop in parallel(program) for op in loop.body.walk())
    x[1, 1] = x[2, 0] = 9.0
    stopped_alike(program, function, x, w)


def test_a_machine_that_cannot_run_them_in_turn_leaves_them() -> None:
    ids = torch.arange(5)
    program = captured(picked, X, ids)
    ParallelLoops(Target(replace(CUDA_COSTS, wait_seconds=1.0), 5)).apply(program)
    assert not parallel(program)


def test_a_call_that_stops_the_run_in_a_user_s_program() -> None:
    """Where the inputs are right again, so is the next call."""
    x = torch.randn(16, 48)

    def function(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
        out = []
        for t in range(16):
            h = x[ids[t]]
            while h.norm() > 0.5:
                h = torch.tanh(h @ w) * 0.8
            out.append(h)
        return torch.stack(out)

    w = torch.randn(48, 48) / 12
    fast = stretto.compile(function, options=Options(threads=2))
    right, wrong = torch.arange(16), torch.arange(16)
    wrong[[5, 9, 14]] = torch.tensor([16, 17, -17])
    for _ in range(2):
        torch.testing.assert_close(fast(x, right, w), function(x, right, w))
        with pytest.raises(IndexError, match="index 16 is out of bounds"):
            fast(x, wrong, w)
    assert "dealt to 2 units" in fast.explain()


# ---- calls -------------------------------------------------------------------------------------
def total(node: Tensor, x: Tensor, left: Tensor, right: Tensor, w: Tensor) -> Tensor:
    """The sum of a tree, whose leaves have no children."""
    if left[node] < 0:
        return x[node]
    a = total(left[node], x, left, right, w)
    b = total(right[node], x, left, right, w)
    return torch.tanh(a @ w + b) + x[node]


def forest(
    roots: Tensor, x: Tensor, left: Tensor, right: Tensor, w: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums of trees, and what they come to together."""
    out, state = [], torch.zeros(6)
    for t in range(roots.shape[0]):
        h = total(roots[t], x, left, right, w)
        state = torch.tanh(state + h)
        out.append(h)
    return torch.stack(out), state


def trees(count: int = 5, nodes: int = 15) -> tuple[Tensor, ...]:
    """The last nodes are inner ones, each over any two before it."""
    left, right = torch.full((nodes,), -1), torch.full((nodes,), -1)
    for node in range(nodes // 2, nodes):
        left[node], right[node] = torch.randint(0, node, (2,))
    roots = torch.randint(nodes // 2, nodes, (count,))
    return roots, torch.randn(nodes, 6), left, right, torch.randn(6, 6) / 4


def functions_apart(program: Program) -> set[str]:
    return called_from(program, parallel(program))


@pytest.mark.parametrize("seed", every(5, range(6)))
def test_trees_on_units_of_their_own(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = trees(2 + seed)
    after = tried(forest, *inputs)
    assert functions_apart(after) == {"total"}


def test_the_first_tree_that_stops_the_run_is_told_of() -> None:
    roots, x, left, right, w = trees(6)
    after = tried(lambda *inputs: forest(*inputs)[0], roots, x, left, right, w)
    for bad in ([0, 1, 15, 16, 17, 18], [14, 14, 14, 0, 0, 99]):
        stopped_alike(after, forest, torch.tensor(bad), x, left, right, w)
    left[3] = 15  # below some of the trees
    stopped_alike(after, forest, torch.tensor([0, 1, 3, 15, 3, 20]), x, left, right, w)


def test_a_function_that_is_called_elsewhere_too_gets_a_copy() -> None:
    def function(*inputs: Tensor) -> Tensor:
        first = total(inputs[0][0], *inputs[1:])
        sums, _ = forest(*inputs)
        return sums + total(inputs[0][1], *inputs[1:]) * first

    after = tried(function, *trees())
    assert functions_apart(after) == {"total_apart"}
    assert set(after.functions) == {"main", "total", "total_apart"}


@pytest.mark.whole
def test_a_recursion_that_calls_another_one() -> None:
    """Their frames are of different sizes, and a unit has some of each, in any order."""

    def inner(k: Tensor, x: Tensor, w: Tensor) -> Tensor:
        if k <= 0:
            return x
        return torch.tanh(inner(k - 1, x @ w, w) + x) - x.softmax(0)

    def outer(k: Tensor, x: Tensor, w: Tensor) -> Tensor:
        if k <= 0:
            return x * 2.0
        a = inner(k - 1, x, w)
        b = outer(k - 1, torch.cat((x, a))[1:7], w)
        return torch.sort(a @ w)[0] + b.flip(0) * torch.cat((a, b)).amax()

    def function(x: Tensor, w: Tensor, depths: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[0]):
            if x[t].sum() > 0:
                h = inner(depths[t] + 2, x[t], w)
            else:
                h = outer(depths[t], x[t] - 0.5, w)
            out.append(h)
        return torch.stack(out)

    after = tried(function, X, W, torch.tensor([0, 5, 3, 1, 4]))
    assert functions_apart(after) == {"inner", "outer"}


@pytest.mark.whole
def test_several_loops_and_a_loop_in_a_loop_call_one_function() -> None:
    def function(*inputs: Tensor) -> Tensor:
        roots, x, left, right, w = inputs
        for _ in range(2):
            sums, state = forest(roots, x, left, right, w)
            more = []
            for t in range(3):
                h = sums[t] * 0.1
                for k in range(2):
                    h = h + total(roots[t + k], x, left, right, w)
                more.append(h)
            x = x + torch.stack(more).mean(0) + state
        return x

    after = tried(function, *trees(), loops=2)
    assert functions_apart(after) == {"total"}


def test_functions_that_draw_random_numbers_stay() -> None:
    def counted(k: Tensor, x: Tensor) -> Tensor:
        if k <= 0:
            return x
        return counted(k - 1, x + torch.rand(6)) + 1.0

    def function(x: Tensor, depths: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[0]):
            out.append(counted(depths[t], x[t]))
        return torch.stack(out)

    program = captured(function, X, torch.arange(5))
    ParallelLoops(always=True).apply(program)
    assert not functions_apart(program)


def test_gpus_leave_calls_where_they_are() -> None:
    program = captured(forest, *trees())
    ParallelLoops(Target(replace(CUDA_COSTS, wait_seconds=1.0), 5)).apply(program)
    assert not functions_apart(program)


def test_a_recursion_without_end_on_one_unit() -> None:
    """It is told of as eager's error is, and the next call is right."""
    roots, x, left, right, w = trees(4)
    wrong = left.clone()
    wrong[7] = 7
    for backend in ("cpu", "emulator"):
        options = Options(threads=2, max_depth=50)
        fast = stretto.compile(forest, backend=backend, options=options)
        with pytest.raises(RunError, match="deeper than 50"):
            fast(torch.tensor([0, 1, 7, 15]), x, wrong, right, w)
        torch.testing.assert_close(fast(roots, x, left, right, w), forest(roots, x, left, right, w))
