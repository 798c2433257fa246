"""Printing of a DeviceProgram as one C++ source for the CPU machine.

Every unit runs the same functions; the items of each unit in a leaf are a case of a switch. Control
flow of the program is control flow of C++, registers are local variables, and a recursive function
is a recursive C++ function with its frame of buffers in the arena. See abi.h for how the text is
entered and what it may use.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall, label
from stretto.device.program import DeviceProgram, Small
from stretto.device.tree import is_loop
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, identifier
from stretto.machines.cpu.printer.function import (
    SourceParts,
    UnitPrinter,
    nbytes,
    result,
)
from stretto.machines.cpu.printer.kernel import definitions, header, print_kernels, shared
from stretto.machines.cpu.template import Shared
from stretto.machines.statements import (
    Branch,
    FunctionDefinition,
    Raw,
    Return,
    StatementBuilder,
    Store,
    cpp_signature,
    write_cpp_function,
)
from stretto.machines.terms import call, infix, joined, literal, prefix, variable
from stretto.runtime.compiler import NAMES
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
class CppSource:
    """The printed text, and what the runtime needs with it.

    `arguments`: the buffers of Context.buffers in order, constants last (those that nothing reads
    are left out). `library` and `kernels` are numbered as in the program. `splits`: the text can be
    compiled in parts. `straight`: the code that calls the kernels has no loops. `shared`: instances
    to link with. `decisions`: titles of the control nodes whose decisions are traced, by number.
    """

    text: str
    arguments: tuple[Buffer, ...]
    library: tuple[LibraryCall, ...]
    kernels: tuple[str, ...]
    recursive: bool
    splits: bool
    straight: bool
    shared: tuple[Shared, ...]
    decisions: tuple[str, ...]


_SEVERAL_KERNELS = 6
"""Number of different kernels from which it pays to compile a program in parts."""

CTX, UNIT = variable("ctx"), variable("unit")


def print_program(program: DeviceProgram) -> CppSource:
    """Return the C++ text of a verified DeviceProgram."""
    parts = SourceParts(program)
    out = Writer()
    stages = [stage for kernel in program.kernels for stage in kernel.stages]
    for name in sorted({name for stage in stages if (name := header(stage)) is not None}):
        out.write(f'#include "{name}"')
    out.write(PRELUDE)
    linked = tuple(sorted({item for stage in stages for item in shared(stage)}))
    for item in linked:
        out.write(item.declaration)
    for text in sorted({text for stage in stages for text in definitions(stage)}):
        out.write(text)
    parts.library += [kernel.call for kernel in program.kernels if kernel.call is not None]
    parts.texts = print_kernels(kernel for kernel in program.kernels if kernel.call is None)
    kernels: dict[FunctionDefinition, str] = {}  # Equal functions are printed once.
    for kernel, text in parts.texts.items():
        if text.function not in kernels:
            kernels[text.function] = f"k{len(kernels)}_{identifier(label(kernel))}"
        parts.names[kernel] = kernels[text.function]
    splits = len(kernels) >= _SEVERAL_KERNELS
    _write_kernels(kernels, parts.names, splits, out)
    functions = {
        f"static bool {parts.function_name(function.name)}": UnitPrinter(parts, function).print()
        for function in program.tree.functions
    }
    if splits:
        out.write("#if STRETTO_CALLS")
    for head, function in functions.items():
        out.write(f"{cpp_signature(head, function)};")
    for head, function in functions.items():
        write_cpp_function(head, function, out)
    write_cpp_function('extern "C" void stretto_run', _entry(parts), out)
    if program.small is not None:
        write_cpp_function(
            'extern "C" int32_t stretto_is_small', _is_small(parts, program.small), out
        )
    if splits:
        out.write("#endif")
    straight = not parts.recursive and not any(map(is_loop, program.tree.walk()))
    library, names = tuple(parts.library), tuple(parts.kernels)
    arguments = tuple(parts.arguments)
    return CppSource(
        out.text(),
        arguments,
        library,
        names,
        parts.recursive,
        splits,
        straight,
        linked,
        tuple(parts.decisions),
    )


def _write_kernels(
    kernels: dict[FunctionDefinition, str], users: dict[str, str], splits: bool, out: Writer
) -> None:
    """Write the definitions, each with a comment that names the kernels in `users` that it is for.
    If the program can be compiled in parts, the definitions are dealt to the parts round-robin
    in order of length."""
    shown = defaultdict[str, list[str]](list)
    for kernel, name in users.items():
        shown[name].append(kernel)
    if not splits:
        for function, name in kernels.items():
            out.write(_comment(shown[name]))
            write_cpp_function(f"__attribute__((noinline)) static void {name}", function, out)
            out.write()
        return
    lengths = {name: len(function.body) for function, name in kernels.items()}
    places = {name: n for n, name in enumerate(sorted(lengths, key=lengths.__getitem__))}
    for function, name in kernels.items():
        out.write(f"{cpp_signature(f'STRETTO_KERNEL void {name}', function)};")
    for function, name in kernels.items():
        out.write(f"#if STRETTO_IN_PART({places[name]})")
        out.write(_comment(shown[name]))
        write_cpp_function(f"void {name}", function, out)
        out.write("#endif")
        out.write()


def _comment(kernels: list[str]) -> str:
    first, *others = kernels
    return f"{NAMES}{first}" + (f" and {len(others)} more" if others else "")


def _is_small(parts: SourceParts, small: Small) -> FunctionDefinition:
    """Return the function that tells if a call has less work than waking threads costs."""
    work = nbytes(small.work, lambda reg: literal(f"ctx->sizes[{parts.sizes[reg]}]"))
    found = call("stretto::is_below", work, small.limit)
    return FunctionDefinition((joined("stretto::Context* ", CTX),), (Return((found,)),))


def _entry(parts: SourceParts) -> FunctionDefinition:
    """Return the function through which a unit enters the program."""
    main, out = parts.program.tree.main, StatementBuilder()
    out.add(Raw(literal("State s{ctx, unit, 0, 0, 0};"), variable("s")))
    size = nbytes(
        parts.program.frame("main").end, lambda reg: literal(f"ctx->sizes[{parts.sizes[reg]}]")
    )
    room = call("stretto::arena_left", CTX, size)
    out.add(Branch(prefix("!", room), (Return(),)))
    results = [result(number) for number in range(len(main.results))]
    for name, reg in zip(results, main.results, strict=True):
        out.assign(name, 0, VALUE_TYPES[reg.dtype])
    done = call(parts.function_name("main"), "s", "ctx->arena", *results)
    out.add(Branch(prefix("!", done), (Return(),)))
    for number, name in enumerate(results):
        place = literal(f"ctx->results[{number}]")
        out.add(Branch(infix(UNIT, "==", 0), (Store(None, place, call("int64_t", name)),)))
    return FunctionDefinition(
        (joined("stretto::Context* ", CTX), joined("int ", UNIT)), tuple(out.statements)
    )
