"""Scalar functions get what they take, and results have the dtype of the memory they go to."""

from __future__ import annotations

from stretto.device.expr import Apply, Expr, index_parts, parts
from stretto.device.functions import FUNCTIONS, Result
from stretto.device.operator import SORTS, Operator
from stretto.errors import VerifyError
from stretto.ir.types import DType

POSITIONS = ("argmax", "argmin", *SORTS)
"""Reductions whose result is a position, whatever they reduce."""


def check_operator_types(operator: Operator, what: str) -> None:
    """Raises VerifyError for an expression whose dtypes do not fit together. What is added to
    memory of f16 or bf16 may be f32, the dtype in which it is added."""
    check_types(operator.value, what)
    for index in operator.out.index:
        for part in index_parts(index):
            _check(part, what)
    result = DType.I64 if operator.combine in POSITIONS else operator.value.dtype
    buffer = operator.out.buffer
    halves = operator.accumulate and buffer.dtype in (DType.F16, DType.BF16)
    if result is not buffer.dtype and not (halves and result is DType.F32):
        raise VerifyError(f"{what} stores {result.value} into {buffer.name}, {buffer.dtype.value}")


def check_types(expr: Expr, what: str) -> None:
    """Raises VerifyError for a function of arguments that it does not take."""
    for part in parts(expr):
        _check(part, what)


def _check(expr: Expr, what: str) -> None:
    if not isinstance(expr, Apply):
        return
    known = FUNCTIONS.get(expr.function)
    if known is None or len(expr.args) != known.arity:
        raise VerifyError(f"{what} calls {expr.function} with {len(expr.args)} arguments")
    given = [argument.dtype for argument in expr.args]
    if not _fits(known.result, given, expr.dtype):
        names = ", ".join(dtype.value for dtype in given)
        raise VerifyError(f"{what} calls {expr.function} of {names} as {expr.dtype.value}")


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
