"""Checks of the errors that ops would raise whose results are not used.

Eager PyTorch raises for `x[i]` out of range and for `n // 0` even if the result is not used.
Capture emits a check of each position that is known only at run time. This pass drops the checks of
positions that are checked anyway, by a live op of the same or an enclosing block, and of positions
that are the index of a loop with known bounds. Since `dce` would drop dead ops with their errors,
dead ops with positions and dead pops from lists get a check, and dead ops that may refuse the
values or the sizes of their operands are evaluated.

Needs a Program whose live ops have been simplified, since an op that becomes dead later gets no
check, and in which `dce` has kept all ops that may stop the run. It runs before the passes that
replace ops, which leave the original ops dead. Guarantees that every check that remains is needed.

    stretto.check_positions(%i, 8)                %a = aten.select.int(%x, 0, %i)
    %a = aten.select.int(%x, 0, %i)               stretto.check_positions(%k, 5)
    %b = aten.take.default(%y, %k)        ->      %b = aten.take.default(%y, %k)
    %c = aten.floor_divide.default(%i, %n)        %c = aten.floor_divide.default(%i, %n)
    return %a                                     stretto.evaluate(%c)
                                                  return %a
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import (
    Argument,
    CallOp,
    CheckOp,
    ForOp,
    ListGetOp,
    ListLengthOp,
    ListPopOp,
    ListSetOp,
    TensorOp,
)
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Symbol, symbols_in
from stretto.ir.symbols import symbols_of_types
from stretto.ir.types import FLAG, INDEX, Dim, TensorType
from stretto.ops.effects import checking_functions, effectful, is_effect
from stretto.ops.infer import Relation, size_op
from stretto.ops.positions import CHECK, Positions, positions_of
from stretto.ops.properties import properties, refusal_of_values, relations_of_sizes
from stretto.passes.dce import live_values

Key = tuple[Value, Dim, Dim, bool]
Bounds = dict[Value, tuple[int, int]]
"""The least and the greatest index of each enclosing loop with known bounds."""


@dataclass(frozen=True, slots=True)
class CheckUnused:
    name: ClassVar[str] = "check_unused"

    def apply(self, program: Program) -> bool:
        changed = False
        checking = checking_functions(program)
        for name, (live, results) in _live_by_function(program, checking).items():
            function = program.functions[name]
            others = effectful(function, checking, lambda op: is_effect(op) and not _is_check(op))
            staying = live_values(function, others, results=results)
            visit = _Visit(live, staying, _compared(program))
            changed |= visit.block(function.body, frozenset(), {})
        return changed


def _compared(program: Program) -> frozenset[Symbol]:
    """The symbols between which guards have already made the comparisons that eager makes."""
    params = program.main.params if program.is_guarded else ()
    return frozenset(symbols_of_types(value.type for value in params))


def _is_check(op: Op) -> bool:
    return isinstance(op, TensorOp) and op.target == CHECK


def _live_by_function(
    program: Program, checking: frozenset[str]
) -> dict[str, tuple[set[Value], bool]]:
    """Return the live values of each function, and if its results are; if every result of some
    call of it is dead, its results count as dead."""
    unused: set[str] = set()
    while True:
        live: dict[str, set[Value]] = {}
        found: set[str] = set()
        for name, function in program.functions.items():
            effects = effectful(function, checking)
            live[name] = live_values(function, effects, results=name not in unused)
            calls = (op for op in function.body.walk() if isinstance(op, CallOp))
            found.update(op.function for op in calls if live[name].isdisjoint(op.results))
        if found <= unused:
            return {name: (values, name not in unused) for name, values in live.items()}
        unused |= found


@dataclass(frozen=True, slots=True)
class _Visit:
    """The walk over one function. `live`: the values that are used; `staying`: those that are used
    by more than checks of positions; `compared`: symbols that guards have compared."""

    live: set[Value]
    staying: set[Value]
    compared: frozenset[Symbol]

    def block(self, block: Block, around: frozenset[Key], bounds: Bounds) -> bool:
        """Rewrite the checks of a block; `around` holds the positions that are checked before
        control reaches it. Return True if something changed."""
        known = {*around}
        for op in block.ops:
            if isinstance(op, TensorOp) and not self.staying.isdisjoint(op.results):
                known.update(one.key for one in positions_of(op))
        changed = False
        ops: list[Op] = []
        for op in block.ops:
            is_check = _is_check(op)
            is_dead = self.live.isdisjoint(op.results)
            checks = _checks_for(op, known, bounds) if is_dead else []
            ops.extend(checks if is_check else [*checks, op])
            evaluations = self.evaluations(op) if is_dead else []
            ops.extend(evaluations)
            changed |= bool(checks) != is_check or bool(evaluations)
            inside = _bounds_inside(op, bounds)
            for nested in op.blocks:
                changed |= self.block(nested, frozenset(known), inside)
        block.ops = ops
        return changed

    def evaluations(self, op: Op) -> list[Op]:
        """Return the ops that raise the errors of a dead op: checks of its operands' sizes if it
        can only fail in broadcasting them, else one op that evaluates it."""
        if not isinstance(op, TensorOp) or not op.results or is_effect(op):
            return []
        unknown = [
            relation
            for relation in relations_of_sizes(op)
            if not self.compared.issuperset(symbols_in((relation.left, relation.right)))
        ]
        if refusal_of_values(op) is None:
            if not unknown:
                return []
            if properties(op.target).elementwise:
                checks = (new for relation in unknown for new in _check_of_sizes(relation))
                return [_placed(new, op) for new in checks]
        return [_placed(TensorOp("stretto.evaluate.default", (op.results[0],)), op)]


def _check_of_sizes(relation: Relation) -> list[Op]:
    """Return ops that check that both sizes are equal, or that one of them is 1 and therefore
    broadcast."""
    left, right = size_op(relation.left), size_op(relation.right)
    equal = _result(FLAG, "aten.eq.Tensor", left.result, right.result)
    tests = [equal]
    for size in (left, right):
        is_one = _result(FLAG, "aten.eq.Scalar", size.result, 1)
        tests += [is_one, _result(FLAG, "aten.logical_or.default", tests[-1].result, is_one.result)]
    message = f"the sizes {relation.left} and {relation.right} are neither equal nor 1"
    return [left, right, *tests, CheckOp(tests[-1].result, Failure("RuntimeError", message))]


def _checks_for(op: Op, known: set[Key], bounds: Bounds) -> list[Op]:
    """Return the checks that are still needed for a check or a dead op, and add their positions to
    `known`."""
    if isinstance(op, ListGetOp | ListSetOp | ListPopOp):
        return _check_of_list(op)
    if not isinstance(op, TensorOp):
        return []
    needed = [one for one in positions_of(op) if _is_needed(one, known, bounds)]
    known.update(one.key for one in needed)
    return [_placed(one.check(), op) for one in needed]


def _check_of_list(op: ListGetOp | ListSetOp | ListPopOp) -> list[Op]:
    """Check -length <= index < length, and for a pop length > 0."""
    length = ListLengthOp(op.list, results=(Value(INDEX),))
    if isinstance(op, ListPopOp):
        message = "pop from empty list"
        tests = [_result(FLAG, "aten.gt.Scalar", length.result, 0)]
    else:
        message = "list index out of range"
        lowest = _result(INDEX, "aten.neg.default", length.result)
        above = _result(FLAG, "aten.ge.Tensor", op.index, lowest.result)
        below = _result(FLAG, "aten.lt.Tensor", op.index, length.result)
        both = _result(FLAG, "aten.logical_and.default", above.result, below.result)
        tests = [lowest, above, below, both]
    check = CheckOp(tests[-1].result, Failure("IndexError", message))
    return [_placed(new, op) for new in (length, *tests, check)]


def _result(type: TensorType, target: str, *args: Argument) -> TensorOp:
    return TensorOp(target, args, results=(Value(type),))


def _is_needed(positions: Positions, known: set[Key], bounds: Bounds) -> bool:
    if positions.key in known:
        return False
    first, last = bounds.get(positions.values, (-1, -1))
    return first < 0 or not at_most(last + positions.length, positions.size)


def _bounds_inside(op: Op, bounds: Bounds) -> Bounds:
    if isinstance(op, ForOp) and isinstance(op.start, int) and isinstance(op.stop, int):
        indices = range(op.start, op.stop, op.step)
        if indices:
            return {**bounds, op.index: (min(indices), max(indices))}
    return bounds


def _placed(new: Op, op: Op) -> Op:
    """Return `new`, with the source location of `op`."""
    new.location = op.location
    return new
