"""Parallel loops: independent parts of the iterations run on different units.

An iteration may have its own control flow, so that nothing can be batched; the ops that depend on
no other iteration still need not wait for one. They move to a separate loop, which stores one row
per iteration: unit u of n runs iterations u, u + n, u + 2n, ... by itself, with no waits inside,
and takes its own path through their branches and loops. Ops that depend on other iterations, such
as a running sum, stay in a loop after it, in order (loop distribution, then a DOALL loop; Allen and
Kennedy, "Optimizing Compilers for Modern Architectures", sections 2.3 and 6.2).

    for %t in (0, 8, 1) carry (%s = %z) {     %r = for %t in (0, 8, 1) parallel carry (%a = %o) {
      %x = while ... (reads row %t)             %x = while ... (reads row %t)
      %n = aten.add.Tensor(%s, %x)       =>     %u = stretto.narrow_scatter(%a, row of %x, 0, %t)
      yield %n                                  yield %u
    }                                         }
                                              for %t in (0, 8, 1) carry (%s = %z) {
                                                %x = aten.select.int(%r, 0, %t)
                                                %n = aten.add.Tensor(%s, %x)
                                                yield %n
                                              }

Changes: `for` loops whose trip count is a number or a size, the outermost that qualifies; functions
that their iterations call are copied if other code calls them too, and each unit runs them by
itself. Needs: loops batched, so that only ops remain that cannot be. Guarantees: every op runs as
often and on the same values as before. Random draws stay where they are, and so does a loop that
the machine's cost model estimates to be no faster in parallel. Ops that may stop the run move only
if no remaining op may stop it too: if several iterations fail, the machine finds the first one
(`Context.in_turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.components import reachable
from stretto.ir.call_graph import call_graph, called_from, callees, outside_parallel
from stretto.ir.core import Block, Function, Op, Program, SourceLocation, Value, fresh
from stretto.ir.ops import (
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    ListNewOp,
    ListPushOp,
    ListStackOp,
    LiteralOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import clone_block, clone_op
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import Dim, TensorType
from stretto.ir.verifier import updates_its_row
from stretto.ops.effects import is_check, is_draw
from stretto.ops.infer import tensor_op
from stretto.ops.properties import stop_reason
from stretto.passes.analyses.loop_dependences import loop_dependence, normalise
from stretto.passes.analyses.op_facts import (
    backward_slice,
    dependents,
    names_own_sizes,
    nbytes,
    reads,
    run_seconds,
    usual,
)
from stretto.passes.distribute import Planner
from stretto.passes.manager import Target
from stretto.text import bytes_text, seconds_text

Bound = int | Size | Value

GAIN = 1.25
"""Factor by which the parallel loop must be faster: the estimates do not know fusion."""
MOST_BYTES = 64 << 20
"""Largest number of bytes that the parallel loop passes to the loop after it."""


@dataclass(frozen=True, slots=True)
class ParallelLoops:
    """The pass. target: the machine, whose costs decide whether a parallel loop pays; without one
    no loop changes, unless `always` is set."""

    target: Target | None = None
    always: bool = False
    name: ClassVar[str] = "parallel_loops"

    def apply(self, program: Program) -> bool:
        changed = False
        apart = functions_in_parallel_loops(program)
        for name, function in program.functions.items():
            if name not in apart:
                changed |= self._in_block(function.body, program)
        if changed:
            copy_functions(program)
        return changed

    def _in_block(self, block: Block, program: Program) -> bool:
        changed = False
        for op in list(block.ops):
            if isinstance(op, ForOp):
                reason = self._loop(op, block, program)
                if reason is None:
                    changed = True
                    continue
                program.remarks.decline(self.name, "for", reason, op.location)
            for inner in op.blocks:
                changed |= self._in_block(inner, program)
        return changed

    def _loop(self, loop: ForOp, block: Block, program: Program) -> str | None:
        """Split a loop, or mark it as parallel; return None, or the reason why it stays."""
        reason = self._why_not(loop)
        if reason is not None:
            return reason
        normalise(loop)
        parts = self._parts(loop, program)
        apart = parts.apart
        sent = transferred(loop, apart)
        if parts.are_parallel_already(loop):
            sent = ()
        elif not sent:
            return "its iterations need each other for all that they compute"
        reason = self._why_stays(loop, apart, sent, program)
        if reason is not None:
            return reason
        if not sent:
            loop.parallel = True
            return None
        place = block.ops.index(loop)
        block.ops[place : place + 1] = taken_apart(loop, parts, sent)
        return None

    def _parts(self, loop: ForOp, program: Program) -> IterationOps:
        """Choose the ops that move to the parallel loop. They run before all that stay, so they
        may stop the run or not end only if no op that stays could have stopped it earlier."""
        if self.target is None or self.target.costs.in_turn:
            functions = unit_local_functions(program)
            parts = IterationOps.of(loop, lambda op: is_local(op, functions))
            if all(map(_always_completes, parts.computed(loop))):
                return parts
        parts = IterationOps.of(loop, lambda op: is_local(op) and not _stops(op))
        return (
            IterationOps.of(loop, _always_completes)
            if any(map(_stops, parts.computed(loop)))
            else parts
        )

    def _why_not(self, loop: ForOp) -> str | None:
        if self.target is None and not self.always:
            return "no machine is known"
        if self.target is not None and self.target.units == 1:
            return "one unit runs all iterations"
        trips = loop.trips()
        if trips is None:
            return "its trip count is not known"
        if at_most(trips, 1):
            return "it runs less than twice"
        if loop.parallel or loop.independent:
            return "its iterations are independent already"
        if any(map(is_draw, loop.body.walk())):
            return "it draws random numbers, iteration by iteration"
        return None

    def _why_stays(
        self, loop: ForOp, apart: set[Op], sent: Sequence[Value], program: Program
    ) -> str | None:
        if any(not isinstance(v.type, TensorType) or not v.type.is_static for v in sent):
            return "an iteration would hand over a list, or a tensor without a fixed size"
        trips = usual(loop.trips() or 0)
        moved = trips * sum(nbytes(value, usual) for value in sent)
        if moved > MOST_BYTES:
            return f"the loops would hand over {bytes_text(int(moved))}"
        if self.always:
            return None
        assert self.target is not None
        bodies = called_bodies(program, apart) * self.target.costs.unknown_trips
        moving = moved * self.target.costs.element_seconds / 2  # four bytes, written and read
        times = slower_apart(
            apart, bodies, (trips, -(-trips // self.target.units)), self.target, moving
        )
        return times and f"its independent ops take {times}"


def slower_apart(
    ops: Iterable[Op],
    bodies: Sequence[Block],
    rounds: tuple[float, float],
    target: Target,
    more: float = 0.0,
) -> str | None:
    """Compare `rounds[0]` runs of some ops, and of the bodies of functions, on all units with
    `rounds[1]` on one unit each. Return both times if the latter gain too little, else None. more:
    further seconds that they take."""
    costs = target.costs
    ops = [*ops, *(op for body in bodies for op in body.ops)]
    calls = len(bodies) * (costs.activation_seconds + costs.start_seconds)
    before = rounds[0] * (run_seconds(ops, costs, target.units) + calls)
    after = rounds[1] * (run_seconds(ops, costs, 1) + calls) + 2 * costs.wait_seconds + more
    if GAIN * after < before:
        return None
    return f"{seconds_text(before)}, on one unit each {seconds_text(after)}, as estimated"


# ---- what is independent -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class IterationOps:
    """The ops of an iteration. apart: those that depend on no other iteration, and may run before
    all others. repeated: those that cost nothing and depend only on the index, which are in
    both loops. rest: the others."""

    apart: set[Op]
    repeated: set[Op]
    rest: tuple[Op, ...]

    @classmethod
    def of(cls, loop: ForOp, may_run_apart: Callable[[Op], bool]) -> IterationOps:
        """Partition the ops of a loop. may_run_apart: True for an op that may run on one unit,
        earlier than the ops before it."""
        planner = Planner(loop, loop_dependence(loop))
        planner.find_repeated()
        ops = loop.body.ops
        repeated = {op for op in ops if op in planner.repeated}
        own = {op for op in ops if names_own_sizes(op, [loop.body]) or not may_run_apart(op)}
        stay = [op for op in ops if op in own and op not in repeated]
        late = dependents(ops, [*loop.carried, *(value for op in stay for value in op.results)])
        rest = tuple(op for op in ops if op in late or op in stay)
        return cls({*ops} - repeated - {*rest}, repeated, rest)

    def computed(self, loop: ForOp) -> list[Op]:
        """Return the rest without those ops that only update the row whose number is the index."""
        trips = loop.trips()
        assert trips is not None
        rows = {
            loop.body.yields[number]
            for number, carried in enumerate(loop.carried)
            if updates_its_row(loop, number) and at_most(trips, carried.tensor.shape[0])
        }
        return [op for op in self.rest if not (op.results and rows.issuperset(op.results))]

    def are_parallel_already(self, loop: ForOp) -> bool:
        """True if an iteration does nothing with the carried values but to update one row each,
        which no other iteration touches."""
        trips = loop.trips()
        assert trips is not None
        return (
            all(updates_its_row(loop, number) for number in range(len(loop.inits)))
            and all(at_most(trips, carried.tensor.shape[0]) for carried in loop.carried)
            and not self.computed(loop)
        )


NO_FUNCTIONS = frozenset[str]()


def is_local(op: Op, functions: frozenset[str] = NO_FUNCTIONS) -> bool:
    """True if an op, with its nested ops, needs no other unit, calls no function outside
    `functions`, and draws no random numbers."""
    return all(_is_local_alone(item, functions) for item in op.walk())


def _is_local_alone(op: Op, functions: frozenset[str]) -> bool:
    """Same as `is_local`, without the nested ops."""
    match op:
        case CallOp(function=name):
            return name in functions
        case ConstantOp() | LiteralOp() | IfOp() | WhileOp() | ListNewOp() | ListPushOp():
            return True
        case CheckOp():
            return True
        case ListStackOp():
            return isinstance(op.result.type, TensorType) and op.result.type.is_static
        case ForOp():
            return not op.parallel
        case TensorOp():
            return not is_draw(op)
        case _:
            return False


def _stops(op: Op) -> bool:
    """True if an op, or one nested in it, may stop the run."""
    return any(
        isinstance(item, CallOp)
        or is_check(item)
        or (isinstance(item, TensorOp) and stop_reason(item) is not None)
        for item in op.walk()
    )


def _always_completes(op: Op) -> bool:
    """True if an op is local, always ends, and does not stop the run."""
    endless = any(isinstance(item, WhileOp) for item in op.walk())
    return is_local(op) and not _stops(op) and not endless


# ---- functions ---------------------------------------------------------------------------------
def unit_local_functions(program: Program) -> frozenset[str]:
    """The functions that a unit may run by itself: with all their callees, they have only tensors
    of fixed sizes, no lists, no parallel loops and no random draws."""
    graph = call_graph(program)
    simple = {name for name, one in program.functions.items() if _is_simple(one)} - {"main"}
    return frozenset(name for name in simple if reachable((name,), graph) <= simple)


def _is_simple(function: Function) -> bool:
    ops = list(function.body.walk())
    values = [*function.params, *(value for op in ops for value in (*op.results, *_params(op)))]
    fixed = all(isinstance(value.type, TensorType) and value.type.is_static for value in values)
    names = frozenset(callees(ops))
    return fixed and all(_is_local_alone(op, names) for op in ops)


def _params(op: Op) -> list[Value]:
    return [value for block in op.blocks for value in block.params]


def functions_in_parallel_loops(program: Program) -> set[str]:
    """The functions that parallel loops call, directly or through others."""
    loops = (op for one in program.functions.values() for op in one.body.walk())
    return called_from(program, (op for op in loops if isinstance(op, ForOp) and op.parallel))


def called_bodies(program: Program, ops: Iterable[Op]) -> list[Block]:
    """The bodies of the functions that some ops call, directly or through others."""
    return [program.functions[name].body for name in sorted(called_from(program, ops))]


def copy_functions(program: Program) -> None:
    """Give parallel loops a copy of each function that other code also calls."""
    apart = functions_in_parallel_loops(program)
    others = (program.functions[name].body for name in program.functions.keys() - apart)
    shared = apart & called_from(program, (op for body in others for op in outside_parallel(body)))
    copies = {name: _fresh_name(f"{name}_apart", program) for name in sorted(shared)}
    for name, own in copies.items():
        program.functions[own] = Function(own, clone_block(program.functions[name].body, {}))
    for name in {*copies.values(), *(apart - shared)}:
        _redirect(program.functions[name].body, copies)
    for function in program.functions.values():
        for op in function.body.walk():
            if isinstance(op, ForOp) and op.parallel:
                _redirect(op.body, copies)


def _fresh_name(name: str, program: Program) -> str:
    return name if name not in program.functions else _fresh_name(f"{name}_", program)


def _redirect(block: Block, names: dict[str, str]) -> None:
    for op in block.walk():
        if isinstance(op, CallOp):
            op.function = names.get(op.function, op.function)


def transferred(loop: ForOp, apart: set[Op]) -> tuple[Value, ...]:
    """Values of ops in `apart` that the rest of the iteration, or its yields, read."""
    made = {value for op in apart for value in op.results}
    wanted = [value for op in loop.body.ops if op not in apart for value in reads(op)]
    return tuple(dict.fromkeys(v for v in (*wanted, *loop.body.yields) if v in made))


# ---- the loops ---------------------------------------------------------------------------------
def taken_apart(loop: ForOp, parts: IterationOps, sent: Sequence[Value]) -> list[Op]:
    """Return the ops that replace a loop in canonical form; they define its results."""
    trips = loop.trips()
    assert trips is not None
    zeros = zero_rows(trips, sent)
    first = _parallel_loop(loop, parts.apart, sent, [op.result for op in zeros])
    return [*zeros, first, _rest_loop(loop, parts, dict(zip(sent, first.results, strict=True)))]


def _parallel_loop(
    loop: ForOp, apart: set[Op], sent: Sequence[Value], inits: Sequence[Value]
) -> ForOp:
    index = Value(loop.index.type, loop.index.hint)
    mapping = {loop.index: index}
    stopping = [op for op in loop.body.ops if op in apart and _stops(op)]
    needed = backward_slice(
        loop.body.ops, [*sent, *(value for op in stopping for value in reads(op))]
    )
    needed.update(stopping)
    ops = [clone_op(op, mapping) for op in loop.body.ops if op in needed]
    handed = [mapping[value] for value in sent]
    return parallel_loop(
        (loop.start, loop.stop, loop.step), index, ops, handed, inits, loop.location
    )


def zero_rows(trips: Dim, values: Iterable[Value]) -> list[Op]:
    """Return ops that make, for each value, a zero tensor with a row per iteration."""
    return [
        tensor_op("aten.zeros.default", (trips, *v.tensor.shape), dtype=v.tensor.dtype.torch)
        for v in values
    ]


def parallel_loop(
    bounds: tuple[Bound, Bound, int],
    index: Value,
    ops: Sequence[Op],
    handed: Sequence[Value],
    inits: Sequence[Value],
    location: SourceLocation | None,
) -> ForOp:
    """Return a parallel loop whose iterations run `ops` and store each value of `handed` as row
    `index` of the tensor of `inits` at the same place."""
    updates: list[Op] = []
    carried = [Value(init.type, value.hint) for init, value in zip(inits, handed, strict=True)]
    yields: list[Value] = []
    for rows, value in zip(carried, handed, strict=True):
        row = tensor_op("aten.unsqueeze.default", value, 0)
        update = tensor_op("stretto.narrow_scatter.default", rows, row.result, 0, index)
        for op in (row, update):
            op.location = location
        updates += [row, update]
        yields.append(update.result)
    body = Block((index, *carried), [*ops, *updates], tuple(yields))
    results = tuple(map(fresh, carried))
    return ForOp(*bounds, tuple(inits), body, results=results, location=location, parallel=True)


def _rest_loop(loop: ForOp, parts: IterationOps, rows: dict[Value, Value]) -> ForOp:
    """Turn the loop into one that reads from rows the values that it no longer computes."""
    items = {value: tensor_op("aten.select.int", of, 0, loop.index) for value, of in rows.items()}
    for value, op in items.items():
        op.results = (value,)
        op.location = loop.location
    left = [op for op in loop.body.ops if op not in parts.apart]
    needed = backward_slice(left, loop.body.yields)
    left = [op for op in left if op in needed or op not in parts.repeated]
    loop.body.ops = [*items.values(), *left]
    return loop
