"""Parameters of printed kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Buffer, Reg


@dataclass(slots=True)
class Parameters:
    """Names handed out in the order of first use."""

    buffers: dict[Buffer, str] = field(default_factory=dict[Buffer, str])
    regs: dict[Reg, str] = field(default_factory=dict[Reg, str])

    def buffer(self, buffer: Buffer) -> str:
        return self.buffers.setdefault(buffer, f"p{len(self.buffers)}")

    def reg(self, reg: Reg) -> str:
        return self.regs.setdefault(reg, f"r{len(self.regs)}")
