"""Kernel selection for GPUs: groups of operators become kernels cut for thread blocks, as data.

A grid is cut into as many tasks as shorten the whole: all units busy where there is much to do, one
task where handing out the work would take longer than doing it. Constants stay as they are: what a
product with few rows wants is its weights row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, gcd, prod

from stretto.device.forms import Items, Lowered
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage, TileDim
from stretto.device.tree import Check, Let, Tree, map_tree
from stretto.kernels.fuse import fuse, split
from stretto.kernels.groups import Group, Grouped, single
from stretto.kernels.split_reductions import Estimates, split_reductions
from stretto.kernels.split_sorts import count_sorts
from stretto.machines.cuda.costs import CUDA_COSTS, CudaCosts
from stretto.machines.cuda.templates import choose
from stretto.machines.cuda.templates.stencil import Choice, Stencil, whole_seconds

SMALLEST = 16
"""Rows and columns of the smallest block that tensor cores multiply."""

KernelItems = tuple[Kernel | Let | Check, ...]


def select_cuda(
    lowered: Lowered, units: int, fused: bool = True, costs: CudaCosts = CUDA_COSTS
) -> Tree[KernelItems]:
    """Groups, cuts and names kernels for a whole tree, for `units` thread blocks."""
    selection = _Selection(units, costs, fused)
    estimates = Estimates(selection.seconds_alone, selection.least_seconds, costs)
    tree = split_reductions(count_sorts(lowered.tree, costs), units, estimates)
    return map_tree(tree, selection.leaf)


@dataclass(slots=True)
class _Selection:
    units: int
    costs: CudaCosts
    fused: bool
    counter: int = 0

    def leaf(self, items: Items) -> KernelItems:
        groups = fuse(items, self.pays) if self.fused else split(items)
        return tuple(self.item(group) for group in groups)

    def pays(self, groups: list[Group], operator: Operator, joined: Group) -> bool:
        """Is one kernel faster than several, with the waits between them?"""
        parts, wait = [*groups, single(operator)], self.costs.wait_seconds
        apart = sum(self.best_seconds(group) + wait for group in parts) - wait
        return self.best_seconds(joined) <= apart

    def seconds_alone(self, operator: Operator) -> float:
        return self.best_seconds(single(operator))

    def least_seconds(self, operator: Operator) -> float:
        return whole_seconds(Stencil.of(operator, self.costs)) / self.units

    def best_seconds(self, group: Group) -> float:
        return Cutter(group, self.units, self.costs).best()[1]

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
        cutter = Cutter(group, self.units, self.costs)
        grid, _ = cutter.best()
        tiles = tuple(dim.tile for dim in grid)
        stages: list[Stage] = []
        for member, stencil in zip(group.members, cutter.stencils, strict=True):
            for box in member.boxes:
                choice = cutter.choice(stencil, box, tiles)
                stages.append(Stage(member.operator, box, choice.template))
        last = group.members[-1].operator.name.split(".")[-1] or "map"
        name = "".join(c if c.isalnum() else "_" for c in f"{last}{self.counter}")
        return Kernel(name, grid, tuple(stages), cutter.task_seconds(tiles))


@dataclass(slots=True)
class Cutter:
    """Tries tilings of a group's grid."""

    group: Group
    units: int
    costs: CudaCosts
    stencils: list[Stencil] = field(init=False)
    known: dict[tuple[Operator, tuple[int, ...]], Choice] = field(
        default_factory=dict[tuple[Operator, tuple[int, ...]], Choice]
    )

    def __post_init__(self) -> None:
        self.stencils = [Stencil.of(member.operator, self.costs) for member in self.group.members]

    def best(self) -> tuple[tuple[TileDim, ...], float]:
        """The grid of least estimated time, the coarsest of about equals; and that time."""
        extents = self.group.grid
        if 0 in extents:
            return tuple(
                TileDim(extent, max(self.costs.size(extent), 1)) for extent in extents
            ), 0.0
        found = tuple(self.costs.size(extent) for extent in extents)
        time = self.seconds(found)
        for tiles in self.candidates():
            seconds = self.seconds(tiles)
            if seconds * self.costs.finer_gain < time:
                found, time = tiles, seconds
        grid = zip(extents, found, strict=True)
        return tuple(TileDim(extent, tile) for extent, tile in grid), time

    def candidates(self) -> list[tuple[int, ...]]:
        """Tilings from coarse to fine, without repetitions."""
        if not self.group.grid:
            return []
        pieces = self.pieces()
        found = dict.fromkeys(self.rough_candidates())
        fitted = (
            tuple(_divisor(pieces[n], t) if n in pieces else t for n, t in enumerate(tiles))
            for tiles in found
        )
        return list(dict.fromkeys(fitted))

    def pieces(self) -> dict[int, int]:
        """Sizes of which the tiles of grid dims should be divisors."""
        found: dict[int, int] = {}
        for member, stencil in zip(self.group.members, self.stencils, strict=True):
            for dim, size in stencil.product.pieces if stencil.product else ():
                for box in member.boxes:
                    grid = box[dim].grid
                    if grid is not None and box[dim].offset % size == 0:
                        found[grid] = gcd(found.get(grid, 0), size)
        return found

    def rough_candidates(self) -> list[tuple[int, ...]]:
        natural = list(range(len(self.group.grid)))
        multiples = self.multiples()
        targets = {1 << n for n in range((8 * self.units).bit_length())}
        targets |= {self.units * n for n in (1, 2, 3, 4, 8)}
        found: dict[tuple[int, ...], None] = {}
        for target in sorted(targets):
            for order in (natural, natural[::-1]):
                found.setdefault(self.cut(order, multiples, target))
            found.setdefault(self.evenly(multiples, target))
        return list(found)

    def cut(self, order: list[int], multiples: list[int], target: int) -> tuple[int, ...]:
        """Tiles for about `target` tasks, dims cut one after the other."""
        tiles = [self.costs.size(extent) for extent in self.group.grid]
        for dim in order:
            extent = tiles[dim]
            pieces = ceil(extent / multiples[dim])
            tiles[dim] = min(ceil(pieces / min(pieces, target)) * multiples[dim], extent)
            target = max(round(target / ceil(extent / tiles[dim])), 1)
        return tuple(tiles)

    def evenly(self, multiples: list[int], target: int) -> tuple[int, ...]:
        """Tiles that are about square: the longest one is halved again and again."""
        extents = [self.costs.size(extent) for extent in self.group.grid]
        tiles = list(extents)
        while prod(ceil(e / t) for e, t in zip(extents, tiles, strict=True)) < target:
            dim = max(range(len(tiles)), key=lambda n: tiles[n] / multiples[n])
            if tiles[dim] <= multiples[dim]:
                break
            tiles[dim] = ceil(ceil(tiles[dim] / 2) / multiples[dim]) * multiples[dim]
        return tuple(tiles)

    def multiples(self) -> list[int]:
        """Vectors of 16 bytes stay whole along the dim in which a result is contiguous, or what a
        reduction reads; and the smallest blocks of a product of matrices.
        """
        result = [1] * len(self.group.grid)
        for member, stencil in zip(self.group.members, self.stencils, strict=True):
            operator = member.operator
            vector = max(16 // operator.out.buffer.dtype.itemsize, 1)
            for box in member.boxes:
                for dim, span in enumerate(box):
                    if span.grid is None:
                        continue
                    extent = self.costs.size(operator.dims[dim])
                    if stencil.is_contiguous(dim) and extent >= 4 * vector:
                        result[span.grid] = max(result[span.grid], vector)
                    if extent % SMALLEST == 0 and dim in stencil.sides:
                        result[span.grid] = max(result[span.grid], SMALLEST)
        return result

    def seconds(self, tiles: tuple[int, ...]) -> float:
        """Estimated time of all tasks on all units, with the wait that several tasks bring."""
        task = self.task_seconds(tiles)
        extents = (self.costs.size(extent) for extent in self.group.grid)
        tasks = prod((ceil(e / t) for e, t in zip(extents, tiles, strict=True)), start=1)
        return ceil(tasks / self.units) * task + (self.costs.wait_seconds if tasks > 1 else 0.0)

    def task_seconds(self, tiles: tuple[int, ...]) -> float:
        """One task. The boxes of one operator are under way at once."""
        total = self.costs.start_seconds
        for member, stencil in zip(self.group.members, self.stencils, strict=True):
            first, *others = (self.choice(stencil, box, tiles) for box in member.boxes)
            total += (
                first.seconds + sum(choice.beside for choice in others) + self.costs.stage_seconds
            )
        return total

    def choice(self, stencil: Stencil, box: tuple[Span, ...], tiles: tuple[int, ...]) -> Choice:
        sizes = tuple(
            self.costs.size(span.extent) if span.grid is None else tiles[span.grid] for span in box
        )
        key = (stencil.operator, sizes)
        if key not in self.known:
            self.known[key] = choose(stencil, sizes)
        return self.known[key]


def _divisor(size: int, tile: int) -> int:
    """The largest divisor of `size` up to `tile`."""
    return next(n for n in range(min(size, tile), 0, -1) if size % n == 0)
