"""Kernel selection: groups of operators become kernels with tile shapes and templates, as data.

For each contraction the choice is between templates (packed constant panels, rows of a run-time
matrix, dot products, implicit-GEMM convolution, plain loops) and their register tiles; for each
group between cutting its grid coarsely (few tasks, little overhead) and finely (many tasks to
balance). Figures are measured ones of one AVX-512 core, coarse on purpose: they rank choices, they
do not predict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, gcd, prod

from stretto.device.expr import Access, Buffer, Extent, loads
from stretto.device.forms import Items, Lowered, Packing
from stretto.device.operator import SORTS, Kernel, LibraryCall, Method, Operator, Stage, TileDim
from stretto.device.tree import Check, Let, Tree, map_tree
from stretto.kernels.contraction import (
    Contraction,
    Convolution,
    analyse,
    analyse_convolution,
    flat_stride,
    stride,
)
from stretto.kernels.fuse import fuse, split, work
from stretto.kernels.groups import Group, Grouped, Member
from stretto.kernels.panels import Layout, layout_of
from stretto.kernels.split_sorts import split_sorts
from stretto.lowering.function import count_applies

FLOPS = 220e9
"""Sustained float32 operations per second of one core in a register-tiled contraction."""
BANDWIDTH = 90e9
"""Bytes per second that one core streams from its second-level cache (one row of a product)."""
ELEMENT = 0.12e-9
"""Seconds per element and function application of vectorised pointwise work."""
TASK = 2e-8
"""Seconds to start a task."""

LANES = 16


@dataclass(slots=True)
class Selection:
    """What selection collects: packed constants, entered once per layout."""

    units: int
    fuse: bool
    externals: list[Buffer]
    packings: dict[tuple[object, ...], Packing] = field(
        default_factory=dict[tuple[object, ...], Packing]
    )
    counter: int = 0

    def pack(
        self,
        source: Buffer,
        start: int,
        outer: tuple[tuple[int, int], ...],
        columns: tuple[int, int],
        depth: tuple[tuple[int, int], ...],
        lanes: int,
    ) -> Buffer:
        """The packed form of a constant; see `Packing` for the arguments."""
        key = (source.slot, start, outer, columns, depth, lanes)
        if key not in self.packings:
            panels = -(-columns[0] // lanes)
            shape = (*(size for size, _ in outer), panels, prod(size for size, _ in depth), lanes)
            name = f"{source.name}.packed{len(self.packings)}"
            buffer = Buffer(name, source.dtype, shape, "constant", len(self.externals))
            self.externals.append(buffer)
            self.packings[key] = Packing(buffer, source, start, outer, columns, depth, lanes)
        return self.packings[key].buffer


Items2 = tuple[Kernel | Let | Check, ...]


def select(
    lowered: Lowered, units: int, fused: bool = True
) -> tuple[Tree[Items2], tuple[Packing, ...]]:
    """Groups, chooses and names kernels for a whole tree; constants that templates want packed come
    back too.
    """
    chosen = Selection(units, fused, list(lowered.tree.externals))
    tree = map_tree(split_sorts(lowered.tree, units), lambda items: _leaf(items, chosen))
    return Tree(tree.functions, tuple(chosen.externals)), tuple(chosen.packings.values())


def _leaf(items: Items, chosen: Selection) -> Items2:
    groups = fuse(items, chosen.units) if chosen.fuse else split(items)
    return tuple(_item(group, chosen) for group in groups)


def _item(group: Grouped, chosen: Selection) -> Kernel | Let | Check:
    match group:
        case Let() | Check():
            return group
        case LibraryCall():
            chosen.counter += 1
            return Kernel(f"library{chosen.counter}", (), (), 5e-6, group)
        case Group():
            return _kernel(group, chosen)


# ---- methods ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A member's method with what it asks of the tiles: multiples per operator dim (0: the whole
    dim).
    """

    method: Method
    multiples: tuple[int, ...]


def plan_member(member: Member, chosen: Selection) -> Plan:
    operator = member.operator
    convolution = analyse_convolution(operator)
    if convolution is not None:
        plan = _plan_convolution(member, convolution, chosen)
        if plan is not None:
            return plan
    contraction = analyse(operator)
    if contraction is not None:
        plan = _plan_contraction(member, contraction, chosen)
        if plan is not None:
            return plan
    return Plan(Method("loops"), _loop_multiples(operator))


def _loop_multiples(operator: Operator) -> tuple[int, ...]:
    """Vectors of the contiguous dim stay whole."""
    return tuple(
        LANES if stride(operator.out, n) == 1 and isinstance(d, int) and d >= LANES else 1
        for n, d in enumerate(operator.dims)
    )


def _plan_contraction(member: Member, found: Contraction, chosen: Selection) -> Plan | None:
    operator = member.operator
    count = operator.dims[found.column]
    assert isinstance(count, int)
    rows = _row_count(operator, found)
    multiples = [1] * len(operator.dims)
    layout = constant_layout(operator, found.right)
    if layout is not None:
        lanes = _panel_lanes(member, found, count, rows)
        if lanes:
            multiples[found.column] = lanes
            buffer = _pack_right(operator, found, layout, lanes, chosen)
            height = {64: 6, 32: 12, 16: 12, 128: 3}[lanes] if rows > 1 else 1
            method = Method("packed", (("mr", height), ("nr", lanes)), buffer)
            return Plan(method, tuple(multiples))
    if found.right_depth is None:
        return None
    column_stride = stride(found.right, found.column)
    if column_stride == 1:
        multiples[found.column] = min(LANES, count)
        height = 6 if rows > 1 else 1
        return Plan(Method("rows", (("mr", height), ("nr", 64))), tuple(multiples))
    if found.right_depth == 1 and found.left_depth == 1:
        multiples[found.column] = min(8, count)
        return Plan(Method("dots", (("mb", 2 if rows > 1 else 1), ("nb", 8))), tuple(multiples))
    return None


def _row_count(operator: Operator, found: Contraction) -> int:
    return prod((d if isinstance(d := operator.dims[n], int) else 64 for n in found.rows), start=1)


def _panel_lanes(member: Member, found: Contraction, count: int, rows: int) -> int:
    """The widest panel whose multiples all boxes of the member start at."""
    offsets = [box[found.column].offset for box in member.boxes]
    sizes = [e for box in member.boxes if isinstance(e := box[found.column].extent, int)]
    for lanes in (64, 32, 16):
        if all(offset % lanes == 0 for offset in offsets) and (min(sizes) >= lanes or lanes == 16):
            return lanes
    return 0


def constant_layout(operator: Operator, access: Access) -> Layout | None:
    """How an operator reads a constant that can be packed; None for what is none."""
    if access.buffer.kind != "constant":
        return None
    return layout_of(access, (*operator.dims, *operator.reduce))


def _pack_right(
    operator: Operator, found: Contraction, layout: Layout, lanes: int, chosen: Selection
) -> Buffer:
    right = found.right
    first = len(operator.dims)
    batch = tuple((_size(operator.dims[n]), stride(right, n)) for n in found.batch)
    columns = (_size(operator.dims[found.column]), stride(right, found.column))
    depth = tuple(
        (_size(extent), stride(right, first + n)) for n, extent in enumerate(operator.reduce)
    )
    outer = (*((dim.size, dim.step) for dim in layout.stack), *batch)
    return chosen.pack(right.buffer, layout.start, outer, columns, depth, lanes)


def _size(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise TypeError("a packed dim must be static")
    return extent


def _plan_convolution(member: Member, conv: Convolution, chosen: Selection) -> Plan | None:
    operator = member.operator
    layout = constant_layout(operator, conv.weight)
    if layout is None or conv.in_channels * prod(conv.kernel) == 0:
        return None
    per_group = conv.out_channels // conv.groups
    if conv.groups > 1 and any(box[1].offset % per_group for box in member.boxes):
        return None
    depthwise = conv.groups > 1 and conv.in_channels == 1 and per_group == 1
    out_h, out_w = _out_size(operator)
    lanes = _pixel_lanes(out_h * out_w, per_group, chosen.units)
    height = _slab_height(member, 6 if lanes == 64 else 12)
    geometry = (
        *zip(("c", "h", "w"), (conv.in_channels, conv.height, conv.width), strict=True),
        *zip(("kh", "kw"), conv.kernel, strict=True),
        *zip(("sh", "sw"), conv.step, strict=True),
        *zip(("ph", "pw"), conv.padding, strict=True),
        *zip(("dh", "dw"), conv.dilation, strict=True),
        ("groups", conv.groups),
        ("mr", height),
        ("nr", lanes),
    )
    spatial = _spatial_multiples(len(operator.dims), out_h, out_w, 1 if depthwise else lanes)
    if depthwise:
        if not _taps_are_dense(operator, conv):
            return None
        return Plan(Method("depthwise", geometry), (1, 1, *spatial))
    weight = conv.weight
    rank = len(operator.dims)
    depth = tuple((_size(e), stride(weight, rank + n)) for n, e in enumerate(operator.reduce))
    outer = tuple((dim.size, dim.step) for dim in layout.stack)
    if conv.groups > 1:
        outer = (*outer, (conv.groups, per_group * stride(weight, 1)))
    columns = (per_group, stride(weight, 1))
    buffer = chosen.pack(weight.buffer, layout.start, outer, columns, depth, height)
    channels = per_group if conv.groups > 1 else height
    return Plan(Method("conv", geometry, buffer), (1, channels, *spatial))


def _taps_are_dense(operator: Operator, conv: Convolution) -> bool:
    """Whether the weights of a channel follow each other, and those of the next one follow them."""
    rank = len(operator.dims)
    taps = [(rank + n, extent) for n, extent in enumerate(operator.reduce) if extent != 1]
    return flat_stride(conv.weight, taps) == 1 and stride(conv.weight, 1) == prod(conv.kernel)


def _slab_height(member: Member, height: int) -> int:
    """Channels per slab of packed weights: every box must begin at the start of a slab."""
    offsets = [box[1].offset for box in member.boxes]
    return next(h for h in (height, 6, 4, 2, 1) if all(offset % h == 0 for offset in offsets))


def _pixel_lanes(pixels: int, channels: int, units: int) -> int:
    """Pixels per panel: four vectors, or fewer where that gives every unit the same share of an
    image.

    Splitting channels instead balances only when there are many blocks of them, and packs patches
    twice.
    """
    if pixels < 32:
        return 16
    few_channels = channels < 48 * units
    return 32 if pixels < 64 or (few_channels and pixels < 64 * units) else 64


def _out_size(operator: Operator) -> tuple[int, int]:
    sizes = [_size(d) for d in operator.dims[2:]]
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _spatial_multiples(rank: int, out_h: int, out_w: int, lanes: int) -> tuple[int, ...]:
    """Whole rows, as few as fill panels to 94 % (0: the whole image)."""
    if rank == 3:
        return (0,)
    for rows in range(1, out_h):
        pixels = rows * out_w
        if -(-pixels // lanes) * lanes <= 1.06 * pixels:
            return (rows, 0)
    return (0, 0)


# ---- tiles -----------------------------------------------------------------------------------


def _kernel(group: Group, chosen: Selection) -> Kernel:
    plans = [plan_member(member, chosen) for member in group.members]
    multiples = _grid_multiples(group, plans)
    seconds = sum(member_seconds(m, p) for m, p in zip(group.members, plans, strict=True))
    grid = _cut(group, plans, multiples, seconds, chosen.units)
    stages = tuple(
        Stage(member.operator, box, plan.method)
        for member, plan in zip(group.members, plans, strict=True)
        for box in member.boxes
    )
    chosen.counter += 1
    name = f"{group.members[-1].operator.name.split('.')[-1] or 'map'}{chosen.counter}"
    tasks = prod((d.tiles if isinstance(d.extent, int) else 8 for d in grid), start=1)
    return Kernel(_identifier(name), grid, stages, seconds / tasks + TASK)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _grid_multiples(group: Group, plans: list[Plan]) -> list[int]:
    """What all members ask of each grid dim (0: not to be cut)."""
    result = [1] * len(group.grid)
    for member, plan in zip(group.members, plans, strict=True):
        for box in member.boxes:
            for span, multiple in zip(box, plan.multiples, strict=True):
                if span.grid is None:
                    continue
                now = result[span.grid]
                result[span.grid] = (
                    0 if 0 in (now, multiple) else now * multiple // gcd(now, multiple)
                )
    return result


def member_seconds(member: Member, plan: Plan) -> float:
    """Estimated seconds of all of a member on one unit."""
    operator = member.operator
    out = prod((d if isinstance(d, int) else 64 for d in operator.dims), start=1)
    depth = prod((d if isinstance(d, int) else 64 for d in operator.reduce), start=1)
    item = operator.out.buffer.dtype.itemsize
    if operator.combine in SORTS:
        return work(operator) * ELEMENT
    if plan.method.template == "loops":
        scale = ELEMENT * (1 + count_applies(operator.value)) * (item / 4)
        return out * depth * scale + sum(1 for _ in loads(operator.value)) * out * 1e-10
    flops = 2.0 * out * depth / FLOPS * (item / 4)
    if plan.method.template == "packed" and plan.method["mr"] == 1:
        return max(flops, out * depth * item / BANDWIDTH)
    if plan.method.template == "dots":
        return flops * 1.3
    return flops


PACKING = 8
"""Copying the patches of a convolution costs as much as computing this many of its channels."""


def _cut(
    group: Group, plans: list[Plan], multiples: list[int], seconds: float, units: int
) -> tuple[TileDim, ...]:
    """Tiles for a target number of tasks: one per unit, more where tasks are long enough to
    balance.

    Of the orders in which dims may be cut, and of coarser cuts, the best one wins, the first of
    equals.
    """
    per_unit = 1 if units == 1 else min(max(round(seconds / units / 4e-5), 1), 8)
    first = _cut_order(group, plans)
    if seconds <= 1e-6:
        return _cut_in_order(group, first, multiples, 1)
    natural = list(range(len(group.grid)))
    targets = sorted({units * per_unit, 2 * units, units}, reverse=True)
    cuts = [
        _cut_in_order(group, order, multiples, target)
        for target in targets
        if target <= units * per_unit
        for order in (first, natural, natural[::-1])
    ]
    return max(cuts, key=lambda cut: round(_efficiency(cut, group, plans, units), 2))


def _efficiency(cut: tuple[TileDim, ...], group: Group, plans: list[Plan], units: int) -> float:
    """The share of the units' time that is spent on results."""
    share = _balance(cut, units)
    for member, plan in zip(group.members, plans, strict=True):
        if plan.method.template != "conv":
            continue
        span = member.boxes[0][1]
        channels = span.extent if span.grid is None else cut[span.grid].tile
        assert isinstance(channels, int)
        share *= channels / (channels + PACKING)
    return share


def _balance(cut: tuple[TileDim, ...], units: int) -> float:
    """The share of the units' time that is used when every unit takes as many tasks as any."""
    if not all(isinstance(dim.extent, int) for dim in cut):
        return 1.0
    points = prod((dim.extent for dim in cut if isinstance(dim.extent, int)), start=1)
    tasks = prod((dim.tiles for dim in cut), start=1)
    largest = prod((dim.tile for dim in cut), start=1)
    return points / (ceil(tasks / units) * units * largest) if points else 1.0


def _cut_in_order(
    group: Group, order: list[int], multiples: list[int], target: int
) -> tuple[TileDim, ...]:
    tiles: dict[int, int] = {}
    for dim in order:
        extent = group.grid[dim]
        if not isinstance(extent, int):
            tiles[dim] = max(multiples[dim], 8)
            continue
        multiple = multiples[dim] or extent
        possible = ceil(extent / multiple)
        tile = ceil(possible / max(min(possible, target), 1)) * multiple
        tiles[dim] = max(min(tile, extent), 1)
        target = max(round(target / max(ceil(extent / tiles[dim]), 1)), 1)
    return tuple(TileDim(extent, tiles[n]) for n, extent in enumerate(group.grid))


def _cut_order(group: Group, plans: list[Plan]) -> list[int]:
    """Outer dims first, but the columns of packed weights before rows: a unit keeps its weights.

    The channels of a convolution come last: each cut of them copies the patches once more.
    """
    columns: set[int] = set()
    channels: set[int] = set()
    for member, plan in zip(group.members, plans, strict=True):
        if plan.method.template == "conv":
            channels |= {g for box in member.boxes if (g := box[1].grid) is not None}
        if plan.method.template == "packed":
            found = analyse(member.operator)
            assert found is not None
            rows = _row_count(member.operator, found)
            if rows <= 256:
                columns |= {g for box in member.boxes if (g := box[found.column].grid) is not None}
    rest = [n for n in range(len(group.grid)) if n not in columns | channels]
    return [*sorted(columns), *rest, *sorted(channels - columns)]
