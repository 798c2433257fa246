"""Results of torch functions for arguments of given types, found on fake tensors; and calls on
rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.joins import either, stop_where
from stretto.batching.frontend.purity import Purity
from stretto.batching.frontend.values import (
    Composed,
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.instance_program import Composition, call_operation, leaf_of
from stretto.batching.levels.tables import short_errors, trial
from stretto.errors import CaptureError
from stretto.ir.core import Literal, Operand, Variable
from stretto.ir.data import OperandPlaceholder, OperateOp, Operation
from stretto.ir.types import (
    DataType,
    DType,
    RowsType,
    Scalar,
    TensorType,
    UnionType,
    alternatives,
)

# ---- Operands of tensor operators.


NUMBERS = (Scalar.INT, Scalar.FLOAT, Scalar.BOOL)


def is_tensor_like(value: Value) -> bool:
    """Return True if a value may be a tensor of the instance, or contains one."""
    match value:
        case Dynamic(_, type_):
            return any(isinstance(x, TensorType | RowsType) for x in alternatives(type_))
        case Composed():
            return True
        case TupleValue(items):
            return any(map(is_tensor_like, items))
        case SliceValue(start, stop, step):
            return any(map(is_tensor_like, (start, stop, step)))
        case _:
            return False


def is_perhaps_tensor(value: Value) -> bool:
    """Return True if the instance decides if a value is a tensor, or its tensor type."""
    return (
        isinstance(value, Dynamic) and isinstance(value.type, UnionType) and is_tensor_like(value)
    )


def holds_tensor(*values: Value) -> bool:

    return any(isinstance(v, Static) and isinstance(v.value, torch.Tensor) for v in values)


def elements(kind: TensorType) -> int:
    return prod(kind.static_shape())


@dataclass(frozen=True, slots=True)
class Results:
    """The result of a function: its structure, with types for tensors and objects for other
    leaves. error: raised instead, or in addition for `OtherSize`."""

    leaves: tuple[Any, ...]
    structure: Any
    error: BaseException | None = None
    short: tuple[Exception, ...] = ()
    """The errors raised for 0, 1, ... rows, too few for the function."""


TORCH_ERRORS = (TypeError, RuntimeError, IndexError, ValueError)
"""Exceptions that torch raises for arguments that do not fit together; others come from fake
tensors."""


TRIED_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""Exceptions that torch functions, and user code within a module, may raise on fake tensors."""


class OtherSize(CaptureError):
    """A size that the instance decides is not the first one of a tensor. made: the results for
    some length."""

    made: Results


class SizeOfNumber(CaptureError):
    """A size of a tensor depends on a number of the instance."""


class NotStatic(CaptureError):
    """The type of a torch function's result depends on the content of a tensor."""


def results_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: tuple[DataType, ...],
) -> Results:
    """Return the results of a function for operand types. It is called with two values for each
    number that the instance decides, and two lengths of rows: result types may not depend on
    the numbers. Errors are stored in the results."""

    def call(length: int, number: int = 0) -> Results:
        return _called(function, args, kwargs, types, number, length)

    short: tuple[Exception, ...] = ()
    has_rows = any(isinstance(type_, RowsType) for type_ in types)
    try:
        if has_rows:
            short = short_errors(Operation(function, args, kwargs, ()), types)
        length = max(len(short) + 2, _LEAST_LENGTH)
        try:
            made = call(length) if not has_rows else _of_any_length(call, length, len(short))
        except TRIED_ERRORS:
            if not has_rows and _returns_other_sizes(call, length, types):
                raise _size_of_number() from None
            raise
        if any(type_ in NUMBERS for type_ in types):
            try:
                other = call(length, 1)
            except IndexError:
                pass  # a dim of size 1 has only position 0
            else:
                try:
                    _check_length(other, made, length)
                except CaptureError:
                    raise _size_of_number() from None
    except OtherSize as error:
        return replace(error.made, error=error, short=short)
    except (*TRIED_ERRORS, CaptureError) as error:
        return Results((), None, error)
    return replace(made, short=short)


def _size_of_number() -> SizeOfNumber:
    return SizeOfNumber(
        "the size of a tensor depends on a number of the instance",
        remedy="keep such a tensor as a list of its rows",
    )


def _returns_other_sizes(
    call: Callable[[int, int], Results], length: int, types: Sequence[DataType]
) -> bool:
    """Return True if a function that raises for the number 0, as a step or a bound, returns
    tensors whose sizes depend on the number."""
    if not any(type_ in NUMBERS for type_ in types):
        return False
    try:
        return len({call(length, number).leaves for number in (1, 2, 3, 5)}) > 1
    except TRIED_ERRORS:
        return False


LENGTH, OTHER_LENGTH = 1009, 1013
"""Lengths of rows to try for error messages: primes, unlikely to be other numbers in them."""
_LEAST_LENGTH = 5
"""Least length of rows for a call on fake tensors, so that loops over rows have several
iterations."""


def _of_any_length(call: Callable[[int], Results], length: int, least: int) -> Results:
    """Return the results for an unknown length of rows: those whose first dim follows it are rows.
    Raises CaptureError if something else depends on it."""
    try:
        made, longer = call(length), call(length + 2)
    except TRIED_ERRORS as error:
        call(LENGTH)  # raises the same error, with recognisable numbers in its message
        raise CaptureError(
            "an operator works for some numbers of rows only, which instances decide",
            remedy="go through the rows in a loop",
        ) from error
    if len(made.leaves) != len(longer.leaves):
        raise CaptureError(_OTHER_SIZE[0], remedy=_OTHER_SIZE[1])
    leaves = tuple(
        RowsType(TensorType(one.dtype, one.shape[1:]))
        if isinstance(one, TensorType) and one.shape and one != two and one.shape[0] == length
        else one
        for one, two in zip(made.leaves, longer.leaves, strict=True)
    )
    found = replace(made, leaves=leaves)
    for other, tried in ((longer, length + 2), (call(least), least)):
        try:
            _check_length(other, found, tried)
        except CaptureError as error:
            raise _other_size(made, other, error) from None
    return found


def _other_size(made: Results, other: Results, error: CaptureError) -> CaptureError:
    """Return the error for results that depend on a length: OtherSize if only their sizes do, else
    `error`."""
    kinds = [
        [(x.dtype, len(x.shape)) if isinstance(x, TensorType) else x for x in one.leaves]
        for one in (made, other)
    ]
    if kinds[0] != kinds[1] or str(made.structure) != str(other.structure):
        return error
    found = OtherSize(error.message, remedy=error.remedy)
    found.made = made
    return found


_OTHER_SIZE = (
    "a size that differs from instance to instance is not the first one of a tensor",
    "go through the rows in a loop",
)


def _check_length(found: Results, made: Results, length: int) -> None:
    if found.leaves != tuple(_with_length(leaf, length) for leaf in made.leaves):
        raise CaptureError(_OTHER_SIZE[0], remedy=_OTHER_SIZE[1])


def _with_length(leaf: Any, length: int) -> Any:
    if isinstance(leaf, RowsType):
        return TensorType(leaf.row.dtype, (length, *leaf.row.shape))
    return leaf


def error_of_lengths(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: Sequence[DataType],
    other: int,
) -> BaseException | None:
    """Return the error raised if operand `other` has another number of rows than the others, None
    if none is. Real tensors are used, since the messages of fake ones differ."""
    lengths = dict.fromkeys(range(len(types)), LENGTH) | {other: OTHER_LENGTH}
    given = [_example_operand(type_, torch.zeros, 0, lengths[n]) for n, type_ in enumerate(types)]
    try:
        with trial(), torch.no_grad():
            call_operation(Operation(function, args, kwargs, ()), given)
    except TRIED_ERRORS as error:
        return error
    return None


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: Sequence[DataType],
    number: int,
    length: int,
) -> Results:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        given = [_example_operand(type_, torch.empty, number, length) for type_ in types]
    operation = Operation(function, args, kwargs, ())
    with torch.no_grad(), mode, Purity():
        result = call_operation(operation, given)
    leaves, structure = pytree.tree_flatten(result)
    return Results(tuple(map(_leaf, leaves)), structure)


def _example_operand(
    type_: DataType, make: Callable[..., torch.Tensor], number: int, length: int
) -> Any:
    """Return an example operand of a type; `make` creates a tensor of a shape."""
    match type_:
        case TensorType(dtype, shape):
            return make(shape, dtype=dtype.torch)
        case RowsType(row):
            return make((length, *row.shape), dtype=row.dtype.torch)
        case Scalar.INT:
            return number
        case Scalar.BOOL:
            return bool(number)
        case _:
            return float(number)


def _leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        try:
            dtype = DType.from_torch(leaf.dtype)
        except KeyError:
            raise CaptureError(f"a tensor of dtype {leaf.dtype} cannot be batched") from None
        return TensorType(dtype, tuple(int(dim) for dim in leaf.shape))
    return leaf


# ---- A call of a torch function on operands of the instance, and its `OperateOp`.


@dataclass(frozen=True, slots=True)
class TorchCall:
    """A call: `args` and `kwargs` are those of an `Operation`, with an `OperandPlaceholder` per
    operand."""

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
        """Return the numbers of the operands that are rows."""
        return [n for n, item in enumerate(self.operands) if isinstance(item.type, RowsType)]

    def with_operand(self, number: int, value: Dynamic) -> TorchCall:
        operands = (*self.operands[:number], value, *self.operands[number + 1 :])
        return replace(self, operands=operands)


def length(frame: Frame, rows: Dynamic) -> Operand:
    """Return the number of rows of a value."""
    return frame.assign("len", Scalar.INT, rows.operand).operand


def length_representative(frame: Frame, rows: Dynamic) -> Variable:
    """Return the variable that represents all values with certainly as many rows as this one."""
    assert isinstance(rows.operand, Variable)
    return frame.evaluation.length_of(rows.operand)


def results(frame: Frame, call: TorchCall) -> Value:
    """Return the value of a call, all of whose operands that are rows have the same length."""
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
        frame.builder.emit(OperateOp(operation, operands, results=targets))
    for target in targets:
        if isinstance(target.type, RowsType):
            frame.evaluation.note_same_length(target, length_representative(frame, rows[0]))
    found = iter(targets)
    leaves: list[Value] = [
        Dynamic(next(found), leaf) if isinstance(leaf, TensorType | RowsType) else Static(leaf)
        for leaf in made.leaves
    ]
    return _structured(frame, leaves, made.structure)


def needs_sizes(frame: Frame, call: TorchCall) -> bool:
    """Return True if a size of a call's result is, or may be, a number of the instance."""
    error = _results_for(frame, call).error
    return isinstance(error, SizeOfNumber | RuntimeError | ValueError)


def depends_on_numbers(frame: Frame, call: TorchCall) -> bool:
    """Return True if a size of a call's result is certainly a number of the instance."""
    return isinstance(_results_for(frame, call).error, SizeOfNumber)


def _composed(frame: Frame, call: TorchCall, made: Results, refusal: CaptureError) -> Value:
    """Return the results of a call as compositions, which are run by later operations."""
    first = Operation(call.function, call.args, call.kwargs, ())
    steps = call.function.steps if isinstance(call.function, Composition) else (first,)
    count = len(call.operands)
    leaves = list[Value]()
    for number, leaf in enumerate(made.leaves):
        if not isinstance(leaf, TensorType):
            leaves.append(Static(leaf))
            continue
        last = OperandPlaceholder(count + len(steps) - 1)
        part = Operation(leaf_of, (last, number), (), ())
        several = steps if made.structure.is_leaf() else (*steps, part)
        refused = CaptureError(refusal.message, location=frame.location, remedy=refusal.remedy)
        leaves.append(
            Composed(Composition(several), call.operands, len(leaf.shape), leaf.dtype, refused)
        )
    return _structured(frame, leaves, made.structure)


def _results_for(frame: Frame, call: TorchCall) -> Results:
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
"""Parts of the names of exceptions raised when fake tensors are asked for their elements."""
_NO_DATA = "its data is not allocated yet"
"""Part of the message when a kernel reads the elements of a fake tensor."""


def fail(
    frame: Frame, call: TorchCall, error: BaseException, lengths: Sequence[tuple[str, Dynamic]]
) -> NoReturn:
    """End the path with an error of torch: an exception of the instance, or a refusal. lengths: the
    tried numbers of rows, as text, each with the rows whose length replaces it in the message."""
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
    """Split a part of a message at the number `tried`, with the operand `shown` in its place."""
    if not isinstance(part, str):
        return [part]
    first, *rest = part.split(tried)
    return [first, *(piece for text in rest for piece in (shown, text))]


def _structured(frame: Frame, leaves: list[Value], structure: Any) -> Value:
    """Return the leaves in the tuples and lists of the function's result."""
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
    """Return the identity of an object, which is kept alive so that the identity stays unique;
    scalars by value."""
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
        case OperandPlaceholder():
            return item
        case slice():
            return ("slice", *(_key(x, frame) for x in (item.start, item.stop, item.step)))
        case torch.dtype() | torch.device():
            return item
        case _:
            return _identity(item, frame)


# ---- Operators on several operands that are rows, which may have different numbers of rows.
#
# Rows are a tensor whose first size the instance decides. If two operands have equally many rows,
# the operator takes them as they are. If one has a single row, it becomes a tensor of that size,
# which torch broadcasts. Otherwise torch's error is raised.


def combined(frame: Frame, call: TorchCall, equal: frozenset[int] = frozenset()) -> Value:
    """Return the value of a call, with branches on the numbers of rows. equal: the numbers of
    operands that have as many rows as the first."""
    rows = call.rows()
    known = length_representative(frame, call.operands[rows[0]]) if rows else None
    others = [
        number
        for number in rows[1:]
        if number not in equal and length_representative(frame, call.operands[number]) is not known
    ]
    if not others:
        return results(frame, call)
    first, other = rows[0], others[0]
    mine, theirs = (length(frame, call.operands[number]) for number in (first, other))

    def are_unequal() -> Value:
        return _if_one(
            frame,
            theirs,
            lambda: combined(frame, _with_one_row(frame, call, other), equal),
            lambda: _if_one(
                frame,
                mine,
                lambda: combined(frame, _with_one_row(frame, call, first)),
                lambda: _unequal(frame, call, first, other),
            ),
        )

    test = frame.assign("eq", Scalar.BOOL, mine, theirs)
    return either(frame, test.operand, lambda: combined(frame, call, equal | {other}), are_unequal)


def _if_one(
    frame: Frame, count: Operand, then: Callable[[], Value], orelse: Callable[[], Value]
) -> Value:
    return either(frame, frame.assign("eq", Scalar.BOOL, count, Literal(1)).operand, then, orelse)


def _with_one_row(frame: Frame, call: TorchCall, number: int) -> TorchCall:
    """Return the call with an operand of one row as a tensor of known size."""
    rows = call.operands[number]
    assert isinstance(rows.type, RowsType)
    row = frame.assign("at", rows.type.row, rows.operand, Literal(0))
    made = results(frame, TorchCall(torch.unsqueeze, (OperandPlaceholder(0), 0), (), (row,)))
    assert isinstance(made, Dynamic)
    return call.with_operand(number, made)


def _unequal(frame: Frame, call: TorchCall, first: int, other: int) -> Value:
    """End the path with torch's error for numbers of rows that do not fit together; refuse
    functions that accept them."""
    types = [operand.type for operand in call.operands]
    error = error_of_lengths(call.function, call.args, call.kwargs, types, other)
    if error is None:
        frame.refuse(
            f"{call.name} takes tensors of different numbers of rows, which instances decide",
            "go through the rows in a loop",
        )
    tried = [(str(LENGTH), call.operands[first]), (str(OTHER_LENGTH), call.operands[other])]
    fail(frame, call, error, tried)
