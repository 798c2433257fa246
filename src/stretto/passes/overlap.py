"""Software pipelining: what stands before and behind a recurrence overlaps with other iterations.

An iteration computes something from its index alone, then the recurrence, then something from its
result, each after the other. In the new loop the recurrence of one iteration runs beside what the
next one needs and beside what the last one gives: these are stages that run a step behind each
other, as layers do (`skew`; Rau and Glaeser, "Some Scheduling Techniques and an Easily Schedulable
Horizontal Architecture", 1981). What can run for all iterations at once has already left the loop
(`batch_loops`, `distribute`); here is what cannot.

Changes: `for` loops whose products wait for each other in an iteration more often than from one to
the next, where the machine's costs say that it pays. Needs: loops batched and skewed. Guarantees:
what `skew` guarantees; values that flow between stages have a static shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Program
from stretto.ir.ops import ForOp, ListPushOp
from stretto.ir.rewrite import all_blocks
from stretto.ir.types import ListType
from stretto.passes.analyses.loops import LoopDependence, Node, loop_dependence, normalise
from stretto.passes.distribute import Part, Planner, distribute
from stretto.passes.manager import Target
from stretto.passes.skew import skew
from stretto.passes.skew_plan import (
    Group,
    Surroundings,
    find_groups,
    loop_products,
    step_seconds,
    why_not,
)
from stretto.text import seconds_text

BEFORE, RECURRENCE, BEHIND = range(3)


@dataclass(frozen=True, slots=True)
class Overlap:
    """target: decides whether it pays; it does not where none is known. always: it does."""

    target: Target | None = None
    always: bool = False
    name: ClassVar[str] = "overlap"

    def apply(self, program: Program) -> bool:
        changed = False
        for function in program.functions.values():
            for block in list(all_blocks(function.body)):
                for loop in [op for op in block.ops if isinstance(op, ForOp)]:
                    reason = self._loop(loop, block, function.body)
                    changed |= reason is None
                    if reason is not None:
                        program.remarks.decline(self.name, "for", reason, loop.location)
        return changed

    def _loop(self, loop: ForOp, block: Block, body: Block) -> str | None:
        """Puts stages in the place of a loop, or says why not."""
        if any(op.blocks for op in loop.body.ops):
            return "its iteration has control flow"
        normalise(loop)
        reason = why_not(loop, Surroundings.of(body))
        if reason is not None:
            return reason
        parts = stages(loop)
        if isinstance(parts, str):
            return parts
        reason = self._why_not(loop, parts)
        if reason is not None:
            return reason
        apart = Block((), distribute(loop, parts))
        place = block.ops.index(loop)
        block.ops[place : place + 1] = apart.ops
        end = place + len(apart.ops)
        groups = [
            one for one in find_groups(apart, Surroundings.of(body)) if isinstance(one, Group)
        ]
        if len(groups) != 1 or len(groups[0].stages) != len(parts):
            block.ops[place:end] = [loop]
            return "its stages read more of each other than one step"
        del block.ops[place:end]
        skew(groups[0], apart, body)
        block.ops[place:place] = apart.ops
        return None

    def _why_not(self, loop: ForOp, parts: tuple[Part, ...]) -> str | None:
        if self.always:
            return None
        if self.target is None:
            return "no machine is known"
        if self.target.is_alone:
            return "one unit waits for nobody"
        costs = self.target.costs
        whole = loop_products(loop.body.ops, loop, costs)
        chain = max(
            loop_products([op for op in loop.body.ops if op in part.ops], loop, costs).chain
            for part in parts
        )
        trips = costs.size(loop.trips() or costs.unknown_trips)
        before = trips * step_seconds(whole, self.target)
        after = (trips + len(parts) - 1) * step_seconds(whole.with_chain(chain), self.target)
        if after < before:
            return None
        times = f"{seconds_text(before)}, in stages {seconds_text(after)}"
        return f"as it is it takes {times}, as estimated"


def stages(loop: ForOp) -> tuple[Part, ...] | str:
    """What stands before the recurrences of a loop, they themselves, and what stands behind."""
    dependence = loop_dependence(loop)
    place = _places(loop, dependence)
    planner = Planner(loop, dependence)
    planner.find_repeated()
    used = sorted({place[op] for op in loop.body.ops if op not in planner.repeated})
    if len(used) < 2:
        return "it has nothing but a recurrence"
    number = {kind: position for position, kind in enumerate(used)}
    for node, kind in place.items():
        if node not in planner.repeated:
            planner.loop_of[node] = number.get(kind, 0)
    planner.count = len(used)
    planner.join_lists()
    if planner.count < 2:
        return "a list would have to flow from one stage to the other"
    return planner.parts()


def _places(loop: ForOp, dependence: LoopDependence) -> dict[Node, int]:
    """Where each op and each carried value belongs: behind, if it needs a recurrence and none needs
    it; with the recurrences, if it is one or stands between two. A list goes where its items are
    made: that it grows is no recurrence."""
    lists = {
        node
        for node in dependence.component_of
        if (isinstance(node, ListPushOp) and node.list in loop.carried)
        or (node in loop.carried and isinstance(node.type, ListType))
    }
    recurrent = {
        node
        for node in dependence.component_of
        if dependence.is_recurrent(node) and node not in lists
    }
    needing, needed = set(recurrent), set(recurrent)
    for component in dependence.components:
        read = {dependence.maker[value] for node in component for value in dependence.reads[node]}
        if not needing.isdisjoint(read):
            needing.update(component)
    for component in reversed(dependence.components):
        if not needed.isdisjoint(component):
            read = (value for node in component for value in dependence.reads[node])
            needed.update(dependence.maker[value] for value in read)
    return {
        node: BEFORE if node not in needing else RECURRENCE if node in needed else BEHIND
        for node in dependence.component_of
    }
