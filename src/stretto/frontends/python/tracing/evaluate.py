"""Evaluates traced tensors that depend on no input, such as `torch.arange(8)[3]`.

This is done where Python cannot continue without a number, and for the condition of an `if`, so
that an arm which is never taken is not captured. A loop over such a tensor is part of the program
like any other.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.ir.core import Op, Value
from stretto.ir.ops import LiteralOp, TensorOp
from stretto.ir.types import TensorType
from stretto.ops.infer import named_arguments, resolve
from stretto.ops.properties import is_random

MOST_OPS = 256
MOST_ELEMENTS = 1 << 20

_PRODUCTS = frozenset({"aten.mul.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default"})
"""Of bools and ints these are zero where one operand is, whatever the other one is."""


class _Unknown(Exception):
    """The value depends on an input, a weight, a loop, or on too much."""


def evaluated(value: Value, most_ops: int = MOST_OPS) -> torch.Tensor | None:
    """What the value is in every run of the program; None where that is not known."""
    state = tracer()
    try:
        with state.native():
            return _Evaluation(state, most_ops).of(value)
    except _Unknown:
        return None
    except (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError):
        return None  # an operator that fails: it does so in the program, when it is reached


class _Evaluation:
    """Runs the operators that a value is made by, each once."""

    def __init__(self, state: Tracer, most_ops: int) -> None:
        self.state = state
        self.known: dict[Value, torch.Tensor] = {}
        self.ops_left = most_ops

    def of(self, value: Value) -> torch.Tensor:
        if value not in self.known:
            op = self._made_by(value)
            self.ops_left -= 1
            if self.ops_left < 0:
                raise _Unknown
            self.known.update(zip(op.results, self._run(op), strict=True))
        return self.known[value]

    def _made_by(self, value: Value) -> Op:
        home = self.state.home.get(value)
        found = () if home is None else (op for op in home.here.block.ops if value in op.results)
        for op in found:
            return op
        raise _Unknown

    def _run(self, op: Op) -> tuple[torch.Tensor, ...]:
        for result in op.results:
            if not self._is_small(result):
                raise _Unknown
        if isinstance(op, LiteralOp):
            return (torch.tensor(op.value, dtype=op.results[0].tensor.dtype.torch),)
        if not isinstance(op, TensorOp) or is_random(op):
            raise _Unknown
        if op.target in _PRODUCTS and self._is_zero(op):
            return tuple(torch.zeros(of.shape, dtype=of.dtype.torch) for of in _types(op))  # type: ignore[arg-type]
        items = [
            self._argument(parameter.is_tensor, item)
            for parameter, item in named_arguments(op.target, op.args, op.kwargs)
        ]
        count = len(op.args)
        keywords = {key: item for (key, _), item in zip(op.kwargs, items[count:], strict=True)}
        result = resolve(op.target)(*items[:count], **keywords)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    def _is_zero(self, op: TensorOp) -> bool:
        """Whether a product is zero since one operand is."""
        if any(of.dtype.is_float for of in _types(op)):
            return False  # zero times infinity is not zero
        return any(self._is_known_zero(item) for item in op.args if isinstance(item, Value))

    def _is_known_zero(self, item: Value) -> bool:
        try:
            return not self.of(item).any()
        except _Unknown:
            return False

    def _is_small(self, value: Value) -> bool:
        count = 1
        for dim in value.tensor.shape:
            if not isinstance(dim, int):
                return False
            count *= dim
        return count <= MOST_ELEMENTS

    def _argument(self, is_tensor: bool, item: Any) -> Any:
        if isinstance(item, Value):
            found = self.of(item)
            return found if is_tensor else found.item()
        if isinstance(item, tuple):
            return [self._argument(is_tensor, part) for part in item]  # pyright: ignore[reportUnknownVariableType]
        return item


def _types(op: Op) -> list[TensorType]:
    return [result.tensor for result in op.results]
