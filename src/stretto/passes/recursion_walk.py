"""The walk of a recursion whose rest is computed by levels: what it records, and in what order.

See `recursion_levels`. For each activation with calls it records numbers (its height and the places
of the results of its calls), and records (other values that the rest reads). For one without calls
it records the results; but if these are a row of a tensor that all calls pass on, its place is the
number of that row, and nothing is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.call_graph import recursive_functions
from stretto.ir.core import Block, Function, Op, Program, Value, fresh
from stretto.ir.ops import CallOp, ConstantOp, IfOp, ListLengthOp, ListPushOp, LiteralOp, TensorOp
from stretto.ir.symbols import symbols_of_op
from stretto.ir.types import INDEX, TensorListType, TensorType, Type
from stretto.ops.infer import Emitter
from stretto.ops.positions import positions_of
from stretto.ops.properties import is_contraction
from stretto.passes.analyses.op_facts import dependents, keeps_types, may_stop, nbytes, usual

# ---- The recursive functions that can be walked first and computed by levels, and their parts.
#
# Such a function ends in a branch; one arm calls the function itself, at least twice, with
# arguments that do not depend on results of these calls. The ops of that arm that depend on the
# results are the *rest* of an activation. They can be postponed if none of them may stop the run or
# draws random numbers.


@dataclass(frozen=True, slots=True)
class Recursion:
    """The parts of a function.

    arm: the block with the calls. base: the other one. places: the number, among the results of
    the branch, of each result of the function. constants: the constants that the rest reads.
    same: parameters that all calls pass on unchanged. records: other values that the rest reads
    or the arm yields, which the walk stores for each activation.
    """

    function: Function
    branch: IfOp
    arm: Block
    base: Block
    calls: tuple[CallOp, ...]
    rest: tuple[TensorOp, ...]
    places: tuple[int, ...]
    constants: dict[Value, ConstantOp | LiteralOp]
    same: tuple[Value, ...]
    records: tuple[Value, ...]

    @property
    def weight_bytes(self) -> float:
        """Bytes of the operands of the rest's products that are the same in all activations."""
        fixed = {*self.constants, *self.same}
        read = {
            value
            for op in self.rest
            if is_contraction(op)
            for value in op.operands
            if value in fixed
        }
        return sum(nbytes(value, usual) for value in read)


def recursion_of(program: Program, function: Function) -> Recursion | str:
    """Return the parts of a recursive function, or why it cannot be computed by levels."""
    name = function.name
    around = {one for one in recursive_functions(program) if one != name}
    if any(isinstance(op, CallOp) and op.function in around for op in function.body.walk()):
        return "it calls another recursive function"
    branch = function.body.ops[-1]
    if not isinstance(branch, IfOp) or not set(function.body.yields) <= set(branch.results):
        return "it does not end in a branch"
    if not keeps_types(branch) or not _are_plain(branch.results):
        return "its results are not tensors of fixed sizes"
    if not all(isinstance(value.type, TensorType) for value in function.params):
        return "it takes lists"
    arms = [block for block in branch.blocks if _calls(block.ops, name)]
    calls = _calls(list(function.body.walk()), name)
    if len(arms) != 1 or len(_calls(arms[0].ops, name)) != len(calls):
        return "its calls are not all in one arm of the branch that it ends in"
    return _parts(function, branch, arms[0], calls)


def _parts(function: Function, branch: IfOp, arm: Block, calls: list[CallOp]) -> Recursion | str:
    if len(calls) < 2:
        return "it calls itself once"
    given = [value for call in calls for value in call.results]
    waiting = dependents(arm.ops, given)
    if any(call in waiting for call in calls):
        return "a call needs the result of another"
    rest: list[TensorOp] = []
    for op in arm.ops:
        if op in waiting:
            if not isinstance(op, TensorOp) or may_stop(op) or symbols_of_op(op):
                return f"an op after its calls cannot be postponed: {_name(op)}"
            rest.append(op)
    made = {*given, *(value for op in rest for value in op.results)}
    places = tuple(branch.results.index(value) for value in function.body.yields)
    read = dict.fromkeys(value for op in rest for value in op.operands)
    read |= dict.fromkeys(arm.yields[place] for place in places)
    outside = [value for value in read if value not in made]
    makers = {value: op for op in (*function.body.ops, *arm.ops) for value in op.results}
    constants = {
        value: op
        for value in outside
        if isinstance(op := makers.get(value), ConstantOp | LiteralOp)
    }
    same = tuple(
        value
        for number, value in enumerate(function.params)
        if all(call.arguments[number] is value for call in calls)
    )
    records = tuple(v for v in outside if v not in constants and v not in same)
    if not _are_fixed(records):
        return "the ops after its calls read tensors whose sizes are not fixed"
    base = branch.orelse if arm is branch.then else branch.then
    return Recursion(
        function, branch, arm, base, tuple(calls), tuple(rest), places, constants, same, records
    )


def _calls(ops: list[Op], name: str) -> list[CallOp]:
    return [op for op in ops if isinstance(op, CallOp) and op.function == name]


def _are_plain(values: tuple[Value, ...]) -> bool:
    """True if all values are in memory and have fixed sizes."""
    return _are_fixed(values) and all(
        value.tensor.dtype.is_float or value.tensor.rank > 0 for value in values
    )


def _are_fixed(values: tuple[Value, ...]) -> bool:
    return all(_is_fixed(value.type) for value in values)


def _is_fixed(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _name(op: Op) -> str:
    return op.target if isinstance(op, TensorOp) else op.name


@dataclass(frozen=True, slots=True)
class BaseCaseRow:
    """A row that activations without calls return: row `index` of parameters with `size` rows.

    sources: the parameter of each result. ops: the ops that read the rows.
    """

    index: Value
    size: int
    sources: tuple[Value, ...]
    ops: tuple[TensorOp, ...]


def base_row(parts: Recursion) -> BaseCaseRow | None:
    """Return the row that activations without calls return; None if their results are not such a
    row."""
    ops = (*parts.function.body.ops, *parts.base.ops)
    makers = {value: op for op in ops for value in op.results}
    found: list[TensorOp] = []
    for place in parts.places:
        op = makers.get(parts.base.yields[place])
        if not isinstance(op, TensorOp) or op.target != "aten.select.int" or op.args[1] != 0:
            return None
        found.append(op)
    indices = {op.args[2] for op in found}
    sources = [op.args[0] for op in found]
    rows = {source.tensor.shape[0] for source in sources if isinstance(source, Value)}
    if len(indices) != 1 or len(rows) != 1 or any(source not in parts.same for source in sources):
        return None
    (index,), (size,) = indices, rows
    if not isinstance(index, Value) or not isinstance(size, int):
        return None
    given = tuple(source for source in sources if isinstance(source, Value))
    return BaseCaseRow(index, size, given, tuple(found))


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists that the walk pushes to. numbers: for activations with calls, a row of the height
    and the places of the results of each call. records: the values of these activations that the
    rest reads. bases: the results of activations without calls, if they are recorded."""

    numbers: Value
    records: tuple[Value, ...]
    bases: tuple[Value, ...]

    @classmethod
    def of(cls, parts: Recursion, row: BaseCaseRow | None) -> Lists:
        """Return new lists for a recursion. row: the results of activations without calls if they
        are not recorded."""

        def of_type(type: TensorType) -> Value:
            return Value(TensorListType(type))

        kept = parts.places if row is None else ()
        return cls(
            of_type(TensorType(INDEX.dtype, (1 + len(parts.calls),))),
            tuple(of_type(value.tensor) for value in parts.records),
            tuple(of_type(parts.branch.results[place].tensor) for place in kept),
        )

    def again(self) -> Lists:
        """Return new values of the same types: the lists after the next pushes."""
        records, bases = (tuple(map(fresh, lists)) for lists in (self.records, self.bases))
        return Lists(fresh(self.numbers), records, bases)

    @property
    def all(self) -> tuple[Value, ...]:
        return (self.numbers, *self.records, *self.bases)

    def pushed(self, ops: Emitter, items: dict[Value, Value]) -> tuple[Value, ...]:
        """Return all lists, those that are keys of `items` with that item appended."""

        def push(list: Value) -> Value:
            op = ListPushOp(list, items[list], results=(Value(list.type),))
            return ops.add(op).results[0]

        return tuple(push(list) if list in items else list for list in self.all)


def walk_of(parts: Recursion, name: str, lists: Lists, row: BaseCaseRow | None) -> Block:
    """Return the block of the walk, made by changing the function's own, with the lists as last
    parameters."""
    branch, body = parts.branch, parts.function.body
    _walk_arm(parts, name, lists)
    _walk_base(parts, lists, row)
    body.params = (*body.params, *lists.all)
    branch.results = (Value(INDEX, "at"), Value(INDEX, "height"), *lists.again().all)
    body.yields = branch.results
    return body


def _walk_arm(parts: Recursion, name: str, lists: Lists) -> None:
    """Turn the arm with calls into that of the walk: drop the rest, and push the numbers and
    records. lists: those that the activation gets."""
    arm, rest = parts.arm, set(parts.rest)
    out = Emitter()
    places: list[Value] = []
    height: Value | None = None
    for op in arm.ops:
        if op in rest:
            continue
        if not isinstance(op, CallOp) or op not in parts.calls:
            out.add(op)
            continue
        after = lists.again()
        place, below = Value(INDEX, "at"), Value(INDEX, "height")
        call = CallOp(name, (*op.arguments, *lists.all), results=(place, below, *after.all))
        call.location = op.location
        out.add(call)
        lists = after
        places.append(place)
        height = below if height is None else out.emit("aten.maximum.default", height, below)
    assert height is not None
    height = out.emit("aten.add.Tensor", height, 1)
    at = out.emit("aten.neg.default", length_of(out, lists.numbers))
    at = out.emit("aten.sub.Tensor", at, 1)
    items = {lists.numbers: out.emit("stretto.number_row.default", (height, *places))}
    items |= dict(zip(lists.records, parts.records, strict=True))
    arm.yields = (at, height, *lists.pushed(out, items))
    arm.ops = out.ops


def _walk_base(parts: Recursion, lists: Lists, row: BaseCaseRow | None) -> None:
    base = parts.base
    if row is not None:
        for block in (parts.function.body, base):
            block.ops = [one for op in block.ops for one in _checked(op, row)]
    out = Emitter(ops=base.ops)
    items: dict[Value, Value] = {}
    if row is None:
        at = length_of(out, lists.bases[0])
        yields = (base.yields[place] for place in parts.places)
        items = dict(zip(lists.bases, yields, strict=True))
    else:
        below = out.emit("aten.lt.Scalar", row.index, 0)
        wrapped = out.emit("aten.add.Tensor", row.index, row.size)
        at = out.emit("aten.where.self", below, wrapped, row.index)
    height = out.add(LiteralOp(0, results=(Value(INDEX),))).results[0]
    base.yields = (at, height, *lists.pushed(out, items))


def length_of(out: Emitter, list: Value) -> Value:
    return out.add(ListLengthOp(list, results=(Value(INDEX),))).results[0]


def _checked(op: Op, row: BaseCaseRow) -> list[Op]:
    """Return the op, preceded by the check of its position if it reads a base row; the check must
    stay in its order."""
    if not isinstance(op, TensorOp) or op not in row.ops:
        return [op]
    checks = [one.check() for one in positions_of(op)]
    for check in checks:
        check.location = op.location
    return [*checks, op]
