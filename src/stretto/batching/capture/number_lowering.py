"""Operators of ATen that the interpreter applies to Python numbers, and numbers where an operator
needs a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from stretto.batching.capture.data_types import scalar_of
from stretto.batching.verifier import type_of as type_of_operand
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.data import AssignOp
from stretto.ir.ops import TensorOp
from stretto.ir.types import Scalar
from stretto.ops.infer import resolve

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

    def converted(self, value: Operand, kind: Scalar) -> Operand:
        """Return a number as one of another kind."""
        if type_of_operand(value) is kind:
            return value
        names = {Scalar.BOOL: "truth", Scalar.INT: "to_int", Scalar.FLOAT: "to_float"}
        return self.of.assign(names[kind], (value,), kind)


@cache
def tensor_places(target: str) -> frozenset[int]:
    """Return the positions of the arguments that cannot be numbers, as an operator needs tensors
    there."""
    schema: Any = resolve(target)._schema
    allows: Any = vars(torch)["_C"]
    if allows._should_allow_numbers_as_tensors(schema.name.split("::")[1]):
        return frozenset()
    return frozenset(n for n, x in enumerate(schema.arguments) if "Tensor" in str(x.type))
