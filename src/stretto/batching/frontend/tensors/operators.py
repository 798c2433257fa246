"""Calls of torch functions, as `Operate` statements.

What a function is called with becomes the static arguments of an `Operation`, with an `Input` for
each operand that the instance decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.frontend.control.joins import stop_where
from stretto.batching.frontend.control.kinds import each_type, unpacked
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, SliceValue, Static, TupleValue, Value
from stretto.batching.frontend.tensors.operands import NUMBERS
from stretto.batching.frontend.tensors.results import TORCH_ERRORS, NotStatic, Results, results_of
from stretto.batching.program import Input, Literal, Operand, Operate, Operation
from stretto.batching.types import RowsType, Scalar, TensorType, TupleType, UnionType
from stretto.errors import CaptureError


@dataclass(slots=True)
class Arguments:
    """The arguments of an operation, and its operands in order."""

    operands: list[Dynamic] = field(default_factory=list[Dynamic])

    def add(self, value: Dynamic) -> Input:
        for number, other in enumerate(self.operands):
            if other.operand is value.operand and other.type == value.type:
                return Input(number)
        self.operands.append(value)
        return Input(len(self.operands) - 1)


def call_torch(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """The value of a call of a torch function (or of a module of torch) on tensors of the
    instance. Raises NotStatic where its result depends on the content of tensors."""
    several = next(filter(None, map(_of_several_types, (*args, *kwargs.values()))), None)
    if several is not None:

        def once(one: Value) -> Value:
            given = [_replaced(value, several, one) for value in args]
            named = {name: _replaced(value, several, one) for name, value in kwargs.items()}
            return call_torch(frame, function, given, named)

        return each_type(frame, several, once)
    arguments = Arguments()
    given = tuple(_argument(frame, value, arguments) for value in args)
    named = tuple((name, _argument(frame, value, arguments)) for name, value in kwargs.items())
    made = _made(frame, function, given, named, arguments)
    return _emit(frame, function, given, named, arguments, made)


def _of_several_types(value: Value) -> Dynamic | None:
    """A value among the parts of an argument that may have one of several types."""
    match value:
        case Dynamic(_, UnionType()):
            return value
        case TupleValue(items):
            return next(filter(None, map(_of_several_types, items)), None)
        case SliceValue(start, stop, step):
            return next(filter(None, map(_of_several_types, (start, stop, step))), None)
        case _:
            return None


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
            frame.refuse("a function is handed to a tensor operator")


def _made(
    frame: Frame,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    arguments: Arguments,
) -> Results:
    types = tuple(operand.type for operand in arguments.operands)
    key = (_identity(function, frame), _key(args, frame), _key(kwargs, frame), types)
    memo = frame.evaluation.operations
    if key not in memo:
        memo[key] = results_of(function, args, kwargs, types)
    made: Results = memo[key]
    if made.error is not None:
        _raise(frame, function, made.error)
    return made


def _emit(
    frame: Frame,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    arguments: Arguments,
    made: Results,
) -> Value:
    _check_lengths(frame, arguments, made)
    types = tuple(leaf for leaf in made.leaves if isinstance(leaf, TensorType | RowsType))
    operation = Operation(function, args, kwargs, types, frame.location)
    operands: tuple[Operand, ...] = tuple(value.operand for value in arguments.operands)
    name = getattr(function, "__name__", type(function).__name__).strip("_").lower()
    targets = tuple(frame.builder.variable(name, type_) for type_ in types)
    if targets:
        frame.builder.emit(Operate(targets, operation, operands))
    found = iter(targets)
    leaves: list[Value] = [
        Dynamic(next(found), leaf) if isinstance(leaf, TensorType | RowsType) else Static(leaf)
        for leaf in made.leaves
    ]
    return _structured(frame, leaves, made.structure)


def _check_lengths(frame: Frame, arguments: Arguments, made: Results) -> None:
    """Rows that one operator takes have one length, and are some where it needs some."""
    rows = [value for value in arguments.operands if isinstance(value.type, RowsType)]
    lengths = [frame.assign("len", Scalar.INT, value.operand) for value in rows[:1]]
    if not rows or (len(rows) < 2 and made.empty is None):
        return
    for other in rows[1:]:
        length = frame.assign("len", Scalar.INT, other.operand)
        wrong = frame.assign("ne", Scalar.BOOL, lengths[0].operand, length.operand)
        mine, theirs = lengths[0].operand, length.operand
        parts = ("tensors of ", mine, " and of ", theirs, " rows are combined")
        stop_where(frame, wrong.operand, RuntimeError, *parts)
    if made.empty is not None:
        none = frame.assign("eq", Scalar.BOOL, lengths[0].operand, Literal(0))
        stop_where(frame, none.operand, type(made.empty), str(made.empty))


def _structured(frame: Frame, leaves: list[Value], structure: Any) -> Value:
    """The leaves in the tuples and lists that the function returned them in."""
    if structure.is_leaf():
        return leaves.pop(0)
    children: Any = (
        structure.children() if callable(structure.children) else structure.children_specs
    )
    parts = tuple(_structured(frame, leaves, child) for child in children)
    kind = structure.type
    if kind is tuple or (isinstance(kind, type) and issubclass(kind, tuple)):
        return TupleValue(parts, names=tuple(getattr(kind, "__match_args__", ())))
    if kind is list:
        return TupleValue(parts, is_list=True)
    return frame.refuse(f"a tensor operator returns a {kind.__name__}")


def _raise(frame: Frame, function: Callable[..., Any], error: BaseException) -> None:
    name = getattr(function, "__qualname__", type(function).__name__)
    kind = type(error).__name__
    if isinstance(error, CaptureError):
        frame.refuse(error.message, error.remedy)
    if type(error) in TORCH_ERRORS:
        frame.stop(type(error), str(error))
    if "DataDependent" in kind or "DynamicOutputShape" in kind or "GuardOnData" in kind:
        raise NotStatic(
            f"what {name} returns depends on the content of a tensor",
            location=frame.location,
            remedy="decide with bool(), int() or .item() of a tensor of one element",
        ) from error
    frame.refuse(f"{name} refuses its arguments: {kind}: {str(error).splitlines()[0]}")


def _identity(item: Any, frame: Frame) -> Hashable:
    """An object by its identity; it is kept, so that no other one gets the same."""
    if isinstance(item, int | float | str | bool | type(None)):
        return (type(item), item)
    frame.evaluation.kept.append(item)
    return id(item)


def _key(item: Any, frame: Frame) -> Hashable:
    match item:
        case tuple() | list():
            return (type(item), *(_key(part, frame) for part in item))
        case Input():
            return item
        case slice():
            return ("slice", *(_key(x, frame) for x in (item.start, item.stop, item.step)))
        case torch.dtype() | torch.device():
            return item
        case _:
            return _identity(item, frame)


def getitem(frame: Frame, value: Value, index: Value) -> Value:
    """value[index], where one of them has tensors of the instance."""
    return call_torch(frame, operator.getitem, [value, index], {})
