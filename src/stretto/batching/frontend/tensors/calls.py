"""One call of a torch function on operands of the instance, and its `Operate` statement."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from stretto.batching.frontend.control.joins import stop_where
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Composed, Dynamic, Static, TupleValue, Value
from stretto.batching.frontend.tensors.results import (
    LENGTH,
    TORCH_ERRORS,
    NotStatic,
    OtherSize,
    Results,
    SizeOfNumber,
    results_of,
)
from stretto.batching.program import (
    Composition,
    Input,
    Literal,
    Operand,
    Operate,
    Operation,
    Variable,
    leaf_of,
)
from stretto.batching.types import RowsType, Scalar, TensorType
from stretto.errors import CaptureError


@dataclass(frozen=True, slots=True)
class Called:
    """A call: `args` and `kwargs` are those of an `Operation`, with an `Input` per operand."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    operands: tuple[Dynamic, ...]

    @property
    def name(self) -> str:
        if isinstance(self.function, Composition):
            return self.function.name
        return getattr(self.function, "__name__", type(self.function).__name__)

    def rows(self) -> list[int]:
        """The numbers of the operands that are rows."""
        return [n for n, item in enumerate(self.operands) if isinstance(item.type, RowsType)]

    def with_operand(self, number: int, value: Dynamic) -> Called:
        operands = (*self.operands[:number], value, *self.operands[number + 1 :])
        return replace(self, operands=operands)


def length(frame: Frame, rows: Dynamic) -> Operand:
    """How many rows a value has."""
    return frame.assign("len", Scalar.INT, rows.operand).operand


def stands_for(frame: Frame, rows: Dynamic) -> Variable:
    """The variable that stands for all those with surely as many rows."""
    assert isinstance(rows.operand, Variable)
    return frame.evaluation.length_of(rows.operand)


def results(frame: Frame, call: Called) -> Value:
    """The value of a call, all of whose operands that are rows are equally many."""
    made = _results_for(frame, call)
    rows = [call.operands[number] for number in call.rows()]
    if made.error is not None and not isinstance(made.error, OtherSize):
        lengths = [(str(LENGTH), rows[0])] if rows else []
        fail(frame, call, made.error, lengths)
    for count, error in enumerate(made.short):
        test = frame.assign("eq", Scalar.BOOL, length(frame, rows[0]), Literal(count))
        stop_where(frame, test.operand, type(error), str(error))
    if isinstance(made.error, OtherSize):
        return _composed(frame, call, made, made.error)
    types = tuple(leaf for leaf in made.leaves if isinstance(leaf, TensorType | RowsType))
    name = call.name.strip("_").lower()
    targets = tuple(frame.builder.variable(name, type_) for type_ in types)
    if targets:
        operation = Operation(call.function, call.args, call.kwargs, types, frame.location)
        operands = tuple(value.operand for value in call.operands)
        frame.builder.emit(Operate(targets, operation, operands))
    for target in targets:
        if isinstance(target.type, RowsType):
            frame.evaluation.has_length_of(target, stands_for(frame, rows[0]))
    found = iter(targets)
    leaves: list[Value] = [
        Dynamic(next(found), leaf) if isinstance(leaf, TensorType | RowsType) else Static(leaf)
        for leaf in made.leaves
    ]
    return _structured(frame, leaves, made.structure)


def needs_sizes(frame: Frame, call: Called) -> bool:
    """Whether what a call returns has a size that is a number of the instance, or may have."""
    error = _results_for(frame, call).error
    return isinstance(error, SizeOfNumber | RuntimeError | ValueError)


def depends_on_numbers(frame: Frame, call: Called) -> bool:
    """Whether a size of what a call returns is a number of the instance, for sure."""
    return isinstance(_results_for(frame, call).error, SizeOfNumber)


def _composed(frame: Frame, call: Called, made: Results, refusal: CaptureError) -> Value:
    """What the call returns, as calls that are made later."""
    first = Operation(call.function, call.args, call.kwargs, ())
    steps = call.function.steps if isinstance(call.function, Composition) else (first,)
    count = len(call.operands)
    leaves = list[Value]()
    for number, leaf in enumerate(made.leaves):
        if not isinstance(leaf, TensorType):
            leaves.append(Static(leaf))
            continue
        last = Input(count + len(steps) - 1)
        part = Operation(leaf_of, (last, number), (), ())
        several = steps if made.structure.is_leaf() else (*steps, part)
        refused = CaptureError(refusal.message, location=frame.location, remedy=refusal.remedy)
        leaves.append(
            Composed(Composition(several), call.operands, len(leaf.shape), leaf.dtype, refused)
        )
    return _structured(frame, leaves, made.structure)


def _results_for(frame: Frame, call: Called) -> Results:
    types = tuple(operand.type for operand in call.operands)
    key = (
        _identity(call.function, frame),
        _key(call.args, frame),
        _key(call.kwargs, frame),
        types,
    )
    memo = frame.evaluation.operations
    if key not in memo:
        memo[key] = results_of(call.function, call.args, call.kwargs, types)
    return memo[key]


_OF_CONTENT = ("DataDependent", "DynamicOutputShape", "GuardOnData")
"""In the names of what torch raises where fake tensors are asked for their elements."""
_NO_DATA = "its data is not allocated yet"
"""In the message where a kernel asks them."""


def fail(
    frame: Frame, call: Called, error: BaseException, lengths: Sequence[tuple[str, Dynamic]]
) -> NoReturn:
    """Ends the way with what torch raised: an exception of the instance, or a refusal. lengths:
    the numbers of rows that were tried, as text, which stand for those of some rows."""
    name = getattr(call.function, "__qualname__", type(call.function).__name__)
    kind = type(error).__name__
    if isinstance(error, CaptureError):
        frame.refuse(error.message, error.remedy)
    if any(text in kind for text in _OF_CONTENT) or _NO_DATA in str(error):
        raise NotStatic(
            f"what {name} returns depends on the content of a tensor",
            location=frame.location,
            remedy="decide with bool(), int() or .item() of a tensor of one element",
        ) from error
    if type(error) in TORCH_ERRORS:
        parts: list[str | Operand] = [str(error)]
        for tried, rows in lengths:
            shown = length(frame, rows)
            parts = [piece for part in parts for piece in _pieces(part, tried, shown)]
        frame.stop(type(error), *parts)
    frame.refuse(f"{name} refuses its arguments: {kind}: {str(error).splitlines()[0]}")


def _pieces(part: str | Operand, tried: str, shown: Operand) -> list[str | Operand]:
    """A part of a message with an operand where it has a number."""
    if not isinstance(part, str):
        return [part]
    first, *rest = part.split(tried)
    return [first, *(piece for text in rest for piece in (shown, text))]


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


def _identity(item: Any, frame: Frame) -> Hashable:
    """An object by its identity; it is kept, so that no other one gets the same."""
    if isinstance(item, Composition):
        return tuple(
            (_identity(x.function, frame), _key(x.args, frame), _key(x.kwargs, frame))
            for x in item.steps
        )
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
