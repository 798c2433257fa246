"""That programs of instances can be read back as text."""

from __future__ import annotations

from stretto.batching.instance_program import InstanceProgram
from stretto.batching.printer import parse_program, program_text
from stretto.batching.verifier import verify
from stretto.ir.rewrite import clone_program


def assert_reads_back(program: InstanceProgram, *, is_valid: bool = True) -> InstanceProgram:
    """Asserts that the text of a program can be parsed, is valid and gives the same text, as
    does a copy; returns what was parsed."""
    text, objects = program_text(program)
    again = parse_program(text, objects)
    if is_valid:
        verify(again)
    assert program_text(again) == (text, objects)
    copy = clone_program(again)
    assert isinstance(copy, InstanceProgram) and program_text(copy) == (text, objects)
    return again
