"""Which library calls run side by side, each on its share of the threads.

Torch computes an operator on all its threads. That is right for a chain of large operators; of
several that need nothing of each other, each loses time to starting and joining threads, and to
what it does on one of them. So calls get a share: some run side by side, on one thread each, and
those that all others wait for keep all threads. The shares are found as by CPR (Radulescu et al.,
"CPR: mixed task and data parallel scheduling", 2001): all calls begin with one thread, and those on
the longest path get more for as long as that makes the stretch shorter. A stretch ends at an item
behind which all later ones are, and which is behind all earlier ones.

Threads that OpenMP keeps for a call on several of them end before calls on one thread, and are
made again behind these: each such change counts `TEAM_SECONDS`.

A leaf is left as it is where the plan gains less than `TRIED_GAIN`, and so are calls that may fail
or draw random numbers: these keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from stretto.device.call_costs import call_seconds
from stretto.device.costs import CostModel
from stretto.device.operator import DRAWS, Kernel
from stretto.device.regions import Body, Statement
from stretto.device.runs import apart_functions
from stretto.device.tree import Leaf, Node, Seq, Tree, children, is_parallel, leaves, rebuilt
from stretto.ops.properties import properties
from stretto.ops.table import Fails
from stretto.schedule.footprint import Footprints, leaf_nodes
from stretto.schedule.footprint import Node as Item
from stretto.schedule.policies.list import ListPolicy
from stretto.schedule.policy import Policy, kernel_seconds

TRIED_GAIN = 1.0
"""Calls side by side must make a leaf faster by this factor, by the estimates. These are rough:
where calls may run both ways, both are timed, and the faster one is kept."""
LEAST_SHARED = 5e-5
"""Seconds of a native kernel that is taken to be shared out to all units."""
TEAM_SECONDS = 1e-4
"""Ending the threads of a call with several, and making them again."""
MOST_NATIVE = 0.05
"""Native kernels may take this share of the time of calls where both ways are tried: one after the
other, calls run on one thread with the kernels."""
LEAST_NATIVE = 2e-6
"""Seconds of native kernels in a leaf that do not count."""
MOST_PLACED = 20_000
"""Items that are placed for one stretch, in all its trials."""


def share_threads(
    tree: Tree[Body],
    units: int,
    costs: CostModel,
    policy: Policy | None = None,
    gain: float = TRIED_GAIN,
) -> Tree[Body]:
    """The tree with a share of the threads for library calls, where that gains.

    policy: plans the leaves. gain: by which factor a leaf must become faster.
    """
    if units == 1:
        return tree
    apart = apart_functions(tree)
    leaf = _LeafShares(units, costs, policy or ListPolicy(), gain)
    functions = tuple(
        function if function.name in apart else function.with_body(_shared(function.body, leaf))
        for function in tree.functions
    )
    return replace(tree, functions=functions)


def has_shares(tree: Tree[Body]) -> bool:
    """Whether library calls of a tree may run side by side."""
    bodies = (body for function in tree.functions for body in leaves(function.body))
    kernels = (item for body in bodies for item in body if isinstance(item, Kernel))
    return any(kernel.call is not None and kernel.call.threads > 0 for kernel in kernels)


def is_of_calls(tree: Tree[Body], costs: CostModel) -> bool:
    """Whether a program does next to nothing but library calls, in each of its leaves."""
    bodies = (body for function in tree.functions for body in leaves(function.body))
    return all(_is_of_calls(body, costs) for body in bodies)


def _is_of_calls(body: Body, costs: CostModel) -> bool:
    native = calls = 0.0
    for item in body:
        if isinstance(item, Kernel) and item.call is not None:
            calls += call_seconds(item.call, costs, 1)
        elif isinstance(item, Kernel):
            native += kernel_seconds(item, costs)
    return native <= MOST_NATIVE * calls + LEAST_NATIVE


def _shared(node: Node[Body], leaf: _LeafShares) -> Node[Body]:
    if is_parallel(node):
        return node
    if isinstance(node, Leaf):
        return Leaf(leaf.shared(node.body))
    inner = [_shared(child, leaf) for child in children(node)]
    return rebuilt(node, inner) if inner or isinstance(node, Seq) else node


def may_share(item: Statement) -> bool:
    """Whether a call may run beside others: nobody sees in which order they ran."""
    if not isinstance(item, Kernel) or item.call is None:
        return False
    draws = any(key == DRAWS for key, _ in item.call.kwargs)
    return not draws and properties(item.call.target).fails is Fails.NEVER


Shares = Mapping[int, int]
"""Threads of calls, by their index."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """seconds: of a stretch. longest: the calls on its longest path, the longest first."""

    seconds: float
    longest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _LeafShares:
    units: int
    costs: CostModel
    policy: Policy
    gain: float

    def shared(self, body: Body) -> Body:
        if sum(may_share(item) for item in body) < 2:
            return body
        items = leaf_nodes(body)
        calls = [n for n, item in enumerate(body) if isinstance(item, Kernel) and item.call]
        shares: dict[int, int] = {}
        change_seconds = 0.0
        for stretch in stretches(items):
            change = 0.0 if all(index in stretch for index in calls) else TEAM_SECONDS
            some = self._shares(items, stretch, change)
            shares |= some
            change_seconds += change if some else 0.0
        found = self._with(body, shares)
        before = self._planned(self._with(body, {}))
        after = self._planned(found) + change_seconds
        return found if after * self.gain < before else body

    def _with(self, body: Body, shares: Shares) -> Body:
        """The body with these threads for the calls, and all for the others."""
        return tuple(
            self._call(item, shares.get(index, self.units)) for index, item in enumerate(body)
        )

    def _call(self, item: Statement, threads: int) -> Statement:
        if not isinstance(item, Kernel) or item.call is None:
            return item
        seconds = call_seconds(item.call, self.costs, threads)
        return replace(item, call=replace(item.call, threads=threads), seconds=seconds)

    def _planned(self, body: Body) -> float:
        """Seconds of a leaf."""
        planner = self.policy.planner(self.units, self.costs, Footprints(self.units))
        return planner.plan(body).seconds

    # ---- the shares of a stretch -----------------------------------------------------------
    def _shares(self, items: Sequence[Item], stretch: range, extra: float) -> Shares:
        """extra: seconds that the shares of one stretch cost beside other stretches."""
        calls = [index for index in stretch if may_share(items[index].item)]
        shares = dict.fromkeys(calls, 1)
        best = self._trial(items, stretch, shares)
        left = MOST_PLACED // len(stretch)
        tried: set[tuple[int, int]] = set()
        while left > 0 and (change := self._next(best, shares, tried)) is not None:
            tried.add(change)
            left -= 1
            trial = self._trial(items, stretch, {**shares, change[0]: change[1]})
            if trial.seconds < best.seconds:
                best, tried = trial, set()
                shares[change[0]] = change[1]
        wide = self._trial(items, stretch, {})
        return shares if best.seconds + extra < wide.seconds else {}

    def _next(
        self, best: _Trial, shares: Shares, tried: set[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """A call on the longest path, and the number of threads to try for it."""
        for index in best.longest:
            more = next((n for n in self._counts() if n > shares.get(index, self.units)), None)
            if more is not None and (index, more) not in tried:
                return index, more
        return None

    def _counts(self) -> Iterator[int]:
        """How many threads a call may have, the fewest first."""
        return (n for n in range(1, self.units + 1) if self.units % n == 0)

    def _trial(self, items: Sequence[Item], stretch: range, shares: Shares) -> _Trial:
        """The items of a stretch, each on the first units that are free, those with the longest way
        to the end first."""
        threads = {i: self._threads(items[i].item, shares.get(i, self.units)) for i in stretch}
        seconds = {index: self._seconds(items[index].item, threads[index]) for index in stretch}
        if shares:
            seconds |= {i: seconds[i] + TEAM_SECONDS for i in shares if threads[i] > 1}
        before = {i: [other for other in items[i].before if other in stretch] for i in stretch}
        ahead = dict(seconds)
        behind: dict[int, list[int]] = {index: [] for index in stretch}
        for index in reversed(stretch):
            for other in before[index]:
                behind[other].append(index)
                ahead[other] = max(ahead[other], seconds[other] + ahead[index])
        free, end = [0.0] * self.units, dict[int, float]()
        missing = {index: len(before[index]) for index in stretch}
        ready = [(-ahead[index], index) for index in stretch if not missing[index]]
        heapify(ready)
        while ready:
            index = heappop(ready)[1]
            count = threads[index]
            start = max((end[other] for other in before[index]), default=0.0)
            places = range(0, self.units - count + 1, count)
            place = min(places, key=lambda unit: max(free[unit : unit + count]))
            start = max(start, *free[place : place + count])
            end[index] = start + seconds[index]
            free[place : place + count] = [end[index]] * count
            for other in behind[index]:
                missing[other] -= 1
                if not missing[other]:
                    heappush(ready, (-ahead[other], other))
        return _Trial(max(free), tuple(_longest(stretch, before, end, seconds)))

    def _threads(self, item: Statement, share: int) -> int:
        """How many units an item occupies: a native kernel all, if it is worth it."""
        if isinstance(item, Kernel) and item.call is not None:
            return share
        return self.units if kernel_seconds(item, self.costs) > LEAST_SHARED else 1

    def _seconds(self, item: Statement, threads: int) -> float:
        if isinstance(item, Kernel) and item.call is not None:
            return call_seconds(item.call, self.costs, threads)
        return kernel_seconds(item, self.costs) / threads


def _longest(
    stretch: range,
    before: Mapping[int, Sequence[int]],
    end: Mapping[int, float],
    seconds: Mapping[int, float],
) -> list[int]:
    """The items that end last, each behind the one that it needs, or all those that run last."""
    index = max(stretch, key=lambda index: end[index])
    found = [index]
    while before[index]:
        index = max(before[index], key=lambda other: end[other])
        found.append(index)
    return sorted(found, key=lambda index: -seconds[index])


def stretches(items: Sequence[Item]) -> Iterator[range]:
    """Cuts the items of a leaf before and behind those that all others are before or behind."""
    masks: list[int] = []
    for item in items:
        mask = 1 << item.index
        for other in item.before:
            mask |= masks[other]
        masks.append(mask)
    common = (1 << len(items)) - 1  # the items that all later ones need
    cuts = {0, len(items)}
    for index in reversed(range(len(items))):
        whole = (1 << (index + 1)) - 1
        if common >> index & 1 and masks[index] == whole:
            cuts |= {index, index + 1}
        common &= masks[index]
    bounds = sorted(cuts)
    return (range(low, high) for low, high in pairwise(bounds))
