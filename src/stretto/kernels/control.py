"""Lowering of control ops and lists to nodes of the tree.

A carried tensor lives in a rotating pair of buffers, or in one buffer when the body only updates it in place
(a cache); a carried integer or flag is a register; a carried list is its buffer and a length register.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import CodegenError
from stretto.ir.core import Block, Op, Value
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
    TensorOp,
    WhileOp,
)
from stretto.ir.types import DType, ListType, Symbol, TensorType
from stretto.kernels.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    expr_regs,
)
from stretto.kernels.lazy import Lazy, cast, select, stored, variables, whole_buffer
from stretto.kernels.lists import capacity_of, returned_lists
from stretto.kernels.lower import Items, ListView, Lowering
from stretto.kernels.operator import Operator
from stretto.kernels.tree import Call, Check, For, If, Let, Node, Seq, While

UPDATES = frozenset(
    (
        "stretto.narrow_scatter",
        "aten.select_scatter.default",
        "aten.slice_scatter.default",
        "aten.index_put.default",
        "aten.scatter.src",
        "aten.scatter.value",
    )
)
"""Ops whose first operand may be changed in place when nobody needs it any more."""


@dataclass(frozen=True, slots=True)
class ListTarget:
    """Where a carried or merged list goes: `buffer` is None until the first arm has chosen one."""

    buffer: Buffer | None
    length: Reg


Target = Buffer | Reg | ListTarget


def is_register(kind: TensorType | ListType) -> bool:
    """Integers and flags without dims are held in registers."""
    return isinstance(kind, TensorType) and kind.is_scalar and not kind.dtype.is_float


def lower_control(low: Lowering, op: Op) -> None:
    match op:
        case IfOp():
            _lower_if(low, op)
        case ForOp():
            _lower_for(low, op)
        case WhileOp():
            _lower_while(low, op)
        case CallOp():
            _lower_call(low, op)
        case ListNewOp():
            _list_new(low, op)
        case ListPushOp():
            _list_push(low, op)
        case ListGetOp():
            _list_get(low, op)
        case ListSetOp():
            _list_set(low, op)
        case ListPopOp():
            _list_pop(low, op)
        case ListLengthOp():
            low.env[op.result] = Lazy(DType.I64, (), Position(low.list(op.list).length))
        case ListStackOp():
            _list_stack(low, op)
        case _:
            raise CodegenError(f"no lowering for {op.name}", location=op.location)


# ---- regions ---------------------------------------------------------------------------------


def region(low: Lowering, block: Block, targets: tuple[Target, ...]) -> tuple[Node[Items], tuple[Target, ...]]:
    """Lowers a block so that its yields end up in `targets`; list targets come back with their buffer."""
    saved = low.items, low.nodes, low.block
    known = dict(low.symbols), dict(low.positions)
    low.items, low.nodes = [], []
    defined = {value for op in block.ops for value in op.results}
    for value, target in zip(block.yields, targets, strict=True):
        if isinstance(target, Buffer) and value in defined and value not in low.destinations:
            low.destinations[value] = target
    low.ops(block)
    final = finish(low, block.yields, targets)
    low.flush()
    node: Node[Items] = Seq(tuple(low.nodes))
    low.items, low.nodes, low.block = saved
    low.symbols, low.positions = known
    return node, final


def finish(low: Lowering, values: tuple[Value, ...], targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Moves the yields to their targets: tensors are copied if they are not there, registers assigned."""
    assigned: list[tuple[Reg, Expr]] = []
    final: list[Target] = []
    for value, target in zip(values, targets, strict=True):
        match target:
            case Buffer():
                lazy = low.tensor(value)
                if whole_buffer(lazy) != target:
                    low.store(lazy, target, value.hint or "copy")
            case Reg():
                assigned.append((target, cast(low.scalar(value), target.dtype)))
            case ListTarget():
                view = low.list(value)
                buffer = view.buffer if target.buffer is None else target.buffer
                if buffer != view.buffer:
                    _copy_items(low, view, buffer)
                assigned.append((target.length, Position(view.length)))
                target = ListTarget(buffer, target.length)
        final.append(target)
    assign(low, assigned)
    return tuple(final)


def assign(low: Lowering, assigned: list[tuple[Reg, Expr]]) -> None:
    """Simultaneous assignment: values that read a register assigned earlier go through a temporary."""
    assigned = [(reg, value) for reg, value in assigned if value != Position(Index.of(reg))]
    written: set[Reg] = set()
    clash = False
    for reg, value in assigned:
        clash = clash or bool(expr_regs(value) & written)
        written.add(reg)
    if clash:
        assigned = [(reg, _reg_value(low.let(value))) for reg, value in assigned]
    for reg, value in assigned:
        low.emit(Let(reg, value))


def _reg_value(reg: Reg) -> Expr:
    return cast(Position(Index.of(reg)), reg.dtype)


def bind_register(low: Lowering, value: Value, reg: Reg) -> None:
    low.env[value] = Lazy(reg.dtype, (), _reg_value(reg))


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
    then, chosen = region(low, op.then, tuple(targets))
    orelse, chosen = region(low, op.orelse, chosen)
    low.emit_node(If(condition, then, orelse))
    for value, target in zip(op.results, chosen, strict=True):
        _bind(low, value, target)


def _bind(low: Lowering, value: Value, target: Target) -> None:
    match target:
        case Reg():
            bind_register(low, value, target)
        case Buffer():
            low.env[value] = stored(target)
        case ListTarget(buffer, length):
            assert buffer is not None
            low.ranges.setdefault(length, (0, None))
            low.env[value] = ListView(buffer, Index.of(length))


# ---- loops -----------------------------------------------------------------------------------


def _carry(low: Lowering, op: ForOp | WhileOp, params: tuple[Value, ...]) -> tuple[list[Target], list[Target]]:
    """Sets up the carried values: (where they are read, where the body puts the next ones)."""
    currents: list[Target] = []
    nexts: list[Target] = []
    for number, (init, param) in enumerate(zip(op.inits, params, strict=True)):
        if isinstance(param.type, ListType):
            target = _carry_list(low, init)
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


def _carry_tensor(low: Lowering, body: Block, number: int, init: Value, param: Value) -> tuple[Buffer, Buffer]:
    kind = param.tensor
    current = low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))
    low.store(low.tensor(init), current, "init")
    offset = len(body.params) - len(body.yields)
    if body.yields[number] is body.params[number + offset]:
        return current, current
    if updated_in_place(body, number, offset):
        low.mutable.add(current)
        return current, current
    return current, low.new_buffer(param.hint or "carried", kind.dtype, low.extents(kind.shape))


def _carry_list(low: Lowering, init: Value) -> ListTarget:
    view = low.list(init)
    length = low.new_reg("length")
    buffer = view.buffer
    if low.later_uses.get(init, 0) > 0:
        buffer = low.new_buffer("list", view.buffer.dtype, view.buffer.shape)
        _copy_items(low, view, buffer)
    low.emit(Let(length, Position(view.length)))
    low.ranges[length] = (0, None)
    return ListTarget(buffer, length)


def updated_in_place(body: Block, number: int, offset: int) -> bool:
    """True when the next value comes from the carried one by updates alone, each the last use of its base."""
    producers = {op.result: (place, op) for place, op in enumerate(body.ops) if isinstance(op, TensorOp) and len(op.results) == 1}
    last_use: dict[Value, int] = {}
    for place, op in enumerate(body.ops):
        inner = [value for block in op.blocks for value in _block_uses(block)]
        for value in (*op.operands, *inner):
            last_use[value] = place
    value = body.yields[number]
    if body.yields.count(value) > 1:
        return False
    while value is not body.params[number + offset]:
        place, op = producers.get(value, (-1, None))
        if op is None or op.target not in UPDATES:
            return False
        base = op.args[0]
        if not isinstance(base, Value) or last_use.get(base) != place or base in body.yields:
            return False
        if op.operands.count(base) > 1:
            return False
        value = base
    return True


def _block_uses(block: Block) -> list[Value]:
    found = list(block.yields)
    for op in block.walk():
        found.extend(op.operands)
        for inner in op.blocks:
            found.extend(inner.yields)
    return found


def _rotations(currents: list[Target], nexts: list[Target]) -> tuple[tuple[Buffer, Buffer], ...]:
    return tuple(
        (a, b) for a, b in zip(currents, nexts, strict=True) if isinstance(a, Buffer) and isinstance(b, Buffer) and a != b
    )


def _bind_all(low: Lowering, values: tuple[Value, ...], targets: list[Target]) -> None:
    for value, target in zip(values, targets, strict=True):
        _bind(low, value, target)


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
    bind_register(low, op.index, index)
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
            bind_register(low, value, mine)
        else:
            buffer = low.output(value)
            start = Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))
            tensors.append((result_param(op.function, number, kind), start))
            low.env[value] = stored(buffer)
    low.emit_node(Call(op.function, tuple(registers), tuple(tensors), tuple(results)))


def tensor_param_type(kind: TensorType | ListType, op: Op | None = None) -> TensorType:
    if isinstance(kind, ListType):
        raise CodegenError(
            "a list is passed to or returned from a recursive function",
            location=op.location if op else None,
            remedy="pass and return tensors; build the list in the caller",
        )
    return kind


# ---- lists -----------------------------------------------------------------------------------


def _list_new(low: Lowering, op: ListNewOp) -> None:
    element = op.result.list.element
    capacity = capacity_of(low.function, op)
    shape = low.extents(element.shape)
    if capacity is None or op.result in returned_lists(low.function, op):
        limit = Reg("limit") if capacity is None else capacity
        buffer = low.externals.add(low.fresh("list"), element.dtype, (limit, *shape), "list")
    else:
        buffer = low.new_buffer("list", element.dtype, (max(capacity, 1), *shape))
    view = ListView(buffer, Index())
    for item in op.items:
        view = _push(low, view, low.tensor(item))
    low.env[op.result] = view


def _owned(low: Lowering, value: Value) -> ListView:
    """The list for changing it: copied first when the old one is still needed."""
    view = low.list(value)
    if low.later_uses.get(value, 0) <= 0:
        return view
    shape = view.buffer.shape
    if view.buffer.kind == "list":
        buffer = low.externals.add(low.fresh("list"), view.buffer.dtype, shape, "list")
    else:
        buffer = low.new_buffer("list", view.buffer.dtype, shape)
    _copy_items(low, view, buffer)
    return ListView(buffer, view.length)


def _copy_items(low: Lowering, view: ListView, buffer: Buffer) -> None:
    reg = low.let(Position(view.length), "length")
    _check_room(low, buffer, Index.of(reg))
    dims = (reg, *view.buffer.shape[1:])
    index = variables(dims)
    low.emit(
        Operator("copy", dims, (), "", Load(Access(view.buffer, view.buffer.shape, index)), Access(buffer, buffer.shape, index), source=low.source)
    )


def _check_room(low: Lowering, buffer: Buffer, length: Index) -> None:
    """Stops the run when `length` items do not fit; lists with a static bound always fit."""
    if isinstance(buffer.shape[0], Reg):
        limit = Position(Index.of(Reg(f"limit.{buffer.slot}")))
        low.check(Apply("le", (Position(length), limit), DType.BOOL), "list_full", buffer.slot)


def _push(low: Lowering, view: ListView, item: Lazy) -> ListView:
    _check_room(low, view.buffer, view.length + 1)
    store_item(low, view.buffer, view.length, item)
    return ListView(view.buffer, view.length + 1)


def store_item(low: Lowering, buffer: Buffer, place: Index, item: Lazy) -> None:
    out = Access(buffer, buffer.shape, (place, *variables(item.shape)))
    low.emit(Operator("push", item.shape, (), "", cast(item.expr, buffer.dtype), out, source=low.source))


def _list_push(low: Lowering, op: ListPushOp) -> None:
    view = _owned(low, op.list)
    pushed = _push(low, view, low.tensor(op.item))
    low.env[op.result] = pushed


def _item_position(low: Lowering, view: ListView, index: Value) -> Index:
    if view.length.is_const:
        return low.position(index, view.length.const)
    length = low.let(Position(view.length), "length")
    low.ranges[length] = (0, None)
    return low.position(index, length)


def _list_get(low: Lowering, op: ListGetOp) -> None:
    view = low.list(op.list)
    lazy = select(stored(view.buffer), 0, _item_position(low, view, op.index))
    low.env[op.result] = lazy


def _list_set(low: Lowering, op: ListSetOp) -> None:
    view = _owned(low, op.list)
    place = _item_position(low, view, op.index)
    item = low.tensor(op.item)
    if not item.is_stored or item.expr.access.buffer == view.buffer:  # pyright: ignore[reportAttributeAccessIssue]
        item = low.store(item, low.new_buffer("item", item.dtype, item.shape), "item")
    low.protect(view.buffer)
    store_item(low, view.buffer, place, item)
    low.env[op.result] = view


def _list_pop(low: Lowering, op: ListPopOp) -> None:
    view = _owned(low, op.list)
    rest, item = op.results
    length = low.let(Position(view.length + -1), "length")
    low.emit(Check(Apply("ge", (Position(Index.of(length)), Const(0, DType.I64)), DType.BOOL), "index"))
    low.ranges[length] = (0, None)
    source = select(stored(view.buffer), 0, Index.of(length))
    low.env[item] = low.store(source, low.output(item), "pop")
    low.env[rest] = ListView(view.buffer, Index.of(length))


def _list_stack(low: Lowering, op: ListStackOp) -> None:
    view = low.list(op.list)
    lead = op.result.tensor.shape[0]
    if isinstance(lead, Symbol):
        reg = low.let(Position(view.length), "length")
        low.ranges[reg] = (0, None)
        low.symbols[lead] = reg
        extent: int | Reg = reg
    else:
        extent = lead
    shape = (extent, *view.buffer.shape[1:])
    access = Access(view.buffer, view.buffer.shape, variables(shape))
    low.env[op.result] = Lazy(view.buffer.dtype, shape, Load(access))
