"""Prove that no two conflicting accesses are unordered, on every path through a function's tree.

If the source of a leaf is known, accesses to one buffer must also have the order of the source.

An access that some unit may not know to be finished is *pending*, with the set of units that know.
Pending accesses are propagated through the tree: around loops to a fixpoint, through both arms of a
branch. Each access in a leaf is compared with the pending ones and with those of other units in the
leaf. Accesses of one kind by one kernel in one leaf are handled together, as arrays; those to
memory that is not accessed later are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.components import reachable
from stretto.device.analyses import BufferNames, compose, later_names
from stretto.device.boxes import Boxes, Mask
from stretto.device.expr import Buffer
from stretto.device.flow import Facts, Loop
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Run, Schedule
from stretto.device.regions import Region, written_buffers
from stretto.device.runs import call_graph, functions_in_parallel_loops
from stretto.device.tree import (
    Call,
    Node,
    Rotation,
    Tree,
    TreeFunction,
    calls,
    is_parallel,
    leaves,
    renamed,
    swaps,
    walk,
)
from stretto.device.verifier.conformance import Origins, what_of
from stretto.device.verifier.ordering import Orders
from stretto.device.verifier.places import FramePlaces
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError

Numbers = NDArray[np.int64]


L = TypeVar("L")


# ---- Memory that a program changes: accesses to memory that is never written need no order.


def written_externals(tree: Tree[L], kernels: Iterable[Kernel]) -> frozenset[str]:
    """Return the names of the external buffers that kernels write, directly or as a function's
    param."""
    buffers = [buffer for kernel in kernels for buffer in written_buffers(kernel)]
    for function in tree.functions:
        for call in calls(function.body):
            written = tree.function(call.function).written
            buffers.extend(access.buffer for param, access in call.tensors if param in written)
    return frozenset(b.name for b in buffers if b.kind not in ("local", "items", "param"))


def relevance(
    tree: Tree[L], kernels: Iterable[Kernel]
) -> Callable[[TreeFunction[L]], Callable[[Region], bool]]:
    """Return, for each function, a predicate on regions: True if an access to the region can be
    part of a conflict."""
    written = written_externals(tree, kernels)
    still = _constant_params(tree, written)

    def of(function: TreeFunction[L]) -> Callable[[Region], bool]:
        return lambda region: not _is_never_written(region.buffer, still[function.name], written)

    return of


def _is_never_written(buffer: Buffer, params: set[str], written: frozenset[str]) -> bool:
    match buffer.kind:
        case "local" | "items":
            return False
        case "param":
            return buffer.name in params
        case _:
            return buffer.name not in written


def _constant_params(tree: Tree[L], written: frozenset[str]) -> dict[str, set[str]]:
    """Return for each function the params that are bound only to memory that is never written."""
    still = {f.name: {p.name for p in f.tensors if p not in f.written} for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            for call in calls(function.body):
                for param, access in call.tensors:
                    if param.name in still[call.function] and not _is_never_written(
                        access.buffer, still[function.name], written
                    ):
                        still[call.function].discard(param.name)
                        changed = True
    return still


# ---- Lists that only one unit accesses in the functions that are called.
#
# Accesses to these may be pending when a function is called or returns: only `main` can race with
# them. `races` checks what `main` does after the call.


Relevant = Callable[[Region], bool]


def own_lists(program: DeviceProgram, touched: ItemRegions) -> frozenset[str]:
    """Return the names of the lists that in all functions but `main` a single unit accesses,
    always the same one, and under this name only."""
    units: dict[str, set[int]] = {}
    shared: set[str] = set()
    for function in program.tree.functions:
        shared.update(b.name for node in walk(function.body) for b in renamed(node))
        if function.name != "main":
            for schedule in leaves(function.body):
                for name, unit in _accesses(schedule, touched):
                    units.setdefault(name, set()).add(unit)
    return frozenset(name for name, own in units.items() if len(own) == 1) - shared


@dataclass(frozen=True, slots=True)
class OwnListCalls:
    """Accesses pending after a call from `main`: those of the reachable functions to the lists
    named in `own`."""

    program: DeviceProgram
    own: frozenset[str]

    def schedules(self, function: str) -> Iterator[Schedule]:
        """Yield the leaves that a call of a function may reach."""
        functions = self.program.tree.functions
        names = reachable((function,), call_graph(functions))
        for one in functions:
            if one.name in names:
                yield from leaves(one.body)


def excluding_lists(own: frozenset[str], relevant: Relevant) -> Relevant:
    """Return a predicate for regions that are relevant and not of the lists of these names."""
    return lambda region: region.buffer.name not in own and relevant(region)


def _accesses(schedule: Schedule, touched: ItemRegions) -> set[tuple[str, int]]:
    return {
        (region.buffer.name, unit)
        for unit, items in enumerate(schedule.units)
        for item in items
        for region in touched.regions(item)
        if region.buffer.kind == "list"
    }


# ---- Pending accesses.


def check_races(
    program: DeviceProgram,
    places: Mapping[str, FramePlaces],
    orders: Orders,
    touched: ItemRegions,
    origins: Origins,
) -> None:
    """Raise VerifyError for two conflicting accesses that nothing orders. Functions that parallel
    loops call are left out: each unit runs them without the others."""
    relevant = relevance(program.tree, program.kernels)
    alone = functions_in_parallel_loops(program.tree)
    own = own_lists(program, touched)
    for function in program.tree.functions:
        if function.name in alone:
            continue
        calls, matters = None, relevant(function)
        if function.name == "main":
            calls = OwnListCalls(program, own)
        else:
            matters = excluding_lists(own, matters)
        finder = RaceFinder(places[function.name], matters, orders, touched, origins, calls)
        finder.check(function.body, function.name)


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """The accesses of kernel or statement `what` to one buffer in one leaf.

    Row r: unit units[r] accesses region r of `boxes`, as item indices[r] of its list.
    `number` identifies these accesses in the function; `place` is the position of the item
    in the source of the leaf.
    """

    number: int
    what: str
    kernel: str | None
    place: int | None
    units: Numbers
    indices: Numbers
    boxes: Boxes

    @property
    def name(self) -> str:
        return self.boxes.buffer.name

    @property
    def key(self) -> tuple[int, str]:
        """Key of the accesses under the buffer's present name."""
        return self.number, self.name


Pending = Mapping[tuple[int, str], tuple[Accesses, Mask]]
"""Accesses with a mask [r, u]: True if unit u knows that access r is finished."""


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """Accesses and knowledge of a leaf. lasting[g]: group g as other leaves see it, where
    registers may have changed. done[g][r, v]: number of items of unit v that are finished when
    access r of group g begins. start[g][r, v]: True if its unit then knows all that unit v knew
    at the start. end_done, end_start: the same at the end of the leaf, by unit."""

    groups: tuple[Accesses, ...]
    lasting: tuple[Accesses, ...]
    done: tuple[NDArray[np.int32], ...]
    start: tuple[Mask, ...]
    end_done: NDArray[np.int32]
    end_start: Mask


class RaceFinder(Facts[Schedule, Pending]):
    """A race analysis of one function. `relevant`: True for regions that can be part of a race
    (memory that is never written cannot). calls: in `main`, the accesses pending after calls."""

    def __init__(
        self,
        places: FramePlaces,
        relevant: Callable[[Region], bool],
        orders: Orders,
        touched: ItemRegions,
        origins: Origins,
        calls: OwnListCalls | None = None,
    ) -> None:
        super().__init__()
        self._calls = calls
        self._after_call: dict[str, Pending] = {}
        self._origins = origins
        self._places = places
        self._relevant = relevant
        self._orders = orders
        self._touched = touched
        self._leaves: dict[int, _Leaf] = {}
        self._number = 0
        self._later: Callable[[Schedule], BufferNames | None] = lambda schedule: None
        # The accesses are stored with the result, so that their ids are not reused.
        self._met: dict[tuple[int, int], tuple[Accesses, Accesses, Mask]] = {}
        self._renamed: dict[tuple[int, str], tuple[Accesses, Accesses]] = {}
        self._apart: dict[int, Pending] = {}

    def check(self, body: Node[Schedule], name: str) -> None:
        """Raise VerifyError for a race, or for an access pending when a function returns."""
        self._later = later_names(body, self._names, returns=name != "main")
        pending = self.end(body, {})
        if name != "main":
            self._require_none_pending(pending, f"function {name} returns")

    def _names(self, schedule: Schedule) -> set[str]:
        """Return the names of the buffers that a leaf accesses, and of those that may share their
        memory."""
        regions = [r for name in schedule.kernels for r in self._touched.kernel(name)]
        for item in schedule.statements:
            regions += self._touched.regions(item)
        names = {region.buffer.name for region in regions}
        return {near for name in names for near in self._places.near(name)}

    def call(self, call: Call[Schedule], state: Pending) -> tuple[Node[Schedule], Pending]:
        self._require_none_pending(state, f"function {call.function} is called")
        return call, self._pending_after_call(call.function)

    def _pending_after_call(self, function: str) -> Pending:
        """Return accesses that one unit alone made in called functions and that other units need
        not know to be finished."""
        if self._calls is None or not self._calls.own:
            return {}
        if function not in self._after_call:
            pending: dict[tuple[int, str], tuple[Accesses, Mask]] = {}
            for schedule in self._calls.schedules(function):
                for accesses in self._groups(schedule):
                    if accesses.name in self._calls.own:
                        _add_pending(pending, _lasting(accesses), _own_only(accesses, schedule))
            self._after_call[function] = pending
        return self._after_call[function]

    def loop(self, node: Loop[Schedule], state: Pending) -> tuple[Node[Schedule], Pending]:
        """Handle parallel loops. Units run their iterations in any order, so nothing may be
        pending before them; after them each unit knows only of its own accesses. (`parallel`
        checks iterations against each other.)"""
        if not is_parallel(node):
            return super().loop(node, state)
        self._require_none_pending(state, "a parallel loop begins")
        if id(node) not in self._apart:
            pending: dict[tuple[int, str], tuple[Accesses, Mask]] = {}
            for schedule in leaves(node.body):
                for accesses in self._groups(schedule):
                    _add_pending(pending, _lasting(accesses), _own_only(accesses, schedule))
            self._apart[id(node)] = pending
        return node, self._apart[id(node)]

    def same(self, a: Pending, b: Pending) -> bool:
        return a.keys() == b.keys() and all(
            np.array_equal(seen, b[key][1]) for key, (_, seen) in a.items()
        )

    def merge(self, a: Pending, b: Pending) -> Pending:
        merged = dict(a)
        for accesses, seen in b.values():
            _add_pending(merged, accesses, seen)
        return merged

    def _require_none_pending(self, pending: Pending, when: str) -> None:
        for accesses, seen in pending.values():
            row = int((~seen).any(axis=1).argmax())
            raise VerifyError(
                f"{accesses.what} of unit {accesses.units[row]} may still access "
                f"{accesses.name} when {when}"
            )

    # ---- leaves --------------------------------------------------------------------------------
    def after(self, body: Schedule, state: Pending) -> Pending:
        if id(body) not in self._leaves:
            self._leaves[id(body)] = self._leaf_facts(body)
            self._check_inside(self._leaves[id(body)])
        leaf = self._leaves[id(body)]
        self._check_against(leaf, state)
        return self._after(leaf, state, self._later(body))

    def _leaf_facts(self, schedule: Schedule) -> _Leaf:
        order = self._orders(schedule)
        groups = tuple(self._groups(schedule))
        places = [list(zip(g.units.tolist(), g.indices.tolist(), strict=True)) for g in groups]
        return _Leaf(
            groups,
            tuple(map(_lasting, groups)),
            tuple(np.array([order.before[u][i].done for u, i in rows]) for rows in places),
            tuple(np.array([order.before[u][i].start for u, i in rows]) for rows in places),
            np.array([knowledge.done for knowledge in order.end]),
            np.array([knowledge.start for knowledge in order.end]),
        )

    def _groups(self, schedule: Schedule) -> Iterator[Accesses]:
        origin = self._origins.get(id(schedule))
        found: dict[
            tuple[tuple[str, str | None, int | None], object], list[tuple[int, int, Region]]
        ] = {}
        for unit, items in enumerate(schedule.units):
            places = [None] * len(items) if origin is None else origin.places(items)
            for index, (item, place) in enumerate(zip(items, places, strict=True)):
                for region in self._touched.regions(item):
                    if self._relevant(region):
                        kernel = item.kernel if isinstance(item, Run) else None
                        key = what_of(item), kernel, place
                        found.setdefault((key, region.kind), []).append((unit, index, region))
        for ((what, kernel, place), _), rows in found.items():
            self._number += 1
            units, indices = np.array([(unit, index) for unit, index, _ in rows], np.int64).T
            boxes = Boxes.of([region for _, _, region in rows])
            yield Accesses(self._number, what, kernel, place, units, indices, boxes)

    def _after(self, leaf: _Leaf, pending: Pending, later: BufferNames | None) -> Pending:
        """Return the accesses pending at the end of a leaf, to memory that is accessed later."""
        after: dict[tuple[int, str], tuple[Accesses, Mask]] = {}
        told = leaf.end_start.T
        for accesses, seen in pending.values():
            if later is None or accesses.name in later:
                _add_pending(after, accesses, seen | compose(seen, told))
        for accesses in leaf.lasting:
            if later is None or accesses.name in later:
                seen = accesses.indices[:, None] < leaf.end_done[:, accesses.units].T
                seen[np.arange(len(seen)), accesses.units] = True
                _add_pending(after, accesses, seen)
        return after

    # ---- conflicts -----------------------------------------------------------------------------
    def _check_inside(self, leaf: _Leaf) -> None:
        """Check the accesses of one leaf against each other, including those of one kernel by
        several units."""
        before: dict[str, list[int]] = {}
        for number, a in enumerate(leaf.groups):
            before.setdefault(a.name, []).append(number)
            for name in self._places.near(a.name):
                for other in before.get(name, ()):
                    b = leaf.groups[other]
                    if not (a.boxes.write or b.boxes.write):
                        continue
                    if a.what == b.what and a.name == b.name and self._are_apart(a):
                        continue
                    unordered = self._conflicts(a, b)
                    if not unordered.any():
                        continue
                    first = b.indices[None, :] < leaf.done[number][:, b.units]
                    second = a.indices[:, None] < leaf.done[other][:, a.units].T
                    self._require_none(a, b, unordered & ~_in_order(a, b, first, second))

    def _are_apart(self, a: Accesses) -> bool:
        """Return True if tasks of the kernel touch different elements of the buffer, whatever the
        grid is."""
        return a.kernel is not None and a.name in self._touched.apart(a.kernel)

    def _check_against(self, leaf: _Leaf, pending: Pending) -> None:
        """Check the accesses of a leaf against those pending from earlier leaves."""
        before: dict[str, list[tuple[Accesses, Mask]]] = {}
        for b, seen in pending.values():
            before.setdefault(b.name, []).append((b, seen))
        for number, a in enumerate(leaf.groups):
            for name in self._places.near(a.name):
                for b, seen in before.get(name, ()):
                    if not (a.boxes.write or b.boxes.write):
                        continue
                    met = self._conflicts(a, b)
                    if met.any():
                        self._require_none(a, b, met & ~compose(leaf.start[number], seen.T))

    def _require_none(self, a: Accesses, b: Accesses, races: Mask) -> None:
        races &= a.units[:, None] != b.units[None, :]
        if races.any():
            ours, theirs = (int(rows[0]) for rows in np.nonzero(races))
            names = " and ".join(dict.fromkeys((b.name, a.name)))
            raise VerifyError(
                f"race on {names}: nothing orders {b.what} on unit {b.units[theirs]} "
                f"and {a.what} on unit {a.units[ours]}"
            )

    def _conflicts(self, a: Accesses, b: Accesses) -> Mask:
        """Return a mask [r, s]: True if access r of `a` and access s of `b` may touch the same
        memory."""
        key = id(a), id(b)
        if key not in self._met:
            if a.name == b.name:
                met = a.boxes.overlap(b.boxes)
            else:
                met = self._places.share(a.boxes, b.boxes)
            self._met[key] = a, b, met
        return self._met[key][2]

    def again(self, state: Pending, independent: tuple[Buffer, ...]) -> Pending:
        """Drop accesses to independent buffers: which elements iterations access depends on data,
        so the loop's declaration is trusted. Not for buffers that share memory with others."""
        alone = {buffer.name for buffer in independent if len(self._places.near(buffer.name)) == 1}
        return {key: found for key, found in state.items() if found[0].name not in alone}

    def rotate(self, state: Pending, pairs: Rotation) -> Pending:
        """Return the accesses under the names that their buffers have in the next iteration."""
        names = swaps(pairs)
        turned: dict[tuple[int, str], tuple[Accesses, Mask]] = {}
        for accesses, seen in state.values():
            if accesses.name in names:
                accesses = self._under(accesses, names[accesses.name])
            turned[accesses.key] = accesses, seen
        return turned

    def _under(self, accesses: Accesses, buffer: Buffer) -> Accesses:
        """Return the accesses under another buffer: the same object each time, since conflicts are
        cached by identity."""
        key = id(accesses), buffer.name
        if key not in self._renamed:
            renamed = replace(accesses, boxes=accesses.boxes.under(buffer))
            self._renamed[key] = accesses, renamed
        return self._renamed[key][1]


def _own_only(accesses: Accesses, schedule: Schedule) -> Mask:
    """Return the mask in which each unit knows of its own accesses only."""
    seen = np.zeros((len(accesses.units), len(schedule.units)), np.bool_)
    seen[np.arange(len(seen)), accesses.units] = True
    return seen


def _lasting(accesses: Accesses) -> Accesses:
    boxes = accesses.boxes.lasting()
    return accesses if boxes is accesses.boxes else replace(accesses, boxes=boxes)


def _in_order(a: Accesses, b: Accesses, first: Mask, second: Mask) -> Mask:
    """Return which accesses are ordered as in the source, or in any order without one. `first`: b
    before a; `second`: a before b."""
    if a.name != b.name or a.place is None or b.place is None or a.place == b.place:
        return first | second
    return first if b.place < a.place else second


def _add_pending(
    pending: dict[tuple[int, str], tuple[Accesses, Mask]], accesses: Accesses, seen: Mask
) -> None:
    key = accesses.key
    if not seen.all():
        pending[key] = accesses, (seen & pending[key][1] if key in pending else seen)
