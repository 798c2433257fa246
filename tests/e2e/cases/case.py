"""A Program as text with the inputs that it is run on."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import torch

from stretto.errors import RunError
from stretto.interp.interpreter import Datum, run
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import CallOp, ConstantOp
from tests.support import program_of, random_inputs

Inputs = list[torch.Tensor]


class Case:
    """`runs`: for each run the inputs that matter, by name; the others are random numbers."""

    def __init__(self, name: str, text: str, *runs: dict[str, Any], scale: float = 1.0) -> None:
        self.name = name
        self.text = textwrap.dedent(text)
        self.runs = runs or ({}, {})
        self.scale = scale
        """Factor on the tolerance."""

    def program(self, number: int = 0) -> Program:
        """Its symbols differ from those of the same program with another number."""
        return program_of(re.sub(r"(?<![%\w])s(\d+)\b", rf"s\g<1>_{number}", self.text))

    def inputs(self, program: Program) -> list[Inputs]:
        """The inputs of every run."""
        found: list[Inputs] = []
        for seed, given in enumerate(self.runs):
            data: Inputs = []
            for value, datum in zip(program.main.params, random_inputs(program, seed), strict=True):
                assert isinstance(datum, torch.Tensor)
                known = given.get(value.hint)
                data.append(datum if known is None else torch.tensor(known, dtype=datum.dtype))
            found.append(data)
        return found

    def __repr__(self) -> str:
        return self.name.replace(" ", "-")


def expected(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[Datum, ...] | None:
    """What the interpreter says; None when the program stops."""
    try:
        return run(program, inputs)
    except RunError:
        return None


OTHER_WORDS = {
    ("narrow at a position", 5): "start (-7) + length (2) exceeds dimension size (6).",
    ("cache passed down", 4): "index 8 is out of bounds for dimension 0 with size 8",
}
"""Where compiled programs describe the same mistake in other words than eager: (case, run)."""
EITHER = {("gather rec neg", 1): r"index -[13] is out of bounds for dimension 1 with size 4"}
"""Runs with several positions that are out of range, of which any may be named: patterns."""


def why_stopped(case: Case, number: int) -> str:
    """A pattern for the message of a run that stops: what the interpreter says."""
    program = case.program()
    if pattern := EITHER.get((case.name, number)):
        return rf"^{pattern}(\n|$)"
    message = OTHER_WORDS.get((case.name, number))
    if message is None:
        try:
            run(program, case.inputs(program)[number])
        except RunError as error:
            message = _SELECTED.sub(_as_index, str(error).splitlines()[0])
    assert message is not None, "the run does not stop"
    return rf"^{re.escape(message)}(\n|$)"


_SELECTED = re.compile(
    r"select\(\): index (-?\d+) out of range for tensor of size \[(.*)\] at dimension (\d+)"
)


def _as_index(found: re.Match[str]) -> str:
    """What indexing says of a position that `select` refuses."""
    size = found[2].split(", ")[int(found[3])]
    return f"index {found[1]} is out of bounds for dimension {found[3]} with size {size}"


def merged(programs: Sequence[Program]) -> Program:
    """All programs side by side in one: parameters and results one after the other."""
    params: list[Value] = []
    ops: list[Op] = []
    yields: list[Value] = []
    functions: dict[str, Function] = {}
    constants: dict[str, torch.Tensor] = {}
    for number, program in enumerate(programs):
        for op in program.walk():
            if isinstance(op, CallOp):
                op.function = f"{op.function}.{number}"
            if isinstance(op, ConstantOp):
                constants[f"{op.key}.{number}"] = program.constants[op.key]
                op.key = f"{op.key}.{number}"
        for function in program.functions.values():
            if function is not program.main:
                name = f"{function.name}.{number}"
                functions[name] = Function(name, function.body)
        body = program.main.body
        params.extend(body.params)
        ops.extend(body.ops)
        yields.extend(body.yields)
    main = Function("main", Block(tuple(params), ops, tuple(yields)))
    return Program({"main": main, **functions}, constants)
