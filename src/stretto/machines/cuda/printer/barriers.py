"""Puts barriers of the block between statements whose threads may meet in memory.

Each thread of a unit goes on by itself. Where one reads what another has written, or overwrites
what another reads, a barrier has to come in between. Waits and signals contain one, and so do many
kernels. Where there is none, this pass adds one, as late as possible.

    before                     after
      run k_sum: writes a        run k_sum: writes a
      n = tl.load(a)             tl.debug_barrier()
      run k_scale: writes b      n = tl.load(a)
      run k_zero: writes a       run k_scale: writes b
                                 tl.debug_barrier()
                                 run k_zero: writes a

What each unit may have touched since its last barrier is followed along all ways through branches,
loops and calls (`touched.py`), by the parts of buffers (`extents.py`). The tasks of one kernel do
not meet: they write different elements.

A call writes to the stack, and the return from it reads that, so that between the two there always
is a barrier: what the caller has touched before it is settled behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stretto.device.expr import Buffer, Expr, Index, Position, Reg
from stretto.device.operator import Kernel
from stretto.machines import statements as code
from stretto.machines.cuda.printer.accesses import (
    Access,
    Accesses,
    KernelAccesses,
    kernel_accesses,
)
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.cuda.printer.registers import Registers
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.cuda.printer.sharing import IN_FRAMES, Sharing
from stretto.machines.cuda.printer.touched import (
    FRAMES,
    NOTHING,
    OWN_FRAMES,
    STACK_READ,
    STACK_WRITTEN,
    Touched,
)


@dataclass(slots=True)
class ProgramAccesses:
    """What the functions of a program have in common.

    every: the units, as bits. entries, exits: what may have been touched where each function
    begins, and where it ends, as far as is known; changed: whether something has been added.
    """

    every: int
    kernels: Mapping[str, Kernel]
    texts: Mapping[str, TritonKernel]
    sharings: Mapping[str, Sharing]
    entries: dict[str, Touched] = field(default_factory=dict[str, Touched])
    exits: dict[str, Touched] = field(default_factory=dict[str, Touched])
    changed: bool = False
    _known: dict[str, KernelAccesses] = field(default_factory=dict[str, KernelAccesses])

    def kernel(self, name: str) -> KernelAccesses:
        if name not in self._known:
            self._known[name] = kernel_accesses(self.kernels[name], self.texts[name])
        return self._known[name]

    def add(self, known: dict[str, Touched], function: str, touched: Touched) -> None:
        """Adds to what is known of the beginning or the end of a function."""
        before = known.get(function, NOTHING)
        after = Touched(before.joined(touched).units)
        self.changed |= after != before
        known[function] = after


@dataclass(slots=True)
class Barriers:
    """For the statements of one function.

    buffers: those whose addresses variables hold, by the variable's name. registers: those that
    variables hold. entries: what may have been touched before an iteration of each loop, as far as
    is known.
    """

    accessed: ProgramAccesses
    sharing: Sharing
    buffers: Mapping[str, Buffer]
    registers: Mapping[str, Reg]
    entries: dict[int, Touched] = field(default_factory=dict[int, Touched])

    def function(self, name: str, block: code.Block) -> code.Block:
        """The statements of a function of a recursive program. At its end a function reads from
        the stack where to go on."""
        before = self.accessed.entries.get(name, NOTHING)
        every = self.accessed.every
        block, touched = self.placed(block, before, every)
        if name == "main":
            return block
        if self.meet(touched, (STACK_READ,), every):
            block, touched = (*block, BARRIER), NOTHING
        self.accessed.add(self.accessed.exits, name, touched.plus((STACK_READ,), every))
        return block

    def main(self, block: code.Block) -> code.Block:
        """The statements of a function that is not called."""
        return self.placed(block, NOTHING, self.accessed.every)[0]

    def placed(self, block: code.Block, before: Touched, units: int) -> tuple[code.Block, Touched]:
        """The statements with barriers, and what is touched behind them. units: those that come
        here."""
        found: list[code.Statement] = []
        for statement in block:
            here = units & (statement.units if isinstance(statement, code.Run) else code.EVERY)
            if self.meet(before, map(before.seen, self.first_accesses(statement)), here):
                found.append(BARRIER)
                before = before.without(units)
            statement, before = self.through(statement, before, units)
            found.append(statement)
        return tuple(found), before

    def through(
        self, statement: code.Statement, before: Touched, units: int
    ) -> tuple[code.Statement, Touched]:
        before = before.plus(map(before.seen, self.loaded(statement)), units)
        match statement:
            case code.Wait(units=meeting) | code.Signal(units=meeting):
                return statement, before.without(units & meeting)
            case code.Run():
                return statement, self.run(statement, before, units)
            case code.Call():
                return statement, self.called(statement, before)
            case code.Assign():
                return statement, self.assigned(statement, before)
            case code.Section(body):
                body, before = self.placed(body, before, units)
                return replace(statement, body=body), before
            case code.If(_, then, orelse, units=entering):
                then, first = self.placed(then, before, units & entering)
                # The units that surely enter are not on the other way.
                other = before if entering == code.EVERY else before.without(units & entering)
                orelse, second = self.placed(orelse, other, units)
                return replace(statement, then=then, orelse=orelse), first.joined(second)
            case code.For(body=body, units=entering):
                # Over the rows of a table: tasks of one kernel, which do not meet, or waits.
                body, end = self.placed(body, before, units & entering)
                other = before if entering == code.EVERY else before.without(units & entering)
                return replace(statement, body=body), other.joined(end)
            case code.Loop():
                return self.repeated(statement, before, units)
            case _:
                return statement, before

    def repeated(self, loop: code.Loop, before: Touched, units: int) -> tuple[code.Loop, Touched]:
        """A loop, and what is touched behind its head, where it ends."""
        changing = {name for inner in code.walk((loop,)) for name in code.defines(inner)}
        before = before.varying(r for name, r in self.registers.items() if name in changing)
        if id(loop) in self.entries:
            before = before.grown(self.entries[id(loop)], 0)
        turn = 0
        while True:
            head, behind = self.placed(loop.head, before, units)
            body, end = self.placed(loop.body, behind, units)
            if before.contains(end):
                self.entries[id(loop)] = before
                if loop.entered:  # then what was touched before is behind a whole iteration
                    behind = self.placed(loop.head, end, units)[1]
                return replace(loop, head=head, body=body), behind
            before = before.grown(end, turn)
            turn += 1

    # ---- what statements touch -----------------------------------------------------------------
    def loaded(self, statement: code.Statement) -> Accesses:
        """What the terms of a statement load."""
        return frozenset(Access(buffer, False) for buffer in code.reads(statement))

    def first_accesses(self, statement: code.Statement) -> Accesses:
        """What a statement by itself, without those inside of it, may touch before there is a
        barrier in it."""
        loaded = self.loaded(statement)
        match statement:
            case code.Run(kernel):
                return loaded | self.accessed.kernel(kernel).before
            case code.Call():
                return loaded | {STACK_WRITTEN}
            case _:
                return loaded

    def run(self, run: code.Run, before: Touched, units: int) -> Touched:
        """Behind the tasks of a kernel."""
        kernel, here = self.accessed.kernel(run.kernel), units & run.units
        if not kernel.passes:
            return before.plus(map(before.seen, kernel.before | kernel.behind), here)
        # A unit that has no task comes to no barrier, and touches nothing.
        found = self.accessed.kernels[run.kernel]
        left = before.without(here) if found.is_static and found.tasks else before
        return left.plus(map(left.seen, kernel.behind), here)

    def assigned(self, statement: code.Assign, before: Touched) -> Touched:
        """Behind an assignment of registers, or a trade of addresses `a, b = b, a`."""
        names, values = statement.target.names, statement.value.names
        pairs = zip(names, values, strict=False)
        trades = {
            self.buffers[old]: self.buffers[new]
            for new, old in pairs
            if old in self.buffers and new in self.buffers
        }
        if trades:
            return before.renamed(trades)
        for name in names:
            if name in self.registers:
                before = before.assigned(self.registers[name], self._value(statement))
        return before

    def _value(self, statement: code.Assign) -> Expr | None:
        """What a register is assigned, in terms of registers."""
        if statement.value.is_name and statement.operator == "=":
            source = self.registers.get(statement.value.names[0])
            return None if source is None else Position(Index.of(source))
        return statement.expr

    def meet(self, touched: Touched, accesses: Iterable[Access], units: int) -> bool:
        """May one of the accesses by these units be to what another thread has touched, and one of
        the two write?"""
        accesses = tuple(accesses)
        return any(
            others & units
            and any(self.conflict(one, another, touched.registers) for another in accesses)
            for one, others in touched.units.items()
        )

    def conflict(self, one: Access, other: Access, registers: Registers) -> bool:
        """May two accesses be to one element, and does one of them write?"""
        if not (one.writes or other.writes):
            return False
        a, b = one.buffer, other.buffer
        if a is None or b is None:
            # Calls inside of calls write other words of the stack.
            return a is b and not (one.writes and other.writes)
        if a == b:
            return one.may_meet(other, registers)
        if FRAMES in (a, b):
            return False
        if OWN_FRAMES in (a, b):
            return (b if a == OWN_FRAMES else a).kind in IN_FRAMES
        return self.sharing.may_share(a, b)

    # ---- calls ---------------------------------------------------------------------------------
    def called(self, call: code.Call, before: Touched) -> Touched:
        """Behind a call. It adds what is touched before it to what is known of the function."""
        callee = self.accessed.sharings[call.function]
        given = dict(zip(callee.function.tensors, self._bound(call, callee), strict=True))
        touched = before.plus((STACK_WRITTEN,), self.accessed.every)
        for result in call.results:
            for name in result.names:
                if name in self.registers:
                    before = before.assigned(self.registers[name], None)
        entering: dict[Access, int] = {}
        for one, units in touched.units.items():
            for access in self._inside(one, given):
                entering[access] = entering.get(access, 0) | units
        self.accessed.add(self.accessed.entries, call.function, Touched(entering))
        behind: dict[Access, int] = {}
        for one, units in self.accessed.exits.get(call.function, NOTHING).units.items():
            for access in _outside(one, given, callee):
                behind[access] = behind.get(access, 0) | units
        return Touched(behind, before.registers)

    def _bound(self, call: code.Call, callee: Sharing) -> list[list[Buffer]]:
        """For each param that is a tensor, the buffers in its address."""
        places = call.arguments[len(callee.function.params) :]
        return [
            [self.buffers[name] for name in place.names if name in self.buffers] for place in places
        ]

    def _inside(self, one: Access, given: Mapping[Buffer, list[Buffer]]) -> Iterable[Access]:
        """By what names the function that is called may touch what its caller has touched."""
        buffer = one.buffer
        if buffer is None:
            yield one
            return
        whole = Access(buffer, one.writes)
        if buffer in (FRAMES, OWN_FRAMES):
            yield replace(whole, buffer=OWN_FRAMES)
            return
        for param, places in given.items():
            if any(self.sharing.may_share(buffer, place) for place in places):
                yield replace(whole, buffer=param)
        for member in self.sharing.group(buffer):
            yield from (replace(whole, buffer=other) for other in self.sharing.externals(member))


def _outside(
    one: Access, given: Mapping[Buffer, list[Buffer]], callee: Sharing
) -> Iterable[Access]:
    """What of the caller a function has touched that has returned."""
    if one.buffer is None:
        yield one
        return
    for member in callee.group(one.buffer):
        if member.kind in (*IN_FRAMES, "frames"):
            yield Access(FRAMES, one.writes)
        elif member.kind == "param":
            yield from (Access(place, one.writes) for place in given[member])
        else:
            yield Access(member, one.writes)
