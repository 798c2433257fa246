"""Rules for arithmetic, casts and copies: ops whose result is an operand, exactly.

Exact means: the same bits for every input, NaN, infinities, subnormals and both zeros included. So
`x + 0.0` stays, because it makes 0.0 of -0.0, while `x - 0.0`, `x * 1` and `x + (-0.0)` go.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stretto.ir.core import Value
from stretto.ir.ops import Argument, LiteralOp, TensorOp
from stretto.ir.rewrite import Definitions
from stretto.ir.types import DType
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_lossless, is_random

TensorRule = Callable[[TensorOp, Definitions], Value | TensorOp | None]
"""Gives a value or an op that replaces the op's only result, or None. The caller compares types."""

TensorRules = dict[str, tuple[TensorRule, ...]]
"""Rules by the target of the op."""


def number(item: Argument, definitions: Definitions) -> bool | int | float | None:
    """The number that an argument is, or the literal that it names; None when it is not known."""
    if isinstance(item, Value):
        maker = definitions.get(item)
        return maker.value if isinstance(maker, LiteralOp) else None
    return item if isinstance(item, bool | int | float) else None


def maker_of(item: Argument, definitions: Definitions, *targets: str) -> TensorOp | None:
    """The tensor op that makes the value, when it has one of the targets."""
    maker = definitions.get(item) if isinstance(item, Value) else None
    return maker if isinstance(maker, TensorOp) and maker.target in targets else None


def same_as_operand(op: TensorOp, _: Definitions) -> Value | None:
    """For ops that copy, or only rearrange: with the type of their operand they do nothing."""
    operand = value_argument(op, "self")
    if operand is None:
        operand = value_argument(op, "input")
    return operand if operand is not None and operand.type == op.result.type else None


def dropout_off(op: TensorOp, definitions: Definitions) -> Value | None:
    return None if is_random(op) else same_as_operand(op, definitions)


def neutral(
    is_neutral: Callable[[bool | int | float, bool], bool], *names: str
) -> tuple[TensorRule, ...]:
    """For operators that give their other operand where that in `names` is neutral.

    `is_neutral` gets the number, and whether the result is a float.
    """

    def rule(op: TensorOp, definitions: Definitions) -> Value | None:
        if argument(op, "alpha") not in (None, 1):
            return None
        is_float = op.result.tensor.dtype.is_float
        for name in names:
            known = number(argument(op, name), definitions)
            if known is not None and is_neutral(known, is_float):
                return value_argument(op, "other" if name == "self" else "self")
        return None

    return (rule,)


def _is_one(value: float, _: bool) -> bool:
    return value == 1


def _is_zero_to_add(value: float, is_float: bool) -> bool:
    """-0.0 is neutral for floats, either zero for integers."""
    return value == 0 and (not is_float or math.copysign(1.0, value) < 0)


def _is_zero_to_subtract(value: float, _: bool) -> bool:
    return value == 0 and math.copysign(1.0, value) > 0


def logical(neutral: bool) -> TensorRule:
    """For `and` (neutral: True) and `or` (False) of bools; the other bool absorbs."""

    def rule(op: TensorOp, definitions: Definitions) -> Value | None:
        operands = (value_argument(op, "self"), value_argument(op, "other"))
        if any(item is None or item.tensor.dtype is not DType.BOOL for item in operands):
            return None
        left, right = operands
        if left is right:
            return left
        for known, other in ((left, right), (right, left)):
            value = number(known, definitions)
            if value is not None:
                return other if value is neutral else known
        return None

    return rule


def twice(op: TensorOp, definitions: Definitions) -> Value | None:
    """The operand of an operator that undoes itself."""
    inner = maker_of(argument(op, "self"), definitions, op.target)
    return value_argument(inner, "self") if inner is not None else None


def cast_of_cast(op: TensorOp, definitions: Definitions) -> TensorOp | Value | None:
    """A cast to a wider dtype and on from there is one cast."""
    inner = maker_of(argument(op, "self"), definitions, op.target)
    if inner is None or not (_is_plain_cast(op) and _is_plain_cast(inner)):
        return None
    source = value_argument(inner, "self")
    if source is None or not is_lossless(source.tensor.dtype, inner.result.tensor.dtype):
        return None
    if source.type == op.result.type:
        return source
    return tensor_op(op.target, source, dtype=op.result.tensor.dtype.torch)


def _is_plain_cast(op: TensorOp) -> bool:
    return len(op.args) == 1 and [key for key, _ in op.kwargs] == ["dtype"]


def where_known(op: TensorOp, definitions: Definitions) -> Value | None:
    condition = number(argument(op, "condition"), definitions)
    chosen, other = value_argument(op, "self"), value_argument(op, "other")
    if condition is None:
        return chosen if chosen is other else None
    return chosen if condition else other


_COPIES = (
    *("clone.default", "contiguous.default", "alias.default", "detach.default"),
    *("lift_fresh.default", "lift_fresh_copy.default", "_to_copy.default", "to.dtype"),
)

ALGEBRA_RULES: TensorRules = {
    **{f"aten.{name}": (same_as_operand,) for name in _COPIES},
    "aten._to_copy.default": (same_as_operand, cast_of_cast),
    "aten.dropout.default": (dropout_off,),
    **dict.fromkeys(("aten.mul.Tensor", "aten.mul.Scalar"), neutral(_is_one, "self", "other")),
    **dict.fromkeys(
        ("aten.add.Tensor", "aten.add.Scalar"), neutral(_is_zero_to_add, "self", "other")
    ),
    **dict.fromkeys(("aten.sub.Tensor", "aten.sub.Scalar"), neutral(_is_zero_to_subtract, "other")),
    **dict.fromkeys(("aten.div.Tensor", "aten.div.Scalar"), neutral(_is_one, "other")),
    "aten.pow.Tensor_Scalar": neutral(_is_one, "exponent"),
    **dict.fromkeys(
        ("aten.neg.default", "aten.logical_not.default", "aten.bitwise_not.default"), (twice,)
    ),
    **dict.fromkeys(("aten.logical_and.default", "aten.bitwise_and.Tensor"), (logical(True),)),
    **dict.fromkeys(("aten.logical_or.default", "aten.bitwise_or.Tensor"), (logical(False),)),
    "aten.where.self": (where_known,),
}
