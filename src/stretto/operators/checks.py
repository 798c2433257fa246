"""Checks: operators without results, which may stop the run."""

from __future__ import annotations

from stretto.lowering.lazy import Lazy
from stretto.lowering.rules import Call, Decline, rule
from stretto.operators.indexing import is_single
from stretto.ops.bounds import position_failure
from stretto.ops.positions import CHECK


@rule(CHECK)
def _check_positions(call: Call) -> tuple[Lazy, ...]:
    """Check a single position in control. A table declines: the library call checks all of it."""
    argument = call.arguments["positions"]
    if not is_single(call.tensor("positions")):
        raise Decline("a table of positions")
    operator, dim = str(call.arguments["operator"]), call.integer("dim")
    size, length = call.dim("size"), call.dim("length")
    failure = position_failure(operator, size, length, dim)
    call.low.position(argument, size, failure, length, wraps=call.flag("wraps"))
    return ()


@rule("stretto.evaluate.default")
def _evaluate(call: Call) -> tuple[Lazy, ...]:
    """Store the value, although nothing reads it, so that a kernel computes it."""
    call.low.materialised(call.arguments["value"])
    return ()
