"""What is known of the values of a captured Program before it is lowered: which are Python numbers,
and which lists may be one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.batching.capture.instance_data import InstanceData
from stretto.batching.instance_program import Composition
from stretto.batching.instances.types import InstanceTypes
from stretto.batching.levels.tables import short_errors
from stretto.errors import CaptureError
from stretto.ir.core import Program, Value
from stretto.ir.data import (
    AssignOp,
    Operation,
    operation_key,
)
from stretto.ir.ops import (
    CallOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    LiteralOp,
    WhileOp,
)
from stretto.ir.types import (
    DataType,
    DType,
    ListType,
    RowsType,
    Scalar,
    TensorListType,
    TensorType,
    union,
)

SCALARS = {DType.BOOL: Scalar.BOOL, DType.I64: Scalar.INT, DType.F64: Scalar.FLOAT}


def scalar_of(dtype: DType) -> Scalar:
    return Scalar.BOOL if dtype is DType.BOOL else Scalar.FLOAT if dtype.is_float else Scalar.INT


@dataclass(eq=False)
class DataTypes:
    """The types that the values of a captured Program have as data."""

    program: Program
    data: InstanceData
    cells: dict[Value, int] = field(default_factory=dict[Value, int])
    """The cell of each list."""
    numbers: set[Value] = field(default_factory=set[Value])
    """Values that are Python numbers wherever they come from."""
    too_short: dict[Hashable, tuple[Exception, ...]] = field(
        default_factory=dict[Hashable, tuple[Exception, ...]]
    )
    compositions: dict[Hashable, Composition] = field(default_factory=dict[Hashable, Composition])

    def __post_init__(self) -> None:
        while self.find_numbers():
            pass
        self.find_cells()

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

    # -- cells of lists --------------------------------------------------------------------------

    def find_cells(self) -> None:
        """Find the cell of each list: lists that may be one have the same."""
        parent: dict[Value, Value] = {}

        def root(value: Value) -> Value:
            while value in parent:
                value = parent[value]
            return value

        def join(pairs: Iterable[tuple[Value, Value]]) -> None:
            for one, other in pairs:
                if isinstance(one.type, TensorListType):
                    a, b = root(one), root(other)
                    if a is not b:
                        parent[a] = b

        every: list[Value] = []
        known: dict[Value, int] = {}
        of_numbers = set(self.data.numbers)
        for function in self.program.functions.values():
            every += function.params
            for op in function.body.walk():
                every += op.results
                for block in op.blocks:
                    every += block.params
                match op:
                    case ListPushOp(found) | ListExtendOp(found) | ListSetOp(found):
                        join([(op.result, found)])
                        items = op.operands[1:]
                        if not isinstance(op, ListExtendOp) and self.is_host(items[-1]):
                            of_numbers.add(found)
                    case ListNewOp(items) if items and all(map(self.is_host, items)):
                        of_numbers.add(op.result)
                    case ListPopOp(found):
                        join([(op.results[0], found)])
                    case IfOp(_, then, orelse):
                        join(zip(op.results, then.yields, strict=True))
                        join(zip(op.results, orelse.yields, strict=True))
                    case WhileOp(inits, condition, body):
                        for values in (inits, condition.params, body.params, body.yields):
                            join(zip(op.results, values, strict=True))
                    case ForOp(inits=inits, body=body):
                        for values in (inits, body.params[1:], body.yields):
                            join(zip(op.results, values, strict=True))
                    case CallOp(name, arguments):
                        called = self.program.functions[name]
                        join(zip(called.params, arguments, strict=True))
                        join(zip(op.results, called.body.yields, strict=True))
                    case AssignOp(op="copy") if op.operands:
                        sides = (op.result, op.operands[0])
                        for value, other in (sides, sides[::-1]):
                            its: Any = other.type
                            if isinstance(its, ListType):
                                known[value] = its.cell
                    case _:
                        pass
        groups: dict[Value, list[Value]] = {}
        for value in every:
            if isinstance(value.type, TensorListType):
                groups.setdefault(root(value), []).append(value)
        for members in groups.values():
            given = [self.evaluation.merged_cell(known[v]) for v in members if v in known]
            cell = given[0] if given else self.evaluation.new_cell()
            are_numbers = not of_numbers.isdisjoint(members)
            for value in members:
                self.cells[value] = cell
                item = value.list.element
                kind: DataType = SCALARS[item.dtype] if are_numbers else item
                self.evaluation.cells[cell] = union((self.evaluation.cells[cell], kind))

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
        type = value.tensor
        if type.is_static:
            return type
        row = TensorType(type.dtype, type.shape[1:])
        if not row.is_static:
            raise CaptureError(
                f"data decide sizes of a tensor {type} other than the first one",
                remedy="make it a tensor whose first size differs from instance to instance",
            )
        return RowsType(row)

    def type_of(self, value: Value) -> DataType:
        """Return the type of a value as data."""
        type: Any = value.type
        if isinstance(type, TensorListType):
            return ListType(self.cells[value])
        if isinstance(type, TensorType):
            return scalar_of(type.dtype) if self.is_host(value) else self.tensor_type_of(value)
        return type
