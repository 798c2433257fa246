"""The text of a DeviceProgram is read back exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Index,
    Load,
    Reg,
    Var,
)
from stretto.device.expr_text import print_expr
from stretto.device.operator import (
    PLAIN_TEMPLATES,
    Kernel,
    LibraryCall,
    Template,
)
from stretto.device.program import Run, Wait
from stretto.device.text import parse_program, print_program
from stretto.device.tree import Check, For, If, Let, Seq, While
from stretto.errors import ScheduleError
from stretto.ir.types import DType
from tests.schedule.programs import A, X, chain, device, kernel, leaf, loop, reuse, with_body
from tests.schedule.trees import F32, at, buffer, load


@pytest.mark.parametrize("make", [chain, loop, reuse])
def test_round_trip(make) -> None:  # pyright: ignore
    program = make()
    assert parse_program(print_program(program)) == program


def test_a_parallel_loop_and_its_private_buffers() -> None:
    program = loop()
    assert isinstance(program.tree.main.body, Seq)
    first, turn, end = program.tree.main.body.children
    assert isinstance(turn, For)
    body = Seq((first, replace(turn, parallel=True, rotate=()), end))
    ((name, frame),) = program.frames
    copied = tuple((buffer, replace(place, copies=2)) for buffer, place in frame.placements)
    frames = ((name, replace(frame, placements=copied)),)
    program = replace(with_body(program, body), frames=frames)
    text = print_program(program)
    assert "step 1 parallel {" in text
    assert "now at 0 size 32 copies 2" in text
    assert parse_program(text) == program


def test_what_it_looks_like() -> None:
    expected = """\
program 2
buffer x f32[8] input 0
buffer out f32[8] output 1
buffer a f32[8] local
buffer b f32[8] local
externals (x, out)
kernel first 1e-06 grid (8/4) {
  stage loops() box (8 @ 0)
    first (8)
    a[i0] = x[-1*i0 + 7]
}
kernel second 1e-06 grid (8/4) {
  stage loops() box (8 @ 0)
    second (8)
    out[i0] = a[-1*i0 + 7]
}
frame main 128 {
  a at 0 size 32
  b at 64 size 32
}
function main {
  locals (a, b)
  leaf 2 {
    unit {
      run first 0 count 1
      signal 1
      wait 1 step 1
      run second 0 count 1
    }
    unit {
      run first 1 count 1
      signal 1
      wait 0 step 1
      run second 1 count 1
    }
  }
}
"""
    assert print_program(chain()) == expected


EXPRESSIONS: list[Expr] = [
    Const(True, DType.BOOL),
    Const(-3, DType.I64),
    Const(float("inf"), F32),
    Const(float("-inf"), DType.F64),
    Const(float("nan"), F32),
    Const(1, F32),
    Const(1e-300, DType.F64),
    at(Reg("strange name", DType.I32)),
    load(X, (Index.of(Var(0)) * 3 + 5) // 4 + Index.of(Reg("n")) % 7 * 2),
    load(X, Index.of(ComputedPosition(load(X, 3)))),
    Load(Access(X, (2, 4), (Index.of(1), Index.of(Var(2))))),
    Apply("where", (Const(False, DType.BOOL), load(X, 0), Const(0.5, F32)), F32),
    Apply("cast", (load(X, 1),), DType.BF16),
    load(Buffer("nan", F32, (2,)), 1),
    load(Buffer("a b", F32, (Reg("limit.3"), 2), "list", 3), 0, 1),
]


@pytest.mark.parametrize("value", EXPRESSIONS, ids=print_expr)
def test_expressions(value: Expr) -> None:
    statement = Let(Reg("r", value.dtype), value)
    program = device(leaf(1, (statement,), (statement,)))
    assert parse_program(print_program(program)) == program


def test_everything_else() -> None:
    call = LibraryCall(
        "sort",
        "aten.sort.default",
        (A, Reg("n"), (1, -2.5, None, True), 'a "text"', torch.float16, Index(const=3)),
        (("dim", -1),),
        (A, X),
        "not lowered",
        "model.py:3",
    )
    library = Kernel("library", (), (), call=call)
    made = kernel("k 1", buffer("a", 8, kind="param"), X)
    stage = made.stages[0]
    operator = replace(stage.operator, accumulate=True, source="x = y", combine="sum", reduce=(3,))
    template = Panels(6, -1, X)
    box = (replace(stage.box[0], offset=8),)
    made = replace(made, stages=(replace(stage, operator=operator, template=template, box=box),))
    check = Check(at(Reg("n")), "list_full", 3)
    waits = Wait(0, 1), Wait(0, 1, 2)
    go = Reg("go", DType.BOOL)
    inner = leaf(1, (check, *waits, Run("k 1", 0, None, 2)), (check, Run("library", 0)))
    body = Seq((While(inner, go, If(go, inner, Seq(())), ((A, X),)), inner))
    program = device(body, made, library)
    text = print_program(program)
    assert "wait 0 step 1\n" in text and "wait 0 count 2 step 1\n" in text
    assert "stage panels(rows = 6, lanes = -1) packed x box" in text
    assert parse_program(text, {"panels": Panels, **PLAIN_TEMPLATES}) == program


@dataclass(frozen=True, slots=True)
class Panels(Template):
    """A template of a machine that this test has."""

    name: ClassVar[str] = "panels"
    rows: int
    lanes: int
    panels: Buffer
    unused: int = 0

    @property
    def packed(self) -> Buffer:
        return self.panels


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("run first 0 count", "run first zero count", "line 25: expected a number"),
        ("signal 1", "signl 1", "line 26: expected one of run, wait, signal, let, check"),
        ("= x[", "= y[", "line 10: expected `\\("),
        ("step 1", "step 1.5", "line 27: expected an integer"),
        ("f32[8] input", "f31[8] input", "line 2: expected a dtype"),
        ("a[i0] = x", "a[j0] = x", "line 10: expected an iteration variable"),
        ("program 2", "program 2 ;", "line 1: cannot read this"),
    ],
)
def test_mistakes_name_the_line(old: str, new: str, reason: str) -> None:
    text = print_program(chain()).replace(old, new, 1)
    with pytest.raises(ScheduleError, match=reason):
        parse_program(text)
