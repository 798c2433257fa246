"""Which recursive functions can be walked first and computed by levels, and their parts.

Such a function ends in a branch; one arm calls the function itself, at least twice, with arguments
that are not made from results of these calls. What that arm computes from the results is the
*rest* of an activation. It can wait where no op of it may stop the run or draws random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import CallOp, ConstantOp, IfOp, LiteralOp, TensorOp
from stretto.ir.symbols import symbols_of_op
from stretto.ir.types import TensorType, Type
from stretto.ops.properties import is_contraction
from stretto.passes.analyses.moving import keeps_types, made_from, may_stop
from stretto.passes.analyses.work import nbytes, usual
from stretto.passes.inline import recursive_functions


@dataclass(frozen=True, slots=True)
class Recursion:
    """The parts of a function.

    arm: the block with the calls. base: the other one. places: of the function's results among
    those of the branch. constants: what the rest reads, by value. same: parameters that all calls
    pass on as they are. records: other values that the rest reads or the arm yields, which the walk
    keeps for each activation.
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
        """What the products of the rest read that is the same in all activations."""
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
    """The parts of a recursive function, or why it has none."""
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
        return "its calls do not stand in one arm of the branch it ends in"
    return _parts(function, branch, arms[0], calls)


def _parts(function: Function, branch: IfOp, arm: Block, calls: list[CallOp]) -> Recursion | str:
    if len(calls) < 2:
        return "it calls itself once"
    given = [value for call in calls for value in call.results]
    waiting = made_from(arm.ops, given)
    if any(call in waiting for call in calls):
        return "a call needs the result of another"
    rest: list[TensorOp] = []
    for op in arm.ops:
        if op in waiting:
            if not isinstance(op, TensorOp) or may_stop(op) or symbols_of_op(op):
                return f"what follows its calls is not plain: {_name(op)}"
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
        return "what follows its calls reads tensors of sizes that the run decides"
    base = branch.orelse if arm is branch.then else branch.then
    return Recursion(
        function, branch, arm, base, tuple(calls), tuple(rest), places, constants, same, records
    )


def _calls(ops: list[Op], name: str) -> list[CallOp]:
    return [op for op in ops if isinstance(op, CallOp) and op.function == name]


def _are_plain(values: tuple[Value, ...]) -> bool:
    """Whether all are in memory and have fixed sizes."""
    return _are_fixed(values) and all(
        value.tensor.dtype.is_float or value.tensor.rank > 0 for value in values
    )


def _are_fixed(values: tuple[Value, ...]) -> bool:
    return all(_is_fixed(value.type) for value in values)


def _is_fixed(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _name(op: Op) -> str:
    return op.target if isinstance(op, TensorOp) else op.name
