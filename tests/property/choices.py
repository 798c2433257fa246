"""What random blocks are filled with. Each choice keeps magnitudes small and positions in range."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from stretto.ir.core import Value
from stretto.ir.ops import (
    CallOp,
    ForOp,
    IfOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    WhileOp,
)
from stretto.ir.types import FLAG, INDEX, Dim, DType, TensorListType, TensorType, Type
from tests.property.maker import (
    FLOATS,
    LISTS,
    LONG,
    MATRIX,
    POSITIONS,
    SCALAR,
    TURNED,
    VECTOR,
    BlockMaker,
    Choice,
    Length,
    ProgramMaker,
)


def choices_for(maker: ProgramMaker, depth: int) -> Sequence[Choice]:
    features = maker.features
    found = [unary, blend, neutral, contract, reduce, rearrange, take, put, compare, count, cast]
    found += [where, logic]
    if features.lists:
        found += [push, change_list, read_list, stack_list]
    if features.symbols and features.lists:
        found += [on_symbol, on_symbol]
    if maker.helpers:
        found += [call, call]
    if depth > 0:
        found += [branch, branch, for_loop, for_loop]
        found += [collect] if features.lists else []
        found += [while_loop] if features.while_loops else []
    return found


def _float(make: BlockMaker) -> Value:
    return make.pick(make.draw(st.sampled_from(FLOATS)))


def unary(make: BlockMaker, _: int) -> None:
    names = ("neg", "sin", "tanh", "relu", "sigmoid", "abs", "clone")
    name = make.draw(st.sampled_from(names))
    make.values.append(make.tensor(f"aten.{name}.default", _float(make)))


def blend(make: BlockMaker, _: int) -> None:
    """A sum, difference, product or maximum of two floats that broadcast, brought back to size."""
    pairs = ((VECTOR, VECTOR), (MATRIX, VECTOR), (SCALAR, MATRIX), (LONG, LONG), (TURNED, SCALAR))
    left, right = make.pick_all(make.draw(st.sampled_from(pairs)))
    name = make.draw(st.sampled_from(("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default")))
    value = make.tensor(f"aten.{name}", left, right)
    if name == "mul.Tensor":
        value = make.tensor("aten.tanh.default", value)
    elif name != "maximum.default":
        value = make.tensor("aten.mul.Tensor", value, 0.5)
    make.values.append(value)


def neutral(make: BlockMaker, _: int) -> None:
    """Arithmetic with a number that changes little or nothing."""
    name, number = make.draw(
        st.sampled_from(
            (
                *(("add.Tensor", item) for item in (0, 0.0, -0.0, 0.25)),
                *(("sub.Tensor", item) for item in (0, 0.0, -0.0)),
                *(("mul.Tensor", item) for item in (1, 1.0, -1)),
                *(("div.Tensor", item) for item in (1, 2.0)),
            )
        )
    )
    make.values.append(make.tensor(f"aten.{name}", _float(make), number))


def contract(make: BlockMaker, _: int) -> None:
    kind = make.draw(st.integers(0, 3))
    if kind == 0:
        value = make.tensor("aten.mm.default", *make.pick_all((MATRIX, TURNED)))
        value = make.tensor("aten.sum.dim_IntList", value, (0, 1))
    elif kind == 1:
        weight = make.new(TensorType(DType.F32, (3, 3)))
        value = make.tensor("aten.linear.default", make.pick(MATRIX), weight, make.pick(VECTOR))
    elif kind == 2:
        value = make.tensor("aten.mv.default", *make.pick_all((MATRIX, VECTOR)))
        value = make.tensor("aten.cat.default", (value, value, value))
    else:
        value = make.tensor(
            "aten.addmm.default", make.pick(VECTOR), make.pick(MATRIX), square(make)
        )
    make.values.append(make.tensor("aten.tanh.default", value))


def square(make: BlockMaker) -> Value:
    """Three by three, as a transpose of a product, so that views meet contractions."""
    product = make.tensor("aten.mm.default", *make.pick_all((TURNED, MATRIX)))
    return make.tensor("aten.permute.default", product, (1, 0))


def reduce(make: BlockMaker, _: int) -> None:
    source = make.pick(make.draw(st.sampled_from((VECTOR, MATRIX, LONG))))
    last = source.tensor.rank - 1
    match make.draw(st.integers(0, 3)):
        case 0:
            value = make.tensor("aten.mean.dim", source, tuple(range(last + 1)))
        case 1:
            value = make.tensor("aten.amax.default", source, (0,))
        case 2:
            value = make.tensor("aten._softmax.default", source, last, False)
        case _:
            value = make.tensor("aten.cumsum.default", source, last)
            value = make.tensor("aten.tanh.default", value)
    make.values.append(value)


def rearrange(make: BlockMaker, _: int) -> None:
    """Views, cats and stacks, which lead from each type of float to others."""
    vector, matrix, turned, long = make.pick_all((VECTOR, MATRIX, TURNED, LONG))
    made = {
        0: lambda: make.tensor("aten.permute.default", matrix, (1, 0)),
        1: lambda: make.tensor("aten.t.default", turned),
        2: lambda: make.tensor("aten.view.default", matrix, (6,)),
        3: lambda: make.tensor("aten.view.default", long, (2, -1)),
        4: lambda: make.tensor("aten.cat.default", (vector, make.pick(VECTOR))),
        5: lambda: make.tensor("aten.stack.default", (vector, make.pick(VECTOR)), 1),
        6: lambda: make.tensor("aten.expand.default", vector, (2, 3)),
        7: lambda: make.tensor("aten.slice.Tensor", long, 0, 1, 4),
        8: lambda: make.tensor("aten.slice.Tensor", long, 0, 0, 6, 2),
        9: lambda: make.tensor("aten.unsqueeze.default", vector, 0),
        10: lambda: make.tensor("aten.flip.default", turned, (1,)),
        11: lambda: make.tensor("aten.constant_pad_nd.default", vector, (1, 2), 0.5),
    }
    make.values.append(made[make.draw(st.integers(0, len(made) - 1))]())


def take(make: BlockMaker, _: int) -> None:
    """Parts at positions that are known, or known only at run time."""
    match make.draw(st.integers(0, 5)):
        case 0:
            place = make.draw(st.integers(-2, 1))
            value = make.tensor("aten.select.int", make.pick(MATRIX), 0, place)
        case 1:
            place = make.index_below(3)
            value = make.tensor("aten.select.int", make.pick(VECTOR), 0, place)
        case 2:
            value = make.tensor("stretto.narrow", make.pick(LONG), 0, make.index_below(4), 3)
        case 3:
            places = make.tensor("aten.remainder.Scalar", make.pick(POSITIONS), 2)
            value = make.tensor("aten.index_select.default", make.pick(TURNED), 1, places)
            value = make.tensor("aten.select.int", value, 0, 1)
        case 4:
            places = make.tensor("aten.remainder.Scalar", make.pick(POSITIONS), 6)
            value = make.tensor("aten.gather.default", make.pick(LONG), 0, places)
        case _:
            value = make.tensor("aten.select.int", make.pick(POSITIONS), 0, make.index_below(3))
    make.values.append(value)


def put(make: BlockMaker, _: int) -> None:
    """A part replaced, by position."""
    if make.draw(st.booleans()):
        place = make.index_below(4)
        value = make.tensor("stretto.narrow_scatter", *make.pick_all((LONG, VECTOR)), 0, place)
    else:
        places = make.tensor("aten.remainder.Scalar", make.pick(POSITIONS), 6)
        value = make.tensor("aten.scatter.value", make.pick(LONG), 0, places, 0.5)
    make.values.append(value)


def compare(make: BlockMaker, _: int) -> None:
    if make.draw(st.booleans()):
        name = make.draw(st.sampled_from(("gt", "lt")))
        number = make.draw(st.sampled_from((0.37, -0.61)))
        make.values.append(make.tensor(f"aten.{name}.Scalar", make.pick(SCALAR), number))
    else:
        name = make.draw(st.sampled_from(("lt", "eq", "ge")))
        value = make.tensor(f"aten.{name}.Tensor", *make.pick_all((INDEX, INDEX)))
        make.values.append(value)


def logic(make: BlockMaker, _: int) -> None:
    name = make.draw(st.sampled_from(("and", "or", "xor", "not")))
    count = 1 if name == "not" else 2
    flags = make.pick_all((FLAG,) * count)
    make.values.append(make.tensor(f"aten.logical_{name}.default", *flags))


def where(make: BlockMaker, _: int) -> None:
    type = make.draw(st.sampled_from(FLOATS))
    flag = make.pick(FLAG)
    if make.draw(st.booleans()):
        flag = make.tensor("aten.gt.Scalar", make.pick(type), 0.37)
    make.values.append(make.tensor("aten.where.self", flag, *make.pick_all((type, type))))


def count(make: BlockMaker, _: int) -> None:
    """Integer arithmetic, which stays below 5."""
    type = make.draw(st.sampled_from((INDEX, POSITIONS)))
    name = make.draw(st.sampled_from(("add", "sub", "mul")))
    value = make.tensor(f"aten.{name}.Tensor", make.pick(type), make.pick(INDEX))
    make.values.append(make.tensor("aten.remainder.Scalar", value, 5))


def cast(make: BlockMaker, _: int) -> None:
    match make.draw(st.integers(0, 3)):
        case 0:
            value = make.tensor("aten._to_copy.default", make.pick(INDEX), dtype=torch.float32)
        case 1:
            value = make.tensor("aten._to_copy.default", make.pick(FLAG), dtype=torch.int64)
        case 2:
            value = make.tensor("aten.mul.Scalar", make.pick(VECTOR), make.index_below(2))
        case _:
            kind = make.draw(st.sampled_from((torch.float64, torch.float16)))
            value = make.tensor("aten._to_copy.default", _float(make), dtype=kind)
            value = make.tensor("aten._to_copy.default", value, dtype=torch.float32)
    make.values.append(value)


def branch(make: BlockMaker, depth: int) -> None:
    types = make.maker.types(1, 3)
    then, orelse = make.nested(), make.nested()
    condition = make.pick(FLAG)
    then.fill(depth - 1)
    orelse.fill(depth - 1)
    results = tuple(Value(type) for type in types)
    make.add(IfOp(condition, then.ending(types), orelse.ending(types), results=results))
    make.values.extend(results)


def for_loop(make: BlockMaker, depth: int) -> None:
    types = make.maker.types(1, 3)
    start, stop = _bound(make, 2), _bound(make, 4)
    step = make.draw(st.sampled_from((1, 1, 2, -1)))
    if step < 0:
        start, stop = stop, start
    inits = make.pick_all(types)
    body = make.nested((Value(INDEX), *(Value(type) for type in types)))
    body.fill(depth - 1)
    results = tuple(Value(type) for type in types)
    make.add(ForOp(start, stop, step, inits, body.ending(types), results=results))
    make.values.extend(results)


def _bound(make: BlockMaker, below: int) -> int | Value:
    if make.draw(st.booleans()):
        return make.draw(st.integers(0, below - 1))
    return make.index_below(below)


def while_loop(make: BlockMaker, depth: int) -> None:
    """Up to three iterations: a count decides, and perhaps a carried number."""
    types: tuple[Type, ...] = (INDEX, SCALAR, *make.maker.types(0, 2))
    inits = (make.literal(0, INDEX), *make.pick_all(types[1:]))
    condition = make.nested(tuple(Value(type) for type in types))
    condition.fill(0)
    flag = condition.tensor("aten.lt.Scalar", condition.params[0], make.draw(st.integers(0, 3)))
    if make.draw(st.booleans()):
        other = condition.tensor("aten.lt.Scalar", condition.params[1], 0.37)
        flag = condition.tensor("aten.logical_and.default", flag, other)
    condition.block.yields = (flag,)
    body = make.nested(tuple(Value(type) for type in types))
    body.fill(depth - 1)
    more = body.tensor("aten.add.Tensor", body.params[0], 1)
    body.block.yields = (more, *body.pick_all(types[1:]))
    results = tuple(Value(type) for type in types)
    make.add(WhileOp(inits, condition.block, body.block, results=results))
    make.values.extend(results)


def collect(make: BlockMaker, depth: int) -> None:
    """A loop that pushes one item in each iteration, so that the length is known."""
    type = make.draw(st.sampled_from(LISTS))
    trips = make.draw(st.integers(0, 3))
    start = make.add(ListNewOp((), results=(Value(type),))).result
    body = make.nested((Value(INDEX), Value(type)))
    body.fill(depth - 1)
    item = body.pick(type.element)
    body.block.yields = (_pushed(body, body.params[1], item),)
    result = Value(type)
    make.add(ForOp(0, trips, 1, (start,), body.block, results=(result,)))
    make.values.append(result)
    make.lengths[result] = Length(trips, is_exact=True)


def call(make: BlockMaker, _: int) -> None:
    function = make.draw(st.sampled_from(make.maker.helpers))
    types = [value.type for value in function.params]
    arguments: tuple[Value, ...] = ()
    if function.name in make.maker.recursive:
        arguments = (make.index_below(4),)
    arguments += make.pick_all(types[len(arguments) :])
    results = tuple(Value(_renamed(type, make)) for type in function.result_types)
    make.add(CallOp(function.name, arguments, results=results))
    for value in results:
        is_symbolic = isinstance(value.type, TensorType) and not value.type.is_static
        (make.symbolic if is_symbolic else make.values).append(value)


def _renamed(type: Type, make: BlockMaker) -> Type:
    """The type with a symbol of the caller in place of the function's own."""
    if isinstance(type, TensorListType) or type.is_static:
        return type
    return TensorType(type.dtype, (make.maker.symbol(), *type.shape[1:]))


def _list(make: BlockMaker) -> tuple[Value, Length]:
    value = make.pick(make.draw(st.sampled_from(LISTS)))
    return value, make.lengths.get(value, Length(0))


def _pushed(make: BlockMaker, list: Value, item: Value) -> Value:
    value = make.add(ListPushOp(list, item, results=(Value(list.type),))).result
    before = make.lengths.get(list, Length(0))
    make.lengths[value] = Length(before.least + 1, before.is_exact)
    return value


def push(make: BlockMaker, _: int) -> None:
    list, _length = _list(make)
    make.values.append(_pushed(make, list, make.pick(list.list.element)))


def change_list(make: BlockMaker, _: int) -> None:
    list, length = _list(make)
    if length.least == 0:
        return
    if make.draw(st.booleans()):
        place, item = _place(make, length), make.pick(list.list.element)
        value = make.add(ListSetOp(list, place, item, results=(Value(list.type),))).result
        make.lengths[value] = length
        make.values.append(value)
    else:
        results = (Value(list.type), Value(list.list.element))
        make.add(ListPopOp(list, results=results))
        make.lengths[results[0]] = Length(length.least - 1, length.is_exact)
        make.values.extend(results)


def _place(make: BlockMaker, length: Length) -> Value:
    if make.draw(st.booleans()):
        return make.literal(make.draw(st.integers(-1, length.least - 1)), INDEX)
    return make.index_below(length.least)


def read_list(make: BlockMaker, _: int) -> None:
    list, length = _list(make)
    if length.least == 0 or make.draw(st.booleans()):
        value = make.add(ListLengthOp(list, results=(Value(INDEX),))).result
    else:
        place = _place(make, length)
        value = make.add(ListGetOp(list, place, results=(Value(list.list.element),))).result
    make.values.append(value)


def stack_list(make: BlockMaker, _: int) -> None:
    list = make.pick(TensorListType(VECTOR))
    length = make.lengths.get(list, Length(0))
    if length.least == 0:
        list, length = _pushed(make, list, make.pick(VECTOR)), Length(1, length.is_exact)
    is_static = length.is_exact and make.draw(st.booleans())
    if not is_static and not make.maker.features.symbols:
        return
    leading: Dim = length.least if is_static else make.maker.symbol()
    result = Value(TensorType(DType.F32, (leading, 3)))
    make.add(ListStackOp(list, results=(result,)))
    (make.values if is_static else make.symbolic).append(result)


def on_symbol(make: BlockMaker, _: int) -> None:
    """Ops on a tensor whose first dim is a symbol."""
    if not make.symbolic:
        return
    source = make.draw(st.sampled_from(make.symbolic))
    match make.draw(st.integers(0, 4)):
        case 0:
            make.values.append(make.tensor("aten.mean.dim", source, (0,)))
        case 1:
            make.symbolic.append(make.tensor("aten.sin.default", source))
        case 2:
            half = make.tensor("aten.mul.Tensor", make.pick(VECTOR), 0.5)
            product = make.tensor("aten.mul.Tensor", source, half)
            make.symbolic.append(make.tensor("aten.tanh.default", product))
        case 3:
            other = make.draw(st.sampled_from(make.symbolic))
            make.symbolic.append(make.tensor("aten.cat.default", (source, other)))
        case _:
            product = make.tensor("aten.mm.default", source, make.pick(TURNED))
            turned = make.tensor("aten.permute.default", product, (1, 0))
            mean = make.tensor("aten.mean.dim", turned, (1,))
            value = make.tensor("aten.cat.default", (mean, make.pick(LONG)))
            make.values.append(make.tensor("aten.slice.Tensor", value, 0, 1, 7))
