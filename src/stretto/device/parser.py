"""Reads the text of a DeviceProgram. A mistake is a ScheduleError that names the line."""

from __future__ import annotations

from typing import TypeVar

import torch

from stretto.device.expr import Buffer, Reg
from stretto.device.expr_parser import ExprParser
from stretto.device.operator import (
    Kernel,
    LibraryArgument,
    LibraryCall,
    Method,
    Operator,
    Span,
    Stage,
    TileDim,
)
from stretto.device.program import (
    DeviceProgram,
    Frame,
    Item,
    Placement,
    Run,
    Schedule,
    Signal,
    Wait,
)
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    While,
)
from stretto.ir.types import Symbol

T = TypeVar("T")


def parse_program(text: str) -> DeviceProgram:
    """The program that the text says. Raises ScheduleError for a mistake in the text."""
    return _Parser(text).program()


class _Parser(ExprParser):
    def program(self) -> DeviceProgram:
        self.expect("program")
        units = self.integer()
        while self.accept("buffer"):
            self.declaration()
        self.expect("externals")
        externals = self.items(self.buffer)
        self.expect("lists")
        lists = self.items(self.buffer)
        kernels: list[Kernel] = []
        while self.accept("kernel"):
            kernels.append(self.kernel())
        frames: list[tuple[str, Frame]] = []
        while self.accept("frame"):
            frames.append(self.frame())
        functions: list[TreeFunction[Schedule]] = []
        while self.accept("function"):
            functions.append(self.function())
        self.end()
        tree = Tree(tuple(functions), externals)
        return DeviceProgram(units, tree, tuple(kernels), tuple(frames), lists)

    def declaration(self) -> None:
        handle = self.handle()
        name = self.string() if self.at_string() else handle
        dtype = self.dtype()
        shape = self.items(self.extent, "[", "]")
        kind = self.name()
        slot = self.integer() if self.at_integer() else -1
        self.buffers[handle] = Buffer(name, dtype, shape, kind, slot)

    # Kernels

    def kernel(self) -> Kernel:
        name = self.name()
        seconds = float(self.number())
        self.expect("grid")
        grid = self.items(self.tile_dim)
        self.expect("{")
        stages: list[Stage] = []
        call: LibraryCall | None = None
        while not self.accept("}"):
            if self.accept("call"):
                call = self.library_call()
            else:
                stages.append(self.stage())
        return Kernel(name, grid, tuple(stages), seconds, call)

    def tile_dim(self) -> TileDim:
        extent = self.extent()
        self.expect("/")
        return TileDim(extent, self.integer())

    def stage(self) -> Stage:
        self.expect("stage")
        template = self.name()
        parameters = self.items(lambda: self.assigned(self.name, self.integer))
        packed = self.buffer() if self.accept("packed") else None
        self.expect("box")
        box = self.items(self.span)
        return Stage(self.operator(), box, Method(template, parameters, packed))

    def span(self) -> Span:
        extent = self.extent()
        grid = self.integer() if self.accept("@") else None
        offset = self.integer() if self.accept("+") else 0
        return Span(extent, grid, offset)

    def operator(self) -> Operator:
        name = self.name()
        dims = self.items(self.extent)
        reduce: tuple[int | Reg, ...] = ()
        combine = source = ""
        if self.accept("reduce"):
            combine = self.name()
            reduce = self.items(self.extent)
        accumulate = self.accept("accumulate")
        if self.accept("source"):
            source = self.string()
        out = self.access()
        self.expect("=")
        return Operator(name, dims, reduce, combine, self.expr(), out, accumulate, source)

    def library_call(self) -> LibraryCall:
        name, target = self.name(), self.name()
        args = self.items(self.argument)
        kwargs = self.items(lambda: self.assigned(self.name, self.argument))
        self.expect("->")
        outs = self.items(self.buffer)
        self.expect("reason")
        reason = self.string()
        self.expect("source")
        return LibraryCall(name, target, args, kwargs, outs, reason, self.string())

    def argument(self) -> LibraryArgument:
        if self.accept("&"):
            return self.buffer()
        if self.peek() == "$":
            return self.register()
        if self.peek() == "(":
            return self.items(self.argument)
        if self.at_string():
            return self.string()
        if self.accept("none"):
            return None
        if self.accept("symbol"):
            return Symbol(self.name())
        if self.peek().startswith("torch."):
            return getattr(torch, self.name().removeprefix("torch."))
        return self.number()

    # The tree

    def frame(self) -> tuple[str, Frame]:
        name, nbytes = self.name(), self.integer()
        places: list[tuple[str, Placement]] = []
        self.expect("{")
        while not self.accept("}"):
            buffer = self.name()
            self.expect("at")
            offset = self.integer()
            self.expect("size")
            places.append((buffer, Placement(offset, self.integer())))
        return name, Frame(nbytes, tuple(places))

    def function(self) -> TreeFunction[Schedule]:
        name = self.name()
        self.expect("{")
        self.expect("params")
        params = self.items(self.register)
        self.expect("results")
        results = self.items(self.register)
        buffers: list[tuple[Buffer, ...]] = []
        for label in ("tensors", "written", "locals"):
            self.expect(label)
            buffers.append(self.items(self.buffer))
        body = self.node()
        self.expect("}")
        tensors, written, locals = buffers
        return TreeFunction(name, params, tensors, written, results, locals, body)

    def node(self) -> Node[Schedule]:
        match self.word("leaf", "seq", "for", "while", "if", "call"):
            case "leaf":
                return self.leaf()
            case "seq":
                return Seq(self.block())
            case "for":
                return self.for_loop()
            case "while":
                condition, rotate = self.register(), self.rotate()
                head, body = self.block(2)
                return While(head, condition, body, rotate)
            case "if":
                condition = self.register()
                then, orelse = self.block(2)
                return If(condition, then, orelse)
            case _:
                name = self.name()
                registers = self.items(lambda: self.assigned(self.register, self.expr))
                tensors = self.items(lambda: self.assigned(self.buffer, self.access))
                results = self.items(lambda: self.assigned(self.register, self.register))
                return Call(name, registers, tensors, results)

    def for_loop(self) -> For[Schedule]:
        index = self.register()
        self.expect("=")
        start = self.expr()
        self.expect("..")
        stop = self.expr()
        self.expect("step")
        step, rotate = self.integer(), self.rotate()
        return For(index, start, stop, step, self.block(1)[0], rotate)

    def block(self, count: int | None = None) -> tuple[Node[Schedule], ...]:
        """Nodes in braces, exactly `count` of them where that is given."""
        self.expect("{")
        nodes: list[Node[Schedule]] = []
        while not self.accept("}"):
            nodes.append(self.node())
        if count is not None and len(nodes) != count:
            self.fail(f"expected {count} nodes in the block")
        return tuple(nodes)

    def rotate(self) -> tuple[tuple[Buffer, Buffer], ...]:
        if not self.accept("rotate"):
            return ()
        return self.items(lambda: self.assigned(self.buffer, self.buffer))

    def leaf(self) -> Leaf[Schedule]:
        steps = self.integer()
        units: list[tuple[Item, ...]] = []
        self.expect("{")
        while not self.accept("}"):
            self.expect("unit")
            self.expect("{")
            items: list[Item] = []
            while not self.accept("}"):
                items.append(self.item())
            units.append(tuple(items))
        return Leaf(Schedule(tuple(units), steps))

    def item(self) -> Item:
        match self.word("run", "wait", "signal", "let", "check"):
            case "run":
                kernel, first = self.name(), self.integer()
                self.expect("count")
                count = None if self.accept("all") else self.integer()
                return Run(kernel, first, count, self.integer() if self.accept("by") else 1)
            case "wait":
                unit = self.integer()
                count = self.integer() if self.accept("count") else 1
                self.expect("step")
                return Wait(unit, self.integer(), count)
            case "signal":
                return Signal(self.integer())
            case "let":
                return Let(*self.assigned(self.register, self.expr))
            case _:
                code, subject = self.name(), self.integer()
                self.expect("=")
                condition = self.expr()
                detail = self.expr() if self.accept("detail") else None
                return Check(condition, code, subject, detail)
