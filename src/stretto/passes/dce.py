"""Dead code elimination (DCE): everything that no result of `main` depends on is dropped.

A value is live if main returns it or a live op reads it; an op that binds a symbol is live if a
live op has the symbol in a type or in an argument. Checks are live, and `while` loops too, as they
may not end; so are the calls, loops and branches that contain these, with the values that decide
whether they run. Results of an `if` and carried values of a loop are judged one by one: a carried
value that only feeds itself is dropped with everything that computes it, and so is a list that is
pushed to but never read. Functions that are not called and constants that are not named are dropped
too; parameters of functions stay. Any other dead op is dropped, even a call whose recursion does
not end. With `keep_stopping`, every op that may stop the run counts as a check; this is needed
until `check_unused` has put a check in its place.

    %r, %s = for %i in (0, 8, 1)              %r = for %i in (0, 8, 1)
        carry (%a = %x, %b = %l) {                carry (%a = %x) {
      %c = aten.sin.default(%a)        ->       %c = aten.sin.default(%a)
      %d = list.push(%b, %c)                    yield %c
      yield %c, %d                            }
    }                                         return %r
    return %r
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from stretto.components import reachable
from stretto.ir.call_graph import call_graph
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.data import AssignOp, InstanceFunction, InvokeOp, OperateOp, ReadOp, RecordOp
from stretto.ir.data_effects import DROPPED
from stretto.ir.ops import ConstantOp, ForOp, IfOp, ListStackOp, SizeOp, WhileOp
from stretto.ir.rewrite import all_blocks, narrow
from stretto.ir.sizes import Size, Symbol, symbols_in
from stretto.ir.symbols import symbols_bound_by, symbols_of_op, symbols_of_types
from stretto.ops.effects import checking_functions, effectful, is_effect, may_stop


@dataclass(frozen=True, slots=True)
class EliminateDeadCode:
    keep_stopping: bool = False
    name: ClassVar[str] = "dce"

    def apply(self, program: Program) -> bool:
        checks = may_stop if self.keep_stopping else is_effect
        checking = checking_functions(program, checks)
        changed = False
        for function in program.functions.values():
            if isinstance(function, InstanceFunction):
                changed |= drop_unused(function)
                continue
            effects = effectful(function, checking, checks)
            changed |= _prune(function.body, live_values(function, effects), effects)
        return _drop_functions(program) | _drop_constants(program) | changed


def live_values(
    function: Function, effects: Iterable[Op] = (), *, results: bool = True
) -> set[Value]:
    """Return the values that the function's results and effects depend on, those in loops and arms
    included.

    results: True if the function's results are read.
    """
    sources = _sources(function.body)
    given = symbols_of_types(value.type for value in function.params)
    binders = {key: item for key, item in _binders(function.body).items() if key not in given}
    _add_binders(function.body, binders, sources)
    live: set[Value] = set()
    waiting = [value for op in effects for value in _decides(op, binders)]
    waiting += function.body.yields if results else ()
    while waiting:
        value = waiting.pop()
        if value not in live:
            live.add(value)
            waiting.extend(sources.get(value, ()))
    return live


Binders = dict[Symbol, tuple[Value, ...]]
"""The results of the ops that bind each symbol. Symbols of parameters are left out."""


def _binders(body: Block) -> Binders:
    named: Binders = {}
    bound: Binders = {}
    for op in body.walk():
        for symbol in symbols_bound_by(op):
            if isinstance(op, SizeOp | ListStackOp):  # several lists may have one length
                bound[symbol] = (*bound.get(symbol, ()), *op.results)
            else:  # an if and a call name symbols that something else may have bound
                named.setdefault(symbol, op.results)
    return {**named, **bound}


def _add_binders(body: Block, binders: Binders, sources: dict[Value, tuple[Value, ...]]) -> None:
    """Make the results of each op depend on the sizes in its types and arguments, too."""
    for op in body.walk() if binders else ():
        # Ops in the blocks of a control op depend on the sizes that they name themselves.
        named = symbols_of_types(v.type for v in op.results) if op.blocks else symbols_of_op(op)
        if isinstance(op, ForOp):
            named |= set(_bound_symbols(op))
        for symbol in named - symbols_bound_by(op):
            for value in op.results:
                sources[value] = (*sources.get(value, ()), *binders.get(symbol, ()))


def _bound_symbols(op: ForOp) -> tuple[Symbol, ...]:
    return symbols_in(item for item in (op.start, op.stop) if isinstance(item, Size))


def _decides(op: Op, binders: Binders) -> tuple[Value, ...]:
    """Values that decide the effect of an op: its operands, and for a control op those that decide
    whether its blocks run."""
    match op:
        case IfOp():
            return (op.condition,)
        case ForOp():
            bounds = tuple(item for item in (op.start, op.stop) if isinstance(item, Value))
            return (*bounds, *(v for one in _bound_symbols(op) for v in binders.get(one, ())))
        case WhileOp():
            return op.condition.yields
        case _:
            named = (v for one in symbols_of_op(op) for v in binders.get(one, ()))
            return (*op.operands, *named)


def _sources(body: Block) -> dict[Value, tuple[Value, ...]]:
    """Map each value to the values that it is computed from."""
    sources: dict[Value, tuple[Value, ...]] = {}
    for op in body.walk():
        match op:
            case IfOp():
                for place, result in enumerate(op.results):
                    arms = (op.then.yields[place], op.orelse.yields[place])
                    sources[result] = (op.condition, *arms)
            case ForOp():
                bounds = tuple(item for item in (op.start, op.stop) if isinstance(item, Value))
                _loop_sources(sources, op, op.inits, (op.carried,), op.body.yields, bounds)
            case WhileOp():
                params = (op.condition.params, op.body.params)
                _loop_sources(sources, op, op.inits, params, op.body.yields, op.condition.yields)
            case _:
                sources.update(dict.fromkeys(op.results, _all_read(op)))
    return sources


def _loop_sources(
    sources: dict[Value, tuple[Value, ...]],
    op: Op,
    inits: tuple[Value, ...],
    params: tuple[tuple[Value, ...], ...],
    yields: tuple[Value, ...],
    control: tuple[Value, ...],
) -> None:
    """Add the sources of a loop: a carried value depends on its initial and its yielded value; a
    result also on what ends the loop."""
    for place, result in enumerate(op.results):
        carried = (inits[place], yields[place], *(block[place] for block in params))
        sources[result] = (*carried, *control)
        for block in params:
            sources[block[place]] = carried


def _all_read(op: Op) -> tuple[Value, ...]:
    """The operands of an op of any other class, and the values that its blocks yield."""
    nested = (item for block in op.blocks for item in all_blocks(block))
    inside = [value for item in nested for value in item.yields]
    return (*op.operands, *inside)


def _prune(block: Block, live: set[Value], effects: set[Op]) -> bool:
    """Drop dead ops, and dead results of the others. Return True if something changed."""
    kept = [op for op in block.ops if op in effects or any(value in live for value in op.results)]
    changed = len(kept) != len(block.ops)
    block.ops = kept
    for op in kept:
        changed |= _prune_results(op, live)
        for nested in op.blocks:
            changed |= _prune(nested, live, effects)
    return changed


def _prune_results(op: Op, live: set[Value]) -> bool:
    """Narrow an if or a loop to its live results; a carried value is live in all blocks or in
    none. Return True if the op changed."""
    if not isinstance(op, IfOp | ForOp | WhileOp):
        return False
    keep = [_is_live(op, place, live) for place in range(len(op.results))]
    if all(keep):
        return False
    narrow(op, keep)
    return True


def _is_live(op: IfOp | ForOp | WhileOp, place: int, live: set[Value]) -> bool:
    match op:
        case IfOp():
            return op.results[place] in live
        case ForOp():
            return op.results[place] in live or op.carried[place] in live
        case WhileOp():
            params = (op.condition.params[place], op.body.params[place])
            return op.results[place] in live or any(value in live for value in params)


def _drop_functions(program: Program) -> bool:
    reached = reachable((program.main.name,), call_graph(program))
    dead = [name for name in program.functions if name not in reached]
    for name in dead:
        del program.functions[name]
    return bool(dead)


def _drop_constants(program: Program) -> bool:
    named = {op.key for op in program.walk() if isinstance(op, ConstantOp)}
    dead = [key for key in program.constants if key not in named]
    for key in dead:
        del program.constants[key]
    return bool(dead)


# ---- Functions with variables: an assignment is live if any op that is kept reads its variable.


def drop_unused(function: InstanceFunction, primitives: frozenset[str] = DROPPED) -> bool:
    """Drop the ops of a function whose results are not read, and that cannot fail; return True if
    it changed. primitives: those of them that may be dropped."""
    reads: dict[Value, list[Value]] = {}
    pending: list[Value] = []
    for op in function.body.walk():
        if _is_pure(op, primitives):
            for target in op.results:
                reads.setdefault(target, []).extend(op.operands)
        else:
            pending += op.operands
    live: set[Value] = set()
    while pending:
        variable = pending.pop()
        if variable not in live:
            live.add(variable)
            pending += reads.get(variable, ())
    return _keep_live(function.body, live, primitives)


def _is_pure(op: Op, primitives: frozenset[str]) -> bool:
    match op:
        case AssignOp(target, primitive):
            return target is not None and primitive in primitives
        case OperateOp():
            return not op.may_raise
        case RecordOp() | ReadOp():
            return True
        case _:
            return False


def _keep_live(block: Block, live: set[Value], primitives: frozenset[str]) -> bool:
    changed = False
    found: list[Op] = []
    for op in block.ops:
        if _is_pure(op, primitives) and not any(target in live for target in op.results):
            continue
        if isinstance(op, InvokeOp) and op.target not in live:
            changed |= op.results != ()
            op.results = ()
        for nested in op.blocks:
            changed |= _keep_live(nested, live, primitives)
        if not isinstance(op, IfOp) or op.then.ops or op.orelse.ops:
            found.append(op)
    changed |= len(found) != len(block.ops)
    block.ops = found
    return changed
