"""Insertion of waits into a planned function.

The function is walked with the pending accesses: those that some unit may not know to be over. A
loop is walked until the state at its head no longer grows, so that waits between iterations are
found; both arms of a branch start from the same state. Before a loop the units wait for what its
body may touch (so that the body need not wait in every iteration). Before a call, around a parallel
loop and at the end of a function they wait for everything, since any memory may be touched next.
These waits are put at the end of the preceding leaf if there is one, and into each arm if a
function ends in a branch. For lists that only one unit accesses in functions, the units wait only
after the call from `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.components import reachable
from stretto.device import tree
from stretto.device.analyses import BufferNames, later_names
from stretto.device.boxes import Mask
from stretto.device.expr import Buffer
from stretto.device.flow import Flow, Loop
from stretto.device.operator import Kernel
from stretto.device.program import Schedule
from stretto.device.regions import item_regions
from stretto.device.runs import call_graph
from stretto.schedule.footprint import Footprint
from stretto.schedule.leaf_waits import AccessRecord, LeafWaits, Pending, SyncSetting, TouchKey
from stretto.schedule.policy import LeafPlan, Placed

# ---- Lists that only one unit accesses in all functions except `main`.
#
# Its accesses need not be over when one of these functions is called or returns, because no other
# unit accesses the lists before `main` continues. So a recursion that pushes to lists in every
# activation waits once, after the call from `main`, and not at the end of each activation.
#
# The verifier decides the same by a separate rule (`device/verifier/assignment.py`).


SEVERAL_UNITS = -1
"""Replaces a unit number: more than one unit, or access to the list under another name."""


@dataclass(frozen=True, slots=True)
class SingleUnitLists:
    """Lists that one unit alone accesses. `unit_of`: that unit, by list name; `accessed`: the
    lists that each function accesses; `callees`: the functions that each function calls."""

    unit_of: Mapping[str, int]
    accessed: Mapping[str, frozenset[str]]
    callees: Mapping[str, set[str]]

    def pending_behind(self, function: str) -> frozenset[int]:
        """Return the units whose accesses may not be over when a call of `function` from `main`
        returns."""
        if not self.unit_of:
            return frozenset()
        names = {n for one in reachable((function,), self.callees) for n in self.accessed[one]}
        return frozenset(self.unit_of[name] for name in names if name in self.unit_of)


NO_LISTS = SingleUnitLists({}, {}, {})


def own_lists(functions: Sequence[tree.TreeFunction[LeafPlan]]) -> SingleUnitLists:
    """Return the lists of a planned program that one unit alone accesses in functions."""
    found: dict[str, int] = {}
    accessed: dict[str, frozenset[str]] = {}
    for function in functions:
        pairs = set(_accesses(function))
        accessed[function.name] = frozenset(name for name, _ in pairs)
        for name, unit in pairs if function.name != "main" else ():
            found[name] = unit if found.get(name, unit) == unit else SEVERAL_UNITS
    for function in functions:
        for name in _other_names(function):
            found[name] = SEVERAL_UNITS
    unit_of = {name: unit for name, unit in found.items() if unit != SEVERAL_UNITS}
    return SingleUnitLists(unit_of, accessed, call_graph(functions))


def _accesses(function: tree.TreeFunction[LeafPlan]) -> Iterator[tuple[str, int]]:
    """Yield each list that a function accesses, with the unit."""
    for plan in tree.leaves(function.body):
        for placed in plan.placed:
            names = [r.buffer.name for r in item_regions(placed.item) if r.buffer.kind == "list"]
            units = _units(placed) if names else set[int]()
            yield from ((name, unit) for name in names for unit in units)


def _units(placed: Placed) -> set[int]:
    """Return the units that execute an item; SEVERAL_UNITS for a statement."""
    if isinstance(placed.item, Kernel):
        return {part.unit for part in placed.parts}
    return {SEVERAL_UNITS}


def _other_names(function: tree.TreeFunction[LeafPlan]) -> Iterator[str]:
    """Yield the lists that are bound to params or rotated, and so have another name for a while."""
    return (b.name for node in tree.walk(function.body) for b in tree.renamed(node))


Walked = tuple[tree.Node[LeafWaits], Pending]
Matters = Callable[[Footprint], bool]

NO_LEAF = -1
"""Number of a leaf that only waits, and so touches nothing."""


class Synchronizer(Flow[LeafPlan, LeafWaits, Pending]):
    """Walk over one function. `relevant`: returns True if the order of accesses to a buffer can
    matter."""

    def __init__(
        self,
        is_main: bool,
        setting: SyncSetting,
        relevant: Callable[[Buffer], bool],
        own: SingleUnitLists = NO_LISTS,
    ) -> None:
        super().__init__()
        self._is_main = is_main
        self._own = own
        self._setting = setting
        self._relevant = relevant
        self._numbers: dict[int, int] = {}
        self._later: Callable[[LeafPlan], BufferNames | None] = lambda plan: None
        self._renamed: dict[tuple[int, str], tuple[Footprint, Footprint]] = {}

    def function(self, body: tree.Node[LeafPlan]) -> tree.Node[Schedule]:
        """Return the body with waits. When a function other than `main` returns, nothing is
        pending."""
        self._later = later_names(body, self._names, returns=not self._is_main)
        items = body.children if isinstance(body, tree.Seq) else (body,)
        made, _ = self._with_end_waits(items, {}, None if self._is_main else _everything)
        return _scheduled(tree.joined(made))

    def per_unit_body(self, body: tree.Node[LeafPlan]) -> tree.Node[Schedule]:
        """Return the body of a function that each unit runs by itself."""
        return _scheduled(tree.map_leaves(body, self._per_unit_leaf))

    def sequence(self, children: Sequence[tree.Node[LeafPlan]], state: Pending) -> Walked:
        made, state = self._with_end_waits(children, state, None)
        return tree.joined(made), state

    def leaf(self, body: LeafPlan, state: Pending) -> tuple[LeafWaits, Pending]:
        leaf = self._leaf_waits(body, state)
        return leaf, leaf.pending()

    def loop(self, node: Loop[LeafPlan], state: Pending) -> Walked:
        made, state = self._with_entry_waits(node, self._waiting(state))
        return tree.joined(made), state

    def call(self, call: tree.Call[LeafPlan], state: Pending) -> Walked:
        made = _made(self._waiting(state).settled(_everything))
        behind = self._waiting({})
        if self._is_main:
            for unit in sorted(self._own.pending_behind(call.function)):
                behind.wait_for(unit, 1)
        return tree.joined([*made, super().call(call, state)[0], *_made(behind)]), {}

    def _with_end_waits(
        self, children: Sequence[tree.Node[LeafPlan]], state: Pending, end: Matters | None
    ) -> tuple[list[tree.Node[LeafWaits]], Pending]:
        """Return the nodes in order, with waits after which everything that matters at the `end`
        is over.

        A leaf stays open for the waits of what follows it. A branch at the end has these waits in
        its arms, so an arm that touches nothing waits for no unit.
        """
        made: list[tree.Node[LeafWaits]] = []
        last = self._waiting(state)
        for child in children:
            match child:
                case tree.Leaf(body):
                    made += _made(last)
                    last = self._leaf_waits(body, last.pending())
                case _ if tree.is_loop(child):
                    nodes, state = self._with_entry_waits(child, last)
                    made += nodes
                    last = self._waiting(state)
                case tree.If() if end and child is children[-1]:
                    node, state = self._ended_arms(child, last.pending(), end)
                    made += [*_made(last), node]
                    last = self._waiting(state)
                case _:
                    asked = last.settled(_everything) if isinstance(child, tree.Call) else last
                    node, state = self.visit(child, asked.pending())
                    made += [*_made(asked), node]
                    last = self._waiting(state)
        last = last.settled(end) if end else last
        return [*made, *_made(last)], last.pending()

    def _ended_arms(
        self, branch: tree.If[LeafPlan], state: Pending, end: Matters
    ) -> tuple[tree.Node[LeafWaits], Pending]:
        """Return a branch whose arms each end with the waits for everything that matters at the
        `end`."""
        arms: list[tree.Node[LeafWaits]] = []
        states: list[Pending] = []
        for arm in (branch.then, branch.orelse):
            made, after = self._with_end_waits(
                arm.children if isinstance(arm, tree.Seq) else (arm,), state, end
            )
            arms.append(tree.joined(made))
            states.append(after)
        return tree.rebuilt(branch, arms), self.merge(*states)

    def _with_entry_waits(
        self, loop: Loop[LeafPlan], before: LeafWaits
    ) -> tuple[list[tree.Node[LeafWaits]], Pending]:
        """Return the leaf before a loop, and the loop.

        What the body would wait for in every iteration is waited for once, before the loop. Waits
        that the body contains in any case are not repeated before it.
        """
        if tree.is_parallel(loop):
            return self._parallel(loop, before)
        matters = self._touched_by(loop)
        quiet = before.settled(matters)
        walked, after = super().loop(loop, quiet.pending())
        if quiet is before:
            return [*_made(before), walked], after
        loud, _ = super().loop(loop, before.pending())
        needed = before.settled(matters, self._pairs(loud) > self._pairs(walked))
        if needed.schedule() != quiet.schedule():
            again, end = super().loop(loop, needed.pending())
            if _scheduled(again) == _scheduled(walked):
                return [*_made(needed), walked], end
        return [*_made(quiet), walked], after

    def _parallel(
        self, loop: tree.For[LeafPlan], before: LeafWaits
    ) -> tuple[list[tree.Node[LeafWaits]], Pending]:
        """Return a parallel loop. Its units run separate iterations without waits; before and
        after the loop they wait for each other."""
        asked = before.settled(_everything)
        met = self._waiting({})
        met.barrier()
        made = tree.map_leaves(loop, self._per_unit_leaf)
        return [*_made(asked), made, *_made(met)], {}

    def _waiting(self, state: Pending) -> LeafWaits:
        """Return a leaf that contains nothing but waits."""
        return LeafWaits(NO_LEAF, state, self._setting, lambda name: True)

    def _leaf_waits(self, body: LeafPlan, state: Pending) -> LeafWaits:
        """Return a leaf with the waits that its items need after the pending accesses `state`."""
        number = self._numbers.setdefault(id(body), len(self._numbers))
        names = self._later(body)
        keep = (lambda name: True) if names is None else names.__contains__
        leaf = LeafWaits(number, state, self._setting, keep)
        for wave in body.waves:
            for placed in wave:
                leaf.append(placed, self._footprints(placed))
            leaf.close_wave()
        return leaf

    def _per_unit_leaf(self, body: LeafPlan) -> LeafWaits:
        """Return a leaf that each unit runs by itself."""
        leaf = LeafWaits(NO_LEAF, {}, self._setting, lambda name: False, publishes=False)
        for placed in body.placed:
            leaf.append(placed, ())
        return leaf

    def _pairs(self, node: tree.Node[LeafWaits]) -> NDArray[np.int64]:
        """Return [u, v]: the number of times unit u waits for unit v, in the text."""
        found = np.zeros((self._setting.units, self._setting.units), np.int64)
        return sum((leaf.pairs for leaf in tree.leaves(node)), start=found)

    def _footprints(self, placed: Placed) -> tuple[Footprint, ...]:
        """Return the footprints that other units may have to wait for."""
        if self._setting.units == 1:
            return ()
        made = self._setting.footprints.of(placed.item, placed.parts)
        return tuple(footprint for footprint in made if self._matters(footprint.buffer))

    def _matters(self, buffer: Buffer) -> bool:
        """False for lists that one unit alone accesses in functions: they are awaited after calls
        from `main`."""
        if not self._is_main and buffer.name in self._own.unit_of:
            return False
        return self._relevant(buffer)

    def key(self, state: Pending) -> Hashable:
        return frozenset((key, seen.tobytes()) for key, (_, seen) in state.items())

    def same(self, a: Pending, b: Pending) -> bool:
        return self.key(a) == self.key(b)

    def merge(self, a: Pending, b: Pending) -> Pending:
        merged = dict(a)
        for key, (touch, seen) in b.items():
            merged[key] = (touch, seen & merged[key][1]) if key in merged else (touch, seen)
        return merged

    def again(self, state: Pending, independent: tuple[Buffer, ...]) -> Pending:
        near = self._setting.memory.near
        alone = {buffer.name for buffer in independent if len(near(buffer.name)) == 1}
        return {key: one for key, one in state.items() if one[0].footprint.buffer.name not in alone}

    def rotate(self, state: Pending, pairs: tree.Rotation) -> Pending:
        names = tree.swaps(pairs)
        turned: dict[TouchKey, tuple[AccessRecord, Mask]] = {}
        for touch, seen in state.values():
            buffer = names.get(touch.footprint.buffer.name)
            if buffer is not None:
                touch = replace(touch, footprint=self._under(touch.footprint, buffer))
            turned[touch.key] = touch, seen
        return turned

    def _under(self, footprint: Footprint, buffer: Buffer) -> Footprint:
        """Return the renamed footprint; the same object each time, because conflicts are cached by
        identity."""
        key = id(footprint), buffer.name
        if key not in self._renamed:
            self._renamed[key] = footprint, footprint.under(buffer)
        return self._renamed[key][1]

    def _names(self, plan: LeafPlan) -> set[str]:
        """Return the names of the buffers that a leaf accesses, and of those that may share their
        memory."""
        names = {region.buffer.name for region in plan.regions}
        return {near for name in names for near in self._setting.memory.near(name)}

    def _touched_by(self, loop: Loop[LeafPlan]) -> Matters:
        """Return a predicate: True for an access outside the loop that may conflict with one
        inside."""
        reads: set[str] = set()
        writes: set[str] = set()
        for node in tree.walk(loop):
            if isinstance(node, tree.Call):
                return _everything
            writes.update(tree.swaps(tree.rotation(node)))
        for region in (region for plan in tree.leaves(loop) for region in plan.regions):
            (writes if region.write else reads).add(region.buffer.name)

        def matters(footprint: Footprint) -> bool:
            near = self._setting.memory.near(footprint.buffer.name)
            return not writes.isdisjoint(near) or (footprint.write and not reads.isdisjoint(near))

        return matters


def _everything(_: Footprint) -> bool:
    """True for every footprint."""
    return True


def _made(leaf: LeafWaits) -> list[tree.Node[LeafWaits]]:
    """Return the leaf in a list, empty if the leaf is."""
    return [] if leaf.is_empty else [tree.Leaf(leaf)]


def _scheduled(node: tree.Node[LeafWaits]) -> tree.Node[Schedule]:
    return tree.map_leaves(node, LeafWaits.schedule)
