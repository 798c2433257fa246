"""Recursion as a loop over an explicit stack, with a state for each place to go on from.

A GPU has no call stack worth the name. All functions of a recursive program are cut at their calls
into *states*: pieces without a call, which stay structured, and for control nodes with a call
inside a state per head, body and join. A loop runs the state at hand until main is done. A call
pushes what its caller still needs, each unit on a stack of its own (units run at their own pace);
frames of intermediate values are common to all units, as on the CPU machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.device.expr import Access, Buffer, Index, Position
from stretto.device.program import Schedule
from stretto.device.tree import Call, For, If, Node, Seq, TreeFunction, While, walk
from stretto.machines.cuda.printer.function import FunctionPrinter
from stretto.machines.cuda.printer.parts import Parts
from stretto.machines.cuda.printer.scalar import MEMORY_TYPES, VALUE_TYPES
from stretto.machines.usage import used
from stretto.runtime.status import Status
from stretto.text import Writer

FRAME_UNIT = 64
"""Frames are counted in so many bytes, which shows the compiler how addresses are aligned."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Something a caller keeps over a call: its name in the text, and its Triton type."""

    name: str
    type: str


@dataclass(slots=True)
class _Function:
    """What the printer knows of one function."""

    tree: TreeFunction[Schedule]
    entry: int
    reaches: frozenset[str]
    printer: FunctionPrinter
    fixed: dict[Buffer, str] = field(default_factory=dict[Buffer, str])
    moving: dict[Buffer, Variable] = field(default_factory=dict[Buffer, Variable])
    registers: list[Variable] = field(default_factory=list[Variable])
    loops: list[Variable] = field(default_factory=list[Variable])

    @property
    def kept(self) -> list[Variable]:
        return [*self.registers, *self.moving.values(), *self.loops]


def has_call(node: Node[Schedule]) -> bool:
    return any(isinstance(item, Call) for item in walk(node))


class StatePrinter:
    """Prints all functions of a program as one state machine.

    `external` names the parameter of an external buffer, and what holds the address of a tensor of
    main. `first` says what registers of main hold at first, by variable, where that is not 0.
    """

    def __init__(
        self, parts: Parts, external: Mapping[Buffer, str], first: Mapping[str, str]
    ) -> None:
        self.parts = parts
        self.external = external
        self.first = first
        self.states: list[Writer] = []
        self.owners: list[str] = []
        self.returns: dict[int, str] = {}  # states behind a call, and what they do first
        callees = {
            f.name: {n.function for n in walk(f.body) if isinstance(n, Call)}
            for f in parts.program.tree.functions
        }
        self.functions: dict[str, _Function] = {}
        for function in parts.program.tree.functions:
            self.functions[function.name] = self._function(function, callees)

    # ---- set-up ------------------------------------------------------------------------------
    def _function(
        self, function: TreeFunction[Schedule], callees: Mapping[str, set[str]]
    ) -> _Function:
        name, identifiers = function.name, self.parts.identifiers
        buffers, regs = used(function.body, self.parts.texts)
        rotating = {
            buffer
            for node in walk(function.body)
            if isinstance(node, For | While)
            for pair in node.rotate
            for buffer in pair
        }
        printer = FunctionPrinter(self.parts, name, Writer("    "), lambda b: self.pointer(name, b))
        made = _Function(function, self._new_state(name), _reachable(name, callees), printer)
        for buffer in sorted(buffers | set(function.tensors), key=lambda b: b.name):
            key = name, "buffer", buffer.name
            kind = f"tl.pointer_type({MEMORY_TYPES[buffer.dtype]})"
            if name == "main" and buffer in function.tensors:
                if buffer in rotating:
                    made.moving[buffer] = Variable(self.external[buffer], kind)
            elif buffer.kind == "param" or buffer in rotating:
                variable = identifiers.of(key, f"b_{buffer.name}")
                made.moving[buffer] = Variable(variable, kind)
            elif buffer.kind in ("local", "items"):
                made.fixed[buffer] = identifiers.of(key, f"b_{buffer.name}")
        for reg in sorted(regs | {*function.params, *function.results}, key=lambda r: r.name):
            if reg not in self.parts.limits:
                made.registers.append(Variable(printer.reg(reg), VALUE_TYPES[reg.dtype]))
        return made

    def pointer(self, function: str, buffer: Buffer) -> str:
        made = self.functions[function]
        if buffer in made.moving:
            return made.moving[buffer].name
        return made.fixed.get(buffer) or self.external[buffer]

    def place(self, function: str, buffer: Buffer) -> str:
        """The address of a buffer that has a fixed place in the frame or outside."""
        if buffer.kind not in ("local", "items"):
            return self.external[buffer]
        offset = self.parts.program.frame(function)[buffer.name].offset // buffer.dtype.itemsize
        step = FRAME_UNIT // buffer.dtype.itemsize
        return f"arena_{MEMORY_TYPES[buffer.dtype].removeprefix('tl.')} + frame * {step} + {offset}"

    # ---- states ------------------------------------------------------------------------------
    def _new_state(self, function: str) -> int:
        self.states.append(Writer("    "))
        self.owners.append(function)
        return len(self.states) - 1

    def enter(self, function: _Function, state: int) -> None:
        function.printer.out = self.states[state]
        function.printer.clean = False

    def goto(self, function: _Function, state: int) -> None:
        function.printer.out.write(f"state = {state}")

    def choose(self, function: _Function, condition: str, yes: int, no: int) -> None:
        function.printer.out.write(f"state = tl.where({condition}, {yes}, {no})")

    def print(self, out: Writer, results: Sequence[str]) -> None:
        """The loop over states. `results`: lines that hand main's results over."""
        for function in self.functions.values():
            self._body(function, results)
        main = self.functions["main"]
        self._declare(out)
        out.write(f"state = tl.cast({main.entry}, tl.int32)")
        out.write("while ok & (state >= 0):")
        with out.indent():
            for number, (owner, text) in enumerate(zip(self.owners, self.states, strict=True)):
                out.write(f"if ok & (state == {number}):  # {owner}")
                with out.indent():
                    body = text.text()
                    if number in self.returns:
                        out.write(self.returns[number])
                    for buffer, name in self.functions[owner].fixed.items():
                        if re.search(rf"\b{name}\b", body):
                            out.write(f"{name} = {self.place(owner, buffer)}")
                    out.write(body.rstrip("\n"))

    def _declare(self, out: Writer) -> None:
        out.write("frame = tl.cast(0, tl.int64)")
        out.write("depth = tl.cast(0, tl.int64)")
        out.write("stack = stack + unit * stack_words")
        out.write("top = tl.cast(0, tl.int64)")
        for function in self.functions.values():
            for variable in [*function.registers, *function.loops]:
                zero = f"tl.cast(0, {variable.type})"
                out.write(f"{variable.name} = {self.first.get(variable.name, zero)}")
            for buffer, variable in function.moving.items():
                kind = MEMORY_TYPES[buffer.dtype].removeprefix("tl.")
                if variable.name not in self.external.values():
                    out.write(f"{variable.name} = arena_{kind}")

    def _body(self, function: _Function, results: Sequence[str]) -> None:
        self.enter(function, function.entry)
        out = function.printer.out
        for buffer, variable in function.moving.items():
            if buffer.kind != "param" and variable.name not in self.external.values():
                out.write(f"{variable.name} = {self.place(function.tree.name, buffer)}")
        self.node(function, function.tree.body)
        out = function.printer.out
        if function.tree.name == "main":
            for line in results:
                out.write(line)
            out.write("state = -1")
            return
        function.printer.settle()
        out.write("top -= 1")
        out.write("state = tl.cast(tl.load(stack + top), tl.int32)")

    # ---- nodes -------------------------------------------------------------------------------
    def node(self, function: _Function, node: Node[Schedule]) -> None:
        if not has_call(node):
            function.printer.node(node)
            return
        match node:
            case Seq(children):
                for child in children:
                    self.node(function, child)
            case If(condition, then, orelse):
                yes, no, join = (self._new_state(function.tree.name) for _ in range(3))
                self.choose(function, function.printer.reg(condition), yes, no)
                for state, arm in ((yes, then), (no, orelse)):
                    self.enter(function, state)
                    self.node(function, arm)
                    self.goto(function, join)
                self.enter(function, join)
            case For():
                self.for_loop(function, node)
            case While(head, condition, body, rotate):
                first, again, end = (self._new_state(function.tree.name) for _ in range(3))
                self.goto(function, first)
                self.enter(function, first)
                self.node(function, head)
                self.choose(function, function.printer.reg(condition), again, end)
                self.enter(function, again)
                self.node(function, body)
                function.printer.rotate(rotate)
                self.goto(function, first)
                self.enter(function, end)
            case Call():
                self.call(function, node)
            case _:
                raise TypeError(node)

    def for_loop(self, function: _Function, node: For[Schedule]) -> None:
        printer = function.printer
        at, stop = (
            Variable(self.parts.identifiers.fresh(hint), "tl.int64") for hint in ("at", "stop")
        )
        function.loops += [at, stop]
        head, body, end = (self._new_state(function.tree.name) for _ in range(3))
        printer.assign(at.name, printer.scalar(node.start), at.type)
        printer.assign(stop.name, printer.scalar(node.stop), stop.type)
        self.goto(function, head)
        self.enter(function, head)
        self.choose(function, f"{at.name} {'<' if node.step > 0 else '>'} {stop.name}", body, end)
        self.enter(function, body)
        printer.out.write(f"{printer.reg(node.index)} = {at.name}")
        self.node(function, node.body)
        printer.rotate(node.rotate)
        printer.out.write(f"{at.name} += {node.step}")
        self.goto(function, head)
        self.enter(function, end)

    # ---- calls -------------------------------------------------------------------------------
    def call(self, function: _Function, node: Call[Schedule]) -> None:
        callee = self.functions[node.function]
        printer = function.printer
        kept = function.kept if function.tree.name in callee.reaches else []
        mine, theirs = (self._frame(f.tree.name) for f in (function, callee))
        out = printer.out
        out.write("depth += 1")
        printer.require("depth <= max_depth", Status.TOO_DEEP, "depth")
        needed = f"(frame + {mine + theirs}) * {FRAME_UNIT}"
        printer.require(f"{needed} <= arena_bytes", Status.ARENA_FULL, needed)
        printer.require(f"top + {len(kept) + 1} <= stack_words", Status.ARENA_FULL, "0")
        out.write("tl.debug_barrier()")  # nobody still reads what is overwritten here
        back = self._new_state(function.tree.name)
        self.returns[back] = f"frame -= {mine}\ndepth -= 1"
        for place, variable in enumerate(kept):
            out.write(
                f"tl.store(stack + top + {place}, {as_word(variable.name, variable.type)}, mask=ok)"
            )
        out.write(f"tl.store(stack + top + {len(kept)}, {back}, mask=ok)")
        out.write(f"top += tl.where(ok, {len(kept) + 1}, 0)")
        self._pass_arguments(function, callee, node)
        out.write(f"frame += {mine}")
        self.goto(function, callee.entry)
        self.enter(function, back)
        self._come_back(function, callee, node, kept)

    def _pass_arguments(self, function: _Function, callee: _Function, node: Call[Schedule]) -> None:
        printer = function.printer
        registers, tensors = dict(node.registers), dict(node.tensors)
        if any(True for _ in registers):
            printer.settle()
        pairs: list[tuple[str, str]] = []
        for reg in callee.tree.params:
            text = f"tl.cast({printer.scalar(registers[reg])}, {VALUE_TYPES[reg.dtype]})"
            pairs.append((callee.printer.reg(reg), text))
        for buffer in callee.tree.tensors:
            text = self.address(function, tensors[buffer])
            pairs.append((callee.moving[buffer].name, text))
        for number, (_, text) in enumerate(pairs):
            printer.out.write(f"argument{number}_{callee.entry} = {text}")
        for number, (name, _) in enumerate(pairs):
            printer.out.write(f"{name} = argument{number}_{callee.entry}")

    def address(self, function: _Function, access: Access) -> str:
        base = self.pointer(function.tree.name, access.buffer)
        if access.offset == Index():
            return base
        return f"{base} + {function.printer.scalar(Position(access.offset))}"

    def _come_back(
        self,
        function: _Function,
        callee: _Function,
        node: Call[Schedule],
        kept: Sequence[Variable],
    ) -> None:
        printer = function.printer
        out = printer.out
        for number, (_, theirs) in enumerate(node.results):
            out.write(f"result{number}_{callee.entry} = {callee.printer.reg(theirs)}")
        if kept:
            out.write(f"top -= {len(kept)}")
            for place, variable in enumerate(kept):
                value = from_word(f"tl.load(stack + top + {place})", variable.type)
                out.write(f"{variable.name} = {value}")
        for number, (mine, _) in enumerate(node.results):
            out.write(f"{printer.reg(mine)} = result{number}_{callee.entry}")

    def _frame(self, function: str) -> int:
        return -(-self.parts.program.frame(function).nbytes // FRAME_UNIT)


def _reachable(name: str, callees: Mapping[str, set[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for callee in callees[waiting.pop()]:
            if callee not in found:
                found.add(callee)
                waiting.append(callee)
    return frozenset(found)


def as_word(name: str, kind: str) -> str:
    """A value of Triton type `kind` as an i64."""
    match kind:
        case "tl.float64":
            return f"{name}.to(tl.int64, bitcast=True)"
        case "tl.float32":
            return f"{name}.to(tl.int32, bitcast=True).to(tl.int64)"
        case _:
            return f"{name}.to(tl.int64)"


def from_word(text: str, kind: str) -> str:
    match kind:
        case "tl.float64":
            return f"{text}.to(tl.float64, bitcast=True)"
        case "tl.float32":
            return f"{text}.to(tl.int32).to(tl.float32, bitcast=True)"
        case "tl.int1":
            return f"{text} != 0"
        case _:
            return f"{text}.to({kind})"
