"""The InstanceProgram: control and data of one instance, and the tensor operators it records.

The front end builds it from a user's function for one instance. It consists of functions of ops
of the `data` dialect (`ir/data.py`). Its values are those of Python (mutable lists and objects
with identity, `None`, numbers, strings as tags) and tensors, of which only the types are known:
tensors are computed while a batch runs. Everything that is the same for all instances
(parameters, modules, functions, settings) has been evaluated already: parameters are arguments of
operators (`Operation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from stretto.errors import SourceLocation
from stretto.ir.core import Op, Program
from stretto.ir.data import InstanceFunction, OperandPlaceholder, OperateOp, Operation, RowCount
from stretto.ir.types import DataType, RowsType, Scalar, TensorType
from stretto.ops.infer import resolve
from stretto.ops.positions import CHECK


def inputs_of(item: Any) -> Iterator[int]:
    """Yield the numbers of the operands that have a place (`OperandPlaceholder`) in `item`, nested
    containers included."""
    match item:
        case OperandPlaceholder(number) | RowCount(OperandPlaceholder(number)):
            yield number
        case tuple() | list():
            for part in cast("list[Any]", item):
                yield from inputs_of(part)
        case dict():
            yield from inputs_of(list(cast("dict[Any, Any]", item).values()))
        case slice():
            yield from inputs_of((item.start, item.stop, item.step))
        case _:
            pass


@dataclass(frozen=True, slots=True)
class BlockStep:
    """An operation of a block. `operands` are numbers of values of the block."""

    operation: Operation
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StaticBlock:
    """A static block: straight-line tensor operators of one instance, run as one for many
    instances.

    Its values are numbered: the inputs first, then the results of each step, in order.
    `outputs` are the numbers of the values that are used outside the block.
    """

    name: str
    inputs: tuple[TensorType | RowsType | Scalar, ...]
    steps: tuple[BlockStep, ...]
    outputs: tuple[int, ...]

    @property
    def types(self) -> tuple[TensorType | RowsType | Scalar, ...]:
        """The types of all values, by number."""
        made = (type_ for step in self.steps for type_ in step.operation.results)
        return (*self.inputs, *made)

    def __call__(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Compute the outputs for one instance in eager PyTorch. Inputs are tensors, or numbers
        for scalars; rows are one tensor [L, *shape]."""
        values: list[Any] = list(inputs)
        for step in self.steps:
            given = [values[number] for number in step.operands]
            made = call_operation(step.operation, given)
            values.extend(x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor))
        return tuple(values[number] for number in self.outputs)


def filled(item: Any, operands: Sequence[Any]) -> Any:
    """Return arguments of an operation with `operands` substituted for each
    `OperandPlaceholder`."""
    match item:
        case OperandPlaceholder(number):
            return operands[number]
        case RowCount(OperandPlaceholder(number), factor, offset):
            rows = operands[number]
            if isinstance(rows, OperandPlaceholder):
                return RowCount(rows, factor, offset)
            return rows.shape[0] * factor + offset
        case tuple() if type(item) is tuple:
            return tuple(filled(part, operands) for part in item)
        case list():
            return [filled(part, operands) for part in item]
        case dict():
            return {key: filled(value, operands) for key, value in item.items()}
        case slice():
            parts = (item.start, item.stop, item.step)
            return slice(*(filled(part, operands) for part in parts))
        case _:
            return item


def call_operation(operation: Operation, operands: Sequence[Any]) -> Any:
    """Call the operation's function with these operands and return its result."""
    kwargs = {name: filled(value, operands) for name, value in operation.kwargs}
    return operation.function(*filled(operation.args, operands), **kwargs)


def rows_in(tensor: Any) -> Any:
    """Return the number of rows of a tensor."""
    return tensor.shape[0]


def leaf_of(made: Any, number: int) -> Any:
    """Return tensor number `number` (in `tree_leaves` order) of a function's result."""
    return pytree.tree_leaves(made)[number]


@cache
def tensor_places(target: str) -> frozenset[int]:
    """Return the positions of the arguments that cannot be numbers, as an operator needs tensors
    there."""
    schema: Any = resolve(target)._schema
    allows: Any = vars(torch)["_C"]
    if allows._should_allow_numbers_as_tensors(schema.name.split("::")[1]):
        return frozenset()
    return frozenset(n for n, x in enumerate(schema.arguments) if "Tensor" in str(x.type))


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _arguments(target: str, given: tuple[Any, ...]) -> list[Any]:
    """Return arguments for an operator: tensors for numbers where it takes only tensors, and lists
    for tuples."""
    places = tensor_places(target)

    def argument(item: Any, is_tensor: bool) -> Any:
        if type(item) is tuple:
            return [argument(part, is_tensor) for part in item]
        dtype = _NUMBERS.get(type(item)) if is_tensor else None
        return item if dtype is None else torch.tensor(item, dtype=dtype)

    return [argument(item, place in places) for place, item in enumerate(given)]


@dataclass(frozen=True, slots=True)
class ProgramOperator:
    """An operator of a captured Program, and the checks of its positions: as an operation's
    function, it gets the arguments of the checks and of the operator, one tuple each."""

    targets: tuple[str, ...]

    def __call__(self, *given: tuple[Any, ...], **kwargs: Any) -> Any:
        made = None
        for target, args in zip(self.targets, given, strict=True):
            arguments = _arguments(target, args)
            last = kwargs if target is self.targets[-1] else {}
            made = resolve(target)(*arguments, **last)
            if target == CHECK:
                made = arguments[0]
        return made

    @property
    def __name__(self) -> str:
        return self.targets[-1].split(".")[1]


@cache
def program_operator(*targets: str) -> ProgramOperator:
    """Return the one object for these operators: operations are compared by their functions."""
    return ProgramOperator(targets)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """A function that runs several operations and returns the result of the last one. The operands
    of a step are those of the function, followed by the results of the earlier steps."""

    steps: tuple[Operation, ...]

    def __call__(self, *operands: Any) -> Any:
        return self.run(operands, call_operation)

    def run(self, operands: Sequence[Any], call: Callable[[Operation, list[Any]], Any]) -> Any:
        """Run the steps, each by `call(operation, values)`, and return the last result."""
        values = list(operands)
        for step in self.steps:
            values.append(call(step, values))
        return values[-1]

    @property
    def name(self) -> str:
        """The name of the last function."""
        last = self.steps[-1].function
        return getattr(last, "__name__", type(last).__name__)


Body = Sequence[Op]


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of objects that instances hold or the program creates.

    kind: "object" (dataclass or plain class), "namedtuple" or "dict" (with fixed keys, the fields).
    cells: the cell of each field. absent: names that the program looked up in the class because no
    object known at that time stores them; an object that stores one is of another kind.
    """

    python: type
    kind: str
    fields: tuple[str, ...]
    cells: tuple[int, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassRemark:
    """A change that a pass made or declined to make, and the reason. what: the thing concerned."""

    what: str
    reason: str
    location: SourceLocation | None = None
    is_done: bool = False


@dataclass(eq=False, slots=True)
class InstanceProgram(Program):
    """A program for one instance, whose first function is called with the instance's parameters.

    notes: remarks of passes for `explain()`. tested: names of fields that the program tests with
    `hasattr`. joins: True if products of a block that share an operand are joined into one.
    """

    functions: dict[str, InstanceFunction]  # pyright: ignore[reportIncompatibleVariableOverride]
    classes: list[ClassInfo] = field(default_factory=list[ClassInfo])
    cells: list[DataType] = field(default_factory=list[DataType])
    blocks: list[StaticBlock] = field(default_factory=list[StaticBlock])
    notes: list[PassRemark] = field(default_factory=list[PassRemark])
    tested: frozenset[str] = frozenset()
    joins: bool = True

    @property
    def main(self) -> InstanceFunction:
        return next(iter(self.functions.values()))


def instance_program(
    functions: Iterable[InstanceFunction] = (),
    classes: Iterable[ClassInfo] = (),
    cells: Iterable[DataType] = (),
    blocks: Iterable[StaticBlock] = (),
    tested: frozenset[str] = frozenset(),
) -> InstanceProgram:
    """Return a program of functions, the first of which is its main function."""
    named = {function.name: function for function in functions}
    return InstanceProgram(
        named, classes=list(classes), cells=list(cells), blocks=list(blocks), tested=tested
    )


def walk(body: Body) -> Iterator[Op]:
    """Yield all ops of a body, nested ones included, in source order."""
    for op in body:
        yield from op.walk()


def first_location(body: Body) -> SourceLocation | None:
    """Return the first source location in a body; None if no statement has one."""
    for op in walk(body):
        location = op.operation.location if isinstance(op, OperateOp) else op.location
        if location is not None:
            return location
    return None
