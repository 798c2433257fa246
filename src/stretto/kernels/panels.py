"""Constants packed as panels: the contents of each panel, and the positions where products read it.

A `Packing` describes how panels are made from a constant; a `PanelRead` computes, from an
operator's own index of the constant, where that operator reads them. The printed code and the
emulator both use its positions, so both read the same elements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import gcd, prod

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Expr,
    Extent,
    Index,
    Load,
    Var,
    has_fixed_strides,
    row_major,
)
from stretto.device.forms import Items, LeafItem, Packing
from stretto.device.operator import Operator, Template
from stretto.device.tree import Tree
from stretto.kernels.contraction import Convolution, factors, loads_of, narrow_load, stride
from stretto.kernels.groups import NewBuffers, replace_operators

SizeAndStride = tuple[int, int]
Dims = tuple[SizeAndStride, ...]


@dataclass(slots=True)
class Packings:
    """The packed constants of a program as new externals, with each layout of a constant only
    once."""

    externals: list[Buffer]
    found: dict[tuple[object, ...], Packing] = field(
        default_factory=dict[tuple[object, ...], Packing]
    )

    def add(
        self,
        operator: Operator,
        access: Access,
        outer: Dims,
        columns: SizeAndStride,
        lanes: int,
        group: int = 1,
    ) -> Buffer:
        """Return the packed form of a constant that an operator reads; see `Packing`. `outer`
        excludes the stack dims, which follow from the access as the depth does."""
        layout, rank = constant_layout(operator, access), len(operator.dims)
        assert layout is not None
        outer = (*((dim.size, dim.step) for dim in layout.stack), *outer)
        depth = tuple(
            (static(extent), static(stride(access, rank + n)))
            for n, extent in enumerate(operator.reduce)
        )
        source = access.buffer
        key = (source.slot, layout.start, outer, columns, depth, lanes, group)
        panels, steps = -(-columns[0] // lanes), prod(size for size, _ in depth)
        shape = (*(size for size, _ in outer), panels, -(-steps // group), lanes * group)

        def packing(buffer: Buffer) -> Packing:
            return Packing(buffer, source, layout.start, outer, columns, depth, lanes, group=group)

        return self._added(key, source, shape, packing)

    def add_filters(self, source: Buffer, lanes: int, tile: int) -> Buffer:
        """Pack weights [out, in, 3, 3] as panels [(tile + 2)^2, out / lanes, in, lanes],
        transformed for tiles of tile x tile pixels."""
        channels, inner = static(source.shape[0]), static(source.shape[1])
        places = (tile + 2) ** 2
        depth = ((inner, places),)
        return self._filters(source, places, (channels, inner * places), depth, lanes, tile)

    def add_lines(self, source: Buffer, lanes: int, tile: int, line: int) -> Buffer:
        """Pack weights [out, in, height, width] as panels [tile + 2, out / lanes, depth, lanes],
        transformed along dim `line` for lines of `tile` pixels. The depth is the taps of the
        other dim, then groups of three taps along the line, then the input channels."""
        channels, inner, *kernel = map(static, source.shape)
        places, groups, taps = tile + 2, -(-kernel[line - 2] // 3), kernel[3 - line]
        depth = ((taps, groups * places), (groups, places), (inner, taps * groups * places))
        columns = channels, inner * taps * groups * places
        return self._filters(source, places, columns, depth, lanes, tile, line)

    def _filters(
        self,
        source: Buffer,
        places: int,
        columns: SizeAndStride,
        depth: Dims,
        lanes: int,
        tile: int,
        line: int = 0,
    ) -> Buffer:
        key = (source.slot, "filters", lanes, tile, line)
        steps = prod(size for size, _ in depth)
        shape, outer = (places, -(-columns[0] // lanes), steps, lanes), ((places, 1),)

        def packing(buffer: Buffer) -> Packing:
            return Packing(buffer, source, 0, outer, columns, depth, lanes, tile, line=line)

        return self._added(key, source, shape, packing)

    def _added(
        self,
        key: tuple[object, ...],
        source: Buffer,
        shape: tuple[int, ...],
        packing: Callable[[Buffer], Packing],
    ) -> Buffer:
        """Return the buffer of a layout; add it if it is new."""
        if key not in self.found:
            name = f"{source.name}.packed{len(self.found)}"
            buffer = Buffer(name, source.dtype, shape, "constant", len(self.externals))
            self.externals.append(buffer)
            self.found[key] = packing(buffer)
        return self.found[key].buffer


def static(extent: Extent) -> int:
    """Return an extent that must be static; raise TypeError if it is not."""
    if not isinstance(extent, int):
        raise TypeError("a packed dim must be static")
    return extent


@dataclass(frozen=True, slots=True)
class Stacked:
    """A dim of a stack: registers select `index` among `size` members that are `step` elements
    apart."""

    size: int
    step: int
    index: Index


@dataclass(frozen=True, slots=True)
class ConstantLayout:
    """The position of an operator's access in a constant: `start` within the member selected by
    `stack`."""

    start: int
    stack: tuple[Stacked, ...]


def constant_layout(operator: Operator, access: Access) -> ConstantLayout | None:
    """Return how an operator reads a constant; None if it is not a constant that can be packed."""
    if access.buffer.kind != "constant":
        return None
    return layout_of(access, (*operator.dims, *operator.reduce))


def layout_of(access: Access, dims: tuple[Extent, ...]) -> ConstantLayout | None:
    """Separate an index of a constant into the parts of registers and of variables with extents
    `dims`.

    Return None if they cannot be separated: elements read at one value of a register must not
    overlap those read at another, unless they are the same.
    """
    start = 0
    stack: list[Stacked] = []
    if not has_fixed_strides(access.shape):
        return None
    strides = row_major(access.shape)
    for index, size, step in zip(access.index, access.shape, strides, strict=True):
        if not index.is_affine or not isinstance(size, int):
            return None
        chosen = tuple((atom, c) for atom, c in index.terms if not isinstance(atom, Var))
        if not chosen:
            start += index.const * step
            continue
        reach = _reach(index, dims)
        width = gcd(*(coefficient for _, coefficient in chosen))
        member, rest = divmod(index.const, width)
        if reach is None or rest + reach[0] < 0 or rest + reach[1] >= width:
            return None
        start += rest * step
        count = (size - 1 - rest - reach[1]) // width + 1
        choice = Index(tuple((atom, c // width) for atom, c in chosen), member)
        stack.append(Stacked(count, width * step, choice))
    return ConstantLayout(start, tuple(stack))


def _reach(index: Index, dims: tuple[Extent, ...]) -> tuple[int, int] | None:
    """Return the least and the largest sum of the terms with variables; None if an extent is not
    static."""
    low = high = 0
    for atom, coefficient in index.terms:
        if not isinstance(atom, Var):
            continue
        extent = dims[atom.number]
        if not isinstance(extent, int):
            return None
        low += min(0, coefficient * (extent - 1))
        high += max(0, coefficient * (extent - 1))
    return low, high


# ---- positions where panels are read ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PanelRead:
    """An operator's read of the packed form of `weight`, one of its two factors.

    outer, column: positions in the packed constant after those that registers select. group:
    number of elements of a column that are next to each other.
    """

    operator: Operator
    packed: Buffer
    weight: Access
    outer: tuple[Index, ...]
    column: Index
    group: int = 1

    @property
    def member(self) -> Index:
        """Offset of the member that registers select in a packed stack of constants."""
        return self._position(self._stack())

    @property
    def panel(self) -> Index:
        """Offset of the panel that begins with `column`, which must be a multiple of the lanes."""
        steps = self.packed.shape[-2]
        assert isinstance(steps, int)
        return self._position((*self._stack(), *self.outer)) + self.column * (steps * self.group)

    def executed(self) -> Operator:
        """Return the operator with loads of the packed constant."""
        steps, width = self.packed.shape[-2:]
        assert isinstance(steps, int) and isinstance(width, int)
        lanes, depth = width // self.group, self._depth()
        begin = self._position((*self._stack(), *self.outer))
        begin = begin + self.column // lanes * (steps * width)
        place = begin + depth // self.group * width + self.column % lanes * self.group
        load = Load(Access(self.packed, (self.packed.elements,), (place + depth % self.group,)))
        value = self.operator.value
        assert isinstance(value, Apply)
        args = tuple(self._factor(factor, load) for factor in value.args)
        return replace(self.operator, value=replace(value, args=args))

    def _factor(self, factor: Expr, load: Load) -> Expr:
        """Replace the weight by `load`, if the factor is the weight or widens it."""
        if isinstance(factor, Apply) and factor.args == (Load(self.weight),):
            return replace(factor, args=(load,))
        return load if factor == Load(self.weight) else factor

    def _stack(self) -> tuple[Index, ...]:
        layout = layout_of(self.weight, (*self.operator.dims, *self.operator.reduce))
        assert layout is not None
        return tuple(dim.index for dim in layout.stack)

    def _depth(self) -> Index:
        depth = Index()
        for number, extent in enumerate(self.operator.reduce, len(self.operator.dims)):
            assert isinstance(extent, int)
            depth = depth * extent + (Var(number) if extent != 1 else 0)
        return depth

    def _position(self, choices: tuple[Index, ...]) -> Index:
        """Return the offset of the panels at these positions in the leading dims of the packed
        constant."""
        sizes = [dim for dim in self.packed.shape if isinstance(dim, int)]
        total = Index()
        for dim, choice in enumerate(choices):
            total = total + choice * prod(sizes[dim + 1 :], start=1)
        return total


@dataclass(frozen=True, slots=True)
class PackedTemplate(Template):
    """A template that reads `panels`, which are made from a constant."""

    panels: Buffer

    @property
    def packed(self) -> Buffer:
        return self.panels


@dataclass(frozen=True, slots=True)
class PanelTemplate(PackedTemplate):
    """A template that reads panels in place of a constant factor of a product."""

    @abstractmethod
    def read(self, operator: Operator) -> PanelRead:
        """Return where the operator reads its panels."""

    def executed(self, operator: Operator) -> Operator:
        return self.read(operator).executed()


def channel_read(operator: Operator, panels: Buffer, conv: Convolution, dim: int) -> PanelRead:
    """Return where a convolution reads its weights, packed by groups. dim: that of the channels of
    the result."""
    outer, column = (), Index.of(Var(dim))
    if conv.groups > 1:
        outer, column = (column // conv.per_group,), column % conv.per_group
    return PanelRead(operator, panels, loads_of(operator)[0], outer, column)


# ---- Packing of convolution weights in the order in which their images are read ---------------
#
# torch stores weights as [oc, ic, ky, kx]. If the channels of an image are contiguous, a machine
# whose lanes read neighbours together needs the taps outermost, so that weights and image are
# both read in vectors along the channels. A depthwise convolution, whose lanes are channels,
# needs the channels of its weights contiguous.
#
#     v[n, y, x, c] = sum w[c, i, ky, kx] * u[n, y + ky, x + kx, i]          over (ky, kx, i)
#     ->
#     v[n, y, x, c] = sum packed[c, (ky, kx, i)] * u[n, y + ky, x + kx, i]   over (ky, kx, i)
#
# Only the load of the weights changes. Convolutions that already read their weights in order,
# such as those with a single tap, stay as they are.


def weights_in_order(
    tree: Tree[Items], packings: Packings, may_pack: Callable[[Buffer], bool]
) -> Tree[Items]:
    """Pack weights where that makes loads contiguous, and add the new constants to `packings`.
    may_pack: True for a constant whose packed copy is updated when it changes."""

    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        weight = _weight(operator)
        if weight is None or not may_pack(weight.buffer):
            return (operator,)
        column = _column(operator, weight)
        lanes = None if column is None else _lanes(operator, weight, column)
        if column is None or lanes is None:
            return (operator,)
        columns = static(operator.dims[column]), static(stride(weight, column))
        packed = packings.add(operator, weight, (), columns, lanes)
        return (PanelRead(operator, packed, weight, (), Index.of(Var(column))).executed(),)

    changed = replace_operators(tree, steps)
    return Tree(changed.functions, tuple(packings.externals))


def _weight(operator: Operator) -> Access | None:
    """Return the constant weights of a convolution whose sizes are all static, or None."""
    pair = factors(operator)
    if operator.name != "convolution" or pair is None or operator.accumulate:
        return None
    load = narrow_load(pair[0]) or pair[0]
    if not isinstance(load, Load) or constant_layout(operator, load.access) is None:
        return None
    if not all(isinstance(extent, int) and extent > 0 for extent in operator.reduce):
        return None
    return load.access


def _column(operator: Operator, weight: Access) -> int | None:
    """Return the dim of the output channels: the only parallel dim that the weights depend on;
    else None."""
    found = [n for n in weight.offset.vars() if n < len(operator.dims)]
    if len(found) != 1 or not isinstance(operator.dims[found[0]], int):
        return None
    return found[0]


def _lanes(operator: Operator, weight: Access, column: int) -> int | None:
    """Return the number of output channels that are adjacent in packed weights; None if no packing
    is needed."""
    pair = factors(operator)
    image = None if pair is None else _image(pair[1])
    depths = [n for n, extent in enumerate(operator.reduce, len(operator.dims)) if extent != 1]
    if image is None or not depths:
        return None
    if stride(image.access, depths[-1]) == 1 and stride(weight, depths[-1]) != 1:
        return 1
    both = stride(image.access, column) == stride(operator.out, column) == 1
    return static(operator.dims[column]) if both and stride(weight, column) != 1 else None


def _image(expr: Expr) -> Load | None:
    """Return the load of an image that may be padded and converted, or None."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (inner,), _) | Apply("where", (_, inner, _), _):
            return _image(inner)
        case _:
            return None
