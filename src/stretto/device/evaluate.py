"""Reference semantics of operators: they are executed with torch, exactly and without optimisation.

The emulator runs tasks with it, and tests of generated code use it as their oracle. Registers are
numbers by name; memory is read and written through an object that can check every access.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    Var,
    size_name,
    strides,
)
from stretto.device.functions import FUNCTIONS, wrapped
from stretto.device.operator import ATTEND, SCANS, SORTS, Combine, Kernel, Operator, Span, TileDim
from stretto.errors import RunError
from stretto.ir.sizes import Quantity, Symbol
from stretto.ir.types import DType

Number = bool | int | float
Registers = Mapping[str, Number]
Ranges = tuple[tuple[int, int], ...]

LARGEST_GRID = 1 << 22
"""Maximum number of points evaluated at once; a larger box is cut."""

SMALL_RANGE = 256
"""Variables of ranges up to this length are cached: most tasks are small and run often."""


class CheckFailed(RunError):
    """An index that the program checks (`checked` in an expression) is out of range.

    number: the check's number. index: the first index that is wrong.
    """

    def __init__(self, number: int, index: int) -> None:
        super().__init__(f"index {index} is out of range (check {number})")
        self.number = number
        self.index = index


class Memory(Protocol):
    """Flat buffers. Offsets are i64 tensors of any shape, in elements."""

    def elements(self, buffer: Buffer) -> int:
        """Return the number of elements; for a list its capacity times the size of an item."""
        ...

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor: ...

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None: ...


class TensorMemory:
    """Memory that consists of plain contiguous tensors, by buffer name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._flat = {name: tensor.view(-1) for name, tensor in tensors.items()}

    def elements(self, buffer: Buffer) -> int:
        return self._flat[buffer.name].numel()

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        return self._flat[buffer.name][offsets]

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self._flat[buffer.name][offsets] = values


def evaluate(expr: Expr, registers: Registers, memory: Memory) -> Number:
    """Return the value of an expression without iteration variables as a Python number."""
    scope = Scope((), (), registers, memory)
    if isinstance(expr, Position) and isinstance(index := _index(expr.index, scope, None), int):
        return index
    return evaluate_tensor(expr, scope).item()


def resolve(extent: Extent, registers: Registers) -> int:
    """Return the size of a dim."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, Reg):
        return int(registers[extent.name])
    return extent.evaluate(lambda quantity: number_of(quantity, registers))


def number_of(quantity: Quantity, registers: Registers) -> int:
    """Return the value of a register or symbol. Raise ValueError for other quantities."""
    match quantity:
        case Reg(name):
            return int(registers[name])
        case Symbol(name):
            return int(registers[size_name(name)])
        case _:
            raise ValueError(f"{quantity!r} has no value outside of an operator")


def task_count(kernel: Kernel, registers: Registers) -> int:
    """Return the number of tasks, also of a dynamic grid."""
    return prod((_tiles(dim, registers) for dim in kernel.grid), start=1)


def _tiles(dim: TileDim, registers: Registers) -> int:
    return -(-resolve(dim.extent, registers) // dim.tile) if dim.parts is None else dim.parts


def tile_ranges(kernel: Kernel, task: int, registers: Registers) -> Ranges:
    """Return (first, last + 1) of each grid dim for task number `task`, also of a dynamic grid."""
    ranges: list[tuple[int, int]] = []
    for dim in reversed(kernel.grid):
        task, position = divmod(task, _tiles(dim, registers))
        extent = resolve(dim.extent, registers)
        first, last = (_begin(dim, n, extent) for n in (position, position + 1))
        ranges.append((first, last))
    return tuple(reversed(ranges))


def _begin(dim: TileDim, position: int, extent: int) -> int:
    """Return where tile `position`, or part `position` of a dim that is cut into parts, begins."""
    if dim.parts is not None:
        position = -(-position * -(-extent // dim.tile) // dim.parts)
    return min(position * dim.tile, extent)


def span_range(span: Span, tile: Ranges, registers: Registers) -> tuple[int, int]:
    """Return (first, last + 1) of a stage's parallel dim for a task with these tile ranges."""
    if span.grid is None:
        return span.offset, span.offset + resolve(span.extent, registers)
    first, last = tile[span.grid]
    return span.offset + first, span.offset + last


def run_task(kernel: Kernel, task: int, registers: Registers, memory: Memory) -> None:
    """Run all stages of one task, in order. The kernel must not be a library call."""
    tile = tile_ranges(kernel, task, registers)
    for stage in kernel.stages:
        box = tuple(span_range(span, tile, registers) for span in stage.box)
        run_operator(stage.operator, box, registers, memory)


def run_operator(operator: Operator, box: Ranges, registers: Registers, memory: Memory) -> None:
    """Compute `operator` at the points of its parallel dims that are in `box`."""
    points = prod((last - first for first, last in box), start=1)
    depth = prod((resolve(extent, registers) for extent in operator.reduce), start=1)
    widest = max(range(len(box)), key=lambda dim: box[dim][1] - box[dim][0], default=0)
    if points * depth > LARGEST_GRID and points > 1 and not _stores_dynamically(operator):
        first, last = box[widest]
        middle = (first + last) // 2
        for part in ((first, middle), (middle, last)):
            run_operator(operator, (*box[:widest], part, *box[widest + 1 :]), registers, memory)
    elif points > 0:
        _run_box(operator, box, registers, memory)


@dataclass(frozen=True, slots=True)
class Scope:
    """The environment of an evaluation: iteration variables (tensors that broadcast against each
    other), the ranges they run over, registers and memory."""

    variables: tuple[Tensor, ...]
    ranges: Ranges
    registers: Registers
    memory: Memory


def _stores_dynamically(operator: Operator) -> bool:
    return any(
        isinstance(a, ComputedPosition) for index in operator.out.index for a in index.atoms()
    )


def _run_box(operator: Operator, box: Ranges, registers: Registers, memory: Memory) -> None:
    depths = tuple(resolve(extent, registers) for extent in operator.reduce)
    ranges = (*box, *((0, depth) for depth in depths))
    variables = tuple(
        variable(first, last, dim, len(ranges)) for dim, (first, last) in enumerate(ranges)
    )
    scope = Scope(variables, ranges, registers, memory)
    outer = tuple(last - first for first, last in box)
    grid = (*outer, *depths)
    attends = operator.combine is Combine.ATTENTION
    value = (_attended if attends else evaluate_tensor)(operator.value, scope)
    if operator.combine in SCANS:
        shape, stores = grid, scope
        scan = torch.cumsum if operator.combine == "cumsum" else torch.cumprod
        value = scan(value.expand(grid), -1)
    elif operator.combine in SORTS:
        shape, stores = (*outer, 1, depths[1]), scope
        value = value.expand(*outer, depths[0], 1).squeeze(-1)
        descending = operator.combine == "argsort_descending"
        order = value.argsort(dim=-1, descending=descending, stable=True)
        value = order[..., : depths[1]].unsqueeze(-2)
    else:
        shape, value = outer, value.expand(outer if attends else grid)
        # The stores have no reduction variables, so the parallel ones need fewer dims.
        parallel = (
            variables
            if not depths
            else (variable(first, last, dim, len(box)) for dim, (first, last) in enumerate(box))
        )
        stores = Scope(tuple(parallel), box, registers, memory)
        if operator.combine and not attends:
            value = _reduce(operator.combine, value.reshape(*outer, prod(depths, start=1)))
    _store(operator, value, shape, stores)


def _attended(value: Expr, scope: Scope) -> Tensor:
    """Return the average of the values of an attention, weighted by the softmax of the scores."""
    assert isinstance(value, Apply) and value.function == ATTEND
    product, scale, bias, values = (evaluate_tensor(part, scope) for part in value.args)
    outer = (1,) * (len(scope.ranges) - 2)
    keys, depth = (last for _, last in scope.ranges[-2:])

    def per_key(part: Tensor) -> Tensor:
        return part.broadcast_to(torch.broadcast_shapes(part.shape, (*outer, keys, 1)))[..., 0]

    products = product.broadcast_to(torch.broadcast_shapes(product.shape, (*outer, keys, depth)))
    scores = products.sum(-1) * scale + per_key(bias)
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return (scores.softmax(-1).masked_fill(nothing, 0) * per_key(values)).sum(-1)


def variable(first: int, last: int, dim: int, dims: int) -> Tensor:
    """Return the numbers first .. last - 1 along dim `dim` of a tensor with `dims` dims."""
    small = last - first <= SMALL_RANGE
    return (_known_range if small else _range)(first, last, dim, dims)


def _range(first: int, last: int, dim: int, dims: int) -> Tensor:
    return torch.arange(first, last).view([-1 if d == dim else 1 for d in range(dims)])


_known_range = lru_cache(4096)(_range)


def _reduce(combine: str, value: Tensor) -> Tensor:
    """Reduce the last dim."""
    if value.shape[-1] == 0 and combine in ("max", "min"):
        return value.new_full(value.shape[:-1], _no_extreme(value.dtype, combine))
    match combine:
        case "sum":
            return value.sum(-1)
        case "prod":
            return value.prod(-1)
        case "max":
            return value.amax(-1)
        case "min":
            return value.amin(-1)
        case "any":
            return value.any(-1)
        case "all":
            return value.all(-1)
        case "argmax":
            return _first(value, value.amax(-1, keepdim=True))
        case "argmin":
            return _first(value, value.amin(-1, keepdim=True))
        case _:
            raise ValueError(f"unknown combine {combine!r}")


def _no_extreme(dtype: torch.dtype, combine: str) -> float | int | bool:
    """Return the maximum or minimum of no elements: the initial value of a reduction."""
    if dtype is torch.bool:
        return combine == "min"
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    low, high = (-math.inf, math.inf) if dtype.is_floating_point else (limits.min, limits.max)
    return low if combine == "max" else high


def _first(value: Tensor, extreme: Tensor) -> Tensor:
    """Return the first position in the last dim that equals `extreme`; NaN equals NaN (amax and
    amin return it)."""
    found = (value == extreme) | (value.isnan() & extreme.isnan())
    positions = torch.arange(value.shape[-1]).expand(value.shape)
    return torch.where(found, positions, value.shape[-1]).amin(-1)


def _store(operator: Operator, value: Tensor, shape: tuple[int, ...], scope: Scope) -> None:
    buffer, memory = operator.out.buffer, scope.memory
    offsets = _offsets(operator.out, scope).expand(shape).reshape(-1)
    value = value.reshape(-1)
    if _stores_dynamically(operator):
        offsets, value = _in_order(operator, offsets, value, memory)
    elif operator.accumulate:
        value = _computed(memory.read(buffer, offsets)) + value
    memory.write(buffer, offsets, value.to(buffer.dtype.torch))


def _in_order(
    operator: Operator, offsets: Tensor, value: Tensor, memory: Memory
) -> tuple[Tensor, Tensor]:
    """Return distinct offsets and their values: of several stores to one place the last wins, or
    all are added."""
    places, which = offsets.unique(return_inverse=True)
    current = torch.zeros(len(places), dtype=value.dtype)
    if operator.accumulate:
        current = _computed(memory.read(operator.out.buffer, places)).clone()
    value = value.to(current.dtype)
    for position, element in zip(which.tolist(), value, strict=True):
        current[position] = current[position] + element if operator.accumulate else element
    return places, current


def evaluate_tensor(expr: Expr, scope: Scope, mask: Tensor | None = None) -> Tensor:
    """Return the value at every point of the scope; only points in `mask` need to be meaningful."""
    match expr:
        case Const(value, dtype):
            return torch.tensor(value, dtype=computed_dtype(dtype))
        case Position(index):
            return torch.as_tensor(_index(index, scope, mask), dtype=torch.int64)
        case Load(access):
            return _load(access, scope, mask)
        case Apply("where", (condition, then, orelse), _):
            chosen = evaluate_tensor(condition, scope, mask)
            inside = chosen if mask is None else chosen & mask
            outside = ~chosen if mask is None else ~chosen & mask
            if not outside.any():
                return evaluate_tensor(then, scope, mask)
            if not inside.any():
                return evaluate_tensor(orelse, scope, mask)
            return torch.where(
                chosen,
                evaluate_tensor(then, scope, inside),
                evaluate_tensor(orelse, scope, outside),
            )
        case Apply("checked", (index, size, Const(number)), _):
            position = evaluate_tensor(index, scope, mask)
            wrong = (position < 0) | (position >= evaluate_tensor(size, scope, mask))
            wrong = wrong if mask is None else wrong & mask
            if bool(wrong.any()):
                first = position.expand(wrong.shape)[wrong][0]
                raise CheckFailed(int(number), int(first.item()))
            return position
        case Apply("cast", (argument,), dtype):
            return _computed(evaluate_tensor(argument, scope, mask).to(dtype.torch))
        case Apply(function, args, dtype):
            meaning = FUNCTIONS[function].evaluate
            assert meaning is not None
            result = meaning(*(evaluate_tensor(arg, scope, mask) for arg in args))
            return result.to(computed_dtype(dtype))


def computed_dtype(dtype: DType) -> torch.dtype:
    """Return the dtype in which values of `dtype` are computed."""
    return torch.float32 if dtype in (DType.F16, DType.BF16) else dtype.torch


def _computed(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _index(index: Index, scope: Scope, mask: Tensor | None) -> Tensor | int:
    """Return the position, wrapped around at 64 bits."""

    def lookup(quantity: Quantity) -> Tensor | int:
        match quantity:
            case Var(number):
                return scope.variables[number]
            case ComputedPosition(expr):
                return evaluate_tensor(expr, scope, mask).to(torch.int64)
            case _:
                return number_of(quantity, scope.registers)

    return index.evaluate(lookup, _larger, _wrapped)


def _wrapped(number: Tensor | int) -> Tensor | int:
    return number if isinstance(number, Tensor) else wrapped(number, DType.I64)


def _larger(a: Tensor | int, b: Tensor | int) -> Tensor | int:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def _offsets(access: Access, scope: Scope, mask: Tensor | None = None) -> Tensor:
    """Return positions in the flat buffer, valid where `mask` is True. Raise RunError if one is
    out of range there."""
    constant = 0
    varying: Tensor | int = 0
    for dim, (index, step) in enumerate(zip(access.index, strides(access.shape), strict=True)):
        stride = resolve(step, scope.registers)
        position = _index(index, scope, mask)
        first, last = _bounds(index, scope)
        limit = _limit(access, dim, stride, scope)
        if first < 0 or last >= limit:
            _check_positions(access, dim, torch.as_tensor(position), limit, mask)
        if isinstance(position, int):
            constant += position * stride
        else:
            varying = varying + (position if stride == 1 else position * stride)
    constant = wrapped(constant, DType.I64)  # where `mask` does not hold, it may be any number
    if isinstance(varying, int):
        return torch.tensor(constant)
    return varying + constant if constant else varying


def _limit(access: Access, dim: int, stride: int, scope: Scope) -> int:
    extent = access.shape[dim]
    if not isinstance(extent, Reg):
        return resolve(extent, scope.registers)
    return scope.memory.elements(access.buffer) // max(stride, 1)


def _bounds(index: Index, scope: Scope) -> tuple[float, float]:
    """Return a lower and an upper bound of the index; infinite if computed values occur in it."""
    first = last = index.const
    for atom, coefficient in index.terms:
        match atom:
            case Var(number):
                low, end = scope.ranges[number]
                high = end - 1
            case Reg() | Symbol():
                low = high = number_of(atom, scope.registers)
            case _:
                return -math.inf, math.inf
        if coefficient < 0:
            low, high = high, low
        first, last = first + low * coefficient, last + high * coefficient
    return first, last


def _check_positions(
    access: Access, dim: int, position: Tensor, limit: int, mask: Tensor | None
) -> None:
    wrong = (position < 0) | (position >= limit)
    if mask is not None:
        wrong = wrong & mask
    if bool(wrong.any()):
        bad = position.expand(wrong.shape)[wrong][0].item()
        raise RunError(f"index {bad} of dim {dim} is out of range in {access}")


def _load(access: Access, scope: Scope, mask: Tensor | None) -> Tensor:
    offsets = _offsets(access, scope, mask)
    if mask is None:
        return _computed(scope.memory.read(access.buffer, offsets))
    offsets, inside = torch.broadcast_tensors(offsets, mask)
    value = torch.zeros(inside.shape, dtype=computed_dtype(access.buffer.dtype))
    value[inside] = _computed(scope.memory.read(access.buffer, offsets[inside]))
    return value
