"""Prints a DeviceProgram as one C++ source for the CPU machine.

Every unit runs the same functions; what a unit does in a leaf is a case of a switch. Control flow
of the program is control flow of C++, registers are local variables, a recursive function is a
recursive C++ function with its frame of buffers in the arena. See abi.h for how the text is entered
and what it may use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.codegen.cpp_expr import (
    MEMORY_TYPES,
    VALUE_TYPES,
    ExprPrinter,
    Names,
    identifier,
)
from stretto.codegen.cpp_kernel import KernelText, print_kernel, task_count
from stretto.codegen.cpp_nest import applies
from stretto.errors import CodegenError
from stretto.kernels.expr import Access, Buffer, Expr, Reg, expr_regs, loads
from stretto.kernels.operator import Kernel, LibraryCall
from stretto.kernels.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    TreeFunction,
    While,
    walk,
)
from stretto.schedule.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.text import Writer

PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include "abi.h"
#include "math.h"
#include "contract.h"
#include "conv.h"
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


@dataclass(slots=True)
class ProgramPrinter:
    program: DeviceProgram
    out: Writer = field(default_factory=Writer)
    functions: dict[str, str] = field(default_factory=dict[str, str])
    texts: dict[str, KernelText] = field(default_factory=dict[str, KernelText])
    kernels: dict[str, Kernel] = field(default_factory=dict[str, Kernel])
    library: list[LibraryCall] = field(default_factory=list[LibraryCall])
    places: dict[int, int] = field(default_factory=dict[int, int])

    def print(self) -> Source:
        self.out.write(PRELUDE)
        self.kernels = {kernel.name: kernel for kernel in self.program.kernels}
        for kernel in self.program.kernels:
            self.kernel(kernel)
        arguments = self.arguments()
        self.places = {buffer.slot: place for place, buffer in enumerate(arguments)}
        for function in self.program.tree.functions:
            self.out.write(f"static bool {self.signature(function)};")
        for function in self.program.tree.functions:
            FunctionPrinter(self, function).print()
        self.entry()
        recursive = any(
            isinstance(node, Call) for f in self.program.tree.functions for node in walk(f.body)
        )
        return Source(
            self.out.text(), arguments, tuple(self.library), tuple(self.kernels), recursive
        )

    def arguments(self) -> tuple[Buffer, ...]:
        mentioned: set[Buffer] = set()
        for function in self.program.tree.functions:
            mentioned |= used(function.body, self.kernels)[0]
        buffers = [b for b in self.program.tree.externals if b.kind != "constant" or b in mentioned]
        return tuple(sorted(buffers, key=lambda b: b.kind == "constant"))

    def kernel(self, kernel: Kernel) -> None:
        if kernel.call is not None:
            self.library.append(kernel.call)
            return
        text = print_kernel(kernel)
        self.texts[kernel.name] = text
        if text.body not in self.functions:
            self.functions[text.body] = f"k_{identifier(kernel.name)}"
            self.out.write(
                f"__attribute__((noinline)) static void {self.functions[text.body]}{text.body}"
            )

    def signature(self, function: TreeFunction[Schedule]) -> str:
        arguments = ["State& s", "char* frame"]
        arguments += [f"{VALUE_TYPES[reg.dtype]} {reg_name(reg)}" for reg in function.params]
        arguments += [f"{MEMORY_TYPES[b.dtype]}* {buffer_name(b)}" for b in function.tensors]
        arguments += [
            f"{VALUE_TYPES[reg.dtype]}& result_{n}" for n, reg in enumerate(function.results)
        ]
        return f"f_{identifier(function.name)}({', '.join(arguments)})"

    def entry(self) -> None:
        main = self.program.tree.main
        self.out.write('extern "C" void stretto_run(stretto::Context* ctx, int unit)')
        with self.out.block():
            self.out.write("State s{ctx, unit, 0, 0, 0};")
            frame = self.program.frame("main").nbytes
            self.out.write(f"if (!stretto::arena_left(ctx, {frame})) return;")
            for number, reg in enumerate(main.results):
                self.out.write(f"{VALUE_TYPES[reg.dtype]} result_{number} = 0;")
            results = "".join(f", result_{n}" for n in range(len(main.results)))
            self.out.write(f"if (!f_main(s, ctx->arena{results})) return;")
            for number in range(len(main.results)):
                self.out.write(f"if (unit == 0) ctx->results[{number}] = int64_t(result_{number});")


def reg_name(reg: Reg) -> str:
    return f"r_{identifier(reg.name)}"


def buffer_name(buffer: Buffer) -> str:
    return (
        f"b_{identifier(buffer.name)}_{buffer.slot}"
        if buffer.slot >= 0
        else f"b_{identifier(buffer.name)}"
    )


@dataclass(slots=True)
class FunctionPrinter:
    owner: ProgramPrinter
    function: TreeFunction[Schedule]

    @property
    def out(self) -> Writer:
        return self.owner.out

    @property
    def names(self) -> Names:
        return Names(buffer_name, self.reg, lambda number: f"i{number}")

    def reg(self, reg: Reg) -> str:
        if reg.name.startswith("limit."):
            return f"s.ctx->limits[{self.owner.places[int(reg.name.removeprefix('limit.'))]}]"
        return reg_name(reg)

    def print(self) -> None:
        program = self.owner.program
        function = self.function
        self.out.write(f"static bool {self.owner.signature(function)}")
        with self.out.block():
            if function.name != "main":
                size = program.frame(function.name).nbytes
                self.out.write("if (!stretto::depth_left(s.ctx, s.unit, ++s.depth)) return false;")
                self.out.write(
                    f"if (!stretto::arena_left(s.ctx, frame - s.ctx->arena + {size})) return false;"
                )
                self.out.write("if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;")
            self.declare()
            self.node(function.body)
            for number, reg in enumerate(function.results):
                self.out.write(f"result_{number} = {self.reg(reg)};")
            if function.name != "main":
                self.out.write("--s.depth;")
            self.out.write("return true;")

    # ---- declarations ------------------------------------------------------------------------
    def declare(self) -> None:
        buffers, regs = used(self.function.body, self.owner.kernels)
        frame = self.owner.program.frame(self.function.name)
        for buffer in sorted(buffers, key=lambda b: b.name):
            kind = MEMORY_TYPES[buffer.dtype]
            match buffer.kind:
                case "param":
                    continue
                case "local" | "items":
                    place = f"frame + {frame[buffer.name].offset}"
                case _:
                    place = f"s.ctx->buffers[{self.owner.places[buffer.slot]}]"
            self.out.write(f"[[maybe_unused]] {kind}* {buffer_name(buffer)} = ({kind}*)({place});")
        for reg in sorted(regs, key=lambda r: r.name):
            if reg not in self.function.params and not reg.name.startswith("limit"):
                self.out.write(f"[[maybe_unused]] {VALUE_TYPES[reg.dtype]} {reg_name(reg)} = 0;")

    # ---- control -----------------------------------------------------------------------------
    def node(self, node: Node[Schedule]) -> None:
        match node:
            case Leaf(schedule):
                self.leaf(schedule)
            case Seq(children):
                for child in children:
                    self.node(child)
            case For():
                self.for_loop(node)
            case While(head, condition, body, rotate):
                self.out.write("for (;;)")
                with self.out.block():
                    self.node(head)
                    self.out.write(f"if (!{self.reg(condition)}) break;")
                    self.node(body)
                    self.rotate(rotate)
            case If(condition, then, orelse):
                self.out.write(f"if ({self.reg(condition)})")
                with self.out.block():
                    self.node(then)
                self.out.write("else")
                with self.out.block():
                    self.node(orelse)
            case Call():
                self.call(node)

    def for_loop(self, node: For[Schedule]) -> None:
        with self.out.block():
            self.out.write(
                f"const int64_t start = {self.scalar(node.start)}, stop = {self.scalar(node.stop)};"
            )
            compare = "<" if node.step > 0 else ">"
            self.out.write(f"for (int64_t at = start; at {compare} stop; at += {node.step})")
            with self.out.block():
                self.out.write(f"{self.reg(node.index)} = at;")
                self.node(node.body)
                self.rotate(node.rotate)

    def rotate(self, pairs: tuple[tuple[Buffer, Buffer], ...]) -> None:
        """The end of an iteration: buffers trade places, interrupts are let in."""
        for current, following in pairs:
            self.out.write(f"std::swap({buffer_name(current)}, {buffer_name(following)});")
        self.out.write("if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;")

    def call(self, node: Call[Schedule]) -> None:
        callee = self.owner.program.tree.function(node.function)
        frame = self.owner.program.frame(self.function.name).nbytes
        registers = dict(node.registers)
        tensors = dict(node.tensors)
        arguments = ["s", f"frame + {frame}"]
        arguments += [self.scalar(registers[reg]) for reg in callee.params]
        arguments += [self.pointer(tensors[buffer]) for buffer in callee.tensors]
        returned = {theirs: mine for mine, theirs in node.results}
        arguments += [self.reg(returned[reg]) for reg in callee.results]
        self.out.write(f"if (!f_{identifier(node.function)}({', '.join(arguments)})) return false;")

    def pointer(self, access: Access) -> str:
        return ExprPrinter(self.names, inline=1).pointer(access.buffer, access.offset)

    def scalar(self, expr: Expr) -> str:
        return ExprPrinter(self.names, inline=1).expr(expr)

    # ---- leaves ------------------------------------------------------------------------------
    def leaf(self, schedule: Schedule) -> None:
        if len(set(schedule.units)) == 1 and not any(
            isinstance(i, Run | Wait) for i in schedule.units[0]
        ):
            for item in schedule.units[0]:
                self.item(item)
        else:
            self.out.write("switch (s.unit)")
            with self.out.block():
                for unit, items in enumerate(schedule.units):
                    self.out.write(f"case {unit}:")
                    with self.out.block():
                        for item in items:
                            self.item(item)
                        self.out.write("break;")
        if schedule.steps:
            self.out.write(f"s.base += {schedule.steps};")
            self.out.write("stretto::signal(s.ctx, s.unit, s.base);")

    def item(self, item: Item) -> None:
        match item:
            case Run():
                self.run(item)
            case Wait(unit, step):
                self.out.write(
                    f"if (!stretto::wait(s.ctx, s.unit, {unit}, s.base + {step})) return false;"
                )
            case Signal(step):
                self.out.write(f"stretto::signal(s.ctx, s.unit, s.base + {step});")
            case Let(reg, value):
                self.out.write(f"{self.reg(reg)} = {self.scalar(value)};")
            case Check():
                self.check(item)

    def check(self, item: Check) -> None:
        codes = {"list_full": "LIST_FULL", "index": "INDEX", "assertion": "ASSERTION"}
        code = codes.get(item.code)
        if code is None:
            raise CodegenError(f"unknown check {item.code}")
        condition = self.scalar(item.condition)
        subject = self.owner.places[item.subject] if item.code == "list_full" else item.subject
        self.out.write(
            f"if (!({condition})) return stretto::fail(s.ctx, stretto::{code}, {subject});"
        )

    def run(self, item: Run) -> None:
        kernel = self.owner.kernels[item.kernel]
        if kernel.call is not None:
            self.library_call(kernel.call)
            return
        text = self.owner.texts[item.kernel]
        number = list(self.owner.kernels).index(item.kernel)
        arguments = [
            "s.ctx",
            *(buffer_name(b) for b in text.buffers),
            *(self.reg(r) for r in text.regs),
        ]
        call = f"{self.owner.functions[text.body]}({', '.join(arguments)}, task);"
        if item.count is None:
            regs = {
                dim.extent: self.reg(dim.extent)
                for dim in kernel.grid
                if isinstance(dim.extent, Reg)
            }
            last = task_count(kernel, regs)
        else:
            last = str(min(item.first + item.count * item.stride, kernel.tasks))
        self.out.write(f"for (int64_t task = {item.first}; task < {last}; task += {item.stride})")
        with self.out.block():
            self.out.write(f"STRETTO_TASK(s.ctx, s.unit, {number}, task)")
            with self.out.block():
                self.out.write(call)
        if self.checks(kernel):
            self.out.write("if (stretto::stopped(s.ctx)) return false;")

    def checks(self, kernel: Kernel) -> bool:
        return any(a.function == "checked" for s in kernel.stages for a in applies(s.operator))

    def library_call(self, call: LibraryCall) -> None:
        number = self.owner.library.index(call)
        operands: list[str] = []
        with self.out.block():
            for n, item in enumerate(call.operands):
                if isinstance(item, Buffer):
                    operands.append(f"(void*){buffer_name(item)}")
                else:
                    kind = "double" if item.dtype.is_float else "int64_t"
                    self.out.write(f"{kind} scalar{n} = {kind}({self.reg(item)});")
                    operands.append(f"(void*)&scalar{n}")
            self.out.write(f"void* operands[] = {{{', '.join([*operands, 'nullptr'])}}};")
            self.out.write(
                f"if (!stretto::call_library(s.ctx, s.unit, {number}, operands)) return false;"
            )


def used(body: Node[Schedule], kernels: dict[str, Kernel]) -> tuple[set[Buffer], set[Reg]]:
    """Buffers and registers that a function's text mentions."""
    buffers: set[Buffer] = set()
    regs: set[Reg] = set()

    def expr(value: Expr) -> None:
        regs.update(expr_regs(value))
        buffers.update(load.access.buffer for load in loads(value))

    for node in walk(body):
        match node:
            case Leaf(schedule):
                for item in (i for items in schedule.units for i in items):
                    match item:
                        case Let(reg, value):
                            regs.add(reg)
                            expr(value)
                        case Check(condition):
                            expr(condition)
                        case Run(kernel=name):
                            _used_by_kernel(kernels[name], buffers, regs)
                        case _:
                            pass
            case For(index, start, stop, _, _, rotate):
                regs.add(index)
                expr(start)
                expr(stop)
                buffers.update(b for pair in rotate for b in pair)
            case While(_, condition, _, rotate):
                regs.add(condition)
                buffers.update(b for pair in rotate for b in pair)
            case If(condition):
                regs.add(condition)
            case Call(_, registers, tensors, results):
                for _, value in registers:
                    expr(value)
                for _, access in tensors:
                    buffers.add(access.buffer)
                    regs.update(r for i in access.index for r in i.atoms() if isinstance(r, Reg))
                regs.update(mine for mine, _ in results)
            case Seq():
                pass
    return buffers, regs


def _used_by_kernel(kernel: Kernel, buffers: set[Buffer], regs: set[Reg]) -> None:
    if kernel.call is not None:
        for item in kernel.call.operands:
            (buffers if isinstance(item, Buffer) else regs).add(item)  # pyright: ignore[reportArgumentType]
        return
    text = print_kernel(kernel)
    buffers.update(text.buffers)
    regs.update(text.regs)
    regs.update(dim.extent for dim in kernel.grid if isinstance(dim.extent, Reg))


def print_program(program: DeviceProgram) -> Source:
    """C++ text of a verified DeviceProgram."""
    return ProgramPrinter(program).print()
