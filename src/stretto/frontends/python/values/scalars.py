"""Traced numbers: which results are numbers, what is known about them, how values are unified."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stretto.frontends.python.tracing.contents import evaluated, known_content
from stretto.frontends.python.tracing.fakes import tensors_of
from stretto.frontends.python.tracing.signals import NeedsUnroll, abort
from stretto.frontends.python.tracing.tensor import (
    SIZE_BITS,
    UNKNOWN_BITS,
    Hooks,
    LinearForm,
    NumberMark,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.ir.core import Value
from stretto.ir.data import AssignOp
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size, Symbol, symbols_in
from stretto.ir.types import FLAG, DType, TensorListType, TensorType

# ---- Upper bounds on the bits of the absolute value of a Python int.
#
# An int that depends on a tensor has 64 bits in a Program. If the bits of the operands prove that
# the result fits, an operator needs no check. A value carried by a loop counts as one of
# `COUNTER_BITS` if an iteration only adds or subtracts values of `SMALL_BITS`: no run lasts long
# enough for it to leave this range.


aten = torch.ops.aten

MOST_BITS = 63
"""The bits of an absolute value that certainly fits."""
COUNTER_BITS = 62
SMALL_BITS = 32
_OF_DTYPES = {torch.bool: 1, torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32}


def bits_of(number: Any) -> int:
    """Return an upper bound on the bits of an int, a bool or a size, traced or not."""
    if isinstance(number, torch.SymInt):
        return SIZE_BITS
    if not isinstance(number, TracedTensor):
        return int(number).bit_length()
    own = UNKNOWN_BITS if number.number is None else number.number.bits
    return min(own, _OF_DTYPES.get(number.dtype, own))


def bits_of_items(tensor: torch.Tensor) -> int:
    """Return an upper bound on the bits of the result of `item()`."""
    return _OF_DTYPES.get(tensor.dtype, UNKNOWN_BITS)


_OPERATORS = {
    aten.add: "add",
    aten.sub: "sub",
    aten.rsub: "rsub",
    aten.mul: "mul",
    aten.neg: "neg",
    aten.abs: "abs",
    aten.floor_divide: "floordiv",
    aten.remainder: "mod",
    aten.bitwise_and: "and",
    aten.bitwise_or: "or",
    aten.bitwise_xor: "xor",
    aten.minimum: "or",
    aten.maximum: "or",
    aten._to_copy: "pos",
    aten.__rshift__: "rshift",
}
"""The operators of Python that compute operators of ATen on numbers."""


def result_bits(name: str, first: Any, second: Any) -> int:
    """Return an upper bound on the bits of the result of a Python operator on ints."""
    one, other = bits_of(first), 0 if second is None else bits_of(second)
    most, least = max(one, other), min(one, other)
    match name:
        case "neg" | "abs" | "pos" | "invert" | "floordiv":
            return one if one <= MOST_BITS else UNKNOWN_BITS
        case "add" | "sub":
            counts = most == COUNTER_BITS and least <= SMALL_BITS
            return most if counts else _bounded(most + 1)
        case "mul":
            return _bounded(one + other)
        case "pow":
            if isinstance(second, int) and second >= 0:
                return _bounded(one * second)
            return UNKNOWN_BITS
        case "lshift":
            return _bounded(one + second) if isinstance(second, int) else UNKNOWN_BITS
        case "mod":
            return other
        case "rshift":
            return one
        case _:
            return most


def _bounded(bits: int) -> int:
    return min(bits, UNKNOWN_BITS)


def python_dtype(kind: type) -> DType:
    """Return the dtype that represents a Python type."""
    if kind is bool:
        return DType.BOOL
    return DType.I64 if kind is int else DType.F64


def python_kind(dtype: DType) -> type:
    """Return the Python type of a traced number of `dtype`."""
    if dtype is DType.BOOL:
        return bool
    return float if dtype.is_float else int


def number_kind(value: Any) -> type | None:
    """Return the Python type of a number, traced or not; None for anything else."""
    if isinstance(value, bool | int | float):
        return type(value)
    return python_kind(DType.from_torch(value.dtype)) if is_number(value) else None


def most_bits(*leaves: Any) -> int:
    """Return an upper bound on the bits of all ints among the leaves."""
    ints = [leaf for leaf in leaves if number_kind(leaf) in (bool, int)]
    return max(map(bits_of, ints), default=UNKNOWN_BITS)


def is_number(value: Any) -> bool:
    """True for a traced number."""
    return isinstance(value, TracedTensor) and value.number is not None


def result_number(func: Any, args: Any, kwargs: Any) -> NumberMark | None:
    """Return the mark of a result, which is a number if all tensor operands are numbers; else
    None."""
    tensors = tensors_of((args, kwargs))
    if not tensors or not all(is_number(x) for x in tensors):
        return None
    name = _OPERATORS.get(func.overloadpacket)
    if name is None or (kwargs and name != "pos"):
        return mark_of(None, *tensors)
    first, *others = args[:2]
    return mark_of("sub", *others, first) if name == "rsub" else mark_of(name, first, *others)


def mark_of(name: str | None, *operands: Any) -> NumberMark:
    """Return the mark of the result of an operator on numbers, traced or not. name: the operator
    of Python, if it is one."""
    marks = [x.number for x in operands if isinstance(x, TracedTensor) and x.number is not None]
    loops = frozenset[int]().union(*(mark.loops for mark in marks))
    are_ints = all(isinstance(x, int | torch.SymInt | TracedTensor) for x in operands)
    if name is None or not are_ints:
        return NumberMark(None, loops)
    first, *others = operands
    bits = result_bits(name, first, others[0] if others else None)
    return NumberMark(_result_linear(name, operands), loops, bits)


def linear_of(value: Any) -> LinearForm | None:
    """Return the linear form of an int, traced or not; None if it is not known."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return LinearForm(frozenset(), value)
    if isinstance(value, TracedTensor) and value.number is not None:
        return value.number.linear
    return None


def _result_linear(name: str, operands: tuple[Any, ...]) -> LinearForm | None:
    parts = [linear_of(item) for item in operands]
    match name, parts:
        case "neg", [LinearForm() as first]:
            return first.times(-1)
        case "add" | "sub", [LinearForm() as first, LinearForm() as second]:
            return first.plus(second, 1 if name == "add" else -1)
        case "mul", [LinearForm() as first, LinearForm(terms=terms, constant=factor)] if not terms:
            return first.times(factor)
        case "mul", [LinearForm(terms=terms, constant=factor), LinearForm() as second] if not terms:
            return second.times(factor)
        case _:
            return None


_REFUSALS: dict[type[Exception], str] = {
    RuntimeError: "a Tensor with {} elements cannot be converted to Scalar",
    TypeError: "only integer tensors of a single element can be converted to an index",
    ValueError: "only one element tensors can be converted to Python scalars",
}


def to_number(tensor: TracedTensor, refusal: type[Exception] = RuntimeError) -> TracedTensor:
    """Return a tensor of one element as a traced number. For others raises the error of
    `tensor.item()`, with TypeError that of an index, and with ValueError that of `float()`."""
    if tensor.number is not None:
        return tensor
    if tensor.numel() != 1:
        raise refusal(_REFUSALS[refusal].format(tensor.numel()))
    state = tracer()
    flat: Any = tensor.reshape(()) if tensor.dim() else tensor
    value = state.read(as_numbers(flat))
    if state.data is not None:
        value = state.data.number_in(value)
    return state.number(value, bits=bits_of_items(flat))


def as_numbers(tensor: Any) -> Any:
    """Return a tensor converted to the dtype of Python numbers: int64, float64 or bool."""
    dtype = DType.from_torch(tensor.dtype)
    if dtype.is_integer and dtype is not DType.I64:
        return tensor.to(torch.int64)
    return tensor.to(torch.float64) if dtype.is_float and dtype is not DType.F64 else tensor


def cast_number(value: Any, kind: type) -> Any:
    """Return int(), float() or bool() of a traced tensor."""
    number = to_number(value, ValueError)
    if tracer().data is not None:
        return tracer().data.converted(number, kind)
    if kind is bool:
        return number_of(number != 0) if number.dtype != torch.bool else number
    if kind is int:
        if number.dtype == torch.int64:
            return number
        return number_of(torch.ops.aten._to_copy.default(number, dtype=torch.int64))
    if number.dtype.is_floating_point:
        return number
    return number_of(torch.ops.aten._to_copy.default(number, dtype=torch.float64))


def number_of(tensor: Any) -> TracedTensor:
    """Return a tensor of one element as a traced number."""
    return to_number(tensor)


def flag_of(condition: Any) -> Value:
    """Return the truth of a traced tensor as a bool without dims."""
    state = tracer()
    if condition.numel() != 1:
        if condition.numel() == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    flat = condition.reshape(()) if condition.dim() else condition
    if flat.dtype != torch.bool:
        flat = flat != 0
    value = state.read(flat)
    assert value.type == FLAG
    if state.data is not None and condition.number is None:
        return state.data.number_in(value)
    return value


_KNOWN_FREE: frozenset[tuple[Value, int]] = frozenset()


def concrete(tensor: torch.Tensor, kind: str, *, reading: bool = True) -> Any:
    """Return a Python number from a tensor whose value is known; else raise a signal. reading: it
    may become known by reading external tensors."""
    if not isinstance(tensor, TracedTensor):
        found = known_content(tensor)
        tensor = tracer().promote(tensor) if found is None else tensor
    else:
        found = _known_without_inputs(tensor, reading=reading)
    if isinstance(found, torch.Tensor):
        with tracer().native():
            return found.item()
    if found is not None:
        return found
    remedy = "keep it a tensor (torch.where, index_select), or compute it outside and pass it in"
    sourceless = tracer().sourceless
    if sourceless:
        remedy = (
            f"define '{sourceless[-1]}' in a file that does not change after it is imported: its "
            f"control flow cannot be read; or {remedy}"
        )
    stop = abort(
        f"a Python {kind} is needed here, but the value is that of a traced tensor", remedy
    )
    if isinstance(tensor, TracedTensor) and tensor.number is not None and tensor.number.loops:
        raise NeedsUnroll(tensor.number.loops, stop)
    raise stop


def _known_without_inputs(tensor: TracedTensor, *, reading: bool) -> torch.Tensor | int | None:
    known = known_value(tensor)
    if known is not None or tensor.numel() != 1:
        return known
    found = evaluated(tracer().read(tensor))
    return known_content(tensor) if found is None and reading else found


def known_value(tensor: TracedTensor) -> int | None:
    """Return the value of a traced number that is in fact constant, else None."""
    linear = tensor.number.linear if tensor.number is not None else None
    return linear.constant if linear is not None and linear.terms == _KNOWN_FREE else None


@dataclass(frozen=True, slots=True)
class LeafKind:
    """The representation of a leaf in the Program: a type, and True for a Python number.

    rows: the dim along which a tensor is a list of the Program, because its size there is
    data-dependent.
    """

    type: TensorType | TensorListType
    number: bool
    rows: int | None = None


def unify(first: LeafKind, second: LeafKind) -> LeafKind | None:
    """Return the kind that can hold both, or None if eager PyTorch distinguishes them: an int is
    not a float of the same value, a number is no tensor, and tensors have a dtype."""
    a, b = first.type, second.type
    if first.rows is not None or second.rows is not None:
        return _unified_rows(first, second)
    if isinstance(a, TensorListType) or isinstance(b, TensorListType):
        if a == b and first.number == second.number:
            return first
        return None
    if first == second:
        return first
    if any(type(side) is not TensorType for side in (a, b)):
        return tracer().data.unified(first, second)
    if first.number and second.number and python_kind(a.dtype) is python_kind(b.dtype):
        return LeafKind(TensorType(_promoted(a.dtype, b.dtype)), True)
    data = tracer().data
    return None if data is None or first.number or second.number else data.unified_rows(a, b)


def _unified_rows(first: LeafKind, second: LeafKind) -> LeafKind | None:
    """Return the common kind of tensors that are lists of rows; one of them may be a tensor with
    such rows."""
    if first.rows is None:
        first, second = second, first
    other = second
    if second.rows is None and isinstance(second.type, TensorType) and not second.number:
        other = _as_rows(second.type, first.rows)
    return first if other == first else None


def _as_rows(type: TensorType, dim: int | None) -> LeafKind | None:
    if dim is None or dim >= type.rank:
        return None
    item = TensorType(type.dtype, (*type.shape[:dim], *type.shape[dim + 1 :]))
    is_known = tracer().symbol_dims.keys().isdisjoint(symbols_in(item.shape))
    return LeafKind(TensorListType(item), False, dim) if is_known else None


def unify_rows(
    first: LeafKind | None, second: LeafKind | None, *, promote: bool
) -> LeafKind | None:
    """Return a common kind of tensors that differ in one dim of data-dependent size: a list of
    their slices along it. `promote`: also if the sizes are numbers."""
    if first is None or second is None or first.number or second.number:
        return None
    if tracer().data is not None:  # `unify` has found what they have in common
        return None
    a, b = first.type, second.type
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.rank != b.rank:
        return None
    dims = [dim for dim, pair in enumerate(zip(a.shape, b.shape, strict=True)) if len({*pair}) > 1]
    if len(dims) != 1 or a.dtype is not b.dtype:
        return None
    sizes = (a.shape[dims[0]], b.shape[dims[0]])
    symbols = tracer().symbol_dims
    decided = any(isinstance(s, Size) and not symbols.keys().isdisjoint(s.symbols) for s in sizes)
    kinds = _as_rows(a, dims[0]), _as_rows(b, dims[0])
    return kinds[0] if kinds[0] == kinds[1] and (decided or promote) else None


def kind_after_branch(kind: LeafKind) -> LeafKind:
    """Return the kind, after a branch, of a tensor that only one arm has. A dim whose size is
    decided in the arm makes it a list of its slices."""
    state = tracer()
    if state.data is not None:
        return state.data.kind_after_branch(kind)
    values = state.symbol_values.items()
    return _rows_of(kind, {symbol for symbol, value in values if not state.is_known(value)})


def decided_rows(kind: LeafKind) -> LeafKind:
    """Return the common kind of tensors that differ in their only data-dependent size."""
    return _rows_of(kind, set(tracer().symbol_dims))


def _rows_of(kind: LeafKind, hidden: set[Symbol]) -> LeafKind:
    """Return the kind, or that of a list of slices along the only dim with one of these symbols."""
    type = kind.type
    if not isinstance(type, TensorType) or kind.number:
        return kind
    dims = [
        dim
        for dim, size in enumerate(type.shape)
        if isinstance(size, Size) and not hidden.isdisjoint(size.symbols)
    ]
    return (_as_rows(type, dims[0]) if len(dims) == 1 else None) or kind


def _promoted(first: DType, second: DType) -> DType:
    return DType.from_torch(torch.promote_types(first.torch, second.torch))


def cast_value(value: Value, dtype: DType) -> Value:
    """Return `value` converted to another dtype."""
    kept = value.tensor
    if kept.dtype is dtype:
        return value
    op = TensorOp("aten._to_copy.default", (value,), (("dtype", dtype.torch),))
    return tracer().emit(op, (TensorType(dtype, kept.shape),))[0]


# ---- Flags: conditions that are either known while tracing or values of the Program.
#
# Inside an arm of a branch on a flag, the flag is known (`assuming`).


Flag = bool | Value


def both(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return logical("and", first, second)


def either(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first
    return logical("or", first, second)


def negated(flag: Flag) -> Flag:
    if isinstance(flag, bool):
        return not flag
    return logical("not", flag)


def all_of(flags: Iterable[Flag]) -> Flag:
    found: Flag = True
    for flag in flags:
        found = both(found, flag)
    return found


def value_of(flag: Flag) -> Value:
    """Return the flag as a value of the program."""
    return tracer().literal(flag, FLAG.dtype) if isinstance(flag, bool) else tracer().use(flag)


def select(condition: Flag, first: Value, second: Value) -> Value:
    """Return `first` where the condition holds, else `second`."""
    if isinstance(condition, bool):
        return first if condition else second
    state = tracer()
    arguments = (state.use(condition), state.use(first), state.use(second))
    return state.tensor_op("aten.where.self", arguments, second.type)


def logical(operator: str, *flags: Value) -> Value:
    """Return `and`, `or` or `not` of values of the program."""
    state = tracer()
    given: tuple[Any, ...] = tuple(map(state.use, flags))
    if state.data is not None:
        (found,) = state.emit(AssignOp(operator, given), (FLAG,))
        state.data.numbers.add(found)
        return found
    return state.tensor_op(f"aten.logical_{operator}.default", given, FLAG)


@contextmanager
def assuming(flag: Value, holds: bool) -> Generator[None]:
    """Declare that code traced inside runs only if `flag` equals `holds`."""
    state = tracer()
    before, state.facts = state.facts, {**state.facts, **implied(flag, holds)}
    try:
        yield
    finally:
        state.facts = before


def derive(flag: Value, when: bool | None, others: tuple[Value, ...]) -> None:
    """Record that `flag` is the conjunction of the others (when=True), their disjunction
    (when=False), or the negation of a single one (when=None)."""
    tracer().derived[flag] = when, others


def negation(flag: Value) -> TracedTensor:
    """Return `not flag` as a traced bool."""
    opposite = logical("not", flag)
    derive(opposite, None, (flag,))
    return tracer().number(opposite)


def implied(flag: Value, holds: bool) -> dict[Value, bool]:
    """Return the flags whose values follow from `flag` being `holds`, that flag included."""
    derived, found, pending = tracer().derived, dict[Value, bool](), [(flag, holds)]
    while pending:
        flag, holds = pending.pop()
        if flag in found:
            continue
        found[flag] = holds
        when, others = derived.get(flag, (None, ()))
        if when is None or when is holds:
            pending += [(other, not holds if when is None else holds) for other in others]
    return found


def known(flag: Any) -> bool | None:
    """Return the value of a Python or traced bool if it is known here; else None."""
    if isinstance(flag, TracedTensor):
        found = known_value(flag)
        if found is not None:
            return bool(found)
        base = flag.memory.state.base
        return tracer().facts.get(base) if isinstance(base, Value) else None
    return bool(flag)


def possible(value: Either) -> list[tuple[Any, Any]]:
    """Return the options that the value may have here, with their flags."""
    pairs = [(f, o) for f, o in zip(value.stretto_flags, value.stretto_options, strict=True)]
    sure = [pair for pair in pairs if known(pair[0])]
    return sure or [pair for pair in pairs if known(pair[0]) is None]


Hooks.item, Hooks.concrete = to_number, concrete
