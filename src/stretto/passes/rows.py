"""Rows: the part that one iteration needs of an operator that runs for all iterations at once.

The inverse of batching. Between two loops over the same steps there are operators on the
results of all steps of the first, such as `linear(stack(ys))`, of which the second reads
one step at a time. The *row* of such a value at a step is a tensor with a leading dim of 1,
computed by the same operators from rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from stretto.ir.core import Op, Value, argument_values
from stretto.ir.ops import Argument, ListStackOp, TensorOp
from stretto.ir.types import Dim, TensorType
from stretto.ops.arguments import argument, with_arguments
from stretto.ops.infer import named_arguments, tensor_op
from stretto.ops.properties import properties, stay_reason
from stretto.ops.table import ElementByElement, KeepDims, ShiftDims

ROW_BY_ROW = frozenset(("aten.linear.default", "aten.mm.default", "aten.addmm.default"))
"""Operators that are not element by element, but compute each row of their result (dim 0) from one
row of an operand."""


class NotRowWise(Exception):
    """A single step of a value cannot be computed alone; the message gives the reason."""


def has_leading_dim(value: Value, steps: Dim) -> bool:
    """True if the value is a tensor whose leading dim is `steps`."""
    return isinstance(value.type, TensorType) and value.tensor.shape[:1] == (steps,)


def stacked_lists(
    value: Value, makers: Mapping[Value, Op], dependent: Set[Value], steps: Dim
) -> set[Value]:
    """Return the lists whose items the rows of a value are computed from. Raises NoRow if one row
    needs more than one item of each.

    dependent: results of the loops, and the values that `makers`, the ops between the loops,
    compute from them. All other values are the same for all rows.
    """
    found: set[Value] = set()
    seen: set[Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        op = makers.get(current)
        if op is None:
            raise NotRowWise("it is read as a whole")
        if isinstance(op, ListStackOp):
            if not has_leading_dim(op.result, steps):
                raise NotRowWise("the list has another number of items")
            found.add(op.list)
            continue
        stack.extend(_row_operands(op, current, dependent, steps))
    return found


def _row_operands(op: Op, result: Value, dependent: Set[Value], steps: Dim) -> list[Value]:
    """Return the operands of which a row of the result needs the same row. Raises NoRow if it
    needs more."""
    if not isinstance(op, TensorOp) or not has_leading_dim(result, steps):
        raise NotRowWise(f"{op.name} does not make one row per step")
    if (reason := stay_reason(op)) is not None:
        raise NotRowWise(reason)
    rows = list(dict.fromkeys(value for value in op.operands if value in dependent))
    for value in rows:
        if not has_leading_dim(value, steps) or value.tensor.rank != result.tensor.rank:
            raise NotRowWise(f"`{op.target}` reads more than one row")
    require_row_by_row(op, rows)
    return rows


def require_row_by_row(op: TensorOp, rows: list[Value]) -> None:
    """Raise NoRow unless the operator computes each row from the same row of `rows`."""
    names = dict[str, Argument]()
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        names[parameter.name] = item
        if isinstance(item, tuple) and parameter.is_tensor:
            raise NotRowWise(f"`{op.target}` takes a list of tensors")
        if not parameter.is_tensor and argument_values(item):
            raise NotRowWise(f"`{op.target}` takes a number that the run computes")
    first = next(iter(names.values()))
    match properties(op.target).batching:
        case ElementByElement() if properties(op.target).elementwise:
            return
        case KeepDims(rank) if rows == [first] and rows[0].tensor.rank > rank:
            return
        case ShiftDims(dims, none_is_all) if rows == [first]:
            rank = rows[0].tensor.rank
            if all(_spares_first(argument(op, name), rank, none_is_all) for name in dims):
                return
        case _ if op.target in ROW_BY_ROW:
            row_operand = "mat1" if op.target == "aten.addmm.default" else next(iter(names))
            if rows == [names[row_operand]] and rows[0].tensor.rank > 1:
                bias = names.get("self" if row_operand == "mat1" else "bias")
                if not isinstance(bias, Value) or bias.tensor.rank < 2:
                    return
        case _:
            pass
    raise NotRowWise(f"`{op.target}` does not treat its operand row by row")


def _spares_first(dims: Argument, rank: int, none_is_all: bool) -> bool:
    if dims is None or dims == ():
        return not none_is_all
    several = dims if isinstance(dims, tuple) else (dims,)
    return all(isinstance(dim, int) and dim % max(rank, 1) != 0 for dim in several)


@dataclass(slots=True)
class RowEmitter:
    """Emits the rows of one step, each once.

    makers, steps: as in `stacked_lists`. item: returns the item of a list at this step. index:
    the step. emit: called with each op, in order.
    """

    makers: Mapping[Value, Op]
    steps: Dim
    index: Value
    item: Callable[[Value], Value]
    emit: Callable[[Op], None]
    made: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def item_of(self, value: Value) -> Value:
        """Return `value[index]`."""
        op = self.makers[value]
        if isinstance(op, ListStackOp):
            return self.item(op.list)
        if isinstance(op, TensorOp) and op.target == "aten.linear.default":
            source = op.args[0]
            assert isinstance(source, Value)
            return self._add(with_arguments(op, {"input": self.item_of(source)}), op)
        return self._add(tensor_op("aten.select.int", self.row(value), 0, 0), op)

    def row(self, value: Value) -> Value:
        """Return the row of a value that `stacked_lists` has accepted."""
        if value not in self.made:
            self.made[value] = self._make(value)
        return self.made[value]

    def _make(self, value: Value) -> Value:
        op = self.makers[value]
        if isinstance(op, ListStackOp):
            return self._add(tensor_op("aten.unsqueeze.default", self.item(op.list), 0), op)
        assert isinstance(op, TensorOp)
        changed: dict[str, Argument] = {}
        for parameter, item in named_arguments(op.target, op.args, op.kwargs):
            if isinstance(item, Value):
                changed[parameter.name] = self._operand(op, item)
        new = with_arguments(op, changed)
        self._add(new, op)
        return new.results[op.results.index(value)]

    def _operand(self, op: TensorOp, value: Value) -> Value:
        """Return the row of an operand, or the operand itself if it is the same for all rows."""
        if value in self.makers:
            return self.row(value)
        is_wide = value.tensor.rank == op.results[0].tensor.rank and has_leading_dim(
            value, self.steps
        )
        if not is_wide or not properties(op.target).elementwise:
            return value
        if value not in self.made:
            item = self._add(tensor_op("aten.select.int", value, 0, self.index), op)
            self.made[value] = self._add(tensor_op("aten.unsqueeze.default", item, 0), op)
        return self.made[value]

    def _add(self, new: Op, old: Op) -> Value:
        new.location = old.location
        self.emit(new)
        return new.results[0]
