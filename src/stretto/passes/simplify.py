"""Simplification: an op becomes an earlier value, or a cheaper op with the same result.

Every rule is exact, bit for bit, also for NaN, infinities and the sign of zero, and keeps types.
The rules of tensor ops and of lists are in `simplifications/`. Here are those
of control ops: an `if` whose arms yield the same, and a carried value that no iteration changes.
One walk, in order; run it again after `fold` and `cse`, which make new cases.

    %p = aten.permute.default(%x, (1, 0))     %e = aten.exp.default(%x)
    %q = aten.permute.default(%p, (1, 0))     %t = for %i in (0, 8, 1) carry (%a = %e) {
    %e = aten.exp.default(%q)          ->       %c = aten.add.Tensor(%a, %x)
    %s, %t = for %i in (0, 8, 1)                yield %c
        carry (%b = %x, %a = %e) {            }
      %c = aten.add.Tensor(%a, %b)
      yield %b, %c
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.errors import VerifyError
from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp, IfOp, LiteralOp, TensorOp, WhileOp
from stretto.ir.rewrite import Definitions, Replacement, narrow, rewrite_block, substitute
from stretto.ir.types import FLAG
from stretto.passes.simplifications.algebra import ALGEBRA_RULES, TensorRule, TensorRules, number
from stretto.passes.simplifications.lists import LIST_RULES, list_of_parts
from stretto.passes.simplifications.views import VIEW_RULES, items_of_stack

_TENSOR_RULES: tuple[TensorRules, ...] = (ALGEBRA_RULES, VIEW_RULES)


@dataclass(frozen=True, slots=True)
class Simplify:
    name: ClassVar[str] = "simplify"

    def apply(self, program: Program) -> bool:
        changed = [
            rewrite_block(function.body, _simplify) for function in program.functions.values()
        ]
        return any(changed)


def _simplify(op: Op, definitions: Definitions) -> Replacement | None:
    match op:
        case TensorOp():
            return _tensor(op, definitions)
        case IfOp():
            return _if(op, definitions)
        case ForOp():
            return _loop(op, ((op.carried, op.body),))
        case WhileOp():
            blocks = (op.condition, op.body)
            return _loop(op, tuple((block.params, block) for block in blocks))
        case _:
            rule = LIST_RULES.get(type(op))
            return rule(op, definitions) if rule is not None else None


def _tensor(op: TensorOp, definitions: Definitions) -> Replacement | None:
    for special in (items_of_stack, list_of_parts):
        if (replacement := special(op, definitions)) is not None:
            return replacement
    if len(op.results) != 1:
        return None
    for table in _TENSOR_RULES:
        for rule in table.get(op.target, ()):
            if (replacement := _apply(rule, op, definitions)) is not None:
                return replacement
    return None


def _apply(rule: TensorRule, op: TensorOp, definitions: Definitions) -> Replacement | None:
    try:
        found = rule(op, definitions)
    except VerifyError:  # torch refuses the new op, as it may for symbolic dims
        return None
    return _in_place_of(op, found) if found is not None else None


def _in_place_of(op: TensorOp, found: Value | TensorOp) -> Replacement | None:
    """The replacement, unless its type differs: a rule need not look at symbolic dims."""
    value = found if isinstance(found, Value) else found.result
    if value.type != op.result.type:
        return None
    if isinstance(found, Value):
        return [], (value,)
    found.location, value.hint = op.location, op.result.hint
    return [found], (value,)


def _if(op: IfOp, definitions: Definitions) -> Replacement | None:
    """Results that do not depend on the condition, or are the condition, leave the op."""
    values = list(op.results)
    new: list[Op] = []
    for place, result in enumerate(op.results):
        arms = (op.then.yields[place], op.orelse.yields[place])
        if arms[0] is arms[1] and arms[0].type == result.type:
            values[place] = arms[0]
            continue
        then, orelse = (number(arm, definitions) for arm in arms)
        if then is not None and repr(then) == repr(orelse):  # `repr` tells 0.0 from -0.0
            new.append(LiteralOp(then, results=(Value(result.type, result.hint),)))
            values[place] = new[-1].result
        elif result.type == FLAG and (then, orelse) == (True, False):
            values[place] = op.condition
    return _without_known(op, values, new)


def _loop(
    op: ForOp | WhileOp, blocks: tuple[tuple[tuple[Value, ...], Block], ...]
) -> Replacement | None:
    """A carried value that every iteration passes on is its start."""
    values = list(op.results)
    for place, init in enumerate(op.inits):
        passed_on = (init, *(params[place] for params, _ in blocks))
        if op.body.yields[place] in passed_on:
            values[place] = init
            for params, block in blocks:
                substitute(block, {params[place]: init})
    return _without_known(op, values, [])


def _without_known(
    op: IfOp | ForOp | WhileOp, values: Sequence[Value], new: list[Op]
) -> Replacement | None:
    """The op without the results that other values replace."""
    keep = [old is value for old, value in zip(op.results, values, strict=True)]
    if all(keep):
        return None
    narrow(op, keep)
    return [op, *new], tuple(values)
