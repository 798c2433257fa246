"""Lowering of calls.

Registers are passed by value, tensors by address. Lists travel in slots (`list_slots.py`): the
caller puts an argument into the slot of the parameter and passes its length. A list that it reads
again later stays where it is: the activation that is called begins above it.
"""

from __future__ import annotations

from stretto.device.expr import Access, Apply, Buffer, Expr, Index, Position, Reg
from stretto.device.tree import Call
from stretto.ir.core import Value
from stretto.ir.ops import CallOp
from stretto.ir.types import INDEX, DType, ListType, TensorType
from stretto.lowering.function import ListView, Lowering, base_register
from stretto.lowering.lazy import cast
from stretto.lowering.list_ops import copied, copy_items, list_values, new_list_buffer
from stretto.lowering.targets import ListTarget, bind, is_register


def result_param(function: str, number: int, kind: TensorType) -> Buffer:
    """The param buffer through which a function hands back tensor result `number`."""
    return Buffer(f"{function}.out{number}", kind.dtype, kind.static_shape(), "param")


def argument_param(function: str, number: int, kind: TensorType) -> Buffer:
    return Buffer(f"{function}.in{number}", kind.dtype, kind.static_shape(), "param")


def argument_reg(function: str, number: int, kind: TensorType) -> Reg:
    return Reg(f"{function}.arg{number}", kind.dtype)


def result_reg(function: str, number: int, kind: TensorType) -> Reg:
    return Reg(f"{function}.ret{number}", kind.dtype)


def argument_length(function: str, number: int) -> Reg:
    """The length of a list that is an argument."""
    return argument_reg(function, number, INDEX)


def result_length(function: str, number: int) -> Reg:
    """The length of a list that is a result."""
    return result_reg(function, number, INDEX)


def lower_call(low: Lowering, op: CallOp) -> None:
    for buffer in low.externals.stacks:
        if buffer not in low.slots.constant:
            low.protect(buffer)
    heights = _heights(low, op)
    registers, tensors = _arguments(low, op, heights)
    results: list[tuple[Reg, Reg]] = []
    lists: list[tuple[Value, ListTarget]] = []
    for number, value in enumerate(op.results):
        kind = value.type
        if isinstance(kind, ListType):
            mine = low.new_reg("length")
            results.append((mine, result_length(op.function, number)))
            lists.append((value, ListTarget(low.slots.result(op.function, number), mine)))
        elif is_register(kind):
            mine = low.new_reg(value.hint or "s", kind.dtype)
            results.append((mine, result_reg(op.function, number, kind)))
            bind(low, value, mine)
        else:
            buffer = low.output(value)
            start = Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))
            tensors.append((result_param(op.function, number, kind), start))
            bind(low, value, buffer)
    low.emit_node(Call(op.function, tuple(registers), tuple(tensors), tuple(results)))
    for value, target in lists:
        _bind_list(low, value, target, heights)


def _arguments(
    low: Lowering, op: CallOp, heights: dict[Buffer, Index]
) -> tuple[list[tuple[Reg, Expr]], list[tuple[Buffer, Access]]]:
    registers: list[tuple[Reg, Expr]] = []
    tensors: list[tuple[Buffer, Access]] = []
    for number, argument in enumerate(op.arguments):
        kind = argument.type
        if isinstance(kind, ListType):
            length = Position(low.list(argument).length)
            registers.append((argument_length(op.function, number), length))
        elif is_register(kind):
            reg = argument_reg(op.function, number, kind)
            registers.append((reg, cast(low.scalar(argument), kind.dtype)))
        else:
            base = low.contiguous(low.tensor(argument), argument.hint)
            tensors.append((argument_param(op.function, number, kind), base))
    _place_lists(low, op, heights)
    for buffer, height in heights.items():
        start = Position(low.base(buffer) + height)
        registers.append((base_register(op.function, buffer), start))
    return registers, tensors


# ---- lists -----------------------------------------------------------------------------------


def _list_arguments(low: Lowering, op: CallOp) -> list[tuple[Value, Buffer]]:
    """Each list argument and the slot that it is passed in."""
    return [
        (value, low.slots.param(op.function, number))
        for number, value in enumerate(op.arguments)
        if isinstance(value.type, ListType)
    ]


def _heights(low: Lowering, op: CallOp) -> dict[Buffer, Index]:
    """How many items the function that is called must leave as they are in each stack."""
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
    """Copies the arguments that are not in their slots to them, as if all at once."""
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
    """A list that was returned above others moves to memory that begins at the base."""
    slot = target.buffer
    assert slot is not None
    if slot in heights and low.uses.is_needed(value):
        view = ListView(slot, Index.of(target.length))
        low.ranges[target.length] = (0, None)
        target = ListTarget(new_list_buffer(low, value), target.length)
        assert target.buffer is not None
        copy_items(low, view, target.buffer, start=low.base(slot) + heights[slot])
    bind(low, value, target)
