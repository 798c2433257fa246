"""Rules for computing a tensor operator for all iterations of a loop at once.

The table of operators (`ops.table`) gives the kind of batching of each operator. This
module implements each kind: a rule reads the op of the loop body and emits the same
computation on twins, which are tensors with a leading dim for the iteration. For operators of
no such kind, their family in `operators` registers a rule with `batches`. An operator that
cannot be batched stays in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod

import torch

from stretto.ir.core import Op, Value, argument_values
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import Dim, DType, TensorType
from stretto.ops.arguments import argument, value_argument, with_arguments
from stretto.ops.infer import Emitter, named_arguments, parameters
from stretto.ops.properties import properties
from stretto.ops.table import (
    AllDims,
    ElementByElement,
    KeepDims,
    MergeRows,
    OwnRule,
    ShiftDims,
    describe,
)

# ---- A batch: ops before a loop that compute values of its body for all iterations at once.
#
# The *twin* of a body value is the tensor of all its values, one per iteration along a new leading
# dim. A value that is the same in every iteration is *invariant* and has no twin; a rule
# (`Batch.by_rule`) emits the twins of an op's results from twins and invariants.


@dataclass(slots=True)
class Batch(Emitter):
    """The twins and invariants found so far, and the ops that compute them.

    `length` is the trip count: a number, a size that is known at the call, or a symbol for the
    length of a list.
    """

    length: Dim
    twins: dict[Value, Value] = field(default_factory=dict[Value, Value])
    invariants: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """The copy, before the loop, of each body value that is the same in every iteration."""

    def operand(self, value: Value) -> Value:
        """Return what a body value is before the loop: its twin, its copy, or itself."""
        return self.twins.get(value) or self.invariants.get(value, value)

    def is_batched(self, value: Value | None) -> bool:
        return value is not None and value in self.twins

    def accept(self, op: Op, twins: tuple[Value, ...]) -> None:
        """Record the twins of an op's results. Raises NotBatchable if their types are not those of
        the results, with the leading dim."""
        for value, twin in zip(op.results, twins, strict=True):
            expected = TensorType(value.tensor.dtype, (self.length, *value.tensor.shape))
            if twin.type != expected:
                raise NotBatchable(f"the batched result would be {twin.type}, not {expected}")
            twin.hint = twin.hint or value.hint
        self.twins.update(zip(op.results, twins, strict=True))

    def aligned(self, value: Value, rank: int) -> Value:
        """Return the operand, reshaped to broadcast with twins of values of `rank` dims."""
        operand = self.operand(value)
        missing = rank - value.tensor.rank
        if not self.is_batched(value) or missing <= 0:
            return operand
        shape = (self.length, *(1,) * missing, *value.tensor.shape)
        return self.reshape(operand, shape)

    def expanded(self, value: Value) -> Value:
        """Return a tensor with the leading dim, even for a value that is the same in every
        iteration."""
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
        """Reshape [T, B, ...] to [T * B, ...]."""
        shape = value.tensor.shape
        return self.reshape(value, (times(shape[0], shape[1]), *shape[2:]))

    def split_rows(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        """Reshape [T * B, ...] to [T, B, ...], where `shape` is [B, ...]."""
        return self.reshape(value, (self.length, *shape))

    def by_rule(self, op: TensorOp) -> tuple[Value, ...]:
        """Emit and return the twins of an op's results, by the rule of its operator. Raises as
        `Rule` does, and NotBatchable if there is none."""
        return _rule_for(op.target)(self, op)


class NotBatchable(Exception):
    """The op cannot be batched and stays in the loop; the message gives the reason."""


Rule = Callable[[Batch, TensorOp], tuple[Value, ...]]
"""Emits and returns the twins of the op's results. At least one operand has a twin, the others are
invariant. Raises NotBatchable, or VerifyError if torch refuses the batched op."""


def times(first: Dim, second: Dim) -> Dim:
    """Return the size of two dims that are merged."""
    return (Size.of(first) * second).dim


def batches(names: str, namespace: str = "aten") -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the operators `names`, separated by spaces."""

    def register(rule: Rule) -> Rule:
        describe(names, namespace, batching=OwnRule(rule))
        return rule

    return register


def _rule_for(target: str) -> Rule:
    match properties(target).batching:
        case None:
            raise NotBatchable(f"`{target}` has no batched form")
        case ElementByElement():
            return _element_by_element
        case ShiftDims() as how:
            return partial(shift_dims, how=how)
        case KeepDims(rank):
            return partial(_keep_dims, rank=rank)
        case MergeRows(rank):
            return partial(_merge_rows, rank=rank)
        case AllDims(target):
            return partial(_all_dims, target=target)
        case OwnRule(rule):
            return rule


def _element_by_element(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    changed: dict[str, Argument] = {}
    rank = op.results[0].tensor.rank
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        if not any(batch.is_batched(value) for value in argument_values(item)):
            continue
        if not parameter.is_tensor:
            raise NotBatchable("a number differs from iteration to iteration")
        if not isinstance(item, Value):
            raise NotBatchable("a list of tensors differs from iteration to iteration")
        changed[parameter.name] = batch.aligned(item, rank)
    wide = _wide(batch, op, changed)
    if wide is None:
        return rebuilt(batch, op, _promoted(batch, op, changed))
    (result,) = rebuilt(batch, op, wide)
    dtype = op.results[0].tensor.dtype.torch
    return (batch.emit("aten._to_copy.default", result, dtype=dtype),)


_BY_NUMBER = (
    *("aten.mul.Tensor", "aten.div.Tensor", "aten.true_divide.Tensor"),
    *("aten.div.Tensor_mode", "aten.floor_divide.default"),
)


def _wide(batch: Batch, op: TensorOp, changed: dict[str, Argument]) -> dict[str, Argument] | None:
    """Return the arguments in F32 where ATen computes in it, else None: in F16 and BF16, products
    and quotients by a one-element tensor of another dtype use this element unrounded."""
    other, dtype = changed.get("other"), op.results[0].tensor.dtype
    if op.target not in _BY_NUMBER or dtype not in (DType.F16, DType.BF16):
        return None
    own = value_argument(op, "other")
    if not isinstance(other, Value) or own is None or other.tensor.dtype is dtype:
        return None
    if prod(own.tensor.shape) != 1:
        return None
    if op.target == "aten.div.Tensor_mode":
        raise NotBatchable("a divisor of another dtype differs from iteration to iteration")
    value = value_argument(op, "self")
    assert value is not None
    first = changed.get("self", batch.operand(value))
    return {
        "self": batch.emit("aten._to_copy.default", first, dtype=torch.float32),
        "other": batch.emit("aten._to_copy.default", other, dtype=torch.float32),
    }


def _promoted(batch: Batch, op: TensorOp, changed: dict[str, Argument]) -> dict[str, Argument]:
    """Return the arguments converted to the dtype in which the op computes. A tensor without dims
    takes the dtype of a tensor with dims; its twin has dims and would not, so it is converted."""
    before, after = list[TensorType](), list[TensorType]()
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        if parameter.is_tensor and isinstance(item, Value):
            twin = changed.get(parameter.name, item)
            assert isinstance(twin, Value)
            before.append(item.tensor)
            after.append(twin.tensor)
    dtype = _common_dtype(before)
    if dtype is _common_dtype(after):
        return changed
    return {
        name: item
        if not isinstance(item, Value) or item.tensor.dtype in (DType.BOOL, dtype)
        else batch.emit("aten._to_copy.default", item, dtype=dtype.torch)
        for name, item in changed.items()
    }


def _common_dtype(types: Sequence[TensorType]) -> DType:
    """Return the dtype to which an operator promotes operands of these types."""
    kinds = ([t for t in types if t.rank], [t for t in types if not t.rank])
    found = [
        torch.empty((1,) * (place == 0), dtype=reduce(torch.promote_types, dtypes), device="meta")
        for place, kind in enumerate(kinds)
        if (dtypes := [type.dtype.torch for type in kind])
    ]
    return DType.from_torch(torch.result_type(found[0], found[-1]))


def rebuilt(batch: Batch, op: TensorOp, changed: dict[str, Argument]) -> tuple[Value, ...]:
    """Emit the same operator before the loop with some arguments replaced; return its results."""
    twin = with_arguments(op, changed)
    twin.substitute(lambda value: batch.invariants.get(value, value))
    return batch.add(twin).results


def shift_dims(batch: Batch, op: TensorOp, how: ShiftDims) -> tuple[Value, ...]:
    """Apply the operator to the same dims of the twin: each non-negative dim is one higher, dims
    counted from the end stay."""
    name, value = only_batched(batch, op)
    rank = value.tensor.rank
    changed: dict[str, Argument] = {name: batch.twins[value]}
    for dim_name in how.names:
        dims = argument(op, dim_name)
        if dims is None or dims == ():
            if not how.none_is_all:
                raise NotBatchable("it runs over all dims at once")
            dims = tuple(range(rank))
        if rank == 0 and not how.grows:
            raise NotBatchable("its operand has no dims")
        changed[dim_name] = shifted(dims)
    return rebuilt(batch, op, changed)


def shifted(dims: Argument) -> Argument:
    if isinstance(dims, tuple):
        return tuple(shifted(item) for item in dims)
    assert isinstance(dims, int)
    return dims + 1 if dims >= 0 else dims


def _keep_dims(batch: Batch, op: TensorOp, rank: int) -> tuple[Value, ...]:
    name, value = only_batched(batch, op)
    if value.tensor.rank < rank:
        raise NotBatchable("its operand has too few dims")
    return rebuilt(batch, op, {name: batch.twins[value]})


def _merge_rows(batch: Batch, op: TensorOp, rank: int) -> tuple[Value, ...]:
    """Merge the iterations into the operand's own batch dim, its first."""
    name, value = only_batched(batch, op)
    if value.tensor.rank < rank:
        raise NotBatchable("its operand has no batch dim")
    results = rebuilt(batch, op, {name: batch.merge_rows(batch.twins[value])})
    pairs = zip(results, op.results, strict=True)
    return tuple(batch.split_rows(row, result.tensor.shape) for row, result in pairs)


def _all_dims(batch: Batch, op: TensorOp, target: str) -> tuple[Value, ...]:
    """Reduce over all dims but the iteration, for `sum` and similar operators over all dims."""
    _, value = only_batched(batch, op)
    rank = value.tensor.rank
    if not rank:
        dtype = op.result.tensor.dtype.torch
        return (batch.emit("aten._to_copy.default", batch.twins[value], dtype=dtype),)
    dims = tuple(range(1, rank + 1))
    dtype = argument(op, "dtype")
    if dtype is None:
        return (batch.emit(target, batch.twins[value], dims),)
    return (batch.emit(target, batch.twins[value], dims, False, dtype=dtype),)


def only_batched(batch: Batch, op: TensorOp) -> tuple[str, Value]:
    """Return name and value of the first argument. Raises NotBatchable unless it is the only one
    that differs between iterations."""
    name = next(iter(parameters(op.target)))
    value = value_argument(op, name)
    if value is None or not batch.is_batched(value):
        raise NotBatchable("its first operand is the same in each iteration, but not another one")
    if any(batch.is_batched(other) for other in op.operands if other is not value):
        raise NotBatchable("more than its first operand differs from iteration to iteration")
    return name, value
