"""The text of a DeviceProgram, which `parser` reads back: `parse_program(print_program(p)) == p`.

Buffers are declared once and then named; `h[4*i0 + $t]` is element 4*i0 + t of h, where i0 is an
iteration variable and $t a register; `h{2, 8}[...]` sees h with other dims. `(i0 // 4)` and
`(i0 % 4)` floor, `[...]` inside an index is a position computed by an expression, `<...>` in an
expression is an index as a number. A function has its dtype after a colon where it is not that of
its first argument.
"""

from __future__ import annotations

import json
import re

import torch

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Quotient,
    Reg,
    Remainder,
    Var,
)
from stretto.device.operator import Kernel, LibraryArgument, LibraryCall, Operator, Span, Stage
from stretto.device.program import DeviceProgram, Frame, Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, Seq, TreeFunction, While
from stretto.errors import ScheduleError
from stretto.ir.sizes import Maximum, Product
from stretto.ir.types import DType, Symbol
from stretto.text import Writer

PLAIN_NAME = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][A-Za-z0-9_.]*")


def print_program(program: DeviceProgram) -> str:
    """The whole program as text."""
    printer = _Printer()
    body = printer.program(program)
    head = Writer()
    head.write(f"program {program.units}")
    for buffer in printer.buffers:
        head.write(printer.declaration(buffer))
    return head.text() + body


def print_expr(expr: Expr) -> str:
    """An expression as text, for messages."""
    return _Printer().expr(expr)


def _name(text: str) -> str:
    return text if PLAIN_NAME.fullmatch(text) else json.dumps(text)


def _number(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _list(items: list[str]) -> str:
    return f"({', '.join(items)})"


class _Printer:
    def __init__(self) -> None:
        self.out = Writer()
        self.buffers: dict[Buffer, str] = {}
        self._handles: set[str] = set()

    # Expressions

    def buffer(self, buffer: Buffer) -> str:
        """The name of a buffer in the text; two buffers of one name differ in a suffix."""
        if buffer not in self.buffers:
            base = buffer.name if PLAIN_NAME.fullmatch(buffer.name) else "buffer"
            handle, number = base, 1
            while handle in self._handles:
                number += 1
                handle = f"{base}'{number}"
            self._handles.add(handle)
            self.buffers[buffer] = handle
        return self.buffers[buffer]

    def declaration(self, buffer: Buffer) -> str:
        handle = self.buffers[buffer]
        name = "" if handle == buffer.name else f" {json.dumps(buffer.name)}"
        slot = f" {buffer.slot}" if buffer.slot != -1 else ""
        dims = ", ".join(self.extent(dim) for dim in buffer.shape)
        return f"buffer {handle}{name} {buffer.dtype.value}[{dims}] {_name(buffer.kind)}{slot}"

    def register(self, register: Reg) -> str:
        dtype = "" if register.dtype is DType.I64 else f":{register.dtype.value}"
        return f"${_name(register.name)}{dtype}"

    def extent(self, extent: Extent) -> str:
        return str(extent) if isinstance(extent, int) else self.register(extent)

    def extents(self, extents: tuple[Extent, ...]) -> str:
        return _list([self.extent(extent) for extent in extents])

    def index(self, index: Index) -> str:
        parts = [
            self.atom(atom) if coefficient == 1 else f"{coefficient}*{self.atom(atom)}"
            for atom, coefficient in index.terms
        ]
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts)

    def atom(self, atom: Atom) -> str:
        match atom:
            case Var(number):
                return f"i{number}"
            case Reg():
                return self.register(atom)
            case Quotient(index, divisor):
                return f"({self.index(index)} // {self.index(Index.of(divisor))})"
            case Remainder(index, divisor):
                return f"({self.index(index)} % {self.index(Index.of(divisor))})"
            case Dynamic(value):
                return f"[{self.expr(value)}]"
            case Product(factors):
                return f"({' * '.join(self.atom(factor) for factor in factors)})"
            case Maximum(parts):
                return f"max({', '.join(self.index(part) for part in parts)})"
            case _:
                raise ScheduleError(f"{atom!r} has no text")

    def access(self, access: Access) -> str:
        view = ""
        if access.shape != access.buffer.shape:
            view = "{" + ", ".join(self.extent(dim) for dim in access.shape) + "}"
        indices = ", ".join(self.index(index) for index in access.index)
        return f"{self.buffer(access.buffer)}{view}[{indices}]"

    def expr(self, expr: Expr) -> str:
        match expr:
            case Const(value, dtype):
                return f"{_number(value)}:{dtype.value}"
            case Position(index):
                return f"<{self.index(index)}>"
            case Load(access):
                return self.access(access)
            case Apply(function, args, dtype):
                plain = args and args[0].dtype is dtype
                suffix = "" if plain else f":{dtype.value}"
                return f"{function}{suffix}{_list([self.expr(arg) for arg in args])}"

    # Kernels

    def kernel(self, kernel: Kernel) -> None:
        grid = _list([f"{self.extent(dim.extent)}/{dim.tile}" for dim in kernel.grid])
        self.out.write(f"kernel {_name(kernel.name)} {kernel.seconds!r} grid {grid} {{")
        with self.out.indent():
            for stage in kernel.stages:
                self.stage(stage)
            if kernel.call is not None:
                self.library_call(kernel.call)
        self.out.write("}")

    def stage(self, stage: Stage) -> None:
        method = stage.method
        parameters = _list([f"{_name(key)} = {value}" for key, value in method.parameters])
        packed = f" packed {self.buffer(method.packed)}" if method.packed is not None else ""
        box = _list([self.span(span) for span in stage.box])
        self.out.write(f"stage {_name(method.template)}{parameters}{packed} box {box}")
        with self.out.indent():
            self.operator(stage.operator)

    def span(self, span: Span) -> str:
        grid = "" if span.grid is None else f" @ {span.grid}"
        offset = "" if span.offset == 0 else f" + {span.offset}"
        return f"{self.extent(span.extent)}{grid}{offset}"

    def operator(self, operator: Operator) -> None:
        parts = [f"{_name(operator.name)} {self.extents(operator.dims)}"]
        if operator.reduce or operator.combine:
            parts.append(f"reduce {_name(operator.combine)} {self.extents(operator.reduce)}")
        if operator.accumulate:
            parts.append("accumulate")
        if operator.source:
            parts.append(f"source {json.dumps(operator.source)}")
        self.out.write(" ".join(parts))
        self.out.write(f"{self.access(operator.out)} = {self.expr(operator.value)}")

    def library_call(self, call: LibraryCall) -> None:
        args = _list([self.argument(item) for item in call.args])
        kwargs = _list([f"{_name(key)} = {self.argument(item)}" for key, item in call.kwargs])
        outs = _list([self.buffer(out) for out in call.outs])
        self.out.write(f"call {_name(call.name)} {_name(call.target)} {args} {kwargs} -> {outs}")
        with self.out.indent():
            self.out.write(f"reason {json.dumps(call.reason)} source {json.dumps(call.source)}")

    def argument(self, argument: LibraryArgument) -> str:
        match argument:
            case Buffer():
                return f"&{self.buffer(argument)}"
            case Reg():
                return self.register(argument)
            case tuple():
                return _list([self.argument(item) for item in argument])
            case str():
                return json.dumps(argument)
            case None:
                return "none"
            case bool() | int() | float():
                return _number(argument)
            case torch.dtype():
                return str(argument)
            case Symbol(name):
                return f"symbol {_name(name)}"
            case _:
                raise ScheduleError(f"a library call has the argument {argument!r}")

    # The tree

    def program(self, program: DeviceProgram) -> str:
        """Everything but the declarations."""
        externals = _list([self.buffer(buffer) for buffer in program.tree.externals])
        self.out.write(f"externals {externals}")
        self.out.write(f"lists {_list([self.buffer(buffer) for buffer in program.lists])}")
        for kernel in program.kernels:
            self.kernel(kernel)
        for name, frame in program.frames:
            self.frame(name, frame)
        for function in program.tree.functions:
            self.function(function)
        return self.out.text()

    def frame(self, name: str, frame: Frame) -> None:
        self.out.write(f"frame {_name(name)} {frame.nbytes} {{")
        with self.out.indent():
            for buffer, place in frame.placements:
                self.out.write(f"{_name(buffer)} at {place.offset} size {place.nbytes}")
        self.out.write("}")

    def function(self, function: TreeFunction[Schedule]) -> None:
        self.out.write(f"function {_name(function.name)} {{")
        with self.out.indent():
            for label, registers in (("params", function.params), ("results", function.results)):
                self.out.write(f"{label} {_list([self.register(item) for item in registers])}")
            for label, buffers in (
                ("tensors", function.tensors),
                ("written", function.written),
                ("locals", function.locals),
            ):
                self.out.write(f"{label} {_list([self.buffer(item) for item in buffers])}")
            self.node(function.body)
        self.out.write("}")

    def node(self, node: Node[Schedule]) -> None:
        match node:
            case Leaf(schedule):
                self._block(f"leaf {schedule.steps}", lambda: self.leaf(schedule))
            case Seq(children):
                self._block("seq", lambda: [self.node(child) for child in children])
            case For(index, start, stop, step, body, rotate):
                bounds = f"{self.expr(start)} .. {self.expr(stop)} step {step}"
                head = f"for {self.register(index)} = {bounds}{self.rotate(rotate)}"
                self._block(head, lambda: self.node(body))
            case While(first, condition, body, rotate):
                head = f"while {self.register(condition)}{self.rotate(rotate)}"
                self._block(head, lambda: (self.node(first), self.node(body)))
            case If(condition, then, orelse):
                head = f"if {self.register(condition)}"
                self._block(head, lambda: (self.node(then), self.node(orelse)))
            case Call(function, registers, tensors, results):
                given = [f"{self.register(reg)} = {self.expr(value)}" for reg, value in registers]
                bound = [f"{self.buffer(param)} = {self.access(a)}" for param, a in tensors]
                taken = [f"{self.register(a)} = {self.register(b)}" for a, b in results]
                self.out.write(
                    f"call {_name(function)} {_list(given)} {_list(bound)} {_list(taken)}"
                )

    def _block(self, head: str, body: object) -> None:
        assert callable(body)
        self.out.write(f"{head} {{")
        with self.out.indent():
            body()
        self.out.write("}")

    def rotate(self, pairs: tuple[tuple[Buffer, Buffer], ...]) -> str:
        if not pairs:
            return ""
        return f" rotate {_list([f'{self.buffer(a)} = {self.buffer(b)}' for a, b in pairs])}"

    def leaf(self, schedule: Schedule) -> None:
        for items in schedule.units:
            self._block("unit", lambda items=items: [self.item(item) for item in items])

    def item(self, item: Item) -> None:
        match item:
            case Run(kernel, first, count, stride):
                many = "all" if count is None else str(count)
                by = "" if stride == 1 else f" by {stride}"
                self.out.write(f"run {_name(kernel)} {first} count {many}{by}")
            case Wait(unit, step, count):
                many = "" if count == 1 else f" count {count}"
                self.out.write(f"wait {unit}{many} step {step}")
            case Signal(step):
                self.out.write(f"signal {step}")
            case Let(register, value):
                self.out.write(f"let {self.register(register)} = {self.expr(value)}")
            case Check(condition, code, subject, detail):
                text = f"check {_name(code)} {subject} = {self.expr(condition)}"
                shown = "" if detail is None else f" detail {self.expr(detail)}"
                self.out.write(text + shown)
