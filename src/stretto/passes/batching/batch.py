"""A batch: ops before a loop that compute values of its body for all iterations at once.

The *twin* of a body value is the tensor of all its values, one per iteration along a new leading
dim. A value that is the same in every iteration is *invariant* and has no twin; a rule
(`batch_rules`) makes the twins of an op's results from twins and invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.ir.core import Op, Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import Dim
from stretto.ops.infer import tensor_op


@dataclass(slots=True)
class Batch:
    """Twins and invariants known so far, and the ops that make them.

    `length` is the trip count: a number, a size that is known at the call, or a symbol that stands
    for the length of a list.
    """

    length: Dim
    twins: dict[Value, Value] = field(default_factory=dict[Value, Value])
    invariants: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Body values that are the same in each iteration, and their copies before the loop."""
    ops: list[Op] = field(default_factory=list[Op])

    def emit(self, target: str, *args: Argument, **kwargs: Argument) -> Value:
        """The only result of a new op before the loop. VerifyError for arguments torch refuses."""
        return self.add(tensor_op(target, *args, **kwargs)).result

    def add(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def operand(self, value: Value) -> Value:
        """What replaces a body value before the loop: its twin, its copy, or the value itself."""
        return self.twins.get(value) or self.invariants.get(value, value)

    def is_batched(self, value: Value | None) -> bool:
        return value is not None and value in self.twins

    def aligned(self, value: Value, rank: int) -> Value:
        """The operand such that it broadcasts against twins of values of `rank` dims."""
        operand = self.operand(value)
        missing = rank - value.tensor.rank
        if not self.is_batched(value) or missing <= 0:
            return operand
        shape = (self.length, *(1,) * missing, *value.tensor.shape)
        return self.reshape(operand, shape)

    def expanded(self, value: Value) -> Value:
        """A tensor with the leading dim, also for a value that is the same in each iteration."""
        if self.is_batched(value):
            return self.twins[value]
        shape = (self.length, *value.tensor.shape)
        return self.emit(
            "aten.expand.default",
            self.emit("aten.unsqueeze.default", self.operand(value), 0),
            shape,
        )

    def reshape(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        if value.tensor.shape == shape:
            return value
        return self.emit("aten.view.default", value, shape)

    def permute(self, value: Value, dims: tuple[int, ...]) -> Value:
        if dims == tuple(range(len(dims))):
            return value
        return self.emit("aten.permute.default", value, dims)

    def merge_rows(self, value: Value) -> Value:
        """[T, B, ...] as [T * B, ...]."""
        shape = value.tensor.shape
        return self.reshape(value, (times(shape[0], shape[1]), *shape[2:]))

    def split_rows(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        """[T * B, ...] as [T, B, ...], where `shape` is [B, ...]."""
        return self.reshape(value, (self.length, *shape))


class Stays(Exception):
    """The op cannot be batched and stays in the loop; the message says why."""


Rule = Callable[[Batch, TensorOp], tuple[Value, ...]]
"""The twins of the op's results. Some operands have twins, the others are invariant. Raises Stays,
or VerifyError where torch refuses the batched op."""


def times(first: Dim, second: Dim) -> Dim:
    """The size of two dims that become one."""
    return (Size.of(first) * second).dim
