"""Products of matrices by `rows` x `columns` x `depth` on the tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from stretto.device.expr import Apply, Const, Expr, Load
from stretto.device.operator import Operator, Template
from stretto.ir.types import DType
from stretto.kernels.products import Product
from stretto.machines.cuda.templates.stencil import Choice, Stencil, block_product, power, waste

HALVES = (DType.F16, DType.BF16)
DOT_BLOCK = 8192
"""Results of a block of a product; a quarter where positions take registers, as in convolutions."""


@dataclass(frozen=True, slots=True)
class Dot(Template):
    name: ClassVar[str] = "dot"
    rows: int
    columns: int
    depth: int
    product: Product

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        product = block_product(operator)
        if product is None:
            raise ValueError("the operator is no product")
        return {"product": product}


def dot_choice(
    stencil: Stencil, product: Product, sizes: tuple[int, ...], rows: int, columns: int
) -> Choice:
    pair = product.factors(stencil.operator)
    half = block_dtype(pair) is not None
    depth, costs = prod(stencil.depths), stencil.costs
    plain = all(is_plain(factor) for factor in pair)
    room = DOT_BLOCK if plain else DOT_BLOCK // 4
    high = min(max(power(rows), 16), 64)
    wide = min(max(power(columns), 16), room // high, 128)
    high = min(max(power(rows), 16), room // wide, 128)
    item = 2 if half else 4
    deep = min(max(power(depth), 16), _step_depth(high, wide, half))
    batch = prod((sizes[n] for n in (*product.batch, *product.free)), start=1)
    blocks = batch * ceil(rows / high) * ceil(columns / wide)
    steps = ceil(depth / deep)
    flops = 2.0 * high * wide * deep * steps
    full = min(1.0, (high * wide / 4096) ** 0.5)
    spoilt = max((waste(load.access, stencil, sizes) for load, _ in stencil.loads), default=1.0)
    bytes_ = (high + wide) * deep * steps * item * spoilt
    bytes_ += high * wide * stencil.operator.out.buffer.dtype.itemsize
    rate = (costs.half_flops if half else costs.tensor_flops) * full
    block = flops / rate + bytes_ / costs.bandwidth + steps * costs.depth_seconds
    seconds = costs.latency_seconds + blocks * (block + costs.latency_seconds / 2)
    return Choice(Dot(high, wide, deep, product), seconds, seconds)


def _step_depth(high: int, wide: int, half: bool) -> int:
    """How deep a step is: more of small blocks, as far as registers allow."""
    small = high + wide <= 64
    if half:
        return 128 if small else 64
    return 64 if high + wide <= 32 else 32


def block_dtype(pair: tuple[Expr, Expr]) -> DType | None:
    """The dtype in which both factors go to the tensor cores as they are; None for f32."""
    kinds = {narrow_dtype(factor) for factor in pair}
    return kinds.pop() if len(kinds) == 1 else None


def narrow_dtype(expr: Expr) -> DType | None:
    """f16 or bf16 where every value of an expression of f32 is one of that dtype."""
    match expr:
        case Load():
            return expr.dtype if expr.dtype in HALVES else None
        case Apply("cast", (argument,), dtype):
            if dtype in HALVES:
                return dtype
            return narrow_dtype(argument) if dtype is DType.F32 else None
        case Apply("where", (_, Const(value, _), other), _) if value == 0:
            return narrow_dtype(other)
        case Apply("where", (_, other, Const(value, _)), _) if value == 0:
            return narrow_dtype(other)
        case _:
            return None


def plain_load(expr: Expr) -> Load | None:
    """The load that a factor is, maybe converted from f16 or bf16."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (Load() as load,), DType.F32) if load.dtype in HALVES:
            return load
        case _:
            return None


def is_plain(factor: Expr) -> bool:
    """Is a factor an element at a position that is a sum of variables, maybe converted?"""
    while isinstance(factor, Apply) and factor.function == "cast":
        (factor,) = factor.args
    return isinstance(factor, Load) and factor.access.offset.is_affine
