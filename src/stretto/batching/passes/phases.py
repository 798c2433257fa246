"""Phases: stages of a program, each of which runs for the whole batch before the next one.

    loop: ... %h = record 0(%x, %h)             loop: ... %h = record 0(%x, %h)
          append(%states, %h)                         append(%states, %h)
                                        =>      phase 1
    loop: ... %y = record 1(%h)                 loop: ... %y = record 1(%h)

Without a phase the second loop's block runs at as many depths as the first loop has steps, with
a few rows each; in a separate phase all of its rows in a batch run as one. Changes: adds
`PhaseOp` to the main function, between its stages: where operators first need the result of
a recurrence of the current phase. Needs: nothing; if the program has phases of the user
(`stretto.phase()`), they are numbered in program order, and no others are added. Guarantees:
the same values; the numbers of phases increase along every path. (ACRoBat, section B.3.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.batching.instance_program import (
    Body,
    InstanceProgram,
    PassRemark,
    first_location,
)
from stretto.batching.passes.recurrences import DataFlowGraph, Node, recurrent
from stretto.batching.passes.uses import all_assigned, all_used, with_bodies
from stretto.components import reachable
from stretto.ir.core import Op, Variable
from stretto.ir.data import InvokeOp, PhaseOp, ReturnOp


@dataclass(frozen=True, slots=True)
class FindPhases:
    """finds: add phases; if False, even those of the user are removed."""

    finds: bool = True
    name: ClassVar[str] = "phases"

    def apply(self, program: InstanceProgram) -> None:
        if any(isinstance(item, PhaseOp) for item in program.walk()):
            _number(program, self.finds)
        elif self.finds:
            self._find(program)

    def _find(self, program: InstanceProgram) -> None:
        main = program.main
        found: list[Op] = []
        stage: list[Op] = []
        number = 0
        for place, statement in enumerate(main.body.ops):
            if stage and why_same_phase(program, stage, statement) is None:
                number += 1
                found.append(PhaseOp(number))
                reason = "found: operators need what a recurrence before it has made"
                program.notes.append(_begins(reason, main.body.ops[place:]))
                stage = []
            found.append(statement)
            stage.append(statement)
        main.body.ops = found


def _begins(reason: str, body: Body) -> PassRemark:
    return PassRemark("a phase begins", reason, first_location(body), is_done=True)


def _number(program: InstanceProgram, keeps: bool) -> None:
    """Number the user's phases in program order, those of a function where it is first called;
    remove them if not `keeps`."""
    seen: set[str] = set()
    count = 0

    def function(name: str) -> None:
        if name not in seen:
            seen.add(name)
            block = program.functions[name].body
            block.ops = list(body(block.ops))

    def body(statements: Body) -> Body:
        nonlocal count
        found: list[Op] = []
        for place, statement in enumerate(statements):
            if isinstance(statement, PhaseOp):
                count += 1
                if keeps:
                    found.append(PhaseOp(count))
                    reason = "asserted by `stretto.phase()`"
                    program.notes.append(_begins(reason, statements[place:]))
                continue
            if isinstance(statement, InvokeOp):
                function(statement.function)
            found.append(with_bodies(statement, body))
        return tuple(found)

    for name in program.functions:
        function(name)


def why_same_phase(program: InstanceProgram, stage: list[Op], statement: Op) -> str | None:
    """Return why a statement of the main function belongs to the phase of `stage`, the statements
    before it; None if it begins a new phase."""
    if isinstance(statement, ReturnOp):
        return "it returns"
    made = {variable for item in stage for variable in all_assigned(item)}
    needed = made & all_used(statement)
    if not needed:
        return "it needs nothing of this phase"
    deep = recurrent(program, [tuple(stage)])
    flow = DataFlowGraph(program)
    seeds: set[Node] = set()
    for variable in needed:
        nodes = {variable, *flow.reachable_cells(variable.type)}
        seeds |= {node for node in nodes if node in deep}
    if not seeds:
        return "what it needs of this phase depends on no recurrence"
    flow.add((statement,))
    reached = reachable(seeds, flow.edges)
    for item in flow.operators_seen:
        operands = item.inputs
        if any(isinstance(v, Variable) and v in reached for v in operands):
            return None
    return "no operator of it needs a recurrent value of this phase"
