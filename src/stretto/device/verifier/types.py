"""Scalar functions get what they take, and results have the dtype of the memory they go to."""

from __future__ import annotations

from stretto.device.expr import Apply, Dynamic, Expr, Index, Load, Position
from stretto.device.functions import FUNCTIONS, Result
from stretto.device.operator import SORTS, Operator
from stretto.errors import VerifyError
from stretto.ir.types import DType

POSITIONS = ("argmax", "argmin", *SORTS)
"""Reductions whose result is a position, whatever they reduce."""


def check_operator_types(operator: Operator, what: str) -> None:
    """Raises VerifyError for an expression whose dtypes do not fit together."""
    check_types(operator.value, what)
    for index in operator.out.index:
        _check_index(index, what)
    result = DType.I64 if operator.combine in POSITIONS else operator.value.dtype
    buffer = operator.out.buffer
    if result is not buffer.dtype:
        raise VerifyError(f"{what} stores {result.value} into {buffer.name}, {buffer.dtype.value}")


def check_types(expr: Expr, what: str) -> None:
    match expr:
        case Apply(function, args, dtype):
            for argument in args:
                check_types(argument, what)
            known = FUNCTIONS.get(function)
            if known is None or len(args) != known.arity:
                raise VerifyError(f"{what} calls {function} with {len(args)} arguments")
            if not _fits(known.result, [argument.dtype for argument in args], dtype):
                given = ", ".join(argument.dtype.value for argument in args)
                raise VerifyError(f"{what} calls {function} of {given} as {dtype.value}")
        case Load(access):
            for index in access.index:
                _check_index(index, what)
        case Position(index):
            _check_index(index, what)
        case _:
            pass


def _check_index(index: Index, what: str) -> None:
    if index.is_affine:
        return
    for atom in index.atoms():
        if isinstance(atom, Dynamic):
            check_types(atom.value, what)


def _fits(result: Result, given: list[DType], dtype: DType) -> bool:
    first, same = given[0], len(set(given)) == 1
    match result:
        case Result.SAME:
            return same and dtype is first
        case Result.FLOAT:
            return same and dtype is first and dtype.is_float
        case Result.INTEGER:
            return dtype is first and dtype.is_integer
        case Result.LOGICAL:
            return same and first is DType.BOOL and dtype is DType.BOOL
        case Result.BITS:
            return same and dtype is first and not dtype.is_float
        case Result.TEST:
            return same and dtype is DType.BOOL
        case Result.ARMS:
            return first is DType.BOOL and given[1] is given[2] is dtype
        case Result.CHOSEN:
            return True
