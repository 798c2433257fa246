"""Walk over control trees of a scheduled program, shared by the printers of machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

from stretto.device.expr import (
    Access,
    Buffer,
    Expr,
    Index,
    Position,
    Reg,
    checks,
    index_parts,
    limit_register,
    parts,
    size_register,
)
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram
from stretto.device.runs import called
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Let,
    Loop,
    Node,
    Rotation,
    Seq,
    TreeFunction,
    While,
)
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.terms import Term, call, infix, literal, separated
from stretto.runtime.results import Status

CHECK_CODES = {
    "list_full": Status.LIST_FULL,
    "index": Status.INDEX,
    "assertion": Status.ASSERTION,
}


class ProgramParts:
    """Data that the functions of a program share.

    arguments: the place of each buffer in the argument block: first all but constants, then the
    constants that the text mentions. limits: for each register with a capacity, the place of its
    list. sizes: for each register with a size of the call, the number of that size.
    """

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        variable = (b for b in program.tree.externals if b.kind != "constant")
        self.arguments = {buffer: place for place, buffer in enumerate(variable)}
        self.limits = {limit_register(b.slot): self.arguments[b] for b in program.lists}
        self.sizes = {size_register(s): number for number, s in enumerate(program.symbols)}
        self.recursive = any(map(called, (f.body for f in program.tree.functions)))

    def place(self, buffer: Buffer) -> int:
        """Return the place of a buffer in the argument block; the first use of a constant
        allocates it."""
        return self.arguments.setdefault(buffer, len(self.arguments))


def is_checked(kernel: Kernel) -> bool:
    """True if tasks of the kernel check positions, and so may stop the run."""
    operators = [stage.operator for stage in kernel.stages]
    exprs = [expr for one in operators for expr in parts(one.value)]
    exprs += [expr for one in operators for at in one.out.index for expr in index_parts(at)]
    return bool(checks(exprs))


Parts = TypeVar("Parts", bound=ProgramParts)
L = TypeVar("L")


class ControlPrinter(ABC, Generic[Parts, L]):
    """Printer of the nodes of one function as statements, in `out`.

    ok: a variable that is false after a failure, for machines whose functions do not return at once
    then. unit: the variable with the unit's number. namespace: prefix of the names of functions
    that programs call.
    """

    ok: Term | None = None
    unit: Term
    namespace = ""

    def __init__(self, parts: Parts, function: TreeFunction[L]) -> None:
        self.parts = parts
        self.function = function
        self.out = code.StatementBuilder()

    # ---- Control -----------------------------------------------------------------------------
    def node(self, node: Node[L]) -> None:
        """Print a node with everything below it."""
        match node:
            case Leaf(body):
                self.leaf(body)
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

    @contextmanager
    def inside(self) -> Generator[list[code.Statement]]:
        """Open the block of an arm or of a loop."""
        with self.out.block() as block:
            yield block

    def branch(self, node: If[L]) -> None:
        with self.inside() as then:
            self.decided(node, 0)
            self.node(node.then)
        with self.inside() as orelse:
            self.decided(node, 1)
            self.node(node.orelse)
        self.out.add(code.Branch(self.reg(node.condition), tuple(then), tuple(orelse)))

    def for_loop(self, node: For[L]) -> None:
        at, stop = self.fresh("at"), self.fresh("stop")
        self.declare(at, node.start)
        self.declare(stop, node.stop)
        step = self.dealt(node, at, stop) if node.parallel else node.step
        with self.inside() as body:
            self.decided(node, 1)
            self.out.assign(self.reg(node.index), at)
            self.node(node.body)
            self.rotate(node.rotate)
            self.advance(at, stop, step, node.step > 0)
        goes_on = infix(at, "<" if node.step > 0 else ">", stop)
        condition = self.ok & goes_on if self.ok else goes_on
        self.repeat(node, code.WhileLoop(condition, body=tuple(body)))
        self.decided(node, 0)

    def dealt(self, node: For[L], at: Term, stop: Term) -> int | Term:
        """Advance the number of a parallel loop to the unit's first iteration; return the step to
        the next one."""
        self.out.assign(at, self.unit * node.step, operator="+=")
        return node.step * self.parts.program.units

    def while_loop(self, node: While[L]) -> None:
        flag = self.fresh("going") if self.ok else None
        with self.inside() as head:
            self.node(node.head)
            with self.out.block() as body:
                self.decided(node, 1)
                self.node(node.body)
                self.rotate(node.rotate)
        condition = self.reg(node.condition)
        self.repeat(node, code.WhileLoop(condition, tuple(head), tuple(body), flag, self.ok))
        self.decided(node, 0)

    def repeat(self, node: Loop[L], loop: code.WhileLoop) -> None:
        """Add the statement of a loop."""
        self.out.add(loop)

    def decided(self, node: If[L] | Loop[L], way: int) -> None:
        """Record that control takes arm `way` of a branch, or goes on in a loop (1) or leaves it
        (0), on machines that record runs."""

    def rotate(self, pairs: Rotation) -> None:
        """Exchange the buffers of each pair, at the end of an iteration."""
        for pair in pairs:
            a, b = (self.buffer(buffer) for buffer in pair)
            self.out.assign(separated((a, b)), separated((b, a)))

    def call(self, node: Call[L]) -> None:
        callee = self.parts.program.tree.function(node.function)
        registers, tensors = dict(node.registers), dict(node.tensors)
        returned = {theirs: mine for mine, theirs in node.results}
        arguments = (
            *(self.number(registers[reg], reg.dtype) for reg in callee.params),
            *(self.address(tensors[buffer]) for buffer in callee.tensors),
        )
        self.invoke(callee.name, arguments, tuple(self.reg(returned[r]) for r in callee.results))

    def address(self, access: Access) -> Term:
        """Return the address of an element."""
        base = self.buffer(access.buffer)
        if access.offset == Index():
            return base
        return base + self.scalar(Position(access.offset))

    # ---- Statements of leaves ------------------------------------------------------------------
    def let(self, item: Let) -> None:
        self.out.assign(self.reg(item.reg), self.number(item.value, item.reg.dtype))

    def check(self, item: Check) -> None:
        if item.code not in CHECK_CODES:
            raise CodegenError(f"unknown check {item.code}")
        is_list = item.code == "list_full"
        detail = self.parts.limits[limit_register(item.subject)] if is_list else item.subject
        detail = literal(detail)
        if item.detail is not None:
            detail = call(f"{self.namespace}packed_detail", detail, self.scalar(item.detail))
        self.require(self.scalar(item.condition), CHECK_CODES[item.code], detail)

    # ---- Parts that differ between machines ----------------------------------------------------
    @abstractmethod
    def leaf(self, body: L) -> None: ...

    @abstractmethod
    def invoke(
        self, function: str, arguments: tuple[Term, ...], results: tuple[Term, ...]
    ) -> None: ...

    @abstractmethod
    def advance(self, at: Term, stop: Term, step: int | Term, grows: bool) -> None:
        """Advance to the next number of a loop. `grows`: the step is larger than 0."""

    @abstractmethod
    def require(self, condition: Term, failure: Status, detail: Term) -> None:
        """Stop the run with `failure` unless `condition` holds."""

    @abstractmethod
    def buffer(self, buffer: Buffer) -> Term: ...

    @abstractmethod
    def reg(self, reg: Reg) -> Term: ...

    @abstractmethod
    def fresh(self, hint: str) -> Term:
        """Return a new variable, for the numbers of a loop."""

    @abstractmethod
    def declare(self, variable: Term, value: Expr) -> None:
        """Assign the first value of such a variable."""

    @abstractmethod
    def scalar(self, expr: Expr) -> Term:
        """Return the term of one number."""

    def number(self, expr: Expr, dtype: DType) -> Term:
        """Return the term of one number of exactly this type."""
        return self.scalar(expr)
