"""Attention as products and a softmax, for machines and sizes without an attention template.

One operator becomes six, with buffers between them:

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
from math import inf

from stretto.device.expr import (
    Apply,
    Buffer,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Var,
    expr_atoms,
    substitute_vars,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import ATTEND, Combine, Operator
from stretto.device.tree import Tree
from stretto.ir.types import DType
from stretto.kernels.groups import NewBuffers, replace_operators
from stretto.lowering.lazy import placed, variables


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
    return _Steps(operator, Attention.of(operator), new).all()


@dataclass(frozen=True, slots=True)
class _Steps:
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
