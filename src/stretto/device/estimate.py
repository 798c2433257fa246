"""The estimated time of a tree, given that of its leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from stretto.device.costs import CostModel
from stretto.device.expr import Const, Position
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Seq,
    TreeFunction,
    children,
    is_parallel,
    iterations,
)
from stretto.ir.sizes import Symbol, usual_value

L = TypeVar("L")


def tree_seconds(
    functions: Iterable[TreeFunction[L]],
    leaf: Callable[[L], float],
    costs: CostModel,
    units: int = 1,
) -> float:
    """Seconds of one run of `main`, the longer arm of every branch taken. Iterations of parallel
    loops are shared out to the units."""
    bodies = {function.name: function.body for function in functions}
    return Estimator(bodies, leaf, costs, units).function("main")


class Estimator(Generic[L]):
    """Seconds of the functions and nodes of one tree, whose bodies are given by name."""

    def __init__(
        self,
        bodies: dict[str, Node[L]],
        leaf: Callable[[L], float],
        costs: CostModel,
        units: int = 1,
    ) -> None:
        self._bodies = bodies
        self._leaf = leaf
        self._costs = costs
        self._units = units
        self._active: set[str] = set()
        self._recursive: set[str] = set()
        self._known: dict[str, float] = {}

    def function(self, name: str) -> float:
        if name in self._active:
            self._recursive.add(name)
            return 0.0
        if name not in self._known:
            self._active.add(name)
            seconds = self.node(self._bodies[name])
            self._active.remove(name)
            if name in self._recursive:
                costs = self._costs
                branches = _calls(self._bodies[name], name) > 1
                times = costs.unknown_activations if branches else costs.unknown_trips
                seconds = times * (seconds + costs.activation_seconds)
            self._known[name] = seconds
        return self._known[name]

    def node(self, node: Node[L]) -> float:
        """Seconds of one run of a node."""
        match node:
            case Leaf(body):
                return self._leaf(body)
            case If(then=then, orelse=orelse):
                return max(self.node(then), self.node(orelse))
            case Call(function=name):
                return self.function(name)
            case _:
                times = iterations(node)
                times = self._usual_trips(node) if times is None else times
                times = -(-times // self._units) if is_parallel(node) else times
                return times * sum(self.node(child) for child in children(node))

    def _usual_trips(self, node: Node[L]) -> int:
        """The trips of a loop over a size of the call; what is assumed of others."""
        match node:
            case For(start=Const(value=int(start)), stop=Position(index=stop), step=step) if all(
                isinstance(atom, Symbol) for atom, _ in stop.terms
            ):
                return len(range(start, usual_value(stop), step))
            case _:
                return self._costs.unknown_trips


def _calls(node: Node[L], name: str) -> int:
    """How many calls of a function one run of a node comes to at most, each loop run twice."""
    match node:
        case Leaf():
            return 0
        case If(then=then, orelse=orelse):
            return max(_calls(then, name), _calls(orelse, name))
        case Call(function=function):
            return int(function == name)
        case _:
            inner = sum(_calls(child, name) for child in children(node))
            return inner if isinstance(node, Seq) else 2 * inner
