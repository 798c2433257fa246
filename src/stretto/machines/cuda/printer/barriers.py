"""Insert block barriers between statements whose threads may conflict in memory.

The threads of a unit run independently. Where one reads what another has written, or overwrites
what another reads, a barrier is needed in between. Waits and signals contain one, and so do many
kernels. Where there is none, this pass adds one, as late as possible.

    before                     after
      run k_sum: writes a        run k_sum: writes a
      n = tl.load(a)             tl.debug_barrier()
      run k_scale: writes b      n = tl.load(a)
      run k_zero: writes a       run k_scale: writes b
                                 tl.debug_barrier()
                                 run k_zero: writes a

A data-flow walk over branches, loops and calls tracks what each unit may have touched since its
last barrier (`touched.py`), by parts of buffers (`extents.py`). Tasks of one kernel do not
conflict: they write different elements.

A call writes to the stack and its return reads from it, so there is always a barrier between the
two: whatever the caller touched before the call is ordered before whatever follows it.
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
    """State that the functions of a program share.

    every: all units, as bits. entries, exits: what may have been touched at the beginning and at
    the end of each function, as far as the fixpoint iteration has found; changed: True if the last
    round has added something.
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
        """Return the accesses of a kernel (computed once)."""
        if name not in self._known:
            self._known[name] = kernel_accesses(self.kernels[name], self.texts[name])
        return self._known[name]

    def add(self, known: dict[str, Touched], function: str, touched: Touched) -> None:
        """Add to what is known at the beginning or the end of a function."""
        before = known.get(function, NOTHING)
        after = Touched(before.joined(touched).units)
        self.changed |= after != before
        known[function] = after


@dataclass(slots=True)
class Barriers:
    """Places barriers in the statements of one function.

    buffers: by variable, the buffer whose address it holds. registers: by variable, the register
    that it holds. entries: by the id of a loop, what may have been touched before an iteration, as
    far as the fixpoint iteration has found.
    """

    accessed: ProgramAccesses
    sharing: Sharing
    buffers: Mapping[str, Buffer]
    registers: Mapping[str, Reg]
    entries: dict[int, Touched] = field(default_factory=dict[int, Touched])

    def function(self, name: str, block: code.Block) -> code.Block:
        """Place barriers in a function of a recursive program. Every function but `main` ends by
        reading from the stack where to continue."""
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
        """Place barriers in a function that is never called."""
        return self.placed(block, NOTHING, self.accessed.every)[0]

    def placed(self, block: code.Block, before: Touched, units: int) -> tuple[code.Block, Touched]:
        """Return the block with barriers, and what has been touched at its end. units: those that
        execute the block, as bits."""
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
        """Return the statement with barriers inside it, and what has been touched after it."""
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
                # Units that surely enter do not take the other arm.
                other = before if entering == code.EVERY else before.without(units & entering)
                orelse, second = self.placed(orelse, other, units)
                return replace(statement, then=then, orelse=orelse), first.joined(second)
            case code.For(body=body, units=entering):
                # One pass is enough: the body runs tasks of one kernel, which do not conflict, or
                # waits, for the rows of a table.
                body, end = self.placed(body, before, units & entering)
                other = before if entering == code.EVERY else before.without(units & entering)
                return replace(statement, body=body), other.joined(end)
            case code.Loop():
                return self.repeated(statement, before, units)
            case _:
                return statement, before

    def repeated(self, loop: code.Loop, before: Touched, units: int) -> tuple[code.Loop, Touched]:
        """Iterate a loop to a fixpoint; return it, and what has been touched where its head leaves
        it."""
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
                if loop.entered:  # the loop ends only after at least one whole iteration
                    behind = self.placed(loop.head, end, units)[1]
                return replace(loop, head=head, body=body), behind
            before = before.grown(end, turn)
            turn += 1

    # ---- accesses of statements ----------------------------------------------------------------
    def loaded(self, statement: code.Statement) -> Accesses:
        """Return the loads in the terms of a statement."""
        return frozenset(Access(buffer, False) for buffer in code.reads(statement))

    def first_accesses(self, statement: code.Statement) -> Accesses:
        """Return what a statement itself, without those nested in it, may touch before its first
        barrier."""
        loaded = self.loaded(statement)
        match statement:
            case code.Run(kernel):
                return loaded | self.accessed.kernel(kernel).before
            case code.Call():
                return loaded | {STACK_WRITTEN}
            case _:
                return loaded

    def run(self, run: code.Run, before: Touched, units: int) -> Touched:
        """Return what has been touched after the tasks of a kernel."""
        kernel, here = self.accessed.kernel(run.kernel), units & run.units
        if not kernel.passes:
            return before.plus(map(before.seen, kernel.before | kernel.behind), here)
        # A unit without a task executes no barrier, and touches nothing.
        found = self.accessed.kernels[run.kernel]
        left = before.without(here) if found.is_static and found.tasks else before
        return left.plus(map(left.seen, kernel.behind), here)

    def assigned(self, statement: code.Assign, before: Touched) -> Touched:
        """Return what has been touched after an assignment of registers, or after a trade of
        addresses `a, b = b, a`."""
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
        """Return the assigned value in terms of registers; None if it is not known."""
        if statement.value.is_name and statement.operator == "=":
            source = self.registers.get(statement.value.names[0])
            return None if source is None else Position(Index.of(source))
        return statement.expr

    def meet(self, touched: Touched, accesses: Iterable[Access], units: int) -> bool:
        """Return True if one of the accesses by these units may conflict with one that another
        thread has made since the last barrier."""
        accesses = tuple(accesses)
        return any(
            others & units
            and any(self.conflict(one, another, touched.registers) for another in accesses)
            for one, others in touched.units.items()
        )

    def conflict(self, one: Access, other: Access, registers: Registers) -> bool:
        """Return True if two accesses may touch one element and one of them writes."""
        if not (one.writes or other.writes):
            return False
        a, b = one.buffer, other.buffer
        if a is None or b is None:
            # Nested calls write different words of the stack.
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
        """Return what has been touched after a call. Adds what was touched before it to the entry
        of the callee."""
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
        """Return, for each tensor param, the buffers in the address that the call passes."""
        places = call.arguments[len(callee.function.params) :]
        return [
            [self.buffers[name] for name in place.names if name in self.buffers] for place in places
        ]

    def _inside(self, one: Access, given: Mapping[Buffer, list[Buffer]]) -> Iterable[Access]:
        """Yield the names under which a callee may touch what its caller has touched."""
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
    """Yield what a returned callee has touched, in names of its caller."""
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
