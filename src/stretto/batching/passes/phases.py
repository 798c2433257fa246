"""Phases: the stages of a program, each of which runs for the whole batch before the next one.

    loop: ... %h = block 0(%x, %h)              loop: ... %h = block 0(%x, %h)
          append(%states, %h)                         append(%states, %h)
                                        =>      phase 1
    loop: ... %y = block 1(%h)                  loop: ... %y = block 1(%h)

Without a phase the second loop's block runs at as many depths as the first loop has steps, for a
few rows each; in a phase of its own all of its rows in a batch run as one. Changes: adds `Phase`
to the main function, between its stages: where operators begin to need what a recurrence of the
present phase has made. Needs: nothing; in a program with a `Phase` of its own (`stretto.phase()`)
they are numbered in the order of the program, and no others are added. Guarantees: the same values;
the numbers of phases rise along every way. (ACRoBat, section B.3.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.batching.passes.recurrences import Flow, Node, recurrent
from stretto.batching.passes.uses import all_assigned, all_used, with_bodies
from stretto.batching.program import (
    Body,
    Call,
    InstanceProgram,
    Phase,
    Remark,
    Return,
    Statement,
    Variable,
    place_of,
    walk,
)


@dataclass(frozen=True, slots=True)
class FindPhases:
    """finds: whether there are phases; otherwise those of the user are gone, too."""

    finds: bool = True
    name: ClassVar[str] = "phases"

    def apply(self, program: InstanceProgram) -> None:
        if any(isinstance(item, Phase) for f in program.functions for item in walk(f.body)):
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
                found.append(Phase(number))
                reason = "found: operators need what a recurrence before it has made"
                program.remarks.append(_begins(reason, main.body[place:]))
                stage = []
            found.append(statement)
            stage.append(statement)
        main.body = tuple(found)


def _begins(reason: str, body: Body) -> Remark:
    return Remark("a phase begins", reason, place_of(body), is_done=True)


def _number(program: InstanceProgram, keeps: bool) -> None:
    """Numbers the phases of the user in the order of the program, functions where they are first
    called; or takes them away."""
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
            if isinstance(statement, Phase):
                count += 1
                if keeps:
                    found.append(Phase(count))
                    reason = "asserted by `stretto.phase()`"
                    program.remarks.append(_begins(reason, statements[place:]))
                continue
            if isinstance(statement, Call):
                function(statement.function)
            found.append(with_bodies(statement, body))
        return tuple(found)

    for number in range(len(program.functions)):
        function(number)


def why_same_phase(
    program: InstanceProgram, stage: list[Statement], statement: Statement
) -> str | None:
    """Why a statement of the main function belongs to the phase of those before it, or None where
    it begins one."""
    if isinstance(statement, Return):
        return "it returns"
    made = {variable for item in stage for variable in all_assigned(item)}
    needed = made & all_used(statement)
    if not needed:
        return "it needs nothing of this phase"
    deep = recurrent(program, [tuple(stage)])
    flow = Flow(program)
    seeds: set[Node] = set()
    for variable in needed:
        nodes = {variable, *flow.reachable_cells(variable.type)}
        seeds |= {node for node in nodes if node in deep}
    if not seeds:
        return "what it needs of this phase depends on no recurrence"
    flow.add((statement,))
    reached = flow.reached(seeds)
    for item in flow.operators_seen:
        operands = item.operands
        if any(isinstance(v, Variable) and v in reached for v in operands):
            return None
    return "no operator of it needs a recurrent value of this phase"
