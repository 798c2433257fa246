"""Kernels with the variants that a machine has for each, and what chooses among those.

Selection does not decide: it gives a tree of `OpenKernel`s, each a group of operators with its
`Variant`s. A `Chooser` makes kernels of them and sees the whole program for that. `cheapest` takes
each kernel by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from stretto.device.costs import CostModel
from stretto.device.forms import Items
from stretto.device.operator import (
    Kernel,
    LibraryCall,
    Operator,
    Stage,
    Template,
    TileDim,
    UniqueNames,
)
from stretto.device.regions import Body, Statement
from stretto.device.tree import Tree, map_tree
from stretto.kernels.fuse import fuse, split
from stretto.kernels.groups import Group, Grouped
from stretto.remarks import Remarks


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compute a group of operators.

    templates: one per stage, which are the boxes of the members in order. task_seconds: of a full
    task on one unit. seconds: of all tasks on all units, with what it costs that there are several.
    """

    grid: tuple[TileDim, ...]
    templates: tuple[Template, ...]
    task_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenKernel:
    """A kernel whose variant is not chosen yet. At least one; from coarse to fine where they are
    tilings of one kind."""

    name: str
    group: Group
    variants: tuple[Variant, ...]

    def closed(self, variant: Variant) -> Kernel:
        boxes = [(member.operator, box) for member in self.group.members for box in member.boxes]
        stages = tuple(
            Stage(operator, box, template)
            for (operator, box), template in zip(boxes, variant.templates, strict=True)
        )
        return Kernel(self.name, variant.grid, stages, variant.task_seconds)


def cut_in_order(
    sizes: Sequence[int], multiples: Sequence[int], order: Iterable[int], target: int
) -> tuple[int, ...]:
    """Tiles for about `target` tasks: multiples of what is asked, or the whole dim. The dims of
    `order` are cut one after the other, the others are not.
    """
    tiles = list(sizes)
    for dim in order:
        size = sizes[dim]
        possible = ceil(size / multiples[dim])
        tile = ceil(possible / max(min(possible, target), 1)) * multiples[dim]
        tiles[dim] = max(min(tile, size), 1)
        target = max(round(target / max(ceil(size / tiles[dim]), 1)), 1)
    return tuple(tiles)


OpenBody = tuple[OpenKernel | Statement, ...]
Chooser = Callable[[Tree[OpenBody], CostModel], Tree[Body]]
"""Chooses the variants of a whole program."""


class Selector(Protocol):
    """What a machine says of groups of operators."""

    @property
    def costs(self) -> CostModel: ...
    def apart(self, groups: list[Group], operator: Operator, joined: Group) -> str | None:
        """Why the operator is better in a kernel of its own than with its producers, or None."""
        ...

    def variants(self, group: Group) -> Sequence[Variant]:
        """The ways to compute a group, at least one."""
        ...


def open_kernels(
    tree: Tree[Items], selector: Selector, fused: bool, remarks: Remarks
) -> Tree[OpenBody]:
    """Groups the operators of all leaves, and names what becomes a kernel."""
    opened = opener(fused, remarks)
    return map_tree(tree, lambda items: opened(items, selector))


def opener(fused: bool, remarks: Remarks) -> Callable[[Items, Selector], OpenBody]:
    """A function that groups the operators of a leaf, and names what becomes a kernel; names are
    unique among all that it opens."""
    names = UniqueNames()

    def item(grouped: Grouped, selector: Selector) -> OpenKernel | Statement:
        match grouped:
            case LibraryCall():
                name = names.of(grouped.origin or grouped.name)
                return Kernel(name, (), (), selector.costs.call_seconds, grouped)
            case Group():
                main = main_operator(grouped, selector.costs)
                name = names.of(main.origin or main.name)
                return OpenKernel(name, grouped, tuple(selector.variants(grouped)))
            case _:
                return grouped

    def leaf(items: Items, selector: Selector) -> OpenBody:
        groups = fuse(items, selector.apart, remarks) if fused else split(items)
        return tuple(item(group, selector) for group in groups)

    return leaf


def main_operator(group: Group, costs: CostModel) -> Operator:
    """The operator of a group that has most to do, which the kernel is named after; the last one
    where several have as much."""
    operators = [member.operator for member in reversed(group.members)]
    return max(operators, key=costs.work)


def cheapest(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
    """Every kernel in the variant that takes least time by itself."""

    def leaf(items: OpenBody) -> Body:
        return tuple(
            item.closed(cheapest_of(item.variants, costs)) if isinstance(item, OpenKernel) else item
            for item in items
        )

    return map_tree(tree, leaf)


def cheapest_of(variants: Iterable[Variant], costs: CostModel) -> Variant:
    """The first of those that take least time; a later one must be faster by `later_gain`."""
    first, *others = variants
    for variant in others:
        if variant.seconds * costs.later_gain < first.seconds:
            first = variant
    return first
