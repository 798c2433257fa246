"""What a torch function returns for arguments of some types, found on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from stretto.batching.frontend.tensors.operands import NUMBERS
from stretto.batching.frontend.tensors.purity import Purity
from stretto.batching.lengths import short_errors, trial
from stretto.batching.program import Operation, call_operation
from stretto.batching.types import RowsType, Scalar, TensorType, Type
from stretto.errors import CaptureError
from stretto.ir.types import DType


@dataclass(frozen=True, slots=True)
class Results:
    """What a function returns: its structure, with types for tensors and objects for the rest."""

    leaves: tuple[Any, ...]
    structure: Any
    error: BaseException | None = None
    short: tuple[Exception, ...] = ()
    """What is raised where rows are 0, 1, ... rows, too few for the function."""


TORCH_ERRORS = (TypeError, RuntimeError, IndexError, ValueError)
"""What torch raises for arguments that do not go together; other errors are of its fake tensors."""


TRIED_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What functions of torch may raise on fake tensors, and code of the user within a module."""


class OtherSize(CaptureError):
    """A size that the instance decides is not the first one of a tensor. made: what the function
    returns for some length."""

    made: Results


class SizeOfNumber(CaptureError):
    """A size of a tensor depends on a number of the instance."""


class NotStatic(CaptureError):
    """A torch function needs the value of a tensor to say what it returns."""


def results_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: tuple[Type, ...],
) -> Results:
    """Calls the function with two values for each number that the instance decides: what it
    returns may not depend on them."""

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
                pass  # there is but one position in a dim of size 1
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
    call: Callable[[int, int], Results], length: int, types: Sequence[Type]
) -> bool:
    """Whether a function that refuses 0, as a step or a bound, returns tensors whose sizes depend
    on the numbers that it takes."""
    if not any(type_ in NUMBERS for type_ in types):
        return False
    try:
        return len({call(length, number).leaves for number in (1, 2, 3, 5)}) > 1
    except TRIED_ERRORS:
        return False


LENGTH, OTHER_LENGTH = 1009, 1013
"""Lengths of rows that are tried for the messages of errors, where they are no other number."""
_LEAST_LENGTH = 5
"""Loops over rows are as long as they are when results are looked for."""


def _of_any_length(call: Callable[[int], Results], length: int, least: int) -> Results:
    """The results where the length of rows is not known: those whose first dim follows it are
    rows. Raises CaptureError where something else depends on it."""
    try:
        made, longer = call(length), call(length + 2)
    except TRIED_ERRORS as error:
        call(LENGTH)  # raises the same, with numbers that can be told from others
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
    """The refusal of tensors whose sizes depend on a length; their number and kinds do not."""
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
    types: Sequence[Type],
    other: int,
) -> BaseException | None:
    """What is raised where one operand has another number of rows than the others, found with real
    tensors: the messages of fake ones are others."""
    lengths = dict.fromkeys(range(len(types)), LENGTH) | {other: OTHER_LENGTH}
    given = [_stand_in(type_, torch.zeros, 0, lengths[n]) for n, type_ in enumerate(types)]
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
    types: Sequence[Type],
    number: int,
    length: int,
) -> Results:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        given = [_stand_in(type_, torch.empty, number, length) for type_ in types]
    operation = Operation(function, args, kwargs, ())
    with torch.no_grad(), mode, Purity():
        result = call_operation(operation, given)
    leaves, structure = pytree.tree_flatten(result)
    return Results(tuple(map(_leaf, leaves)), structure)


def _stand_in(type_: Type, make: Callable[..., torch.Tensor], number: int, length: int) -> Any:
    """An operand of a type; `make` makes a tensor of a shape."""
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
