"""Kernel selection for the CPU: groups of operators become kernels with tiles and templates.

Each operator gets a template (`templates`); each group is cut coarsely (few tasks, little overhead)
or finely (many tasks to balance).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, prod

from stretto.device.forms import Items, Lowered, Packing
from stretto.device.operator import Kernel, LibraryCall, Operator, Stage, TileDim
from stretto.device.tree import Check, Let, Tree, map_tree
from stretto.kernels.fuse import fuse, profitable, split
from stretto.kernels.groups import Box, Group, Grouped
from stretto.kernels.panels import Packings
from stretto.kernels.split_sorts import split_sorts
from stretto.machines.cpu.costs import CPU_COSTS, CpuCosts
from stretto.machines.cpu.templates import candidate
from stretto.machines.cpu.templates.candidate import Candidate, Request

KernelItems = tuple[Kernel | Let | Check, ...]


def select(
    lowered: Lowered, units: int, fused: bool = True, costs: CpuCosts = CPU_COSTS
) -> tuple[Tree[KernelItems], tuple[Packing, ...]]:
    """Groups, chooses and names kernels for a whole tree; constants that templates want packed come
    back too.
    """
    selection = _Selection(units, costs, fused, Packings(list(lowered.tree.externals)))
    tree = map_tree(split_sorts(lowered.tree, units, costs), selection.leaf)
    packings = selection.packings
    return Tree(tree.functions, tuple(packings.externals)), tuple(packings.found.values())


@dataclass(slots=True)
class _Selection:
    units: int
    costs: CpuCosts
    fused: bool
    packings: Packings
    counter: int = 0

    def leaf(self, items: Items) -> KernelItems:
        groups = fuse(items, self.pays) if self.fused else split(items)
        return tuple(self.item(group) for group in groups)

    def pays(self, groups: list[Group], operator: Operator, joined: Group) -> bool:
        return profitable(groups, operator, joined, self.units, self.costs)

    def item(self, group: Grouped) -> Kernel | Let | Check:
        match group:
            case Let() | Check():
                return group
            case LibraryCall():
                self.counter += 1
                return Kernel(f"library{self.counter}", (), (), self.costs.call_seconds, group)
            case Group():
                return self.kernel(group)

    def kernel(self, group: Group) -> Kernel:
        self.counter += 1
        members = group.members
        found = [
            candidate(Request(member, self.units, self.packings, self.costs)) for member in members
        ]
        seconds = sum(one.seconds for one in found)
        grid = _cut(group, found, seconds, self.units, self.costs)
        stages = tuple(
            Stage(member.operator, box, one.template)
            for member, one in zip(members, found, strict=True)
            for box in member.boxes
        )
        costs = self.costs
        tiles = (d.tiles if isinstance(d.extent, int) else costs.unknown_tiles for d in grid)
        tasks = prod(tiles, start=1)
        name = f"{members[-1].operator.name.split('.')[-1] or 'map'}{self.counter}"
        return Kernel(_identifier(name), grid, stages, seconds / tasks + costs.start_seconds)


# ---- tiles -----------------------------------------------------------------------------------


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _grid_multiples(group: Group, found: list[Candidate], costs: CpuCosts) -> list[int]:
    """What all members ask of each grid dim (0: not to be cut); tiles of unknown sizes are as long
    as they usually should be.
    """
    result = [1] * len(group.grid)
    for member, one in zip(group.members, found, strict=True):
        for box in member.boxes:
            for span, multiple in zip(box, one.multiples, strict=True):
                if span.grid is None:
                    continue
                now = result[span.grid]
                result[span.grid] = (
                    0 if 0 in (now, multiple) else now * multiple // gcd(now, multiple)
                )
    usual = costs.unknown_size // costs.unknown_tiles
    return [
        multiple if isinstance(extent, int) else max(multiple, usual)
        for multiple, extent in zip(result, group.grid, strict=True)
    ]


def _cut(
    group: Group, found: list[Candidate], seconds: float, units: int, costs: CpuCosts
) -> tuple[TileDim, ...]:
    """Tiles for a target number of tasks: one per unit, more where tasks are long enough to
    balance.

    Of the orders in which dims may be cut, and of coarser cuts, the best one wins, the first of
    equals.
    """
    rounds = min(max(round(seconds / units / costs.balanced_seconds), 1), costs.most_rounds)
    per_unit = 1 if units == 1 else rounds
    first, multiples = _cut_order(group, found), _grid_multiples(group, found, costs)
    if seconds <= costs.whole_seconds:
        return _cut_in_order(group, first, multiples, 1)
    natural = list(range(len(group.grid)))
    targets = sorted({units * per_unit, 2 * units, units}, reverse=True)
    cuts = [
        _cut_in_order(group, order, multiples, target)
        for target in targets
        if target <= units * per_unit
        for order in (first, natural, natural[::-1])
    ]
    return max(cuts, key=lambda cut: round(_efficiency(cut, group, found, units), 2))


def _efficiency(
    cut: tuple[TileDim, ...], group: Group, found: list[Candidate], units: int
) -> float:
    """The share of the units' time that is spent on results."""
    share = _balance(cut, units)
    for member, one in zip(group.members, found, strict=True):
        if one.last is None or not one.repeated:
            continue
        span = member.boxes[0][one.last]
        size = span.extent if span.grid is None else cut[span.grid].tile
        assert isinstance(size, int)
        share *= size / (size + one.repeated)
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
            tiles[dim] = multiples[dim]
            continue
        multiple = multiples[dim] or extent
        possible = ceil(extent / multiple)
        tile = ceil(possible / max(min(possible, target), 1)) * multiple
        tiles[dim] = max(min(tile, extent), 1)
        target = max(round(target / max(ceil(extent / tiles[dim]), 1)), 1)
    return tuple(TileDim(extent, tiles[n]) for n, extent in enumerate(group.grid))


def _cut_order(group: Group, found: list[Candidate]) -> list[int]:
    """Outer dims first, but before them the columns of packed weights, which a unit then keeps, and
    last the channels of a convolution: each cut of them copies the patches once more.
    """
    first: set[int] = set()
    last: set[int] = set()
    for member, one in zip(group.members, found, strict=True):
        for box in member.boxes:
            first |= _grid_dim(box, one.first)
            last |= _grid_dim(box, one.last)
    rest = [n for n in range(len(group.grid)) if n not in first | last]
    return [*sorted(first), *rest, *sorted(last - first)]


def _grid_dim(box: Box, dim: int | None) -> set[int]:
    grid = None if dim is None else box[dim].grid
    return set() if grid is None else {grid}
