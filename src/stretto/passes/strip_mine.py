"""Strip-mining: values that were batched for all iterations of a loop are computed block by block.

A product over all steps before a loop is efficient, but its result occupies memory as long as the
loop runs. A product of some 16 rows is as efficient, and its buffer is small and stays in the
cache: the loop becomes a loop over blocks of iterations, which computes the rows of a block and
then runs its iterations (strip-mining: Wolfe, "More Iteration Space Tiling", 1989).

Changes: `for` loops anywhere in the program that read one row per iteration of products over all
iterations. Needs: loops batched; no later pass that looks for the products of `batch_loops`.
Guarantees: the same values as before up to the order of additions inside one product, and the same
order of iterations; the remaining ones run in a loop after the others.

    %w = linear(%x, %W)   # [50, 8]              for %s in (0, 3, 1) carry (%h) {
    for %t in (0, 50, 1) carry (%h) {              %w = linear(narrow(%x, 0, 16 * %s, 16), %W)
      %w_t = select(%w, 0, %t)              =>     for %j in (0, 16, 1) carry (%h) {
      yield cell(%w_t, %h) }                         yield cell(select(%w, 0, %j), %h) } }
                                                 %w = linear(slice(%x, 0, 48, 50), %W)
                                                 for %j in (0, 2, 1) carry (%h) { ... }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import Argument, ForOp, TensorOp
from stretto.ir.rewrite import all_blocks, clone_op, users
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.symbols import bound_symbols
from stretto.ir.types import INDEX, Dim
from stretto.ops.arguments import with_arguments
from stretto.ops.infer import named_arguments, tensor_op
from stretto.ops.properties import is_contraction, is_view, properties, stay_reason
from stretto.passes.analyses.loop_dependences import normalise, replace_loops
from stretto.passes.manager import Target
from stretto.passes.rows import ROW_BY_ROW, NotRowWise, has_leading_dim, require_row_by_row
from stretto.passes.skew_plan import loop_products, products_by_row, step_seconds


@dataclass(frozen=True, slots=True)
class StripMine:
    """The pass. target: the machine, whose costs decide whether it pays; without one it does not.
    rows: if not 0, strip-mine to blocks of this many iterations in any case. least_bytes: the
    least saving; less than that stays in a cache, and the waits around a block cost more than
    they save. most_share: the most additional time, relative to the loop."""

    target: Target | None = None
    rows: int = 0
    least_bytes: int = 1 << 20
    most_share: float = 0.03
    name: ClassVar[str] = "strip_mine"

    def apply(self, program: Program) -> bool:
        changed: list[ForOp] = []

        def new(loop: ForOp, body: Block) -> list[Op]:
            plan = self._plan(loop, body)
            if isinstance(plan, str):
                program.remarks.decline(self.name, "for", plan, loop.location)
                return [loop]
            changed.append(loop)
            return strip_mine(loop, plan)

        replace_loops(program, new)
        return bool(changed)

    def _plan(self, loop: ForOp, body: Block) -> StripMinePlan | str:
        trips = loop.trips()
        if trips is None:
            return "its trip count is not known"
        if loop.parallel:
            return "its iterations run in parallel"
        if any(True for _ in bound_symbols(loop.body)):
            return "a size is known only in its iterations"
        if not self.rows and self.target is None:
            return "no machine is known"
        plan = plan_of(loop, trips, body)
        if isinstance(plan, str):
            return plan
        plan.rows = self.rows or block_rows(trips)
        if not at_most(plan.rows + 1, trips):
            return f"it is not known to have more than {plan.rows} iterations"
        return self._why_not(plan) or plan

    def _why_not(self, plan: StripMinePlan) -> str | None:
        """Return why strip-mining does not pay, or None."""
        if self.rows or self.target is None:
            return None
        costs, trips = self.target.costs, self.target.costs.size(plan.trips)
        whole = sum(
            costs.points(value.tensor.shape) * value.tensor.dtype.itemsize for value in plan.read
        )
        saved = whole - whole // trips * plan.rows
        if saved < self.least_bytes:
            return f"it would save {max(saved, 0)} bytes"
        rows = (value for op in plan.cone for value in row_operands(op, plan.trips))
        all_rows = products_by_row(plan.cone, rows, costs)
        part = all_rows.operations * plan.rows // trips
        before = costs.product_seconds(all_rows.operations, all_rows.nbytes, self.target.units)
        each = costs.product_seconds(part, all_rows.nbytes, self.target.units)
        each += all_rows.chain * costs.dependent_seconds
        step = step_seconds(loop_products(plan.loop.body.ops, plan.loop, costs), self.target)
        more = each * (trips / plan.rows) - before
        if more > self.most_share * (before + trips * step):
            return f"products of {plan.rows} rows take {more / before:.0%} more time, as estimated"
        return None


def block_rows(trips: Dim) -> int:
    """Return the iterations of a block: enough for an efficient product, few enough for a small
    buffer, and a divisor of the trip count if there is one."""
    if isinstance(trips, int):
        return next((rows for rows in range(16, 11, -1) if trips % rows == 0), 12)
    return 12


@dataclass(slots=True)
class StripMinePlan:
    """The ops that would be computed for a block of iterations.

    cone: ops before the loop, in order. read: their results that the loop reads row by row,
    with the ops of its body that do. rows: the iterations of a block.
    """

    loop: ForOp
    trips: Dim
    block: Block
    read: Mapping[Value, list[Op]]
    cone: list[Op] = field(default_factory=list[Op])
    rows: int = 0

    @property
    def reads(self) -> set[Op]:
        return {op for ops in self.read.values() for op in ops}


def plan_of(loop: ForOp, trips: Dim, body: Block) -> StripMinePlan | str:
    """Return the plan for the products over its iterations that only the loop reads, or the reason
    why there is none."""
    readers = users(body)
    block = next(item for item in all_blocks(body) if loop in item.ops)
    read = _read_by_row(loop, trips)
    plan = StripMinePlan(loop, trips, block, read)
    needed = {value for value, ops in read.items() if not _escapes(value, readers, set(ops), body)}
    inside: set[Op] = plan.reads
    for op in reversed(block.ops[: block.ops.index(loop)]):
        if needed.isdisjoint(op.results) or not _is_row_by_row(op, trips):
            continue
        plan.cone.insert(0, op)
        inside.add(op)
        for value in row_operands(op, trips):
            if not _escapes(value, readers, inside, body):
                needed.add(value)
    made = {op.results[0] for op in plan.cone}
    plan.read = {value: ops for value, ops in read.items() if value in made}
    if not any(is_contraction(op) for op in plan.cone):
        return "it reads no product row by row, alone"
    return plan


def _read_by_row(loop: ForOp, trips: Dim) -> dict[Value, list[Op]]:
    """Return the tensors of which each iteration reads its row, with the ops that do."""
    found: dict[Value, list[Op]] = {}
    if (loop.start, loop.step) != (0, 1):
        return found
    for op in loop.body.ops:
        if isinstance(op, TensorOp) and op.target == "aten.select.int" and not op.kwargs:
            source, dim, place = op.args
            if not isinstance(source, Value) or dim != 0 or place is not loop.index:
                continue
            if has_leading_dim(source, trips):
                found.setdefault(source, []).append(op)
    return found


def _escapes(value: Value, readers: Mapping[Value, list[Op]], inside: set[Op], body: Block) -> bool:
    """True if the function yields a value, or an op not in `inside` reads it."""
    others = [op for op in readers.get(value, []) if op not in inside]
    return bool(others) or value in body.yields


def _is_row_by_row(op: Op, trips: Dim) -> bool:
    """True if a block of rows of the result depends on only the same rows of some operands."""
    if not isinstance(op, TensorOp) or len(op.results) != 1 or is_view(op):
        return False
    if not has_leading_dim(op.result, trips) or stay_reason(op) is not None:
        return False
    rows = row_operands(op, trips)
    if not rows or any(value.tensor.rank != op.result.tensor.rank for value in rows):
        return False
    if op.target not in ROW_BY_ROW and not properties(op.target).elementwise:
        return False
    try:
        require_row_by_row(op, rows)
    except NotRowWise:
        return False
    return True


def row_operands(op: Op, trips: Dim) -> list[Value]:
    """Return the operands whose rows correspond to those of the result."""
    assert isinstance(op, TensorOp)
    given = [
        (parameter.name, item)
        for parameter, item in named_arguments(op.target, op.args, op.kwargs)
        if isinstance(item, Value)
    ]
    if op.target in ROW_BY_ROW:
        name = "mat1" if op.target == "aten.addmm.default" else given[0][0]
        given = [(one, item) for one, item in given if one == name]
    rank = op.results[0].tensor.rank
    found = (item for _, item in given if has_leading_dim(item, trips) and item.tensor.rank == rank)
    return list(dict.fromkeys(found))


def strip_mine(loop: ForOp, plan: StripMinePlan) -> list[Op]:
    """Return the loops that replace one. Removes the ops that were computed for all iterations
    from their block."""
    plan.block.ops = [op for op in plan.block.ops if op not in plan.cone]
    normalise(loop)
    rows, ops = plan.rows, list[Op]()
    count, left = (Size.of(plan.trips) // rows).dim, (Size.of(plan.trips) % rows).dim
    results = loop.results if left == 0 else tuple(map(fresh, loop.results))
    number = Value(INDEX)
    carried = tuple(map(fresh, loop.carried))
    body = Block((number, *carried))
    start = tensor_op("aten.mul.Tensor", number, rows)
    body.ops.append(start)
    body.yields = tuple(map(fresh, loop.results))
    _block(plan, start.result, rows, carried, body.yields, body.ops)
    ops.append(ForOp(0, count, 1, loop.inits, body, results=results, location=loop.location))
    if left != 0:
        _block(plan, (Size.of(plan.trips) - left).dim, left, results, loop.results, ops)
    return ops


def _block(
    plan: StripMinePlan,
    start: Value | Dim,
    rows: Dim,
    inits: tuple[Value, ...],
    results: tuple[Value, ...],
    ops: list[Op],
) -> None:
    """Append ops that compute the rows of `rows` iterations from `start` on, and a loop over
    these."""
    loop = plan.loop
    mapping = _rows_of_cone(plan, start, rows, ops)
    index = Value(INDEX, loop.index.hint)
    carried = tuple(map(fresh, loop.carried))
    form = "aten.add.Tensor" if isinstance(start, (Value, int)) else "aten.add.Scalar"
    step = tensor_op(form, index, start)
    body = Block((index, *carried), [step])
    mapping[loop.index] = step.result
    mapping.update(zip(loop.carried, carried, strict=True))
    reads = plan.reads
    for op in loop.body.ops:
        if op in reads:
            assert isinstance(op, TensorOp) and isinstance(op.args[0], Value)
            body.ops.append(tensor_op("aten.select.int", mapping[op.args[0]], 0, index))
            mapping[op.result] = body.ops[-1].results[0]
        else:
            body.ops.append(clone_op(op, mapping))
    body.yields = tuple(mapping.get(value, value) for value in loop.body.yields)
    ops.append(ForOp(0, rows, 1, inits, body, results=results, location=loop.location))


def _rows_of_cone(
    plan: StripMinePlan, start: Value | Dim, rows: Dim, ops: list[Op]
) -> dict[Value, Value]:
    """Append the ops of the cone for `rows` rows; return their results by the old ones.

    Rows of operands from outside the cone are not returned: the loop may also read those
    operands by its own index.
    """
    made: dict[Value, Value] = {}
    taken: dict[Value, Value] = {}
    for op in plan.cone:
        assert isinstance(op, TensorOp)
        changed: dict[str, Argument] = {}
        operands = row_operands(op, plan.trips)
        for parameter, item in named_arguments(op.target, op.args, op.kwargs):
            if isinstance(item, Value) and item in operands and _takes_rows(op, parameter.name):
                if item not in made and item not in taken:
                    ops.append(_narrow(item, start, rows))
                    taken[item] = ops[-1].results[0]
                changed[parameter.name] = made.get(item) or taken[item]
        new = with_arguments(op, changed)
        new.location = op.location
        ops.append(new)
        made[op.result] = new.result
    return made


def _takes_rows(op: TensorOp, name: str) -> bool:
    """True if an argument's rows are those of the result; it may also be a matrix or a bias."""
    if op.target not in ROW_BY_ROW:
        return True
    return name in ("input", "mat1", "self") and not (
        op.target == "aten.addmm.default" and name == "self"
    )


def _narrow(value: Value, start: Value | Dim, rows: Dim) -> TensorOp:
    if isinstance(start, Value):
        return tensor_op("stretto.narrow.default", value, 0, start, rows)
    stop = (Size.of(start) + rows).dim
    return tensor_op("aten.slice.Tensor", value, 0, start, stop)
