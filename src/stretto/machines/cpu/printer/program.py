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
from stretto.machines.cpu.printer.function import (
    ProgramParts,
    UnitPrinter,
    result,
)
from stretto.machines.cpu.printer.kernel import KernelText, print_kernel
from stretto.machines.cpu.printer.stage import header
from stretto.machines.dialects import cpp_signature, write_cpp_function
from stretto.machines.statements import Builder, Function, If, Raw, Return, Store
from stretto.machines.terms import call, infix, joined, literal, prefix, variable
from stretto.machines.usage import used
from stretto.text import Writer

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


CTX, UNIT = variable("ctx"), variable("unit")


def print_program(program: DeviceProgram) -> Source:
    """C++ text of a verified DeviceProgram."""
    parts = ProgramParts(program)
    out = Writer()
    needed = {header(stage) for kernel in program.kernels for stage in kernel.stages}
    for name in sorted(name for name in needed if name is not None):
        out.write(f'#include "{name}"')
    out.write(PRELUDE)
    for number, kernel in enumerate(program.kernels):
        parts.kernels[kernel.name] = kernel
        parts.numbers[kernel.name] = number
        _add_kernel(parts, kernel)
    for function, name in parts.kernel_names.items():
        write_cpp_function(f"__attribute__((noinline)) static void {name}", function, out)
        out.write()
    arguments = _arguments(parts)
    parts.places = {buffer.slot: place for place, buffer in enumerate(arguments)}
    parts.limits = {limit_register(slot): place for slot, place in parts.places.items()}
    functions = {
        f"static bool {parts.function_name(function.name)}": UnitPrinter(parts, function).print()
        for function in program.tree.functions
    }
    for head, function in functions.items():
        out.write(f"{cpp_signature(head, function)};")
    for head, function in functions.items():
        write_cpp_function(head, function, out)
    write_cpp_function('extern "C" void stretto_run', _entry(parts), out)
    calls = (node for f in program.tree.functions for node in walk(f.body))
    recursive = any(isinstance(node, Call) for node in calls)
    names = tuple(parts.kernels)
    return Source(out.text(), arguments, tuple(parts.library), names, recursive)


def _add_kernel(parts: ProgramParts, kernel: Kernel) -> None:
    """Enters a kernel; equal functions are one."""
    if kernel.call is not None:
        parts.library.append(kernel.call)
        operands = kernel.call.operands
        buffers = tuple(item for item in operands if isinstance(item, Buffer))
        regs = tuple(item for item in operands if isinstance(item, Reg))
        parts.texts[kernel.name] = KernelText(Function((), ()), buffers, regs)
        return
    text = parts.texts[kernel.name] = print_kernel(kernel)
    parts.kernel_names.setdefault(text.function, f"k_{identifier(kernel.name)}")


def _arguments(parts: ProgramParts) -> tuple[Buffer, ...]:
    """The argument block: all externals, but of constants only those that the text mentions."""
    mentioned: set[Buffer] = set()
    for function in parts.program.tree.functions:
        mentioned |= used(function.body, parts.texts)[0]
    externals = parts.program.tree.externals
    buffers = [b for b in externals if b.kind != "constant" or b in mentioned]
    return tuple(sorted(buffers, key=lambda b: b.kind == "constant"))


def _entry(parts: ProgramParts) -> Function:
    """The function that a unit enters the program by."""
    main, out = parts.program.tree.main, Builder()
    out.add(Raw(literal("State s{ctx, unit, 0, 0, 0};"), variable("s")))
    room = call("stretto::arena_left", CTX, parts.program.frame("main").nbytes)
    out.add(If(prefix("!", room), (Return(),)))
    results = [result(number) for number in range(len(main.results))]
    for name, reg in zip(results, main.results, strict=True):
        out.assign(name, 0, VALUE_TYPES[reg.dtype])
    done = call(parts.function_name("main"), "s", "ctx->arena", *results)
    out.add(If(prefix("!", done), (Return(),)))
    for number, name in enumerate(results):
        place = literal(f"ctx->results[{number}]")
        out.add(If(infix(UNIT, "==", 0), (Store(None, place, call("int64_t", name)),)))
    return Function(
        (joined("stretto::Context* ", CTX), joined("int ", UNIT)), tuple(out.statements)
    )
