"""What the module of a program is made from: names, tables, functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.device.expr import Reg
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.statements import Function
from stretto.machines.terms import Term, variable


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
class ModuleParts:
    """What the module of a program is made from.

    texts: kernels by name; defined: the names of the module's functions, and whether they are
    inlined where they are called. places: where the buffer of a slot stands in the argument block;
    limits: where a list's capacity register does. inline: all functions are.
    """

    program: DeviceProgram
    kernels: Mapping[str, Kernel]
    texts: Mapping[str, TritonKernel]
    places: Mapping[int, int]
    limits: Mapping[Reg, int]
    identifiers: Identifiers
    inline: bool
    tables: list[int] = field(default_factory=list[int])
    counter: list[int] = field(default_factory=lambda: [0])
    defined: dict[tuple[Function, bool], str] = field(
        default_factory=dict[tuple[Function, bool], str]
    )

    @property
    def units(self) -> int:
        return self.program.units

    def variable(self, key: object, hint: str) -> Term:
        return variable(self.identifiers.of(key, hint))

    def fresh(self, hint: str) -> Term:
        return variable(self.identifiers.fresh(hint))

    def define(self, hint: str, function: Function, inline: bool = False) -> str:
        """The name of a function of the module; equal ones are one."""
        key = function, inline or self.inline
        if key not in self.defined:
            self.defined[key] = self.identifiers.fresh(hint)
        return self.defined[key]
