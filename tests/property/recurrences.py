"""Random Programs of what passes over loops, branches and recursions look for.

Beside what all random Programs have, there are recurrences over rows, alone, as layers on each
other, side by side in one loop, or with work around them; loops that only fill lists; `while`
loops on norms, also one for each row; branches behind a chain of small operators; and recursions
with two calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from stretto.ir.core import Function, Program, Value
from stretto.ir.ops import CallOp, ForOp, IfOp, ListNewOp, ListPushOp, ListStackOp, WhileOp
from stretto.ir.sizes import symbol
from stretto.ir.types import INDEX, DType, TensorListType, TensorType, Type
from stretto.ops.infer import tensor_op
from tests.property.choices import blend, branch, call, cast, choices_for, contract, for_loop
from tests.property.maker import (
    MATRIX,
    SCALAR,
    TENSORS,
    VECTOR,
    BlockMaker,
    Choice,
    Features,
    Length,
    ProgramMaker,
)

WEIGHT = TensorType(DType.F32, (3, 3))
SIZED = tuple(TensorType(DType.F32, (symbol("rows", least), 3)) for least in (0, 3))
STATES = TensorListType(VECTOR)


@st.composite
def recurrences(draw: st.DrawFn) -> Program:
    """Programs whose `main` takes one tensor of each type in `maker.TENSORS`, and most of
    them one of SIZED."""
    return RecurrenceMaker(draw, Features(ops=4), recurrent_choices).program()


class RecurrenceMaker(ProgramMaker):
    """Some of whose recursive functions call themselves twice."""

    def main_types(self) -> Sequence[Type]:
        return (*TENSORS, *self.draw(st.sampled_from([(kind,) for kind in SIZED] + [()])))

    def recursive_function(self, name: str, types: Sequence[Type]) -> Function:
        if self.draw(st.booleans()):
            return super().recursive_function(name, types)
        body = BlockMaker(self, (Value(INDEX, "n"), Value(VECTOR), Value(MATRIX)))
        count, vector, matrix = body.params
        flag = body.tensor("aten.gt.Scalar", count, 0)
        then, orelse = body.nested(), body.nested()
        less = then.tensor("aten.sub.Tensor", count, 1)
        found: list[Value] = []
        for _ in range(2):
            given = weighted(then, vector) if self.draw(st.booleans()) else vector
            turned = (
                then.tensor("aten.tanh.default", matrix) if self.draw(st.booleans()) else matrix
            )
            found.append(Value(VECTOR))
            then.add(CallOp(name, (less, given, turned), results=(found[-1],)))
        total = then.tensor("aten.add.Tensor", weighted(then, found[0]), found[1])
        then.block.yields = (then.tensor("aten.tanh.default", total),)
        orelse.fill(0)
        result = Value(VECTOR)
        body.add(IfOp(flag, then.block, orelse.ending((VECTOR,)), results=(result,)))
        body.block.yields = (result,)
        return Function(name, body.block)


def recurrent_choices(maker: ProgramMaker, depth: int) -> Sequence[Choice]:
    """Outermost there is hardly anything else than control flow. No casts to narrow floats, in
    which rounding shows that order changes."""
    usual = [choice for choice in choices_for(maker, depth) if choice is not cast]
    own = [layers, layers, beside, tagged, fills, until, each, late]
    if depth == maker.features.depth:
        control = [call, call] if maker.helpers else []
        return [*own, *own, *control, branch, for_loop, blend, contract]
    return [*usual, *own] if depth > 0 else usual


def rows_type(make: BlockMaker) -> TensorType:
    fixed = [TensorType(DType.F32, (count, 3)) for count in (1, 2, 5)]
    sized = [kind for kind in SIZED if any(value.type == kind for value in make.values)]
    return make.draw(st.sampled_from([*sized, *fixed]))


def weighted(make: BlockMaker, vector: Value) -> Value:
    """A product with weights, and something that cannot grow."""
    product = make.tensor("aten.linear.default", vector, make.new(WEIGHT))
    return make.tensor("aten.tanh.default", product)


def cell(make: BlockMaker, item: Value, state: Value) -> Value:
    """The next state of a recurrence."""
    product = make.tensor("aten.linear.default", state, make.new(WEIGHT))
    return make.tensor("aten.tanh.default", make.tensor("aten.add.Tensor", product, item))


def arranged(make: BlockMaker, vector: Value) -> Value:
    """In order of size: what is not computed for all steps at once."""
    return make.add(
        tensor_op("aten.sort.default", make.tensor("aten.neg.default", vector), 0)
    ).results[0]


def layers(make: BlockMaker, depth: int) -> None:
    """Recurrences that each read what the one before gave, some with a product between."""
    kind = rows_type(make)
    rows = make.pick(kind)
    for _ in range(make.draw(st.integers(1, 3))):
        if make.draw(st.booleans()):
            rows = make.tensor("aten.linear.default", rows, make.new(WEIGHT), make.pick(VECTOR))
        rows = make.draw(st.sampled_from((rows, make.pick(kind))))
        body, loop = over_rows(make, kind, 1)
        item = row(body, rows)
        if make.draw(st.booleans()):
            body.values.append(item)
            body.fill(min(depth - 1, make.draw(st.integers(-1, 1))))
        state = cell(body, item, body.params[1])
        given = make.draw(st.sampled_from((state, body.params[1])))
        rows = finished(make, body, loop, (state,), given)


def beside(make: BlockMaker, _: int) -> None:
    """Recurrences side by side in one loop: each reads the next one's state, or the last."""
    kind = rows_type(make)
    rows, count = make.pick(kind), make.draw(st.integers(2, 3))
    body, loop = over_rows(make, kind, count)
    item = row(body, rows)
    states: list[Value] = []
    for number in range(count):
        states.append(cell(body, item, body.params[1 + number]))
        source = states[-1] if make.draw(st.booleans()) else body.params[1 + number]
        item = weighted(body, source)
    make.values.append(finished(make, body, loop, states, item))


def tagged(make: BlockMaker, _: int) -> None:
    """A recurrence with work before and behind it that needs it to run step by step."""
    kind = rows_type(make)
    rows = make.pick(kind)
    body, loop = over_rows(make, kind, 1)
    item = arranged(body, weighted(body, row(body, rows)))
    state = cell(body, item, body.params[1])
    make.values.append(finished(make, body, loop, (state,), arranged(body, weighted(body, state))))


def fills(make: BlockMaker, _: int) -> None:
    """A loop whose iterations need nothing of each other."""
    kind = rows_type(make)
    rows = make.pick(kind)
    body, loop = over_rows(make, kind, 0)
    item = arranged(body, row(body, rows))
    body.values.append(item)
    body.fill(0)
    make.values.append(finished(make, body, loop, (), weighted(body, item)))


def each(make: BlockMaker, depth: int) -> None:
    """Control flow or a call for each row, which decides by what the row holds; and perhaps a
    recurrence behind it."""
    kind = rows_type(make)
    rows, count = make.pick(kind), make.draw(st.integers(0, 1))
    body, loop = over_rows(make, kind, count)
    start = len(body.values)
    body.values.append(weighted(body, row(body, rows)))
    inside = make.draw(st.sampled_from([until, late, *[call] * bool(make.maker.helpers)]))
    inside(body, min(depth - 1, 0))
    found = [value for value in body.values[start:] if value.type == VECTOR]
    item = make.draw(st.sampled_from(found))
    states = [cell(body, item, state) for state in body.params[1 : 1 + count]]
    make.values.append(finished(make, body, loop, states, item))


def over_rows(make: BlockMaker, kind: TensorType, states: int) -> tuple[BlockMaker, ForOp]:
    """A loop over the rows of a tensor, and its body, which is to be filled. It carries so many
    states, and a list."""
    empty = make.add(ListNewOp((), results=(Value(STATES),))).result
    inits = (*make.pick_all((VECTOR,) * states), empty)
    body = make.nested((Value(INDEX), *(Value(value.type) for value in inits)))
    results = tuple(Value(value.type) for value in inits)
    loop = ForOp(0, kind.shape[0], 1, inits, body.block, results=results)
    return body, loop


def row(body: BlockMaker, rows: Value) -> Value:
    """That of the iteration, from the first or the last one on, or always the same."""
    index: Value | int = body.params[0]
    match body.draw(st.integers(0, 5)):
        case 0:
            back = body.tensor("aten.neg.default", index)
            index = body.tensor("aten.add.Tensor", back, rows.tensor.shape[0] - 1)
        case 1 if rows.tensor.is_static:
            index = 0
        case _:
            pass
    return body.tensor("aten.select.int", rows, 0, index)


def finished(
    make: BlockMaker, body: BlockMaker, loop: ForOp, states: Sequence[Value], item: Value
) -> Value:
    """Adds the loop, which puts an item to its list in each iteration; gives these as rows."""
    pushed = body.add(ListPushOp(body.params[-1], item, results=(Value(STATES),))).result
    body.block.yields = (*states, pushed)
    make.add(loop)
    make.values.extend(loop.results)
    trips = loop.trips()
    assert trips is not None
    if isinstance(trips, int):
        make.lengths[loop.results[-1]] = Length(trips, is_exact=True)
    rows = Value(TensorType(DType.F32, (trips, 3)))
    make.add(ListStackOp(loop.results[-1], results=(rows,)))
    make.values.append(rows)
    return rows


def until(make: BlockMaker, depth: int) -> None:
    """A `while` loop on a norm, of at most three iterations."""
    types: tuple[Type, ...] = (INDEX, VECTOR, *make.maker.types(0, 1))
    inits = (make.literal(0, INDEX), *make.pick_all(types[1:]))
    condition = make.nested(tuple(Value(type) for type in types))
    square = condition.tensor("aten.mul.Tensor", condition.params[1], condition.params[1])
    norm = condition.tensor("aten.sum.dim_IntList", square, (0,))
    large = condition.tensor("aten.gt.Scalar", norm, make.draw(st.sampled_from((0.037, 0.61))))
    few = condition.tensor("aten.lt.Scalar", condition.params[0], make.draw(st.integers(0, 3)))
    condition.block.yields = (condition.tensor("aten.logical_and.default", few, large),)
    body = make.nested(tuple(Value(type) for type in types))
    more = body.tensor("aten.add.Tensor", body.params[0], 1)
    smaller = body.tensor("aten.mul.Tensor", weighted(body, body.params[1]), 0.75)
    body.fill(depth - 1)
    body.block.yields = (more, smaller, *body.pick_all(types[2:]))
    results = tuple(Value(type) for type in types)
    make.add(WhileOp(inits, condition.block, body.block, results=results))
    make.values.extend(results)


def late(make: BlockMaker, _: int) -> None:
    """A branch whose condition is the end of a chain; its arms could begin before."""
    value, other = make.pick_all((VECTOR, VECTOR))
    for _ in range(make.draw(st.integers(1, 4))):
        value = weighted(make, value)
    first = make.tensor("aten.select.int", value, 0, 0)
    flag = make.tensor("aten.gt.Scalar", first, make.draw(st.sampled_from((0.37, -0.061))))
    types = (VECTOR, SCALAR)
    then, orelse = make.nested(), make.nested()
    then.values.append(cell(then, value, weighted(then, other)))
    orelse.values.append(weighted(orelse, other))
    for arm in (then, orelse):
        arm.fill(0)
    results = tuple(Value(type) for type in types)
    make.add(IfOp(flag, then.ending(types), orelse.ending(types), results=results))
    make.values.extend(results)
