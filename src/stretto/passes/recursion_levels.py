"""Recursion by levels: a recursion with independent calls is walked first, then computed by
heights.

`f_walk` is the function without the ops that depend on the results of its calls, the
*rest*. It keeps control, arguments and ops that may stop the run in their order. It pushes
to lists, for each activation with calls, its height and the places of the results of its
calls: n for the n-th activation without calls, -1 - n for the n-th with them. Then a loop
computes the rest of several activations of one height at a time, so that they read the
weights together. Their results are rows of one tensor. See
docs/decisions/2026-11-23-recursion-by-levels.md.

    func @f(%n) -> (f32[8])                 func @f(%n) -> (f32[8])
      %r = if (is a leaf) {                   %at, (lists) = call @f_walk(%n, (empty lists))
        yield (its row)                       %rows = (results without calls, then zeros)
      } else {                                while (activations are left) {
        %a = call @f(left of %n)      ->        %a = (rows of the first results)       : f32[4, 8]
        %b = call @f(right of %n)               %b = (rows of the second results)      : f32[4, 8]
        %c = (a product of %a and %b)           %c = (the product of %a and %b)        : f32[4, 8]
        yield %c                                %rows = (with %c in its places)
      }                                       }
      return %r                               return (the row at %at)

Needs branches and equal ops merged. An iteration branches on the number of activations that
are left of its height, to code for at least as many rows. Rows that a height does not fill
belong to higher ones: they are computed from whatever is in memory, and again in their own
step. Guarantees the same results up to how a product sums its terms. Memory grows with the
number of activations instead of the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.errors import VerifyError
from stretto.ir.call_graph import recursive_functions
from stretto.ir.core import Function, Program
from stretto.passes.batching.rules import NotBatchable
from stretto.passes.height_steps import HeightSteps
from stretto.passes.manager import Target
from stretto.passes.recursion_walk import recursion_of
from stretto.text import bytes_text


@dataclass(frozen=True, slots=True)
class RecursionLevels:
    """The pass. target: the machine to compile for; without one, recursions stay."""

    target: Target | None = None
    name: ClassVar[str] = "recursion_levels"

    def apply(self, program: Program) -> bool:
        changed = False
        for name in sorted(recursive_functions(program)):
            reason = self.convert(program, program.functions[name])
            if reason is not None:
                program.remarks.decline(self.name, f"@{name}", reason)
            changed |= reason is None
        return changed

    def convert(self, program: Program, function: Function) -> str | None:
        """Replace a function by its walk and a loop; return None, or the reason why it stays."""
        if self.target is None:
            return "the machine is not known"
        costs = self.target.costs
        parts = recursion_of(program, function)
        if isinstance(parts, str):
            return parts
        if parts.weight_bytes < costs.level_bytes:
            return f"an activation reads {bytes_text(int(parts.weight_bytes))} of weights only"
        walk = f"{function.name}_walk"
        if walk in program.functions:
            return "it was converted before"
        levels = HeightSteps(program, parts, walk, costs.level_rows, in_place=costs.rows_before)
        try:
            computed = levels.function()
        except (NotBatchable, VerifyError) as reason:
            return f"the ops after its calls cannot be batched: {reason}"
        program.functions[walk] = Function(walk, levels.walk_block())
        program.functions[function.name] = computed
        return None
