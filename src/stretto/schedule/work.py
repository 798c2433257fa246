"""How long a call takes on one unit, as a formula over its sizes.

The estimates of kernels are for usual sizes. What a kernel takes grows with the elements of the
operator that does most, a loop with its trips.
"""

from __future__ import annotations

from math import prod

from stretto.device.costs import CostModel
from stretto.device.expr import Expr, Extent, Position, Reg, constant
from stretto.device.operator import Kernel
from stretto.device.program import Small
from stretto.device.regions import Body, Statement
from stretto.device.tree import Call, For, If, Leaf, Node, Tree, children, is_loop
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Size, Symbol, usual_value
from stretto.schedule.policy import kernel_seconds

PICOSECONDS = 1e12


def small_calls(
    tree: Tree[Body], symbols: tuple[Symbol, ...], share: float, costs: CostModel
) -> Small | None:
    """Which calls gain nothing from several units, where those take `share` of the time of one.

    None where that does not depend on the sizes of the call.
    """
    work = _Work(tree, frozenset(symbols), costs).function("main")
    if work.is_const:
        return None
    return Small(work, round(costs.wake_seconds / (1 - share) * PICOSECONDS))


class _Work:
    """Picoseconds of functions and nodes; recursion and loops by value as long as usual."""

    def __init__(self, tree: Tree[Body], symbols: frozenset[Symbol], costs: CostModel) -> None:
        self._bodies = {function.name: function.body for function in tree.functions}
        self._symbols = symbols
        self._costs = costs
        self._active: set[str] = set()

    def function(self, name: str) -> Size:
        if name in self._active:
            return Size()
        self._active.add(name)
        work = self._node(self._bodies[name])
        self._active.remove(name)
        return work

    def _node(self, node: Node[Body]) -> Size:
        match node:
            case Leaf(body):
                return sum(map(self._item, body), start=Size())
            case Call(function=name):
                return self.function(name)
            case If(then=then, orelse=orelse):
                return maximum(self._node(then), self._node(orelse))
            case _:
                below = sum(map(self._node, children(node)), start=Size())
                return below * self._trips(node)

    def _trips(self, node: Node[Body]) -> int | Size:
        match node:
            case For(start=start, stop=stop, step=step):
                first, last = self._bound(start), self._bound(stop)
                if first is None or last is None:
                    return self._costs.unknown_trips
                return (last - first) * (1 if step > 0 else -1) // abs(step)
            case _:
                return self._costs.unknown_trips if is_loop(node) else 1

    def _bound(self, expr: Expr) -> Size | None:
        """The bound of a loop that a call decides."""
        number = constant(expr)
        if number is not None:
            return Size(const=number)
        if isinstance(expr, Position) and self._is_given(expr.index):
            return expr.index
        return None

    def _is_given(self, size: Size) -> bool:
        if size.may_wrap or size.vars() or any(isinstance(atom, Reg) for atom in size.atoms()):
            return False
        return set(size.symbols) <= self._symbols

    def _item(self, item: Statement) -> Size:
        picoseconds = kernel_seconds(item, self._costs) * PICOSECONDS
        if not isinstance(item, Kernel) or not item.stages:
            return Size(const=round(picoseconds))
        extents = max(
            ((*s.operator.dims, *s.operator.reduce) for s in item.stages), key=self._costs.points
        )
        sizes = [self._size(extent) for extent in extents]
        usual = prod(
            self._costs.size(extent)
            for extent, size in zip(extents, sizes, strict=True)
            if isinstance(size, Size)
        )
        work = Size(const=max(round(picoseconds / usual), 1))
        for size in sizes:
            work = work * size if isinstance(size, Size) else work
        return work

    def _size(self, extent: Extent) -> int | Size:
        """An extent as a size of the call; a number where it is none."""
        if not isinstance(extent, Size):
            return self._costs.size(extent)
        return extent if set(extent.symbols) <= self._symbols else usual_value(extent)
