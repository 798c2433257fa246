"""Names, tables and functions of the module of a program."""

from __future__ import annotations

from collections.abc import Collection

from stretto.device.analyses import has_waits
from stretto.device.expr import Buffer
from stretto.device.program import DeviceProgram
from stretto.extending.triton_source import user_names
from stretto.machines.control_printer import ProgramParts
from stretto.machines.cuda.printer.dead_stores import without_dead_stores
from stretto.machines.cuda.printer.kernel import print_kernel
from stretto.machines.cuda.printer.source import ENTRY
from stretto.machines.statements import FunctionDefinition
from stretto.machines.terms import Term, variable
from stretto.schedule.barriers import merged_leaves, with_barriers

NAMES = (ENTRY, "control", "polls", "unit", "base", "ok", "task")
"""Variables that every program has."""


class ModuleParts(ProgramParts):
    """State that is shared while the module of a program is printed.

    inline: True if all functions are inlined where they are called. warps: of a unit. moving: the
    variables of main's tensors. defined: the names of the module's functions, by function and
    whether it is inlined where it is called. users: by such a name, the kernel it was made for.
    tables: numbers that units look up. starts: variables that are constant numbers, such as the
    start of a table, so that sections that differ only in them are one function. counter: numbers
    the names of parts of scalars. kept: buffers that are read outside of this program. has_waits:
    True if units wait for each other; else nothing is published. functions: by name, with barriers.
    """

    def __init__(
        self, program: DeviceProgram, inline: bool, warps: int, kept: Collection[Buffer]
    ) -> None:
        super().__init__(program)
        self.inline = inline
        self.has_waits = has_waits(program)
        texts = {kernel.name: print_kernel(kernel, warps) for kernel in program.kernels}
        self.texts = without_dead_stores(texts, program, kept)
        phases = {name: text.phases for name, text in self.texts.items()}
        self.functions = with_barriers(program, merged_leaves(program), phases)
        self.taken = {*NAMES, *user_names(program.kernels)}
        self.names: dict[object, Term] = {}
        self.tables: list[int] = []
        self.starts: dict[Term, int] = {}
        self.counter = [0]
        self.users: dict[str, str] = {}
        self.defined: dict[tuple[FunctionDefinition, bool], str] = {}
        self.externals = {
            b: self.fresh(f"p{place}_{b.name}") for b, place in self.arguments.items()
        }
        self.moving = {b: self.fresh(f"b_{b.name}") for b in program.tree.main.tensors}
        self.externals |= self.moving

    def external(self, buffer: Buffer) -> Term:
        """Return the variable that holds the address of a buffer outside of the frames."""
        if buffer not in self.externals:
            self.externals[buffer] = self.fresh(f"p{self.place(buffer)}_{buffer.name}")
        return self.externals[buffer]

    def table_start(self) -> Term:
        """Return the variable of a new table's start, after the existing tables."""
        start = self.fresh("table")
        self.starts[start] = len(self.tables)
        return start

    def number(self, value: int) -> Term:
        """Return a variable that is a constant number, so that sections that differ only in it are
        one function."""
        name = self.variable(("number", value), f"n{value}")
        self.starts[name] = value
        return name

    def variable(self, key: object, hint: str) -> Term:
        """Return the variable of a key, made at its first use."""
        if key not in self.names:
            self.names[key] = self.fresh(hint)
        return self.names[key]

    def fresh(self, hint: str) -> Term:
        return variable(self.identifier(hint))

    def identifier(self, hint: str) -> str:
        """Return a Python name that is not used yet."""
        base = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint)
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def define(
        self, hint: str, function: FunctionDefinition, inline: bool = False, kernel: str = ""
    ) -> str:
        """Return the name of a function of the module, added if no equal one exists. kernel: the
        kernel it is made for."""
        key = function, inline or self.inline
        if key not in self.defined:
            self.defined[key] = self.identifier(hint)
            self.users[self.defined[key]] = kernel
        return self.defined[key]
