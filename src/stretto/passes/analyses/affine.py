"""Integers of a loop body that are `scale * k + offset` in the iteration number k = 0, 1, 2 ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.ir.core import Op, Value
from stretto.ir.ops import Argument, LiteralOp, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, Dim
from stretto.ops.arguments import argument


@dataclass(frozen=True, slots=True)
class Affine:
    """The number scale * k + offset in iteration k."""

    scale: int
    offset: Dim

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.scale + other.scale, _dim(self.offset + other.offset))

    def times(self, factor: int) -> Affine:
        return Affine(self.scale * factor, _dim(self.offset * factor))

    def last(self, count: Dim) -> Dim:
        """The value of the last of `count` iterations."""
        return _dim((count - 1) * self.scale + self.offset)


def _dim(size: Dim) -> Dim:
    return Size.of(size).dim


def affine_result(op: Op, known: Mapping[Value, Affine]) -> Affine | None:
    """The op's result in terms of what is known of its operands, or None."""
    if isinstance(op, LiteralOp) and op.result.type == INDEX:
        return Affine(0, int(op.value))
    if not isinstance(op, TensorOp) or len(op.results) != 1 or op.result.type != INDEX:
        return None
    if op.target == "aten.scalar_tensor.default":
        return _operand(argument(op, "s"), known)
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
                if isinstance(factor.offset, int):
                    return varying.times(factor.offset)
                if varying.scale == 0:
                    return Affine(0, _dim(factor.offset * varying.offset))
            return None
        case _:
            return None


def _scaled_other(op: TensorOp, known: Mapping[Value, Affine]) -> Affine | None:
    other, factor = _operand(argument(op, "other"), known), argument(op, "alpha")
    return other.times(factor) if other and type(factor) is int else None


def _operand(item: Argument, known: Mapping[Value, Affine]) -> Affine | None:
    if isinstance(item, Value):
        return known.get(item)
    return Affine(0, item) if type(item) is int or isinstance(item, Size) else None
