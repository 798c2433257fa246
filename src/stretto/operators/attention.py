"""Attention.

An attention op becomes one operator. For machines and sizes without an attention template it
becomes six, with buffers between them:

    scores[row, key] = sum over the depth of product
    top[row]         = maximum over the keys of scores * scale + bias
    weights[row,key] = exp(scores * scale + bias - top)
    total[row]       = sum over the keys of weights
    sums[row, c]     = sum over the keys of weights * value
    out[row, c]      = sums / total, or 0 where no key has a score above -inf
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch

from stretto.device.expr import (
    Apply,
    Buffer,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    Var,
    expr_atoms,
    substitute_vars,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import ATTEND, Combine, Operator
from stretto.device.tree import Tree
from stretto.ir.types import DType
from stretto.kernels.groups import NewBuffers, replace_operators
from stretto.lowering.emit import apply, emit, index_of, like, mapped, product, sum_dtype, where
from stretto.lowering.lazy import Lazy, broadcast, cast, constant, placed, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_dims
from stretto.operators.products import batch_element, broadcast_dims, finished, matmul, operand
from stretto.operators.softmax import row_statistics
from stretto.operators.views import swapped
from stretto.ops.symints import require
from stretto.ops.table import Cost, Fails, Replaced, describe, shape_rule

# ---- properties ------------------------------------------------------------------------------

describe(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_attention_math",
    fails=Fails.NEVER,
)


describe("scaled_dot_product_attention", cost=Cost.PRODUCT, whole=True)


@rule("scaled_dot_product_attention")
def _attention(call: TensorOpCall) -> Lazy:
    return _attended(call)


@rule("_scaled_dot_product_attention_math")
def _attention_with_weights(call: TensorOpCall) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the attention weights")
    return _attended(call), _second(call)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention_with_logsumexp(call: TensorOpCall) -> tuple[Lazy, ...]:
    if not call.used(1):
        return _attended(call), _second(call)
    query, keys = (operand(call, call.arguments[n]) for n in ("query", "key"))
    mask = operand(call, call.arguments["attn_mask"]) if call.has("attn_mask") else None
    out = _attended(call)
    raw = matmul(call, query, swapped(keys, keys.rank - 2, keys.rank - 1), None)
    row, key = variables(raw.shape)[-2:]
    bias = _bias(call, raw.shape[:-2], (row, key), mask, raw.dtype)
    scores = apply("add", apply("mul", raw.expr, _scale(call, query, raw.dtype)), bias)
    _, top, total = row_statistics(call, mapped(raw, scores), raw.rank - 1)
    dtype = call.op.results[1].tensor.dtype
    logarithm = apply("add", apply("log", total.expr), top.expr)
    return out, Lazy(dtype, total.shape, cast(logarithm, dtype))


def _second(call: TensorOpCall) -> Lazy:
    """Return a placeholder for the second result, which nothing reads."""
    second = call.op.results[1].tensor
    return constant(0, second.dtype, call.low.extents(second.shape))


def _attended(call: TensorOpCall) -> Lazy:
    if call.number("dropout_p") != 0 or call.has("dropout_mask"):
        raise Decline("random numbers")
    shapes = [call.tensor(name).shape for name in ("query", "key", "value")]
    if any(0 in shape for shape in shapes) or len({len(shape) for shape in shapes}) != 1:
        raise Decline("nothing to attend to")
    static_dims(shapes[0][-1:])
    query, key, value = (operand(call, call.arguments[n]) for n in ("query", "key", "value"))
    mask = operand(call, call.arguments["attn_mask"]) if call.has("attn_mask") else None
    if mask is not None:
        lead = (1,) * (query.rank - mask.rank)
        mask = broadcast(mask, (*lead, *mask.shape))
    if call.arguments.get("enable_gqa", False) and query.shape[-3] != key.shape[-3]:
        query, key, value, mask = _grouped(query, key, value, mask)
    batch = broadcast_dims(query.shape[:-2], key.shape[:-2])
    batch = broadcast_dims(batch, value.shape[:-2])
    if mask is not None:
        batch = broadcast_dims(batch, mask.shape[:-2])
    return _operator(call, batch, query, key, value, mask)


def _operator(
    call: TensorOpCall,
    batch: tuple[Extent, ...],
    query: Lazy,
    key: Lazy,
    value: Lazy,
    mask: Lazy | None,
) -> Lazy:
    """Emit the attention operator over dims (batch, rows, columns), keys and depth."""
    (rows, depth), (keys, columns) = query.shape[-2:], value.shape[-2:]
    if sum(isinstance(dim, Reg) for dim in (*batch, rows, keys)) > 1:
        # No limit of their size is known, so they cannot be stored.
        raise Decline("the scores have two dims that are known only at run time")
    dims = (*batch, rows, columns)
    row, column = (index_of(d, len(batch) + n) for n, d in enumerate((rows, columns)))
    place, inner = (index_of(d, len(dims) + n) for n, d in enumerate((keys, depth)))
    dtype = sum_dtype(query.dtype)
    score = product(
        batch_element(query, batch, (row, inner)), batch_element(key, batch, (place, inner)), dtype
    )
    scale, bias = _scale(call, query, dtype), _bias(call, batch, (row, place), mask, dtype)
    values = cast(batch_element(value, batch, (place, column)), dtype)
    whole = Apply(ATTEND, (score, scale, bias, values), dtype)
    reduce = (keys, depth)
    return finished(
        call, emit(call.low, "attention", dims, reduce, Combine.ATTENTION, whole, call.result)
    )


def _scale(call: TensorOpCall, query: Lazy, dtype: DType) -> Const:
    (depth,) = static_dims(query.shape[-1:])
    return Const(float(call.number("scale")) if call.has("scale") else 1 / sqrt(depth), dtype)


def _bias(
    call: TensorOpCall,
    batch: tuple[Extent, ...],
    place: tuple[Index, Index],
    mask: Lazy | None,
    dtype: DType,
) -> Expr:
    """Return the bias added to the score at `place`, a (row, key) pair."""
    bias: Expr = Const(0.0, dtype)
    if mask is not None:
        row, key = (Index() if d == 1 else i for d, i in zip(mask.shape[-2:], place, strict=True))
        bias = batch_element(mask, batch, (row, key))
        is_flag = mask.dtype is DType.BOOL
        nothing, hidden = Const(0.0, dtype), Const(-inf, dtype)
        bias = where(bias, nothing, hidden) if is_flag else cast(bias, dtype)
    if call.flag("is_causal"):
        row, key = place
        behind = Apply("le", (Position(key), Position(row)), DType.BOOL)
        bias = where(behind, bias, like(-inf, bias))
    return bias


def _grouped(
    query: Lazy, key: Lazy, value: Lazy, mask: Lazy | None
) -> tuple[Lazy, Lazy, Lazy, Lazy | None]:
    """Reshape the operands if each head of keys and values serves several query heads: the query's
    heads become two dims, of which the second has size 1 in keys and values."""
    heads, own = static_dims((query.shape[-3], key.shape[-3]))
    alone = (_split(lazy, own, 1) for lazy in (key, value))
    if mask is not None:
        several = mask.shape[-3] != 1
        mask = _split(mask, own if several else 1, heads // own if several else 1)
    return _split(query, own, heads // own), *alone, mask  # type: ignore[return-value]


def _split(lazy: Lazy, groups: int, size: int) -> Lazy:
    """Split the third dim from the end into two."""
    shape = (*lazy.shape[:-3], groups, size, *lazy.shape[-2:])
    *lead, group, member, first, second = variables(shape)
    return lazy.view(shape, *lead, group * size + member, first, second)


# ---- Expansion into products and a softmax -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of an attention operator. columns: the dims that only the values have; rows: all
    others."""

    product: Expr
    scale: Const
    bias: Expr
    value: Expr
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @staticmethod
    def of(operator: Operator) -> Attention:
        """Return the parts of an attention operator."""
        value = operator.value
        assert isinstance(value, Apply) and value.function == ATTEND
        product, scale, bias, values = value.args
        assert isinstance(scale, Const)
        used = {*expr_atoms(product), *expr_atoms(bias)}
        dims = range(len(operator.dims))
        rows = tuple(dim for dim in dims if Var(dim) in used)
        columns = tuple(dim for dim in dims if Var(dim) not in used)
        return Attention(product, scale, bias, values, rows, columns)


def plain_attention(tree: Tree[Items], keep: Callable[[Operator], bool]) -> Tree[Items]:
    """Expand every attention in the tree, except those for which `keep` is true."""

    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        if operator.combine is not Combine.ATTENTION or keep(operator):
            return (operator,)
        return plain_steps(operator, new)

    return replace_operators(tree, steps)


def plain_steps(operator: Operator, new: NewBuffers) -> tuple[Operator, ...]:
    """Return the products and the softmax that replace an attention operator."""
    return _Expansion(operator, Attention.of(operator), new).all()


@dataclass(frozen=True, slots=True)
class _Expansion:
    operator: Operator
    parts: Attention
    new: NewBuffers

    def all(self) -> tuple[Operator, ...]:
        keys, depth = self.operator.reduce
        rows = tuple(self.operator.dims[dim] for dim in self.parts.rows)
        square = (*rows, keys)
        raw = self._step("scores", square, (depth,), Combine.SUM, self._over(self.parts.product))
        score = self._score(_load(raw))
        top = self._step("top", rows, (keys,), Combine.MAX, score)
        highest = _load(top)
        none = Apply("eq", (highest, Const(-inf, highest.dtype)), DType.BOOL)
        base = Apply("where", (none, Const(0.0, highest.dtype), highest), highest.dtype)
        lowered = Apply("sub", (score, base), score.dtype)
        weight = Apply("exp", (lowered,), score.dtype)
        weights = self._step("weights", square, (), Combine.NONE, weight)
        total = self._step("total", rows, (keys,), Combine.SUM, _load(weights))
        return (raw, top, weights, total, *self._averages(weights, total))

    def _averages(self, weights: Operator, total: Operator) -> tuple[Operator, Operator]:
        """Return the operators for `sums` and `out`, over the dims of the attention itself."""
        operator, value = self.operator, self.parts.value
        keys, _ = operator.reduce
        own = [Index.of(Var(dim)) for dim in self.parts.rows]
        key = variables((keys,), len(operator.dims))[0]
        weight = substitute_vars(_load(weights), (*own, key))
        product = Apply("mul", (weight, value), value.dtype)
        sums = self._step("sums", operator.dims, (keys,), Combine.SUM, product)
        divisor = substitute_vars(_load(total), tuple(own))
        empty = Apply("eq", (divisor, Const(0.0, divisor.dtype)), DType.BOOL)
        ratio = Apply("div", (_load(sums), divisor), value.dtype)
        average = Apply("where", (empty, Const(0.0, value.dtype), ratio), value.dtype)
        last = Operator(
            operator.name, operator.dims, (), Combine.NONE, average, operator.out,
            operator.accumulate, operator.source, operator.origin,
        )  # fmt: skip
        return sums, last

    def _over(self, expr: Expr) -> Expr:
        """Return the expression over the rows, the keys and the depth."""
        operator, rows = self.operator, self.parts.rows
        values = [Index()] * (len(operator.dims) + 2)
        for place, dim in enumerate((*rows, len(operator.dims), len(operator.dims) + 1)):
            values[dim] = Index.of(Var(place))
        return substitute_vars(expr, tuple(values))

    def _score(self, raw: Expr) -> Expr:
        score, scale, bias = raw, self.parts.scale, self._over(self.parts.bias)
        if scale.value != 1:
            score = Apply("mul", (score, scale), score.dtype)
        if bias != Const(0.0, bias.dtype):
            score = Apply("add", (score, bias), score.dtype)
        return score

    def _step(
        self,
        name: str,
        dims: tuple[Extent, ...],
        reduce: tuple[Extent, ...],
        combine: Combine,
        value: Expr,
    ) -> Operator:
        buffer = Buffer(self.new.name(name), value.dtype, dims)
        self.new.buffers.append(buffer)
        name, source = f"{self.operator.name}.{name}", self.operator.source
        out, origin = placed(buffer, dims), self.operator.origin
        return Operator(name, dims, reduce, combine, value, out, source=source, origin=origin)


def _load(operator: Operator) -> Load:
    """Return a load of the operator's result."""
    return Load(placed(operator.out.buffer, operator.out.buffer.shape))


@shape_rule("scaled_dot_product_attention.default", Replaced.UNBACKED)
def _attention_shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any
) -> torch.Tensor:
    require(query.shape[-1] == key.shape[-1])
    require(key.shape[-2] == value.shape[-2])
    return query.new_empty((*query.shape[:-1], value.shape[-1]))
