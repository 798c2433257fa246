"""Ops of one function of a captured Program as ops on Python data, with variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stretto.batching.capture.instance_errors import OfNumber, raised_class
from stretto.batching.capture.lowered_values import LoweredValues
from stretto.batching.capture.number_lowering import NumberLowering
from stretto.batching.capture.operator_lowering import OperatorLowering
from stretto.batching.capture.rows_lowering import RowsLowering
from stretto.batching.verifier import type_of as type_of_operand
from stretto.errors import CaptureError
from stretto.ir.core import Block, Function, Literal, Op, Operand, Value, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    InstanceFunction,
    InvokeOp,
    LoopOp,
    PhaseOp,
    RaiseOp,
    ReadOp,
    ReturnOp,
    body_of,
)
from stretto.ir.failure import Failure, eager_class
from stretto.ir.ops import (
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.sizes import Size
from stretto.ir.types import (
    DataType,
    DType,
    RowsType,
    Scalar,
    TupleType,
)
from stretto.ops.effects import is_draw
from stretto.ops.positions import CHECK


@dataclass(eq=False)
class FunctionLowering(LoweredValues):
    """Lowers the ops of one function. made: the functions of the InstanceProgram, by name."""

    function: Function
    made: dict[str, InstanceFunction]

    def __post_init__(self) -> None:
        self.numbers = NumberLowering(self)
        self.rows = RowsLowering(self)
        self.operators = OperatorLowering(self, self.rows, self.numbers)

    def declare(self, result: DataType | None = None) -> None:
        """Make the function, without its ops. result: the type of its result, if it is known."""
        body, name = self.function.body, self.function.name
        params = tuple(self.variable(value) for value in body.params)
        if result is None:
            types = tuple(map(self.types.type_of, body.yields))
            result = types[0] if len(types) == 1 else TupleType(types)
        self.made[name] = InstanceFunction(name, Block(params), result, None, name)

    def lower(self, result: Callable[[FunctionLowering], Operand] | None = None) -> None:
        """Make the ops. result: makes what the function returns, if it is not what it yields."""
        made, body = self.made[self.function.name], self.function.body
        for value, variable in zip(body.params, made.parameters, strict=True):
            self.values[value] = variable
        self.reads.append({})
        self.ops(body)
        if result is not None:
            operand = result(self)
            made.result = type_of_operand(operand)
        else:
            operands = list(map(self.as_data, body.yields))
            is_one = len(operands) == 1
            operand = operands[0] if is_one else self.assign("tuple", operands, made.result)
        self.emit(ReturnOp(operand))
        made.body = Block(made.parameters, self.out)

    # -- ops -------------------------------------------------------------------------------------

    def block(self, block: Block, then: Callable[[], None]) -> Block:
        before, self.out = self.out, []
        self.reads.append({})
        self.ops(block)
        then()
        self.reads.pop()
        made, self.out = self.out, before
        return body_of(made)

    def ops(self, block: Block) -> None:
        for op in block.ops:
            self.location = op.location
            if op.blocks or isinstance(op, CallOp | CheckOp | ReadOp):
                self.operators.emit_checks()
            self.op(op)
        self.operators.emit_checks()

    def op(self, op: Op) -> None:
        match op:
            case ConstantOp(key):
                self.constants[op.result] = self.types.program.constants[key]
            case LiteralOp(value):
                held = value if op.result.tensor.dtype is not DType.F64 else float(value)
                self.values[op.result] = Literal(held)
            case TensorOp():
                self.tensor(op)
            case AssignOp(op=name, args=args, detail=detail):
                operands = tuple(self.as_data(x) if isinstance(x, Value) else x for x in args)
                if not op.results:
                    self.emit(AssignOp(name, operands, detail, location=op.location))
                    return
                type = self.types.type_of(op.result)
                if name == "copy" and isinstance(type, RowsType) and isinstance(args[0], Value):
                    self.values[op.result] = self.rows.as_rows(args[0])
                    return
                self.values[op.result] = self.assign(name, operands, type, detail)
            case ReadOp():
                self.values[op.result] = self.number(op.operands[0])
            case RaiseOp(exception, message):
                parts = tuple(self.as_data(x) if isinstance(x, Value) else x for x in message)
                self.emit(RaiseOp(exception, parts, location=op.location))
            case CheckOp(condition, failure, detail):
                self.check(condition, failure, detail)
            case IfOp():
                self.branch(op)
            case WhileOp():
                self.loop(op)
            case ForOp():
                self.counted(op)
            case CallOp():
                self.call(op)
            case PhaseOp(number):
                self.emit(PhaseOp(number, location=op.location))
            case SizeOp():
                number = self.number(op.number)
                self.values[op.result] = self.rows.numbers[op.symbol] = number
            case _:
                raise CaptureError(f"`{op.name}` is no op of an instance", location=op.location)

    def tensor(self, op: TensorOp) -> None:
        if op.target == CHECK:
            if not self.rows.checks(op):
                self.operators.checks.append(op)
            return
        if is_draw(op):
            raise CaptureError(
                f"`{op.target}` draws random numbers for an instance",
                location=op.location,
                remedy="call eval() on the model, or pass the numbers to the function",
            )
        given = op.operands
        are_numbers = all(self.is_number(value) for value in given)
        if given and len(op.results) == 1 and (are_numbers or self.types.is_number(op.result)):
            made = self.numbers.primitive(op)
            if made is not None:
                self.values[op.result] = made
                return
        if self.rows.lowered(op):
            return
        self.operators.record(op)

    def check(self, condition: Value, failure: Failure, detail: Value | None) -> None:
        flag = self.number(condition)
        before, place, after = failure.message.partition("{}")
        parts: list[Any] = [failure.message]
        if detail is not None and place:
            parts = [before, self.number(detail), after]
        error: Any = eager_class(failure.error)
        raised = failure.raised
        if error is KeyError and len(parts) == 3 and not before and not after:
            error = OfNumber(KeyError, int)
        if raised is not None:
            error = raised_class(raised)
            parts = list(raised.args)
            if error is None:
                error, parts = partial(failure.exception, None), []
        message = tuple(part for part in parts if part != "")
        self.branch_on(flag, [], [RaiseOp(error, message, location=self.location)])

    def branch(self, op: IfOp) -> None:
        flag = self.number(op.condition)
        if isinstance(flag, Literal):
            taken = op.then if flag.value else op.orelse
            self.ops(taken)
            for value, found in zip(op.results, taken.yields, strict=True):
                if found in self.constants:
                    self.constants[value] = self.constants[found]
                else:
                    self.values[value] = self.values[found]
            return
        targets = list(map(self.variable, op.results))
        arms = list[Block]()
        for block in (op.then, op.orelse):

            def leave(block: Block = block) -> None:
                for value, target in zip(block.yields, targets, strict=True):
                    self.move(value, target)

            arms.append(self.block(block, leave))
        self.emit(IfOp(flag, *arms, location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.values[value] = target

    def move(self, value: Value, target: Variable) -> None:
        self.emit(AssignOp("copy", (self.of_type(value, target.type),), results=(target,)))

    def carried(self, op: WhileOp | ForOp, params: Sequence[Value]) -> list[Variable]:
        targets = [self.variable(value) for value in params]
        for value, target in zip(op.inits, targets, strict=True):
            self.move(value, target)
        return targets

    def loop(self, op: WhileOp) -> None:
        targets = self.carried(op, op.body.params)
        for params in (op.condition.params, op.body.params):
            for value, target in zip(params, targets, strict=True):
                self.values[value] = target

        def test() -> None:
            (flag,) = op.condition.yields
            self.branch_on(self.number(flag), [], [BreakOp()])

        head = self.block(op.condition, test)
        body = self.block(op.body, lambda: self.next(op.body.yields, targets))
        self.emit(LoopOp(body_of([*head.ops, *body.ops]), location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.values[value] = target

    def next(self, values: Sequence[Value], targets: Sequence[Variable]) -> None:
        """Assign the carried variables their next values, all at once."""
        found = [self.of_type(v, t.type) for v, t in zip(values, targets, strict=True)]
        for number, operand in enumerate(found):
            if operand in targets[:number]:
                found[number] = self.assign("copy", (operand,), type_of_operand(operand))
        for operand, target in zip(found, targets, strict=True):
            if operand is not target:
                self.emit(AssignOp("copy", (operand,), results=(target,)))

    def counted(self, op: ForOp) -> None:
        index = self.fresh(Scalar.INT, "i")
        start, stop = map(self.bound, (op.start, op.stop))
        self.emit(AssignOp("copy", (start,), results=(index,)))
        targets = self.carried(op, op.body.params[1:])
        shown = self.fresh(Scalar.INT, "i")
        self.values[op.body.params[0]] = shown
        for value, target in zip(op.body.params[1:], targets, strict=True):
            self.values[value] = target
        test = self.fresh(Scalar.BOOL)
        head = [
            AssignOp("lt" if op.step > 0 else "gt", (index, stop), results=(test,)),
            IfOp(test, body_of([]), body_of([BreakOp()])),
            AssignOp("copy", (index,), results=(shown,)),
            AssignOp("add", (index, Literal(op.step)), results=(index,)),
        ]
        body = self.block(op.body, lambda: self.next(op.body.yields, targets))
        self.emit(LoopOp(body_of([*head, *body.ops]), location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.values[value] = target

    def bound(self, bound: int | Size | Value) -> Operand:
        if isinstance(bound, Size):
            return self.rows.number(bound)
        return self.number(bound) if isinstance(bound, Value) else Literal(bound)

    def call(self, op: CallOp) -> None:
        called = self.made[op.function]
        args = [
            self.of_type(value, parameter.type)
            for value, parameter in zip(op.arguments, called.parameters, strict=True)
        ]
        target = self.fresh(called.result)
        self.emit(InvokeOp(op.function, tuple(args), results=(target,), location=op.location))
        if len(op.results) == 1:
            self.values[op.result] = target
            return
        assert isinstance(called.result, TupleType)
        for number, (value, kind) in enumerate(zip(op.results, called.result.items, strict=True)):
            self.values[value] = self.assign("item", (target,), kind, number)
