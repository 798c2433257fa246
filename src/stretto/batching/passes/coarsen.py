"""Grain-size coarsening: tensor operators between decisions become one static block.

    %a = tanh(%x)                      %n = len(%list)
    %n = len(%list)                    %c = block 0(%x, %y)      # tanh, mul, add
    %b = mul(%a, %y)            =>
    %c = add(%b, %x)

Changes: every `Operate` becomes part of a `Record`; equal blocks are one. Needs: operators are
pure, which the front end sees to. Guarantees: the same values; operators move over statements that
they do not depend on, calls and loops among them, and operators whose results nothing uses are
gone. (ACRoBat, section B.2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.batching.passes.content import Blocks
from stretto.batching.passes.forming import Former
from stretto.batching.passes.uses import FunctionUses
from stretto.batching.program import InstanceProgram


@dataclass(frozen=True, slots=True)
class Coarsen:
    """`joins`: whether operators become one block; otherwise each is one of its own."""

    joins: bool = True
    name: ClassVar[str] = "coarsen"

    def apply(self, program: InstanceProgram) -> None:
        blocks = Blocks(program.blocks)
        for function in program.functions:
            uses = FunctionUses.of(function)
            former = Former(blocks, uses, lambda _: True, alone=not self.joins)
            function.body = former.body(function.body)
            program.remarks += former.remarks
