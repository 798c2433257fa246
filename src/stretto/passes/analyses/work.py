"""What ops of a Program take, roughly, before there are kernels that a machine could say it of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from stretto.ir.core import Op, Value
from stretto.ir.ops import ConstantOp, ForOp, IfOp, LiteralOp, TensorOp, WhileOp
from stretto.ir.size_bounds import bounds
from stretto.ir.sizes import usual_value
from stretto.ir.types import Dim, TensorType
from stretto.ops.properties import properties
from stretto.ops.table import Cost
from stretto.passes.target import PassCosts

_PASSES = 4
"""How often an operator that is neither elementwise nor a product looks at each element."""

SizeOf = Callable[[Dim], float]


def largest(dim: Dim) -> float:
    """The most that a dim can be."""
    high = bounds(dim)[1]
    return float("inf") if high is None else high


def usual(dim: Dim) -> float:
    """What a dim is taken to be."""
    return max(usual_value(dim), 1)


def seconds(op: Op, costs: PassCosts, size_of: SizeOf = largest, units: int = 1) -> float:
    """Units compute the op together, with what they read at hand. Infinite where that cannot be
    said, as for a tensor of any size, a loop or a call."""
    if isinstance(op, ConstantOp | LiteralOp):
        return 0.0
    if not isinstance(op, TensorOp):
        return float("inf")
    cost = properties(op.target).cost
    made = sum(elements(value, size_of) for value in op.results)
    if cost is Cost.FREE:
        return 0.0
    if cost is Cost.ELEMENT:
        return made * costs.element_seconds / units
    read = max((elements(value, size_of) for value in op.operands), default=0.0)
    if cost is Cost.PRODUCT:
        weights = sum(nbytes(value, size_of) for value in op.operands)
        work = costs.product_seconds(_product_flops(op, made, size_of), weights, units)
    else:
        work = _PASSES * max(made, read) * costs.element_seconds / units
    return costs.start_seconds + work


def seconds_of_all(ops: Iterable[Op], costs: PassCosts, size_of: SizeOf = largest) -> float:
    return sum(seconds(op, costs, size_of) for op in ops)


def run_seconds(ops: Iterable[Op], costs: PassCosts, units: int) -> float:
    """One run of some ops, each shared out to the units, which wait for each other behind it."""
    return sum(_op_seconds(op, costs, units) for op in ops)


def _op_seconds(op: Op, costs: PassCosts, units: int) -> float:
    inner = [run_seconds(block.ops, costs, units) for block in op.blocks]
    match op:
        case IfOp():
            return max(inner)
        case WhileOp():
            return costs.unknown_trips * sum(inner)
        case ForOp():
            trips = op.trips()
            return (costs.unknown_trips if trips is None else usual(trips)) * sum(inner)
        case TensorOp():
            alone = seconds(op, costs, usual)
            if units == 1 or alone < costs.small_waits * costs.wait_seconds:
                return alone
            return seconds(op, costs, usual, units) + costs.wait_seconds
        case _:
            return 0.0


def elements(value: Value, size_of: SizeOf = largest) -> float:
    """How many numbers a tensor has; infinite for a list."""
    if not isinstance(value.type, TensorType):
        return float("inf")
    return prod((size_of(dim) for dim in value.type.shape), start=1.0)


def nbytes(value: Value, size_of: SizeOf = largest) -> float:
    return elements(value, size_of) * value.tensor.dtype.itemsize


def _product_flops(op: TensorOp, made: float, size_of: SizeOf) -> float:
    """Floating point operations: each element of the result is a sum over what two operands share.

    Of [M, K] and [K, N] the elements are M K, K N and M N, so K is the root of M K K N / M N. A
    convolution shares channels and taps: what its weight has for one channel of the result.
    """
    tensors = [value for value in op.operands if isinstance(value.type, TensorType)]
    if len(tensors) < 2:
        return 2.0 * made
    if "conv" in op.target:
        taps = prod((size_of(dim) for dim in tensors[1].tensor.shape[1:]), start=1.0)
        return 2.0 * made * taps
    ranked = sorted(tensors, key=lambda value: elements(value, size_of))[-2:]
    shared = (elements(ranked[0], size_of) * elements(ranked[1], size_of) / max(made, 1.0)) ** 0.5
    return 2.0 * made * max(shared, 1.0)
