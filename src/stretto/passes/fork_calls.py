"""Fork and join: independent recursive calls run on different units.

All units walk a recursion together, so the two calls of `sum(left) + sum(right)` run one after the
other. This pass turns them into the iterations of a parallel loop: each is computed by one unit
alone, with everything that it calls (Cilk's spawn and sync; Frigo et al., "The implementation of
the Cilk-5 multithreaded language", 1998). A single call is replaced by a copy of the function's
body if that has calls to fork, so that the first level of a recursion forks.

    %a = call @f(%l)                      %z = aten.zeros.default((2, 4), ...)
    %i = aten.select.int(%right, 0, %n)   %p = for %t in (0, 2, 1) parallel carry (%c = %z) {
    %b = call @f(%i)                        %first = aten.eq.Scalar(%t, 0)
    %s = aten.add.Tensor(%a, %b)            %y = if %first {
                                              %u = call @f(%l)
                                              yield %u
                                    ->      } else {
                                              %i = aten.select.int(%right, 0, %n)
                                              %v = call @f(%i)
                                              yield %v
                                            }
                                            %row = aten.unsqueeze.default(%y, 0)
                                            %d = stretto.narrow_scatter.default(%c, %row, 0, %t)
                                            yield %d
                                          }
                                          %a = aten.select.int(%p, 0, 0)
                                          %b = aten.select.int(%p, 0, 1)
                                          %s = aten.add.Tensor(%a, %b)

Ops between two calls that may stop the run are part of the iteration of the second call; if several
iterations stop the run, the machine finds the first one (`Context.in_turn`). Other ops between the
calls move before the loop, or after it if they read a result.

Changes: calls outside of parallel loops; functions that other code calls too are copied. Needs:
parallel loops taken apart first, since whole trees on different units are better than the halves of
one. Guarantees: the same ops on the same values, and as often unless one stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.components import reachable
from stretto.ir.call_graph import call_graph, recursive_functions
from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import CallOp, ForOp, IfOp
from stretto.ir.rewrite import all_blocks, clone_op, substitute
from stretto.ir.symbols import symbols_bound_by
from stretto.ir.types import INDEX
from stretto.ops.infer import tensor_op
from stretto.passes.analyses.op_facts import may_stop, names_own_sizes, reads
from stretto.passes.inline import Copies
from stretto.passes.manager import Target
from stretto.passes.parallel_loops import (
    called_bodies,
    copy_functions,
    functions_in_parallel_loops,
    is_local,
    parallel_loop,
    slower_apart,
    unit_local_functions,
    zero_rows,
)

LARGER_PART = 1.5
"""Assumed work of the largest of several sub-trees, relative to their mean: the larger half of a
random binary tree has three quarters of the nodes."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Calls in a block, from op number `first` to `last`, that may run at the same time.

    branches: each call with the ops that run before it, in the same iteration. early, behind:
    the other ops in between, which move before the loop or after it.
    """

    first: int
    last: int
    branches: tuple[tuple[tuple[Op, ...], CallOp], ...]
    early: tuple[Op, ...]
    behind: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class ForkCalls:
    """The pass. target: the machine, whose costs decide whether forking pays; without one no call
    forks, unless `always` is set."""

    target: Target | None = None
    always: bool = False
    name: ClassVar[str] = "fork_calls"

    def apply(self, program: Program) -> bool:
        functions = unit_local_functions(program) & _come_to_recursion(program)
        together = program.functions.keys() - functions - functions_in_parallel_loops(program)
        changed = False
        for name in sorted(together):
            changed |= self._in_block(program.functions[name].body, program, functions, deep=True)
        if changed:
            copy_functions(program)
        return changed

    def _in_block(
        self, block: Block, program: Program, functions: frozenset[str], *, deep: bool
    ) -> bool:
        """Fork calls in a block and its nested blocks. deep: a single call may become a copy of
        the function's body. Return True if something changed."""
        changed = False
        for fork in reversed(forks_of(block, functions)):
            if self._pays(fork.branches[0][1], fork, program):
                block.ops[fork.first : fork.last + 1] = forked(fork)
                changed = True
        for op in list(block.ops):
            if isinstance(op, CallOp) and deep and op.function in functions:
                changed |= self._first_level(op, block, program, functions)
            elif not (isinstance(op, ForOp) and op.parallel):
                for inner in op.blocks:
                    changed |= self._in_block(inner, program, functions, deep=deep)
        return changed

    def _first_level(
        self, call: CallOp, block: Block, program: Program, functions: frozenset[str]
    ) -> bool:
        body = program.functions[call.function].body
        forks = [fork for inner in all_blocks(body) for fork in forks_of(inner, functions)]
        if not any(self._pays(call, fork, program) for fork in forks):
            return False
        ops, yields = Copies(program).inlined(body, call)
        place = block.ops.index(call)
        copy = Block((), list(ops), tuple(yields))
        self._in_block(copy, program, functions, deep=False)
        block.ops[place : place + 1] = copy.ops
        substitute(block, dict(zip(call.results, copy.yields, strict=True)))
        return True

    def _pays(self, call: CallOp, fork: Fork, program: Program) -> bool:
        """True if forking pays; records a remark if not."""
        reason = self._why_not(fork, program)
        if reason is not None:
            program.remarks.decline(self.name, f"call @{call.function}", reason, call.location)
        return reason is None

    def _why_not(self, fork: Fork, program: Program) -> str | None:
        if self.always:
            return None
        if self.target is None:
            return "no machine is known"
        costs, units = self.target.costs, self.target.units
        if units == 1:
            return "one unit runs all calls"
        if not costs.in_turn:
            return "the machine has no calls that run on one unit each"
        bodies = called_bodies(program, [call for _, call in fork.branches])
        count = len(fork.branches)
        most = min(count, LARGER_PART * -(-count // units))
        rounds = count * costs.unknown_activations, most * costs.unknown_activations
        times = slower_apart((), bodies, rounds, self.target)
        return times and f"{count} calls take {times}"


def _come_to_recursion(program: Program) -> frozenset[str]:
    """The functions that are recursive, or call one that is. Others are too short to fork."""
    recursive, graph = recursive_functions(program), call_graph(program)
    return frozenset(name for name in graph if recursive & reachable((name,), graph))


# ---- what can fork -----------------------------------------------------------------------------
def forks_of(block: Block, functions: frozenset[str]) -> list[Fork]:
    """Return the groups of calls to `functions` in a block that are independent of each other."""
    found: list[Fork] = []
    for place, op in enumerate(block.ops):
        if (found and place <= found[-1].last) or not _is_call(op, functions):
            continue
        fork = _fork_from(block, place, functions)
        if fork is not None:
            found.append(fork)
    return found


def _is_call(op: Op, functions: frozenset[str]) -> bool:
    return isinstance(op, CallOp) and op.function in functions


def _fork_from(block: Block, first: int, functions: frozenset[str]) -> Fork | None:
    """Return the longest group of independent calls that starts at op number `first`; None if it
    has only one call."""
    start = block.ops[first]
    assert isinstance(start, CallOp)
    types = [value.type for value in start.results]
    late, held = set(start.results), set[Value]()
    early: list[Op] = []
    behind: list[Op] = []
    pending: list[Op] = []
    branches: list[tuple[tuple[Op, ...], CallOp]] = [((), start)]
    found: Fork | None = None
    for place in range(first + 1, len(block.ops)):
        op = block.ops[place]
        read = set(reads(op))
        if not read.isdisjoint(late):
            if may_stop(op) or symbols_bound_by(op) or not read.isdisjoint(held):
                break
            behind.append(op)
            late.update(op.results)
        elif isinstance(op, CallOp) and op.function in functions:
            same = [value.type for value in op.results] == types
            if not same or _are_read_elsewhere(block, pending, op):
                break
            branches.append((tuple(pending), op))
            pending = []
            late.update(op.results)
            found = Fork(first, place, tuple(branches), tuple(early), tuple(behind))
        elif may_stop(op) or not read.isdisjoint(held):
            if not is_local(op) or names_own_sizes(op, [block]):
                break
            pending.append(op)
            held.update(op.results)
        else:
            early.append(op)
    return found


def _are_read_elsewhere(block: Block, ops: Sequence[Op], call: CallOp) -> bool:
    """True if ops of the block other than the call and `ops` themselves read results of `ops`."""
    made = {value for op in ops for value in op.results}
    others = (op for op in block.ops if op is not call and op not in ops)
    return not made.isdisjoint(block.yields) or any(not made.isdisjoint(reads(op)) for op in others)


# ---- the loop ----------------------------------------------------------------------------------
def forked(fork: Fork) -> list[Op]:
    """Return the ops that replace those from the first call to the last one."""
    calls = [call for _, call in fork.branches]
    location = calls[0].location
    zeros = zero_rows(len(calls), calls[0].results)
    index = Value(INDEX, "t")
    ops, handed = _dispatch(fork.branches, index, 0)
    inits = [op.result for op in zeros]
    loop = parallel_loop((0, len(calls), 1), index, ops, handed, inits, location)
    rows = [
        _row(of, number, value, call)
        for number, call in enumerate(calls)
        for value, of in zip(call.results, loop.results, strict=True)
    ]
    return [*fork.early, *zeros, loop, *rows, *fork.behind]


def _row(of: Value, number: int, value: Value, call: CallOp) -> Op:
    """Return an op that defines a result of a call as row `number` of the loop's result."""
    row = tensor_op("aten.select.int", of, 0, number)
    row.results, row.location = (value,), call.location
    return row


def _dispatch(
    branches: Sequence[tuple[Sequence[Op], CallOp]], index: Value, number: int
) -> tuple[list[Op], tuple[Value, ...]]:
    """Return ops that run the branch whose number is `index`, among those from `number` on, and
    the results of its call."""
    (before, call), *others = branches
    own = clone_op(call, {})
    assert isinstance(own, CallOp)
    if not others:
        return [*before, own], own.results
    first = tensor_op("aten.eq.Scalar", index, number)
    ops, handed = _dispatch(others, index, number + 1)
    results = tuple(map(fresh, own.results))
    branch = IfOp(
        first.result,
        Block((), [*before, own], own.results),
        Block((), ops, handed),
        results=results,
        location=call.location,
    )
    return [first, branch], results
