"""Printing of a Program as readable text, and parsing of the same text.

Names come from the values' hints and are unique in a function; values without hint are numbered
in order. The tensors of `constant` ops and the source locations are not part of the text. An
error in a text is a VerifyError with line and caret.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stretto.grammar import indented
from stretto.ir.core import Function, Op, Program
from stretto.ir.scanner import Names, ProgramReader
from stretto.ir.syntax import FUNCTION, OP
from stretto.ir.types import Type


def print_program(program: Program) -> str:
    """Return the text of the Program; `parse_program` turns it into an equal Program."""
    return "\n".join(print_function(item) for item in program.functions.values())


def print_function(function: Function) -> str:
    """Return the text of one function."""
    return indented(FUNCTION.show(Names(function), function))


def print_op(op: Op, function: Function) -> str:
    """Return the text of one op with its names in `function`; its blocks are shown as `{ ... }`."""
    return OP.show(Names(function, blocks=False), op)


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """Return the Program for the text. `constants`: the tensors of its `constant` ops."""
    given = ProgramReader(text)
    functions: dict[str, Function] = {}
    while not given.at_end():
        given.begin_function()
        function = FUNCTION.read(given)
        if function.name in functions:
            given.fail(f"function @{function.name} is defined twice")
        functions[function.name] = function
    return Program(functions, dict(constants or {}))


def parse_type(text: str) -> Type:
    """Return the type for its printed form, such as `f32[2, s0]` or `list<f32[]>`."""
    given = ProgramReader(text)
    found = given.type()
    given.end("the end of the type")
    return found
