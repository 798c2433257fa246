"""Tensors that are put together from parts, where a part is itself put together from parts.

The inner tensor is stored at once where the outer one has it, and is not copied: a cache that
grows by `cat` in each layer, and is stacked over the layers at the end, is written once.

    %k = cat([%a, %b], 0)
    %l = cat([%c, %d], 0)          %a, %b, %c and %d go straight into the memory of %s;
    %s = stack([%k, %l])           %k and %l are views of it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stretto.ir.core import Block, Value
from stretto.ir.ops import TensorOp
from stretto.ops.arguments import argument

_STACK = "aten.stack.default"
_JOINS = frozenset(("aten.cat.default", _STACK))


@dataclass(frozen=True, slots=True)
class Joint:
    """Part `number` of those that `op` puts together."""

    op: TensorOp
    number: int

    @property
    def whole(self) -> Value:
        return self.op.result

    @property
    def dim(self) -> int:
        """The dim of the whole along which the parts lie."""
        dim = argument(self.op, "dim")
        assert isinstance(dim, int)
        return dim % self.whole.tensor.rank

    @property
    def is_stack(self) -> bool:
        return self.op.target == _STACK

    @property
    def before(self) -> tuple[Value, ...]:
        """The parts before it."""
        return _parts(self.op)[: self.number]


def joints(block: Block) -> dict[Value, Joint]:
    """Of the tensors that a block puts together, those that it puts into another one, once; in the
    blocks inside it, too."""
    made = {op.result: op for op in _joining(block)}
    found = dict[Value, Joint]()
    for op in made.values():
        parts = _parts(op)
        for number, part in enumerate(parts):
            fits = part in made and part.tensor.dtype is op.result.tensor.dtype
            if fits and parts.count(part) == 1:
                found.setdefault(part, Joint(op, number))
    for op in block.ops:
        for inner in op.blocks:
            found |= joints(inner)
    return found


def _joining(block: Block) -> Iterator[TensorOp]:
    for op in block.ops:
        if isinstance(op, TensorOp) and op.target in _JOINS and _parts(op):
            yield op


def _parts(op: TensorOp) -> tuple[Value, ...]:
    """The tensors that are put together; none where some are left out, which are empty."""
    given = op.args[0]
    parts = tuple(item for item in given if isinstance(item, Value)) if type(given) is tuple else ()
    ranks = {part.tensor.rank for part in parts}
    return parts if len(ranks) == 1 else ()
