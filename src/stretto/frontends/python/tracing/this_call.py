"""What a traced value is in the very call that is being captured, found by running its operators.

A program must not depend on it, unless it checks in each run that it is so.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.evaluate import (
    OPERATOR_ERRORS,
    Evaluation,
    Unknown,
    literal,
)
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.ir.core import Op, Value
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ir.sizes import Size
from stretto.ops.effects import is_draw


def in_this_call(value: Value) -> torch.Tensor | None:
    """The value for the arguments of this call; None where it is not known outside of the run."""
    state = tracer()
    block = state.regions[0].scope.block
    if any(is_draw(op) for op in block.walk()):
        return None
    made_by = {result: op for op in block.ops for result in op.results}
    try:
        with state.native(), torch.no_grad():
            return _OfThisCall(state, made_by).after_operands(value)
    except Unknown:
        return None
    except OPERATOR_ERRORS:
        return None  # an operator that fails: it does so in the program, when it is reached


class _OfThisCall(Evaluation):
    """Runs the operators on the arguments of this call."""

    def __init__(self, state: Tracer, made_by: dict[Value, Op]) -> None:
        self.state, self.made_by = state, made_by
        self.known = dict(state.given)
        keys = state.regions[0].scope.context.constants.items()
        self.known |= {value: state.constant_tensors[key] for key, value in keys}

    def after_operands(self, value: Value) -> torch.Tensor:
        """The value, after those that it is made of: without recursion, since chains are long."""
        pending = [value]
        while pending:
            op = self._op(pending[-1])
            missing = [item for item in op.operands if item not in self.known] if op else []
            pending += missing
            if op is not None and not missing:
                self.known |= zip(op.results, self._run(op), strict=True)
            if not missing:
                pending.pop()
        return self.known[value]

    def _op(self, value: Value) -> Op | None:
        if value in self.known:
            return None
        if value not in self.made_by:
            raise Unknown
        return self.made_by[value]

    def _run(self, op: Op) -> tuple[torch.Tensor, ...]:
        if isinstance(op, LiteralOp):
            return (literal(op),)
        if isinstance(op, ConstantOp):
            return (self.state.constant_tensors[op.key],)
        if not isinstance(op, TensorOp):
            raise Unknown
        return self.results(op)

    def value(self, value: Value) -> torch.Tensor:
        return self.known[value]

    def size(self, size: Size) -> int:
        found: Any = self.state.symbolic_dim(size)
        hint = found if isinstance(found, int) else found.node.hint
        if hint is None:
            raise Unknown
        return int(hint)
