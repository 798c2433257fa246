"""Inputs that a program changes where they lie, instead of giving their new values as results.

A user's tensor that is changed in place is an input, and its new value a result, which is copied
back when the run has ended: a run that stops has written to nothing of the user's. Who owns the
memory, and makes it anew where a run has stopped, saves the copies: the result then lies in the
memory of the input, and what a loop or a statement does to it in place it does there.
"""

from __future__ import annotations

from stretto.errors import CodegenError
from stretto.ir.core import Program

Updates = tuple[tuple[int, int], ...]
"""Pairs of a parameter of main and the result whose memory is the parameter's."""


def check_updates(program: Program, updates: Updates) -> None:
    """Raises CodegenError where a result cannot lie in the memory of a parameter."""
    params, results = program.main.params, program.main.body.yields
    for numbers in zip(*updates, strict=True):
        if len(set(numbers)) < len(numbers):
            raise CodegenError("a parameter or a result is named twice among the updates")
    for parameter, number in updates:
        if not (0 <= parameter < len(params) and 0 <= number < len(results)):
            raise CodegenError(f"there is no parameter {parameter} or no result {number}")
        if params[parameter].type != results[number].type:
            raise CodegenError(
                f"result {number}, {results[number].type}, cannot lie in the memory of parameter "
                f"{parameter}, {params[parameter].type}"
            )
