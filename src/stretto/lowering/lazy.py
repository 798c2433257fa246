"""Tensors that are not stored: an expression per element. Views and pointwise fusion are
substitutions.

`Lazy(dtype, shape, expr)` is the tensor whose element at (i0, i1, ...) is `expr` with Var(0) =
i0, Var(1) = i1, ... The expression of a stored tensor is a load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    Var,
    is_known,
    known_size,
    substitute_vars,
)
from stretto.device.functions import convert_number
from stretto.ir.core import Block, Value
from stretto.ir.ops import TensorOp
from stretto.ir.rewrite import all_blocks
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.ops.arguments import argument


@dataclass(frozen=True, slots=True)
class Lazy:
    dtype: DType
    shape: tuple[Extent, ...]
    expr: Expr
    origin: str = field(default="", compare=False)
    """Name of the operator that computes it, if that is not the next one emitted."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_stored(self) -> bool:
        """True if an element is one plain load (from a buffer or a view of one)."""
        return isinstance(self.expr, Load)

    def at(self, *indices: Index | Var | int) -> Expr:
        """Return the element at the given position."""
        return substitute_vars(self.expr, tuple(Index.of(index) for index in indices))

    def view(self, shape: tuple[Extent, ...], *indices: Index | Var | int) -> Lazy:
        """Return the tensor of `shape` whose element (v0, v1, ...) is this one's element at
        `indices`."""
        origin = "" if self.is_stored else self.origin
        expr = self.at(*(drop_units(Index.of(i), shape) for i in indices))
        return Lazy(self.dtype, shape, expr, origin)


def drop_units(index: Index, shape: tuple[Extent, ...]) -> Index:
    """Replace the variables of dims of size 1 by 0."""
    terms = tuple(
        (atom, c)
        for atom, c in index.terms
        if not (isinstance(atom, Var) and shape[atom.number] == 1)
    )
    return Index(terms, index.const)


def variables(shape: tuple[Extent, ...], first: int = 0) -> tuple[Index, ...]:
    """Return Var(first), Var(first + 1), ... as indices; 0 for dims of size 1."""
    return tuple(Index() if dim == 1 else Index.of(Var(first + i)) for i, dim in enumerate(shape))


def memory_order(shape: tuple[Extent, ...]) -> tuple[int, ...]:
    """Return the dims in memory order: those that are registers come first, since strides must be
    known at the call."""
    return tuple(sorted(range(len(shape)), key=lambda dim: (is_known(shape[dim]), dim)))


def memory_shape(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the extents of a tensor in memory order."""
    return tuple(shape[dim] for dim in memory_order(shape))


def placed(buffer: Buffer, shape: tuple[Extent, ...]) -> Access:
    """Return the access to element (Var(0), Var(1), ...) of a tensor of `shape` in the whole of
    `buffer`."""
    return placed_at(buffer, shape, variables(shape))


def placed_at(buffer: Buffer, shape: tuple[Extent, ...], indices: tuple[Index, ...]) -> Access:
    """Return the access to element `indices` of a tensor of `shape` in the whole of `buffer`.

    If several dims are data-dependent, the buffer has room for the maximum of all but the
    first. Other dims of buffer and tensor may differ by dims of size 1.
    """
    first, *others = memory_shape(shape) or (1,)
    decided = sum(not is_known(dim) for dim in others)
    if decided:
        others = [*buffer.shape[1 : 1 + decided], *others[decided:]]
    dims = (first, *others) if shape else ()
    return Access(buffer, dims, tuple(indices[dim] for dim in memory_order(shape)))


def stored(buffer: Buffer, shape: tuple[Extent, ...] | None = None) -> Lazy:
    """Return the whole of a buffer as a tensor."""
    shape = buffer.shape if shape is None else shape
    return Lazy(buffer.dtype, shape, Load(placed(buffer, shape)))


def constant(value: bool | int | float, dtype: DType, shape: tuple[Extent, ...] = ()) -> Lazy:
    return Lazy(dtype, shape, Const(value, dtype))


def cast(expr: Expr, dtype: DType) -> Expr:
    """Return the expression converted to `dtype` as torch's `.to` does."""
    if expr.dtype is dtype:
        return expr
    if isinstance(expr, Const):
        return Const(convert_number(expr.value, expr.dtype, dtype), dtype)
    return Apply("cast", (expr,), dtype)


def register_value(reg: Reg) -> Lazy:
    """Return a register as a tensor without dims."""
    return Lazy(reg.dtype, (), cast(Position(Index.of(reg)), reg.dtype))


def whole_buffer(lazy: Lazy) -> Buffer | None:
    """Return the buffer if the tensor is all of it in row-major order, else None. A buffer for a
    data-dependent number of rows counts as whole."""
    if not isinstance(lazy.expr, Load):
        return None
    access = lazy.expr.access
    if access.shape == lazy.shape and access.index == variables(lazy.shape):
        buffer = access.buffer
        same = _same_size(buffer.shape, lazy.shape) or _has_room(buffer, lazy.shape)
        return buffer if same else None
    return None


def _has_room(buffer: Buffer, shape: tuple[Extent, ...]) -> bool:
    """True if the buffer is memory for the maximum number of rows of such a tensor."""
    is_decided = bool(shape) and not is_known(shape[0]) and all(map(is_known, shape[1:]))
    return (
        buffer.kind == "items"
        and is_decided
        and known_size(buffer.shape[1:]) == known_size(shape[1:])
    )


def _same_size(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> bool:
    known = [known_size([d for d in s if is_known(d)]) for s in (a, b)]
    others = [[d for d in s if not is_known(d)] for s in (a, b)]
    return known[0] == known[1] and others[0] == others[1]


def contiguous_base(lazy: Lazy) -> Access | None:
    """Return the first element of a tensor that is a row-major range of a buffer (a trailing part
    of its dims), else None."""
    if not isinstance(lazy.expr, Load):
        return None
    access = lazy.expr.access
    dims = [(n, d) for n, d in enumerate(lazy.shape) if d != 1]
    rest = list(access.index)
    shape = list(access.shape)
    tail: list[Index] = []
    for number, dim in reversed(dims):
        while rest and shape[-1] == 1 and rest[-1] == Index():
            rest.pop()
            shape.pop()
            tail.append(Index())
        if not rest or rest[-1].coefficient(Var(number)) != 1:
            return None
        index = rest.pop()
        size = shape.pop()
        outermost = number == dims[0][0]
        start = index + Index.of(Var(number)) * -1
        if start.vars() or (not outermost and (size != dim or start != Index())):
            return None
        tail.append(start)
    if any(index.vars() for index in rest):
        return None
    return Access(access.buffer, access.shape, (*rest, *reversed(tail)))


def reshape(lazy: Lazy, shape: tuple[Extent, ...]) -> Lazy:
    """Reinterpret the tensor in row-major order. A contiguous range becomes another shape of the
    same memory."""
    if shape == lazy.shape:
        return lazy
    whole = whole_buffer(lazy)
    if whole is not None and memory_shape(shape) == shape and all(map(is_known, shape[1:])):
        return Lazy(lazy.dtype, shape, Load(Access(whole, shape, variables(shape))))
    if 0 in shape:
        return constant(0, lazy.dtype, shape)
    moved = _reshape_run(lazy, shape)
    if moved is not None:
        return moved
    return lazy.view(shape, *_regroup(lazy.shape, shape))


def _reshape_run(lazy: Lazy, shape: tuple[Extent, ...]) -> Lazy | None:
    """Reshape a trailing range of a buffer: (prefix dims, *shape) over the same memory; None if it
    is not one."""
    base = contiguous_base(lazy)
    if base is None or not all(map(is_known, (*shape, *lazy.shape))):
        return None
    count, covered = known_size(lazy.shape), Size(const=1)
    split = len(base.shape)
    while covered != Size.of(count):
        split -= 1
        if split < 0 or not is_known(base.shape[split]):
            return None
        covered = covered * base.shape[split]
    if any(index != Index() for index in base.index[split:]):
        return None
    access = Access(
        base.buffer, (*base.shape[:split], *shape), (*base.index[:split], *variables(shape))
    )
    return Lazy(lazy.dtype, shape, Load(access))


def _regroup(old: tuple[Extent, ...], new: tuple[Extent, ...]) -> list[Index]:
    """Return the position in each old dim in terms of the variables of the new dims.

    Raise ValueError if that would need a division by an extent known only at the call, or if
    the sizes do not determine which dims correspond.
    """
    result: list[Index] = [Index()] * len(old)
    old_dims = [n for n, d in enumerate(old) if d != 1]
    new_dims = [n for n, d in enumerate(new) if d != 1]
    while old_dims or new_dims:
        a, b = [_next(old_dims)], [_next(new_dims)]
        if old[a[0]] == new[b[0]]:
            result[a[0]] = Index.of(Var(b[0]))
            continue
        sizes = [_size(old[a[0]]), _size(new[b[0]])]
        while sizes[0] != sizes[1]:
            if _is_part(sizes[0], sizes[1]):
                a.append(_next(old_dims))
                sizes[0] = sizes[0] * _size(old[a[-1]])
            else:
                b.append(_next(new_dims))
                sizes[1] = sizes[1] * _size(new[b[-1]])
        linear = Index()
        for number in b:
            linear = linear * _size(new[number]) + Var(number)
        for place, number in enumerate(a):
            inner = [_fixed(old[later]) for later in a[place + 1 :]]
            quotient = linear // prod(inner, start=1)
            result[number] = quotient if place == 0 else quotient % _fixed(old[number])
    return result


def _next(dims: list[int]) -> int:
    if not dims:
        raise ValueError("the sizes do not tell which dims belong together")
    return dims.pop(0)


def _is_part(one: Size, other: Size) -> bool:
    """True if `other` is a multiple of `one`."""
    if one.is_const and other.is_const:
        return one.const < other.const
    return other // one * one == other


def _size(dim: Extent) -> Size:
    if isinstance(dim, Reg):
        raise ValueError("a dim whose size data decide cannot be split or merged")
    return Size.of(dim)


def regrouped_by_value(lazy: Lazy, shape: tuple[Extent, ...]) -> Lazy:
    """Reinterpret the tensor in row-major order with positions computed at run time for each
    element. Only equal dims at both ends keep their own indices."""
    old, new = lazy.shape, shape
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    linear = _integer(0)
    for place in range(first, len(new) - last):
        linear = _calculated("mul", linear, _integer(new[place]))
        linear = _calculated("add", linear, Position(Index.of(Var(place))))
    middle: list[Index] = []
    for place in reversed(range(first, len(old) - last)):
        size = _integer(old[place])
        rest = linear if place == first else _calculated("remainder", linear, size)
        middle.append(Index.of(ComputedPosition(rest)))
        linear = _calculated("floordiv", linear, size)
    ends = [Index.of(Var(place)) for place in range(len(new))]
    indices = (*ends[:first], *reversed(middle), *ends[len(new) - last :])
    return lazy.view(shape, *indices)


def _integer(value: Extent) -> Expr:
    return Const(value, DType.I64) if isinstance(value, int) else Position(Index.of(value))


def _calculated(function: str, a: Expr, b: Expr) -> Expr:
    return Apply(function, (a, b), DType.I64)


def _fixed(dim: Extent) -> int:
    if not isinstance(dim, int):
        raise ValueError("a dynamic dim cannot be an inner one of those that are merged")
    return dim


def broadcast(lazy: Lazy, shape: tuple[Extent, ...]) -> Lazy:
    """Expand the tensor to `shape` by torch's broadcasting rules."""
    lead = len(shape) - lazy.rank
    indices = [Index() if dim == 1 else Index.of(Var(lead + i)) for i, dim in enumerate(lazy.shape)]
    return lazy.view(shape, *indices) if shape != lazy.shape else lazy


def permute(lazy: Lazy, order: tuple[int, ...]) -> Lazy:
    """Permute the dims: dim i of the result is dim order[i]."""
    shape = tuple(lazy.shape[dim] for dim in order)
    return lazy.view(shape, *(Index.of(Var(order.index(dim))) for dim in range(lazy.rank)))


def select(lazy: Lazy, dim: int, position: Index | int) -> Lazy:
    """Return the slice at `position` of a dim, which is removed."""
    shape = (*lazy.shape[:dim], *lazy.shape[dim + 1 :])
    indices = [*variables(shape[:dim]), Index.of(position), *variables(shape[dim:], dim)]
    return lazy.view(shape, *indices)


def narrow(lazy: Lazy, dim: int, start: Index | int, length: Extent, step: int = 1) -> Lazy:
    """Return `length` elements of a dim from `start` on, `step` apart."""
    shape = (*lazy.shape[:dim], length, *lazy.shape[dim + 1 :])
    return lazy.view(shape, *window(shape, dim, Index.of(start), step))


def window(shape: tuple[Extent, ...], dim: int, start: Index, step: int = 1) -> list[Index]:
    """Return the positions of the elements of a part in the whole, where they begin at `start` of a
    dim and are `step` apart."""
    indices = list(variables(shape))
    indices[dim] = indices[dim] * step + start
    return indices


# ---- Concatenations and stacks whose parts are themselves concatenations or stacks ------------
#
# The inner tensor is stored directly in its place in the outer one, without a copy: a cache that
# grows by `cat` in each layer, and is stacked over the layers at the end, is written once.
#
#     %k = cat([%a, %b], 0)
#     %l = cat([%c, %d], 0)          %a, %b, %c and %d are stored directly in %s;
#     %s = stack([%k, %l])           %k and %l are views of it


_STACK = "aten.stack.default"
_JOINS = frozenset(("aten.cat.default", _STACK))


@dataclass(frozen=True, slots=True)
class Joint:
    """A tensor as part `number` of the concatenation or stack that `op` computes."""

    op: TensorOp
    number: int

    @property
    def whole(self) -> Value:
        return self.op.result

    @property
    def dim(self) -> int:
        """The dim of the whole along which the parts are joined."""
        dim = argument(self.op, "dim")
        assert isinstance(dim, int)
        return dim % self.whole.tensor.rank

    @property
    def is_stack(self) -> bool:
        return self.op.target == _STACK

    @property
    def before(self) -> tuple[Value, ...]:
        """The parts before it."""
        return _parts(self.op)[: self.number]


def joints(block: Block) -> dict[Value, Joint]:
    """Return the joined tensors that are, exactly once, a part of another joined tensor of the
    same block; nested blocks included."""
    found = dict[Value, Joint]()
    for item in all_blocks(block):
        made = {op.result: op for op in _joining(item)}
        for op in made.values():
            parts = _parts(op)
            for number, part in enumerate(parts):
                fits = part in made and part.tensor.dtype is op.result.tensor.dtype
                if fits and parts.count(part) == 1:
                    found.setdefault(part, Joint(op, number))
    return found


def _joining(block: Block) -> Iterator[TensorOp]:
    for op in block.ops:
        if isinstance(op, TensorOp) and op.target in _JOINS and _parts(op):
            yield op


def _parts(op: TensorOp) -> tuple[Value, ...]:
    """Return the tensors that an op joins; none if it ignores some of them (which are empty)."""
    given = op.args[0]
    parts = tuple(item for item in given if isinstance(item, Value)) if type(given) is tuple else ()
    ranks = {part.tensor.rank for part in parts}
    return parts if len(ranks) == 1 else ()
