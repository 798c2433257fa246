"""Printing of a function of a DeviceProgram as C++ statements: control flow, and the items of
leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stretto.device.expr import Buffer, Expr, Index, Reg
from stretto.device.operator import LibraryCall
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Check, For, If, Let, Loop, Rotation, TreeFunction, title
from stretto.ir.sizes import Size
from stretto.machines import statements as code
from stretto.machines.control_printer import ControlPrinter, ProgramParts, is_checked
from stretto.machines.cpu.printer.cpp_terms import (
    MEMORY_TYPES,
    VALUE_TYPES,
    ScalarPrinter,
    identifier,
)
from stretto.machines.cpu.printer.kernel import TASK, KernelText, task_count
from stretto.machines.terms import (
    Term,
    call,
    filled,
    infix,
    joined,
    literal,
    prefix,
    separated,
    variable,
)
from stretto.runtime.results import Status

LONG_SECONDS = 2e-5
"""Seconds of work after which a unit checks if the run is to end: a check takes about 30 ns."""
CONTEXT, UNIT, BASE, EDGES, DEPTH, OTHER, FRAME = map(
    variable, ("s.ctx", "s.unit", "s.base", "s.edges", "s.depth", "other", "frame")
)
FALSE = code.Return((literal("false"),))


class SourceParts(ProgramParts):
    """Data that the functions of a program share.

    texts: printed kernels by name; names: the C++ function of each. library: the library calls, by
    number. decisions: the titles of the control nodes whose decisions are traced, by number.
    """

    def __init__(self, program: DeviceProgram) -> None:
        super().__init__(program)
        self.texts: dict[str, KernelText] = {}
        self.names: dict[str, str] = {}
        self.numbers = {name: number for number, name in enumerate(self.kernels)}
        self.library: list[LibraryCall] = []
        self.decisions: list[str] = []

    def function_name(self, name: str) -> str:
        """Return the C++ name of a function; a number separates names that differ only in signs."""
        names = [function.name for function in self.program.tree.functions]
        return f"f{names.index(name)}_{identifier(name)}"


def reg_name(reg: Reg) -> Term:
    return variable(f"r_{identifier(reg.name)}")


def buffer_name(buffer: Buffer) -> Term:
    number = buffer.slot if buffer.slot >= 0 else ""
    return variable(f"b{number}_{identifier(buffer.name)}")


def result(number: int) -> Term:
    """Return the parameter through which a function returns a register."""
    return variable(f"result_{number}")


def parameters(function: TreeFunction[Schedule]) -> tuple[Term, ...]:
    return (
        literal("State& s"),
        joined("char* ", FRAME),
        *(joined(f"{VALUE_TYPES[reg.dtype]} ", reg_name(reg)) for reg in function.params),
        *(joined(f"{MEMORY_TYPES[b.dtype]}* ", buffer_name(b)) for b in function.tensors),
        *(
            joined(f"{VALUE_TYPES[reg.dtype]}& ", result(n))
            for n, reg in enumerate(function.results)
        ),
    )


@dataclass(frozen=True, slots=True)
class ByteNames:
    """Registers as numbers of bytes, which do not wrap around."""

    value: Callable[[Reg], Term]

    def buffer(self, buffer: Buffer) -> Term:
        raise AssertionError(f"bytes do not depend on {buffer.name}")

    def reg(self, reg: Reg) -> Term:
        return call("stretto::Bytes", self.value(reg))


def nbytes(size: int | Size, value: Callable[[Reg], Term]) -> Term:
    """Return a number of bytes, which the program checks before it takes that much; `value` is how
    a register is read."""
    return ScalarPrinter(ByteNames(value), code.StatementBuilder(), inline=1).index(Index.of(size))


class UnitPrinter(ControlPrinter[SourceParts, Schedule]):
    """Printer of one function; the items of a unit in a leaf are a case of a switch."""

    namespace = "stretto::"
    unit = UNIT

    def __init__(self, parts: SourceParts, function: TreeFunction[Schedule]) -> None:
        super().__init__(parts, function)
        self.loops = 0
        self.buffers: dict[Buffer, Term] = {}
        self.regs: dict[Reg, Term] = {}

    # ---- Names -------------------------------------------------------------------------------
    def buffer(self, buffer: Buffer) -> Term:
        return self.buffers.setdefault(buffer, buffer_name(buffer))

    def reg(self, reg: Reg) -> Term:
        if reg in self.parts.limits:
            return literal(f"s.ctx->limits[{self.parts.limits[reg]}]")
        return self.regs.setdefault(reg, reg_name(reg))

    def fresh(self, hint: str) -> Term:
        self.loops += 1
        return variable(f"{hint}{self.loops}")

    def scalar(self, expr: Expr) -> Term:
        return ScalarPrinter(self, self.out, inline=1).expr(expr)

    def declare(self, variable: Term, value: Expr) -> None:
        self.out.assign(variable, self.scalar(value), "int64_t")

    # ---- The function ------------------------------------------------------------------------
    def print(self) -> code.FunctionDefinition:
        """Return the function, with checks of depth, arena and stop if it is recursive."""
        program, function = self.parts.program, self.function
        with self.out.block() as body:
            self.node(function.body)
            for number, reg in enumerate(function.results):
                self.out.assign(result(number), self.reg(reg))
        recursive = function.name != "main"
        if recursive:
            size = program.frame(function.name).end
            self.guard("depth_left", prefix("++", DEPTH))
            used = filled("{} - s.ctx->arena", FRAME)
            if isinstance(size, Size):
                used = call("stretto::Bytes", used)
            left = joined(used, " + ", nbytes(size, self.reg))
            self.out.add(code.CheckedCall(call("stretto::arena_left", CONTEXT, left)))
            self.guard("back_edge", EDGES)
        self.declarations()
        self.out.add(*body)
        if recursive:
            self.out.add(code.Do(prefix("--", DEPTH)))
        self.out.add(code.Return((literal("true"),)))
        return code.FunctionDefinition(parameters(function), tuple(self.out.statements))

    def guard(self, function: str, *arguments: Term | int) -> None:
        """Add a call of a function of namespace stretto whose result says if the run goes on."""
        self.out.add(code.CheckedCall(call(f"stretto::{function}", CONTEXT, UNIT, *arguments)))

    def declarations(self) -> None:
        """Declare the buffers and registers that the body mentions."""
        frame = self.parts.program.frame(self.function.name)
        with self.out.block() as buffers:
            for buffer, name in sorted(self.buffers.items(), key=lambda item: item[0].name):
                kind = f"{MEMORY_TYPES[buffer.dtype]}*"
                match buffer.kind:
                    case "param":
                        continue
                    case "local" | "items":
                        place = FRAME + self.position(frame.offset(buffer.name))
                        if stride := frame.stride(buffer.name):
                            place = place + UNIT * stride
                    case _:
                        place = literal(f"s.ctx->buffers[{self.parts.place(buffer)}]")
                address = joined(f"({kind})(", place, ")")
                self.out.assign(name, address, f"[[maybe_unused]] {kind}")
        registers = sorted(self.regs.items(), key=lambda item: item[0].name)
        for reg, name in registers:
            if reg in self.parts.sizes:
                value = literal(f"s.ctx->sizes[{self.parts.sizes[reg]}]")
                self.out.assign(name, value, "[[maybe_unused]] const int64_t")
        self.out.add(*buffers)
        for reg, name in registers:
            if reg not in self.function.params and reg not in self.parts.sizes:
                self.out.assign(name, 0, f"[[maybe_unused]] {VALUE_TYPES[reg.dtype]}")

    def position(self, size: int | Size) -> Term:
        """Return a size as a term."""
        return ScalarPrinter(self, self.out, inline=1).index(Index.of(size))

    # ---- Control -----------------------------------------------------------------------------
    def decided(self, node: If[Schedule] | Loop[Schedule], way: int) -> None:
        name = title(node)
        if name not in self.parts.decisions:
            self.parts.decisions.append(name)
        number = self.parts.decisions.index(name)
        traced = call("STRETTO_DECIDED", CONTEXT, UNIT, number, way)
        self.out.add(code.Raw(traced))

    def rotate(self, pairs: Rotation) -> None:
        super().rotate(pairs)
        self.guard("back_edge", EDGES)  # Lets interrupts and deadlines stop the loop.

    def dealt(self, node: For[Schedule], at: Term, stop: Term) -> Term:
        """Start a parallel loop at the unit's first iteration; return the step. If iterations run
        in order, the first unit has all of them."""
        step = self.fresh("step")
        self.out.assign(step, call("stretto::parallel_step", CONTEXT, node.step), "int64_t")
        first = call("stretto::parallel_first", CONTEXT, UNIT, at, stop, node.step)
        self.out.assign(at, first)
        return step

    def advance(self, at: Term, stop: Term, step: int | Term, grows: bool) -> None:
        if isinstance(step, int) and abs(step) == 1:
            self.out.assign(at, step, operator="+=")
            return
        # The sum must not overflow past the largest number.
        far, near = (stop, at) if grows else (at, stop)
        size = step if grows else prefix("-", step) if isinstance(step, Term) else -step
        left = call("uint64_t", far) - near
        size = call("uint64_t", size)
        self.out.assign(at, filled("{} > {} ? {} : {}", left, size, at + step, stop))

    def invoke(self, function: str, arguments: tuple[Term, ...], results: tuple[Term, ...]) -> None:
        frame = FRAME + self.position(self.parts.program.frame(self.function.name).end)
        name = self.parts.function_name(function)
        self.out.add(code.CheckedCall(call(name, "s", frame, *arguments, *results)))

    # ---- Leaves ------------------------------------------------------------------------------
    def leaf(self, body: Schedule) -> None:
        """Print a leaf: items that all units share directly, others as cases of a switch over the
        unit."""
        is_alike = len(set(body.units)) == 1
        if is_alike and not (body.steps and any(isinstance(i, Run | Wait) for i in body.units[0])):
            self.items(body.units[0])
        else:
            with self.out.within(code.Section(head=joined("switch (", UNIT, ")"))):
                for unit, items in enumerate(body.units):
                    with self.out.within(code.Section(head=literal(f"case {unit}:"))):
                        self.items(items)
                        self.out.add(code.Raw(literal("break;")))
        if body.steps:
            self.out.assign(BASE, body.steps, operator="+=")
            self.publish(BASE)

    def publish(self, step: Term) -> None:
        self.out.add(code.SignalCall(call("stretto::signal", CONTEXT, UNIT, step)))

    def items(self, items: Iterable[Item]) -> None:
        for item in items:
            match item:
                case Run():
                    self.run(item)
                case Wait():
                    self.wait(item)
                case Signal(step):
                    self.publish(BASE + step)
                case Let():
                    self.let(item)
                case Check():
                    self.check(item)

    def wait(self, item: Wait) -> None:
        def wait(unit: Term) -> code.WaitCall:
            return code.WaitCall(call("stretto::wait", CONTEXT, UNIT, unit, BASE + item.step))

        if item.count == 1:
            self.out.add(wait(literal(item.unit)))
            return
        first, last = literal(item.unit), literal(item.unit + item.count)
        with self.out.within(code.CountedLoop(OTHER, first, last)):
            self.out.add(code.Branch(infix(OTHER, "!=", UNIT), (wait(OTHER),)))

    def require(self, condition: Term, failure: Status, detail: Term) -> None:
        fail = call("stretto::fail", CONTEXT, f"stretto::{failure.name}", detail)
        self.out.add(code.Branch(prefix("!", condition), (code.Return((fail,)),)))

    def run(self, item: Run) -> None:
        """Print the loop over the tasks of a run, with checks if it takes long or may stop."""
        kernel = self.parts.kernels[item.kernel]
        number = self.parts.numbers[item.kernel]
        if kernel.call is not None:
            traced = call("STRETTO_TASK", CONTEXT, UNIT, number, literal(0))
            with self.out.within(code.Section((), traced)):
                self.library_call(kernel.call)
            return
        text = self.parts.texts[item.kernel]
        buffers = (self.start(buffer, text.bases.get(buffer)) for buffer in text.buffers)
        arguments = (*buffers, *map(self.reg, text.regs), TASK)
        task = code.Do(call(self.parts.names[item.kernel], CONTEXT, *arguments))
        last = task_count(kernel, self)
        if item.count is not None:
            last = literal(min(item.first + item.count * item.stride, kernel.tasks))
        is_long = kernel.seconds >= LONG_SECONDS
        with self.out.within(
            code.CountedLoop(TASK, literal(item.first), last, literal(item.stride))
        ):
            traced = call("STRETTO_TASK", CONTEXT, UNIT, number, TASK)
            self.out.add(code.Section((task,), traced))
            if is_long:
                self.guard("go_on")
        if not is_long and kernel.seconds * (item.count or 1) >= LONG_SECONDS:
            self.guard("go_on")
        elif is_checked(kernel):
            self.out.add(code.Branch(call("stretto::stopped", CONTEXT), (FALSE,)))

    def start(self, buffer: Buffer, base: Index | None) -> Term:
        """Return the position in a buffer at which a kernel begins."""
        start = self.buffer(buffer)
        return start if base is None else start + self.position(base)

    def library_call(self, library: LibraryCall) -> None:
        """Print a library call with its array of operand pointers."""
        number = self.parts.library.index(library)
        operands: list[Term] = []
        with self.out.within(code.Section()):
            for n, item in enumerate(library.operands):
                if isinstance(item, Buffer):
                    operands.append(joined("(void*)", self.buffer(item)))
                    continue
                is_float = isinstance(item, Reg) and item.dtype.is_float
                kind = "double" if is_float else "int64_t"
                value = self.reg(item) if isinstance(item, Reg) else self.position(item)
                scalar = variable(f"scalar{n}")
                self.out.add(code.Assign(scalar, call(kind, value), kind))
                operands.append(joined("(void*)&", scalar))
            every = separated([*operands, "nullptr"])
            array = variable("operands")
            self.out.add(code.Raw(joined("void* ", array, "[] = {", every, "};"), array))
            self.guard("call_library", number, array)
