"""A recursion whose calls are independent is walked first, and computed by levels.

`f_walk` is the function without what it computes from the results of its calls, the rest. It keeps
control, arguments and what may stop the run in their order. To lists it pushes, for each activation
with calls, its height and where the results of its calls will be: at n for the n-th activation
without calls, at -1 - n for the n-th with them. Then a loop computes the rest of some activations
of one height at a time, so that they read the weights together. Their results are rows of one
tensor. See docs/decisions/2026-11-23-recursion-by-levels.md.

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

Needs branches merged, and equal ops. An iteration branches on how many activations are left of
their height, to code for at least as many rows. Rows that a height does not fill belong to higher
ones: they are computed from what is there, and again when it is their turn. Guarantees the same
results up to how a product sums its terms. Memory grows with the number of activations instead of
the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.errors import VerifyError
from stretto.ir.core import Function, Program
from stretto.passes.batching.rules import Stays
from stretto.passes.height_steps import HeightBlocks, HeightSteps
from stretto.passes.inline import recursive_functions
from stretto.passes.manager import Target
from stretto.passes.recursion_walk import recursion_of
from stretto.text import bytes_text


@dataclass(frozen=True, slots=True)
class RecursionLevels:
    """target: the machine that it is for; without one, recursions stay."""

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
        """Replaces a function; or says why it stays."""
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
        kind = HeightSteps if costs.rows_before else HeightBlocks
        levels = kind(program, parts, walk, costs.level_rows)
        try:
            computed = levels.function()
        except (Stays, VerifyError) as reason:
            return f"what follows its calls is not computed in rows: {reason}"
        program.functions[walk] = Function(walk, levels.walk_block())
        program.functions[function.name] = computed
        return None
