"""How a GPU's thread block computes one stage of a task: the template, its block, its seconds.

    map      lanes over the box, `block` at a time
    reduce   `rows` results by `depth` lanes each; dims of the bit set `unroll` have totals of their
             own, so that few rows of a product read their weights once
    dot      a product of matrices by `rows` x `columns` x `depth` on the tensor cores

The figures are an H200's, of one unit of 132: they rank choices, they do not predict.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from stretto.device.expr import Access, Apply, Expr, Extent, Load, Var
from stretto.device.operator import Method, Operator
from stretto.ir.types import DType
from stretto.kernels.products import Product, expr_vars, narrow_dtype, product_of
from stretto.lowering.expense import count_applies

BANDWIDTH = 4.0e10
"""Bytes per second that one unit reads while all do."""
LATENCY = 7e-7
"""Seconds from a load to its use, and to the next load behind a loop."""
STAGE = 2e-7
"""Seconds of a barrier between two stages of a task."""
FUNCTIONS = 1.5e11
"""Function applications per second of one unit."""
FMA = 4e11
"""Floating-point operations per second without tensor cores."""
TENSOR = 7e11
TENSOR_HALF = 4e12
"""Those of tensor cores: f32 as three products of TF32; f16 and bf16."""
DOUBLE = 2e11
DEPTH_STEP = 1.2e-7
"""Seconds of one step along the depth of a product, however small."""

GUESS = 64
"""What a size that only the run knows is taken for."""
MAP_BLOCK = 2048
DOT_BLOCK = 8192
"""Results of a block of a product; a quarter where positions take registers, as in convolutions."""
REDUCE_BLOCK = 8192
"""Lanes of a block: enough loads in flight that one unit has its share of the bandwidth."""
UNROLL = 4
"""So many rows of a product at most have totals of their own."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """What is known of an operator whatever its tile; `product` if it is one."""

    operator: Operator
    product: Product | None
    loads: tuple[tuple[Load, frozenset[int]], ...]
    applies: int

    @staticmethod
    def of(operator: Operator) -> Stencil:
        found = dict.fromkeys(operator.reads())
        reads = tuple((load, frozenset(expr_vars(load))) for load in found)
        applies = 1 + count_applies(operator.value)
        return Stencil(operator, product_of(operator), reads, applies)

    @property
    def is_matrix(self) -> bool:
        """A product with enough rows and columns for tensor cores?"""
        if self.product is None or prod(self.depths) < 16:
            return False
        dims = self.operator.dims
        sides = (self.product.rows, self.product.columns)
        return min(prod(guessed(dims[n]) for n in side) for side in sides) > UNROLL

    @property
    def sides(self) -> tuple[int, ...]:
        """Rows and columns of a product for tensor cores."""
        if self.product is None or not self.is_matrix:
            return ()
        return (*self.product.rows, *self.product.columns)

    def is_contiguous(self, dim: int) -> bool:
        """Do neighbours along a dim lie side by side in memory: the results, and where there is
        more to read than to write, what is read?"""
        if self.operator.out.offset.coefficient(Var(dim)) != 1:
            return False
        found = [load.access.offset.coefficient(Var(dim)) for load, _ in self.loads]
        return not self.operator.combine or 1 in found

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(guessed(extent) for extent in self.operator.reduce)


@dataclass(frozen=True, slots=True)
class Choice:
    """`beside`: what it adds to the time of another one like it that is under way."""

    method: Method
    seconds: float
    beside: float


def guessed(extent: Extent) -> int:
    return extent if isinstance(extent, int) else GUESS


def power(value: int) -> int:
    """The power of two from `value` up."""
    return 1 << max(value - 1, 0).bit_length()


def choose(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    """The way to compute a box of these sizes."""
    operator = stencil.operator
    if not operator.combine:
        return _map(stencil, sizes)
    product = stencil.product
    if product is not None:
        within = all(size % sizes[n] == 0 for n, size in product.pieces)
        if stencil.is_matrix and within:
            rows, columns = (prod(sizes[n] for n in d) for d in (product.rows, product.columns))
            return _dot(stencil, product, sizes, rows, columns)
    return _reduce(stencil, sizes)


def whole_seconds(stencil: Stencil) -> float:
    """What one unit takes for all of an operator at least."""
    sizes = tuple(guessed(extent) for extent in stencil.operator.dims)
    points = prod((*sizes, *stencil.depths))
    work = 2 * points / TENSOR_HALF if stencil.is_matrix else points * stencil.applies / FMA
    return max(traffic(stencil, sizes) / BANDWIDTH, work)


# ---- pointwise -------------------------------------------------------------------------------


def _map(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    points = prod(sizes)
    block = min(max(power(points), 32), MAP_BLOCK)
    seconds = max(
        traffic(stencil, sizes) / BANDWIDTH,
        points * stencil.applies / FUNCTIONS,
        ceil(points / block) * LATENCY / 2,
    )
    return Choice(Method("map", (("block", block),)), LATENCY + seconds, LATENCY + seconds)


def traffic(stencil: Stencil, sizes: tuple[int, ...]) -> float:
    """Bytes that a box reads and writes."""
    out = stencil.operator.out
    total = prod(sizes) * out.buffer.dtype.itemsize * waste(out, stencil, sizes)
    extents = (*sizes, *stencil.depths)
    for load, numbers in stencil.loads:
        elements = prod((extents[n] for n in numbers), start=1)
        total += elements * load.dtype.itemsize * waste(load.access, stencil, sizes)
    return total


SECTOR = 32
"""Bytes that memory hands over at least."""


def waste(access: Access, stencil: Stencil, sizes: tuple[int, ...]) -> float:
    """How many times the bytes of a box's elements memory must move to hand them over."""
    run = 1
    offset = access.offset
    sides = [
        (abs(offset.coefficient(Var(n))), size)
        for n, size in enumerate((*sizes, *stencil.depths))
        if offset.coefficient(Var(n))
    ]
    for step, size in sorted(sides):
        if step > run:
            break
        run += step * max(size - 1, 0)
    elements = prod(d if isinstance(d, int) else SECTOR for d in access.shape)
    return max(1.0, min(SECTOR // access.buffer.dtype.itemsize, elements) / run)


# ---- reductions ------------------------------------------------------------------------------


def _reduce(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    operator = stencil.operator
    unrolled = _unrolled(stencil, sizes)
    copies = prod((sizes[n] for n in unrolled), start=1)
    points = prod(sizes) // max(copies, 1)
    depth = prod(stencil.depths)
    wide = operator.value.dtype in (DType.F64, DType.I64)
    block = REDUCE_BLOCK // max(power(copies) // 2, 2 if wide else 1)
    if operator.combine in ("argmax", "argmin", "cumsum", "cumprod"):
        block = REDUCE_BLOCK // 4
    rows, lanes = _shape(stencil, points, depth, block)
    chunks = ceil(points / rows) * ceil(depth / lanes)
    work = points * copies * depth * stencil.applies
    rate = DOUBLE if operator.value.dtype is DType.F64 else FMA
    busy = max(traffic(stencil, sizes) / BANDWIDTH, work / rate)
    parameters = [("rows", rows), ("depth", lanes)]
    if unrolled:
        parameters.append(("unroll", sum(1 << n for n in unrolled)))
    seconds = LATENCY + max(busy, chunks * LATENCY) + STAGE
    return Choice(Method("reduce", tuple(parameters)), seconds, seconds if chunks > 1 else busy)


def _unrolled(stencil: Stencil, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of a product, or else its columns, where they are the few: the others' loads, which
    are many, are then shared.
    """
    product = stencil.product
    if product is None or product.pieces:
        return ()
    dims = stencil.operator.dims
    few, many = sorted(
        (product.rows, product.columns), key=lambda side: prod(guessed(dims[n]) for n in side)
    )
    static = all(isinstance(dims[n], int) for n in few)
    return few if many and static and 1 < prod(sizes[n] for n in few) <= UNROLL else ()


def _shape(stencil: Stencil, points: int, depth: int, block: int) -> tuple[int, int]:
    """Rows and lanes of a block: long along the dim that the largest operand is contiguous in."""
    high, deep = power(max(points, 1)), power(max(depth, 1))
    if _along_depth(stencil):
        lanes = min(deep, 1024 if high > 1 else block)
        rows = min(high, max(block // lanes, 1))
        return rows, min(deep, max(block // rows, 1))
    rows = min(high, 128)
    lanes = min(deep, max(block // rows, 1))
    return min(high, max(block // lanes, 1)), lanes


def _along_depth(stencil: Stencil) -> bool:
    """Does the largest load run along the last reduced dim?"""
    operator = stencil.operator
    last = len(operator.dims) + len(operator.reduce) - 1
    extents = [guessed(extent) for extent in (*operator.dims, *operator.reduce)]
    while last >= len(operator.dims) and extents[last] == 1:
        last -= 1
    if last < len(operator.dims) or not stencil.loads:
        return True
    largest, _ = max(stencil.loads, key=lambda item: prod(extents[n] for n in item[1]))
    offset = largest.access.offset
    steps = {
        n: abs(offset.coefficient(Var(n)))
        for n in range(len(extents))
        if extents[n] > 1 and offset.coefficient(Var(n))
    }
    return not steps or steps.get(last, 1 << 62) == min(steps.values())


# ---- products --------------------------------------------------------------------------------


def _dot(
    stencil: Stencil, product: Product, sizes: tuple[int, ...], rows: int, columns: int
) -> Choice:
    half = narrow_dtype(product.left) is not None
    half = half and narrow_dtype(product.left) is narrow_dtype(product.right)
    depth = prod(stencil.depths)
    plain = all(is_plain(factor) for factor in (product.left, product.right))
    room = DOT_BLOCK if plain else DOT_BLOCK // 4
    high = min(max(power(rows), 16), 64)
    wide = min(max(power(columns), 16), room // high, 128)
    high = min(max(power(rows), 16), room // wide, 128)
    item = 2 if half else 4
    deep = min(max(power(depth), 16), _step_depth(high, wide, half))
    batch = prod((sizes[n] for n in product.batch), start=1)
    blocks = batch * ceil(rows / high) * ceil(columns / wide)
    steps = ceil(depth / deep)
    flops = 2.0 * high * wide * deep * steps
    full = min(1.0, (high * wide / 4096) ** 0.5)
    spoilt = max((waste(load.access, stencil, sizes) for load, _ in stencil.loads), default=1.0)
    bytes_ = (high + wide) * deep * steps * item * spoilt
    bytes_ += high * wide * stencil.operator.out.buffer.dtype.itemsize
    rate = (TENSOR_HALF if half else TENSOR) * full
    block = flops / rate + bytes_ / BANDWIDTH + steps * DEPTH_STEP
    parameters = (("rows", high), ("columns", wide), ("depth", deep))
    seconds = LATENCY + blocks * (block + LATENCY / 2)
    return Choice(Method("dot", parameters), seconds, seconds)


def _step_depth(high: int, wide: int, half: bool) -> int:
    """How deep a step is: more of small blocks, as far as registers allow."""
    small = high + wide <= 64
    if half:
        return 128 if small else 64
    return 64 if high + wide <= 32 else 32


def is_plain(factor: Expr) -> bool:
    """Is a factor an element at a position that is a sum of variables, maybe converted?"""
    while isinstance(factor, Apply) and factor.function == "cast":
        (factor,) = factor.args
    return isinstance(factor, Load) and factor.access.offset.is_affine
