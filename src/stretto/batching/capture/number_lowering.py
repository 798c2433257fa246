"""Operators of ATen that the interpreter applies to Python numbers, and numbers where an operator
needs a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stretto.batching.capture.data_types import scalar_of
from stretto.batching.verifier import type_of as type_of_operand
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.data import AssignOp, RaiseOp
from stretto.ir.failure import eager_class
from stretto.ir.ops import TensorOp
from stretto.ir.types import Scalar
from stretto.ops.positions import position_failure

if TYPE_CHECKING:
    from stretto.batching.capture.lowered_values import LoweredValues

_PRIMITIVES = {
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not",
    "minimum": "min", "maximum": "max",
}  # fmt: skip
"""The primitives that compute operators of ATen on flags and positions."""


@dataclass(eq=False, slots=True)
class NumberLowering:
    """Lowers operators on numbers for a function."""

    of: LoweredValues

    def primitive(self, op: TensorOp) -> Operand | None:
        """Return the result of an operator on numbers as a primitive; None if there is none."""
        name = op.target.split(".")[1]
        kind = scalar_of(op.result.tensor.dtype)
        if op.result.tensor.shape:
            return None
        args = list[Operand]()
        for item in op.args:
            if isinstance(item, Value):
                args.append(self.of.number(item))
            elif isinstance(item, bool | int | float):
                args.append(Literal(item))
            else:
                return None
        match name, args:
            case (("_to_copy" | "clone" | "alias"), [value]):
                return self.converted(value, kind)
            case "where", [flag, *both]:
                target = self.of.fresh(kind)
                arms = [[AssignOp("copy", (x,), results=(target,))] for x in both]
                self.of.branch_on(flag, *arms)
                return target
            case _ if name in _PRIMITIVES and not op.kwargs and kind is not Scalar.FLOAT:
                if name.startswith("logical"):
                    args = [self.converted(x, Scalar.BOOL) for x in args]
                return self.of.assign(_PRIMITIVES[name], args, kind)
            case _:
                return None

    def check(self, check: TensorOp) -> bool:
        """Emit a check of a position that is a number; False for others."""
        given: Any = check.args
        values, size, length, operator, dim, wraps = given
        is_known = isinstance(values, Value) and isinstance(size, int) and isinstance(length, int)
        if not is_known or not self.of.is_number(values):
            return False
        number, least = self.of.number(values), Literal(-size if wraps else 0)
        flags = [
            self.of.assign("ge", (number, least), Scalar.BOOL),
            self.of.assign("le", (number, Literal(size - length)), Scalar.BOOL),
        ]
        fits = self.of.assign("and", flags, Scalar.BOOL)
        failure = position_failure(operator, size, length, dim)
        before, place, after = failure.message.partition("{}")
        parts = (before, number, after) if place else (failure.message,)
        message = tuple(part for part in parts if part != "")
        raised = RaiseOp(eager_class(failure.error), message, location=check.location)
        self.of.branch_on(fits, [], [raised])
        return True

    def converted(self, value: Operand, kind: Scalar) -> Operand:
        """Return a number as one of another kind."""
        if type_of_operand(value) is kind:
            return value
        names = {Scalar.BOOL: "truth", Scalar.INT: "to_int", Scalar.FLOAT: "to_float"}
        return self.of.assign(names[kind], (value,), kind)
