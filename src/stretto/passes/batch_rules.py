"""How each tensor operator is computed for all iterations of a loop at once: one rule per
operator.

A rule reads the op of the loop body and makes the same computation on twins, tensors with a
leading dim for the iteration. Families: operators element by element (torch's own tag says which),
operators whose dims shift by one, operators that work on trailing dims only, and a few with a rule
of their own. Contractions have theirs in `batch_contractions`. An operator without a rule stays in
the loop.
"""

from __future__ import annotations

from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp, argument_values
from stretto.ops.infer import parameters
from stretto.ops.properties import is_pointwise
from stretto.passes.batch import Batch, Rule
from stretto.passes.batch_contractions import CONTRACTION_RULES
from stretto.passes.operator_arguments import argument, value_argument, with_arguments


def rule_for(target: str) -> Rule | None:
    """The rule of an operator, or None."""
    if target in CONTRACTION_RULES:
        return CONTRACTION_RULES[target]
    if target in _OWN:
        return _OWN[target]
    if target in _DIMS:
        return _shift_dims
    if target in _TRAILING:
        return _keep_dims
    if is_pointwise(target):
        return _pointwise
    return None


def _pointwise(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    known = parameters(op.target)
    given = zip(known.values(), op.args, strict=False)
    pairs = [*given, *((known[key], item) for key, item in op.kwargs)]
    changed: dict[str, Argument] = {}
    rank = op.results[0].tensor.rank
    for parameter, item in pairs:
        if not any(batch.is_batched(value) for value in argument_values(item)):
            continue
        if not parameter.is_tensor:
            return "a number differs from iteration to iteration"
        if not isinstance(item, Value):
            return "a list of tensors differs from iteration to iteration"
        changed[parameter.name] = batch.aligned(item, rank)
    return _rebuilt(batch, op, changed)


def _rebuilt(batch: Batch, op: TensorOp, changed: dict[str, Argument]) -> tuple[Value, ...]:
    twin = with_arguments(op, changed)
    twin.substitute(lambda value: batch.invariants.get(value, value))
    return batch.add(twin).results


def _shift_dims(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """The operator on the same dims counted from the end: a non-negative dim grows by one."""
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    name, value = source
    rank = value.tensor.rank
    changed: dict[str, Argument] = {name: batch.twins[value]}
    for dim_name in _DIMS[op.target]:
        dims = argument(op, dim_name)
        if dims is None or dims == ():
            if op.target not in _ALL_DIMS:
                return "it runs over all dims at once"
            dims = tuple(range(rank))
        if rank == 0 and op.target not in _RANK_GROWS:
            return "its operand has no dims"
        changed[dim_name] = _shifted(dims)
    return _rebuilt(batch, op, changed)


def _shifted(dims: Argument) -> Argument:
    if isinstance(dims, tuple):
        return tuple(_shifted(item) for item in dims)
    assert isinstance(dims, int)
    return dims + 1 if dims >= 0 else dims


def _keep_dims(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    name, value = source
    if value.tensor.rank < _TRAILING[op.target]:
        return "its operand has too few dims"
    return _rebuilt(batch, op, {name: batch.twins[value]})


def _only_batched(batch: Batch, op: TensorOp) -> tuple[str, Value] | str:
    """Name and value of the first argument when it alone differs from iteration to iteration."""
    name = next(iter(parameters(op.target)))
    value = value_argument(op, name)
    if value is None or not batch.is_batched(value):
        return "its first operand is the same in each iteration, but not another one"
    if any(batch.is_batched(other) for other in op.operands if other is not value):
        return "more than its first operand differs from iteration to iteration"
    return name, value


def _to_result_shape(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """view and its like: whatever it does, it keeps the order of elements."""
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    return (batch.reshape(batch.twins[source[1]], (batch.length, *op.result.tensor.shape)),)


def _expand(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    result = op.result.tensor
    aligned = batch.aligned(source[1], result.rank)
    return (batch.emit("aten.expand.default", aligned, (batch.length, *result.shape)),)


def _permute(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    rank = source[1].tensor.rank
    order = list(range(rank))
    match op.target, argument(op, "dims"), argument(op, "dim0"), argument(op, "dim1"):
        case "aten.permute.default", tuple() as dims, _, _:
            order = [dim % rank for dim in dims if isinstance(dim, int)]
        case "aten.transpose.int", _, int() as one, int() as other:
            if rank:
                order[one % rank], order[other % rank] = order[other % rank], order[one % rank]
        case _:
            order = order[::-1]  # aten.t
    twin = batch.twins[source[1]]
    return (batch.permute(twin, (0, *(dim + 1 for dim in order))),)


def _concatenate(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    tensors = argument(op, "tensors")
    dim = argument(op, "dim")
    assert isinstance(tensors, tuple) and isinstance(dim, int)
    values = argument_values(tensors)
    if len({value.tensor.rank for value in values}) > 1:
        return "its operands differ in rank"
    parts = tuple(batch.expanded(value) for value in values)
    return (batch.emit(op.target, parts, _shifted(dim)),)


def _reduce_all(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """sum and its like over all dims."""
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    rank = source[1].tensor.rank
    if not rank:
        return "its operand has no dims"
    dims = tuple(range(1, rank + 1))
    twin = batch.twins[source[1]]
    target = _OVER_DIMS[op.target]
    dtype = argument(op, "dtype") if "dtype" in parameters(op.target) else None
    if dtype is None:
        return (batch.emit(target, twin, dims),)
    return (batch.emit(target, twin, dims, False, dtype=dtype),)


def _embedding(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    table, rows = value_argument(op, "weight"), value_argument(op, "indices")
    if batch.is_batched(table) or rows is None or not batch.is_batched(rows):
        return "the table differs from iteration to iteration"
    return _rebuilt(batch, op, {"indices": batch.twins[rows]})


def _index(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """Indices from the first dim on: those that differ lead the result, as the iteration does."""
    source, indices = value_argument(op, "self"), argument(op, "indices")
    if source is None or not isinstance(indices, tuple):
        return "its operand is missing"
    values = argument_values(indices)
    if len(values) != len(indices):
        return "a dim before an index is not indexed"
    if any(value.tensor.dtype.value in ("bool", "u8") for value in values):
        return "it is indexed by a mask"
    if batch.is_batched(source):
        if any(batch.is_batched(value) for value in values):
            return "both the tensor and the index differ from iteration to iteration"
        return _rebuilt(batch, op, {"self": batch.twins[source], "indices": (None, *indices)})
    rank = max(value.tensor.rank for value in values)
    aligned = tuple(batch.aligned(value, rank) for value in values)
    return _rebuilt(batch, op, {"indices": aligned})


def _select(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """A position that differs from iteration to iteration is an index; otherwise the dim shifts."""
    source, index = value_argument(op, "self"), value_argument(op, "index")
    dim = argument(op, "dim")
    assert source is not None and isinstance(dim, int)
    if index is None or not batch.is_batched(index):
        return _shift_dims(batch, op)
    if batch.is_batched(source):
        return "both the tensor and the position differ from iteration to iteration"
    dim %= source.tensor.rank
    first = (dim, *(other for other in range(source.tensor.rank) if other != dim))
    operand = batch.permute(batch.operand(source), first)
    return (batch.emit("aten.index.Tensor", operand, (batch.twins[index],)),)


def _merge_batch(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    """The iterations become part of the operand's own batch dim, its first."""
    source = _only_batched(batch, op)
    if isinstance(source, str):
        return source
    name, value = source
    if value.tensor.rank < _MERGED[op.target]:
        return "its operand has no batch dim"
    rows = batch.merge_rows(batch.twins[value])
    results = _rebuilt(batch, op, {name: rows})
    pairs = zip(results, op.results, strict=True)
    return tuple(batch.split_rows(row, result.tensor.shape) for row, result in pairs)


_DIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int"),
            *("aten._log_softmax.default", "aten.sum.dim_IntList", "aten.mean.dim"),
            *("aten.amax.default", "aten.amin.default", "aten.max.dim", "aten.min.dim"),
            *("aten.argmax.default", "aten.argmin.default", "aten.any.dim", "aten.any.dims"),
            *("aten.all.dim", "aten.all.dims", "aten.prod.dim_int", "aten.cumsum.default"),
            *("aten.cumprod.default", "aten.logsumexp.default", "aten.var.correction"),
            *("aten.std.correction", "aten.var_mean.correction", "aten.topk.default"),
            *("aten.sort.default", "aten.sort.stable", "stretto.topk.default"),
            *("aten.squeeze.dim", "aten.squeeze.dims"),
            *("aten.unsqueeze.default", "aten.slice.Tensor", "aten.split.Tensor"),
            *("aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int"),
            *("aten.select.int", "aten.narrow.default", "stretto.narrow"),
        ),
        ("dim",),
    ),
    **dict.fromkeys(("aten.flip.default", "aten.roll.default"), ("dims",)),
    "aten.flatten.using_ints": ("start_dim", "end_dim"),
    "aten.unflatten.int": ("dim",),
}
_ALL_DIMS = frozenset(
    (
        *("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default"),
        *("aten.var.correction", "aten.std.correction", "aten.var_mean.correction"),
    )
)
"""Operators for which no dims means all of them."""
_RANK_GROWS = frozenset(("aten.unsqueeze.default",))

_TRAILING: dict[str, int] = {
    "aten._to_copy.default": 0,
    "aten.to.dtype": 0,
    "aten.contiguous.default": 0,
    "aten.detach.default": 0,
    "aten.alias.default": 0,
    "aten.zeros_like.default": 0,
    "aten.ones_like.default": 0,
    "aten.full_like.default": 0,
    "aten.tril.default": 2,
    "aten.triu.default": 2,
    "aten.layer_norm.default": 1,
    "aten.native_layer_norm.default": 1,
    "aten.constant_pad_nd.default": 1,
}
"""Operators that leave leading dims alone, and the least rank of their operand."""

_MERGED: dict[str, int] = {
    "aten.avg_pool2d.default": 4,
    "aten.max_pool2d.default": 4,
    "aten.max_pool2d_with_indices.default": 4,
    "aten._adaptive_avg_pool2d.default": 4,
    "aten.adaptive_avg_pool2d.default": 4,
    "aten.avg_pool1d.default": 3,
    "aten.max_pool1d.default": 3,
    "aten.group_norm.default": 2,
}
"""Operators whose operand has a batch dim first, and the operand's rank then."""

_OVER_DIMS = {
    "aten.sum.default": "aten.sum.dim_IntList",
    "aten.mean.default": "aten.mean.dim",
    "aten.max.default": "aten.amax.default",
    "aten.min.default": "aten.amin.default",
    "aten.any.default": "aten.any.dims",
    "aten.all.default": "aten.all.dims",
}

_OWN: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
            "aten.squeeze.default",
        ),
        _to_result_shape,
    ),
    **dict.fromkeys(("aten.permute.default", "aten.transpose.int", "aten.t.default"), _permute),
    **dict.fromkeys(("aten.cat.default", "aten.stack.default"), _concatenate),
    **dict.fromkeys(_OVER_DIMS, _reduce_all),
    **dict.fromkeys(_MERGED, _merge_batch),
    "aten.expand.default": _expand,
    "aten.embedding.default": _embedding,
    "aten.index.Tensor": _index,
    "aten.select.int": _select,
}
