"""The host's part of one run of a plan: it enqueues launches and library calls, and executes
control.

It waits for the GPU only if it needs the value of a register: the condition of a branch or loop
with a library call inside, or a size that a library call needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from stretto.device.evaluate import resolve
from stretto.device.expr import (
    SIZE,
    Access,
    Buffer,
    Const,
    Expr,
    Position,
    Reg,
    constant,
    depends_on_sizes,
)
from stretto.device.forms import ProgramInterface
from stretto.device.operator import LibraryCall
from stretto.device.plan import Action, Launch, Library, Plan, address_name
from stretto.device.tree import (
    Call,
    Conditional,
    Execution,
    For,
    If,
    Leaf,
    Node,
    Rotation,
    Seq,
    TreeFunction,
    children,
    is_predicated,
    rotating,
)
from stretto.ir.sizes import Size
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.launch import Invocation
from stretto.machines.cuda.launcher import Launcher
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.state import Job
from stretto.options import Options
from stretto.runtime.library import Number, Operand, extents, run_call
from stretto.runtime.results import Status, item_shape, stopped

# ---- Executes plans of several launches: library calls between them, and control on the host.
#
# Everything is enqueued on the caller's stream. The host waits only where it has to know a
# register: the condition of a branch or loop that has a library call inside, a size that a
# library call needs.


Order = Callable[[Seq[Action]], Sequence[Node[Action]]]
"""Returns the parts of a sequence in the order in which the host executes them."""


def in_order(sequence: Seq[Action]) -> Sequence[Node[Action]]:
    """Return the parts in the plan's order."""
    return sequence.children


class PlanExecutable(CudaExecutable):
    """A program of several launches. `reads` counts how often the host has read a register. order:
    of a sequence's parts; tests change it to check that a graph has all its edges."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[TritonSource],
        interface: ProgramInterface,
        options: Options,
        launcher: Launcher,
    ) -> None:
        super().__init__(plan.program, sources, interface, options, launcher, plan.words["main"])
        self.plan = plan
        body = plan.tree.main.body
        self.is_single = isinstance(body, Leaf) and isinstance(body.body, Launch)
        self.numbers = {id(launch): n for n, (_, launch) in enumerate(plan.launches)}
        self.functions = {function.name: function for function in plan.tree.functions}
        self.moving = {
            function.name: {*function.tensors, *rotating(function.body)}
            for function in plan.tree.functions
        }
        for name, launch in plan.launches:
            self.moving[name].update(launch.program.tree.main.tensors)
        self.frames = dict(plan.program.frames)
        self.order: Order = in_order
        self.reads = 0
        self.library_runs = 0
        if plan.decides_on_host:
            self.waits = True
            self.can_be_captured = False
            self.why_not_captured = "the host reads values during the run"

    def run(self, job: Job) -> None:
        if self.is_single:
            super().run(job)
            return
        words = self.host(job).main().words
        if self.registers:
            known = words.tolist()
            for place in self.registers.values():
                job.state.words[place] = known[place]

    def host(self, job: Job) -> Host:
        """Return the object that enqueues one run."""
        return Host(self, job)


@dataclass(slots=True)
class Activation:
    """One activation of a function.

    sizes: the values of symbols, by the names of their registers. moving: the current memory of
    buffers whose place is not fixed; their addresses are in words too. lost: those of them that a
    launch may have rotated since.
    """

    function: TreeFunction[Action]
    arena: torch.Tensor
    words: torch.Tensor
    depth: int
    sizes: Mapping[str, int]
    moving: dict[Buffer, torch.Tensor] = field(default_factory=dict[Buffer, torch.Tensor])
    lost: set[Buffer] = field(default_factory=set[Buffer])


class Host(Execution[Action, Activation]):
    """The host's part of one run."""

    def __init__(self, executable: PlanExecutable, job: Job) -> None:
        self.executable = executable
        self.job = job

    def main(self) -> Activation:
        """Run the program; return its activation at the end."""
        executable = self.executable
        at = self.begin("main", executable.arena(self.job.state))
        self.place_all(at, {})
        self.run(at)
        return at

    def begin(self, name: str, arena: torch.Tensor) -> Activation:
        """Return an activation in which no buffer and no register has a value yet, except sizes."""
        executable = self.executable
        count = max(len(executable.plan.words[name]), 1)
        words = executable.launcher.empty((count,), torch.int64).zero_()
        sizes = executable.symbols.registers(self.job.sizes)
        places = executable.plan.words[name]
        for size in sizes.keys() & places.keys():
            words[places[size]] = sizes[size]
        return Activation(executable.functions[name], arena, words, 0, sizes)

    def place_all(self, at: Activation, given: Mapping[Buffer, torch.Tensor]) -> None:
        """Set the initial addresses of buffers whose place may change."""
        for buffer in self.executable.moving[at.function.name]:
            at.moving[buffer] = given[buffer] if buffer in given else self.fixed(at, buffer)
            self.address(at, buffer).fill_(at.moving[buffer].data_ptr())

    def activate(
        self,
        name: str,
        depth: int,
        registers: Mapping[Reg, torch.Tensor | Number],
        tensors: Mapping[Buffer, torch.Tensor],
    ) -> Activation:
        """Return an activation of a called function, in memory of its own."""
        executable = self.executable
        if depth > executable.max_depth:
            raise stopped(Status.TOO_DEEP, depth, executable.max_depth, 0)
        sizes = executable.symbols.registers(self.job.sizes)
        given_sizes = (item for item in registers.items() if item[0].name.startswith(SIZE))
        sizes |= {reg.name: int(value) for reg, value in given_sizes}
        frame = resolve(executable.program.frame(name).end, sizes)
        arena = executable.memory(max(executable.wanted(self.job.state).arena, frame))
        at = self.begin(name, arena)
        at.depth, at.sizes = depth, sizes
        self.place_all(at, tensors)
        for reg, value in registers.items():
            self.set_word(at, reg, value)
        return at

    def address(self, at: Activation, buffer: Buffer) -> torch.Tensor:
        """Return the word that holds a buffer's address."""
        return at.words[self.executable.plan.words[at.function.name][address_name(buffer)]]

    # ---- registers ---------------------------------------------------------------------------
    def word(self, at: Activation, reg: Reg) -> torch.Tensor:
        return at.words[self.executable.plan.words[at.function.name][reg.name]]

    def set_word(self, at: Activation, reg: Reg, value: torch.Tensor | Number) -> None:
        if isinstance(value, torch.Tensor):
            self.word(at, reg).copy_(value)
        else:
            self.word(at, reg).fill_(_bits(reg, value))

    def wait(self) -> None:
        """Wait for all enqueued work, to read what it has written."""
        self.executable.reads += 1
        self.executable.launcher.synchronize(self.job.stream)
        self.executable.require_running(self.job.state)

    def read(self, at: Activation, reg: Reg) -> Number:
        """Return the value of a register; waits for all enqueued work."""
        self.wait()
        return _value(reg, int(self.word(at, reg).item()))

    def number(self, at: Activation, expr: Expr) -> int:
        known = host_number(expr, at.sizes)
        return int(self.read(at, register_of(expr))) if known is None else known

    # ---- control -----------------------------------------------------------------------------
    def run(self, at: Activation) -> None:
        """Run the body of an activation's function."""
        for leaf, inner in self.leaves(at.function.body, at):
            match leaf.body:
                case Launch() as launch:
                    self.launch(launch, inner)
                case Library(call):
                    self.library(call, inner)

    def sequence(self, node: Seq[Action], state: Activation) -> Iterable[Node[Action]]:
        return self.executable.order(node)

    def trips(self, node: For[Action], state: Activation) -> Iterator[None]:
        start, stop = self.number(state, node.start), self.number(state, node.stop)
        for position in range(start, stop, node.step):
            self.set_word(state, node.index, position)
            yield

    def holds(self, node: Conditional[Action], state: Activation, done: int) -> bool:
        return bool(self.read(state, node.condition))

    def arms(self, node: If[Action], state: Activation) -> Iterable[Node[Action]]:
        return children(node) if is_predicated(node) else super().arms(node, state)

    def rotate(self, pairs: Rotation, state: Activation) -> None:
        for a, b in pairs:
            state.moving[a], state.moving[b] = state.moving[b], state.moving[a]
            if {a, b} & state.lost:
                state.lost |= {a, b}
            first, second = self.address(state, a), self.address(state, b)
            before = first.clone()
            first.copy_(second)
            second.copy_(before)

    def call(
        self, node: Call[Action], state: Activation
    ) -> Iterator[tuple[Node[Action], Activation]]:
        registers: dict[Reg, torch.Tensor | Number] = {}
        for reg, expr in node.registers:
            if isinstance(expr, Const):
                registers[reg] = expr.value
            else:
                known = host_number(expr, state.sizes)
                registers[reg] = self.word(state, register_of(expr)) if known is None else known
        tensors = {buffer: self.place(state, access) for buffer, access in node.tensors}
        called = self.activate(node.function, state.depth + 1, registers, tensors)
        yield called.function.body, called
        for mine, theirs in node.results:
            self.set_word(state, mine, self.word(called, theirs))

    # ---- memory ------------------------------------------------------------------------------
    def tensor(self, at: Activation, buffer: Buffer) -> torch.Tensor:
        """Return the memory of a buffer from its start on, flat."""
        if buffer in at.lost:
            self.find(at)
        return at.moving[buffer] if buffer in at.moving else self.fixed(at, buffer)

    def find(self, at: Activation) -> None:
        """Read the addresses of buffers that loops on the device have rotated."""
        self.wait()
        places = {at.moving[buffer].data_ptr(): at.moving[buffer] for buffer in at.lost}
        found = {buffer: places[int(self.address(at, buffer).item())] for buffer in at.lost}
        at.moving |= found
        at.lost.clear()

    def fixed(self, at: Activation, buffer: Buffer) -> torch.Tensor:
        """As `tensor`, for a buffer that is not moved."""
        if buffer.kind in ("local", "items"):
            start = self.executable.frames[at.function.name].offset(buffer.name)
            first = resolve(start, at.sizes)
            nbytes = prod(item_shape(buffer, at.sizes)) * buffer.dtype.itemsize
            return at.arena[first : first + nbytes].view(buffer.dtype.torch)
        if buffer.slot in self.job.memory:
            return self.job.memory[buffer.slot].view(-1)
        return self.executable.constant(buffer).view(-1)

    def place(self, at: Activation, access: Access) -> torch.Tensor:
        return self.tensor(at, access.buffer)[self.number(at, Position(access.offset)) :]

    # ---- actions -----------------------------------------------------------------------------
    def launch(self, launch: Launch, at: Activation) -> None:
        executable = self.executable
        executable.enqueue(self.invocation(launch, at), self.job)
        at.lost |= set(launch.rotated)

    def invocation(self, launch: Launch, at: Activation) -> Invocation:
        """Return a launch with its arguments."""
        return self.executable.prepared(
            self.executable.numbers[id(launch)],
            self.job,
            (at.arena, at.words),
            self.reached(at),
        )

    def reached(self, at: Activation) -> list[torch.Tensor]:
        """Return the memory that words of an activation point to."""
        return list(at.moving.values())

    def library(self, call: LibraryCall, at: Activation) -> None:
        self.executable.library_runs += 1
        run_call(call, self.operands(call, at))

    def operands(self, call: LibraryCall, at: Activation) -> list[Operand]:
        """Return the operands of a library call, as `bound` of runtime/library.py expects them."""
        numbers: dict[Reg | Size, Number] = {}
        for kind in call.operands:
            if isinstance(kind, Size):
                numbers[kind] = resolve(kind, at.sizes)
            elif isinstance(kind, Reg):
                numbers[kind] = self.read(at, kind)
        operands: list[Operand] = []
        for kind in call.operands:
            if not isinstance(kind, Buffer):
                operands.append(numbers[kind])
                continue
            dims = [int(numbers[dim]) for dim in extents(kind)]
            shape = [dim if isinstance(dim, int) else dims.pop(0) for dim in kind.shape]
            operands.append(self.tensor(at, kind)[: prod(shape)].view(shape))
        return operands


def host_number(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    """Return the value of an expression if it depends only on sizes; None if the device computes
    it."""
    if isinstance(expr, Position) and depends_on_sizes(expr.index):
        return resolve(expr.index, sizes)
    return constant(expr)


def register_of(expr: Expr) -> Reg:
    """Return the register that holds an expression in a plan."""
    assert isinstance(expr, Position)
    ((atom, _),) = expr.index.terms
    assert isinstance(atom, Reg)
    return atom


def _bits(reg: Reg, value: Number) -> int:
    """Encode a value as a word; see `Parameter`."""
    if not reg.dtype.is_float:
        return int(value)
    wide = reg.dtype.itemsize == 8
    number = torch.tensor(float(value), dtype=torch.float64 if wide else torch.float32)
    return int(number.view(torch.int64 if wide else torch.int32).item())


def _value(reg: Reg, word: int) -> Number:
    if reg.dtype.is_float:
        wide = reg.dtype.itemsize == 8
        bits = word if wide else (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)
        number = torch.tensor(bits, dtype=torch.int64 if wide else torch.int32)
        return float(number.view(torch.float64 if wide else torch.float32).item())
    return bool(word) if reg.dtype.itemsize == 1 and reg.dtype.value == "bool" else word
