"""Common subexpression elimination (CSE): an expression that is available is not computed again.

An op is dropped if an op of the same class, with the same operands and attributes, precedes it in
the same block or in an enclosing one, so that the results are available whenever the second would
run. Everything is by value, so the results are equal. A repeated check is dropped too. Random
operators, ops with blocks and new lists are never dropped. Of ops on data, only operators are, and
only if all their variables are assigned once. Needs nothing; leaves types and the
order of ops as they are.

    %a = aten.exp.default(%x)                 %a = aten.exp.default(%x)
    %r = if %c {                              %r = if %c {
      %b = aten.exp.default(%x)        ->       yield %a
      yield %b                                } else {
    } else {                                    ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.data import DataOp, OperateOp, operand_key, operation_key
from stretto.ir.ops import (
    Argument,
    CallOp,
    CheckOp,
    ConstantOp,
    ListNewOp,
    LiteralOp,
    SizeOp,
    TensorOp,
)
from stretto.ir.rewrite import defined_values
from stretto.ir.sizes import Size
from stretto.ir.symbols import Renaming, rename_symbols
from stretto.ir.types import Dim, Type
from stretto.ops.properties import is_random

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class EliminateCommonSubexpressions:
    name: ClassVar[str] = "cse"

    def apply(self, program: Program) -> bool:
        before = sum(1 for _ in program.walk())
        for function in program.functions.values():
            merge_equal(function)
        return sum(1 for _ in program.walk()) != before


def merge_equal(function: Function) -> None:
    """Drop the repeated expressions of one function."""
    times = Counter(defined_values(function.body))
    sizes = _Sizes(frozenset(value for value, count in times.items() if count > 1))
    _merge(function.body, {}, {}, sizes)
    rename_symbols(function.body, sizes.renaming)


def keep_reason(op: Op) -> str | None:
    """Return why an op is computed even if an equal one precedes it, or None."""
    if op.blocks:
        return "its blocks are not compared"
    if isinstance(op, ListNewOp):
        return "a list of its own can be pushed to in place"
    if isinstance(op, TensorOp) and is_random(op):
        return "it is random"
    if isinstance(op, DataOp) and not isinstance(op, OperateOp):
        return "objects have identity and change"
    return None


@dataclass(slots=True)
class _Sizes:
    """The symbols that size ops bind, by their results, and the renaming of the symbols of dropped
    size ops. several: variables that several ops assign."""

    several: frozenset[Value]
    bound: dict[Value, Size] = field(default_factory=dict[Value, Size])
    renaming: Renaming = field(default_factory=dict[Size, Dim])


def _merge(
    block: Block,
    seen: dict[Key, tuple[Value, ...]],
    renamed: dict[Value, Value],
    sizes: _Sizes,
) -> None:
    """Drop repeated ops of a block. `seen`: results of the ops that precede it; `renamed`:
    replacement of each dropped result."""
    seen = dict(seen)
    ops: list[Op] = []
    for op in block.ops:
        op.substitute(lambda value: renamed.get(value, value))
        for nested in op.blocks:
            _merge(nested, seen, renamed, sizes)
        if keep_reason(op) is None and sizes.several.isdisjoint((*op.results, *op.operands)):
            key = op_key(op)
            checked = key in seen
            first = seen.setdefault(key, op.results)
            if first is not op.results or (isinstance(op, CheckOp) and checked):
                renamed.update(zip(op.results, first, strict=True))
                if isinstance(op, SizeOp):
                    sizes.renaming[op.size] = sizes.bound[first[0]]
                continue
            if isinstance(op, SizeOp):
                sizes.bound[op.result] = op.size
        ops.append(op)
    block.ops = ops
    block.yields = tuple(renamed.get(value, value) for value in block.yields)


def op_key(op: Op) -> Key:
    """Return a key that is equal for ops that compute the same. It has the result types, which may
    name different symbols."""
    types: tuple[Type, ...] = tuple(value.type for value in op.results)
    attributes: Hashable = None
    match op:
        case CheckOp():
            return (CheckOp, op.condition)
        case TensorOp():
            args = tuple(_argument_key(item) for item in op.args)
            kwargs = tuple(sorted((key, _argument_key(item)) for key, item in op.kwargs))
            attributes = (op.target, args, kwargs)
        case ConstantOp():
            attributes = op.key
        case SizeOp():
            attributes = (op.symbol.low, op.symbol.high, op.most)
        case LiteralOp():
            attributes = _argument_key(op.value)
        case CallOp():
            attributes = op.function
        case OperateOp():
            attributes = (operation_key(op.operation), *map(operand_key, op.inputs))
        case _:
            pass
    return (type(op), types, op.operands, attributes)


def _argument_key(argument: Argument) -> Hashable:
    """Return a key that tells numbers apart that are equal in Python but not for an operator: 1,
    1.0 and True; 0.0 and -0.0."""
    if isinstance(argument, Value):
        return argument
    if isinstance(argument, tuple):
        return tuple(_argument_key(item) for item in argument)
    return (type(argument), repr(argument))
