"""Kernel selection for the CPU: groups of operators with their templates and tilings.

Each operator gets a template (`templates`); each group is cut coarsely (few tasks, little overhead)
or finely (many tasks to balance).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd, prod

from stretto.device.expr import Extent, Reg
from stretto.device.forms import Items, Lowered, Selected
from stretto.device.operator import Combine, Loops, Operator, TileDim
from stretto.device.tree import Leaf, Let, Tree, assigns, walk
from stretto.ir.sizes import Size, Symbol
from stretto.kernels.channels_last import channels_last
from stretto.kernels.contraction import contraction_of
from stretto.kernels.fuse import apart_reason
from stretto.kernels.groups import Box, Group, Member, NewBuffers, single
from stretto.kernels.panels import Packings
from stretto.kernels.variants import Chooser, SizeBranches, Variant, cheapest, cut_in_order, opener
from stretto.machines.cpu.costs import CPU_COSTS, CpuCosts
from stretto.machines.cpu.template import TemplateCandidate, TemplateRequest
from stretto.machines.cpu.templates import candidate
from stretto.machines.cpu.templates.contraction import packed_bytes
from stretto.operators.attention import plain_attention, plain_steps
from stretto.operators.sorting import split_sorts
from stretto.remarks import Remarks


def select(
    lowered: Lowered,
    units: int,
    fused: bool = True,
    costs: CpuCosts = CPU_COSTS,
    choose: Chooser = cheapest,
    remarks: Remarks | None = None,
) -> Selected:
    """Return kernels for a whole tree; `choose` takes one of the variants of each. Constants that
    the templates want packed are in the interface."""
    packings = Packings(list(lowered.tree.externals))
    costs = costs.with_constants([b for b in lowered.tree.externals if b.kind == "constant"])
    selector = CpuSelector(units, costs, packings, steady_registers(lowered.tree))
    plain = plain_attention(channels_last(lowered.tree), selector.keeps_attention)
    ranges = SizeBranches(selector, opener(fused, remarks or Remarks()))
    tree = ranges.opened(split_sorts(plain, units, costs))
    chosen = Tree(choose(tree, costs).functions, tuple(packings.externals))
    return Selected(chosen, replace(lowered.interface, packings=tuple(packings.found.values())))


FEW_ROWS = 2
"""Number of rows per unit up to which a product takes as long as reading its weights."""
FEW_WAITS = 4
"""Number of waits whose time must be saved for columns to be divided instead of rows."""
MOST_TILE = 4096
"""Limit on the values that one task computes of a dim whose size changes during the run."""


@dataclass(frozen=True, slots=True)
class CpuSelector:
    """Selector of variants for `units` threads; `packings` collects the constants to be packed.

    steady: the registers that keep their values while a leaf runs, however it uses them. scarce:
    those of them of which each unit would get only a row or two.
    """

    units: int
    costs: CpuCosts
    packings: Packings
    steady: frozenset[Reg] = frozenset()
    scarce: frozenset[Reg] = frozenset()

    def apart(self, groups: list[Group], operator: Operator, joined: Group) -> str | None:
        """Return why `operator` must not be fused with `groups` into `joined`, or None."""
        for member in joined.members:
            if member.operator.combine is Combine.ATTENTION and self._is_plain(member):
                return "an attention would compute its scores for every part of a row"
            if _reads_all_weights(member, joined, self.costs):
                return "every task would read all of a large operand, however few rows there are"
        return apart_reason(groups, operator, joined, self.units, self.costs)

    def keeps_attention(self, operator: Operator) -> bool:
        """True if one kernel for an attention is faster than products and a softmax."""
        (member,) = single(operator).members
        if self._is_plain(member):
            return False
        one = self._alone(operator)
        parts = plain_steps(operator, NewBuffers(""))
        return one.seconds <= sum(self._alone(part).seconds for part in parts)

    def _alone(self, operator: Operator) -> TemplateCandidate:
        (member,) = single(operator).members
        return self._candidate(member)

    def _is_plain(self, member: Member) -> bool:
        return isinstance(self._candidate(member).template, Loops)

    def _candidate(self, member: Member) -> TemplateCandidate:
        """Return the template of a member that may never be computed; nothing is packed."""
        packings = Packings(list(self.packings.externals))
        return candidate(TemplateRequest(member, self.units, packings, self.costs))

    def at(self, sizes: Mapping[Symbol, int], *, trial: bool) -> CpuSelector:
        """Return a selector whose usual sizes are `sizes`. In a trial, constants are packed into a
        copy of the packings, which is dropped."""
        packings = Packings(list(self.packings.externals)) if trial else self.packings
        return replace(self, costs=self.costs.taking(sizes), packings=packings)

    def seconds(self, group: Group, variant: Variant | None = None) -> float:
        """Return the estimated seconds of a group on all units, in a variant or (None) without any
        loss."""
        found = self._candidates(group)
        if variant is None:
            return sum(one.seconds for one in found) / self.units
        grid, costs = variant.grid, self.costs
        return _spent(grid, group, found, costs) / (
            self.units * max(_balance(grid, self.units, costs), 1e-3)
        )

    def _candidates(self, group: Group) -> list[TemplateCandidate]:
        requests = (
            TemplateRequest(m, self.units, self.packings, self.costs) for m in group.members
        )
        return [candidate(request) for request in requests]

    def _cuts(
        self, group: Group, found: list[TemplateCandidate], seconds: float
    ) -> list[tuple[TileDim, ...]]:
        """Return the tilings of a group."""
        decided = next((n for n, e in enumerate(group.grid) if e in self.steady), None)
        multiples = _multiples(group, found)
        if decided is not None and multiples[decided]:
            extent = group.grid[decided]
            parts = 1 if extent in self.scarce else self._parts(extent)
            return [_decided_cut(group, found, multiples, decided, parts, self)]
        return _cuts(group, found, seconds, self.units, self.costs)

    def _parts(self, extent: Extent) -> int:
        """Return the number of parts of a dim whose size data decide; each usually has more than a
        few rows."""
        most = min(self.units, self.costs.unknown_size // self.costs.unknown_tiles)
        return max(min(most, self.costs.size(extent) // (FEW_ROWS + 1)), 1)

    def few(self, register: Reg, operators: Sequence[Operator]) -> tuple[int, CpuSelector] | None:
        """Return the number of rows up to which units should share the columns instead, with a
        selector for that; None if it gains nothing. A unit with a row or two reads the weights
        for as long as it would with more rows, so sharing pays if that takes longer than the
        waits it costs."""
        if self._parts(register) == 1 or register not in self.steady:
            return None
        products = ((operator, contraction_of(operator)) for operator in operators)
        weights = sum(
            packed_bytes(operator, found, self.costs)
            for operator, found in products
            if found is not None and not found.batch
        )
        saved = weights / self.costs.bandwidth * (1 - 1 / self.units)
        if saved < FEW_WAITS * self.costs.wait_seconds:
            return None
        return FEW_ROWS * self._parts(register), replace(self, scarce=self.scarce | {register})

    def variants(self, group: Group) -> list[Variant]:
        """Return variants of a group: one template per operator, in several tilings."""
        costs, units = self.costs, self.units
        found = self._candidates(group)
        seconds = sum(one.seconds for one in found)
        templates = tuple(
            one.template
            for member, one in zip(group.members, found, strict=True)
            for _ in member.boxes
        )
        variants: list[Variant] = []
        for grid in self._cuts(group, found, seconds):
            counts = (_usual_tiles(dim, costs) for dim in grid)
            task = _spent(grid, group, found, costs) / prod(counts, start=1) + costs.start_seconds
            # Rounded so that efficiencies within a percent count as equal.
            share = max(round(_efficiency(grid, group, found, units, costs), 2), 1e-3)
            variants.append(Variant(grid, templates, task, seconds / (units * share)))
        return variants


def _spent(
    grid: tuple[TileDim, ...], group: Group, found: Iterable[TemplateCandidate], costs: CpuCosts
) -> float:
    """Return the seconds that all tasks of a tiling take together."""
    return sum(
        one.seconds / max(_share(grid, member, one, costs), 1e-3)
        for member, one in zip(group.members, found, strict=True)
    )


def _reads_all_weights(member: Member, joined: Group, costs: CpuCosts) -> bool:
    """True if tasks divide only the rows of a product, whose number is known at the call, and the
    right operand is too large for a cache: with few rows each unit would read all of it again."""
    found = contraction_of(member.operator)
    if found is None or packed_bytes(member.operator, found, costs) <= costs.cache_bytes:
        return False
    (box, *_) = member.boxes
    cut = {joined.grid[g] for n in found.rows if (g := box[n].grid) is not None}
    return box[found.column].grid is None and any(isinstance(extent, Size) for extent in cut)


# ---- Tiles -----------------------------------------------------------------------------------


def steady_registers(tree: Tree[Items]) -> frozenset[Reg]:
    """Return the registers assigned by only one statement, call or loop: a leaf that reads one
    finds it already assigned, and it keeps its value to the end of the leaf."""
    times: Counter[Reg] = Counter()
    for function in tree.functions:
        times.update(function.params)
        for node in walk(function.body):
            times.update(assigns(node))
            if isinstance(node, Leaf):
                times.update(item.reg for item in node.body if isinstance(item, Let))
    return frozenset(reg for reg, count in times.items() if count == 1)


def _multiples(group: Group, found: list[TemplateCandidate]) -> list[int]:
    """Return the multiples that all members require of the tiles of each grid dim; 0: not to be
    cut."""
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
    return result


def _grid_multiples(
    group: Group, found: list[TemplateCandidate], seconds: float, costs: CpuCosts
) -> list[int]:
    """Return the multiples for each grid dim; the whole dim if it is not to be cut.

    Tiles of a dim whose size changes during the run are as long as usual, and at least long enough
    for starting them to be negligible.
    """
    usual = costs.unknown_size // costs.unknown_tiles
    registers = [extent for extent in group.grid if isinstance(extent, Reg)]
    if len(registers) == 1 and seconds:
        size = costs.size(registers[0])
        usual = max(usual, min(int(size * costs.whole_seconds / seconds), MOST_TILE))
    return [
        -(-usual // max(multiple, 1)) * max(multiple, 1)
        if isinstance(extent, Reg)
        else multiple or max(costs.size(extent), 1)
        for multiple, extent in zip(_multiples(group, found), group.grid, strict=True)
    ]


def _decided_cut(
    group: Group,
    found: list[TemplateCandidate],
    multiples: list[int],
    decided: int,
    parts: int,
    selector: CpuSelector,
) -> tuple[TileDim, ...]:
    """Cut the dim whose size data decide into `parts`, as a rule one per unit.

    A unit then has the same rows in all kernels of a leaf, and need not wait for the others between
    them. If there are more units than parts, the other dims are cut, too.
    """
    units, costs = selector.units, selector.costs
    sizes = [costs.size(extent) for extent in group.grid]
    asked = [multiple or max(size, 1) for multiple, size in zip(multiples, sizes, strict=True)]
    rest = [n for n in _cut_order(group, found) if n != decided]
    tiles = cut_in_order(sizes, asked, rest, max(units // parts, 1))
    return tuple(
        TileDim(extent, asked[n], parts)
        if n == decided
        else TileDim(extent, tile)
        if isinstance(extent, int)
        else TileDim(extent, asked[n], ceil(sizes[n] / tile))
        for n, (extent, tile) in enumerate(zip(group.grid, tiles, strict=True))
    )


def _cuts(
    group: Group, found: list[TemplateCandidate], seconds: float, units: int, costs: CpuCosts
) -> list[tuple[TileDim, ...]]:
    """Return tilings for a target number of tasks: one per unit, or more if tasks are long enough
    to balance. Dims may be cut in several orders, and more coarsely."""
    rounds = min(max(round(seconds / units / costs.balanced_seconds), 1), costs.most_rounds)
    per_unit = 1 if units == 1 else rounds
    if any(isinstance(extent, Size) for extent in group.grid) and any(one.rows for one in found):
        # Each task reads the whole right operand, so more tasks per unit cost more reads.
        per_unit = 1
    multiples = _grid_multiples(group, found, seconds, costs)
    # A dim whose size changes during the run has one tile size only.
    sizes = [
        tile if isinstance(extent, Reg) else costs.size(extent)
        for extent, tile in zip(group.grid, multiples, strict=True)
    ]
    first, natural = _cut_order(group, found), list(range(len(group.grid)))
    most = units * per_unit
    ways = [(1, first)]
    if seconds > costs.whole_seconds:
        targets = sorted({most, *(n for n in (2 * units, units) if n <= most)}, reverse=True)
        ways = list(product(targets, (first, natural, natural[::-1])))
    cuts = dict.fromkeys(
        cut_in_order(
            sizes, multiples, [n for n in order if not isinstance(group.grid[n], Reg)], target
        )
        for target, order in ways
    )
    whole = any(isinstance(extent, Reg) for extent in group.grid)
    return [
        tuple(
            _tile_dim(extent, tile, multiple, size, whole)
            for extent, tile, multiple, size in zip(group.grid, cut, multiples, sizes, strict=True)
        )
        for cut in cuts
    ]


def _tile_dim(extent: Extent, tile: int, multiple: int, size: int, dynamic: bool) -> TileDim:
    """Return a grid dim in tiles. One that is known only at the call has as many parts as its
    usual size has tiles.

    Beside a dim that changes during the run the number of tasks is unknown in any case.
    """
    if not isinstance(extent, Size):
        return TileDim(extent, tile)
    if dynamic:
        return TileDim(extent, max(tile, 1))
    return TileDim(extent, min(multiple, size), ceil(size / max(tile, 1)))


def _efficiency(
    cut: tuple[TileDim, ...],
    group: Group,
    found: list[TemplateCandidate],
    units: int,
    costs: CpuCosts,
) -> float:
    """Return the share of the units' time that is spent on results."""
    share = _balance(cut, units, costs)
    for member, one in zip(group.members, found, strict=True):
        share *= _share(cut, member, one, costs)
    return share


def _share(
    cut: tuple[TileDim, ...], member: Member, one: TemplateCandidate, costs: CpuCosts
) -> float:
    """Return the share of the time of a member that is spent on results."""
    share = 1.0
    if one.reading:
        grids = set[int]().union(*(_grid_dim(member.boxes[0], dim) for dim in one.rows))
        reads = prod((_usual_tiles(cut[n], costs) for n in grids), start=1) * one.reading
        share = one.seconds / max(one.seconds, reads)
    if one.last is None or not one.repeated:
        return share
    span = member.boxes[0][one.last]
    size = costs.size(span.extent) if span.grid is None else _usual_tile(cut[span.grid], costs)
    return share * size / (size + one.repeated)


def _usual_tiles(dim: TileDim, costs: CpuCosts) -> int:
    known = dim.parts is not None or isinstance(dim.extent, int)
    return dim.tiles if known else costs.unknown_tiles


def _usual_parts(dim: TileDim, costs: CpuCosts) -> int:
    """Return the number of tiles that have anything to compute."""
    most = dim.tiles
    return most if dim.parts is None else min(most, ceil(costs.size(dim.extent) / dim.tile))


def _usual_tile(dim: TileDim, costs: CpuCosts) -> int:
    """Return the number of values of a tile; the usual number if the call decides."""
    return dim.tile if dim.parts is None else ceil(costs.size(dim.extent) / dim.parts)


def _balance(cut: tuple[TileDim, ...], units: int, costs: CpuCosts) -> float:
    """Return the share of the units' time that is used, if every unit takes as long as the one
    with the most tasks."""
    if any(isinstance(dim.extent, Reg) for dim in cut):
        return 1.0
    points = prod((costs.size(dim.extent) for dim in cut), start=1)
    tasks = prod((_usual_parts(dim, costs) for dim in cut), start=1)
    largest = prod((_usual_tile(dim, costs) for dim in cut), start=1)
    return points / (ceil(tasks / units) * units * largest) if points else 1.0


def _cut_order(group: Group, found: list[TemplateCandidate]) -> list[int]:
    """Return the dims in the order in which they are cut: outer dims first, but before them the
    columns of packed weights, which a unit then keeps, and last the channels of a convolution,
    since each cut of these copies the patches again."""
    first: set[int] = set()
    last: set[int] = set()
    for member, one in zip(group.members, found, strict=True):
        for box in member.boxes:
            first |= _grid_dim(box, one.first)
            last |= _grid_dim(box, one.last)
    rest = [n for n in range(len(group.grid)) if n not in first | last]
    return [*sorted(first), *rest, *sorted(last - first)]


def _grid_dim(box: Box, dim: int | None) -> set[int]:
    """Return the grid dim of a dim of a box, as a set; empty if there is none."""
    grid = None if dim is None else box[dim].grid
    return set() if grid is None else {grid}
