"""Print a DeviceProgram as one persistent Triton kernel.

A unit is a program instance of the launch, resident from start to end. Control flow of the
DeviceProgram becomes structured control flow of Triton on values that every unit loads for itself;
a recursive program becomes a loop over states (states.py). Progress counters continue from launch
to launch: a unit begins with the value that it published last, so nothing is reset. See source.py
for the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import and_
from pathlib import Path

from stretto.device.expr import Buffer, Reg
from stretto.device.plan import Guard, Launch, Plan, address_name, busy_units, units_wait
from stretto.device.program import DeviceProgram
from stretto.device.user_kernels import called_kernels
from stretto.extending.triton_source import definitions
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.dead_stores import handed_over
from stretto.machines.cuda.printer.early import EarlyLoads
from stretto.machines.cuda.printer.function import BASE, FunctionPrinter, arena, pointer_type
from stretto.machines.cuda.printer.kernel import FUNCTION_FILES, WARPS
from stretto.machines.cuda.printer.outline import Address, outlined_sections, sink_assignments
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import (
    BARRIER,
    CONTROL,
    MEMORY_TYPES,
    OK,
    POINTER_TYPES,
    UNIT,
    VALUE_TYPES,
)
from stretto.machines.cuda.printer.source import (
    ENTRY,
    NAMES,
    PROGRESS,
    KernelParameter,
    TritonSource,
)
from stretto.machines.cuda.printer.states import StateMachine, as_word, from_word
from stretto.machines.statements import python_function
from stretto.machines.terms import Term, call, infix, literal, variable

WORDS = variable("words")
HEADER = '''\
"""A device program of stretto: one persistent kernel, a unit is a thread block."""

import triton
import triton.language as tl
'''
KEPT_REGISTERS = 192
"""Registers of a thread, of 255, that may hold constants over a loop unless a style says less. If
ptxas then runs out of registers, styles.py tries a style with fewer."""
AHEAD_REGISTERS = 96
"""Registers of a thread that may hold loads ahead of a wait."""
LIBRARY = (*FUNCTION_FILES, "prelude.py", "stop_checks.py")
"""Files of machines/cuda/printer/library that every program contains."""


@cache
def library_text() -> str:
    """Return the functions that printed programs call."""
    folder = Path(__file__).parent / "library"
    texts: list[str] = []
    for name in LIBRARY:
        lines = (folder / name).read_text().splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith("@"))
        texts.append("\n".join(lines[start:]))
    return "\n\n\n".join(texts) + "\n"


@dataclass(frozen=True, slots=True)
class Style:
    """Options of the printed text of a program.

    warps: of a unit. registers: of a thread, for constants that are loaded before their task may
    begin (early.py). inline: True if kernels are inlined wherever they run; False keeps them as
    functions, which compiles faster. shared: bytes of shared memory for constants that a loop has
    no registers for.
    """

    warps: int = WARPS
    registers: int = KEPT_REGISTERS
    inline: bool = False
    shared: int = 0


def print_program(
    program: DeviceProgram,
    words: Mapping[str, int] | None = None,
    style: Style | None = None,
    kept: Collection[Buffer] = (),
) -> TritonSource:
    """Return the module of a verified DeviceProgram without library calls.

    words: by name, the position of main's registers in the block of words (schedule/plan.py);
    if None, the results are numbered in order. kept: local buffers that other launches or
    library calls read.
    """
    if words is None:
        words = {reg.name: place for place, reg in enumerate(program.tree.main.results)}
    return _ProgramPrinter(program, words, style or Style(), kept).print()


def print_plan(plan: Plan, style: Style | None = None) -> tuple[TritonSource, ...]:
    """Return the modules of a plan's launches, in order."""
    kept = handed_over(plan)
    return tuple(
        print_launch(launch, plan.words[name], style, kept) for name, launch in plan.launches
    )


def print_launch(
    launch: Launch,
    words: Mapping[str, int],
    style: Style | None = None,
    kept: Collection[Buffer] = (),
) -> TritonSource:
    """Return the module of one launch, guarded by its conditions; parameters as for
    `print_program`."""
    return _ProgramPrinter(launch.program, words, style or Style(), kept, launch.guards).print()


class _ProgramPrinter:
    """Prints one program or launch."""

    def __init__(
        self,
        program: DeviceProgram,
        words: Mapping[str, int],
        style: Style,
        kept: Collection[Buffer],
        guards: Sequence[Guard] = (),
    ) -> None:
        self.program = program
        self.guards = guards
        self.words = words
        self.style = style
        self.parts = ModuleParts(program, style.inline, style.warps, kept)
        thread = style.registers, min(style.registers, AHEAD_REGISTERS)
        budget, ahead = (registers * 4 * WARP * style.warps for registers in thread)
        self.early = EarlyLoads(self.parts, budget, ahead, style.warps, style.shared)
        self.main = FunctionPrinter(self.parts, self.early, self.parts.functions["main"])
        self.joint = units_wait(program, self._rotated())

    def print(self) -> TritonSource:
        inside = self._inside()
        if self.guards:
            inside = (code.Branch(self._taken(), inside),)
        body = self._with_starts((code.Assign(UNIT, call("tl.program_id", 0)), *inside))
        parameters = self._parameters(code.mentioned(body))
        function = code.FunctionDefinition(tuple(variable(p.name) for p in parameters), body)
        return self._source(function, parameters)

    def _taken(self) -> Term:
        """Return a term that is true if all guards hold."""
        tests = [
            infix(self._word(guard.register.name), "==" if guard.negated else "!=", 0)
            for guard in self.guards
        ]
        return reduce(and_, tests)

    def _inside(self) -> code.Statements:
        """Return the statements of a unit in a launch whose guards hold."""
        entry = code.StatementBuilder()
        entry.assign(BASE, call("tl.load", CONTROL + PROGRESS + UNIT, effect=True))
        entry.assign(OK, infix(call("stopped", CONTROL, effect=True), "==", 0))
        for reg in self._given_sizes():
            entry.assign(self.main.reg(reg), self._word(reg.name))
        for buffer, name in self.parts.moving.items():
            entry.assign(name, self._address(buffer))
        if self.parts.recursive:
            machine = StateMachine(self.parts, self.early)
            self.main = machine.routines["main"].printer
            entry.add(*machine.statements(self._results(), self._first()))
        else:
            entry.add(*self._main())
        return tuple(entry.statements)

    def _source(
        self, function: code.FunctionDefinition, parameters: tuple[KernelParameter, ...]
    ) -> TritonSource:
        functions = [
            _definition(name, function, inline, self.parts.users[name])
            for (function, inline), name in self.parts.defined.items()
        ]
        users = called_kernels(self.program.kernels)
        functions = [*definitions(users), *functions, _definition(ENTRY, function, True)]
        return TritonSource(
            "\n\n".join([HEADER, library_text(), *functions]),
            parameters,
            tuple(self.parts.arguments),
            self.program.units,
            self.style.warps,
            tuple(self.parts.tables),
            tuple(self.parts.kernels),
            self.parts.recursive,
            users,
            self.joint,
            busy_units(self.program),
            self.early.kept,
            self.early.lacking,
            self.early.shares,
            self.early.used,
            self.early.read,
        )

    def _with_starts(self, body: code.Statements) -> code.Statements:
        """Return the statements with assignments of the constant numbers that they use, such as
        table starts."""
        starts = self.parts.starts.items()
        return sink_assignments(
            [code.Assign(start, literal(place)) for start, place in starts], body
        )

    # ---- main --------------------------------------------------------------------------------
    def _main(self) -> code.Statements:
        main = self.main
        self.early.visit(main.function.body)
        main.whole()
        body = (*main.out.statements, *self._results())
        first, needed = self._first(), code.live(body, frozenset())
        moving = main.moving | {
            variable(name): first.get(name, kept.first)
            for name, kept in sorted(main.saved.items())
            if name in needed
            and variable(name) not in self.parts.externals.values()
            and variable(name) not in main.moving
        }
        body = (*(code.Assign(name, value) for name, value in moving.items()), *body)
        aligned = frozenset(name.text for name in main.places | main.moving)
        define, addresses = self.parts.define, self._addresses()
        body = outlined_sections(body, define, aligned, addresses)
        return sink_assignments(
            [code.Assign(name, value) for name, value in main.places.items()], body
        )

    def _addresses(self) -> dict[str, Address]:
        """Return, for main's buffers at fixed places, the arena parameter and the offset in it, in
        elements."""
        found: dict[str, Address] = {}
        frame = self.program.frame("main")
        for buffer, pointer in self.main.pointers.items():
            if pointer in self.main.places and not frame.stride(buffer.name):
                place = frame.offset(buffer.name) // buffer.dtype.itemsize
                if isinstance(place, int):
                    found[pointer.text] = arena(buffer).text, place
        return found

    def _first(self) -> dict[str, Term]:
        """Return the initial values of registers that are read from the block of words."""
        params = self.main.function.params
        return {
            self.main.reg(reg).text: from_word(self._word(reg.name), VALUE_TYPES[reg.dtype])
            for reg in params
            if reg not in self.parts.sizes
        }

    def _given_sizes(self) -> list[Reg]:
        """Return the sizes of the program that are read from the block of words instead of
        parameters."""
        return [reg for reg in self.main.function.params if reg in self.parts.sizes]

    def _address(self, buffer: Buffer) -> Term:
        """Return the address of a buffer, read from the block of words."""
        address = self._word(address_name(buffer)).to(pointer_type(buffer))
        return address if buffer.kind == "param" else call("tl.multiple_of", address, 16)

    def _word(self, name: str) -> Term:
        return call("tl.load", WORDS + self.words[name], effect=True)

    def _results(self) -> code.Statements:
        """Store main's register results, and the final addresses of rotated buffers."""
        main = self.main.function
        rotated = self._rotated()
        stored = {address_name(b): self.parts.moving[b].to("tl.int64") for b in rotated}
        stored = dict(sorted(stored.items()))
        for reg in main.results:
            stored[reg.name] = as_word(self.main.reg(reg), VALUE_TYPES[reg.dtype])
        mask = OK & infix(UNIT, "==", 0)
        stores = [code.Store(None, WORDS + self.words[n], word, mask) for n, word in stored.items()]
        if rotated or {*main.results} & {*main.params}:
            return (*self._all_have_begun(), *stores)
        return tuple(stores)

    def _rotated(self) -> set[Buffer]:
        """Return the buffers that main's loops rotate and whose addresses are in the block of
        words."""
        return self.parts.moving.keys() & self.main.rotated

    def _all_have_begun(self) -> code.Statements:
        """Wait until every unit has read its initial words, so that they may be overwritten."""
        if self.program.units == 1:
            return (BARRIER,)
        printer = FunctionPrinter(self.parts, self.early, self.main.function)
        printer.publish(1, range(self.program.units))
        with printer.out.within(code.Branch(infix(UNIT, "==", 0), ())):
            printer.wait_for(literal(0), literal(self.program.units), BASE)
        return tuple(printer.out.statements)

    # ---- parameters --------------------------------------------------------------------------
    def _parameters(self, names: Collection[str]) -> tuple[KernelParameter, ...]:
        """Return the parameters of the kernel. names: the variables of its body."""
        found = [
            KernelParameter("control", "*i64", "control"),
            KernelParameter("polls", "i64", "polls"),
        ]
        for dtype in DType:
            name = f"arena_{MEMORY_TYPES[dtype].removeprefix('tl.')}"
            known = any(parameter.name == name for parameter in found)
            if not known and name in names:
                found.append(KernelParameter(name, POINTER_TYPES[dtype], "arena"))
        main = self.main.function
        if main.results or main.params or main.tensors or self.guards:
            found.append(KernelParameter("words", "*i64", "words"))
        if self.parts.tables:
            found.append(KernelParameter("tables", "*i32", "tables"))
        if self.parts.recursive:
            found.append(KernelParameter("stack", "*i64", "stack"))
            found += [
                KernelParameter(n, "i64", n) for n in ("stack_words", "arena_bytes", "max_depth")
            ]
        for place in sorted(set(self.parts.limits.values())):
            found.append(KernelParameter(f"limit{place}", "i64", "limit", place))
        given = self._given_sizes()
        for reg, place in self.parts.sizes.items():
            if f"size{place}" in names and reg not in given:
                found.append(KernelParameter(f"size{place}", "i64", "size", place))
        for buffer, place in self.parts.arguments.items():
            name = self.parts.externals[buffer].text
            if name in names and buffer not in self.parts.moving:
                found.append(KernelParameter(name, POINTER_TYPES[buffer.dtype], "buffer", place))
        return tuple(found)


def _definition(
    name: str, function: code.FunctionDefinition, inline: bool, kernel: str = ""
) -> str:
    decorator = "@triton.jit" if inline else "@triton.jit(noinline=True)"
    comment = f"{NAMES}{kernel}\n" if kernel else ""
    return f"{comment}{decorator}\n{python_function(name, function)}"
