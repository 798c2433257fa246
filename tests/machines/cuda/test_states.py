"""Recursive programs as states: what a call keeps on the stack."""

from __future__ import annotations

import re

from stretto.machines.cuda.printer.triton_module import print_program
from tests.backends import built_cuda
from tests.support import program_of

TREE = """
    func @main(%x: f32[4], %n: i64[]) -> (f32[4]) {
      %y = call @tree(%x, %n) : f32[4]
      return %y
    }
    func @tree(%x: f32[4], %n: i64[]) -> (f32[4]) {
      %c = aten.gt.Scalar(%n, 0) : bool[]
      %y = if %c {
        %m = aten.sub.Tensor(%n, 1) : i64[]
        %a = call @tree(%x, %m) : f32[4]
        %b = call @tree(%a, %m) : f32[4]
        yield %b
      } else {
        yield %x
      } : f32[4]
      return %y
    }
    """


def states(text: str) -> dict[int, list[str]]:
    """The lines of each state."""
    parts = re.split(r"        if ok & \(state == (\d+)\):.*\n", text)[1:]
    return {int(n): body.splitlines() for n, body in zip(parts[::2], parts[1::2], strict=True)}


def test_a_call_keeps_what_is_read_behind_it() -> None:
    found = states(print_program(built_cuda(program_of(TREE), units=2).device).text)
    kept = {
        number: [m[1] for line in lines if (m := re.search(r"stack \+ top \+ \d+, (\w+)", line))]
        for number, lines in found.items()
    }
    calls = [names for names in kept.values() if names]
    # Each list ends with the state to go on from. Main keeps nothing, for the call never runs it
    # again; the last call keeps nothing, for it writes the result where the caller was told to.
    assert [len(names) - 1 for names in calls] == [0, 2, 0]
    count, out, back = calls[1]
    assert count.startswith("r_tree") and out.startswith("b_tree_out")
    lines = [line.strip() for line in found[int(back)]]
    restored = [line.split(" = ")[0] for line in lines if "= tl.load(stack + top + " in line]
    assert restored == [count, out]
