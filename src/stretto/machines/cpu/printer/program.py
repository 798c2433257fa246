"""Prints a DeviceProgram as one C++ source for the CPU machine.

Every unit runs the same functions; what a unit does in a leaf is a case of a switch. Control flow
of the program is control flow of C++, registers are local variables, a recursive function is a
recursive C++ function with its frame of buffers in the arena. See abi.h for how the text is entered
and what it may use.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Buffer, Reg, limit_register
from stretto.device.operator import Kernel, LibraryCall
from stretto.device.program import DeviceProgram
from stretto.device.tree import Call, walk
from stretto.machines.cpu.printer.expr import VALUE_TYPES, identifier
from stretto.machines.cpu.printer.function import FunctionPrinter, Parts
from stretto.machines.cpu.printer.kernel import KernelText, print_kernel
from stretto.machines.cpu.printer.stage import header
from stretto.machines.usage import used

PRELUDE = """\
#include "abi.h"
#include "math.h"
#include "program.h"

struct State {
  stretto::Context* ctx;
  int unit;
  int64_t base;
  uint32_t edges;
  int64_t depth;
};
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The text, and what the runtime needs beside it.

    `arguments`: the buffers of Context.buffers in order, constants last (those that nothing reads
    are left out). `library` and `kernels` are numbered as the program numbers them.
    """

    text: str
    arguments: tuple[Buffer, ...]
    library: tuple[LibraryCall, ...]
    kernels: tuple[str, ...]
    recursive: bool


def print_program(program: DeviceProgram) -> Source:
    """C++ text of a verified DeviceProgram."""
    parts = Parts(program)
    needed = {header(stage) for kernel in program.kernels for stage in kernel.stages}
    for name in sorted(name for name in needed if name is not None):
        parts.out.write(f'#include "{name}"')
    parts.out.write(PRELUDE)
    for number, kernel in enumerate(program.kernels):
        parts.kernels[kernel.name] = kernel
        parts.numbers[kernel.name] = number
        _print_kernel(parts, kernel)
    arguments = _arguments(parts)
    parts.places = {buffer.slot: place for place, buffer in enumerate(arguments)}
    parts.limits = {limit_register(slot): place for slot, place in parts.places.items()}
    functions = program.tree.functions
    for function in functions:
        parts.out.write(f"static bool {parts.signature(function)};")
    for function in functions:
        FunctionPrinter(parts, function).print()
    _print_entry(parts)
    recursive = any(isinstance(node, Call) for f in functions for node in walk(f.body))
    names = tuple(parts.kernels)
    return Source(parts.out.text(), arguments, tuple(parts.library), names, recursive)


def _print_kernel(parts: Parts, kernel: Kernel) -> None:
    """Enters a kernel's text; a text that is there already is not printed again."""
    if kernel.call is not None:
        parts.library.append(kernel.call)
        operands = kernel.call.operands
        buffers = tuple(item for item in operands if isinstance(item, Buffer))
        regs = tuple(item for item in operands if isinstance(item, Reg))
        parts.texts[kernel.name] = KernelText("", buffers, regs)
        return
    text = parts.texts[kernel.name] = print_kernel(kernel)
    if text.body not in parts.kernel_names:
        name = parts.kernel_names[text.body] = f"k_{identifier(kernel.name)}"
        parts.out.write(f"__attribute__((noinline)) static void {name}{text.body}")


def _arguments(parts: Parts) -> tuple[Buffer, ...]:
    """The argument block: all externals, but of constants only those that the text mentions."""
    mentioned: set[Buffer] = set()
    for function in parts.program.tree.functions:
        mentioned |= used(function.body, parts.texts)[0]
    externals = parts.program.tree.externals
    buffers = [b for b in externals if b.kind != "constant" or b in mentioned]
    return tuple(sorted(buffers, key=lambda b: b.kind == "constant"))


def _print_entry(parts: Parts) -> None:
    main, out = parts.program.tree.main, parts.out
    out.write('extern "C" void stretto_run(stretto::Context* ctx, int unit)')
    with out.block():
        out.write("State s{ctx, unit, 0, 0, 0};")
        frame = parts.program.frame("main").nbytes
        out.write(f"if (!stretto::arena_left(ctx, {frame})) return;")
        for number, reg in enumerate(main.results):
            out.write(f"{VALUE_TYPES[reg.dtype]} result_{number} = 0;")
        results = "".join(f", result_{n}" for n in range(len(main.results)))
        out.write(f"if (!{parts.function_name('main')}(s, ctx->arena{results})) return;")
        for number in range(len(main.results)):
            out.write(f"if (unit == 0) ctx->results[{number}] = int64_t(result_{number});")
