"""Prints a DeviceProgram as one persistent Triton kernel.

A unit is a program of the launch, resident from start to end. Control flow of the DeviceProgram is
structured control flow of Triton on values that every unit loads for itself; a recursive program is
a loop over states (triton_states.py). Progress counters go on from launch to launch: a unit begins
with what it published last, so nothing is reset. See triton_source.py for the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stretto.device.expr import Buffer, Reg, limit_register
from stretto.device.plan import Plan, address_name
from stretto.device.program import DeviceProgram
from stretto.device.tree import rotating
from stretto.ir.types import DType
from stretto.machines.cuda.printer.early import EarlyLoads
from stretto.machines.cuda.printer.function import BASE, TeamPrinter
from stretto.machines.cuda.printer.kernel import FUNCTION_FILES, print_kernel
from stretto.machines.cuda.printer.outline import Outliner
from stretto.machines.cuda.printer.parts import Identifiers, ModuleParts
from stretto.machines.cuda.printer.scalar import (
    BARRIER,
    CONTROL,
    MEMORY_TYPES,
    OK,
    POINTER_TYPES,
    UNIT,
    VALUE_TYPES,
)
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, Parameter, TritonSource
from stretto.machines.cuda.printer.states import (
    StateMachine,
    arena,
    as_word,
    from_word,
    has_call,
    pointer_type,
)
from stretto.machines.dialects import python_function
from stretto.machines.statements import Block, Builder, Function, If, Store, mentioned
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.machines.usage import used

WORDS = variable("words")
HEADER = '''\
"""A device program of stretto: one persistent kernel, a unit is a thread block."""

import triton
import triton.language as tl
'''
EARLY_REGISTERS = (96, 48, 0)
"""Registers of a thread, of 255, that may hold constants: what is worth trying."""
WARP = 32
"""Threads."""
LIBRARY = (*FUNCTION_FILES, "prelude.py", "control.py")
"""Files of machines/cuda/printer/parts that every program contains."""


@cache
def library_text() -> str:
    """The functions that printed programs call."""
    folder = Path(__file__).parent / "parts"
    texts: list[str] = []
    for name in LIBRARY:
        lines = (folder / name).read_text().splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith("@"))
        texts.append("\n".join(lines[start:]))
    return "\n\n\n".join(texts) + "\n"


@dataclass(frozen=True, slots=True)
class Style:
    """How a program is printed.

    warps: of a unit. registers: of a thread, for constants that are loaded before their task may
    begin (`triton_early`). inline: the text of a kernel stands wherever it runs; without it kernels
    are functions, which compiles faster.
    """

    warps: int = 4
    registers: int = EARLY_REGISTERS[0]
    inline: bool = False


def print_program(
    program: DeviceProgram, words: Mapping[str, int] | None = None, style: Style | None = None
) -> TritonSource:
    """The module of a verified DeviceProgram without library calls.

    words: where main's registers lie in the block of words, by name (schedule/plan.py); without it
    the results come one after the other.
    """
    if words is None:
        words = {reg.name: place for place, reg in enumerate(program.tree.main.results)}
    return _ProgramPrinter(program, words, style or Style()).print()


def print_plan(plan: Plan, style: Style | None = None) -> tuple[TritonSource, ...]:
    """The modules of a plan's launches, in order."""
    return tuple(
        print_program(launch.program, plan.words[name], style) for name, launch in plan.launches
    )


class _ProgramPrinter:
    def __init__(self, program: DeviceProgram, words: Mapping[str, int], style: Style) -> None:
        self.program = program
        self.words = words
        self.style = style
        self.main = program.tree.main
        self.rotated = rotating(self.main.body)
        identifiers = Identifiers({ENTRY, "control", "polls", "unit", "base", "ok", "task"})
        self.texts = {kernel.name: print_kernel(kernel) for kernel in program.kernels}
        self.arguments = self._arguments()
        places = {buffer.slot: place for place, buffer in enumerate(self.arguments)}
        limits = {limit_register(b.slot): places[b.slot] for b in program.lists}
        kernels = {kernel.name: kernel for kernel in program.kernels}
        self.parts = ModuleParts(
            program, kernels, self.texts, places, limits, identifiers, style.inline
        )
        self.externals = {
            b: self.parts.fresh(f"p{place}_{b.name}") for place, b in enumerate(self.arguments)
        }
        self.moving = {b: self.parts.fresh(f"b_{b.name}") for b in self.main.tensors}
        self.externals |= self.moving

    def print(self) -> TritonSource:
        recursive = any(has_call(function.body) for function in self.program.tree.functions)
        entry = Builder()
        entry.assign(UNIT, call("tl.program_id", 0))
        entry.assign(BASE, call("tl.load", CONTROL + PROGRESS + UNIT, effect=True))
        entry.assign(OK, infix(call("stopped", CONTROL, effect=True), "==", 0))
        for buffer, name in self.moving.items():
            entry.assign(name, self._address(buffer))
        if recursive:
            first = {self._main_reg(reg): self._first_value(reg) for reg in self.main.params}
            machine = StateMachine(self.parts, self.externals, first)
            entry.add(*self._early(machine.statements(self._results())))
        else:
            entry.add(*self._main())
        body = tuple(entry.statements)
        parameters = self._parameters(mentioned(body), recursive)
        function = Function(tuple(variable(p.name) for p in parameters), body)
        text = "\n\n".join(
            [HEADER, library_text(), *self._functions(), _definition(ENTRY, function, True)]
        )
        return TritonSource(
            text,
            parameters,
            self.arguments,
            self.program.units,
            self.style.warps,
            tuple(self.parts.tables),
            tuple(kernel.name for kernel in self.program.kernels),
            recursive,
        )

    def _functions(self) -> list[str]:
        """The functions that the kernel calls for its tasks."""
        return [
            _definition(name, function, inline)
            for (function, inline), name in self.parts.defined.items()
        ]

    # ---- main --------------------------------------------------------------------------------
    def _main(self) -> Block:
        buffers, regs = used(self.main.body, self.texts)
        names: dict[Buffer, Term] = {}
        printer = TeamPrinter(self.parts, "main", lambda b: names.get(b) or self.externals[b])
        out = printer.out
        frame = self.program.frame("main")
        for buffer in sorted(buffers - self.moving.keys(), key=lambda b: b.name):
            if buffer.kind in ("local", "items"):
                names[buffer] = self.parts.fresh(f"b_{buffer.name}")
                offset = frame[buffer.name].offset // buffer.dtype.itemsize
                out.assign(names[buffer], arena(buffer) + offset)
            elif buffer in self.rotated:
                names[buffer] = self.parts.fresh(f"b_{buffer.name}")
                out.assign(names[buffer], self.externals[buffer])
        for reg in sorted(regs | {*self.main.params, *self.main.results}, key=lambda r: r.name):
            if reg not in self.parts.limits:
                out.assign(printer.reg(reg), self._first_value(reg))
        printer.node(self.main.body)
        out.add(*self._results())
        aligned = frozenset(names[b].text for b in names if b.kind != "param")
        outliner = Outliner(self.parts.define, aligned)
        return outliner.outlined(self._early(tuple(out.statements)), frozenset())

    def _early(self, block: Block) -> Block:
        budget = self.style.registers * 4 * WARP * self.style.warps
        return EarlyLoads(self.texts, self.parts.define, self.parts.fresh, budget).placed(block)

    def _address(self, buffer: Buffer) -> Term:
        """The address of a buffer, which is read from the block of words."""
        address = self._word(address_name(buffer)).to(pointer_type(buffer))
        return address if buffer.kind == "param" else call("tl.multiple_of", address, 16)

    def _word(self, name: str) -> Term:
        return call("tl.load", WORDS + self.words[name], effect=True)

    def _main_reg(self, reg: Reg) -> Term:
        return self.parts.variable(("main", "reg", reg.name), f"r_{reg.name}")

    def _first_value(self, reg: Reg) -> Term:
        kind = VALUE_TYPES[reg.dtype]
        if reg not in self.main.params:
            return call("tl.cast", 0, kind)
        return from_word(self._word(reg.name), kind)

    def _results(self) -> Block:
        """Stores main's register results, and where its loops left buffers."""
        rotated = sorted(self.moving.keys() & self.rotated, key=lambda b: b.name)
        results = self.main.results
        stored = [(address_name(b), self.moving[b].to("tl.int64")) for b in rotated]
        for reg in results:
            stored.append((reg.name, as_word(self._main_reg(reg), VALUE_TYPES[reg.dtype])))
        mask = OK & infix(UNIT, "==", 0)
        stores = [Store(None, WORDS + self.words[name], word, mask) for name, word in stored]
        if rotated or {*results} & {*self.main.params}:
            return (*self._all_have_begun(), *stores)
        return tuple(stores)

    def _all_have_begun(self) -> Block:
        """Waits until every unit has read the words that it began with."""
        if self.program.units == 1:
            return (BARRIER,)
        printer = TeamPrinter(self.parts, "main", self.externals.__getitem__)
        printer.publish(1)
        with printer.out.within(If(infix(UNIT, "==", 0), ())):
            printer.wait_for(literal(0), literal(self.program.units), BASE, self.program.units)
        return tuple(printer.out.statements)

    # ---- parameters --------------------------------------------------------------------------
    def _arguments(self) -> tuple[Buffer, ...]:
        """All externals, but of constants only those that the text mentions, these last."""
        mentioned: set[Buffer] = set()
        for function in self.program.tree.functions:
            mentioned |= used(function.body, self.texts)[0]
        buffers = [b for b in self.program.tree.externals if b.kind != "constant" or b in mentioned]
        return tuple(sorted(buffers, key=lambda b: b.kind == "constant"))

    def _parameters(self, names: Collection[str], recursive: bool) -> tuple[Parameter, ...]:
        """names: the variables of the kernel's body."""
        found = [Parameter("control", "*i64", "control"), Parameter("polls", "i64", "polls")]
        for dtype in DType:
            name = f"arena_{MEMORY_TYPES[dtype].removeprefix('tl.')}"
            known = any(parameter.name == name for parameter in found)
            if not known and name in names:
                found.append(Parameter(name, POINTER_TYPES[dtype], "arena"))
        if self.main.results or self.main.params or self.main.tensors:
            found.append(Parameter("words", "*i64", "words"))
        if self.parts.tables:
            found.append(Parameter("tables", "*i32", "tables"))
        if recursive:
            found.append(Parameter("stack", "*i64", "stack"))
            found += [Parameter(n, "i64", n) for n in ("stack_words", "arena_bytes", "max_depth")]
        for place in sorted(set(self.parts.limits.values())):
            found.append(Parameter(f"limit{place}", "i64", "limit", place))
        for place, buffer in enumerate(self.arguments):
            kind = POINTER_TYPES[buffer.dtype]
            found.append(Parameter(self.externals[buffer].text, kind, "buffer", place))
        return tuple(found)


def _definition(name: str, function: Function, inline: bool) -> str:
    decorator = "@triton.jit" if inline else "@triton.jit(noinline=True)"
    return f"{decorator}\n{python_function(name, function)}"
