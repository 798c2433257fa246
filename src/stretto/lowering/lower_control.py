"""Lowering of branches and loops to nodes of the tree.

A carried tensor is in a rotating pair of buffers, or in one buffer if the body only updates it
in place (a cache) or if its size is known only at run time; a carried integer or flag is in a
register; a carried list is a buffer and a length register.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stretto.device.expr import Buffer, Const, Expr, Index, Position, Reg, loads
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Operator
from stretto.device.tree import Check, CheckCode, For, If, Let, Node, Seq, While, leaves
from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import CallOp, CheckOp, ForOp, IfOp, TensorOp, WhileOp
from stretto.ir.rewrite import block_reads
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import DType, TensorListType, TensorType
from stretto.lowering.calls import lower_call
from stretto.lowering.lazy import cast, whole_buffer
from stretto.lowering.lists.list_ops import copied, lower_list_op, others_need
from stretto.lowering.lower_function import Lowering
from stretto.lowering.targets import (
    LateTarget,
    ListTarget,
    Target,
    bind,
    bind_all,
    claim_destinations,
    finish,
    is_register,
)
from stretto.ops.properties import properties

# ---- Carried tensors that a loop body only updates in place, so that one buffer is enough -----


@dataclass(frozen=True, slots=True)
class CarriedUpdates:
    """The blocks and branches that update a carried tensor in place.

    blocks: the body and the arms that change it. joined: maps each branch result that is the
    tensor after the branch to the tensor before it.
    """

    blocks: set[Block] = field(default_factory=set[Block])
    joined: dict[Value, Value] = field(default_factory=dict[Value, Value])


def updated_in_place(body: Block, number: int, offset: int) -> CarriedUpdates | None:
    """Return how yield `number` is computed from the carried value, if by updates alone (also
    in arms of branches and in loops), else None. Each update must be the last use of its base.

    `offset`: number of parameters before the carried ones.
    """
    found = CarriedUpdates()
    base = _base(body, number, found)
    return found if base is body.params[number + offset] else None


def _base(block: Block, number: int, found: CarriedUpdates) -> Value | None:
    """Return the value from outside the block that yield `number` is an updated version of, or
    None."""
    value = block.yields[number]
    if block.yields.count(value) > 1:
        return None
    found.blocks.add(block)
    producers = {result: (place, op) for place, op in enumerate(block.ops) for result in op.results}
    last_use = _last_uses(block)
    while value in producers:
        place, op = producers[value]
        base = _before(op, value, found)
        if base is None or last_use.get(base) != place or base in block.yields:
            return None
        value = base
    return value


def _before(op: Op, result: Value, found: CarriedUpdates) -> Value | None:
    """Return the value that an op updates in place into `result`; None if it does not."""
    match op:
        case TensorOp():
            if len(op.results) != 1 or not properties(op.target).updates:
                return None
            base = op.args[0]
            return base if isinstance(base, Value) and op.operands.count(base) == 1 else None
        case IfOp():
            number = op.results.index(result)
            base = _base(op.then, number, found)
            if base is None or base is not _base(op.orelse, number, found):
                return None
            found.joined[result] = base
            return base
        case ForOp() | WhileOp():
            number = op.results.index(result)
            base, offset = op.inits[number], len(op.body.params) - len(op.body.yields)
            inside = updated_in_place(op.body, number, offset)
            return None if inside is None or op.operands.count(base) > 1 else base
        case _:
            return None


def _last_uses(body: Block) -> dict[Value, int]:
    """Return for each value the position of the last op that reads it, itself or in its blocks."""
    found: dict[Value, int] = {}
    for place, op in enumerate(body.ops):
        inner = [value for block in op.blocks for value in block_reads(block)]
        for value in (*op.operands, *inner):
            found[value] = place
    return found


def lower_control(low: Lowering, op: Op) -> None:
    """Lower an op that is neither a tensor op nor a constant."""
    match op:
        case IfOp():
            _lower_if(low, op)
        case ForOp():
            _lower_for(low, op)
        case WhileOp():
            _lower_while(low, op)
        case CallOp():
            lower_call(low, op)
        case CheckOp():
            detail = None if op.detail is None else low.scalar(op.detail)
            low.check(low.scalar(op.condition), CheckCode.ASSERTION, low.stop(op.failure), detail)
        case _:
            lower_list_op(low, op)


# ---- regions ---------------------------------------------------------------------------------


def region(
    low: Lowering, block: Block, targets: tuple[Target, ...]
) -> tuple[Node[Items], tuple[Target, ...]]:
    """Lower a block so that its yields end up in `targets`; return its node, and the targets with
    the buffers chosen for lists."""
    saved = low.items, low.nodes, low.block
    known = dict(low.symbols), dict(low.positions)
    low.outer.append((low.block, low.items))
    low.items, low.nodes = [], []
    claim_destinations(low, block, targets)
    low.ops(block)
    final = finish(low, block.yields, targets)
    low.flush()
    node: Node[Items] = Seq(tuple(low.nodes))
    low.outer.pop()
    low.items, low.nodes, low.block = saved
    low.symbols, low.positions = known
    return node, final


# ---- if --------------------------------------------------------------------------------------


def _lower_if(low: Lowering, op: IfOp) -> None:
    condition = low.register(op.condition, "if")
    targets: list[Target] = []
    for value in op.results:
        match value.type:
            case TensorListType():
                targets.append(ListTarget(None, low.new_reg("length")))
            case TensorType() as kind if is_register(kind):
                targets.append(low.new_reg(value.hint or "s", kind.dtype))
            case _ if value in low.rows:
                targets.append(low.rows[value])
            case _:
                targets.append(_changed_in_arms(low, op, value) or low.output(value))
    with low.uses.without(op.orelse):
        then, chosen = region(low, op.then, tuple(targets))
    orelse, chosen = region(low, op.orelse, chosen)
    low.emit_node(If(condition, then, orelse))
    bind_all(low, op.results, list(chosen))


def _changed_in_arms(low: Lowering, op: IfOp, result: Value) -> Buffer | None:
    """Return the buffer of a carried tensor that the arms only update in place, or None."""
    base = low.joined.get(result)
    buffer = None if base is None else whole_buffer(low.tensor(base))
    return buffer if buffer is not None and {*op.blocks} <= low.mutable.get(buffer, set()) else None


# ---- loops -----------------------------------------------------------------------------------


def _carry(
    low: Lowering, op: ForOp | WhileOp, params: tuple[Value, ...]
) -> tuple[list[Target], list[Target]]:
    """Set up the carried values; return where the body reads them and where it puts their next
    values."""
    currents: list[Target] = []
    nexts: list[Target] = []
    for number, (init, param) in enumerate(zip(op.inits, params, strict=True)):
        if isinstance(param.type, TensorListType):
            target = _carry_list(low, init, currents)
            currents.append(target)
            nexts.append(target)
        elif is_register(param.type):
            reg = low.new_reg(param.hint or "s", param.type.dtype)
            low.emit(Let(reg, cast(low.scalar(init), reg.dtype)))
            currents.append(reg)
            nexts.append(reg)
        else:
            current, following = _carry_tensor(low, op, number, init, param)
            currents.append(current)
            nexts.append(following)
    return currents, nexts


def _carry_tensor(
    low: Lowering, op: ForOp | WhileOp, number: int, init: Value, param: Value
) -> tuple[Buffer, Buffer | LateTarget]:
    body = op.body
    kind = param.tensor
    offset = len(body.params) - len(body.yields)
    updates = updated_in_place(body, number, offset)
    if updates is not None and op.inits.count(init) == 1:
        own = low.changeable(init)
        if own is not None:
            low.mutable[own] = updates.blocks
            low.joined |= updates.joined
            return own, own
    current = low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))
    low.store(low.tensor(init), current, "init")
    if body.yields[number] is body.params[number + offset]:
        return current, current
    if updates is not None:
        low.mutable[current] = updates.blocks
        low.joined |= updates.joined
        return current, current
    if current.kind != "local":
        return current, LateTarget(current)
    return current, low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))


def _behind(
    low: Lowering, op: ForOp | WhileOp, currents: list[Target], before: dict[Buffer, set[Block]]
) -> None:
    """After a loop, let the blocks that could update its in-place tensors before it do so again;
    tensors that the loop created may be updated by the current block."""
    for target in currents:
        if isinstance(target, Buffer) and op.body in low.mutable.get(target, ()):
            low.mutable[target] = before.get(target, {low.block})


def _carry_list(low: Lowering, init: Value, carried: list[Target]) -> ListTarget:
    """Return the list's own buffer as the loop's target, or a copy if another value still needs
    it."""
    view = low.list(init)
    taken = {target.buffer for target in carried if isinstance(target, ListTarget)}
    if view.buffer in taken or others_need(low, view.buffer, init):
        view = copied(low, init, view)
    else:
        low.protect(view.buffer)
    length = low.new_reg("length")
    low.emit(Let(length, Position(view.length)))
    return ListTarget(view.buffer, length)


def _rotations(currents: list[Target], nexts: list[Target]) -> tuple[tuple[Buffer, Buffer], ...]:
    return tuple(
        (a, b)
        for a, b in zip(currents, nexts, strict=True)
        if isinstance(a, Buffer) and isinstance(b, Buffer) and a != b
    )


def _independent(low: Lowering, op: ForOp, carried: list[Target], made: int) -> tuple[Buffer, ...]:
    """Return the buffers for `For.independent`: carried inputs that the loop changes in place, and
    local buffers (from number `made` on) created inside branches of the body, each by one
    iteration."""
    found = (target for target in carried if isinstance(target, Buffer))
    inputs = (buffer for buffer in found if buffer.kind == "updated")
    inside = (buffer for buffer in low.locals[made:] if low.created.get(buffer) is not op.body)
    return (*inputs, *(buffer for buffer in inside if buffer not in carried))


def _read_from_outside(low: Lowering, op: ForOp | WhileOp) -> set[Value]:
    """Return the values that the loop's blocks read and that are defined before it."""
    return {value for block in op.blocks for value in block_reads(block) if value in low.env}


def _lower_for(low: Lowering, op: ForOp) -> None:
    start = _bound(low, op.start)
    stop = _bound(low, op.stop)
    before, made = dict(low.mutable), len(low.locals)
    currents, nexts = _carry(low, op, op.carried)
    index = low.new_reg(op.index.hint or "i")
    _bound_index(low, op, index)
    with low.uses.held(_read_from_outside(low, op)):
        bind(low, op.index, index)
        bind_all(low, op.carried, currents)
        body, _ = region(low, op.body, tuple(nexts))
    _behind(low, op, currents, before)
    independent = _independent(low, op, currents, made) if op.independent else ()
    parallel = op.parallel and _runs_apart(body, low.locals[made:])
    low.emit_node(
        For(index, start, stop, op.step, body, _rotations(currents, nexts), independent, parallel)
    )
    bind_all(low, op.results, currents)


def _runs_apart(body: Node[Items], made: Sequence[Buffer]) -> bool:
    """True if a unit can run an iteration by itself: without library calls, lists, or buffers of
    symbolic size."""
    items = [item for leaf in leaves(body) for item in leaf]
    used = {b for item in items for b in _named(item)}
    return (
        all(isinstance(item, Operator | Let | Check) for item in items)
        and not any(buffer.is_sized for buffer in made)
        and not any(buffer.kind == "list" for buffer in used)
    )


def _named(item: LeafItem) -> Iterator[Buffer]:
    match item:
        case Operator():
            yield item.out.buffer
            yield from (load.access.buffer for load in item.reads())
        case Let() | Check():
            yield from (load.access.buffer for expr in item.exprs for load in loads(expr))
        case _:
            pass


def _bound_index(low: Lowering, op: ForOp, index: Reg) -> None:
    """Record the range of a loop's index in its body."""
    if isinstance(op.start, Value):
        return
    first = low.formula(Size.of(op.start))
    if isinstance(op.stop, Value):
        if at_most(0, first) and op.step > 0:
            low.ranges[index] = (first.dim, None)
        return
    trips = op.trip_count()
    if trips is not None and isinstance(op.start, int):
        last = Index(const=op.start + op.step * max(trips - 1, 0))
    else:
        last = low.formula(Size.of(op.stop)) + (-1 if op.step > 0 else 1)
    ends = (first, last) if op.step > 0 else (last, first)
    low.ranges[index] = (ends[0].dim, ends[1].dim)


def _bound(low: Lowering, bound: int | Size | Value) -> Expr:
    if isinstance(bound, int):
        return Const(bound, DType.I64)
    if isinstance(bound, Size):
        return Position(Index.of(low.extent(bound)))
    return Position(low.index(bound))


def _lower_while(low: Lowering, op: WhileOp) -> None:
    before = dict(low.mutable)
    currents, nexts = _carry(low, op, op.body.params)
    condition = low.new_reg("while", DType.BOOL)
    carried_lists = [v for v in op.condition.params if isinstance(v.type, TensorListType)]
    with low.uses.held(_read_from_outside(low, op)):
        bind_all(low, op.condition.params, currents)
        with low.uses.held(carried_lists):  # the body still reads them after the condition
            head, _ = region(low, op.condition, (condition,))
        bind_all(low, op.body.params, currents)
        body, _ = region(low, op.body, tuple(nexts))
    _behind(low, op, currents, before)
    low.emit_node(While(head, condition, body, _rotations(currents, nexts)))
    bind_all(low, op.results, currents)
