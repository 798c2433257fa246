"""Prints a DeviceProgram as one persistent Triton kernel.

A unit is a program of the launch, resident from start to end. Control flow of the DeviceProgram is
structured control flow of Triton on values that every unit loads for itself; a recursive program is
a loop over states (triton_states.py). Progress counters go on from launch to launch: a unit begins
with what it published last, so nothing is reset. See triton_source.py for the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stretto.device.expr import Buffer, Reg, limit_register
from stretto.device.plan import Plan, address_name
from stretto.device.program import DeviceProgram
from stretto.ir.types import DType
from stretto.machines.cuda.printer.function import FunctionPrinter
from stretto.machines.cuda.printer.kernel import FUNCTION_FILES, print_kernel
from stretto.machines.cuda.printer.parts import Identifiers, Parts
from stretto.machines.cuda.printer.scalar import MEMORY_TYPES, POINTER_TYPES, VALUE_TYPES
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, Parameter, TritonSource
from stretto.machines.cuda.printer.states import StatePrinter, as_word, from_word, has_call
from stretto.machines.usage import used
from stretto.schedule.pieces import rotating
from stretto.text import Writer

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
        self.functions = program.tree.functions
        self.identifiers = Identifiers({ENTRY, "control", "polls", "unit", "base", "ok", "task"})
        self.texts = {kernel.name: print_kernel(kernel) for kernel in program.kernels}
        self.arguments = self._arguments()
        places = {buffer.slot: place for place, buffer in enumerate(self.arguments)}
        limits = {limit_register(b.slot): places[b.slot] for b in program.lists}
        kernels = {kernel.name: kernel for kernel in program.kernels}
        self.parts = Parts(program, kernels, self.texts, places, limits, self.identifiers)
        self.parts.early.budget = style.registers * 4 * WARP * style.warps
        self.parts.inline = style.inline
        self.externals = {
            b: self.identifiers.fresh(f"p{place}_{b.name}")
            for place, b in enumerate(self.arguments)
        }
        self.moving = {b: self.identifiers.fresh(f"b_{b.name}") for b in program.tree.main.tensors}
        self.externals |= self.moving

    def print(self) -> TritonSource:
        body = Writer("    ")
        recursive = any(has_call(function.body) for function in self.functions)
        with body.indent():
            body.write("unit = tl.program_id(0)")
            body.write(f"base = tl.load(control + {PROGRESS} + unit)")
            body.write("ok = stopped(control) == 0")
            for buffer, name in self.moving.items():
                body.write(f"{name} = {self._address(buffer)}")
            if recursive:
                params = self.program.tree.main.params
                first = {self._main_reg(reg): self._first_value(reg) for reg in params}
                StatePrinter(self.parts, self.externals, first).print(body, self._results())
            else:
                self._main(body)
        parameters = self._parameters(body.text(), recursive)
        names = ", ".join(parameter.name for parameter in parameters)
        entry = f"@triton.jit\ndef {ENTRY}({names}):\n{body.text()}"
        text = "\n\n".join([HEADER, library_text(), *self._functions(), entry])
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

    # ---- kernels -----------------------------------------------------------------------------
    def _functions(self) -> list[str]:
        """The functions that the kernel calls for its tasks."""
        return [
            f"{decorator}\ndef {name}{text}"
            for (decorator, text), name in self.parts.defined.items()
        ]

    # ---- main --------------------------------------------------------------------------------
    def _main(self, out: Writer) -> None:
        main = self.program.tree.main
        frame = self.program.frame("main")
        buffers, regs = used(main.body, self.texts)
        names: dict[Buffer, str] = {}
        rotated = rotating(main.body)
        for buffer in sorted(buffers, key=lambda b: b.name):
            if buffer.kind in ("local", "items") and buffer not in self.moving:
                kind = MEMORY_TYPES[buffer.dtype].removeprefix("tl.")
                names[buffer] = self.identifiers.fresh(f"b_{buffer.name}")
                offset = frame[buffer.name].offset // buffer.dtype.itemsize
                out.write(f"{names[buffer]} = arena_{kind} + {offset}")
            elif buffer in rotated and buffer not in self.moving:
                names[buffer] = self.identifiers.fresh(f"b_{buffer.name}")
                out.write(f"{names[buffer]} = {self.externals[buffer]}")
        printer = FunctionPrinter(
            self.parts, "main", out, lambda b: names.get(b) or self.externals[b]
        )
        printer.outlines = True
        printer.aligned = {names[b] for b in names if b.kind != "param"}
        for reg in sorted(regs | {*main.params, *main.results}, key=lambda r: r.name):
            if reg not in self.parts.limits:
                out.write(f"{printer.reg(reg)} = {self._first_value(reg)}")
        printer.node(main.body)
        for line in self._results():
            out.write(line)

    def _address(self, buffer: Buffer) -> str:
        """Of a buffer whose place is told by a word."""
        word = f"tl.load(words + {self.words[address_name(buffer)]})"
        pointer = f"{word}.to(tl.pointer_type({MEMORY_TYPES[buffer.dtype]}))"
        return pointer if buffer.kind == "param" else f"tl.multiple_of({pointer}, 16)"

    def _main_reg(self, reg: Reg) -> str:
        return self.identifiers.of(("main", "reg", reg.name), f"r_{reg.name}")

    def _first_value(self, reg: Reg) -> str:
        if reg not in self.program.tree.main.params:
            return f"tl.cast(0, {VALUE_TYPES[reg.dtype]})"
        return from_word(f"tl.load(words + {self.words[reg.name]})", VALUE_TYPES[reg.dtype])

    def _results(self) -> list[str]:
        """Lines that store main's register results, and where its loops left buffers."""
        lines: list[str] = []
        rotated = self.moving.keys() & rotating(self.program.tree.main.body)
        if rotated or {*self.program.tree.main.results} & {*self.program.tree.main.params}:
            lines += self._all_have_begun()
        for buffer in sorted(rotating(self.program.tree.main.body), key=lambda b: b.name):
            if buffer in self.moving:
                place = self.words[address_name(buffer)]
                word = f"{self.moving[buffer]}.to(tl.int64)"
                lines.append(f"tl.store(words + {place}, {word}, mask=ok & (unit == 0))")
        for reg in self.program.tree.main.results:
            name = self._main_reg(reg)
            word = as_word(name, VALUE_TYPES[reg.dtype])
            lines.append(f"tl.store(words + {self.words[reg.name]}, {word}, mask=ok & (unit == 0))")
        return lines

    def _all_have_begun(self) -> list[str]:
        """Lines after which every unit has read the words that it began with."""
        units = self.program.units
        if units == 1:
            return ["tl.debug_barrier()"]
        block = 1 << (units - 1).bit_length()
        return [
            "base += 1",
            "signal(control, unit, base)",
            "if unit == 0:",
            f"    ok = wait(control, unit, 0, {units}, base, polls, ok, {block})",
        ]

    # ---- parameters --------------------------------------------------------------------------
    def _arguments(self) -> tuple[Buffer, ...]:
        """All externals, but of constants only those that the text mentions, these last."""
        mentioned: set[Buffer] = set()
        for function in self.functions:
            mentioned |= used(function.body, self.texts)[0]
        buffers = [b for b in self.program.tree.externals if b.kind != "constant" or b in mentioned]
        return tuple(sorted(buffers, key=lambda b: b.kind == "constant"))

    def _parameters(self, body: str, recursive: bool) -> tuple[Parameter, ...]:
        found = [Parameter("control", "*i64", "control"), Parameter("polls", "i64", "polls")]
        for dtype in DType:
            name = f"arena_{MEMORY_TYPES[dtype].removeprefix('tl.')}"
            known = any(parameter.name == name for parameter in found)
            if not known and _mentions(body, name):
                found.append(Parameter(name, POINTER_TYPES[dtype], "arena"))
        main = self.program.tree.main
        if main.results or main.params or main.tensors:
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
            found.append(Parameter(self.externals[buffer], kind, "buffer", place))
        return tuple(found)


def _mentions(text: str, name: str) -> bool:
    return f"{name} " in text or f"{name}\n" in text
