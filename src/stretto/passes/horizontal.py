"""Horizontal fusion: contractions of one input with several constant weights become one.

The weights are concatenated at compile time and the results are slices of one tensor, so the input
is read once and one large kernel replaces several small ones: the gates of an LSTM written as
separate layers, the projections of attention, the 1 x 1 convolutions of an Inception block.

Changes: any block. The fused contraction replaces the first of them, which is legal because all
read the same value and constants. Needs: common subexpressions merged, so that a shared input is
one value. Guarantees: the same sums in the same order, up to how a library blocks a larger product.

    %q = linear(%x, %Q)                     %qk = linear(%x, %QK)       # constants, [Q; K]
    %u = relu(%q)                    =>     %q = slice(%qk, -1, 0, 64)
    %k = linear(%x, %K)                     %k = slice(%qk, -1, 64, 128)
    %v = add(%u, %k)                        %u = relu(%q)
                                            %v = add(%u, %k)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import Argument, ConstantOp, ForOp, TensorOp, WhileOp
from stretto.ir.rewrite import all_blocks
from stretto.ops.arguments import argument, value_argument, with_arguments
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_contraction
from stretto.passes.analyses.loop_dependences import loop_dependence
from stretto.passes.analyses.op_facts import Constants, LinearProduct, as_linear


@dataclass(frozen=True, slots=True)
class FusibleContraction:
    """A contraction that can be fused with others of the same `key`.

    `weight` has the outputs along `weight_dim`, the results have them along `result_dim`.
    `join` returns the fused contraction, given the concatenated weight and bias.
    """

    op: TensorOp
    key: Hashable
    weight: torch.Tensor
    bias: torch.Tensor | None
    weight_dim: int
    result_dim: int
    join: Callable[[Value, Value | None], TensorOp]

    @property
    def outputs(self) -> int:
        return self.weight.shape[self.weight_dim]


@dataclass(frozen=True, slots=True)
class Horizontal:
    name: ClassVar[str] = "horizontal"

    def apply(self, program: Program) -> bool:
        count = 0
        for body, constants in Constants.by_function(program):
            recurrences = _recurrences(body)
            for block in all_blocks(body):
                count += _fuse_block(block, constants, recurrences)
        return count > 0


_OTHERS = {
    "aten.mm.default": ("mat2", "self", "", 0, 0),
    "aten.bmm.default": ("self", "mat2", "", 2, 2),
    **dict.fromkeys(
        ("aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default"),
        ("input", "weight", "bias", 0, -1),
    ),
}
"""Contractions that are not `LinearProduct`, among them `mm` with a constant matrix on the left:
the names of input, weight and bias, and the dims of the outputs in the weight and in the result.
Images may lack a batch dim, so their channels are counted from the end."""


def member(op: Op, constants: Constants) -> FusibleContraction | str:
    """Return the op as one that may be fused with others, or the reason why it may not."""
    if not isinstance(op, TensorOp) or len(op.results) != 1:
        return "it is not a tensor operator"
    linear = as_linear(op, constants)
    if isinstance(linear, LinearProduct):
        return _linear(linear)
    return _other(op, constants) if op.target in _OTHERS else linear


def _linear(linear: LinearProduct) -> FusibleContraction:
    def join(weight: Value, bias: Value | None) -> TensorOp:
        extra = () if bias is None else (bias,)
        return tensor_op("aten.linear.default", linear.input, weight, *extra)

    key = ("linear", linear.input, linear.weight.dtype, linear.weight.device)
    rank = linear.op.result.tensor.rank
    return FusibleContraction(linear.op, key, linear.weight, linear.bias, 0, rank - 1, join)


def _other(op: TensorOp, constants: Constants) -> FusibleContraction | str:
    input_name, weight_name, bias_name, weight_dim, result_dim = _OTHERS[op.target]
    source, bias = value_argument(op, input_name), value_argument(op, bias_name)
    weight, known = constants.tensor(value_argument(op, weight_name)), constants.tensor(bias)
    if weight is None or source is None:
        return "the weight is not constant"
    if bias is not None and known is None:
        return "the bias is not constant"
    if 0 in weight.stride():
        return "the weight is one matrix repeated"
    settings: Hashable = ()
    if result_dim < 0:  # a convolution
        if argument(op, "groups") != 1 or argument(op, "transposed"):
            return "the convolution is grouped or transposed"
        names = ("stride", "padding", "dilation")
        settings = tuple(weight.shape[1:]), *(argument(op, name) for name in names)
        result_dim = source.tensor.rank - weight.dim() + 1

    def join(joined: Value, joined_bias: Value | None) -> TensorOp:
        biases: dict[str, Argument] = {bias_name: joined_bias} if bias_name else {}
        return with_arguments(op, {weight_name: joined, **biases})

    key = (op.target, source, weight.dtype, settings)
    return FusibleContraction(op, key, weight, known, weight_dim, result_dim, join)


def _recurrences(body: Block) -> dict[Op, tuple[Op, int]]:
    """Map each op on a cycle of a loop body to the loop and the number of the cycle."""
    found: dict[Op, tuple[Op, int]] = {}
    for loop in body.walk():
        if isinstance(loop, (ForOp, WhileOp)):
            dependence = loop_dependence(loop)
            for op in loop.body.ops:
                if dependence.is_recurrent(op):
                    found[op] = (loop, dependence.component_of[op])
    return found


def _fuse_block(block: Block, constants: Constants, recurrences: dict[Op, tuple[Op, int]]) -> int:
    """Fuse the contractions of a block and return the number of fused ones.

    A contraction that has to wait for a recurrence would delay all that it is fused with, so
    only members of the same recurrence are fused.
    """
    groups: dict[Hashable, list[FusibleContraction]] = {}
    for op in block.ops:
        found = member(op, constants)
        if isinstance(found, FusibleContraction):
            groups.setdefault((found.key, recurrences.get(op)), []).append(found)
        elif isinstance(op, TensorOp) and is_contraction(op):
            remarks = constants.program.remarks
            remarks.decline(Horizontal.name, op.target, found, op.location)
    several = [members for members in groups.values() if len(members) > 1]
    for members in several:
        place = block.ops.index(members[0].op)
        fused = {item.op for item in members}
        block.ops[place:place] = _fused(constants, members)
        block.ops = [op for op in block.ops if op not in fused]
    return len(several)


def _fused(constants: Constants, members: list[FusibleContraction]) -> list[Op]:
    """Return the fused contraction and the slices that define the members' results."""
    first = members[0]
    weights = [item.weight.detach() for item in members]
    weight = constants.derived("joined_weight", _joined, first.weight_dim, *weights)
    ops: list[Op] = [weight]
    bias_op = _joined_bias(constants, members)
    if bias_op is not None:
        ops.append(bias_op)
    contraction = first.join(weight.result, None if bias_op is None else bias_op.result)
    contraction.location = first.op.location
    ops.append(contraction)
    start = 0
    for item in members:
        stop = start + item.outputs
        part = tensor_op("aten.slice.Tensor", contraction.result, item.result_dim, start, stop)
        assert part.result.type == item.op.result.type
        part.results, part.location = item.op.results, item.op.location
        ops.append(part)
        start = stop
    return ops


def _joined_bias(constants: Constants, members: list[FusibleContraction]) -> ConstantOp | None:
    """Return all biases in one constant, zeros for a member without one; None if no member has
    one."""
    if all(item.bias is None for item in members):
        return None
    parts = [item.outputs if item.bias is None else item.bias.detach() for item in members]
    return constants.derived("joined_bias", _joined_parts, *parts)


def _joined(dim: int, *weights: torch.Tensor) -> torch.Tensor:
    return torch.cat(weights, dim).contiguous()


def _joined_parts(*parts: torch.Tensor | int) -> torch.Tensor:
    """A number stands for so many zeros."""
    like = next(part for part in parts if isinstance(part, torch.Tensor))
    return torch.cat([like.new_zeros(part) if isinstance(part, int) else part for part in parts])
