"""Rotation of `while` loops: what moves out of the condition, and that results are the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stretto.errors import RunError
from stretto.frontends.python import capture
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.ops import WhileOp
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from stretto.passes.rotate import Rotate
from tests import backends
from tests.passes.loops import apply, targets


def captured(function: object, *inputs: Tensor) -> Program:
    return capture(function, inputs, {}, Options()).program  # type: ignore[arg-type]


def the_loop(program: Program) -> WhileOp:
    (loop,) = [op for op in program.main.body.walk() if isinstance(op, WhileOp)]
    return loop


def until_small(x: Tensor) -> Tensor:
    while x.square().sum() > 1.0:
        x = x * 0.5
    return x


@pytest.mark.parametrize("scale", [0.0, 0.1, 9.0])
def test_a_norm_moves_into_the_body(scale: float) -> None:
    x = torch.full((5,), scale)
    after = apply(captured(until_small, x), Rotate(), inputs=[x])
    loop = the_loop(after)
    assert targets(loop.condition) == ["aten.gt.Scalar"]
    assert targets(loop.body) == ["aten.mul.Tensor", "aten.square.default", "aten.sum.default"]
    backends.check(after, [x], units=(1, 2), native=())


def test_a_condition_on_numbers_stays() -> None:
    def count(x: Tensor, n: Tensor) -> Tensor:
        i = 0
        while i < n:
            x = x + i
            i = i + 1
        return x

    program = captured(count, torch.randn(3), torch.tensor(4))
    assert not Rotate().apply(program)


def test_invariants_and_several_values_of_a_condition() -> None:
    def bounded(x: Tensor, limit: Tensor) -> Tensor:
        while (x.abs() < limit.exp()).all() and x.sum() < 50.0:
            x = x * 2 + 1
        return x

    x, limit = torch.randn(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    program = captured(bounded, x, limit)
    after = apply(program, *pipeline(), inputs=[x, limit])
    assert not any("abs" in target for target in targets(the_loop(after).condition))
    backends.check(after, [x, limit], units=(2,), native=(2,))


@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_check_in_the_condition_runs_as_often_as_before(start: int) -> None:
    """A position out of range stops the run in the same iteration."""

    def walk(x: Tensor, i: Tensor) -> Tensor:
        while x[i].sum() + x.sum() < 9.0:
            i = i + 1
            x = x + 0.1
        return x

    x, i = torch.zeros(4, 2), torch.tensor(start)
    program = captured(walk, torch.zeros(4, 2), torch.tensor(0))
    after = run_passes(program, [Rotate()])
    for one in (program, after):
        with pytest.raises(RunError, match="out of bounds"):
            run(one, [x, i])


def test_nested_loops_rotate_each() -> None:
    def nested(x: Tensor) -> Tensor:
        while x.square().sum() > 1.0:
            y = x
            while y.abs().max() > 2.0:
                y = y * 0.25
            x = x * 0.5 + y * 0.01
        return x

    x = torch.tensor([8.0, -4.0, 1.0])
    after = apply(captured(nested, x), Rotate(), inputs=[x])
    loops = [op for op in after.main.body.walk() if isinstance(op, WhileOp)]
    assert [targets(loop.condition) for loop in loops] == [["aten.gt.Scalar"]] * 2
    backends.check(after, [x], units=(1, 3), native=())
