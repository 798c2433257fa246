"""Splitting products of concatenated inputs: W [x; h] becomes W_x x + W_h h to free a part.

An RNN cell often multiplies one matrix with the concatenation of its input and its state.
The product then has to wait for the state, though only a part of it does. After the split,
the part of the input no longer belongs to the recurrence: it can be batched over the
iterations, hoisted, or computed by another loop.

Changes: products with a constant matrix (`LinearProduct`) in loop bodies whose input is a `cat`,
along the contracted dim, of values that differ in what they wait for: the recurrence of the
product itself, other work of the iteration, or nothing in the loop. Values that wait for
the same stay concatenated. With `calls`, also products of results of different calls, and
of rows that such results are in. Needs: constants folded, so that the weight is known.
Guarantees: the same result up to the order of floating-point additions.

    %c = cat([%x_t, %h], -1)                %w = linear(%x_t, %W_x, %b)
    %y = linear(%c, %W, %b)          =>     %u = linear(%h, %W_h)
    %n = tanh(%y)                           %y = add(%w, %u)
    yield %n                                %n = tanh(%y)
                                            yield %n
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import CallOp, ForOp, TensorOp, WhileOp
from stretto.ir.rewrite import all_blocks, users
from stretto.ops.arguments import argument
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_contraction
from stretto.passes.analyses.loop_dependences import LoopDependence, loop_dependence
from stretto.passes.analyses.op_facts import Constants, LinearProduct, as_linear

RECURRENT = "recurrent"
VARYING = "varying"
INVARIANT = "invariant"


@dataclass(frozen=True, slots=True)
class SplitConcat:
    """The pass. calls: split also if the concatenated values are results of different calls."""

    calls: bool = False
    name: ClassVar[str] = "split_concat"

    def apply(self, program: Program) -> bool:
        count = 0
        for body, constants in Constants.by_function(program):
            for op in list(body.walk()):
                if isinstance(op, (ForOp, WhileOp)):
                    count += _split_in_loop(op, constants)
            if self.calls:
                count += _split_between_calls(body, constants)
        return count > 0


@dataclass(frozen=True, slots=True)
class Concatenated:
    """A product whose input is `cat(parts)` along the contracted dim."""

    linear: LinearProduct
    parts: tuple[Value, ...]

    def columns(self, place: int) -> tuple[int, int]:
        """Where the columns of the weight for a part begin and end."""
        widths = [part.tensor.shape[-1] for part in self.parts[: place + 1]]
        *before, own = (width for width in widths if isinstance(width, int))
        return sum(before), sum(before) + own


def concatenated(op: Op, constants: Constants) -> Concatenated | str:
    """Return the op as a product of concatenated values, or the reason why it is none."""
    linear = as_linear(op, constants)
    if isinstance(linear, str):
        return linear
    maker = constants.makers.get(linear.input)
    if not isinstance(maker, TensorOp) or maker.target != "aten.cat.default":
        return "its input is not a concatenation"
    dim, parts = argument(maker, "dim"), maker.args[0]
    rank = linear.input.tensor.rank
    if not isinstance(dim, int) or dim % rank != rank - 1 or not isinstance(parts, tuple):
        return "its input is not concatenated along the contracted dim"
    values = tuple(value for value in parts if isinstance(value, Value))
    if any(value.tensor.rank != rank for value in values):
        return "the concatenated values differ in rank"
    if any(not isinstance(value.tensor.shape[-1], int) for value in values):
        return "a concatenated dim is not static"
    return Concatenated(linear, values)


def waits_for(part: Value, op: Op, dependence: LoopDependence, body: Block) -> str:
    """Return what a part of the product's input waits for, in one loop body: RECURRENT, VARYING or
    INVARIANT."""
    component = dependence.component(part)
    if component is None:
        return VARYING if part in body.params else INVARIANT
    if dependence.is_recurrent(op) and component == dependence.component_of[op]:
        return RECURRENT
    return VARYING


def _split_in_loop(loop: ForOp | WhileOp, constants: Constants) -> int:
    """Split products of the loop body, and return their number."""
    body = loop.body
    candidates = [op for op in body.ops if isinstance(concatenated(op, constants), Concatenated)]
    if not candidates:
        return 0
    dependence, count = loop_dependence(loop), 0
    for op in candidates:
        found = concatenated(op, constants)
        assert isinstance(found, Concatenated)
        classes = [waits_for(part, op, dependence, body) for part in found.parts]
        if len(set(classes)) > 1:
            order = [name for name in (INVARIANT, VARYING, RECURRENT) if name in classes]
            _replace(constants, body, found, [order.index(name) for name in classes])
            count += 1
    return count


def _split_between_calls(body: Block, constants: Constants) -> int:
    readers, count = users(body), 0
    for block in all_blocks(body):
        for op in list(block.ops):
            found = concatenated(op, constants)
            if isinstance(found, str):
                continue
            contractions = [user for user in readers[found.linear.input] if is_contraction(user)]
            makers = [constants.makers.get(part) for part in found.parts]
            calls = {maker for maker in makers if _gives_results(maker)}
            if len(contractions) == 1 and len(calls) == len(makers) > 1:
                _replace(constants, block, found, list(range(len(makers))))
                count += 1
    return count


def _gives_results(maker: Op | None) -> bool:
    """True if an op yields results of calls: it is a call, or gathers rows that calls have
    computed."""
    if isinstance(maker, TensorOp):
        return maker.target in ("stretto.rows_before.default", "stretto.rows_of.default")
    return isinstance(maker, CallOp)


def _replace(constants: Constants, block: Block, found: Concatenated, groups: list[int]) -> None:
    """Replace the product by the sum of the groups' products."""
    op = found.linear.op
    ops: list[Op] = []
    total: Value | None = None
    for number in range(max(groups) + 1):
        places = [place for place, group in enumerate(groups) if group == number]
        product = _product(constants, found, places, total is None, ops)
        if total is not None:
            ops.append(tensor_op("aten.add.Tensor", total, product))
            product = ops[-1].result
        total = product
    assert ops[-1].result.type == op.result.type
    for new in ops:
        new.location = op.location
    ops[-1].results = op.results
    place = block.ops.index(op)
    block.ops[place : place + 1] = ops


def _product(
    constants: Constants,
    found: Concatenated,
    places: list[int],
    with_bias: bool,
    ops: list[Op],
) -> Value:
    """Append to `ops` the product of some of the parts with their columns of the weight, and
    return it."""
    parts = tuple(found.parts[place] for place in places)
    blocks = (block for place in places for block in found.columns(place))
    weight = constants.derived("weight_columns", _columns, found.linear.weight, *blocks)
    ops.append(weight)
    operands = [parts[0], weight.result]
    if len(parts) > 1:
        ops.append(tensor_op("aten.cat.default", parts, -1))
        operands[0] = ops[-1].result
    bias = found.linear.bias
    if with_bias and bias is not None:
        ops.append(constants.derived("bias", torch.detach, bias))
        operands.append(ops[-1].result)
    ops.append(tensor_op("aten.linear.default", *operands))
    return ops[-1].result


def _columns(weight: torch.Tensor, *blocks: int) -> torch.Tensor:
    """The blocks of columns that begin and end there."""
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return torch.cat([weight.detach()[:, start:stop] for start, stop in pairs], 1).contiguous()
