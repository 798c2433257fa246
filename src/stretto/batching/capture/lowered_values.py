"""Values of a captured Program as variables and literals of an InstanceProgram."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from stretto.batching.capture.data_types import SCALARS, DataTypes, scalar_of
from stretto.batching.instance_program import program_operator
from stretto.batching.verifier import type_of as type_of_operand
from stretto.errors import SourceLocation
from stretto.ir.core import Literal, Op, Operand, Value, Variable
from stretto.ir.data import AssignOp, OperandPlaceholder, OperateOp, Operation, ReadOp, body_of
from stretto.ir.ops import IfOp
from stretto.ir.types import DataType, RowsType, TensorType


@dataclass(eq=False)
class LoweredValues:
    """The values of one function that have been lowered. out: the ops of the current block."""

    types: DataTypes
    _: KW_ONLY
    values: dict[Value, Operand] = field(default_factory=dict[Value, Operand])
    constants: dict[Value, torch.Tensor] = field(default_factory=dict[Value, torch.Tensor])
    """Values that are tensors of all instances."""
    reads: list[dict[Value, Variable]] = field(default_factory=list[dict[Value, Variable]])
    """For tensors, the numbers that have been read of them, for each block around this place."""
    out: list[Op] = field(default_factory=list[Op])
    count: int = 0
    location: SourceLocation | None = None

    def variable(self, value: Value) -> Variable:
        return self.fresh(self.types.type_of(value), value.hint)

    def fresh(self, type: DataType, hint: str = "") -> Variable:
        self.count += 1
        return Variable(f"{hint or 'v'}_{self.count}", type)

    def emit(self, op: Op) -> None:
        self.out.append(op)

    def assign(
        self, op: str, args: Sequence[Operand], type: DataType, detail: Any = None
    ) -> Variable:
        target = self.fresh(type)
        self.emit(AssignOp(op, tuple(args), detail, results=(target,), location=self.location))
        return target

    def branch_on(self, flag: Operand, then: Iterable[Op], orelse: Iterable[Op]) -> None:
        """Emit a branch; only one of its arms if the flag is known."""
        if isinstance(flag, Literal):
            self.out += then if flag.value else orelse
            return
        self.emit(IfOp(flag, body_of(then), body_of(orelse), location=self.location))

    def operand(self, value: Value) -> Operand:
        """Return a value as an operand of an op on data."""
        if value in self.constants:
            return self.assign("shared", (), value.tensor, self.constants[value])
        return self.as_tensor(value)

    def as_data(self, value: Value) -> Operand:
        """Return a value as part of data: what is a Python number is no tensor there."""
        return self.of_type(value, self.types.type_of(value))

    def of_type(self, value: Value, type: DataType) -> Operand:
        is_number = self.types.is_host(value) and not isinstance(type, TensorType)
        return self.number(value) if is_number or type in SCALARS.values() else self.operand(value)

    def has_rows(self, value: Value) -> bool:
        """True for a value that is rows here."""
        found = self.values.get(value)
        return found is not None and isinstance(type_of_operand(found), RowsType)

    def is_number(self, value: Value) -> bool:
        """True for a value that is a number here, and need not be read."""
        found = self.values.get(value)
        return found is not None and type_of_operand(found) in SCALARS.values()

    def number(self, value: Value) -> Operand:
        """Return a value as a Python number."""
        if self.is_number(value):
            return self.values[value]
        for known in reversed(self.reads):
            if value in known:
                return known[value]
        target = self.fresh(scalar_of(value.tensor.dtype))
        self.emit(ReadOp(self.operand(value), results=(target,), location=self.location))
        self.reads[-1][value] = target
        return target

    def as_tensor(self, value: Value) -> Operand:
        """Return a value that is no number: a tensor that holds it, if it is one."""
        if self.is_number(value):
            return self.tensor_of(self.values[value], TensorType(value.tensor.dtype))
        return self.values[value]

    def tensor_of(self, number: Operand, type: TensorType) -> Operand:
        """Return a tensor that holds a number."""
        if isinstance(number, Literal):
            tensor = torch.tensor(number.value, dtype=type.dtype.torch)
            return self.assign("shared", (), type, tensor)
        target, kwargs = self.fresh(type), (("dtype", type.dtype.torch),)
        args = (((), OperandPlaceholder(0)),)
        operator = program_operator("aten.full.default")
        operation = Operation(operator, args, kwargs, (type,), self.location)
        self.emit(OperateOp(operation, (number,), results=(target,), location=self.location))
        return target
