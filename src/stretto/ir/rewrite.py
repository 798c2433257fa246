"""Copying, renaming and counting uses of values: the basis of every pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from stretto.ir.core import Block, Folded, Op, Program, Value, Variable, block_fields, fresh
from stretto.ir.data import ForkLoopOp
from stretto.ir.ops import ForOp, IfOp, WhileOp

T = TypeVar("T", bound=Value)

Definitions = dict[Value, Op]
"""The op that defines each value visited so far in a walk. Parameters of blocks are absent."""

Replacement = tuple[list[Op], tuple[Value, ...]]
"""The ops that replace one op, and a value for each of its results."""

Visit = Callable[[Op, Definitions], Replacement | None]


def clone_op(op: Op, mapping: dict[Value, Value]) -> Op:
    """Return a copy with fresh results and blocks, its operands renamed by `mapping`.

    `mapping` gains an entry for every value that the copy defines, also inside its blocks.
    """
    blocks: dict[str, Any] = {}
    for name in block_fields(type(op)):
        held: Block | tuple[Block, ...] = getattr(op, name)
        several = (held,) if isinstance(held, Block) else held
        copied = tuple(clone_block(block, mapping) for block in several)
        blocks[name] = copied[0] if isinstance(held, Block) else copied
    results = tuple(_copied(value, mapping) for value in op.results)
    copy = replace(op, results=results, **blocks)
    copy.substitute(lambda value: mapping.get(value, value))
    if isinstance(copy, ForkLoopOp):
        copy.private = tuple(_copied(variable, mapping) for variable in copy.private)
    return copy


def clone_block(block: Block, mapping: dict[Value, Value]) -> Block:
    """Return a copy with fresh parameters and ops.

    Values defined outside the block are renamed by `mapping`; those not in it are shared.
    """
    params = tuple(_copied(value, mapping) for value in block.params)
    ops = [clone_op(op, mapping) for op in block.ops]
    return Block(params, ops, tuple(mapping.get(value, value) for value in block.yields))


def clone_program(program: Program) -> Program:
    """Return a copy that may be changed freely; the constant tensors and the remarks are shared."""
    functions = {
        name: replace(item, body=clone_block(item.body, {}))
        for name, item in program.functions.items()
    }
    folded = Folded(set(program.folded.sources), set(program.folded.results))
    constants = dict(program.constants)
    return replace(program, functions=functions, constants=constants, folded=folded)


def inline_block(block: Block, arguments: tuple[Value, ...]) -> tuple[list[Op], tuple[Value, ...]]:
    """Return a copy of the block's ops with its parameters replaced, and the values that it
    yields."""
    mapping = dict(zip(block.params, arguments, strict=True))
    ops = [clone_op(op, mapping) for op in block.ops]
    return ops, tuple(mapping.get(value, value) for value in block.yields)


def substitute(block: Block, mapping: Mapping[Value, Value]) -> None:
    """Replace every use of a key by its value, in place, in nested blocks and yields too.

    Replacement is not transitive: a value that is itself a key is not replaced again.
    """
    if not mapping:
        return
    for item in all_blocks(block):
        for op in item.ops:
            op.substitute(lambda value: mapping.get(value, value))
        item.yields = tuple(mapping.get(value, value) for value in item.yields)


def rewrite_block(
    block: Block,
    visit: Visit,
    definitions: Definitions | None = None,
    mapping: dict[Value, Value] | None = None,
) -> bool:
    """Replace ops one by one, in order and innermost first; return True if anything changed.

    `visit` gets each op after its operands are renamed and its blocks are rewritten, and
    returns None to leave it as it is. The ops of a replacement are not visited again.
    """
    definitions = {} if definitions is None else definitions
    mapping = {} if mapping is None else mapping
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        op.substitute(lambda value: mapping.get(value, value))
        for nested in op.blocks:
            changed |= rewrite_block(nested, visit, definitions, mapping)
        results = op.results  # a visit may remove some of the op's results in place
        replacement = visit(op, definitions)
        new, values = ([op], results) if replacement is None else replacement
        changed |= replacement is not None
        mapping.update(zip(results, values, strict=True))
        ops.extend(new)
        definitions.update((value, item) for item in new for value in item.results)
    block.ops = ops
    block.yields = tuple(mapping.get(value, value) for value in block.yields)
    return changed


def rewrite_program(program: Program, visit: Visit) -> bool:
    """Rewrite all functions as `rewrite_block` does; return True if something changed."""
    return sum(rewrite_block(function.body, visit) for function in program.functions.values()) > 0


def narrow(op: IfOp | ForOp | WhileOp, keep: Sequence[bool]) -> None:
    """Remove the results whose `keep` is False, and the values that an if yields or a loop carries
    for them."""

    def select(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(value for value, kept in zip(values, keep, strict=True) if kept)

    op.results = select(op.results)
    match op:
        case IfOp():
            op.then.yields, op.orelse.yields = select(op.then.yields), select(op.orelse.yields)
        case ForOp():
            op.inits, op.body.yields = select(op.inits), select(op.body.yields)
            op.body.params = (op.index, *select(op.carried))
        case WhileOp():
            op.inits, op.body.yields = select(op.inits), select(op.body.yields)
            op.condition.params = select(op.condition.params)
            op.body.params = select(op.body.params)


def all_blocks(block: Block) -> Iterator[Block]:
    """Iterate over the block and every block nested in it, outer before inner."""
    yield block
    for op in block.ops:
        for nested in op.blocks:
            yield from all_blocks(nested)


def block_reads(block: Block) -> Iterator[Value]:
    """Iterate over every read of a value in a block and the blocks inside it, once per read."""
    for item in all_blocks(block):
        for op in item.ops:
            yield from op.operands
        yield from item.yields


def uses(block: Block) -> dict[Value, int]:
    """Count how often the block reads each value, in ops, nested ops and yields. Unread values are
    absent."""
    return Counter(block_reads(block))


def users(block: Block) -> dict[Value, list[Op]]:
    """Return the ops that read each value, in order, without repeats.

    A value that a nested block yields counts as read by the op that owns the block.
    """
    found: dict[Value, dict[Op, None]] = {}
    for op in block.walk():
        yielded = (value for nested in op.blocks for value in nested.yields)
        for value in (*op.operands, *yielded):
            found.setdefault(value, {})[op] = None
    return {value: list(ops) for value, ops in found.items()}


def defined_values(block: Block) -> Iterator[Value]:
    """Iterate over the parameters and results of the block and of all nested blocks, in textual
    order."""
    yield from block.params
    for op in block.ops:
        yield from op.results
        for nested in op.blocks:
            yield from defined_values(nested)


def free_values(block: Block) -> tuple[Value, ...]:
    """Return the values that the block reads but does not define, in order of first use."""
    inside = set(defined_values(block))
    return tuple(dict.fromkeys(value for value in block_reads(block) if value not in inside))


def free_values_of_op(op: Op) -> tuple[Value, ...]:
    """Return the values that the op reads from outside: operands, then its blocks' free values, no
    repeats."""
    nested = (value for block in op.blocks for value in free_values(block))
    return tuple(dict.fromkeys((*op.operands, *nested)))


def _copied(value: T, mapping: dict[Value, Value]) -> T:
    """Return the copy of a value that is defined here; all ops assign the same copy of a
    variable."""
    if not isinstance(value, Variable) or value not in mapping:
        mapping[value] = fresh(value)
    return cast(T, mapping[value])
