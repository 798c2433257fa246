"""Pieces of a plan: which registers they take and assign."""

from __future__ import annotations

import pytest

from stretto.device.expr import Const, Expr, Index, Position, Reg
from stretto.device.program import Schedule
from stretto.device.tree import For, Leaf, Let
from stretto.ir.types import DType
from stretto.schedule.merge import piece_registers


def value(number: int) -> Expr:
    return Const(number, DType.I64)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_piece_takes_what_the_body_of_a_loop_reads(trips: int) -> None:
    """Also of one that never runs: the body is printed all the same."""
    index, read, written = Reg("i"), Reg("read"), Reg("written")
    body = Leaf(Schedule(((Let(written, Position(Index.of(read))),),), 1))
    loop = For(index, value(0), value(trips), 1, body)
    taken, assigned = piece_registers(loop, {})
    assert read in taken
    assert assigned == {index, written}
    assert (written in taken) == (trips == 0), "it keeps what it was where no iteration assigns it"
