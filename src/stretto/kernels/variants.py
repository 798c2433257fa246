"""Kernels with all variants that a machine has for each, and the choice among them.

Selection does not decide: it returns a tree of `OpenKernel`s, each a group of operators with its
`Variant`s. A `Chooser` turns them into kernels; it sees the whole program. `cheapest` chooses
for each kernel separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import ceil
from typing import Protocol, Self

from stretto.device.costs import CostModel
from stretto.device.expr import Apply, Const, Index, Position, Reg
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
from stretto.device.tree import Check, If, Leaf, Let, Node, Seq, Tree, grow_leaves, map_tree
from stretto.ir.sizes import Symbol, symbols_in
from stretto.ir.types import DType
from stretto.kernels.fuse import fuse, split
from stretto.kernels.groups import Group, Grouped
from stretto.remarks import Remarks


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a group of operators.

    templates: one per stage; stages are the boxes of the members in order. task_seconds: time
    of a full task on one unit. seconds: time of all tasks on all units, with the overhead of
    having several.
    """

    grid: tuple[TileDim, ...]
    templates: tuple[Template, ...]
    task_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenKernel:
    """A kernel with its possible variants, at least one; tilings of one kind go from coarse to
    fine."""

    name: str
    group: Group
    variants: tuple[Variant, ...]

    def closed(self, variant: Variant) -> Kernel:
        """Return the kernel in the given variant."""
        boxes = [(member.operator, box) for member in self.group.members for box in member.boxes]
        stages = tuple(
            Stage(operator, box, template)
            for (operator, box), template in zip(boxes, variant.templates, strict=True)
        )
        return Kernel(self.name, variant.grid, stages, variant.task_seconds)


def cut_in_order(
    sizes: Sequence[int], multiples: Sequence[int], order: Iterable[int], target: int
) -> tuple[int, ...]:
    """Return tile sizes for about `target` tasks: multiples of `multiples`, or whole dims. The
    dims in `order` are cut one after the other, the others are not."""
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
    """A machine's decisions about groups of operators."""

    @property
    def costs(self) -> CostModel: ...
    def apart(self, groups: list[Group], operator: Operator, joined: Group) -> str | None:
        """Return why the operator is better in a separate kernel than in `joined`, or None."""
        ...

    def variants(self, group: Group) -> Sequence[Variant]:
        """Return the ways to compute a group, at least one."""
        ...


def open_kernels(
    tree: Tree[Items], selector: Selector, fused: bool, remarks: Remarks
) -> Tree[OpenBody]:
    """Group the operators of all leaves, and name the resulting kernels."""
    opened = opener(fused, remarks)
    return map_tree(tree, lambda items: opened(items, selector))


def opener(fused: bool, remarks: Remarks) -> Callable[[Items, Selector], OpenBody]:
    """Return a function that groups the operators of a leaf into named kernels. Names are unique
    over all its calls."""
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
    """Return the operator with the most work, the last one of several, which names the kernel."""
    operators = [member.operator for member in reversed(group.members)]
    return max(operators, key=costs.work)


def closed(items: OpenBody, choose: Callable[[Sequence[Variant]], Variant]) -> Body:
    """Return the items with one variant of each kernel."""
    return tuple(
        item.closed(choose(item.variants)) if isinstance(item, OpenKernel) else item
        for item in items
    )


def cheapest(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
    """Choose for every kernel the variant that takes the least time by itself."""
    return map_tree(tree, lambda items: closed(items, partial(cheapest_of, costs=costs)))


def cheapest_of(variants: Iterable[Variant], costs: CostModel) -> Variant:
    """Return the first variant that takes the least time; a later one must be faster by
    `later_gain`."""
    first, *others = variants
    for variant in others:
        if variant.seconds * costs.later_gain < first.seconds:
            first = variant
    return first


# ---- Two versions of a leaf, for few rows and for many; each call takes the faster one --------
#
# One task per image with all convolutions in it is right for many images, but leaves all units but
# one idle if there is one image. So a leaf whose best kernels for the usual sizes are bad for
# small ones becomes a branch on a size, with separate kernels in each arm:
#
#     leaf: relu, convolution      =>      if n <= 1: a kernel each, its image cut into rows
#                                          else: one kernel, a task for each image
#
# So does a leaf, in any function, whose number of rows is known only at run time: few rows of a
# product keep all units busy only if the units share its columns.
#
#     leaf: let n, products of n rows      =>      leaf: let n
#                                                  if n <= 4: products whose columns are cut
#                                                  else: products whose rows are cut
#
# Changes: leaves of main that use a size of the call, and leaves that begin by computing a size.
# Needs: nothing; costs decide. Guarantees: both arms compute the same for all sizes, and are
# verified to; the branch affects only time.


SMALL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Sizes up to which separate kernels may pay: a branch covers all sizes up to one of them."""


class RangedSelector(Selector, Protocol):
    """A selector that can also estimate kernels for sizes other than the usual ones."""

    def at(self, sizes: Mapping[Symbol, int], *, trial: bool) -> Self:
        """Return the selector for these sizes. Kernels of a trial are estimated only, so it packs
        nothing."""
        ...

    def seconds(self, group: Group, variant: Variant | None = None) -> float:
        """Return the time of a variant chosen for other sizes; without one, the time if all units
        had equal shares of the work."""
        ...

    def few(self, register: Reg, operators: Sequence[Operator]) -> tuple[int, Self] | None:
        """Return the largest value of a size known at run time for which other kernels pay, and
        their selector; None if they do not."""
        ...


Open = Callable[[Items, Selector], OpenBody]


@dataclass(frozen=True, slots=True)
class SizeBranches:
    """Opens the kernels of a tree, with branches on sizes where these pay."""

    selector: RangedSelector
    open: Open

    def opened(self, tree: Tree[Items]) -> Tree[OpenBody]:
        """Return the tree with its kernels. Main may branch on sizes of the call, all functions on
        sizes computed at run time."""
        functions = (
            one.with_body(
                grow_leaves(one.body, self._branched if one.name == "main" else self._leaf)
            )
            for one in tree.functions
        )
        return Tree(tuple(functions), tree.externals)

    def _leaf(self, items: Items) -> Node[OpenBody]:
        return self._decided(items) or Leaf(self.open(items, self.selector))

    def _decided(self, items: Items) -> Node[OpenBody] | None:
        """Return a branch on a size that is computed before the first operator; None if that does
        not pay."""
        lead = tuple(takewhile(lambda item: isinstance(item, Let | Check), items))
        operators = [item for item in items if isinstance(item, Operator)]
        if len(operators) > self.selector.costs.branch_operators:
            return None
        for register in (item.reg for item in lead if isinstance(item, Let)):
            using = [operator for operator in operators if register in operator.dims]
            found = self.selector.few(register, using) if using else None
            if found is not None:
                most, selector = found
                few = Leaf(self.open(items[len(lead) :], selector))
                many = Leaf(self.open(items[len(lead) :], self.selector))
                holds = _at_most(Index.of(register), most)
                reg = Reg(f"{register.name} <= {most}", DType.BOOL)
                before = (
                    *(item for item in lead if isinstance(item, Let | Check)),
                    Let(reg, holds),
                )
                return Seq((Leaf(before), If(reg, few, many)))
        return None

    def _branched(self, items: Items) -> Node[OpenBody]:
        usual = self.open(items, self.selector)
        operators = [item for item in items if isinstance(item, Operator)]
        symbols = symbols_in(dim for op in operators for dim in op.dims if not isinstance(dim, Reg))
        if len(operators) > self.selector.costs.branch_operators:
            return Leaf(usual)
        for symbol in symbols:
            largest = self._largest(items, usual, symbol)
            if largest is not None:
                small = self.open(items, self.selector.at({symbol: _first(symbol)}, trial=False))
                reg = Reg(f"{symbol.name} <= {largest}", DType.BOOL)
                holds = _at_most(Index.of(symbol), largest)
                return Seq((Leaf((Let(reg, holds),)), If(reg, Leaf(small), Leaf(usual))))
        return self._decided(items) or Leaf(usual)

    def _largest(self, items: Items, usual: OpenBody, symbol: Symbol) -> int | None:
        """Return the largest size for which separate kernels pay; None if they do not."""
        first = _first(symbol)
        if symbol.assumed <= first:
            return None
        before = list(_chosen(usual, self.selector))
        now = self.selector.at({symbol: first}, trial=True)
        ideal = sum(now.seconds(group) for group, _ in before)
        if not self._pays(_total(before, now), ideal):
            return None
        after = list(_chosen(self.open(items, now), now))
        if not self._pays(_total(before, now), _total(after, now)):
            return None

        def is_faster(size: int) -> bool:
            there = self.selector.at({symbol: size}, trial=True)
            return _total(after, there) < _total(before, there)

        sizes = (size for size in SMALL if first <= size < symbol.assumed)
        return max(takewhile(is_faster, sizes), default=None)

    def _pays(self, before: float, after: float) -> bool:
        costs = self.selector.costs
        return before > costs.branch_gain * after and before - after > costs.branch_seconds


def _at_most(size: Index, most: int) -> Apply:
    return Apply("le", (Position(size), Const(most, DType.I64)), DType.BOOL)


def _first(symbol: Symbol) -> int:
    """Return the smallest size for which there is anything to compute."""
    return max(symbol.low, 1)


def _chosen(body: OpenBody, selector: Selector) -> Iterator[tuple[Group, Variant]]:
    for item in body:
        if isinstance(item, OpenKernel):
            yield item.group, cheapest_of(item.variants, selector.costs)


def _total(chosen: list[tuple[Group, Variant]], selector: RangedSelector) -> float:
    """Return the seconds of kernels that run one after the other, with a wait after each."""
    waits = len(chosen) * selector.costs.wait_seconds
    return waits + sum(selector.seconds(group, variant) for group, variant in chosen)
