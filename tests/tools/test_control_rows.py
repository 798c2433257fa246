"""Control flow as rows: of Programs and DeviceProgram trees written by hand."""

from __future__ import annotations

import pytest

from stretto.device.expr import Const, Expr, Index, Position, Reg
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout, Run, Schedule, Wait
from stretto.device.runs import Runs, function_runs, reached, recursive_functions
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Seq,
    Tree,
    TreeFunction,
    While,
    trip_count,
)
from stretto.ir.types import DType
from stretto.tools.control_rows import kernel_runs, program_rows, schedule_rows
from tests.support import program_of

WITH_CONTROL = """
    func @main(%x: f32[4], %c: bool[]) -> (f32[4]) {
      %start = aten.tanh.default(%x) : f32[4]
      %y = for %i in (0, 5, 1) carry (%a = %start) {
        %b = aten.exp.default(%a) : f32[4]
        %d = if %c {
          %e = aten.neg.default(%b) : f32[4]
          yield %e
        } else {
          yield %b
        } : f32[4]
        %g = if %c {
          %h = aten.neg.default(%d) : f32[4]
          yield %h
        } else {
          yield %d
        } : f32[4]
        yield %g
      } : f32[4]
      %z = while (%k = %y) {
        yield %c
      } do (%m) {
        %n = aten.neg.default(%m) : f32[4]
        yield %n
      } : f32[4]
      %r = call @f(%z, %c) : f32[4]
      return %r
    }

    func @f(%x: f32[4], %c: bool[]) -> (f32[4]) {
      %y = if %c {
        %z = call @f(%x, %c) : f32[4]
        yield %z
      } else {
        yield %x
      } : f32[4]
      return %y
    }
    """

FLAG = Reg("flag", DType.BOOL)


def number(value: int) -> Expr:
    return Const(value, DType.I64)


def loop(trips: int | Reg, body: Node[Schedule]) -> For[Schedule]:
    stop = Position(Index.of(trips)) if isinstance(trips, Reg) else number(trips)
    return For(Reg("i"), number(0), stop, 1, body)


def leaf(kernel: str) -> Leaf[Schedule]:
    unit0 = (Run(kernel, 0, 2, 2), Wait(1, 0))
    return Leaf(Schedule((unit0, (Run(kernel, 1, None, 2),)), 1))


def device(**bodies: Node[Schedule]) -> DeviceProgram:
    functions = tuple(TreeFunction(name, (), (), (), (), (), body) for name, body in bodies.items())
    kernels = tuple(Kernel(name, (), ()) for name in ("a", "b"))
    frames = tuple((name, FrameLayout(0, ())) for name in bodies)
    return DeviceProgram(2, Tree(functions, ()), kernels, frames)


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (Runs(), "1"),
        (Runs(3).times(4), "12"),
        (Runs(3, False).times(4), "<= 12"),
        (Runs(3).times(None), "by value"),
        (Runs(2) + Runs(3), "5"),
        (Runs(2) + Runs(3, False), "<= 5"),
        (Runs(2) + Runs(None), "by value"),
    ],
)
def test_how_often_in_words(runs: Runs, text: str) -> None:
    assert str(runs) == text


def test_runs_multiply_along_the_tree() -> None:
    body = Seq((leaf("a"), loop(5, Seq((loop(3, leaf("b")), If(FLAG, leaf("a"), Seq(())))))))
    runs = kernel_runs(device(main=body))
    assert str(runs["b"]) == "15"
    assert str(runs["a"]) == "<= 6"


def test_runs_of_a_while_are_by_value() -> None:
    runs = kernel_runs(device(main=While(leaf("a"), FLAG, leaf("b"))))
    assert str(runs["a"]) == str(runs["b"]) == "by value"


def test_calls_count_for_the_function_they_reach() -> None:
    call: Call[Schedule] = Call("f", (), ())
    program = device(main=Seq((call, loop(4, call))), f=leaf("a"))
    assert str(function_runs(program.tree)["f"]) == "5"
    assert str(kernel_runs(program)["a"]) == "5"


def test_recursion_and_what_it_calls_are_by_value() -> None:
    again: Call[Schedule] = Call("f", (), ())
    program = device(main=again, f=Seq((If(FLAG, again, Seq(())), Call("g", (), ()))), g=leaf("a"))
    assert recursive_functions(program.tree) == {"f"}
    runs = function_runs(program.tree)
    assert str(runs["main"]) == "1"
    assert str(runs["f"]) == str(runs["g"]) == "by value"


def test_mutual_recursion_is_found() -> None:
    callees = {"main": {"f"}, "f": {"g"}, "g": {"f"}, "h": set[str]()}
    assert reached("main", callees) == {"f", "g"}
    assert "f" in reached("f", callees)
    assert reached("h", callees) == set()


def test_trip_counts_of_constant_bounds_only() -> None:
    assert trip_count(loop(7, leaf("a"))) == 7
    assert trip_count(loop(Reg("n"), leaf("a"))) is None


def test_a_leaf_shows_tasks_by_unit_and_waits() -> None:
    rows = [row.cells() for row in schedule_rows(device(main=loop(7, leaf("a"))))]
    assert rows[1][0] == "  for i, trips: 7"
    assert rows[2] == ("    tasks", "7", "1", "2 | 0+?", "1", "a")


def test_an_empty_leaf_is_left_out() -> None:
    empty: Leaf[Schedule] = Leaf(Schedule(((), ()), 0))
    assert [row.what for row in schedule_rows(device(main=empty))] == ["main"]


def test_rows_of_a_program() -> None:
    program = program_of(WITH_CONTROL)
    cells = [row.cells()[:3] for row in program_rows(program)]
    assert cells == [
        ("main", "", "1"),
        ("  for", "5", "1"),
        ("    if (2 in a row)", "", ""),
        ("      then", "", "1"),
        ("      else", "", "0"),
        ("  while", "by value", "1"),
        ("  call f", "", ""),
        ("f (recursive)", "", "0"),
        ("  if", "", ""),
        ("    then", "", "0"),
        ("      call f", "", ""),
        ("    else", "", "0"),
    ]
