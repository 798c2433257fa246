"""Tensors whose first size an instance has (rows), and sizes, in a captured Program.

An operator on rows is recorded like any other if its results have as many rows as its operands.
What takes some rows, or puts rows together, is a primitive on lists of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.batching.instance_program import program_operator
from stretto.batching.verifier import type_of as type_of_operand
from stretto.errors import CaptureError
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.data import OperandPlaceholder, OperateOp, Operation, RowCount
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import NEVER, ListType, RowsType, Scalar, TensorType

if TYPE_CHECKING:
    from stretto.batching.capture.function_lowering import FunctionLowering

_END = 2**63 - 1
"""The end of a slice that has none, as torch writes it."""


def first_size(value: Value) -> Size | None:
    """Return the first size of a tensor if data decide it."""
    size = value.tensor.shape[0] if value.tensor.shape else 0
    return size if isinstance(size, Size) else None


@dataclass(eq=False)
class RowsLowering:
    """Lowers sizes, and operators that take rows apart or put them together."""

    main: FunctionLowering
    numbers: dict[Symbol, Operand] = field(default_factory=dict[Symbol, Operand])
    """Sizes that are numbers of the program."""

    # -- sizes -----------------------------------------------------------------------------------

    def rows_of(self, size: Size) -> Value | None:
        """Return a value with as many rows as a size says: the first, which all later places can
        read; None if there is none."""
        main = self.main
        return next((v for v in main.values if main.has_rows(v) and first_size(v) == size), None)

    def number(self, size: int | Size) -> Operand:
        """Return a size as a number."""
        if isinstance(size, int):
            return Literal(size)
        found = size.evaluate(self.number_of, self.largest)
        return found.operand if isinstance(found, HostNumber) else Literal(found)

    def number_of(self, quantity: Any) -> HostNumber:
        """Return a symbol as a number."""
        assert isinstance(quantity, Symbol)
        known, rows = self.numbers.get(quantity), self.rows_of(Size.of(quantity))
        if known is None and rows is None:
            raise CaptureError(
                "a size is used here that another function of the program has",
                location=self.main.location,
                remedy="pass the tensor that has it as an argument",
            )
        if known is None:
            assert rows is not None
            known = self.main.assign("len", (self.main.operand(rows),), Scalar.INT)
        return HostNumber(self.main, known)

    def largest(self, one: Any, other: Any) -> HostNumber:
        return HostNumber.of(self.main, one).combined("max", other)

    def count(self, size: Size, operands: list[Operand]) -> RowCount:
        """Return a size in the arguments of an operator as a number of rows of one of its operands,
        which is added to them."""
        symbols = tuple(size.symbols)
        rows = self.rows_of(Size.of(symbols[0])) if len(symbols) == 1 else None
        if rows is None:
            self.refuse("a size that is not the number of rows of a tensor")
        assert rows is not None
        zero, one, two = (size.evaluate(lambda _, n=n: n) for n in (0, 1, 2))
        if two - one != one - zero:
            self.refuse("a size that is not a multiple of the number of rows of a tensor")
        operand = self.main.operand(rows)
        if operand not in operands:
            operands.append(operand)
        return RowCount(OperandPlaceholder(operands.index(operand)), one - zero, zero)

    def check_lengths(self, op: TensorOp) -> None:
        """Refuse an operator whose operands and results that are rows may have several lengths."""
        sizes = {first_size(v) for v in op.operands if self.main.has_rows(v)}
        made = {first_size(v) for v in op.results} - {None}
        if len(sizes) > 1 or (sizes and not made <= sizes):
            self.refuse("tensors with several numbers of rows, which the instance decides")

    def refuse(self, what: str) -> None:
        raise CaptureError(
            f"an operator needs {what}",
            location=self.main.location,
            remedy="go through the rows in a loop",
        )

    # -- operators -------------------------------------------------------------------------------

    def lowered(self, op: TensorOp) -> bool:
        """Lower an operator that takes rows apart or puts them together; False for another one."""
        main, name = self.main, op.target.split(".")[1]
        if name == "scalar_tensor" and isinstance(op.args[0], Size):
            main.values[op.result] = self.number(op.args[0])
            return True
        args = list(op.args)
        if name in ("cat", "concatenate") and isinstance(args[0], tuple):
            return self.joined(op, args[0], args[1] if len(args) > 1 else 0)
        source = args[0] if args else None
        if not isinstance(source, Value) or not source.type.shape:  # type: ignore[union-attr]
            return False
        if name not in ("select", "slice", "narrow") or (args[1] if len(args) > 1 else 0) != 0:
            return False
        if not main.has_rows(source) and not any(map(first_size, op.results)):
            return False
        rows = self.as_rows(source)
        if name == "select":
            position = self.position(args[2])
            main.values[op.result] = main.assign("at", (rows, position), op.result.tensor)
            return True
        start, end, *step = (*args[2:], None, None)[:3] if name == "slice" else (*args[2:4], None)
        if name == "narrow":
            begin = self.position(start)
            end_at = HostNumber.of(main, begin) + HostNumber.of(main, self.position(end))
            bounds = (begin, end_at.operand, Literal(None))
        else:
            bounds = tuple(map(self.bound, (start, end, *step)))
        if not first_size(op.result):
            self.refuse("the rows of a slice, of which only the instance knows how many there are")
        type = main.types.tensor_type_of(op.result)
        main.values[op.result] = main.assign("slice", (rows, *bounds), type)
        return True

    def position(self, item: Any) -> Operand:
        """Return an argument that is a position or a length as a number."""
        return self.main.number(item) if isinstance(item, Value) else self.number(item)

    def bound(self, item: Any) -> Operand:
        return Literal(None) if item is None or item == _END else self.position(item)

    def joined(self, op: TensorOp, parts: Sequence[Any], dim: Any) -> bool:
        """Lower a concatenation of rows."""
        main = self.main
        if dim % len(op.result.tensor.shape) or not first_size(op.result):
            return False
        type = main.types.tensor_type_of(op.result)
        found, *others = map(self.as_rows, parts)
        for other in others:
            found = main.assign("concat", (found, other), type, False)
        main.values[op.result] = found
        return True

    def as_rows(self, value: Value) -> Operand:
        """Return a tensor as rows: one of a known first size is taken apart."""
        main, operand = self.main, self.main.operand(value)
        kind = type_of_operand(operand)
        if not isinstance(kind, TensorType):
            return operand
        count, *shape = kind.static_shape()
        row = TensorType(kind.dtype, tuple(shape))
        names = tuple(main.fresh(row) for _ in range(count))
        if names:
            args = ((OperandPlaceholder(0), 0),)
            operation = Operation(
                program_operator("aten.unbind.int"), args, (), (row,) * count, main.location
            )
            main.emit(OperateOp(operation, (operand,), results=names, location=main.location))
        cell = main.types.evaluation.new_cell(row if names else NEVER)
        items = main.assign("list", names, ListType(cell), False)
        return main.assign("rows", (items,), RowsType(row))


@dataclass(frozen=True, slots=True)
class HostNumber:
    """A number whose arithmetic emits primitives."""

    main: FunctionLowering
    operand: Operand

    @staticmethod
    def of(main: FunctionLowering, value: Any) -> HostNumber:
        if isinstance(value, HostNumber):
            return value
        return HostNumber(main, Literal(value) if isinstance(value, int) else value)

    def combined(self, op: str, other: Any) -> HostNumber:
        operands = (self.operand, HostNumber.of(self.main, other).operand)
        return HostNumber(self.main, self.main.assign(op, operands, Scalar.INT))

    def __add__(self, other: Any) -> HostNumber:
        return self.combined("add", other)

    def __mul__(self, other: Any) -> HostNumber:
        return self.combined("mul", other)

    def __floordiv__(self, other: Any) -> HostNumber:
        return self.combined("floordiv", other)

    def __mod__(self, other: Any) -> HostNumber:
        return self.combined("mod", other)

    __radd__, __rmul__ = __add__, __mul__
