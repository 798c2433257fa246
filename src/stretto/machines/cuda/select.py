"""Kernel selection for GPUs: groups of operators become kernels cut for thread blocks, as data.

A grid is cut into the number of tasks that minimises the total time: all units busy if there is
much work, one task if distributing the work would take longer than doing it. Constants keep their
layout, since a product with few rows reads its weights row by row; only the weights of convolutions
are packed in the order in which images are read, channels last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, gcd, lcm, prod

from stretto.device.analyses import meetings
from stretto.device.expr import Buffer
from stretto.device.forms import Lowered, ProgramInterface, Selected
from stretto.device.operator import Operator, Span, Stage, TileDim
from stretto.device.user_kernels import index_multiples
from stretto.kernels.channels_last import channels_last
from stretto.kernels.groups import Group, single
from stretto.kernels.panels import Packings, weights_in_order
from stretto.kernels.split_reductions import Estimates, split_reductions
from stretto.kernels.variants import (
    Chooser,
    Variant,
    cheapest,
    cheapest_of,
    cut_in_order,
    open_kernels,
)
from stretto.machines.cuda.costs import CUDA_COSTS, CudaCosts
from stretto.machines.cuda.template import Stencil, TemplateChoice, whole_seconds
from stretto.machines.cuda.templates import choose as choose_template
from stretto.operators.attention import plain_attention
from stretto.operators.sorting import count_sorts
from stretto.remarks import Remarks
from stretto.text import seconds_text

SMALLEST = 16
"""Rows and columns of the smallest block that tensor cores multiply."""


def select(
    lowered: Lowered,
    units: int,
    fused: bool = True,
    costs: CudaCosts = CUDA_COSTS,
    choose: Chooser = cheapest,
    remarks: Remarks | None = None,
) -> Selected:
    """Select kernels for a whole tree, for `units` thread blocks; `choose` takes a variant of
    each."""
    selector = CudaSelector(units, costs)
    estimates = Estimates(selector.seconds_alone, selector.least_seconds, costs)
    packings = Packings(list(lowered.tree.externals))
    images = channels_last(lowered.tree, copied=False)
    ordered = weights_in_order(images, packings, partial(_may_pack, lowered.interface))
    plain = plain_attention(ordered, keep=lambda operator: False)
    tree = split_reductions(count_sorts(plain, costs), units, estimates)
    kernels = open_kernels(tree, selector, fused, remarks or Remarks())
    interface = replace(lowered.interface, packings=tuple(packings.found.values()))
    return Selected(choose(kernels, costs), interface)


def _may_pack(interface: ProgramInterface, constant: Buffer) -> bool:
    """Return True if a change of a constant would be noticed. It is not for tensors made in
    inference mode on a GPU, which have no version counter."""
    source = interface.constants.get(constant.slot)
    if source is None or constant.slot in interface.made or source.is_cpu:
        return True
    return not source.is_inference()


@dataclass(frozen=True, slots=True)
class CudaSelector:
    """Variants for `units` thread blocks."""

    units: int
    costs: CudaCosts

    def apart(self, groups: list[Group], operator: Operator, joined: Group) -> str | None:
        """Return why several kernels, with the waits between them, are faster than one; None if
        they are not."""
        parts, wait = [*groups, single(operator)], self.costs.wait_seconds
        apart = sum(self.best_seconds(group) + wait for group in parts) - wait
        together = self.best_seconds(joined)
        if together <= apart:
            return None
        return f"one kernel would take {seconds_text(together)}, several {seconds_text(apart)}"

    def variants(self, group: Group) -> list[Variant]:
        return Cutter(group, self.units, self.costs).variants()

    def seconds_alone(self, operator: Operator) -> float:
        return self.best_seconds(single(operator))

    def least_seconds(self, operator: Operator) -> float:
        return whole_seconds(Stencil.of(operator, self.costs)) / self.units

    def best_seconds(self, group: Group) -> float:
        return cheapest_of(self.variants(group), self.costs).seconds


@dataclass(slots=True)
class Cutter:
    """Tries tilings of a group's grid. `known`: the choices for each member, by the sizes of its
    box."""

    group: Group
    units: int
    costs: CudaCosts
    stencils: list[Stencil] = field(init=False)
    known: list[dict[tuple[int, ...], TemplateChoice]] = field(init=False)

    def __post_init__(self) -> None:
        self.stencils = [Stencil.of(member.operator, self.costs) for member in self.group.members]
        self.known = [{} for _ in self.stencils]

    def variants(self) -> list[Variant]:
        """Return all tilings, beginning with a single task."""
        whole = tuple(self.costs.size(extent) for extent in self.group.grid)
        if 0 in whole:
            return [self.variant(tuple(max(size, 1) for size in whole), is_empty=True)]
        return [self.variant(tiles) for tiles in dict.fromkeys((whole, *self.candidates()))]

    def variant(self, tiles: tuple[int, ...], is_empty: bool = False) -> Variant:
        """Estimate a tiling. Loads of a stage that depend on no earlier stage overlap with those
        of the first; several tasks cost a wait."""
        task, choices, stages = self.costs.start_seconds, list[TemplateChoice](), list[Stage]()
        for number, member in enumerate(self.group.members):
            found = [self.choice(number, box, tiles) for box in member.boxes]
            before = meetings(stages)
            for box, choice in zip(member.boxes, found, strict=True):
                stages.append(Stage(member.operator, box, choice.template))
            again = not choices or meetings(stages) > before
            task += found[0].seconds if again else found[0].beside
            task += sum(choice.beside for choice in found[1:])
            choices += found
        task += self.costs.stage_seconds * (1 + meetings(stages))
        grid = tuple(
            TileDim(extent, tile) for extent, tile in zip(self.group.grid, tiles, strict=True)
        )
        sizes = (ceil(self.costs.size(dim.extent) / dim.tile) for dim in grid)
        tasks = prod(sizes, start=1)
        seconds = ceil(tasks / self.units) * task
        seconds += self.costs.wait_seconds if tasks > 1 else 0.0
        templates = tuple(choice.template for choice in choices)
        return Variant(grid, templates, task, 0.0 if is_empty else seconds)

    def choice(self, number: int, box: tuple[Span, ...], tiles: tuple[int, ...]) -> TemplateChoice:
        sizes = tuple(
            self.costs.size(span.extent) if span.grid is None else tiles[span.grid] for span in box
        )
        known = self.known[number]
        if sizes not in known:
            known[sizes] = choose_template(self.stencils[number], sizes)
        return known[sizes]

    def candidates(self) -> list[tuple[int, ...]]:
        """Return tilings from coarse to fine, without repetitions."""
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
        """Return, by grid dim, the size of which its tile should be a divisor."""
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
        multiples, sizes = self.multiples(), [self.costs.size(extent) for extent in self.group.grid]
        targets = {1 << n for n in range((8 * self.units).bit_length())}
        targets |= {self.units * n for n in (1, 2, 3, 4, 8)}
        found: dict[tuple[int, ...], None] = {}
        for target in sorted(targets):
            for order in (natural, natural[::-1]):
                found.setdefault(cut_in_order(sizes, multiples, order, target))
            found.setdefault(self.evenly(multiples, target))
        return list(found)

    def evenly(self, multiples: list[int], target: int) -> tuple[int, ...]:
        """Return tiles that are about square: the longest one is halved repeatedly."""
        extents = [self.costs.size(extent) for extent in self.group.grid]
        tiles = list(extents)
        while prod(ceil(e / t) for e, t in zip(extents, tiles, strict=True)) < target:
            dim = max(range(len(tiles)), key=lambda n: tiles[n] / multiples[n])
            if tiles[dim] <= multiples[dim]:
                break
            tiles[dim] = ceil(ceil(tiles[dim] / 2) / multiples[dim]) * multiples[dim]
        return tuple(tiles)

    def multiples(self) -> list[int]:
        """Return the multiple that each grid dim's tile must be of: vectors of 16 bytes stay whole
        along the dim in which a result is contiguous, or the operand of a reduction; and the
        smallest blocks of a matrix product, and multiples that users' kernels require."""
        result = [1] * len(self.group.grid)
        for member, stencil in zip(self.group.members, self.stencils, strict=True):
            operator = member.operator
            vector = max(16 // operator.out.buffer.dtype.itemsize, 1)
            wanted = index_multiples(operator)
            for box in member.boxes:
                for dim, span in enumerate(box):
                    if span.grid is None:
                        continue
                    extent = self.costs.size(operator.dims[dim])
                    if stencil.is_contiguous(dim) and extent >= 4 * vector:
                        result[span.grid] = max(result[span.grid], vector)
                    if extent % SMALLEST == 0 and dim in stencil.sides:
                        result[span.grid] = max(result[span.grid], SMALLEST)
                    result[span.grid] = lcm(result[span.grid], wanted.get(dim, 1))
        return result


def _divisor(size: int, tile: int) -> int:
    """Return the largest divisor of `size` up to `tile`."""
    return next(n for n in range(min(size, tile), 0, -1) if size % n == 0)
