"""What the tests of the loop passes ask of a pass, whose results may differ by rounding."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from stretto.interp.interpreter import Datum, run
from stretto.ir.core import Block, Program
from stretto.ir.ops import ForOp, TensorOp
from stretto.ir.text import parse_program, print_program
from stretto.ir.verifier import verify
from stretto.ops.properties import is_contraction
from stretto.passes.manager import Pass, run_passes
from tests.support import program_of, random_inputs


def apply(before: Program, *passes: Pass, inputs: Sequence[Datum] | None = None) -> Program:
    """The Program after the passes, which must give the same results in f64.

    Up to rounding: that of f64, and that of f32 in constants which a pass computes.
    """
    after = run_passes(before, passes)
    verify(after)
    data = random_inputs(before) if inputs is None else inputs
    expected = run(before, data, dtype=torch.float64)
    for got, want in zip(run(after, data, dtype=torch.float64), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    return after


def check(before: str, step: Pass, expected: str) -> None:
    """The pass turns one text into the other, up to the names of values."""
    after = apply(program_of(before), step)
    wanted = print_program(parse_program(expected))
    assert renamed(print_program(after)) == renamed(wanted)


def renamed(text: str) -> str:
    """The text with values numbered in order of appearance."""
    names: dict[str, str] = {}
    return re.sub(r"%[\w.]+", lambda found: names.setdefault(found[0], f"%{len(names)}"), text)


def loops_of(block: Block) -> list[ForOp]:
    return [op for op in block.walk() if isinstance(op, ForOp)]


def contractions(block: Block) -> list[TensorOp]:
    """The contractions of a block itself, not of blocks nested in it."""
    return [op for op in block.ops if isinstance(op, TensorOp) and is_contraction(op)]


def targets(block: Block) -> list[str]:
    """The operators of a block itself, in order."""
    return [op.target for op in block.ops if isinstance(op, TensorOp)]
