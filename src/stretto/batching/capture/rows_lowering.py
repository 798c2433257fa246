"""Tensors whose first size an instance has (rows), and sizes, in a captured Program.

An operator on rows is recorded like any other if its results have as many rows as its operands.
What takes some rows, or puts rows together, is a primitive on lists of rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.batching.capture.lowered_values import LoweredValues
from stretto.batching.instance_program import program_operator
from stretto.batching.verifier import type_of as type_of_operand
from stretto.errors import CaptureError
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.data import OperandPlaceholder, OperateOp, Operation, RaiseOp, RowCount
from stretto.ir.failure import eager_class
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import NEVER, ListType, RowsType, Scalar, TensorType
from stretto.ops.positions import position_failure

_SHOWN_SIZE = 2**61 - 1
"""A size that stands for a size of the instance in a message."""
_END = 2**63 - 1
"""The end of a slice that has none, as torch writes it."""


def first_size(value: Value) -> Size | None:
    """Return the first size of a tensor if data decide it."""
    type = value.type
    size = type.shape[0] if isinstance(type, TensorType) and type.shape else 0
    return size if isinstance(size, Size) else None


def placeholder(operand: Operand, operands: list[Operand]) -> OperandPlaceholder:
    """Return the place of an operand, which is added to the operands if it is new."""
    if operand not in operands:
        operands.append(operand)
    return OperandPlaceholder(operands.index(operand))


@dataclass(eq=False)
class RowsLowering:
    """Lowers sizes, and operators that take rows apart or put them together."""

    main: LoweredValues
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
        return RowCount(placeholder(self.main.operand(rows), operands), one - zero, zero)

    def check_lengths(self, ops: Sequence[TensorOp]) -> None:
        """Refuse operators, which become one, if their operands and results that are rows may have
        several lengths."""
        (last,) = ops[-1:]
        is_joined = last.target == "aten.cat.default" and any(map(first_size, last.results))
        if is_joined and len(ops) == 1:
            self.check_joined(last)
            return
        sizes = {first_size(v) for op in ops for v in op.operands if self.main.has_rows(v)}
        made = {first_size(v) for v in last.results} - {None}
        if len(sizes) > 1 or (sizes and not made <= sizes):
            self.refuse("tensors with several numbers of rows, which the instance decides")

    def check_joined(self, op: TensorOp) -> None:
        """Emit checks that tensors which are joined in another dim have equally many rows."""
        main, (parts, *dims) = self.main, op.args
        assert isinstance(parts, tuple)
        first, *others = parts
        assert isinstance(first, Value)
        wanted = first_size(first) or first.tensor.shape[0]
        expected = self.number(wanted)
        for number, other in enumerate(others, 1):
            assert isinstance(other, Value)
            size = first_size(other) or other.tensor.shape[0]
            if size == wanted:
                continue
            found = self.number(size)
            flag = main.assign("eq", (expected, found), Scalar.BOOL)
            before = f"Sizes of tensors must match except in dimension {dims[0] if dims else 0}. "
            message = (
                f"{before}Expected size ",
                expected,
                " but got size ",
                found,
                f" for tensor number {number} in the list.",
            )
            main.branch_on(flag, [], [RaiseOp(RuntimeError, message, location=main.location)])

    def check_short(self, operation: Operation, operands: Sequence[Operand]) -> None:
        """Emit checks of the numbers of rows that are too few for an operator."""
        types = list(map(type_of_operand, operands))
        rows = next((x for x in operands if isinstance(type_of_operand(x), RowsType)), None)
        if rows is None:
            return
        main, count = self.main, self.main.assign("len", (rows,), Scalar.INT)
        for number, error in enumerate(main.types.short_errors(operation, types)):
            flag = main.assign("ne", (count, Literal(number)), Scalar.BOOL)
            raised = RaiseOp(type(error), (str(error),), location=main.location)
            main.branch_on(flag, [], [raised])

    def checks(self, op: TensorOp) -> bool:
        """Lower a check of a position among rows to one of numbers; False for another check."""
        main, (values, size, length, operator, dim, wraps) = self.main, op.args
        is_number = isinstance(values, Value) and main.is_number(values)
        if not is_number or not isinstance(size, Size) or not isinstance(length, int):
            return False
        assert isinstance(values, Value) and isinstance(dim, int)
        count, position = self.number(size), main.number(values)
        low = main.assign("neg", (count,), Scalar.INT) if wraps else Literal(0)
        last: Operand = position
        if length != 1:
            last = main.assign("add", (position, Literal(length - 1)), Scalar.INT)
        tests = (
            main.assign("ge", (position, low), Scalar.BOOL),
            main.assign("lt", (last, count), Scalar.BOOL),
        )
        flag = main.assign("and", tests, Scalar.BOOL)
        failure = position_failure(str(operator), _SHOWN_SIZE, length, dim)
        shown = {"{}": position, str(_SHOWN_SIZE): count}
        parts = re.split(f"({{}}|{_SHOWN_SIZE})", failure.message)
        message = tuple(shown.get(part, part) for part in parts if part)
        error = eager_class(failure.error)
        main.branch_on(flag, [], [RaiseOp(error, message, location=main.location)])
        return True

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
        if not isinstance(source, Value) or not source.tensor.shape:
            return False
        if name not in ("select", "slice", "narrow") or (args[1] if len(args) > 1 else 0) != 0:
            return False
        if name == "select" and not main.has_rows(source):
            return False
        if name != "select" and not first_size(op.result) and not main.has_rows(source):
            return False
        rows = self.as_rows(source)
        if name == "select":
            main.values[op.result] = self.row(rows, self.position(args[2]), op.result.tensor)
            return True
        start, end, *step = (*args[2:], None, None)[:3] if name == "slice" else (*args[2:4], None)
        if not first_size(op.result):
            if step not in ([None], [1]):
                return False
            self.window(op, rows, self.position(start or 0))
            return True
        if name == "narrow":
            begin = self.position(start)
            end_at = HostNumber.of(main, begin) + HostNumber.of(main, self.position(end))
            bounds = (begin, end_at.operand, Literal(None))
        else:
            bounds = tuple(map(self.bound, (start, end, *step)))
        type = main.types.tensor_type_of(op.result)
        main.values[op.result] = main.assign("slice", (rows, *bounds), type)
        return True

    def row(self, rows: Operand, position: Operand, type: TensorType) -> Operand:
        return self.main.assign("at", (rows, position), type)

    def window(self, op: TensorOp, rows: Operand, start: Operand) -> None:
        """Lower a slice of known length, whose bounds have been checked: its rows are stacked."""
        main, type = self.main, op.result.tensor
        count, *shape = type.static_shape()
        row, begin = TensorType(type.dtype, tuple(shape)), HostNumber.of(main, start)
        length = main.assign("len", (rows,), Scalar.INT)
        flag = main.assign("le", ((begin + count).operand, length), Scalar.BOOL)
        middle = f") + length ({count}) exceeds dimension size ("
        message = ("start (", start, middle, length, ").")
        main.branch_on(flag, [], [RaiseOp(RuntimeError, message, location=main.location)])
        given = [self.row(rows, (begin + n).operand, row) for n in range(count)]
        places = tuple(map(OperandPlaceholder, range(count)))
        target = main.values[op.result] = main.fresh(type)
        if not given:
            self.refuse("no rows of a tensor")
        stack = program_operator("aten.stack.default")
        operation = Operation(stack, ((places,),), (), (type,), main.location)
        main.emit(OperateOp(operation, tuple(given), results=(target,), location=main.location))

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

    main: LoweredValues
    operand: Operand

    @staticmethod
    def of(main: LoweredValues, value: Any) -> HostNumber:
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
