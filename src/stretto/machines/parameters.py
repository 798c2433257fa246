"""Parameters of printed kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stretto.device.expr import Buffer, Reg
from stretto.machines.terms import Term, variable


class Naming(Protocol):
    """What buffers and registers are called in the text at hand."""

    def buffer(self, buffer: Buffer, /) -> Term: ...
    def reg(self, reg: Reg, /) -> Term: ...


@dataclass(slots=True)
class Parameters:
    """Names handed out in the order of first use."""

    buffers: dict[Buffer, Term] = field(default_factory=dict[Buffer, Term])
    regs: dict[Reg, Term] = field(default_factory=dict[Reg, Term])

    def buffer(self, buffer: Buffer) -> Term:
        return self.buffers.setdefault(buffer, variable(f"p{len(self.buffers)}"))

    def reg(self, reg: Reg) -> Term:
        return self.regs.setdefault(reg, variable(f"r{len(self.regs)}"))
