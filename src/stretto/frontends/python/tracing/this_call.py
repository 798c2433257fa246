"""What a traced value is in the very call that is being captured, found by running its operators.

A program must not depend on it, unless it checks in each run that it is so.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.ir.core import Op, Value
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ir.sizes import Size
from stretto.ops.effects import is_draw
from stretto.ops.infer import named_arguments, resolve


class _Unknown(Exception):
    """The value depends on a loop, a branch, random numbers, or a size that data decide."""


def in_this_call(value: Value) -> torch.Tensor | None:
    """The value for the arguments of this call; None where it is not known outside of the run."""
    state = tracer()
    block = state.regions[0].scope.block
    if any(is_draw(op) for op in block.walk()):
        return None
    made_by = {result: op for op in block.ops for result in op.results}
    try:
        with state.native(), torch.no_grad():
            return _Run(state, made_by).of(value)
    except _Unknown:
        return None
    except (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError):
        return None  # an operator that fails: it does so in the program, when it is reached


class _Run:
    def __init__(self, state: Tracer, made_by: dict[Value, Op]) -> None:
        self.state, self.made_by = state, made_by
        self.known = dict(state.given)
        keys = state.regions[0].scope.context.constants.items()
        self.known |= {value: state.constant_tensors[key] for key, value in keys}

    def of(self, value: Value) -> torch.Tensor:
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
            raise _Unknown
        return self.made_by[value]

    def _run(self, op: Op) -> tuple[torch.Tensor, ...]:
        if isinstance(op, LiteralOp):
            return (torch.tensor(op.value, dtype=op.results[0].tensor.dtype.torch),)
        if isinstance(op, ConstantOp):
            return (self.state.constant_tensors[op.key],)
        if not isinstance(op, TensorOp):
            raise _Unknown
        pairs = named_arguments(op.target, op.args, op.kwargs)
        items = [self._argument(parameter.is_tensor, item) for parameter, item in pairs]
        count = len(op.args)
        keywords = {key: item for (key, _), item in zip(op.kwargs, items[count:], strict=True)}
        result = resolve(op.target)(*items[:count], **keywords)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    def _argument(self, is_tensor: bool, item: Any) -> Any:
        if isinstance(item, Value):
            found = self.known[item]
            return found if is_tensor else found.item()
        if isinstance(item, Size):
            return self._size(item)
        if isinstance(item, tuple):
            return [self._argument(is_tensor, part) for part in item]  # pyright: ignore[reportUnknownVariableType]
        return item

    def _size(self, size: Size) -> int:
        found: Any = self.state.symbolic_dim(size)
        hint = found if isinstance(found, int) else found.node.hint
        if hint is None:
            raise _Unknown
        return int(hint)
