"""Operators on rows of several values, which may differ in how many rows they have.

Rows are a tensor whose first size the instance decides. Where two that an operator takes are
equally many, it goes on with them. Where one has a single row, it is a tensor of that size, as
torch broadcasts it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Value
from stretto.batching.frontend.tensors.calls import Called, fail, length, results, stands_for
from stretto.batching.frontend.tensors.results import LENGTH, OTHER_LENGTH, error_of_lengths
from stretto.batching.program import Input, Literal, Operand
from stretto.batching.types import RowsType, Scalar


def combined(frame: Frame, call: Called, equal: frozenset[int] = frozenset()) -> Value:
    """The value of a call. equal: the numbers of operands that are as many rows as the first."""
    rows = call.rows()
    known = stands_for(frame, call.operands[rows[0]]) if rows else None
    others = [
        number
        for number in rows[1:]
        if number not in equal and stands_for(frame, call.operands[number]) is not known
    ]
    if not others:
        return results(frame, call)
    first, other = rows[0], others[0]
    mine, theirs = (length(frame, call.operands[number]) for number in (first, other))

    def are_unequal() -> Value:
        return _if_one(
            frame,
            theirs,
            lambda: combined(frame, _with_one_row(frame, call, other), equal),
            lambda: _if_one(
                frame,
                mine,
                lambda: combined(frame, _with_one_row(frame, call, first)),
                lambda: _unequal(frame, call, first, other),
            ),
        )

    test = frame.assign("eq", Scalar.BOOL, mine, theirs)
    return either(frame, test.operand, lambda: combined(frame, call, equal | {other}), are_unequal)


def _if_one(
    frame: Frame, count: Operand, then: Callable[[], Value], orelse: Callable[[], Value]
) -> Value:
    return either(frame, frame.assign("eq", Scalar.BOOL, count, Literal(1)).operand, then, orelse)


def _with_one_row(frame: Frame, call: Called, number: int) -> Called:
    """The call with rows that are one, as a tensor of known size."""
    rows = call.operands[number]
    assert isinstance(rows.type, RowsType)
    row = frame.assign("at", rows.type.row, rows.operand, Literal(0))
    made = results(frame, Called(torch.unsqueeze, (Input(0), 0), (), (row,)))
    assert isinstance(made, Dynamic)
    return call.with_operand(number, made)


def _unequal(frame: Frame, call: Called, first: int, other: int) -> Value:
    """The end of the way where there are no other numbers of rows that go together."""
    types = [operand.type for operand in call.operands]
    error = error_of_lengths(call.function, call.args, call.kwargs, types, other)
    if error is None:
        frame.refuse(
            f"{call.name} takes tensors of different numbers of rows, which instances decide",
            "go through the rows in a loop",
        )
    tried = [(str(LENGTH), call.operands[first]), (str(OTHER_LENGTH), call.operands[other])]
    fail(frame, call, error, tried)
