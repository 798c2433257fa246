"""Lowering of branches, loops and calls to nodes of the tree.

A carried tensor lives in a rotating pair of buffers, or in one buffer when the body only updates it
in place (a cache) or its size is known at run time only; a carried integer or flag is a register; a
carried list is its buffer and a length register.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import CodegenError
from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import CallOp, CheckOp, ForOp, IfOp, WhileOp
from stretto.ir.types import DType, ListType, TensorType
from stretto.kernels.expr import (
    Access,
    Buffer,
    Const,
    Expr,
    Index,
    Position,
    Reg,
    expr_regs,
    loads,
)
from stretto.kernels.in_place import updated_in_place
from stretto.kernels.lazy import Lazy, cast, register_value, stored, whole_buffer
from stretto.kernels.list_ops import copied, copy_items, lower_list_op, new_list_buffer, others_need
from stretto.kernels.lower import Items, ListView, Lowering
from stretto.kernels.tree import Call, For, If, Let, Node, Seq, While
from stretto.kernels.uses import block_reads


@dataclass(frozen=True, slots=True)
class ListTarget:
    """Where a carried or merged list goes: `buffer` is None until the first arm has chosen one."""

    buffer: Buffer | None
    length: Reg


@dataclass(frozen=True, slots=True)
class LateTarget:
    """Memory that the block still reads: written when all that the block yields is computed."""

    buffer: Buffer


Target = Buffer | Reg | ListTarget | LateTarget


def is_register(kind: TensorType | ListType) -> bool:
    """Integers and flags without dims are held in registers."""
    return isinstance(kind, TensorType) and kind.is_scalar and not kind.dtype.is_float


def lower_control(low: Lowering, op: Op) -> None:
    """Lowers an op that is neither a tensor op nor a constant."""
    match op:
        case IfOp():
            _lower_if(low, op)
        case ForOp():
            _lower_for(low, op)
        case WhileOp():
            _lower_while(low, op)
        case CallOp():
            _lower_call(low, op)
        case CheckOp():
            detail = None if op.detail is None else low.scalar(op.detail)
            low.check(low.scalar(op.condition), "assertion", low.stop(op.failure), detail)
        case _:
            lower_list_op(low, op)


# ---- regions ---------------------------------------------------------------------------------


def region(
    low: Lowering, block: Block, targets: tuple[Target, ...]
) -> tuple[Node[Items], tuple[Target, ...]]:
    """Lowers a block so that its yields end up in `targets`; lists come back with their buffer."""
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


def claim_destinations(low: Lowering, block: Block, targets: tuple[Target | None, ...]) -> None:
    """What the block defines and yields is computed into its target at once."""
    defined = {value for op in block.ops for value in op.results}
    for value, target in zip(block.yields, targets, strict=True):
        if isinstance(target, Buffer) and value in defined:
            low.destinations.setdefault(value, target)


def finish(
    low: Lowering, values: tuple[Value, ...], targets: tuple[Target, ...]
) -> tuple[Target, ...]:
    """Moves the yields to their targets: tensors are copied if they are not there already.

    Then lists are moved and registers assigned, which tensors and numbers may have been read from.
    """
    low.uses.take(values)
    assigned: list[tuple[Reg, Expr]] = []
    late: list[tuple[Lazy, Buffer]] = []
    lists: dict[int, tuple[Value, ListTarget]] = {}
    for number, (value, target) in enumerate(zip(values, targets, strict=True)):
        match target:
            case Buffer():
                lazy = low.tensor(value)
                if whole_buffer(lazy) != target:
                    low.store(lazy, target, value.hint or "copy")
            case LateTarget(buffer):
                lazy = low.tensor(value)
                if whole_buffer(lazy) != buffer:
                    copy = low.new_buffer(value.hint, lazy.dtype, lazy.shape)
                    late.append((low.store(lazy, copy), buffer))
            case Reg():
                assigned.append((target, cast(low.scalar(value), target.dtype)))
            case ListTarget():
                lists[number] = (value, target)
                assigned.append((target.length, Position(low.list(value).length)))
    if lists or late:
        assigned = [(reg, _read_now(low, value)) for reg, value in assigned]
    for lazy, buffer in late:
        low.store(lazy, buffer)
    moved = _move_lists(low, lists)
    assign(low, assigned)
    return tuple(moved.get(number, target) for number, target in enumerate(targets))


def _read_now(low: Lowering, value: Expr) -> Expr:
    if next(loads(value), None) is None:
        return value
    return register_value(low.let(value)).expr


def _move_lists(low: Lowering, lists: dict[int, tuple[Value, ListTarget]]) -> dict[int, ListTarget]:
    """Copies lists to where they are to be, as if all at once; chooses a buffer where none is."""
    views = {number: low.list(value) for number, (value, _) in lists.items()}
    places: dict[int, Buffer] = {}
    for number, (value, target) in lists.items():
        places[number] = target.buffer or _free_buffer(low, value, set(places.values()))
    written = {places[n] for n, view in views.items() if view.buffer != places[n]}
    for number, (value, _) in lists.items():
        if views[number].buffer in written and views[number].buffer != places[number]:
            views[number] = copied(low, value, views[number])
    for number, place in places.items():
        if views[number].buffer != place:
            low.protect(place)
            copy_items(low, views[number], place)
    return {n: ListTarget(places[n], target.length) for n, (_, target) in lists.items()}


def _free_buffer(low: Lowering, value: Value, taken: set[Buffer]) -> Buffer:
    """The list's own buffer when nothing else needs it, or else a new one."""
    buffer = low.list(value).buffer
    if buffer in taken or others_need(low, buffer, value):
        return new_list_buffer(low, value)
    return buffer


def assign(low: Lowering, assigned: list[tuple[Reg, Expr]]) -> None:
    """Simultaneous assignment: values that read a register assigned earlier use a temporary."""
    assigned = [(reg, value) for reg, value in assigned if value != register_value(reg).expr]
    written: set[Reg] = set()
    clash = False
    for reg, value in assigned:
        clash = clash or bool(expr_regs(value) & written)
        written.add(reg)
    if clash:
        assigned = [(reg, register_value(low.let(value)).expr) for reg, value in assigned]
    for reg, value in assigned:
        low.emit(Let(reg, value))


def bind(low: Lowering, value: Value, target: Target) -> None:
    """The value is what `target` holds."""
    match target:
        case Reg():
            low.env[value] = register_value(target)
        case Buffer() | LateTarget():
            buffer = target if isinstance(target, Buffer) else target.buffer
            low.env[value] = stored(buffer, low.extents(value.tensor.shape))
        case ListTarget(buffer, length):
            assert buffer is not None
            low.ranges.setdefault(length, (0, None))
            low.env[value] = ListView(buffer, Index.of(length))


def _bind_all(low: Lowering, values: tuple[Value, ...], targets: list[Target]) -> None:
    for value, target in zip(values, targets, strict=True):
        bind(low, value, target)


# ---- if --------------------------------------------------------------------------------------


def _lower_if(low: Lowering, op: IfOp) -> None:
    condition = low.register(op.condition, "if")
    targets: list[Target] = []
    for value in op.results:
        match value.type:
            case ListType():
                targets.append(ListTarget(None, low.new_reg("length")))
            case TensorType() as kind if is_register(kind):
                targets.append(low.new_reg(value.hint or "s", kind.dtype))
            case _:
                targets.append(low.output(value))
    with low.uses.without(op.orelse):
        then, chosen = region(low, op.then, tuple(targets))
    orelse, chosen = region(low, op.orelse, chosen)
    low.emit_node(If(condition, then, orelse))
    _bind_all(low, op.results, list(chosen))


# ---- loops -----------------------------------------------------------------------------------


def _carry(
    low: Lowering, op: ForOp | WhileOp, params: tuple[Value, ...]
) -> tuple[list[Target], list[Target]]:
    """Sets up the carried values: (where they are read, where the body puts the next ones)."""
    currents: list[Target] = []
    nexts: list[Target] = []
    for number, (init, param) in enumerate(zip(op.inits, params, strict=True)):
        if isinstance(param.type, ListType):
            target = _carry_list(low, init, currents)
            currents.append(target)
            nexts.append(target)
        elif is_register(param.type):
            reg = low.new_reg(param.hint or "s", param.type.dtype)
            low.emit(Let(reg, cast(low.scalar(init), reg.dtype)))
            currents.append(reg)
            nexts.append(reg)
        else:
            current, following = _carry_tensor(low, op.body, number, init, param)
            currents.append(current)
            nexts.append(following)
    return currents, nexts


def _carry_tensor(
    low: Lowering, body: Block, number: int, init: Value, param: Value
) -> tuple[Buffer, Buffer | LateTarget]:
    kind = param.tensor
    current = low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))
    low.store(low.tensor(init), current, "init")
    offset = len(body.params) - len(body.yields)
    if body.yields[number] is body.params[number + offset]:
        return current, current
    if updated_in_place(body, number, offset):
        low.mutable[current] = body
        return current, current
    if current.kind != "local":
        return current, LateTarget(current)
    return current, low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))


def _carry_list(low: Lowering, init: Value, carried: list[Target]) -> ListTarget:
    """A list changes in its own buffer, unless another value still needs that."""
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


def _read_from_outside(low: Lowering, op: ForOp | WhileOp) -> set[Value]:
    """What the loop's blocks read that is defined before it."""
    return {value for block in op.blocks for value in block_reads(block) if value in low.env}


def _lower_for(low: Lowering, op: ForOp) -> None:
    start = _bound(low, op.start)
    stop = _bound(low, op.stop)
    currents, nexts = _carry(low, op, op.carried)
    index = low.new_reg(op.index.hint or "i")
    trips = op.trip_count()
    if trips is not None and isinstance(op.start, int):
        last = op.start + op.step * max(trips - 1, 0)
        low.ranges[index] = (min(op.start, last), max(op.start, last))
    elif isinstance(op.start, int) and op.start >= 0 and op.step > 0:
        low.ranges[index] = (op.start, None)
    with low.uses.held(_read_from_outside(low, op)):
        bind(low, op.index, index)
        _bind_all(low, op.carried, currents)
        body, _ = region(low, op.body, tuple(nexts))
    low.emit_node(For(index, start, stop, op.step, body, _rotations(currents, nexts)))
    _bind_all(low, op.results, currents)


def _bound(low: Lowering, bound: int | Value) -> Expr:
    if isinstance(bound, int):
        return Const(bound, DType.I64)
    return Position(low.index(bound))


def _lower_while(low: Lowering, op: WhileOp) -> None:
    currents, nexts = _carry(low, op, op.body.params)
    condition = low.new_reg("while", DType.BOOL)
    with low.uses.held(_read_from_outside(low, op)):
        _bind_all(low, op.condition.params, currents)
        head, _ = region(low, op.condition, (condition,))
        _bind_all(low, op.body.params, currents)
        body, _ = region(low, op.body, tuple(nexts))
    low.emit_node(While(head, condition, body, _rotations(currents, nexts)))
    _bind_all(low, op.results, currents)


# ---- calls -----------------------------------------------------------------------------------


def result_param(function: str, number: int, kind: TensorType) -> Buffer:
    """The param buffer through which a function hands back tensor result `number`."""
    return Buffer(f"{function}.out{number}", kind.dtype, kind.static_shape(), "param")


def argument_param(function: str, number: int, kind: TensorType) -> Buffer:
    return Buffer(f"{function}.in{number}", kind.dtype, kind.static_shape(), "param")


def argument_reg(function: str, number: int, kind: TensorType) -> Reg:
    return Reg(f"{function}.arg{number}", kind.dtype)


def result_reg(function: str, number: int, kind: TensorType) -> Reg:
    return Reg(f"{function}.ret{number}", kind.dtype)


def _lower_call(low: Lowering, op: CallOp) -> None:
    callee = low.program.functions[op.function]
    registers: list[tuple[Reg, Expr]] = []
    tensors: list[tuple[Buffer, Access]] = []
    results: list[tuple[Reg, Reg]] = []
    for number, (argument, param) in enumerate(zip(op.arguments, callee.params, strict=True)):
        kind = tensor_param_type(param.type, op)
        if is_register(kind):
            reg = argument_reg(op.function, number, kind)
            registers.append((reg, cast(low.scalar(argument), kind.dtype)))
        else:
            base = low.contiguous(low.tensor(argument), argument.hint)
            tensors.append((argument_param(op.function, number, kind), base))
    for number, value in enumerate(op.results):
        kind = tensor_param_type(value.type, op)
        if is_register(kind):
            mine = low.new_reg(value.hint or "s", kind.dtype)
            results.append((mine, result_reg(op.function, number, kind)))
            bind(low, value, mine)
        else:
            buffer = low.output(value)
            start = Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))
            tensors.append((result_param(op.function, number, kind), start))
            bind(low, value, buffer)
    low.emit_node(Call(op.function, tuple(registers), tuple(tensors), tuple(results)))


def tensor_param_type(kind: TensorType | ListType, op: Op | None = None) -> TensorType:
    """The type of a parameter or result of a function; CodegenError when it is a list."""
    if isinstance(kind, ListType):
        raise CodegenError(
            "a list is passed to or returned from a recursive function",
            location=op.location if op else None,
            remedy="pass and return tensors; build the list in the caller",
        )
    return kind
