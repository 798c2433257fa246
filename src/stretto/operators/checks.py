"""Checks: operators without results, which may stop the run."""

from __future__ import annotations

import torch

from stretto.ir.failure import eager_class
from stretto.lowering.lazy import Lazy
from stretto.lowering.rules import Decline, TensorOpCall, rule
from stretto.operators.indexing import is_single
from stretto.ops.custom_operators import define
from stretto.ops.positions import CHECK, position_failure
from stretto.ops.table import describe

# ---- properties ------------------------------------------------------------------------------

describe("check_positions", "stretto", raises=("IndexError", "RuntimeError"))
describe("evaluate", "stretto", raises=("RuntimeError",))


@rule(CHECK)
def _check_positions(call: TensorOpCall) -> tuple[Lazy, ...]:
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
def _evaluate(call: TensorOpCall) -> tuple[Lazy, ...]:
    """Store the value, although nothing reads it, so that a kernel computes it."""
    call.low.materialised(call.arguments["value"])
    return ()


# ---- the operators ---------------------------------------------------------------------------
#
# `stretto.check_positions(positions, size, length, operator, dim, wraps)` has no result: it raises
# the error of `operator` unless `length` elements of dim `dim`, which has `size`, begin at each of
# the positions; negative ones count from the end if `wraps`. `stretto.evaluate(value)` has no
# result either: it makes the op that computes the value run, which may refuse its operands.


def _compute_check_positions(
    positions: torch.Tensor, size: int, length: int, operator: str, dim: int, wraps: bool
) -> None:
    for position in positions.flatten().tolist():
        first = position + size if wraps and position < 0 else position
        if not 0 <= first <= size - length:
            failure = position_failure(operator, size, length, dim)
            raise eager_class(failure.error)(failure.message.replace("{}", str(position)))


define(
    "check_positions(Tensor positions, SymInt size, SymInt length, str operator, int dim, "
    "bool wraps) -> ()",
    _compute_check_positions,
    lambda *_: None,
)
define("evaluate(Tensor value) -> ()", lambda *_: None, lambda *_: None)
