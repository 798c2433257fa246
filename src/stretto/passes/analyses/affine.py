"""Integers of a loop body that are `scale * k + offset` in the iteration number k = 0, 1, 2 ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.ir.core import Op, Value
from stretto.ir.ops import Argument, LiteralOp, TensorOp
from stretto.ir.types import INDEX
from stretto.ops.arguments import argument


@dataclass(frozen=True, slots=True)
class Affine:
    """The number scale * k + offset in iteration k."""

    scale: int
    offset: int

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.scale + other.scale, self.offset + other.offset)

    def times(self, factor: int) -> Affine:
        return Affine(self.scale * factor, self.offset * factor)

    def range(self, count: int) -> range:
        """The values of `count` > 0 iterations; a scale of 0 has none."""
        return range(self.offset, self.offset + self.scale * count, self.scale)

    def last(self, count: int) -> int:
        return self.offset + self.scale * (count - 1)


def affine_result(op: Op, known: Mapping[Value, Affine]) -> Affine | None:
    """The op's result in terms of what is known of its operands, or None."""
    if isinstance(op, LiteralOp) and op.result.type == INDEX:
        return Affine(0, int(op.value))
    if not isinstance(op, TensorOp) or len(op.results) != 1 or op.result.type != INDEX:
        return None
    left = _operand(argument(op, "self"), known)
    match op.target:
        case "aten.neg.default" if left:
            return left.times(-1)
        case "aten.add.Tensor" | "aten.add.Scalar" | "aten.sub.Tensor" | "aten.sub.Scalar":
            right = _scaled_other(op, known)
            sign = 1 if op.target in ("aten.add.Tensor", "aten.add.Scalar") else -1
            return left + right.times(sign) if left and right else None
        case "aten.rsub.Scalar" | "aten.rsub.Tensor":
            right, factor = _operand(argument(op, "other"), known), argument(op, "alpha")
            return right + left.times(-factor) if left and right and type(factor) is int else None
        case "aten.mul.Tensor" | "aten.mul.Scalar":
            right = _operand(argument(op, "other"), known)
            if left and right and 0 in (left.scale, right.scale):
                factor, varying = (left, right) if left.scale == 0 else (right, left)
                return varying.times(factor.offset)
            return None
        case _:
            return None


def _scaled_other(op: TensorOp, known: Mapping[Value, Affine]) -> Affine | None:
    other, factor = _operand(argument(op, "other"), known), argument(op, "alpha")
    return other.times(factor) if other and type(factor) is int else None


def _operand(item: Argument, known: Mapping[Value, Affine]) -> Affine | None:
    if isinstance(item, Value):
        return known.get(item)
    return Affine(0, item) if type(item) is int else None
