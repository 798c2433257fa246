"""Recognition of products: contractions and convolutions whose operands loops can read in place.

The columns of a contraction are contiguous in the result, so a vector of them is stored at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from stretto.device.expr import (
    Access,
    Apply,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Quotient,
    Reg,
    Var,
    constant,
    is_known,
    known_size,
)
from stretto.device.operator import Combine, Operator
from stretto.ir.sizes import Atom, Quantity, Size, Symbol, factors_of
from stretto.ir.sizes import Product as ProductAtom
from stretto.ir.types import DType
from stretto.kernels.groups import divisible

# ---- Sums of products, and the role of each dim -----------------------------------------------
#
# The only analysis of products: it tells machines which dims are rows, columns and batch. Machines
# add the facts that their templates need; `Contraction` adds the strides of plain loads.


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """out[batch, rows, columns] = sum over the reduced dims of left * right; dims by number.

    `rows` are the dims that only the left factor depends on, `columns` only the right one,
    `batch` both, `free` neither; dims of size 1 are left out. The right factor is the one that
    depends on the contiguous dim of the result; if that is the operator's first factor,
    `turned` is True. pieces: (dim, size) if the other factor depends on dim // size too, as in
    a grouped convolution: only tiles within one piece of that size are such a product.
    """

    turned: bool
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    free: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()

    def factors(self, operator: Operator) -> tuple[Expr, Expr]:
        """Return the left and the right factor of an operator that is this product."""
        pair = factors(operator)
        assert pair is not None
        first, second = pair
        return (second, first) if self.turned else (first, second)


def factors(operator: Operator) -> tuple[Expr, Expr] | None:
    """Return the two factors of a sum of products; None if the operator is not one."""
    value = operator.value
    if operator.combine != Combine.SUM or not isinstance(value, Apply):
        return None
    return (value.args[0], value.args[1]) if value.function == "mul" else None


def product_of(operator: Operator) -> MatrixProduct | None:
    """Return the product that an operator computes, or None. Its factors may be any expressions:
    conversions, images read under a condition."""
    pair = factors(operator)
    if pair is None or operator.accumulate or not divisible(operator):
        return None
    dims = [n for n, extent in enumerate(operator.dims) if extent != 1]
    uses = [VariableUses.of(factor) for factor in pair]
    contiguous = [n for n in dims if operator.out.offset.coefficient(Var(n)) == 1]
    turned = bool(contiguous) and contiguous[-1] in uses[0].direct
    left, right = uses[::-1] if turned else uses
    roles: dict[tuple[bool, bool], list[int]] = {}
    for n in dims:
        roles.setdefault((n in left.direct, n in right.direct), []).append(n)
    rows, columns = roles.get((True, False), []), roles.get((False, True), [])
    pieces = [(n, right.pieces[n]) for n in rows if n in right.pieces]
    pieces += [(n, left.pieces[n]) for n in columns if n in left.pieces]
    batch, free = roles.get((True, True), []), roles.get((False, False), [])
    return MatrixProduct(
        turned, tuple(batch), tuple(rows), tuple(columns), tuple(free), tuple(pieces)
    )


@dataclass(slots=True)
class VariableUses:
    """The variables that an expression depends on, directly or (`pieces[n]` = size) by Var(n) //
    size."""

    direct: set[int] = field(default_factory=set[int])
    pieces: dict[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def of(expr: Expr) -> VariableUses:
        uses = VariableUses()
        uses.visit(expr)
        return uses

    def visit(self, expr: Expr) -> None:
        match expr:
            case Const():
                pass
            case Position(index):
                self.visit_index(index)
            case Load(access):
                for index in access.index:
                    self.visit_index(index)
            case Apply(_, args, _):
                for arg in args:
                    self.visit(arg)

    def visit_index(self, index: Index) -> None:
        for atom, _ in index.terms:
            match atom:
                case Quotient(Index(((Var(number), 1),), 0), int(size)):
                    self.pieces[number] = gcd(self.pieces.get(number, 0), size)
                case ComputedPosition(value):
                    self.visit(value)
                case _:
                    self.direct |= Index.of(atom).vars()


FLOATS = (DType.F32, DType.F64)
_HALVES = (DType.F16, DType.BF16)
NARROW = (*_HALVES, DType.I8)
"""Dtypes of operands that are widened before they are multiplied; bytes are widened to i32."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product whose factors are plain loads; strides in elements.

    dtype: that of both operands and the result, with two exceptions. F16 and BF16 operands are
    widened to f32 before they are multiplied, and the result is f32. I8 is the dtype of the
    right operand only: the left one is u8 and the result i32.

    column: the contiguous one of the product's columns. Its other columns are batch dims, like
    the dims of both factors: a matrix is multiplied with many others, each in place. rows: the
    product's rows and free dims. depth: the size of the flattened reduction dims. left_depth,
    right_depth: their stride in each operand (right: None if packing is needed). Sizes and
    strides may be known only at the call.
    """

    product: MatrixProduct
    column: int
    rows: tuple[int, ...]
    depth: int | Size
    left_depth: int | Size
    right_depth: int | Size | None
    dtype: DType

    @property
    def is_narrow(self) -> bool:
        return self.dtype in NARROW

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch dims: those of both factors, and the columns other than `column`."""
        others = (n for n in self.product.columns if n != self.column)
        return tuple(sorted((*self.product.batch, *others)))

    def operands(self, operator: Operator) -> tuple[Access, Access]:
        """Return the left and the right access of an operator that is this contraction."""
        left, right = loads_of(operator)
        return (right, left) if self.product.turned else (left, right)


def loads_of(operator: Operator) -> tuple[Access, Access]:
    """Return the accesses of the two factors of a product of loads."""
    pair = factors(operator)
    assert pair is not None
    first, second = (narrow_load(factor) or image_load(factor) for factor in pair)
    assert first is not None and second is not None
    return first.access, second.access


def stride(access: Access, dim: int) -> int | Size:
    """Return the distance between elements along a dim in which the offset is linear."""
    return linear_factor(access.offset, dim)


def linear_factor(index: Index, dim: int) -> int | Size:
    """Return the factor of variable `dim` in the terms that are linear in it."""
    total = Size(const=index.coefficient(Var(dim)))
    for atom, coefficient in index.terms:
        if isinstance(atom, ProductAtom) and atom.factors.count(Var(dim)) == 1:
            step = Size(const=coefficient)
            for factor in atom.factors:
                step = step if factor == Var(dim) else step * factor
            total = total + step
    return total.dim


def is_linear(index: Index) -> bool:
    """True if an index is a sum of variables, each times a size known at the call, of such sizes
    and of registers."""
    return all(_is_linear_term(atom) for atom, _ in index.terms)


def _is_linear_term(atom: Atom) -> bool:
    if isinstance(atom, Var | Reg):
        return True
    sizes = [factor for factor in factors_of(atom) if not isinstance(factor, Var)]
    inner = [part for factor in sizes for part in Size.of(factor).atoms()]
    if any(isinstance(part, Quantity) and not isinstance(part, Symbol) for part in inner):
        return False
    return len(factors_of(atom)) - len(sizes) <= 1


def contraction_of(operator: Operator) -> Contraction | None:
    """Return the contraction that an operator computes; None if no template could compute it."""
    product = product_of(operator)
    if product is None or not product.columns:
        return None
    left, right = (narrow_load(factor) or factor for factor in product.factors(operator))
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    if (left.dtype, right.dtype, operator.out.buffer.dtype) not in _DTYPES:
        return None
    if not all(map(is_linear, (left.access.offset, right.access.offset, operator.out.offset))):
        return None
    column = product.columns[-1]
    if stride(operator.out, column) != 1 or not is_known(operator.dims[column]):
        return None
    if not all(map(is_known, operator.reduce)):
        return None
    first = len(operator.dims)
    dims = [(first + n, extent) for n, extent in enumerate(operator.reduce) if extent != 1]
    left_depth, right_depth = (flat_stride(load.access, dims) for load in (left, right))
    if left_depth is None or (right_depth is None and right.access.buffer.kind != "constant"):
        return None
    rows = tuple(sorted((*product.rows, *product.free)))
    depth = known_size(operator.reduce)
    return Contraction(product, column, rows, depth, left_depth, right_depth, right.dtype)


def flat_stride(access: Access, dims: list[tuple[int, Extent]]) -> int | Size | None:
    """Return the common stride of dims that are iterated in row-major order as one; None if there
    is none."""
    if not dims:
        return 1
    step = stride(access, dims[-1][0])
    expected = step
    for (_, inner), (dim, _) in zip(reversed(dims), list(reversed(dims))[1:], strict=False):
        if isinstance(inner, Reg):
            return None
        expected = expected * inner
        if stride(access, dim) != expected:
            return None
    return step


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of a padded image; the weights are the first factor. Pairs are (height,
    width)."""

    batch: int | Size
    groups: int
    out_channels: int
    in_channels: int
    height: int | Size
    width: int | Size
    kernel: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def per_group(self) -> int:
        """Number of output channels in a group."""
        return self.out_channels // self.groups

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.in_channels == 1 and self.per_group == 1

    @property
    def is_pointwise(self) -> bool:
        """True if the image is its own matrix of patches."""
        return self.kernel == self.step == (1, 1) and self.padding == (0, 0)


def image_start(operator: Operator) -> Access:
    """Return the access to the first element that a convolution reads of each batch member."""
    image = loads_of(operator)[1]
    inner = len(operator.dims) - 1
    lead = image.index[: len(image.index) - inner]
    return Access(image.buffer, image.shape, (*lead, *[Index()] * inner))


def convolution_of(operator: Operator) -> Convolution | None:
    """Return the convolution of an operator with that name and dims (n, oc, oy, ox) or (n, oc,
    ox); else None."""
    pair = factors(operator)
    if operator.name != "convolution" or pair is None or operator.accumulate:
        return None
    weight, image = pair[0], image_load(pair[1])
    if not isinstance(weight, Load) or image is None or len(operator.dims) not in (3, 4):
        return None
    varying = set(range(len(operator.dims))) - {1}
    if not weight.access.offset.is_affine or weight.access.offset.vars() & varying:
        return None
    if image.dtype not in FLOATS or weight.dtype is not image.dtype:
        return None
    if operator.out.buffer.dtype is not image.dtype:
        return None
    if not all(map(is_known, operator.dims)):
        return None
    fixed = [d for d in (operator.dims[1], *operator.reduce) if isinstance(d, int)]
    if len(fixed) != 1 + len(operator.reduce):
        return None
    return _geometry(operator, image.access, fixed)


_DTYPES = {
    *((dtype, dtype, dtype) for dtype in FLOATS),
    *((dtype, dtype, DType.F32) for dtype in _HALVES),
    (DType.U8, DType.I8, DType.I32),
}
"""Supported dtypes of the left operand, the right operand and the result."""


def narrow_load(expr: Expr) -> Load | None:
    """Return the load of narrow numbers that a factor widens, or None."""
    match expr:
        case Apply("cast", (Load() as load,), DType.F32) if load.dtype in _HALVES:
            return load
        case Apply("cast", (Load() as load,), DType.I32) if load.dtype in (DType.U8, DType.I8):
            return load
        case _:
            return None


def image_load(expr: Expr) -> Load | None:
    """Return the load that a factor is, possibly of a padded image (0 outside of it). None if the
    condition compares anything but indices of the load with the ends of their dims: for an
    image with one row, the index does not show which row is meant."""
    if isinstance(expr, Load):
        return expr
    if isinstance(expr, Apply) and expr.function == "where":
        condition, taken, other = expr.args
        is_padded = isinstance(other, Const) and other.value == 0
        if isinstance(taken, Load) and is_padded and _is_inside(condition, taken.access):
            return taken
    return None


def _is_inside(condition: Expr, access: Access) -> bool:
    """True if a condition only compares indices of an access with the ends of their dims."""
    match condition:
        case Apply("and", (one, other)):
            return _is_inside(one, access) and _is_inside(other, access)
        case Apply("ge", (Position(index), end)):
            return index in access.index and constant(end) == 0
        case Apply("lt", (Position(index), Position(end))):
            dims = zip(access.index, access.shape, strict=True)
            return any(one == index and Index.of(size) == end for one, size in dims)
        case _:
            return False


def _geometry(operator: Operator, image: Access, fixed: list[int]) -> Convolution | None:
    """Return the convolution's sizes, or None. `fixed`: output channels, reduced channels, and the
    taps."""
    spatial, rank = len(operator.dims) - 2, len(operator.dims)
    out_channels, in_channels, *taps = fixed
    if len(image.shape) < spatial + 1 or len(taps) != spatial:
        return None
    *lead, channel = image.index[: len(image.index) - spatial]
    channels, *sizes = (d for d in image.shape[-spatial - 1 :] if not isinstance(d, Reg))
    if len(sizes) != spatial or not isinstance(channels, int):
        return None
    steps, pads, dilations = [1] * 2, [0] * 2, [1] * 2
    for place, index in enumerate(image.index[len(image.index) - spatial :]):
        slot = 2 - spatial + place
        out_var, tap_var = 2 + place, rank + 1 + place
        size, out = sizes[place], operator.dims[out_var]
        # The index does not show the step along a dim of size 1: any step with one output will do.
        step = index.coefficient(Var(out_var))
        if not step and isinstance(size, int):
            step = size + 2 * abs(index.const)
        steps[slot] = step
        dilations[slot] = index.coefficient(Var(tap_var)) or 1
        pads[slot] = -index.const
        if index.vars() - {out_var, tap_var} or not index.is_affine or pads[slot] < 0 or step < 1:
            return None
        reach = size + (2 * pads[slot] - dilations[slot] * (taps[place] - 1))
        if Size.of((reach - 1) // step + 1) != Size.of(_known(out)):
            return None
    groups = channels // in_channels
    if channels % in_channels or out_channels % groups:
        return None
    if not _channel_matches(channel, groups, out_channels, in_channels, rank):
        return None
    if any(index.vars() - {0} or not is_linear(index) for index in lead):
        return None
    height, width = (1, *sizes) if spatial == 1 else sizes
    window = (1, *taps) if spatial == 1 else taps
    return Convolution(
        _known(operator.dims[0]), groups, out_channels, in_channels, height, width,
        (window[0], window[1]), (steps[0], steps[1]), (pads[0], pads[1]),
        (dilations[0], dilations[1]),
    )  # fmt: skip


def _known(extent: Extent) -> int | Size:
    assert not isinstance(extent, Reg)
    return extent


def _channel_matches(channel: Index, groups: int, out: int, inner: int, rank: int) -> bool:
    """(oc // (OC / g)) * (IC / g) + ic, with unit dims dropped."""
    plain = Index.of(Var(rank)) if inner > 1 else Index()
    if groups == 1:
        return channel == plain
    group = Index.of(Var(1)) // (out // groups)
    return channel == group * inner + plain
