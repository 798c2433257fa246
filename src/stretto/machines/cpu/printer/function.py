"""Prints a function of a DeviceProgram: declarations, control flow, and what each unit does."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Access, Buffer, Expr, Reg
from stretto.device.operator import Kernel, LibraryCall
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, Seq, TreeFunction, While
from stretto.errors import CodegenError
from stretto.machines.cpu.printer.expr import (
    MEMORY_TYPES,
    VALUE_TYPES,
    ExprPrinter,
    Names,
    identifier,
)
from stretto.machines.cpu.printer.kernel import KernelText, task_count
from stretto.machines.cpu.printer.nest import applies
from stretto.machines.usage import used
from stretto.text import Writer

LONG_SECONDS = 2e-5
"""Work after which a unit looks whether the run is to end: a look takes about 30 ns."""


@dataclass(slots=True)
class Parts:
    """What the functions of a program share.

    texts: of kernels, by name; kernel_names: the C++ function of each text. places: where the
    buffer of a slot stands in the argument block; limits: the same place, of the register that
    holds the capacity. library: the calls, numbered as they come.
    """

    program: DeviceProgram
    out: Writer = field(default_factory=Writer)
    texts: dict[str, KernelText] = field(default_factory=dict[str, KernelText])
    kernel_names: dict[str, str] = field(default_factory=dict[str, str])
    kernels: dict[str, Kernel] = field(default_factory=dict[str, Kernel])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    places: dict[int, int] = field(default_factory=dict[int, int])
    limits: dict[Reg, int] = field(default_factory=dict[Reg, int])
    library: list[LibraryCall] = field(default_factory=list[LibraryCall])

    def function_name(self, name: str) -> str:
        """Names that differ in signs only stay apart by their number."""
        names = [function.name for function in self.program.tree.functions]
        return f"f{names.index(name)}_{identifier(name)}"

    def signature(self, function: TreeFunction[Schedule]) -> str:
        arguments = ["State& s", "char* frame"]
        arguments += [f"{VALUE_TYPES[reg.dtype]} {reg_name(reg)}" for reg in function.params]
        arguments += [f"{MEMORY_TYPES[b.dtype]}* {buffer_name(b)}" for b in function.tensors]
        arguments += [
            f"{VALUE_TYPES[reg.dtype]}& result_{n}" for n, reg in enumerate(function.results)
        ]
        return f"{self.function_name(function.name)}({', '.join(arguments)})"


def reg_name(reg: Reg) -> str:
    return f"r_{identifier(reg.name)}"


def buffer_name(buffer: Buffer) -> str:
    number = buffer.slot if buffer.slot >= 0 else ""
    return f"b{number}_{identifier(buffer.name)}"


@dataclass(slots=True)
class FunctionPrinter:
    parts: Parts
    function: TreeFunction[Schedule]

    @property
    def out(self) -> Writer:
        return self.parts.out

    @property
    def names(self) -> Names:
        return Names(buffer_name, self.reg, lambda number: f"i{number}")

    def reg(self, reg: Reg) -> str:
        place = self.parts.limits.get(reg)
        return reg_name(reg) if place is None else f"s.ctx->limits[{place}]"

    def print(self) -> None:
        program = self.parts.program
        function = self.function
        self.out.write(f"static bool {self.parts.signature(function)}")
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
        buffers, regs = used(self.function.body, self.parts.texts)
        frame = self.parts.program.frame(self.function.name)
        for buffer in sorted(buffers, key=lambda b: b.name):
            kind = MEMORY_TYPES[buffer.dtype]
            match buffer.kind:
                case "param":
                    continue
                case "local" | "items":
                    place = f"frame + {frame[buffer.name].offset}"
                case _:
                    place = f"s.ctx->buffers[{self.parts.places[buffer.slot]}]"
            self.out.write(f"[[maybe_unused]] {kind}* {buffer_name(buffer)} = ({kind}*)({place});")
        for reg in sorted(regs, key=lambda r: r.name):
            if reg not in self.function.params and reg not in self.parts.limits:
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
            following = f"at += {node.step}"
            if abs(node.step) > 1:  # without overflow behind the largest number
                size = abs(node.step)
                left = "uint64_t(stop) - at" if node.step > 0 else "uint64_t(at) - stop"
                following = f"at = {left} > {size} ? at + {node.step} : stop"
            self.out.write(f"for (int64_t at = start; at {compare} stop; {following})")
            with self.out.block():
                self.out.write(f"{self.reg(node.index)} = at;")
                self.node(node.body)
                self.rotate(node.rotate)

    def rotate(self, pairs: tuple[tuple[Buffer, Buffer], ...]) -> None:
        """The end of an iteration: buffers trade places, interrupts are let in."""
        for current, following in pairs:
            self.out.write(f"stretto::swap({buffer_name(current)}, {buffer_name(following)});")
        self.out.write("if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;")

    def call(self, node: Call[Schedule]) -> None:
        callee = self.parts.program.tree.function(node.function)
        frame = self.parts.program.frame(self.function.name).nbytes
        registers = dict(node.registers)
        tensors = dict(node.tensors)
        arguments = ["s", f"frame + {frame}"]
        arguments += [self.scalar(registers[reg]) for reg in callee.params]
        arguments += [self.pointer(tensors[buffer]) for buffer in callee.tensors]
        returned = {theirs: mine for mine, theirs in node.results}
        arguments += [self.reg(returned[reg]) for reg in callee.results]
        name = self.parts.function_name(node.function)
        self.out.write(f"if (!{name}({', '.join(arguments)})) return false;")

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
            case Wait():
                self.wait(item)
            case Signal(step):
                self.out.write(f"stretto::signal(s.ctx, s.unit, s.base + {step});")
            case Let(reg, value):
                self.out.write(f"{self.reg(reg)} = {self.scalar(value)};")
            case Check():
                self.check(item)

    def wait(self, item: Wait) -> None:
        first, last = item.unit, item.unit + item.count
        step = f"s.base + {item.step}"
        if item.count == 1:
            self.out.write(f"if (!stretto::wait(s.ctx, s.unit, {first}, {step})) return false;")
            return
        self.out.write(f"for (int other = {first}; other < {last}; ++other)")
        with self.out.indent():
            self.out.write(
                "if (other != s.unit && "
                f"!stretto::wait(s.ctx, s.unit, other, {step})) return false;"
            )

    def check(self, item: Check) -> None:
        codes = {"list_full": "LIST_FULL", "index": "INDEX", "assertion": "ASSERTION"}
        code = codes.get(item.code)
        if code is None:
            raise CodegenError(f"unknown check {item.code}")
        condition = self.scalar(item.condition)
        subject = self.parts.places[item.subject] if item.code == "list_full" else item.subject
        detail = str(subject)
        if item.detail is not None:
            detail = f"stretto::packed_detail({subject}, {self.scalar(item.detail)})"
        self.out.write(
            f"if (!({condition})) return stretto::fail(s.ctx, stretto::{code}, {detail});"
        )

    def run(self, item: Run) -> None:
        kernel = self.parts.kernels[item.kernel]
        if kernel.call is not None:
            self.library_call(kernel.call)
            return
        text = self.parts.texts[item.kernel]
        number = self.parts.numbers[item.kernel]
        arguments = [
            "s.ctx",
            *(buffer_name(b) for b in text.buffers),
            *(self.reg(r) for r in text.regs),
        ]
        call = f"{self.parts.kernel_names[text.body]}({', '.join(arguments)}, task);"
        if item.count is None:
            regs = {
                dim.extent: self.reg(dim.extent)
                for dim in kernel.grid
                if isinstance(dim.extent, Reg)
            }
            last = task_count(kernel, regs)
        else:
            last = str(min(item.first + item.count * item.stride, kernel.tasks))
        go_on = "if (!stretto::go_on(s.ctx, s.unit)) return false;"
        is_long = kernel.seconds >= LONG_SECONDS
        self.out.write(f"for (int64_t task = {item.first}; task < {last}; task += {item.stride})")
        with self.out.block():
            self.out.write(f"STRETTO_TASK(s.ctx, s.unit, {number}, task)")
            with self.out.block():
                self.out.write(call)
            if is_long:
                self.out.write(go_on)
        if not is_long and kernel.seconds * (item.count or 1) >= LONG_SECONDS:
            self.out.write(go_on)
        elif self.checks(kernel):
            self.out.write("if (stretto::stopped(s.ctx)) return false;")

    def checks(self, kernel: Kernel) -> bool:
        return any(a.function == "checked" for s in kernel.stages for a in applies(s.operator))

    def library_call(self, call: LibraryCall) -> None:
        number = self.parts.library.index(call)
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
