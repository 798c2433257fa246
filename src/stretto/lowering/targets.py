"""Targets of the values that a block yields: buffers, registers and lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.device.expr import Buffer, Const, Expr, Index, Position, Reg, expr_regs, loads
from stretto.device.tree import Let
from stretto.errors import CodegenError
from stretto.ir.core import Block, Program, Value
from stretto.ir.types import DType, TensorListType, TensorType
from stretto.lowering.lazy import Lazy, cast, register_value, stored, whole_buffer
from stretto.lowering.lists.list_ops import copied, copy_items, new_list_buffer, others_need
from stretto.lowering.lower_function import ListView, Lowering
from stretto.lowering.row_results import NO_ROW, RowTarget, row_of


@dataclass(frozen=True, slots=True)
class ListTarget:
    """Target of a carried or merged list; `buffer` is None until the first arm has chosen one."""

    buffer: Buffer | None
    length: Reg


@dataclass(frozen=True, slots=True)
class LateTarget:
    """Memory that the block still reads: it is written after all yields are computed."""

    buffer: Buffer


Target = Buffer | Reg | ListTarget | LateTarget | RowTarget


def is_register(kind: TensorType | TensorListType) -> bool:
    """True for integers and flags without dims, which are held in registers."""
    return isinstance(kind, TensorType) and kind.is_scalar and not kind.dtype.is_float


def claim_destinations(low: Lowering, block: Block, targets: tuple[Target | None, ...]) -> None:
    """Record targets as destinations, so that the block computes its yields directly into them."""
    defined = {value for op in block.ops for value in op.results}
    for value, target in zip(block.yields, targets, strict=True):
        if isinstance(target, Buffer | RowTarget) and value in defined:
            buffer = target if isinstance(target, Buffer) else target.buffer
            low.destinations.setdefault(value, buffer)
        if isinstance(target, RowTarget) and low.uses.total.get(value) == 1:
            low.rows.setdefault(value, target)


def finish(
    low: Lowering, values: tuple[Value, ...], targets: tuple[Target, ...]
) -> tuple[Target, ...]:
    """Move the yields to their targets: tensors are copied if they are not there already.

    After that, lists are moved and registers assigned, because tensors and numbers may read both.
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
            case RowTarget():
                assigned.append((target.row, _placed_row(low, value, target)))
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


def _placed_row(low: Lowering, value: Value, target: RowTarget) -> Expr:
    """Return the row of the source that a value is; if it is not one, store it and return
    `NO_ROW`."""
    row, buffer = low.handed.get(value, (target.row, None))
    if buffer == target.buffer:
        return Position(Index.of(row))
    lazy = low.tensor(value)
    found = row_of(lazy, target.source)
    if found is not None:
        return found
    if whole_buffer(lazy) != target.buffer:
        low.store(lazy, target.buffer, value.hint or "copy")
    return Const(NO_ROW, DType.I64)


def _read_now(low: Lowering, value: Expr) -> Expr:
    if next(loads(value), None) is None:
        return value
    return register_value(low.let(value)).expr


def _move_lists(low: Lowering, lists: dict[int, tuple[Value, ListTarget]]) -> dict[int, ListTarget]:
    """Copy lists to their targets, as if simultaneously; choose a buffer if a target has none."""
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
    """Return the list's own buffer if nothing else needs it, else a new one."""
    buffer = low.list(value).buffer
    if buffer in taken or others_need(low, buffer, value):
        return new_list_buffer(low, value)
    return buffer


def assign(low: Lowering, assigned: list[tuple[Reg, Expr]]) -> None:
    """Assign registers simultaneously: on a conflict, values are read into temporaries first."""
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
    """Bind the value to the contents of `target`."""
    match target:
        case Reg():
            low.env[value] = register_value(target)
        case Buffer() | LateTarget():
            buffer = target if isinstance(target, Buffer) else target.buffer
            low.env[value] = stored(buffer, low.extents(value.tensor.shape))
        case RowTarget(buffer, row):
            low.env[value] = stored(buffer)
            low.handed[value] = row, buffer
        case ListTarget(buffer, length):
            assert buffer is not None
            low.ranges.setdefault(length, (0, None))
            low.env[value] = ListView(
                buffer, Index.of(length), low.extents(value.list.element.shape)
            )


def bind_all(low: Lowering, values: tuple[Value, ...], targets: Sequence[Target]) -> None:
    for value, target in zip(values, targets, strict=True):
        bind(low, value, target)


# ---- Inputs that a program changes in place, instead of returning their new values ------------
#
# A user's tensor that is changed in place is an input, and its new value a result, which is copied
# back after the run: a run that stops early has not written to the user's tensors. A caller that
# owns the memory, and renews it after a run that stopped, avoids the copies: the result then
# shares the memory of the input, and in-place changes by loops and statements happen there.


@dataclass(frozen=True, slots=True)
class InputUpdates:
    """Inputs that a program changes in place.

    pairs: a parameter of main, and the result that shares its memory. Callers must go on with
    the tensor that a call returns: if an address does not suit the machine (a GPU needs
    alignment), the result is in a copy.

    repeatable: running the program on what an unfinished run has left gives the same results as
    running it once, for example because each row of a pool is written once and only read after
    that. Then a machine may start again: if a list is full, if frames of a recursion need more
    memory, or if another process has the cores. A program that is not repeatable may have no
    growing lists and no functions, and waits for its cores without limit.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    repeatable: bool = False


NO_UPDATES = InputUpdates()


def check_updates(program: Program, updates: InputUpdates) -> None:
    """Raise CodegenError if a result cannot share the memory of a parameter."""
    params, results = program.main.params, program.main.body.yields
    for numbers in zip(*updates.pairs, strict=True):
        if len(set(numbers)) < len(numbers):
            raise CodegenError("a parameter or a result is named twice among the updates")
    for parameter, number in updates.pairs:
        if not (0 <= parameter < len(params) and 0 <= number < len(results)):
            raise CodegenError(f"there is no parameter {parameter} or no result {number}")
        if params[parameter].type != results[number].type:
            raise CodegenError(
                f"result {number}, {results[number].type}, cannot lie in the memory of parameter "
                f"{parameter}, {params[parameter].type}"
            )
