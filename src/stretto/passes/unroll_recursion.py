"""Unrolling of recursions: a small recursive function gets copies of its body instead of calls.

A call makes a frame, passes arguments and reads results from memory. If an activation computes
little, that is a large part of its time. Copies are nested, down to a fixed depth; only the
innermost ones call.

    func @f(%n) -> (i64[]) {            func @f(%n) -> (i64[]) {
      %r = if (%n < 2) {                  %r = if (%n < 2) {
        yield %n                            yield %n
      } else {                            } else {
        %a = call @f(%n - 1)        ->      %a = if (%n - 1 < 2) { yield %n - 1 }
        yield %a + %n                              else { %b = call @f(%n - 1 - 1)
      }                                                   yield %b + (%n - 1) }
      return %r                             yield %a + %n
    }                                     }
                                          return %r
                                        }

Changes: functions that call themselves and no other recursive function. Needs: branches merged, so
that arms are small; recursions that can be computed by levels already converted. Guarantees: the
same ops on the same values in the same order. A recursion may get deeper by the same factor before
it is stopped (`Options.max_depth` counts calls of the unrolled function).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.call_graph import recursive_functions
from stretto.ir.core import Function, Op, Program
from stretto.ir.ops import CallOp
from stretto.ir.rewrite import Definitions, Replacement, clone_block, rewrite_block
from stretto.passes.analyses.op_facts import run_seconds
from stretto.passes.inline import Copies
from stretto.passes.manager import Target
from stretto.text import seconds_text

MOST_OPS = 200
"""Largest number of ops of an unrolled body."""
MOST_DEPTH = 1
"""Largest number of levels of copies. On four small recursions one level gained 10 to 23 %, two 11
to 16 %."""
LEAST_SHARE = 0.05
"""Least time of a call, relative to the work of an activation, for which unrolling pays."""


@dataclass(frozen=True, slots=True)
class UnrollRecursion:
    """The pass. target: the machine, whose costs decide whether it pays; without one it does not.
    depth: if not 0, the levels of copies in any case."""

    target: Target | None = None
    depth: int = 0
    name: ClassVar[str] = "unroll_recursion"

    def apply(self, program: Program) -> bool:
        recursive, changed = recursive_functions(program), False
        for name in sorted(recursive):
            function = program.functions[name]
            depth = self._depth(function, recursive)
            if isinstance(depth, str):
                program.remarks.decline(self.name, f"@{name}", depth)
                continue
            unroll(program, function, depth)
            changed = True
        return changed

    def _depth(self, function: Function, recursive: frozenset[str]) -> int | str:
        ops = list(function.body.walk())
        calls = [op.function for op in ops if isinstance(op, CallOp)]
        if any(name in recursive and name != function.name for name in calls):
            return "it calls another recursive function"
        own = calls.count(function.name)
        if self.depth:
            return self.depth
        if self.target is None:
            return "the machine is not known"
        costs = self.target.costs
        work = run_seconds(function.body.ops, costs, 1)
        if costs.activation_seconds < LEAST_SHARE * work:
            return f"an activation takes {seconds_text(work)}, as estimated; its call takes little"
        depth, size, level = 0, len(ops), len(ops)
        while depth < MOST_DEPTH and size + level * own <= MOST_OPS:
            level *= own
            size += level
            depth += 1
        return depth or f"its {len(ops)} ops with {own} calls would become too many"


def unroll(program: Program, function: Function, depth: int) -> None:
    """Replace a function's calls of itself by copies of its body, nested `depth` levels deep."""
    original, copies = clone_block(function.body, {}), Copies(program)

    def visit(op: Op, _: Definitions) -> Replacement | None:
        if isinstance(op, CallOp) and op.function == function.name:
            return copies.inlined(original, op)
        return None

    for _ in range(depth):
        rewrite_block(function.body, visit)
