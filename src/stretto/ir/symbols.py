"""Which types agree when symbolic dims are only names: at a call, at the results of an if.

A function's parameters and `list.stack` bind symbols; so do the results of a call and of an if,
whose symbols stand for those that the function or the arms use inside.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.ir.core import Block, Op
from stretto.ir.dims import base_names, rename_dim
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.rewrite import defined_values
from stretto.ir.types import Dim, ListType, Symbol, TensorType, Type

Renaming = dict[str, Dim]
"""What each symbol of one side is called on the other side."""


def match_types(pattern: Iterable[Type], actual: Iterable[Type], renaming: Renaming) -> bool:
    """Whether the types are the same once the pattern's symbols are renamed.

    `renaming` gains the names found; one name of the pattern cannot stand for two dims.
    """
    left, right = tuple(pattern), tuple(actual)
    return len(left) == len(right) and all(
        _match_type(one, other, renaming) for one, other in zip(left, right, strict=True)
    )


def rename_type(type: Type, renaming: Renaming) -> Type:
    """The type with its symbols renamed, also inside formulas."""
    if not renaming:
        return type
    if isinstance(type, ListType):
        element = rename_type(type.element, renaming)
        assert isinstance(element, TensorType)
        return ListType(element)
    return TensorType(type.dtype, tuple(rename_dim(dim, renaming) for dim in type.shape))


def rename_symbols(block: Block, renaming: Renaming) -> None:
    """Renames symbols in the types of all values that the block defines, and in arguments."""
    if not renaming:
        return
    for value in defined_values(block):
        value.type = rename_type(value.type, renaming)
    for op in block.walk():
        if isinstance(op, TensorOp):
            op.args = tuple(_rename_argument(item, renaming) for item in op.args)
            op.kwargs = tuple((key, _rename_argument(item, renaming)) for key, item in op.kwargs)


def symbols_of_types(types: Iterable[Type]) -> set[str]:
    """The base names of the types' dims."""
    shapes = (type.element.shape if isinstance(type, ListType) else type.shape for type in types)
    return {name for shape in shapes for dim in shape for name in base_names(dim)}


def symbols_of_op(op: Op) -> set[str]:
    """The base names in the types of the op's results and in its arguments, in its blocks too."""
    found = symbols_of_types(value.type for value in op.results)
    for block in op.blocks:
        found |= symbols_of_block(block)
    if isinstance(op, TensorOp):
        items = [*op.args, *(item for _, item in op.kwargs)]
        found |= {name for item in items for name in _symbols_of_argument(item)}
    return found


def symbols_of_block(block: Block) -> set[str]:
    """The base names in the block, and in the types of its parameters."""
    found = symbols_of_types(value.type for value in block.params)
    for op in block.ops:
        found |= symbols_of_op(op)
    return found


def bound_symbols(block: Block) -> set[str]:
    """Names that ops in the block bind: those in result types of all but tensor ops."""
    found: set[str] = set()
    for op in block.walk():
        if not isinstance(op, TensorOp):
            found |= symbols_of_types(value.type for value in op.results)
    return found


def _match_type(pattern: Type, actual: Type, renaming: Renaming) -> bool:
    if isinstance(pattern, ListType) or isinstance(actual, ListType):
        return (
            isinstance(pattern, ListType)
            and isinstance(actual, ListType)
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
    return renaming.setdefault(pattern.name, actual) == actual


def _rename_argument(argument: Argument, renaming: Renaming) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_rename_argument(item, renaming) for item in argument)
    return rename_dim(argument, renaming) if isinstance(argument, Symbol) else argument


def _symbols_of_argument(argument: Argument) -> tuple[str, ...]:
    if isinstance(argument, tuple):
        return tuple(name for item in argument for name in _symbols_of_argument(item))
    return base_names(argument) if isinstance(argument, Symbol) else ()
