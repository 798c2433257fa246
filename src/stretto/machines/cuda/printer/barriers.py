"""Puts barriers of the block between statements whose threads may meet in memory.

Each thread of a unit goes on by itself. Where one reads what another has written, or overwrites
what another reads, a barrier has to come in between. Waits and signals contain one. Where there is
none, this pass adds one, as late as possible.

    before                     after
      run k_sum: writes a        run k_sum: writes a
      n = tl.load(a)             tl.debug_barrier()
      run k_scale: writes b      n = tl.load(a)
      run k_zero: writes a       run k_scale: writes b
                                 tl.debug_barrier()
                                 run k_zero: writes a

What each unit may have touched since its last barrier is followed along all ways through branches
and loops. The tasks of one kernel do not meet: they write different elements. A call of a recursive
function begins without anything touched but the stack, and ends without anything touched at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import InitVar, dataclass, field, replace

from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.program import FrameLayout, Placement
from stretto.machines import statements as code
from stretto.machines.cuda.printer.scalar import BARRIER

Access = tuple[Buffer | None, bool]
"""A buffer, None for the stack, and whether it is written."""
Touched = Mapping[Access, int]
"""The units that may have made each access since their last barrier, as bits."""
NOTHING: Touched = {}
CALLED: Touched = {(None, True): code.EVERY}
"""At the beginning of a function that is called: the caller has written to the stack."""
RETURNED: Touched = {(None, False): code.EVERY}
"""Behind a call: the caller has read its part of the stack."""


@dataclass(slots=True)
class Barriers:
    """For the statements of one function.

    buffers: those whose addresses variables hold, by the variable's name. rotated: those that
    trade places. entries: what may have been touched before an iteration of each loop, as far as
    is known.
    """

    kernels: Mapping[str, Kernel]
    frame: InitVar[FrameLayout]
    buffers: Mapping[str, Buffer]
    rotated: Set[Buffer] = frozenset()
    entries: dict[int, Touched] = field(default_factory=dict[int, Touched])
    _places: dict[str, Placement] = field(init=False)
    _sized: frozenset[str] = field(init=False)
    _known: dict[str, Set[Access]] = field(default_factory=dict[str, Set[Access]])

    def __post_init__(self, frame: FrameLayout) -> None:
        self._places = dict(frame.placements)
        self._sized = frozenset(name for name, _ in frame.sized)

    def placed(
        self, block: code.Block, before: Touched, units: int = code.EVERY
    ) -> tuple[code.Block, Touched]:
        """The statements with barriers, and what is touched behind them. units: those that come
        here."""
        found: list[code.Statement] = []
        for statement in block:
            here = units & (statement.units if isinstance(statement, code.Run) else code.EVERY)
            accesses = self.accesses(statement)
            if self.meet(before, accesses, here):
                found.append(BARRIER)
                before = without(before, units)
            before = union(before, dict.fromkeys(accesses, here))
            statement, before = self.through(statement, before, units)
            found.append(statement)
        return tuple(found), before

    def through(
        self, statement: code.Statement, before: Touched, units: int
    ) -> tuple[code.Statement, Touched]:
        match statement:
            case code.Wait() | code.Signal():
                return statement, without(before, units)
            case code.Call():
                return statement, RETURNED
            case code.Assign():
                return statement, self.renamed(statement, before)
            case code.Section(body):
                body, before = self.placed(body, before, units)
                return replace(statement, body=body), before
            case code.If(_, then, orelse, units=entering):
                then, first = self.placed(then, before, units & entering)
                # The units that surely enter are not on the other way.
                other = before if entering == code.EVERY else without(before, units & entering)
                orelse, second = self.placed(orelse, other, units)
                return replace(statement, then=then, orelse=orelse), union(first, second)
            case code.For(body=body, units=entering):
                # Over the rows of a table: tasks of one kernel, which do not meet, or waits.
                body, end = self.placed(body, before, units & entering)
                others = before if entering == code.EVERY else without(before, units & entering)
                return replace(statement, body=body), union(others, end)
            case code.Loop():
                head, body, behind = self.repeated(statement, before, units)
                return replace(statement, head=head, body=body), behind
            case _:
                return statement, before

    def repeated(
        self, loop: code.Loop, before: Touched, units: int
    ) -> tuple[code.Block, code.Block, Touched]:
        """The two blocks of a loop, and what is touched behind the first, where the loop ends."""
        before = union(before, self.entries.get(id(loop), NOTHING))
        while True:
            head, behind = self.placed(loop.head, before, units)
            body, end = self.placed(loop.body, behind, units)
            if union(before, end) == before:
                self.entries[id(loop)] = before
                return head, body, behind
            before = union(before, end)

    # ---- what statements touch -----------------------------------------------------------------
    def accesses(self, statement: code.Statement) -> Set[Access]:
        """Of a statement by itself, without those inside of it."""
        loaded = _all(code.reads(statement), False)
        match statement:
            case code.Run(kernel):
                if kernel not in self._known:
                    self._known[kernel] = kernel_accesses(self.kernels[kernel])
                return self._known[kernel]
            case code.Call():
                return loaded | {(None, True)}
            case _:
                return loaded

    def renamed(self, statement: code.Assign, touched: Touched) -> Touched:
        """Behind the trade of addresses `a, b = b, a` the names stand for other memory."""
        pairs = zip(statement.target.names, statement.value.names, strict=False)
        trades = {
            self.buffers[old]: self.buffers[new]
            for new, old in pairs
            if old in self.buffers and new in self.buffers
        }
        if not trades:
            return touched
        return {(trades.get(b, b) if b else b, writes): us for (b, writes), us in touched.items()}

    def meet(self, touched: Touched, accesses: Set[Access], units: int) -> bool:
        """May one of the accesses by these units be to what another thread has touched, and one of
        the two write?"""
        if (None, True) in accesses and touched.keys() - CALLED.keys():
            return True  # a function begins without anything else touched
        return any(
            (written or writes) and self.may_share(a, b)
            for (a, written), others in touched.items()
            if others & units
            for b, writes in accesses
        )

    def may_share(self, a: Buffer | None, b: Buffer | None) -> bool:
        """Whether two buffers may be the same memory, other than the stack."""
        if a is None or b is None:
            return False
        if a == b or (self.is_given(a) and self.is_outside(b)):
            return True
        if self.is_outside(a) and self.is_given(b):
            return True
        if a.name in self._places and b.name in self._places:
            first, second = self._places[a.name], self._places[b.name]
            return first.offset < second.end and second.offset < first.end
        return a.name in self._sized and b.name in self._sized

    def is_outside(self, buffer: Buffer) -> bool:
        """Whether its memory may lie outside of the function's own frame."""
        return self.is_given(buffer) or buffer.kind not in ("local", "items")

    def is_given(self, buffer: Buffer) -> bool:
        """Whether its memory is a caller's, which may hand over one piece of it twice."""
        return buffer.kind == "param" or (
            buffer in self.rotated and any(other.kind == "param" for other in self.rotated)
        )


def union(first: Touched, second: Touched) -> Touched:
    keys = first.keys() | second.keys()
    return {key: first.get(key, 0) | second.get(key, 0) for key in keys}


def without(touched: Touched, units: int) -> Touched:
    """What is left behind a barrier of these units."""
    return {key: others & ~units for key, others in touched.items() if others & ~units}


def kernel_accesses(kernel: Kernel) -> Set[Access]:
    operators = [stage.operator for stage in kernel.stages]
    reads = (load.access.buffer for one in operators for load in one.reads())
    accumulated = (one.out.buffer for one in operators if one.accumulate)
    writes = (one.out.buffer for one in operators)
    return _all(reads, False) | _all(accumulated, False) | _all(writes, True)


def _all(buffers: Iterable[Buffer], written: bool) -> Set[Access]:
    return {(buffer, written) for buffer in buffers}
