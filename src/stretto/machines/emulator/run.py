"""Emulation of a DeviceProgram in Python, one unit at a time in random order; most tests use it.

The emulator may switch units after every item. Memory is really shared, frames and recursion
included; operators run through `device.evaluate`. Every access is checked against vector clocks, so
a missing wait is found in nearly every run, whatever the order was. When no unit can continue, the
error says which unit waits for what.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from stretto.deadline import Deadline
from stretto.device.evaluate import CheckFailed, Number, evaluate, resolve, run_task, task_count
from stretto.device.expr import Buffer, Expr, Position, Reg, limit_register
from stretto.device.operator import Kernel, LibraryCall, as_executed
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Wait
from stretto.device.tree import (
    Call,
    Check,
    Conditional,
    Execution,
    For,
    Let,
    Node,
    Rotation,
    TreeFunction,
)
from stretto.errors import RunError
from stretto.ir.failure import packed_detail, unpacked_detail
from stretto.machines.control_printer import CHECK_CODES
from stretto.machines.emulator.memory import Clocks, EmulatedMemory, Pointer, UnitMemory
from stretto.runtime.library import run_call
from stretto.runtime.results import DeadlockError, ProgramStopped, Status

NO_DEADLINE = Deadline()
NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class EmulatedRun:
    """`results`: the scalar results of main. `full_list`: the slot of a list that was too short,
    or None.

    `items`: the number of items that all units together executed.
    """

    results: list[int]
    full_list: int | None
    arena_bytes: int
    items: int


@dataclass(frozen=True, slots=True)
class Emulator:
    """An emulator of one program; `seed` determines the interleaving."""

    program: DeviceProgram
    seed: int = 0
    max_depth: int = 10_000
    arena_limit: int = 1 << 30

    def run(
        self,
        buffers: Mapping[int, Tensor],
        limits: Mapping[int, int] | None = None,
        deadline: Deadline = NO_DEADLINE,
        sizes: Mapping[str, int] = NO_SIZES,
        *,
        in_turn: bool = False,
    ) -> EmulatedRun:
        """Run once.

        `buffers`: contiguous memory by slot, changed in place; `limits`: capacities by slot;
        `sizes`: the values of the symbols of main, by `size_name`; `in_turn`: one unit runs the
        iterations of parallel loops, in order.

        Raise RaceError, UninitialisedRead, DeadlockError, RunError after the deadline, and
        ProgramStopped for anything that stops a run except a full list.
        """
        machine = _Machine(self, limits or {}, sizes, in_turn)
        machine.memory.bind(buffers)
        units = [_EmulatedUnit(machine, number) for number in range(self.program.units)]
        order = random.Random(self.seed)
        full = None
        try:
            with torch.no_grad():
                _run_all(units, order, deadline)
        except ProgramStopped as stop:
            if stop.status is not Status.LIST_FULL:
                raise
            full = unpacked_detail(stop.detail)[0]
        results = [] if full is not None else units[0].results
        if full is None and any(unit.results != results for unit in units):
            raise RunError("the units disagree on the scalar results of the program")
        items = sum(unit.items for unit in units)
        return EmulatedRun(results, full, machine.memory.arena_bytes, items)


def _run_all(units: list[_EmulatedUnit], order: random.Random, deadline: Deadline) -> None:
    """Advance units in random order until all are finished. Raise DeadlockError if all wait."""
    alive = units
    while alive:
        deadline.check()
        ready = [unit for unit in alive if unit.is_ready]
        if not ready:
            waits = "; ".join(unit.waiting_text for unit in alive)
            raise DeadlockError(f"deadlock: {waits}")
        order.choice(ready).advance()
        alive = [unit for unit in alive if not unit.is_finished]


class _Machine:
    """State that the units share."""

    def __init__(
        self,
        emulator: Emulator,
        limits: Mapping[int, int],
        sizes: Mapping[str, int],
        in_turn: bool,
    ) -> None:
        self.in_turn = in_turn
        self.program = emulator.program
        self.kernels = {kernel.name: as_executed(kernel) for kernel in self.program.kernels}
        self.functions = {f.name: f for f in self.program.tree.functions}
        self.frames = dict(self.program.frames)
        self.clocks = Clocks(self.program.units)
        self.memory = EmulatedMemory(self.program, self.clocks, emulator.arena_limit)
        self.max_depth = emulator.max_depth
        self.externals = {b.name: Pointer(b.slot, 0) for b in self.program.tree.externals}
        self.given: dict[str, Number] = {limit_register(s).name: n for s, n in limits.items()}
        self.given |= sizes


@dataclass(slots=True)
class _EmulatedActivation:
    """One call of a function on one unit."""

    function: TreeFunction[Schedule]
    frame: int
    end: int
    depth: int
    memory: UnitMemory
    pointers: dict[str, Pointer]
    registers: dict[str, Number]

    def value(self, expr: Expr) -> Number:
        return evaluate(expr, self.registers, self.memory)


@dataclass(slots=True)
class _PendingWait:
    """A wait until the units `learnt` have published `value`; `units` have not done so yet."""

    learnt: tuple[int, ...]
    value: int
    place: str
    units: list[int]


class _EmulatedUnit(Execution[Schedule, _EmulatedActivation]):
    """One unit: executes the whole tree with separate registers."""

    def __init__(self, machine: _Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.base = 0
        self.items = 0
        self.results: list[int] = []
        self.waiting: _PendingWait | None = None
        self.is_finished = False
        self._steps = self._main()

    @property
    def is_ready(self) -> bool:
        """True unless the unit waits for a step that is not published yet."""
        if self.waiting is None:
            return True
        clocks, value = self.machine.clocks, self.waiting.value
        self.waiting.units = [u for u in self.waiting.units if not clocks.has_published(u, value)]
        return not self.waiting.units

    @property
    def waiting_text(self) -> str:
        assert self.waiting is not None
        other, value = self.waiting.units[0], self.waiting.value
        has = self.machine.clocks.published[other][-1]
        return (
            f"unit {self.number} {self.waiting.place} waits for unit {other} to reach {value} "
            f"(it has {has})"
        )

    def advance(self) -> None:
        """Continue until the next switch."""
        for _ in self._steps:
            return
        self.is_finished = True

    def _stop(self, status: Status, detail: int, message: str) -> ProgramStopped:
        return ProgramStopped(status, detail, f"{message} (unit {self.number})", None)

    def _main(self) -> Iterator[None]:
        """Execute the program; yield where units may switch."""
        main = self.machine.program.tree.main
        activation = self._activate(main, frame=0, depth=0, arguments={})
        for leaf, at in self.leaves(main.body, activation):
            yield from self._leaf(leaf.body, at)
        self.results = [int(activation.registers[reg.name]) for reg in main.results]

    def _activate(
        self,
        function: TreeFunction[Schedule],
        frame: int,
        depth: int,
        arguments: Mapping[str, Number],
    ) -> _EmulatedActivation:
        """Return a new activation of a function, with its frame at `frame`. Raise ProgramStopped
        if the recursion is too deep or the arena full."""
        layout = self.machine.frames[function.name]
        registers = {**self.machine.given, **arguments}
        if depth > self.machine.max_depth:
            message = f"the recursion is deeper than {self.machine.max_depth} calls"
            raise self._stop(Status.TOO_DEEP, depth, message)
        end = frame + resolve(layout.end, registers)
        if not self.machine.memory.reserve(end):
            raise self._stop(Status.ARENA_FULL, end, f"the frames need {end} bytes")
        pointers = dict(self.machine.externals)
        for name, placement in layout.placements:
            own = self.number * layout.stride(name)
            pointers[name] = Pointer(None, frame + placement.offset + own)
        for name, _ in layout.sized:
            pointers[name] = Pointer(None, frame + resolve(layout.offset(name), registers))
        memory = UnitMemory(self.machine.memory, self.number, pointers, registers)
        return _EmulatedActivation(function, frame, end, depth, memory, pointers, registers)

    def trips(self, node: For[Schedule], state: _EmulatedActivation) -> Iterator[None]:
        state.memory.begin("bounds of a loop")
        all_trips = range(int(state.value(node.start)), int(state.value(node.stop)), node.step)
        for position in self._own(all_trips) if node.parallel else all_trips:
            state.registers[node.index.name] = position
            yield

    def _own(self, trips: range) -> range:
        """Return this unit's iterations of a parallel loop."""
        if self.machine.in_turn:
            return trips if self.number == 0 else trips[:0]
        return trips[self.number :: self.machine.program.units]

    def holds(self, node: Conditional[Schedule], state: _EmulatedActivation, done: int) -> bool:
        return bool(state.registers[node.condition.name])

    def rotate(self, pairs: Rotation, state: _EmulatedActivation) -> None:
        pointers = state.pointers
        for a, b in pairs:
            pointers[a.name], pointers[b.name] = pointers[b.name], pointers[a.name]

    def call(
        self, node: Call[Schedule], state: _EmulatedActivation
    ) -> Iterator[tuple[Node[Schedule], _EmulatedActivation]]:
        function = self.machine.functions[node.function]
        state.memory.begin(f"arguments of {node.function}")
        arguments = {register.name: state.value(value) for register, value in node.registers}
        called = self._activate(function, state.end, state.depth + 1, arguments)
        for buffer, access in node.tensors:
            base = state.pointers[access.buffer.name]
            offset = int(state.value(Position(access.offset))) * access.buffer.dtype.itemsize
            called.pointers[buffer.name] = Pointer(base.slot, base.offset + offset)
        yield function.body, called
        for mine, theirs in node.results:
            state.registers[mine.name] = called.registers[theirs.name]

    def _leaf(self, schedule: Schedule, at: _EmulatedActivation) -> Iterator[None]:
        """Execute the items of a leaf, with a switch after each, and publish its end."""
        for item in schedule.units[self.number]:
            self._item(item, at)
            self.items += 1
            yield
            if self.waiting is not None:
                for other in self.waiting.learnt:
                    self.machine.clocks.join(self.number, other, self.waiting.value)
                self.waiting = None
        if schedule.steps:
            self.base += schedule.steps
            self.machine.clocks.publish(self.number, self.base)

    def _item(self, item: Item, at: _EmulatedActivation) -> None:
        match item:
            case Run():
                self._run(item, at)
            case Wait():
                others = item.others(self.number)
                place = f"in {at.function.name}"
                self.waiting = _PendingWait(others, self.base + item.step, place, list(others))
            case Let(register, value):
                at.memory.begin(f"let {register.name}")
                at.registers[register.name] = at.value(value)
            case Check():
                self._check(item, at)
            case _:
                self.machine.clocks.publish(self.number, self.base + item.step)

    def _check(self, check: Check, at: _EmulatedActivation) -> None:
        at.memory.begin(f"check {check.code}")
        if not at.value(check.condition):
            detail = check.subject
            if check.detail is not None:
                detail = packed_detail(detail, int(at.value(check.detail)))
            raise self._stop(CHECK_CODES[check.code], detail, f"check {check.code} does not hold")

    def _run(self, run: Run, at: _EmulatedActivation) -> None:
        kernel = self.machine.kernels[run.kernel]
        total = task_count(kernel, at.registers)
        count = total if run.count is None else run.count
        tasks = range(run.first, total, run.stride)[:count]
        for task in tasks:
            at.memory.begin(f"{kernel.name} task {task}")
            try:
                self._task(kernel, task, at)
            except CheckFailed as failed:
                detail = packed_detail(failed.number, failed.index)
                raise self._stop(Status.INDEX, detail, failed.message) from failed
            except RunError as error:
                error.op = error.op or f"{kernel.name} task {task} on unit {self.number}"
                raise

    def _task(self, kernel: Kernel, task: int, at: _EmulatedActivation) -> None:
        if kernel.call is None:
            run_task(kernel, task, at.registers, at.memory)
        else:
            self._library_call(kernel.call, at)

    def _library_call(self, call: LibraryCall, at: _EmulatedActivation) -> None:
        """Run a library call; all elements of its operands count as accessed."""
        operands: list[Tensor | Number] = []
        for number, operand in enumerate(call.operands):
            if isinstance(operand, Buffer):
                shape = [resolve(extent, at.registers) for extent in operand.shape]
                flat = at.memory.tensor(operand)[: prod(shape)]
                everything = torch.arange(flat.numel())
                at.memory.note(operand, everything, write=number >= len(call.inputs))
                operands.append(flat.view(shape))
            else:
                operands.append(
                    at.registers[operand.name]
                    if isinstance(operand, Reg)
                    else resolve(operand, at.registers)
                )
        run_call(call, operands)
