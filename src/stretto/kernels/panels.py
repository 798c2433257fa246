"""Constants laid out as panels: which elements a panel has, and where a product reads it.

A `Packing` says how panels come out of a constant, a `PanelRead` where an operator reads them: that
follows from its own index of the constant. The printed code begins there, and the emulator loads
from there, so both read the same.
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
from stretto.kernels.contraction import factors, narrow_load, stride
from stretto.kernels.groups import NewBuffers, replace_operators

SizeAndStride = tuple[int, int]
Dims = tuple[SizeAndStride, ...]


@dataclass(slots=True)
class Packings:
    """The packed constants of a program, each layout of a constant once, as new externals."""

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
        """The packed form of a constant that an operator reads; see `Packing`. `outer` without the
        stack, which follows from the access as the depth does."""
        layout, rank = constant_layout(operator, access), len(operator.dims)
        assert layout is not None
        outer = (*((dim.size, dim.step) for dim in layout.stack), *outer)
        depth = tuple(
            (static(extent), static(stride(access, rank + n)))
            for n, extent in enumerate(operator.reduce)
        )
        source = access.buffer
        key = (source.slot, layout.start, outer, columns, depth, lanes, group)
        if key not in self.found:
            panels, steps = -(-columns[0] // lanes), prod(size for size, _ in depth)
            sizes = (size for size, _ in outer)
            shape = (*sizes, panels, -(-steps // group), lanes * group)
            name = f"{source.name}.packed{len(self.found)}"
            buffer = Buffer(name, source.dtype, shape, "constant", len(self.externals))
            self.externals.append(buffer)
            self.found[key] = Packing(
                buffer, source, layout.start, outer, columns, depth, lanes, group=group
            )
        return self.found[key].buffer

    def add_filters(self, source: Buffer, lanes: int, tile: int) -> Buffer:
        """Weights [out, in, 3, 3] as panels [(tile + 2)^2, out / lanes, in, lanes], transformed for
        tiles of tile x tile pixels."""
        channels, inner = static(source.shape[0]), static(source.shape[1])
        places = (tile + 2) ** 2
        depth = ((inner, places),)
        return self._filters(source, places, (channels, inner * places), depth, lanes, tile)

    def add_lines(self, source: Buffer, lanes: int, tile: int, line: int) -> Buffer:
        """Weights [out, in, height, width] as panels [tile + 2, out / lanes, depth, lanes],
        transformed along dim `line` for lines of `tile` pixels. The depth is the taps of the other
        dim, then groups of three taps along the line, then what comes in."""
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
        if key not in self.found:
            steps = prod(size for size, _ in depth)
            shape = (places, -(-columns[0] // lanes), steps, lanes)
            name = f"{source.name}.packed{len(self.found)}"
            buffer = Buffer(name, source.dtype, shape, "constant", len(self.externals))
            self.externals.append(buffer)
            self.found[key] = Packing(
                buffer, source, 0, ((places, 1),), columns, depth, lanes, tile, line=line
            )
        return self.found[key].buffer


def static(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise TypeError("a packed dim must be static")
    return extent


@dataclass(frozen=True, slots=True)
class Stacked:
    """One dim of a stack: registers choose `index` among `size` members that are `step` apart."""

    size: int
    step: int
    index: Index


@dataclass(frozen=True, slots=True)
class Layout:
    """A constant that an operator reads: `start` and variables within the member that `stack`
    chooses."""

    start: int
    stack: tuple[Stacked, ...]


def constant_layout(operator: Operator, access: Access) -> Layout | None:
    """How an operator reads a constant that can be packed; None for what is none."""
    if access.buffer.kind != "constant":
        return None
    return layout_of(access, (*operator.dims, *operator.reduce))


def layout_of(access: Access, dims: tuple[Extent, ...]) -> Layout | None:
    """How registers and variables (of extents `dims`) share the index of a constant.

    None where they cannot be told apart: what is read at one value of a register must not overlap
    with what is read at another, unless it is the same.
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
    return Layout(start, tuple(stack))


def _reach(index: Index, dims: tuple[Extent, ...]) -> tuple[int, int] | None:
    """The least and the largest sum of the terms with variables, where that is known."""
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


# ---- where panels are read -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PanelRead:
    """How an operator reads the packed form of `weight`, one of its two factors.

    outer, column: positions in the packed constant behind those that registers choose. group:
    elements of a column that lie side by side.
    """

    operator: Operator
    packed: Buffer
    weight: Access
    outer: tuple[Index, ...]
    column: Index
    group: int = 1

    @property
    def member(self) -> Index:
        """Where the member that registers choose lies in a packed stack of constants."""
        return self._position(self._stack())

    @property
    def panel(self) -> Index:
        """Where the panel that begins with `column` lies: a multiple of the lanes."""
        steps = self.packed.shape[-2]
        assert isinstance(steps, int)
        return self._position((*self._stack(), *self.outer)) + self.column * (steps * self.group)

    def executed(self) -> Operator:
        """The operator with loads of the packed constant."""
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
        """A factor that is the weight, or widens it, with another load."""
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
        """Where the panels of these positions in the leading dims of the constant begin."""
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
        """Where its panels are read."""

    def executed(self, operator: Operator) -> Operator:
        return self.read(operator).executed()


# ---- Lays out the constant weights of convolutions in the order in which their images are read.
#
# torch keeps weights as [oc, ic, ky, kx]. Where the channels of an image are contiguous, a
# machine whose lanes read neighbours together wants the taps outermost, so that weights and image
# are both read in vectors along the channels. A depthwise convolution, whose lanes are channels,
# wants the channels of its weights contiguous.
#
#     v[n, y, x, c] = sum w[c, i, ky, kx] * u[n, y + ky, x + kx, i]          over (ky, kx, i)
#     ->
#     v[n, y, x, c] = sum packed[c, (ky, kx, i)] * u[n, y + ky, x + kx, i]   over (ky, kx, i)
#
# Only the load of the weights changes. Convolutions that read their weights in order already, as
# those with a single tap, stay as they are.


def weights_in_order(
    tree: Tree[Items], packings: Packings, may_pack: Callable[[Buffer], bool]
) -> Tree[Items]:
    """The tree with packed weights where that makes loads contiguous; `packings` gets the new
    constants. may_pack: whether a copy of a constant would be made anew when it changes."""

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
    """The constant weights of a convolution, whose sizes are all known."""
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
    """The dim of the output channels: the only one but the reduced dims that the weights depend
    on."""
    found = [n for n in weight.offset.vars() if n < len(operator.dims)]
    if len(found) != 1 or not isinstance(operator.dims[found[0]], int):
        return None
    return found[0]


def _lanes(operator: Operator, weight: Access, column: int) -> int | None:
    """How many output channels of packed weights lie side by side; None where the weights are
    right as they are."""
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
    """The load of an image that may be padded and converted."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (inner,), _) | Apply("where", (_, inner, _), _):
            return _image(inner)
        case _:
            return None
