"""The walk over control trees of a scheduled program that printers of machines have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Generic, TypeVar

from stretto.device.expr import Buffer, Expr, Reg, limit_register
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Node,
    Rotation,
    Seq,
    TreeFunction,
    While,
    walk,
)
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.terms import Term, call, infix, literal, separated
from stretto.runtime.status import Status

CHECK_CODES = {
    "list_full": Status.LIST_FULL,
    "index": Status.INDEX,
    "assertion": Status.ASSERTION,
}


class ProgramParts:
    """What the functions of a program share.

    arguments: the places of buffers in the argument block: first all but constants, then the
    constants that the text mentions. limits: where the list stands whose capacity a register has.
    """

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        variable = (b for b in program.tree.externals if b.kind != "constant")
        self.arguments = {buffer: place for place, buffer in enumerate(variable)}
        self.limits = {limit_register(b.slot): self.arguments[b] for b in program.lists}
        nodes = (node for f in program.tree.functions for node in walk(f.body))
        self.recursive = any(isinstance(node, Call) for node in nodes)

    def place(self, buffer: Buffer) -> int:
        return self.arguments.setdefault(buffer, len(self.arguments))


Parts = TypeVar("Parts", bound=ProgramParts)


class ControlPrinter(ABC, Generic[Parts]):
    """Makes statements of the nodes of one function, in `out`."""

    namespace = ""
    """What stands before the names of functions that printed programs call."""

    def __init__(self, parts: Parts, function: TreeFunction[Schedule]) -> None:
        self.parts = parts
        self.function = function
        self.out = code.Builder()

    def node(self, node: Node[Schedule]) -> None:
        match node:
            case Leaf(schedule):
                self.leaf(schedule)
            case Seq(children):
                for child in children:
                    self.node(child)
            case For():
                self.for_loop(node)
            case While():
                self.while_loop(node)
            case If():
                self.branch(node)
            case Call():
                self.call(node)

    def branch(self, node: If[Schedule]) -> None:
        with self.inside() as then:
            self.node(node.then)
        with self.inside() as orelse:
            self.node(node.orelse)
        self.out.add(code.If(self.reg(node.condition), tuple(then), tuple(orelse)))

    def for_loop(self, node: For[Schedule]) -> None:
        at, stop = self.begin(node)
        with self.inside() as body:
            self.iteration(node, at, stop)
        self.loop(goes_on(node, at, stop), body)

    def begin(self, node: For[Schedule]) -> tuple[Term, Term]:
        """The variables of a loop: where it is, and where it stops."""
        at, stop = self.fresh("at"), self.fresh("stop")
        self.declare(at, self.scalar(node.start), DType.I64)
        self.declare(stop, self.scalar(node.stop), DType.I64)
        return at, stop

    def iteration(self, node: For[Schedule], at: Term, stop: Term) -> None:
        self.out.assign(self.reg(node.index), at)
        self.node(node.body)
        self.rotate(node.rotate)
        self.advance(at, stop, node.step)

    def rotate(self, pairs: Rotation) -> None:
        """The end of an iteration: buffers trade places."""
        for pair in pairs:
            a, b = (self.buffer(buffer) for buffer in pair)
            self.out.assign(separated((a, b)), separated((b, a)))

    def check(self, item: Check) -> None:
        if item.code not in CHECK_CODES:
            raise CodegenError(f"unknown check {item.code}")
        is_list = item.code == "list_full"
        detail = self.parts.limits[limit_register(item.subject)] if is_list else item.subject
        detail = literal(detail)
        if item.detail is not None:
            detail = call(f"{self.namespace}packed_detail", detail, self.scalar(item.detail))
        self.require(self.scalar(item.condition), CHECK_CODES[item.code], detail)

    @contextmanager
    def inside(self) -> Generator[list[code.Statement]]:
        """The block of an arm or of a loop."""
        with self.out.block() as block:
            yield block

    # ---- what machines differ in ---------------------------------------------------------------
    @abstractmethod
    def leaf(self, schedule: Schedule) -> None: ...

    @abstractmethod
    def while_loop(self, node: While[Schedule]) -> None: ...

    @abstractmethod
    def call(self, node: Call[Schedule]) -> None: ...

    @abstractmethod
    def loop(self, condition: Term, body: Iterable[code.Statement]) -> None:
        """A loop that goes on while `condition` holds."""

    @abstractmethod
    def advance(self, at: Term, stop: Term, step: int) -> None:
        """The next number of a loop."""

    @abstractmethod
    def require(self, condition: Term, failure: Status, detail: Term) -> None:
        """Stops the run with `failure` unless `condition` holds."""

    @abstractmethod
    def buffer(self, buffer: Buffer) -> Term: ...

    @abstractmethod
    def reg(self, reg: Reg) -> Term: ...

    @abstractmethod
    def fresh(self, hint: str) -> Term:
        """A variable of its own."""

    @abstractmethod
    def declare(self, variable: Term, value: Term, dtype: DType) -> None: ...

    @abstractmethod
    def scalar(self, expr: Expr) -> Term:
        """One number."""


def goes_on(node: For[Schedule], at: Term, stop: Term) -> Term:
    return infix(at, "<" if node.step > 0 else ">", stop)
