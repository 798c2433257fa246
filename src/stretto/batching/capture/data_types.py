"""Finds which values of a captured Program are Python numbers, before it is lowered."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.batching.capture.instance_data import InstanceData
from stretto.batching.instance_program import Composition
from stretto.batching.instances.types import InstanceTypes, tensor_as_data
from stretto.batching.levels.tables import short_errors
from stretto.errors import CaptureError
from stretto.ir.core import Program, Value
from stretto.ir.data import (
    Operation,
    operation_key,
)
from stretto.ir.ops import (
    CallOp,
    ForOp,
    IfOp,
    LiteralOp,
    WhileOp,
)
from stretto.ir.types import (
    DataType,
    DType,
    RowsType,
    Scalar,
    TensorListType,
    TensorType,
)

SCALARS = {DType.BOOL: Scalar.BOOL, DType.I64: Scalar.INT, DType.F64: Scalar.FLOAT}


def scalar_of(dtype: DType) -> Scalar:
    return Scalar.BOOL if dtype is DType.BOOL else Scalar.FLOAT if dtype.is_float else Scalar.INT


@dataclass(eq=False)
class DataTypes:
    """The types that the values of a captured Program have as data."""

    program: Program
    data: InstanceData
    numbers: set[Value] = field(default_factory=set[Value])
    """Values that are Python numbers wherever they come from."""
    too_short: dict[Hashable, tuple[Exception, ...]] = field(
        default_factory=dict[Hashable, tuple[Exception, ...]]
    )
    compositions: dict[Hashable, Composition] = field(default_factory=dict[Hashable, Composition])

    def __post_init__(self) -> None:
        while self.find_numbers():
            pass

    @property
    def evaluation(self) -> InstanceTypes:
        return self.data.evaluation

    def is_number(self, value: Value) -> bool:
        """True for a value that the capture knows as a Python number."""
        return value in self.data.numbers

    # -- numbers ----------------------------------------------------------------------------------

    def find_numbers(self) -> bool:
        """Find values that only numbers lead to. True if there were new ones."""
        before = len(self.numbers)

        def note(values: Sequence[Value], sources: Sequence[Value]) -> None:
            for value, source in zip(values, sources, strict=True):
                if self.is_host(source) and isinstance(value.type, TensorType):
                    self.numbers.add(value)

        for function in self.program.functions.values():
            for op in function.body.walk():
                match op:
                    case LiteralOp():
                        self.numbers.add(op.result)
                    case IfOp(_, then, orelse):
                        both = zip(then.yields, orelse.yields, strict=True)
                        for value, pair in zip(op.results, both, strict=True):
                            if all(map(self.is_host, pair)):
                                self.numbers.add(value)
                    case WhileOp(inits, condition, body):
                        note(condition.params, inits)
                        note(body.params, inits)
                        note(op.results, inits)
                    case ForOp(inits=inits, body=body):
                        self.numbers.add(body.params[0])
                        note(body.params[1:], inits)
                        note(op.results, inits)
                    case CallOp(name, arguments):
                        called = self.program.functions[name]
                        note(called.params, arguments)
                        note(op.results, called.body.yields)
                    case _:
                        pass
        return len(self.numbers) > before

    def is_host(self, value: Value) -> bool:
        """True for a Python number, wherever it comes from."""
        return value in self.numbers or self.is_number(value)

    def is_data(self, value: Value) -> bool:
        """True for a tensor that data may hold: data decide no size but its first one."""
        type = value.tensor
        return all(isinstance(size, int) for size in type.shape[1:])

    def composition(self, steps: tuple[Operation, ...]) -> Composition:
        """Return the one object for these steps: operations are compared by their functions."""
        key = tuple(map(operation_key, steps))
        return self.compositions.setdefault(key, Composition(steps))

    def short_errors(
        self, operation: Operation, types: Sequence[DataType]
    ) -> tuple[Exception, ...]:
        """Return the errors that an operator raises for 0, 1, ... rows, if these are too few."""
        key = operation_key(operation), *types
        if key not in self.too_short:
            self.too_short[key] = short_errors(operation, types)
        return self.too_short[key]

    def tensor_type_of(self, value: Value) -> TensorType | RowsType:
        """Return the type of a tensor: one whose first size data decide is rows."""
        return tensor_as_data(value.tensor)

    def type_of(self, value: Value) -> DataType:
        """Return the type of a value as data."""
        type: Any = value.type
        if isinstance(type, TensorListType):
            raise CaptureError("a list of a size that the content of a tensor decides")
        if isinstance(type, TensorType):
            return scalar_of(type.dtype) if self.is_host(value) else self.tensor_type_of(value)
        return type
