"""Function results that may be rows of a parameter, and so need no copy.

A recursion over a tree often ends in a row of a tensor that every call passes on, such as the
embedding of a leaf. Copying it to the result costs each activation a kernel, and all units a wait
for it. Such a function instead returns, in a register, the row of its parameter that the result is;
or `NO_ROW`, if the result is in memory as usual. The caller reads one or the other.

    func @f(%x: f32[8, 4], %n: i64[]) -> (f32[4]) {
      %r = if (%n is a leaf) {
        %row = aten.select.int(%x, 0, %n)       f.row0 = n                 (no kernel)
        yield %row
      } else {
        %a = call @f(%x, %left)                 a is row `f.row0` of x, or a buffer
        ...
        yield %b                                f.out0 = b;  f.row0 = NO_ROW
      }
      return %r
    }

This is done if the machine requests it (`CostModel.row_results`) and only operators read the result
of each call in a recursive function: any other reader would need it in memory, and copy it then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stretto.device.expr import Apply, Buffer, Const, Expr, Index, Load, Position, Reg
from stretto.device.regions import lies_before_split
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import CallOp, IfOp, TensorOp
from stretto.ir.rewrite import all_blocks, users
from stretto.ir.types import DType, TensorType, Type
from stretto.lowering.lazy import Lazy, stored, variables

NO_ROW = -1
"""Value of the row register if the result is in memory."""

Rows = Mapping[tuple[str, int], int]
"""Maps (function, number of a result) to the number of the parameter that it may be a row of."""


@dataclass(frozen=True, slots=True)
class RowTarget:
    """Target of a value that may be a row: `row` becomes its row of `source`, a whole tensor, or
    `NO_ROW` if the value is stored into `buffer`."""

    buffer: Buffer
    row: Reg
    source: Buffer


def row_or_memory(row: Reg, source: Lazy, buffer: Buffer) -> Lazy:
    """Return row `row` of a tensor in memory, or the contents of `buffer` if it is `NO_ROW`."""
    shape = source.shape[1:]
    found = source.view(shape, Index.of(row), *variables(shape))
    is_row = Apply("ge", (Position(Index.of(row)), Const(0, DType.I64)), DType.BOOL)
    value = Apply("where", (is_row, found.expr, stored(buffer, shape).expr), found.dtype)
    return Lazy(found.dtype, shape, value)


def is_row_or_memory(lazy: Lazy) -> bool:
    """True if a tensor is a result of `row_or_memory`, or a view of one."""
    match lazy.expr:
        case Apply("where", (Apply("ge", (Position(index), Const(0))), Load(), Load())):
            return not index.vars()
        case _:
            return False


def is_row_in_place(lazy: Lazy) -> bool:
    """True if each row of a tensor is a row of one or two tensors in memory, chosen by a position
    in memory (`stretto.rows_before`, `stretto.rows_of`)."""
    match lazy.expr:
        case Apply("where", (Apply("ge", (Load(), Const(0))), Load(), Load() as load)):
            return lies_before_split(load.access)
        case Load(access):
            return lies_before_split(access)
        case _:
            return False


def row_results(program: Program, names: list[str]) -> Rows:
    """Return the results, among those of the functions `names`, that may be rows of parameters."""
    found: dict[tuple[str, int], int] = {}
    for name in names:
        function = program.functions[name]
        for number, value in enumerate(function.body.yields):
            source = _source(function, value)
            if source is not None:
                found[name, number] = source
    refused = {key for name in names for key in _refused(program.functions[name], found)}
    for name in sorted({name for name, _ in refused & found.keys()}):
        reason = "something other than an operator next to the call needs its result in memory"
        program.remarks.decline("row_results", f"@{name}", reason)
    return {key: source for key, source in found.items() if key not in refused}


def row_of(lazy: Lazy, source: Buffer) -> Expr | None:
    """Return the number of the row of `source` that the tensor is; None if it is not one."""
    if not isinstance(lazy.expr, Load) or lazy.expr.access.buffer != source:
        return None
    access = lazy.expr.access
    if access.shape != source.shape or not access.shape or lazy.shape != access.shape[1:]:
        return None
    first, *rest = access.index
    if first.vars() or not first.is_affine or tuple(rest) != variables(lazy.shape):
        return None
    return Position(first)


# ---- choice of results -----------------------------------------------------------------------


def _source(function: Function, result: Value) -> int | None:
    """Return the number of the parameter of which an arm yields a row; None if none does."""
    makers = _makers(function)
    if not isinstance(makers.get(result), IfOp) or not _is_in_memory(result.type):
        return None
    for value in _given(function.body, result):
        op = makers.get(value)
        if not isinstance(op, TensorOp) or op.target != "aten.select.int" or op.args[1] != 0:
            continue
        for number, source in enumerate(function.params):
            if source is op.args[0] and _is_in_memory(source.type):
                return number
    return None


def _makers(function: Function) -> dict[Value, Op]:
    return {value: op for op in function.body.walk() for value in op.results}


def _is_in_memory(kind: Type) -> bool:
    """True for a nonempty tensor of static size that is not held in a register."""
    if not isinstance(kind, TensorType) or not kind.is_static or 0 in kind.shape:
        return False
    return kind.dtype.is_float or kind.rank > 0


def _given(block: Block, value: Value) -> Iterator[Value]:
    """Iterate over the values that a result may be, through nested branches; the value itself
    otherwise."""
    maker = next((op for op in block.ops if value in op.results), None)
    if isinstance(maker, IfOp):
        place = maker.results.index(value)
        for arm in maker.blocks:
            yield from _given(arm, arm.yields[place])
    else:
        yield value


def _refused(function: Function, found: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int]]:
    """Iterate over the callees' results with readers other than operators of the same block and
    the branches that yield the function's own row results."""
    handed = {
        value
        for number, result in enumerate(function.body.yields)
        if (function.name, number) in found
        for value in _given(function.body, result)
    }
    readers = users(function.body)
    for block in all_blocks(function.body):
        own = {op for op in block.ops if isinstance(op, TensorOp)}
        for call in (op for op in block.ops if isinstance(op, CallOp)):
            for number, value in enumerate(call.results):
                others = set(readers.get(value, ())) - own
                if value in handed:
                    others = {op for op in others if not isinstance(op, IfOp)}
                if others:
                    yield call.function, number
