"""Channels-last layout, [n, y, x, c], for images between convolutions.

Lowered operators use torch's layout of images, [n, c, y, x]. A machine that computes several
output channels at once accesses all channels of a pixel together: with contiguous channels a
convolution copies no patches, and a pool or a pointwise operator works on whole vectors. Only a
function's local buffers that operators alone access, always by their own dims, change their
layout. A convolution of any other image (an input of the program) reads a copy of it, and one
whose result must have another layout is copied.

    v[n, c, y, x] = sum w[c, i, ky, kx] * u[n, i, y + ky, x + kx]    dims (n, c, y, x), (i, ky, kx)
    ->
    v[n, y, x, c] = sum w[c, i, ky, kx] * u[n, y + ky, x + kx, i]    dims (n, y, x, c), (ky, kx, i)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from stretto.device.analyses import control_buffers
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Var,
    index_loads,
    parts,
    substitute_index,
    substitute_vars,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Combine, LibraryCall, Operator, beside
from stretto.device.regions import call_buffers
from stretto.device.tree import Check, Let, Node, Tree, TreeFunction, leaves
from stretto.kernels.contraction import (
    Convolution,
    convolution_of,
    factors,
    flat_stride,
    image_load,
    loads_of,
    stride,
)
from stretto.kernels.groups import NewBuffers, replace_operators
from stretto.kernels.panels import constant_layout
from stretto.kernels.split_reductions import SPLIT

T = TypeVar("T")
RANKS = (3, 4)
"""Ranks of images with one and with two spatial dims."""
MOST_TAPS = 512
MOST_PADDED = 2048
"""Most channels of an image that is padded: the templates have this many zeros to read."""
FEWEST_GROUPED = 4
"""Fewest input channels per group: for smaller groups the layout does not pay."""


def channels_last(tree: Tree[Items], copied: bool = True) -> Tree[Items]:
    """Lay out the images of convolutions with constant weights channels last. copied: convolve
    copies of the images whose layout cannot change."""
    if not any(map(_is_wanted, _operators(tree))):
        return tree
    tree = _with_copies(tree) if copied else tree
    moved = {b for function in tree.functions for b in _images(function)}

    def laid_out(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        return (_laid_out(operator, moved),)

    changed = replace_operators(tree, laid_out)
    functions = (
        replace(f, locals=tuple(_last(b) if b in moved else b for b in f.locals))
        for f in changed.functions
    )
    return Tree(tuple(functions), tree.externals)


def _operators(tree: Tree[Items]) -> Iterator[Operator]:
    for function in tree.functions:
        yield from _function_operators(function)


def _function_operators(function: TreeFunction[Items]) -> Iterator[Operator]:
    for items in leaves(function.body):
        yield from (item for item in items if isinstance(item, Operator))


def _is_wanted(operator: Operator) -> bool:
    """True if an operator is a convolution that benefits from the layout."""
    found = convolution_of(operator)
    if found is None or not _is_supported(found):
        return False
    weight, image = loads_of(operator)
    rank = len(operator.dims)
    places = (
        *(Index.of(Var(n)) if size != 1 else Index() for n, size in enumerate(operator.dims)),
    )
    return (
        constant_layout(operator, weight) is not None
        and len(image.shape) == rank
        and image.index[0] == places[0]
        and operator.out.shape[1:] == operator.dims[1:]
        and operator.out.index == places
    )


def _is_supported(found: Convolution) -> bool:
    if not 0 < prod(found.kernel) <= MOST_TAPS or found.in_channels == 0:
        return False
    if any(found.padding) and found.in_channels > MOST_PADDED:
        return False
    return found.groups == 1 or found.is_depthwise or found.in_channels >= FEWEST_GROUPED


# ---- choice of images ------------------------------------------------------------------------


@dataclass(slots=True)
class _Sets:
    """Disjoint sets of buffers that share a layout."""

    parents: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])

    def root(self, buffer: Buffer) -> Buffer:
        while (parent := self.parents.get(buffer, buffer)) != buffer:
            buffer = parent
        return buffer

    def join(self, one: Buffer, other: Buffer) -> None:
        self.parents[self.root(one)] = self.root(other)


def _images(function: TreeFunction[Items]) -> set[Buffer]:
    """Return the locals whose layout changes: those of wanted convolutions, and those that
    operators access together with them."""
    free = _free_images(function)
    sets = _Sets()
    seeds: set[Buffer] = set()
    for operator in _function_operators(function):
        together = [b for b in _touched(operator) if b in free]
        for buffer in together[1:]:
            if len(buffer.shape) == len(together[0].shape):
                sets.join(buffer, together[0])
        if _is_wanted(operator):
            seeds |= free.intersection(_sides(operator))
    roots = {sets.root(buffer) for buffer in seeds}
    return {buffer for buffer in free if sets.root(buffer) in roots}


def _sides(convolution: Operator) -> tuple[Buffer, Buffer]:
    """Return the image that a convolution reads, and the buffer of its result."""
    return loads_of(convolution)[1].buffer, convolution.out.buffer


def _free_images(function: TreeFunction[Items]) -> set[Buffer]:
    """Return the locals that only operators access, always by the buffers' own dims."""
    free = {
        b
        for b in function.locals
        if b.kind == "local" and len(b.shape) in RANKS and b.dtype.is_float
    }
    free -= _held(function.body)
    for operator in _function_operators(function):
        for access in _accesses(operator):
            if access.shape != access.buffer.shape:
                free.discard(access.buffer)
            free -= {load.access.buffer for i in access.index for load in index_loads(i)}
        if convolution_of(operator) is not None and not _is_wanted(operator):
            free -= set(_touched(operator))
    return free


def _held(body: Node[Items]) -> set[Buffer]:
    """Return the buffers that control nodes and leaf items other than operators access."""
    items = [item for leaf in leaves(body) for item in leaf]
    calls = [item for item in items if isinstance(item, LibraryCall)]
    held = control_buffers(body, lambda leaf: [i for i in leaf if isinstance(i, Let | Check)])
    return held.union(*((*call_buffers(call), *call.outs) for call in calls))


def _accesses(operator: Operator) -> tuple[Access, ...]:
    return (operator.out, *(load.access for load in operator.reads()))


def _touched(operator: Operator) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys(access.buffer for access in _accesses(operator)))


# ---- copies ----------------------------------------------------------------------------------


def _with_copies(tree: Tree[Items]) -> Tree[Items]:
    """Give wanted convolutions separate images, with copies, where the layout of their own cannot
    change."""
    free = {b for function in tree.functions for b in _free_images(function)}

    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        if not _is_wanted(operator):
            return (operator,)
        image, out = loads_of(operator)[1], operator.out
        if image.buffer not in free and out.buffer not in free:
            return (operator,)
        before: list[Operator] = []
        after: list[Operator] = []
        if image.buffer not in free:
            copied = _new(new, image)
            start = Access(image.buffer, image.shape, _variables(image.shape))
            before.append(
                _copy(start, Access(copied, image.shape, _variables(image.shape)), operator)
            )
            operator = _reading(operator, image, copied)
        if out.buffer not in free:
            mine = _new(new, out)
            operator = replace(operator, out=Access(mine, out.shape, out.index))
            after.append(_copy(operator.out, out, operator))
        return *before, operator, *after

    return replace_operators(tree, steps)


def _variables(shape: tuple[Extent, ...]) -> tuple[Index, ...]:
    return tuple(Index.of(Var(n)) if size != 1 else Index() for n, size in enumerate(shape))


def _new(new: NewBuffers, access: Access) -> Buffer:
    buffer = Buffer(new.name("image"), access.buffer.dtype, access.shape)
    new.buffers.append(buffer)
    return buffer


def _copy(source: Access, target: Access, operator: Operator) -> Operator:
    value = Load(source)
    return Operator(
        "layout", target.shape, (), Combine.NONE, value, target,
        source=operator.source, origin=beside(operator.origin, "layout"),
    )  # fmt: skip


def _reading(operator: Operator, image: Access, buffer: Buffer) -> Operator:
    """Return the convolution with `buffer` in place of its image."""

    def changed(expr: Expr) -> Expr:
        if isinstance(expr, Apply):
            return replace(expr, args=tuple(map(changed, expr.args)))
        if expr == Load(image):
            return Load(Access(buffer, image.shape, image.index))
        return expr

    return replace(operator, value=changed(operator.value))


# ---- the layout ------------------------------------------------------------------------------


def _to_last(dims: tuple[T, ...]) -> tuple[T, ...]:
    return (dims[0], *dims[2:], dims[1])


def _to_first(dims: tuple[T, ...]) -> tuple[T, ...]:
    return (dims[0], dims[-1], *dims[1:-1])


def _last(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=_to_last(buffer.shape))


def _laid_out(operator: Operator, moved: set[Buffer]) -> Operator:
    """Return the operator with the new layout of the moved buffers, its dims in the order of its
    result."""
    convolves = _is_wanted(operator) and all(b in moved for b in _sides(operator))

    def place(access: Access) -> Access:
        if access.buffer not in moved:
            return access
        return Access(_last(access.buffer), _to_last(access.shape), _to_last(access.index))

    order = list(range(len(operator.dims)))
    if operator.out.buffer in moved:
        index = _to_last(operator.out.index)
        found = {n: k for k, i in enumerate(index) for n in sorted(i.vars())}
        order.sort(key=lambda n: found.get(n, n))
    result = _placed(operator, place)
    if convolves:
        first = len(operator.dims)
        taps = [*range(first + 1, first + len(operator.reduce)), first]
        order = list(_to_last(tuple(range(first))))
        return _reordered(result, order, taps)
    return _reordered(result, order, _reduced_order(operator, moved))


def _reduced_order(operator: Operator, moved: set[Buffer]) -> list[int]:
    """Return the reduction variables in the new memory order of the images read, if the order of
    combination does not matter; else unchanged."""
    first = len(operator.dims)
    variables = list(range(first, first + len(operator.reduce)))
    if operator.combine not in SPLIT or any(isinstance(p, Position) for p in parts(operator.value)):
        return variables
    orders = {_order_in(load.access, variables, moved) for load in operator.reads()}
    found = orders - {()}
    (order,) = found if len(found) == 1 else (None,)
    return variables if order is None else list(order)


def _order_in(access: Access, variables: list[int], moved: set[Buffer]) -> tuple[int, ...] | None:
    """Return the order in which an access of a moved image goes through these variables: () if it
    depends on at most one, None if they are not each in a separate dim."""
    here = [index.vars().intersection(variables) for index in access.index]
    if len(set[int]().union(*here)) < 2:
        return ()
    if access.buffer not in moved or any(len(found) > 1 for found in here):
        return None
    order = tuple(n for found in _to_last(tuple(here)) for n in found)
    return order if sorted(order) == variables else None


def _placed(operator: Operator, place: Callable[[Access], Access]) -> Operator:
    def changed(expr: Expr) -> Expr:
        match expr:
            case Load(access):
                return Load(place(access))
            case Apply():
                return replace(expr, args=tuple(map(changed, expr.args)))
            case _:
                return expr

    return replace(operator, value=changed(operator.value), out=place(operator.out))


def _reordered(operator: Operator, order: list[int], reduce: list[int]) -> Operator:
    """Reorder dims and reduction dims, given as numbers of their variables."""
    numbers = [*order, *reduce]
    if numbers == sorted(numbers):
        return operator
    extents = (*operator.dims, *operator.reduce)
    values = tuple(Index.of(Var(numbers.index(n))) for n in range(len(numbers)))
    out = tuple(
        substitute_index(
            i, lambda atom: values[atom.number] if isinstance(atom, Var) else Index.of(atom)
        )
        for i in operator.out.index
    )
    return replace(
        operator,
        dims=tuple(extents[n] for n in order),
        reduce=tuple(extents[n] for n in reduce),
        value=substitute_vars(operator.value, values),
        out=replace(operator.out, index=out),
    )


# ---- convolutions in this layout -------------------------------------------------------------


def pixel_convolution_of(operator: Operator) -> Convolution | None:
    """Return the channels-last convolution that an operator computes, or None.

    Its dims are (n, oy, ox, oc) and (ky, kx, ic), or (n, ox, oc) and (kx, ic). Its result may
    be some channels of a larger image.
    """
    rank, pair = len(operator.dims), factors(operator)
    if operator.name != "convolution" or pair is None or rank not in RANKS:
        return None
    image = image_load(pair[1])
    if len(operator.reduce) != rank - 1 or image is None or len(image.access.shape) != rank:
        return None
    first = _channels_first(operator, image.access)
    found = None if first is None else convolution_of(first)
    if found is None or stride(operator.out, rank - 1) != 1:
        return None
    pixels = [(n, extent) for n, extent in enumerate(operator.dims[1:-1], 1) if extent != 1]
    return None if flat_stride(operator.out, pixels) is None else found


def _channels_first(operator: Operator, image: Access) -> Operator | None:
    """Return the same convolution in its lowered layout."""
    rank = len(operator.dims)
    turned = Access(image.buffer, _to_first(image.shape), _to_first(image.index))

    def changed(expr: Expr) -> Expr:
        if isinstance(expr, Apply):
            return replace(expr, args=tuple(map(changed, expr.args)))
        return Load(turned) if expr == Load(image) else expr

    order = list(_to_first(tuple(range(rank))))
    channel = rank + len(operator.reduce) - 1
    taps = [channel, *range(rank, channel)]
    return _reordered(replace(operator, value=changed(operator.value)), order, taps)
