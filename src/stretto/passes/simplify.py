"""Simplification: an op becomes an earlier value, or a cheaper op with the same result.

Every rule is exact, bit for bit, also for NaN, infinities and the sign of zero, and keeps types.
The rules of tensor ops are in `algebra`. This module has those of lists and of control
ops: an `if` whose arms yield the same, and a carried value that no iteration changes. It is one
walk, in order; run it again after `fold` and `cse`, which create new cases.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stretto.errors import VerifyError
from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import (
    ForOp,
    IfOp,
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    LiteralOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import Definitions, Replacement, narrow, rewrite_program, substitute
from stretto.ir.size_bounds import at_most
from stretto.ir.types import FLAG, Dim
from stretto.ops.arguments import argument, int_argument
from stretto.ops.infer import size_op, tensor_op
from stretto.passes.algebra import (
    ALGEBRA_RULES,
    VIEW_RULES,
    TensorRule,
    TensorRules,
    items_of_stack,
    number,
)
from stretto.passes.analyses.loop_dependences import ListLengths

# ---- Rules for lists: items, lengths and stacks that are known from the ops that build a list.


@dataclass(frozen=True, slots=True)
class KnownItems:
    """The last items of a list; `is_all` is True if they are the whole list."""

    items: tuple[Value, ...]
    is_all: bool

    def get(self, index: int) -> Value | None:
        if index < 0:
            return self.items[index] if -index <= len(self.items) else None
        return self.items[index] if self.is_all and index < len(self.items) else None


def known_items(value: Value, definitions: Definitions) -> KnownItems:
    """Return the items of a list that are known from the ops that build it."""
    pushed: list[Value] = []
    while isinstance(maker := definitions.get(value), ListPushOp):
        pushed.append(maker.item)
        value = maker.list
    before = _known_before_pushes(maker, definitions)
    return KnownItems((*before.items, *reversed(pushed)), before.is_all)


def _known_before_pushes(maker: Op | None, definitions: Definitions) -> KnownItems:
    match maker:
        case ListNewOp():
            return KnownItems(maker.items, True)
        case ListSetOp():
            before, index = known_items(maker.list, definitions), maker.index
            place = _literal(index, definitions)
            if place is None or before.get(place) is None:
                return KnownItems((), False)
            items = [*before.items]
            items[place] = maker.item
            return KnownItems(tuple(items), before.is_all)
        case _:
            return KnownItems((), False)


def get_known(op: ListGetOp, definitions: Definitions) -> Replacement | None:
    index = _literal(op.index, definitions)
    item = known_items(op.list, definitions).get(index) if index is not None else None
    return None if item is None else ([], (item,))


def pop_pushed(op: ListPopOp, definitions: Definitions) -> Replacement | None:
    maker = definitions.get(op.list)
    if isinstance(maker, ListPushOp):
        return [], (maker.list, maker.item)
    if isinstance(maker, ListNewOp) and maker.items:
        shorter = ListNewOp(
            maker.items[:-1], results=(Value(op.list.type, op.list.hint),), location=op.location
        )
        return [shorter], (shorter.result, maker.items[-1])
    return None


def length_known(op: ListLengthOp, definitions: Definitions) -> Replacement | None:
    length = _length(op.list, definitions)
    if length is None:
        return None
    known = size_op(length)
    known.location, known.result.hint = op.location, op.result.hint
    return [known], (known.result,)


def stack_known(op: ListStackOp, definitions: Definitions) -> Replacement | None:
    """Replace a stack of a list whose items are all known by a stack of these."""
    known = known_items(op.list, definitions)
    if not known.is_all or op.result.tensor.shape[0] != len(known.items) or not known.items:
        return None
    stack = tensor_op("aten.stack.default", known.items, 0)
    stack.location, stack.result.hint = op.location, op.result.hint
    return [stack], (stack.result,)


def list_of_parts(op: Op, definitions: Definitions) -> Replacement | None:
    """Replace a stack of all items of a list, read one by one, by a stack of the list."""
    if not isinstance(op, TensorOp) or op.target != "aten.stack.default":
        return None
    parts = argument(op, "tensors")
    if int_argument(op, "dim") != 0 or not isinstance(parts, tuple):
        return None
    gets = [definitions.get(part) for part in parts if isinstance(part, Value)]
    lists = {get.list for get in gets if isinstance(get, ListGetOp)}
    places = [_literal(get.index, definitions) for get in gets if isinstance(get, ListGetOp)]
    if len(lists) != 1 or places != [*range(len(parts))]:
        return None
    (whole,) = lists
    if _length(whole, definitions) != len(parts):
        return None
    result = Value(op.result.type, op.result.hint)
    return [ListStackOp(whole, results=(result,), location=op.location)], (result,)


def extend_with_stack(op: ListExtendOp, definitions: Definitions) -> Replacement | None:
    """Replace an empty list, extended by the rows of a stack, by the list that was stacked."""
    before, maker = definitions.get(op.list), definitions.get(op.rows)
    is_empty = isinstance(before, ListNewOp) and not before.items
    if not is_empty or not isinstance(maker, ListStackOp):
        return None
    return None if at_most(1, op.rows.tensor.shape[0]) else ([], (maker.list,))


def _length(value: Value, definitions: Definitions) -> Dim | None:
    length = ListLengths(definitions).length(value)
    if length is None or length.loop is not None or not at_most(0, length.items):
        return None
    return length.items


def _literal(value: Value, definitions: Definitions) -> int | None:
    known = number(value, definitions)
    return None if known is None else int(known)


# Each rule takes its own op class, which the type of a dict cannot express.
LIST_RULES: dict[type[Op], Callable[[Any, Definitions], Replacement | None]] = {
    ListGetOp: get_known,
    ListExtendOp: extend_with_stack,
    ListPopOp: pop_pushed,
    ListLengthOp: length_known,
    ListStackOp: stack_known,
}


_TENSOR_RULES: tuple[TensorRules, ...] = (ALGEBRA_RULES, VIEW_RULES)


@dataclass(frozen=True, slots=True)
class Simplify:
    name: ClassVar[str] = "simplify"

    def apply(self, program: Program) -> bool:
        return rewrite_program(program, _simplify)


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
    """Return the replacement, or None if its type differs: rules need not check symbolic dims."""
    value = found if isinstance(found, Value) else found.result
    if value.type != op.result.type:
        return None
    if isinstance(found, Value):
        return [], (value,)
    found.location, value.hint = op.location, op.result.hint
    return [found], (value,)


def _if(op: IfOp, definitions: Definitions) -> Replacement | None:
    """Replace results that do not depend on the condition, or equal it."""
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
    """Replace a carried value that every iteration yields unchanged by its initial value."""
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
    """Return the op without the results that other values replace; None if there are none."""
    keep = [old is value for old, value in zip(op.results, values, strict=True)]
    if all(keep):
        return None
    narrow(op, keep)
    return [op, *new], tuple(values)
