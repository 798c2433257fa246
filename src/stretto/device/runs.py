"""Numbers of executions of the nodes of a control tree in one call, and estimated times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stretto.components import reachable
from stretto.device.costs import CostModel
from stretto.device.expr import Const, Position
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Seq,
    Tree,
    TreeFunction,
    calls,
    children,
    is_parallel,
    iterations,
)
from stretto.ir.sizes import Symbol, usual_value

L = TypeVar("L")

BY_VALUE = "by value"
"""The text for a number of executions that is known only when the program runs."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Number of executions in one call. `exact` False: an upper bound. None: decided by data at
    run time."""

    count: int | None = 1
    exact: bool = True

    def times(self, trips: int | None) -> Runs:
        if self.count is None or trips is None:
            return Runs(None)
        return Runs(self.count * trips, self.exact)

    def __add__(self, other: Runs) -> Runs:
        if self.count is None or other.count is None:
            return Runs(None)
        return Runs(self.count + other.count, self.exact and other.exact)

    def __str__(self) -> str:
        if self.count is None:
            return BY_VALUE
        return str(self.count) if self.exact else f"<= {self.count}"


NEVER = Runs(0)


def inside(node: Node[L], runs: Runs) -> Runs:
    """Return the runs of the nodes directly below a node, given its own."""
    return Runs(runs.count, False) if isinstance(node, If) else runs.times(iterations(node))


def walk_runs(node: Node[L], runs: Runs) -> Iterator[tuple[Node[L], Runs]]:
    """Yield a node with its runs and everything below it with theirs, in execution order."""
    yield node, runs
    for child in children(node):
        yield from walk_runs(child, inside(node, runs))


def called(node: Node[L]) -> set[str]:
    """Return the functions that a node calls directly."""
    return {call.function for call in calls(node)}


def call_graph(functions: Iterable[TreeFunction[L]]) -> dict[str, set[str]]:
    """Map each function to the functions that it calls directly."""
    return {function.name: called(function.body) for function in functions}


def called_outside_parallel_loops(node: Node[L]) -> set[str]:
    """Return the functions that a node calls directly, except in its parallel loops."""
    if is_parallel(node):
        return set()
    if isinstance(node, Call):
        return {node.function}
    return set[str]().union(*map(called_outside_parallel_loops, children(node)))


def reached(name: str, callees: Mapping[str, set[str]]) -> set[str]:
    """Return the functions that a call of `name` can reach, including `name` itself if it is
    recursive."""
    return reachable(callees[name], callees)


def functions_in_parallel_loops(tree: Tree[L]) -> frozenset[str]:
    """Return the functions reachable from parallel loops: each unit runs them by itself."""
    names = {name for node in tree.walk() if is_parallel(node) for name in called(node)}
    return frozenset(reachable(names, call_graph(tree.functions)))


def recursive_functions(tree: Tree[L]) -> set[str]:
    """Return the functions that can have several activations at a time."""
    callees = call_graph(tree.functions)
    return {name for name in callees if name in reached(name, callees)}


def function_runs(tree: Tree[L]) -> dict[str, Runs]:
    """Return the runs of each function in one call; those of recursive functions are unknown."""
    recursive = recursive_functions(tree)
    found = {function.name: NEVER for function in tree.functions}

    def visit(name: str, runs: Runs, path: tuple[str, ...]) -> None:
        if name in path:
            return
        runs = Runs(None) if name in recursive else runs
        found[name] = found[name] + runs
        for node, inner in walk_runs(tree.function(name).body, runs):
            if isinstance(node, Call):
                visit(node.function, inner, (*path, name))

    visit("main", Runs(), ())
    return found


def tree_runs(tree: Tree[L]) -> Iterator[tuple[Node[L], Runs]]:
    """Yield every node of every function with its runs in one call."""
    runs = function_runs(tree)
    for function in tree.functions:
        yield from walk_runs(function.body, runs[function.name])


# ---- The estimated time of a tree, given that of its leaves.


def tree_seconds(
    functions: Iterable[TreeFunction[L]],
    leaf: Callable[[L], float],
    costs: CostModel,
    units: int = 1,
) -> float:
    """Return the seconds of one run of `main`, with the longer arm of every branch taken.
    Iterations of parallel loops are divided among the units."""
    bodies = {function.name: function.body for function in functions}
    return Estimator(bodies, leaf, costs, units).function("main")


class Estimator(Generic[L]):
    """Estimates the seconds of functions and nodes of one tree, whose bodies are given by name."""

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
        """Return the seconds of one run of a node."""
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
        """Return the usual trip count of a loop over a size of the call, or else the default
        assumption."""
        match node:
            case For(start=Const(value=int(start)), stop=Position(index=stop), step=step) if all(
                isinstance(atom, Symbol) for atom, _ in stop.terms
            ):
                return len(range(start, usual_value(stop), step))
            case _:
                return self._costs.unknown_trips


def _calls(node: Node[L], name: str) -> int:
    """Return the maximum number of calls of a function in one run of a node, counting two
    iterations per loop."""
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
