"""What the text of a program is made from: names, tables, functions of the module."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Reg
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram
from stretto.machines.cuda.printer.early import EarlyLoads
from stretto.machines.cuda.printer.kernel import TritonKernel


@dataclass(slots=True)
class Identifiers:
    """Python names, one for each key, all different."""

    taken: set[str] = field(default_factory=set[str])
    names: dict[object, str] = field(default_factory=dict[object, str])

    def of(self, key: object, hint: str) -> str:
        if key not in self.names:
            self.names[key] = self.fresh(hint)
        return self.names[key]

    def fresh(self, hint: str) -> str:
        base = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint)
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


@dataclass(slots=True)
class Parts:
    """What the text of a program is made from.

    texts: kernels by name; defined: the functions of the module by decorator and text. places:
    where the buffer of a slot stands in the argument block; limits: where a list's capacity
    register does.
    """

    program: DeviceProgram
    kernels: dict[str, Kernel]
    texts: dict[str, TritonKernel]
    places: dict[int, int]
    limits: dict[Reg, int]
    identifiers: Identifiers = field(default_factory=Identifiers)
    tables: list[int] = field(default_factory=list[int])
    counter: list[int] = field(default_factory=lambda: [0])
    defined: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    early: EarlyLoads = field(default_factory=EarlyLoads)
    inline: bool = False

    @property
    def units(self) -> int:
        return self.program.units

    def function(self, hint: str, text: str, inline: bool = False) -> str:
        """The name of a function of the module; those with one text are one function."""
        key = "@triton.jit" if inline or self.inline else "@triton.jit(noinline=True)", text
        if key not in self.defined:
            self.defined[key] = self.identifiers.fresh(hint)
        return self.defined[key]
