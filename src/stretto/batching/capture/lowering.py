"""From the captured Program of a function for one instance to an InstanceProgram.

The Program is in SSA form: blocks yield, lists are values. Here results of branches and loops
become variables, and lists and numbers become Python data: an operator on numbers is a primitive, a
list that nothing reads any more is changed in place. The other operators are recorded for the
batch. A number in a tensor is read where Python data or control needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.capture.instance_data import InstanceData
from stretto.batching.frontend.evaluation import Evaluation
from stretto.batching.frontend.frame import tensor_type
from stretto.batching.instance_program import InstanceProgram, instance_program, program_operator
from stretto.errors import CaptureError
from stretto.ir.core import Block, Function, Literal, Op, Operand, Program, Value, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    InstanceFunction,
    InvokeOp,
    LoopOp,
    OperandPlaceholder,
    OperateOp,
    Operation,
    RaiseOp,
    ReadOp,
    ReturnOp,
    body_of,
)
from stretto.ir.failure import eager_class
from stretto.ir.ops import (
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.types import (
    NEVER,
    DataType,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorListType,
    TensorType,
    TupleType,
    union,
)
from stretto.ops.positions import CHECK

_PRIMITIVES = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "floor_divide": "floordiv",
    "remainder": "mod", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor", "bitwise_and": "and",
    "bitwise_or": "or", "bitwise_xor": "xor", "minimum": "min", "maximum": "max",
    "logical_not": "not", "neg": "neg", "abs": "abs", "bitwise_not": "invert",
}  # fmt: skip
"""The primitives that compute operators of ATen on numbers."""
_MATH = frozenset(
    [
        "sqrt",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "tanh",
        "floor",
        "ceil",
        "atan",
        "asin",
        "acos",
        "sinh",
        "cosh",
    ]
)
_OF_LITERALS: dict[type, Scalar] = {
    bool: Scalar.BOOL,
    int: Scalar.INT,
    float: Scalar.FLOAT,
    str: Scalar.STR,
}
_FREE_OF_STRIDES = {"aten.view.default": "aten.reshape.default"}
"""Operators that depend on strides, which values of a Program have not, and what they compute."""
_SCALARS = {DType.BOOL: Scalar.BOOL, DType.I64: Scalar.INT, DType.F64: Scalar.FLOAT}


def scalar_of(dtype: DType) -> Scalar:
    return Scalar.BOOL if dtype is DType.BOOL else Scalar.FLOAT if dtype.is_float else Scalar.INT


@dataclass(frozen=True, slots=True)
class YieldedResult:
    """The part of a result that the Program yields as value number `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class SharedResult:
    """A part of a result that is the same for all instances."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class MadeResult:
    """A container or an object that the function makes, with its parts by position or name."""

    kind: type
    parts: dict[Any, ResultPart]


ResultPart = YieldedResult | SharedResult | MadeResult


@dataclass(eq=False)
class InstanceLowering:
    """Lowers a Program. result: the structure of what the main function returns."""

    program: Program
    data: InstanceData
    result: ResultPart
    functions: dict[str, InstanceFunction] = field(default_factory=dict[str, InstanceFunction])
    cells: dict[Value, int] = field(default_factory=dict[Value, int])
    """The cell of each list."""

    @property
    def evaluation(self) -> Evaluation:
        return self.data.evaluation

    def is_number(self, value: Value) -> bool:
        """True for a value that the capture knows as a Python number."""
        return value in self.data.numbers

    numbers: set[Value] = field(default_factory=set)
    """Values that are Python numbers wherever they come from."""

    def run(self) -> InstanceProgram:
        while self.find_numbers():
            pass
        self.find_cells()
        for function in self.program.functions.values():
            InstanceFunctionLowering(self, function).declare()
        for function in self.program.functions.values():
            InstanceFunctionLowering(self, function).lower()
        infos = self.evaluation.classes.infos
        return instance_program(self.functions.values(), infos, self.evaluation.cells)

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
                    case TensorOp() if len(op.results) == 1 and op.operands:
                        scalar = not op.results[0].tensor.shape
                        if scalar and all(map(self.is_host, op.operands)):
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
                kind: DataType = _SCALARS[item.dtype] if are_numbers else item
                self.evaluation.cells[cell] = union((self.evaluation.cells[cell], kind))

    def type_of(self, value: Value) -> DataType:
        type: Any = value.type
        if isinstance(type, TensorListType):
            return ListType(self.cells[value])
        if isinstance(type, TensorType):
            if self.is_host(value):
                return scalar_of(type.dtype)
            if type.shape and not isinstance(type.shape[0], int):
                return RowsType(TensorType(type.dtype, type.shape[1:]))
        return type


Path = tuple[int, ...]


@dataclass(eq=False)
class InstanceFunctionLowering:
    whole: InstanceLowering
    function: Function
    values: dict[Value, Operand] = field(default_factory=dict)
    parts: dict[ResultPart, Operand] = field(default_factory=dict[ResultPart, Operand])
    """The parts of the result that are built."""
    host: set[Value] = field(default_factory=set)
    """Values that are Python numbers, not tensors."""
    constants: dict[Value, Any] = field(default_factory=dict)
    reads: list[dict[Value, Variable]] = field(default_factory=list)
    out: list[Op] = field(default_factory=list)
    count: int = 0
    uses: dict[Value, list[Path]] = field(default_factory=dict)
    path: Path = ()
    kinds: dict[Path, str] = field(default_factory=dict)
    shared: set[Value] = field(default_factory=set)
    """Lists that the program must not change in place."""

    @property
    def is_main(self) -> bool:
        return self.function.name == "main"

    def declare(self) -> None:
        body = self.function.body
        params = tuple(self.variable(value) for value in body.params)
        if self.is_main:
            result: DataType = NEVER
        elif len(body.yields) == 1:
            result = self.number_type(body.yields[0])
        else:
            result = TupleType(tuple(map(self.number_type, body.yields)))
        made = InstanceFunction(self.function.name, Block(params), result, None, self.function.name)
        self.whole.functions[self.function.name] = made

    def number_type(self, value: Value) -> DataType:
        return self.whole.type_of(value)

    def lower(self) -> None:
        made = self.whole.functions[self.function.name]
        for value, variable in zip(self.function.params, made.parameters, strict=True):
            self.bind(value, variable)
            self.shared.add(value)
        self.find_uses(self.function.body, ())
        self.reads.append({})
        self.ops(self.function.body, ())
        body = self.function.body
        if self.is_main:
            operand = self.built(self.whole.result)
            made.result = self.type_of_operand(operand)
        else:
            leaves = [self.yielded(value, self.number_type(value)) for value in body.yields]
            if len(leaves) == 1:
                operand = leaves[0]
            else:
                target = self.fresh(made.result)
                self.emit(AssignOp("tuple", tuple(leaves), results=(target,)))
                operand = target
        self.emit(ReturnOp(operand))
        made.body = Block(made.parameters, self.out)

    # -- uses ------------------------------------------------------------------------------------

    def find_uses(self, block: Block, path: Path) -> None:
        for number, op in enumerate(block.ops):
            here = (*path, number)
            for value in op.operands:
                self.uses.setdefault(value, []).append(here)
            for index, inner in enumerate(op.blocks):
                self.kinds[(*here, index)] = type(op).__name__
                self.find_uses(inner, (*here, index))
        for value in block.yields:
            self.uses.setdefault(value, []).append((*path, len(block.ops)))

    def is_last_use(self, value: Value, home: Path) -> bool:
        """True if nothing reads a value after the op at `self.path`. home: its block."""
        here = self.path
        for depth in range(len(home), len(here) - 1):
            if depth % 2 and self.kinds.get(here[: depth + 1]) in ("WhileOp", "ForOp"):
                return False
        for use in self.uses.get(value, ()):
            if use == here:
                continue
            for depth, (one, other) in enumerate(zip(use, here, strict=False)):
                if one != other:
                    if depth % 2:  # another arm
                        break
                    if one > other:
                        return False
                    break
        return True

    # -- variables -------------------------------------------------------------------------------

    def variable(self, value: Value, type: DataType | None = None) -> Variable:
        return self.fresh(self.whole.type_of(value) if type is None else type, value.hint)

    def fresh(self, type: DataType, hint: str = "") -> Variable:
        self.count += 1
        return Variable(f"{hint or 'v'}_{self.count}", type)

    def bind(self, value: Value, operand: Operand) -> None:
        self.values[value] = operand
        if self.type_of_operand(operand) in _SCALARS.values():
            self.host.add(value)

    @staticmethod
    def type_of_operand(operand: Operand) -> DataType:
        if isinstance(operand, Variable):
            return operand.type
        held = operand.value
        return Scalar.NONE if held is None else _OF_LITERALS[type(held)]

    def emit(self, op: Op) -> None:
        self.out.append(op)

    def assign(
        self, op: str, args: Sequence[Operand], type: DataType, detail: Any = None
    ) -> Variable:
        target = self.fresh(type)
        self.emit(AssignOp(op, tuple(args), detail, results=(target,), location=self.location))
        return target

    location: Any = None
    checks: list[TensorOp] = field(default_factory=list)
    """Checks of positions, for the next operators that use them."""

    def operand(self, value: Value) -> Operand:
        """Return a value as an operand of an op on data."""
        if value in self.constants:
            return self.assign("shared", (), value.type, self.constants[value])  # type: ignore[arg-type]
        return self.values[value]

    def as_data(self, value: Value) -> Operand:
        """Return a value as part of data: what is a Python number is no tensor there."""
        return self.yielded(value, self.whole.type_of(value))

    def number(self, value: Value) -> Operand:
        """Return a value as a Python number."""
        if value in self.host:
            return self.values[value]
        for known in reversed(self.reads):
            if value in known:
                return known[value]
        target = self.fresh(scalar_of(value.tensor.dtype))
        self.emit(ReadOp(self.operand(value), results=(target,), location=self.location))
        self.reads[-1][value] = target
        return target

    def yielded(self, value: Value, type: DataType) -> Operand:
        return self.number(value) if type in _SCALARS.values() else self.operand(value)

    # -- ops -------------------------------------------------------------------------------------

    def block(self, block: Block, path: Path, then: Callable[[], None]) -> Block:
        before, self.out = self.out, []
        self.reads.append({})
        self.ops(block, path)
        self.path = (*path, len(block.ops))
        then()
        self.reads.pop()
        made, self.out = self.out, before
        return body_of(made)

    def ops(self, block: Block, path: Path) -> None:
        for number, op in enumerate(block.ops):
            self.path = (*path, number)
            self.location = op.location
            self.op(op)
        self.path = (*path, len(block.ops))

    def op(self, op: Op) -> None:
        match op:
            case ConstantOp(key):
                self.constants[op.result] = self.whole.program.constants[key]
            case LiteralOp(value):
                held = value if op.result.tensor.dtype is not DType.F64 else float(value)
                self.bind(op.result, Literal(held))
            case TensorOp():
                self.tensor(op)
            case AssignOp(op=name, args=args, detail=detail):
                if name == "copy" and isinstance(args[0], Value) and args[0] in self.whole.cells:
                    self.bind(op.result, self.owned(args[0]))
                    return
                operands = tuple(self.as_data(x) if isinstance(x, Value) else x for x in args)
                if not op.results:
                    self.emit(AssignOp(name, operands, detail, location=op.location))
                    return
                if name == "copy" and isinstance(op.result.type, TensorListType):
                    self.values[op.result] = operands[0]
                    self.shared.add(op.result)
                    return
                made = self.assign(name, operands, self.whole.type_of(op.result), detail)
                self.bind(op.result, made)
            case ReadOp():
                self.bind(op.result, self.number(op.operands[0]))
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
            case SizeOp():
                self.bind(op.result, self.number(op.number))
            case _:
                self.list_op(op)

    def tensor(self, op: TensorOp) -> None:
        if op.target == CHECK:
            self.checks.append(op)
            return
        given = op.operands
        are_numbers = all(value in self.host for value in given)
        if given and len(op.results) == 1 and (are_numbers or self.whole.is_number(op.result)):
            made = self.primitive(op)
            if made is not None:
                self.bind(op.result, made)
                return
        operands: list[Operand] = []

        def place(item: Any) -> Any:
            if isinstance(item, Value):
                if item in self.constants:
                    return self.constants[item]
                found = self.values[item]
                if isinstance(found, Literal):
                    return found.value
                if found not in operands:
                    operands.append(found)
                return OperandPlaceholder(operands.index(found))
            if isinstance(item, tuple):
                return tuple([place(part) for part in item])
            return item

        checks = [c for c in self.checks if not set(c.operands).isdisjoint(op.operands)]
        self.checks = [c for c in self.checks if c not in checks]
        args = tuple(tuple(map(place, one.args)) for one in (*checks, op))
        kwargs = tuple((name, place(item)) for name, item in op.kwargs)
        results = tuple(self.whole.type_of(value) for value in op.results)
        results = tuple(
            value.type if kind in _SCALARS.values() else kind  # read where it is needed
            for value, kind in zip(op.results, results, strict=True)
        )
        targets = tuple(self.fresh(kind) for kind in results)  # type: ignore[arg-type]
        names = (*(one.target for one in checks), _FREE_OF_STRIDES.get(op.target, op.target))
        operation = Operation(program_operator(*names), args, kwargs, results, op.location)  # type: ignore[arg-type]
        self.emit(OperateOp(operation, tuple(operands), results=targets, location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.values[value] = target

    def primitive(self, op: TensorOp) -> Operand | None:
        """Return the result of an operator on numbers as a primitive; None if there is none."""
        name = op.target.split(".")[1]
        kind = scalar_of(op.result.tensor.dtype)
        if op.result.tensor.shape or (op.kwargs and name not in ("_to_copy", "div")):
            return None

        if not all(isinstance(item, Value | bool | int | float) for item in op.args):
            return None
        args = [
            self.number(item) if isinstance(item, Value) else Literal(item)  # type: ignore[arg-type]
            for item in op.args
        ]
        if name in ("_to_copy", "clone", "alias"):
            (value,) = args
            before = self.type_of_operand(value)
            if before is kind:
                return value
            if kind is Scalar.BOOL:
                return self.assign("truth", (value,), kind)
            return self.assign("to_int" if kind is Scalar.INT else "to_float", (value,), kind)
        if name == "where":
            flag, one, other = args
            target = self.fresh(kind)
            arms = [body_of([AssignOp("copy", (x,), results=(target,))]) for x in (one, other)]
            self.emit(IfOp(flag, *arms))  # type: ignore[arg-type]
            return target
        if name == "rsub":
            return self.assign("sub", (args[1], args[0]), kind)
        if op.kwargs:
            mode = dict(op.kwargs).get("rounding_mode")
            if mode != "floor":
                return None
            name = "floor_divide"
        if name in _MATH and len(args) == 1:
            return self.assign("math", args, kind, name)  # type: ignore[arg-type]
        found = _PRIMITIVES.get(name)
        if found is None or len(args) > 2:
            return None
        if found in ("and", "or", "xor") and name.startswith("logical"):
            args = [
                x
                if self.type_of_operand(x) is Scalar.BOOL
                else self.assign("truth", (x,), Scalar.BOOL)
                for x in args
            ]
        return self.assign(found, args, kind)  # type: ignore[arg-type]

    def truth(self, operand: Operand) -> Operand:
        if self.type_of_operand(operand) is Scalar.BOOL:
            return operand
        return self.assign("truth", (operand,), Scalar.BOOL)

    def check(self, condition: Value, failure: Any, detail: Value | None) -> None:
        flag = self.number(condition)
        parts: list[Any] = [failure.message]
        if detail is not None and "{}" in failure.message:
            before, after = failure.message.split("{}", 1)
            parts = [before, self.number(detail), after]
        kind = eager_class(failure.error) if failure.raised is None else failure.raised
        message = tuple(part for part in parts if part != "")
        stop = RaiseOp(kind, message, location=self.location)  # type: ignore[arg-type]
        if isinstance(flag, Literal):
            if not flag.value:
                self.emit(stop)
            return
        self.emit(IfOp(flag, body_of([]), body_of([stop]), location=self.location))  # type: ignore[arg-type]

    def branch(self, op: IfOp) -> None:
        flag, path = self.number(op.condition), self.path
        if isinstance(flag, Literal):
            taken = op.then if flag.value else op.orelse
            self.ops(taken, (*path, 0 if flag.value else 1))
            self.path = path
            for value, found in zip(op.results, taken.yields, strict=True):
                if found in self.constants:
                    self.constants[value] = self.constants[found]
                else:
                    self.bind(value, self.values[found])
            return
        types = [self.result_type(op, number) for number in range(len(op.results))]
        targets = [self.variable(v, t) for v, t in zip(op.results, types, strict=True)]
        arms: list[Block] = []
        for number, block in enumerate((op.then, op.orelse)):

            def leave(block: Block = block) -> None:
                for value, target in zip(block.yields, targets, strict=True):
                    self.move(value, target)

            arms.append(self.block(block, (*path, number), leave))
        self.path = path
        self.emit(IfOp(flag, *arms, location=op.location))  # type: ignore[arg-type]
        for value, target in zip(op.results, targets, strict=True):
            self.bind(value, target)

    def move(self, value: Value, target: Variable) -> None:
        operand = self.yielded(value, target.type)
        if isinstance(value.type, TensorListType):
            operand = self.owned(value)
        self.emit(AssignOp("copy", (operand,), results=(target,)))

    def result_type(self, op: IfOp, number: int) -> DataType:
        return self.whole.type_of(op.results[number])

    def carried(self, op: WhileOp | ForOp, params: Sequence[Value]) -> list[Variable]:
        targets = [self.variable(value) for value in params]
        for value, target in zip(op.inits, targets, strict=True):
            self.move(value, target)
        return targets

    def loop(self, op: WhileOp) -> None:
        path = self.path
        targets = self.carried(op, op.body.params)
        for params in (op.condition.params, op.body.params):
            for value, target in zip(params, targets, strict=True):
                self.bind(value, target)

        def test() -> None:
            (flag,) = op.condition.yields
            found = self.number(flag)
            if isinstance(found, Variable):
                self.emit(IfOp(found, body_of([]), body_of([BreakOp()])))
            elif not found.value:
                self.emit(BreakOp())

        head = self.block(op.condition, (*path, 0), test)
        body = self.block(op.body, (*path, 1), lambda: self.next(op.body.yields, targets))
        self.path = path
        self.emit(LoopOp(body_of([*head.ops, *body.ops]), location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.bind(value, target)

    def next(self, values: Sequence[Value], targets: Sequence[Variable]) -> None:
        """Assign the carried variables their next values, all at once."""
        found = [
            self.owned(v) if isinstance(v.type, TensorListType) else self.yielded(v, t.type)
            for v, t in zip(values, targets, strict=True)
        ]
        for number, operand in enumerate(found):
            if operand in targets[:number]:
                found[number] = self.assign("copy", (operand,), self.type_of_operand(operand))
        for operand, target in zip(found, targets, strict=True):
            if operand is not target:
                self.emit(AssignOp("copy", (operand,), results=(target,)))

    def counted(self, op: ForOp) -> None:
        path = self.path
        index = self.fresh(Scalar.INT, "i")
        start, stop = (
            self.number(x) if isinstance(x, Value) else Literal(int(x))  # type: ignore[arg-type]
            for x in (op.start, op.stop)
        )
        self.emit(AssignOp("copy", (start,), results=(index,)))
        targets = self.carried(op, op.body.params[1:])
        shown = self.fresh(Scalar.INT, "i")
        self.bind(op.body.params[0], shown)
        for value, target in zip(op.body.params[1:], targets, strict=True):
            self.bind(value, target)
        test = self.fresh(Scalar.BOOL)
        head = [
            AssignOp("lt" if op.step > 0 else "gt", (index, stop), results=(test,)),
            IfOp(test, body_of([]), body_of([BreakOp()])),
            AssignOp("copy", (index,), results=(shown,)),
            AssignOp("add", (index, Literal(op.step)), results=(index,)),
        ]
        body = self.block(op.body, (*path, 0), lambda: self.next(op.body.yields, targets))
        self.path = path
        self.emit(LoopOp(body_of([*head, *body.ops]), location=op.location))
        for value, target in zip(op.results, targets, strict=True):
            self.bind(value, target)

    def call(self, op: CallOp) -> None:
        called = self.whole.functions[op.function]
        args = [
            self.yielded(value, parameter.type)
            for value, parameter in zip(op.arguments, called.parameters, strict=True)
        ]
        target = self.fresh(called.result)
        self.emit(InvokeOp(op.function, tuple(args), results=(target,), location=op.location))
        if len(op.results) == 1:
            self.bind(op.result, target)
            return
        assert isinstance(called.result, TupleType)
        for number, (value, kind) in enumerate(zip(op.results, called.result.items, strict=True)):
            self.bind(value, self.assign("item", (target,), kind, number))

    # -- lists -----------------------------------------------------------------------------------

    def owned(self, value: Value) -> Operand:
        """Return a list that may be changed in place: a copy, if somebody else may read it."""
        found = self.values[value]
        if value not in self.shared and self.is_last_use(value, self.home(value)):
            return found
        return self.assign("to_list", (found,), self.type_of_operand(found), False)

    def home(self, value: Value) -> Path:
        if not self.homes:
            self.find_homes(self.function.body, ())
        return self.homes[value]

    homes: dict[Value, Path] = field(default_factory=dict)

    def find_homes(self, block: Block, path: Path) -> None:
        for value in block.params:
            self.homes[value] = path
        for number, op in enumerate(block.ops):
            for value in op.results:
                self.homes[value] = path
            for index, inner in enumerate(op.blocks):
                self.find_homes(inner, (*path, number, index))

    def list_op(self, op: Op) -> None:
        match op:
            case ListNewOp(items):
                kind = self.whole.type_of(op.result)
                item = self.whole.evaluation.cells[kind.cell]  # type: ignore[union-attr]
                given = [self.yielded(value, item) for value in items]
                self.bind(op.result, self.assign("list", given, kind, False))
            case ListPushOp(found, item):
                made = self.owned(found)
                self.change("append", made, self.yielded(item, self.item_type(found)))
                self.values[op.result] = made
            case ListExtendOp(found, rows):
                made = self.owned(found)
                self.change("extend", made, self.operand(rows))
                self.values[op.result] = made
            case ListSetOp(found, index, item):
                made = self.owned(found)
                held = self.yielded(item, self.item_type(found))
                self.change("put", made, self.number(index), held)
                self.values[op.result] = made
            case ListPopOp(found):
                made = self.owned(found)
                item = self.assign("pop", (made,), self.item_type(found))
                self.values[op.results[0]] = made
                self.bind(op.results[1], item)
            case ListGetOp(found, index):
                given = (self.values[found], self.number(index))
                self.bind(op.result, self.assign("at", given, self.item_type(found)))
            case ListLengthOp(found):
                self.bind(op.result, self.assign("len", (self.values[found],), Scalar.INT))
            case ListStackOp(found):
                self.bind(
                    op.result,
                    self.assign("rows", (self.values[found],), self.whole.type_of(op.result)),
                )
            case _:
                raise CaptureError(f"`{op.name}` is no op of an instance", location=op.location)

    def item_type(self, value: Value) -> DataType:
        return self.whole.evaluation.cells[self.whole.cells[value]]

    def change(self, op: str, *args: Operand) -> None:
        self.emit(AssignOp(op, args, location=self.location))

    # -- the result ------------------------------------------------------------------------------

    def built(self, part: ResultPart) -> Operand:
        """Return a part of the result as data."""
        if part not in self.parts:
            self.parts[part] = self.new_part(part)
        return self.parts[part]

    def new_part(self, part: ResultPart) -> Operand:
        match part:
            case YieldedResult(number):
                value = self.function.body.yields[number]
                return self.yielded(value, self.whole.type_of(value))
            case SharedResult(None | bool() | int() | float() | str() as value):
                return Literal(value)
            case SharedResult(torch.Tensor() as tensor):
                return self.assign("shared", (), tensor_type(tensor), tensor)
            case SharedResult(value):
                raise CaptureError(f"a {type(value).__name__} is returned")
            case MadeResult():
                pass
        evaluation, kind = self.whole.evaluation, part.kind
        items = [self.built(item) for item in part.parts.values()]
        types = list(map(self.type_of_operand, items))
        if kind is tuple:
            return self.assign("tuple", items, TupleType(tuple(types)))
        if kind is list:
            cell = evaluation.new_cell(union(types))
            return self.assign("list", items, ListType(cell), False)
        names = tuple(part.parts)
        number = evaluation.class_number(kind, "dict" if kind is dict else "object", names)
        for name, its in zip(names, types, strict=True):
            cell = evaluation.field_cell(RecordType(number), name)
            assert cell is not None
            evaluation.cells[cell] = union((evaluation.cells[cell], its))
        return self.assign("record", items, RecordType(number), (number, names))
