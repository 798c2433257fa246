"""Calls of torch functions on values: the conversion of their arguments to those of an
`Operation`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from stretto.batching.frontend import python_library
from stretto.batching.frontend.dispatch import apply
from stretto.batching.frontend.frame import Frame, rows_count
from stretto.batching.frontend.joins import each_type, unpacked
from stretto.batching.frontend.tensor_results import (
    NUMBERS,
    TorchCall,
    combined,
    depends_on_numbers,
    needs_sizes,
)
from stretto.batching.frontend.values import (
    Composed,
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
    constant,
    is_static,
)
from stretto.batching.instance_program import Composition, filled
from stretto.ir.core import Literal, Variable
from stretto.ir.data import OperandPlaceholder, Operation
from stretto.ir.types import (
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
)

# ---- Tensors that no variable of an instance program can hold, because a size that the instance
# decides is not their first one, as in `x @ x.T`. They are represented by the calls that compute
# them (`Composed`).
#
# An operator on such a tensor joins its calls in one composition, whose operands variables hold.
# Once the composition returns a tensor of known size, or rows, it is one operation of the program.


def composed_in(value: Value) -> list[Composed]:
    """Return the `Composed` values in an argument."""
    match value:
        case Composed():
            return [value]
        case TupleValue(items):
            return [found for item in items for found in composed_in(item)]
        case SliceValue(start, stop, step):
            return [found for item in (start, stop, step) for found in composed_in(item)]
        case _:
            return []


class CompositionBuilder:
    """The steps of a composition under construction. Operands are numbered from 0; results of
    steps get negative numbers until the number of operands is known."""

    def __init__(self) -> None:
        self._steps: list[Operation] = []
        self._made: dict[int, OperandPlaceholder] = {}

    def result(self, value: Composed, operands: Sequence[OperandPlaceholder]) -> OperandPlaceholder:
        """Return the place of the result of a composed value; its steps are added once."""
        if id(value) not in self._made:
            places: list[Any] = list(operands)
            for step in value.composition.steps:
                args, kwargs = filled((step.args, dict(step.kwargs)), places)
                places.append(self.add(step.function, args, tuple(kwargs.items())))
            self._made[id(value)] = places[-1]
        return self._made[id(value)]

    def add(
        self, function: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
    ) -> OperandPlaceholder:
        self._steps.append(Operation(function, args, kwargs, ()))
        return OperandPlaceholder(-len(self._steps))

    def composition(self, count: int) -> Composition:
        """Return the function of `count` operands that runs all steps and returns the result of
        the last."""
        places = [OperandPlaceholder(n) for n in range(count)]
        results = [OperandPlaceholder(count + n) for n in range(len(self._steps))]
        order = [*places, *reversed(results)]  # the first step's result is -1, at the end
        steps = list[Operation]()
        for step in self._steps:
            args, kwargs = filled((step.args, dict(step.kwargs)), order)
            steps.append(Operation(step.function, args, tuple(kwargs.items()), ()))
        return Composition(tuple(steps))


@dataclass(slots=True)
class Arguments:
    """The arguments of an operation under construction, and its distinct operands in order."""

    operands: list[Dynamic] = field(default_factory=list[Dynamic])
    joined: CompositionBuilder = field(default_factory=CompositionBuilder)

    def add(self, value: Dynamic) -> OperandPlaceholder:
        for number, other in enumerate(self.operands):
            if other.operand is value.operand and other.type == value.type:
                return OperandPlaceholder(number)
        self.operands.append(value)
        return OperandPlaceholder(len(self.operands) - 1)


def call_torch(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Return the value of a call of a torch function (or of a torch module) on tensors of the
    instance. Raises NotStatic if its result depends on the content of tensors."""
    several = next(_unions((*args, *kwargs.values())), None)
    if several is not None:
        _check_combinations(frame, function, (*args, *kwargs.values()))

        def once(one: Value) -> Value:
            given = [_replaced(value, several, one) for value in args]
            named = {name: _replaced(value, several, one) for name, value in kwargs.items()}
            return call_torch(frame, function, given, named)

        return each_type(frame, several, once)
    arguments = Arguments()
    given = tuple(_argument(frame, value, arguments) for value in args)
    named = tuple((name, _argument(frame, value, arguments)) for name, value in kwargs.items())
    operands = tuple(arguments.operands)
    counted = frame.evaluation.counts.keys() & {item.operand for item in operands}
    if counted and needs_sizes(frame, TorchCall(function, given, named, operands)):
        args = [_sizes(frame, value) for value in args]
        kwargs = {name: _sizes(frame, value) for name, value in kwargs.items()}
        return call_torch(frame, function, args, kwargs)
    numbers = any(map(_has_number, (*args, *kwargs.values())))
    if numbers and depends_on_numbers(frame, TorchCall(function, given, named, operands)):
        args = [_ints_as_row_counts(frame, value) for value in args]
        kwargs = {name: _ints_as_row_counts(frame, value) for name, value in kwargs.items()}
        return call_torch(frame, function, args, kwargs)
    if any(map(composed_in, (*args, *kwargs.values()))):
        arguments.joined.add(function, given, named)
        function = arguments.joined.composition(len(operands))
        given, named = tuple(map(OperandPlaceholder, range(len(operands)))), ()
    return combined(frame, TorchCall(function, given, named, operands))


MOST_COMBINATIONS = 256
"""Largest number of combinations of the types of one call's operands, each of which becomes a
call."""


def _check_combinations(frame: Frame, function: Any, values: Iterable[Value]) -> None:
    found = {value.operand: len(list(alternatives(value.type))) for value in _unions(values)}
    count = prod(found.values())
    if count > MOST_COMBINATIONS:
        name = getattr(function, "__name__", type(function).__name__)
        frame.refuse(
            f"{name} has {len(found)} operands, each of which may have one of several types: "
            f"{count} combinations",
            "keep values of one type in one place: a field of a class, or an item of a short tuple",
        )


def _unions(values: Iterable[Value]) -> Iterator[Dynamic]:
    for value in values:
        match value:
            case Dynamic(_, UnionType()):
                yield value
            case TupleValue(items):
                yield from _unions(items)
            case SliceValue(start, stop, step):
                yield from _unions((start, stop, step))
            case _:
                pass


def _sizes(frame: Frame, value: Value) -> Value:
    """Return an argument in which numbers computed from numbers of rows are compositions on those
    rows."""
    match value:
        case Dynamic(Variable() as number):
            return frame.evaluation.counts.get(number, value)
        case TupleValue(items, is_list, names):
            return TupleValue(tuple(_sizes(frame, item) for item in items), is_list, names)
        case SliceValue(start, stop, step):
            return SliceValue(*(_sizes(frame, item) for item in (start, stop, step)))
        case _:
            return value


_ROW = torch.zeros(())
"""Item of the rows that are created to represent a number of the instance."""


def _has_number(value: Value) -> bool:
    """Return True if `_ints_as_row_counts` would change an argument. It does not change bounds of
    slices, which may be negative."""
    match value:
        case Dynamic(Variable(), Scalar.INT):
            return True
        case TupleValue(items):
            return any(map(_has_number, items))
        case _:
            return False


def _ints_as_row_counts(frame: Frame, value: Value) -> Value:
    """Return an argument in which each int of the instance is the number of rows of a new value,
    so that it may be a size."""
    match value:
        case Dynamic(Variable(), Scalar.INT):
            rows = apply(frame, Static(python_library.rows_as_many), [value, Static(_ROW)])
            return rows_count(frame.dynamic(rows))
        case TupleValue(items, is_list, names):
            return TupleValue(
                tuple(_ints_as_row_counts(frame, item) for item in items), is_list, names
            )
        case _:
            return value


def _replaced(value: Value, part: Dynamic, new: Value) -> Value:
    match value:
        case Dynamic():
            return new if value is part else value
        case TupleValue(items, is_list, names):
            return TupleValue(tuple(_replaced(x, part, new) for x in items), is_list, names)
        case SliceValue(start, stop, step):
            return SliceValue(*(_replaced(x, part, new) for x in (start, stop, step)))
        case _:
            return value


def _argument(frame: Frame, value: Value, arguments: Arguments) -> Any:
    match value:
        case Composed(operands=operands):
            return arguments.joined.result(value, [arguments.add(item) for item in operands])
        case Static(item):
            return item
        case Dynamic(Literal(item), _):
            return item
        case TupleValue(items, is_list):
            made = [_argument(frame, item, arguments) for item in items]
            return made if is_list else tuple(made)
        case SliceValue(start, stop, step):
            return slice(*(_argument(frame, item, arguments) for item in (start, stop, step)))
        case Dynamic(_, type_):
            if isinstance(type_, TensorType | RowsType) or type_ in NUMBERS:
                return arguments.add(value)
            if type_ is Scalar.NONE:
                return None
            if isinstance(type_, TupleType):
                return tuple(
                    _argument(frame, item, arguments) for item in unpacked(frame, value, type_)
                )
            frame.refuse(
                f"an operand of a tensor operator is {frame.show(type_)}",
                "a tensor operator takes tensors and numbers",
            )
        case _:
            frame.refuse("a function is an argument of a tensor operator")


def getitem(frame: Frame, value: Value, index: Value) -> Value:
    """Return value[index], where one of them contains tensors of the instance."""
    if isinstance(index, SliceValue) and constant(index.step) in (None, 1):
        size = _size_of(value)
        if size is not None and not (is_static(index.start) and is_static(index.stop)):
            bounds = [value, index.start, index.stop, Static(size)]
            return apply(frame, Static(python_library.rows_between), bounds)
    return call_torch(frame, operator.getitem, [value, index], {})


def _size_of(value: Value) -> int | None:
    """Return the first dim of a tensor; None if it is not known."""
    match value:
        case Static(torch.Tensor() as tensor) if tensor.ndim:
            return tensor.shape[0]
        case Dynamic(_, TensorType(_, (int(size), *_))):
            return size
        case _:
            return None
