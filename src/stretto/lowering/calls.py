"""Lowering of calls.

Registers are passed by value, tensors by address. Lists are passed in slots (`lists/slots.py`):
the caller puts an argument into the slot of the parameter and passes its length. A list that the
caller reads again later stays in place: the callee's activation begins above it.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Expr,
    Extent,
    Index,
    Position,
    Reg,
    size_register,
)
from stretto.device.tree import Call
from stretto.errors import NotLowered
from stretto.ir.core import Function, Value
from stretto.ir.ops import CallOp
from stretto.ir.size_bounds import substitute_symbols
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import Renaming, match_types, symbols_of_types
from stretto.ir.types import INDEX, DType, TensorListType, TensorType, Type
from stretto.lowering.lazy import Lazy, cast, contiguous_base, stored, whole_buffer
from stretto.lowering.lists.list_ops import copied, copy_items, list_values, new_list_buffer
from stretto.lowering.lower_function import ListView, Lowering, base_register
from stretto.lowering.row_results import NO_ROW, row_or_memory
from stretto.lowering.targets import ListTarget, bind, is_register

Passed = Buffer | Reg | ListTarget

_NAMES = {"param": ("in", "arg"), "result": ("out", "ret")}
"""Parts of the names of the buffer and the register of a parameter and of a result."""


def passed(low: Lowering, function: str, role: str, number: int, kind: Type) -> Passed:
    """Return how parameter or result `number` of a function is passed: a tensor by address, a
    number in a register, a list in its slot with its length in a register."""
    memory, register = (f"{function}.{name}{number}" for name in _NAMES[role])
    if isinstance(kind, TensorListType):
        return ListTarget(low.slots.buffers[function, role, number], Reg(register, INDEX.dtype))
    if is_register(kind):
        return Reg(register, kind.dtype)
    callee = low.program.functions[function]
    own = (callee.params if role == "param" else callee.body.yields)[number].tensor
    return Buffer(memory, own.dtype, _dims(callee, own), "param")


def row_register(function: str, number: int) -> Reg:
    """Return the register in which a function returns the row of a parameter that its result is."""
    return Reg(f"{function}.row{number}", INDEX.dtype)


def size_parameters(function: Function) -> dict[Symbol, Symbol]:
    """Return the symbols of a function's parameters, renamed to be unique in the program."""
    found = sorted(symbols_of_types(value.type for value in function.params), key=str)
    return {symbol: replace(symbol, name=f"{function.name}.{symbol}") for symbol in found}


def _dims(function: Function, kind: TensorType) -> tuple[Extent, ...]:
    known = {symbol: Size.of(own) for symbol, own in size_parameters(function).items()}
    if not symbols_of_types((kind,)) <= known.keys():
        raise NotLowered(
            f"`{function.name}` returns a tensor whose size is known only in the run: {kind}",
            remedy="return a list of its rows",
        )
    return tuple(
        dim if isinstance(dim, int) else substitute_symbols(dim, known).dim for dim in kind.shape
    )


def _size_arguments(low: Lowering, op: CallOp) -> list[tuple[Reg, Expr]]:
    """Return the values that the callee's symbols have at the call."""
    function = low.program.functions[op.function]
    known: Renaming = {}
    params = tuple(value.type for value in function.params)
    match_types(params, tuple(value.type for value in op.arguments), known)
    found: list[tuple[Reg, Expr]] = []
    for symbol, own in size_parameters(function).items():
        if Size.of(symbol) not in known:
            raise NotLowered(
                f"the size {symbol} of `{op.function}` is not a dim of an argument",
                location=op.location,
            )
        extent = low.extent(known[Size.of(symbol)])
        found.append((size_register(own), Position(Index.of(extent))))
    return found


def lower_call(low: Lowering, op: CallOp) -> None:
    """Lower a call: pass arguments, emit the node, bind results.

    Lazy values that read the memory of lists which the callee may change are stored first.
    """
    for buffer in low.externals.stacks:
        if buffer not in low.slots.constant:
            low.protect(buffer)
    heights = _heights(low, op)
    registers, tensors, sources = _arguments(low, op, heights)
    results: list[tuple[Reg, Reg]] = []
    rows: list[tuple[Value, Reg, Lazy, Buffer]] = []
    lists: list[tuple[Value, ListTarget]] = []
    for number, value in enumerate(op.results):
        match passed(low, op.function, "result", number, value.type):
            case ListTarget(slot, theirs):
                mine = low.new_reg("length")
                results.append((mine, theirs))
                lists.append((value, ListTarget(slot, mine)))
            case Reg() as theirs:
                mine = low.new_reg(value.hint or "s", theirs.dtype)
                results.append((mine, theirs))
                bind(low, value, mine)
            case Buffer() as param if (op.function, number) in low.row_sources:
                source = sources[low.row_sources[op.function, number]]
                with low.extra():
                    mine = low.new_reg("row")
                results.append((mine, row_register(op.function, number)))
                buffer = _row_memory(low, value, source)
                tensors.append((param, _start(buffer)))
                rows.append((value, mine, source, buffer))
            case Buffer() as param:
                buffer = low.output(value)
                tensors.append((param, _start(buffer)))
                bind(low, value, buffer)
    low.emit_node(Call(op.function, tuple(registers), tuple(tensors), tuple(results)))
    for value, mine, source, buffer in rows:
        _bind_row(low, value, mine, source, buffer)
    for value, target in lists:
        _bind_list(low, value, target, heights)


def _start(buffer: Buffer) -> Access:
    return Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))


def _arguments(
    low: Lowering, op: CallOp, heights: dict[Buffer, Index]
) -> tuple[list[tuple[Reg, Expr]], list[tuple[Buffer, Access]], dict[int, Lazy]]:
    """Return the registers and tensors to pass, and by number the arguments that results may be
    rows of."""
    registers = _size_arguments(low, op)
    tensors: list[tuple[Buffer, Access]] = []
    wanted = {param for (name, _), param in low.row_sources.items() if name == op.function}
    sources: dict[int, Lazy] = {}
    for number, argument in enumerate(op.arguments):
        match passed(low, op.function, "param", number, argument.type):
            case ListTarget(_, length):
                registers.append((length, Position(low.list(argument).length)))
            case Reg() as reg:
                registers.append((reg, cast(low.scalar(argument), reg.dtype)))
            case Buffer() as param:
                lazy = low.tensor(argument)
                if number in wanted:
                    lazy = sources[number] = _stays(low, lazy, argument.hint)
                tensors.append((param, low.contiguous(lazy, argument.hint)))
    _place_lists(low, op, heights)
    for buffer, height in heights.items():
        start = Position(low.base(buffer) + height)
        registers.append((base_register(op.function, buffer), start))
    return registers, tensors, sources


# ---- rows ------------------------------------------------------------------------------------


def _stays(low: Lowering, lazy: Lazy, hint: str) -> Lazy:
    """Return the tensor in memory that is unchanged after the call; a copy if it is part of a
    list."""
    base = contiguous_base(lazy)
    if base is not None and base.offset.is_affine and base.buffer.kind not in ("list", "items"):
        return lazy
    buffer = low.new_buffer(hint, lazy.dtype, lazy.shape)
    return low.store(lazy, buffer, hint)


def _row_memory(low: Lowering, value: Value, source: Lazy) -> Buffer:
    """Return memory for a result that may be a row instead, and so may not be wholly written.

    If the caller returns the result as its own, and both are rows of the same tensor, this is
    the memory of the caller's result.
    """
    target = low.rows.get(value)
    if target is not None and whole_buffer(source) == target.source:
        return target.buffer
    with low.extra(value in low.destinations):
        return low.new_buffer(value.hint, value.tensor.dtype, source.shape[1:], "items")


def _bind_row(low: Lowering, value: Value, row: Reg, source: Lazy, buffer: Buffer) -> None:
    low.ranges[row] = (NO_ROW, None)
    if buffer.kind == "param":
        low.env[value] = stored(buffer)
        low.handed[value] = row, buffer
    else:
        low.settle(value, row_or_memory(row, source, buffer))


# ---- lists -----------------------------------------------------------------------------------


def _list_arguments(low: Lowering, op: CallOp) -> list[tuple[Value, Buffer]]:
    """Return each list argument with the slot that it is passed in."""
    return [
        (value, low.slots.buffers[op.function, "param", number])
        for number, value in enumerate(op.arguments)
        if isinstance(value.type, TensorListType)
    ]


def _heights(low: Lowering, op: CallOp) -> dict[Buffer, Index]:
    """Return the number of items in each stack that the callee must leave unchanged."""
    moved = {slot for value, slot in _list_arguments(low, op) if low.list(value).buffer != slot}
    found: dict[Buffer, Index] = {}
    for buffer in low.externals.stacks:
        if buffer in low.slots.constant and buffer not in moved:
            continue
        lengths = {low.list(value).length: None for value in list_values(low, buffer)}
        height = _longest(low, list(lengths))
        if height != Index():
            found[buffer] = height
    return found


def _longest(low: Lowering, lengths: list[Index]) -> Index:
    longest = Index()
    for length in lengths:
        if longest.is_const and length.is_const:
            longest = Index(const=max(longest.const, length.const))
        elif longest == Index():
            longest = length
        else:
            one, other = Position(longest), Position(length)
            larger = Apply("where", (Apply("ge", (one, other), DType.BOOL), one, other), DType.I64)
            reg = low.let(larger, "length")
            low.ranges[reg] = (0, None)
            longest = Index.of(reg)
    return longest


def _place_lists(low: Lowering, op: CallOp, heights: dict[Buffer, Index]) -> None:
    """Copy the arguments that are not in their slots to them, as if simultaneously."""
    moves = [
        (value, low.list(value), slot)
        for value, slot in _list_arguments(low, op)
        if low.list(value).buffer != slot or slot in heights
    ]
    written = {slot for _, _, slot in moves}
    sources = [
        copied(low, value, view) if view.buffer in written else view for value, view, _ in moves
    ]
    for view, (_, _, slot) in zip(sources, moves, strict=True):
        copy_items(low, view, slot, to=low.base(slot) + heights.get(slot, Index()))


def _bind_list(
    low: Lowering, value: Value, target: ListTarget, heights: dict[Buffer, Index]
) -> None:
    """Bind a returned list. One that begins above others is moved to memory that begins at the
    base."""
    slot = target.buffer
    assert slot is not None
    if slot in heights and low.uses.is_needed(value):
        view = ListView(slot, Index.of(target.length), low.extents(value.list.element.shape))
        low.ranges[target.length] = (0, None)
        target = ListTarget(new_list_buffer(low, value), target.length)
        assert target.buffer is not None
        copy_items(low, view, target.buffer, start=low.base(slot) + heights[slot])
    bind(low, value, target)
