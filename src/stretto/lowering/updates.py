"""Inputs that a program changes where they lie, instead of giving their new values as results.

A user's tensor that is changed in place is an input, and its new value a result, which is copied
back when the run has ended: a run that stops has written to nothing of the user's. Who owns the
memory, and makes it anew where a run has stopped, saves the copies: the result then lies in the
memory of the input, and what a loop or a statement does to it in place it does there.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import CodegenError
from stretto.ir.core import Program


@dataclass(frozen=True, slots=True)
class Updates:
    """pairs: a parameter of main, and the result whose memory is the parameter's. Callers go on
    with what a call returns: where an address does not suit the machine (a GPU wants it aligned),
    the result lies in a copy.

    repeatable: to run the program on what an unfinished run of it has left gives the same results
    as to run it once, as where each row of a pool is written once, and is read only behind that.
    Then a machine may begin anew: where a list is full, where frames of a recursion need more
    memory, where another process has the cores. What is not repeatable must do without lists that
    grow and without functions, and waits for its cores however long that takes.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    repeatable: bool = False


NO_UPDATES = Updates()


def check_updates(program: Program, updates: Updates) -> None:
    """Raises CodegenError where a result cannot lie in the memory of a parameter."""
    params, results = program.main.params, program.main.body.yields
    for numbers in zip(*updates.pairs, strict=True):
        if len(set(numbers)) < len(numbers):
            raise CodegenError("a parameter or a result is named twice among the updates")
    for parameter, number in updates.pairs:
        if not (0 <= parameter < len(params) and 0 <= number < len(results)):
            raise CodegenError(f"there is no parameter {parameter} or no result {number}")
        if params[parameter].type != results[number].type:
            raise CodegenError(
                f"result {number}, {results[number].type}, cannot lie in the memory of parameter "
                f"{parameter}, {params[parameter].type}"
            )
