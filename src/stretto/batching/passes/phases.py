"""Phases: stages of a program, each of which runs for the whole batch before the next one.

    loop: ... %h = block 0(%x, %h)              loop: ... %h = block 0(%x, %h)
          append(%states, %h)                         append(%states, %h)
                                        =>      phase 1
    loop: ... %y = block 1(%h)                  loop: ... %y = block 1(%h)

Without a phase the second loop's block runs at as many depths as the first loop has steps, with
a few rows each; in a separate phase all of its rows in a batch run as one. Changes: adds
`PhaseStatement` to the main function, between its stages: where operators first need the result of
a recurrence of the current phase. Needs: nothing; if the program has phases of the user
(`stretto.phase()`), they are numbered in program order, and no others are added. Guarantees:
the same values; the numbers of phases increase along every path. (ACRoBat, section B.3.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.batching.instance_program import (
    Body,
    CallStatement,
    InstanceProgram,
    PassRemark,
    PhaseStatement,
    ReturnStatement,
    Statement,
    Variable,
    first_location,
    walk,
)
from stretto.batching.passes.recurrences import DataFlowGraph, Node, recurrent
from stretto.batching.passes.uses import all_assigned, all_used, with_bodies
from stretto.components import reachable


@dataclass(frozen=True, slots=True)
class FindPhases:
    """finds: add phases; if False, even those of the user are removed."""

    finds: bool = True
    name: ClassVar[str] = "phases"

    def apply(self, program: InstanceProgram) -> None:
        if any(
            isinstance(item, PhaseStatement) for f in program.functions for item in walk(f.body)
        ):
            _number(program, self.finds)
        elif self.finds:
            self._find(program)

    def _find(self, program: InstanceProgram) -> None:
        main = program.functions[0]
        found: list[Statement] = []
        stage: list[Statement] = []
        number = 0
        for place, statement in enumerate(main.body):
            if stage and why_same_phase(program, stage, statement) is None:
                number += 1
                found.append(PhaseStatement(number))
                reason = "found: operators need what a recurrence before it has made"
                program.remarks.append(_begins(reason, main.body[place:]))
                stage = []
            found.append(statement)
            stage.append(statement)
        main.body = tuple(found)


def _begins(reason: str, body: Body) -> PassRemark:
    return PassRemark("a phase begins", reason, first_location(body), is_done=True)


def _number(program: InstanceProgram, keeps: bool) -> None:
    """Number the user's phases in program order, those of a function where it is first called;
    remove them if not `keeps`."""
    seen: set[int] = set()
    count = 0

    def function(number: int) -> None:
        if number not in seen:
            seen.add(number)
            program.functions[number].body = body(program.functions[number].body)

    def body(statements: Body) -> Body:
        nonlocal count
        found: list[Statement] = []
        for place, statement in enumerate(statements):
            if isinstance(statement, PhaseStatement):
                count += 1
                if keeps:
                    found.append(PhaseStatement(count))
                    reason = "asserted by `stretto.phase()`"
                    program.remarks.append(_begins(reason, statements[place:]))
                continue
            if isinstance(statement, CallStatement):
                function(statement.function)
            found.append(with_bodies(statement, body))
        return tuple(found)

    for number in range(len(program.functions)):
        function(number)


def why_same_phase(
    program: InstanceProgram, stage: list[Statement], statement: Statement
) -> str | None:
    """Return why a statement of the main function belongs to the phase of `stage`, the statements
    before it; None if it begins a new phase."""
    if isinstance(statement, ReturnStatement):
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
        operands = item.operands
        if any(isinstance(v, Variable) and v in reached for v in operands):
            return None
    return "no operator of it needs a recurrent value of this phase"
