"""Type equality up to renaming of symbols: at a call, and at the results of an if.

A function's parameters and `list.stack` bind symbols. So do the results of a call and of an if:
their symbols correspond to those that the function or the arms use inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import Argument, ForOp, ListStackOp, SizeOp, TensorOp, WhileOp
from stretto.ir.rewrite import defined_values
from stretto.ir.size_bounds import substitute_symbols
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import Dim, TensorListType, TensorType, Type

Renaming = dict[Size, Dim]
"""The size on the other side for each size (above all each symbol) of one side."""


def match_types(pattern: Iterable[Type], actual: Iterable[Type], renaming: Renaming) -> bool:
    """True if the types are equal once the pattern's sizes are renamed.

    Adds the sizes found to `renaming`; one size of the pattern cannot match two different dims.
    """
    left, right = tuple(pattern), tuple(actual)
    return len(left) == len(right) and all(
        _match_type(one, other, renaming) for one, other in zip(left, right, strict=True)
    )


def renamed_symbols(renaming: Renaming) -> set[Symbol]:
    """Return the symbols that are keys themselves, not only parts of formulas."""
    return {symbol for size in renaming if (symbol := size.symbol) is not None}


def rename_dim(dim: Dim, renaming: Renaming) -> Dim:
    """Return the dim with its sizes renamed, also inside formulas."""
    if isinstance(dim, int):
        return dim
    if dim in renaming:
        return renaming[dim]
    known = {symbol: Size.of(symbol) for symbol in dim.symbols}
    values = {symbol: renaming[size] for symbol, size in known.items() if size in renaming}
    return substitute_symbols(dim, values).dim if values else dim


def rename_type(type: Type, renaming: Renaming) -> Type:
    """Return the type with its sizes renamed, also inside formulas."""
    if not renaming:
        return type
    if isinstance(type, TensorListType):
        element = rename_type(type.element, renaming)
        assert isinstance(element, TensorType)
        return TensorListType(element)
    return TensorType(type.dtype, tuple(rename_dim(dim, renaming) for dim in type.shape))


def rename_symbols(block: Block, renaming: Renaming) -> None:
    """Rename sizes in place, in the types of all values that the block defines and in arguments of
    ops."""
    if not renaming:
        return
    for value in defined_values(block):
        value.type = rename_type(value.type, renaming)
    for op in block.walk():
        if isinstance(op, TensorOp):
            op.args = tuple(_rename_argument(item, renaming) for item in op.args)
            op.kwargs = tuple((key, _rename_argument(item, renaming)) for key, item in op.kwargs)
        elif isinstance(op, ForOp):
            op.start, op.stop = (
                bound if isinstance(bound, Value) else rename_dim(bound, renaming)
                for bound in (op.start, op.stop)
            )
        elif isinstance(op, SizeOp):
            renamed = rename_dim(op.size, renaming)
            assert isinstance(renamed, Size)
            op.size = renamed
            op.most = None if op.most is None else Size.of(rename_dim(op.most, renaming))


def dims_of(type: Type) -> tuple[Dim, ...]:
    """Return the dims of a tensor type, or of a list's items."""
    return type.element.shape if isinstance(type, TensorListType) else type.shape


def symbols_of_types(types: Iterable[Type]) -> set[Symbol]:
    """Return the symbols in the types' dims."""
    return {
        symbol
        for type in types
        for dim in dims_of(type)
        if not isinstance(dim, int)
        for symbol in dim.symbols
    }


def symbols_of_op(op: Op) -> set[Symbol]:
    """Return the symbols in the op's result types and arguments, its blocks included."""
    found = symbols_of_types(value.type for value in op.results)
    for block in op.blocks:
        found |= symbols_of_block(block)
    return found.union(symbols_of_argument(op.parts))


def symbols_of_block(block: Block) -> set[Symbol]:
    """Return the symbols in the block's ops and in the types of its parameters."""
    found = symbols_of_types(value.type for value in block.params)
    for op in block.ops:
        found |= symbols_of_op(op)
    return found


def bound_symbols(block: Block) -> set[Symbol]:
    """Return the symbols that ops in the block bind."""
    return {symbol for op in block.walk() for symbol in symbols_bound_by(op)}


def symbols_bound_by(op: Op) -> set[Symbol]:
    """Return the symbols that an op binds: that of a size op, a symbolic length of a stacked list,
    and those in the result types of calls and branches."""
    if isinstance(op, SizeOp):
        return {op.symbol}
    if isinstance(op, TensorOp | ForOp | WhileOp):
        return set()
    if isinstance(op, ListStackOp):
        lead = Size.of(op.result.tensor.shape[0]).symbol
        return set() if lead is None else {lead}
    return symbols_of_types(value.type for value in op.results)


def symbols_of_argument(argument: Argument) -> Iterator[Symbol]:
    """Iterate over the symbols in the sizes among the arguments of a tensor op."""
    if isinstance(argument, tuple):
        for item in argument:
            yield from symbols_of_argument(item)
    elif isinstance(argument, Size):
        yield from argument.symbols


def _match_type(pattern: Type, actual: Type, renaming: Renaming) -> bool:
    if isinstance(pattern, TensorListType) or isinstance(actual, TensorListType):
        return (
            isinstance(pattern, TensorListType)
            and isinstance(actual, TensorListType)
            and _match_type(pattern.element, actual.element, renaming)
        )
    return (
        pattern.dtype is actual.dtype
        and pattern.rank == actual.rank
        and all(
            _match_dim(one, other, renaming)
            for one, other in zip(pattern.shape, actual.shape, strict=True)
        )
    )


def _match_dim(pattern: Dim, actual: Dim, renaming: Renaming) -> bool:
    if isinstance(pattern, int):
        return pattern == actual
    return renaming.setdefault(pattern, actual) == actual


def _rename_argument(argument: Argument, renaming: Renaming) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_rename_argument(item, renaming) for item in argument)
    return rename_dim(argument, renaming) if isinstance(argument, Size) else argument
