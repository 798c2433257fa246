"""The box of a task as lanes of a block: the iteration variables that lanes represent.

Dims of a box are laid out along an axis of the block, the last one fastest. Neighbouring dims that
every access walks as one are joined first, so that most pointwise work is one long dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from operator import mul

from stretto.device.expr import Apply, Expr, Extent, Index, Load, Position, Reg
from stretto.device.operator import Operator, Span, Stage, TileDim
from stretto.ir.sizes import Product, Var
from stretto.ir.types import DType
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.scalar import TASK, cast_term
from stretto.machines.cuda.printer.stage_frame import LanePlaces, ResultFrame
from stretto.machines.cuda.printer.triton_terms import Coordinate, LanePrinter, size_term
from stretto.machines.expression_printer import HALVES
from stretto.machines.statements import CountedLoop, Naming, StatementBuilder
from stretto.machines.terms import Term, call, every, infix, literal, total, variable


@dataclass(frozen=True, slots=True)
class GridBound:
    """The tile of a grid dim: it begins at `first` and has `count` positions, or `tile` if that is
    None."""

    first: Term | None
    tile: int | Term
    count: Term | None
    extent: Extent


@dataclass(frozen=True, slots=True)
class BoxDim:
    """A dim of the box: `vars` run as one, the last fastest, from `first` on.

    size: static, or known at run time. count: the number of valid positions, if the last tile may
    have fewer than `size`. low, limit: the smallest value of the variable, and the largest + 1 if
    known.
    """

    vars: tuple[int, ...]
    first: Term | None
    size: int | Term
    count: Term | None = None
    low: int = 0
    limit: int | None = None
    grid: int | None = None

    @property
    def number(self) -> int:
        return self.vars[-1]


@dataclass(slots=True)
class TritonNestPrinter(ABC):
    """Prints one stage into `out`; `grid` has the bounds of the task's grid dims.

    `dims` and `depths` are those of the box and of the reduction that have more than one value,
    joined where possible; in `operator` the variables of joined dims are replaced.
    epilogue_operators: pointwise operators that are printed with it, over the same box. warps: of a
    unit.
    """

    out: StatementBuilder
    names: Naming
    stage: Stage
    grid: tuple[GridBound, ...]
    counter: list[int]
    frame: ResultFrame | None = None
    epilogue_operators: tuple[Operator, ...] = ()
    warps: int = 4
    operator: Operator = field(init=False)
    dims: list[BoxDim] = field(init=False)
    depths: list[BoxDim] = field(init=False)
    scalars: LanePrinter = field(init=False)

    def __post_init__(self) -> None:
        self.operator = self.stage.operator
        self.scalars = LanePrinter(self.names, self.out, counter=self.counter)
        self.dims = []
        self.depths = []
        spans = [self._span(n, span) for n, span in enumerate(self.stage.box)]
        first = len(spans)
        spans += [self._span(first + n, Span(e)) for n, e in enumerate(self.operator.reduce)]
        for dim in spans:
            if dim.size == 1 and not dim.count:
                fixed = Coordinate(dim.first, None, _interval(dim))
                self.scalars.variables[dim.number] = fixed
            else:
                (self.dims if dim.number < first else self.depths).append(dim)

    def _span(self, number: int, span: Span) -> BoxDim:
        offset = span.offset
        if span.grid is None:
            size = self.size(span.extent)
            limit = offset + size if isinstance(size, int) else None
            first = literal(offset) if offset else None
            return BoxDim((number,), first, size, None, offset, limit)
        bound = self.grid[span.grid]
        first = total(bound.first, literal(offset) if offset else None)
        limit = offset + bound.extent if isinstance(bound.extent, int) else None
        return BoxDim((number,), first, bound.tile, bound.count, offset, limit, span.grid)

    def size(self, extent: Extent) -> int | Term:
        return extent if isinstance(extent, int) else extent_term(extent, self.names)

    @property
    def is_empty(self) -> bool:
        return any(dim.size == 0 for dim in self.dims)

    @property
    def result_dtype(self) -> DType:
        """Dtype in which the results are computed."""
        return self.operator.value.dtype

    @abstractmethod
    def print(self) -> None:
        """Print the stage."""

    # ---- results in registers ----------------------------------------------------------------
    def lane_dims(self) -> list[BoxDim]:
        """Return the dims along axis 0, in order."""
        return self.by_stride(self.dims, self.operator.out.offset)

    @property
    def places(self) -> LanePlaces:
        return LanePlaces(tuple(dim.number for dim in self.lane_dims()), self.stage.box)

    def loads_in_registers(self) -> dict[Load, Term]:
        """Return the loads whose elements the frame has, with names, if this stage fits it."""
        frame = self.frame
        if frame is None or not self.fits(frame):
            return {}
        places = self.places
        found = {load: places.known(frame, load) for load in self.operator.reads()}
        return {
            load: value
            for load, value in found.items()
            if value is not None and (self.fills_lanes or not frame.warps or value.axes & 2 == 0)
        }

    def fits(self, frame: ResultFrame) -> bool:
        """Return True if the lanes of the frame's blocks represent the same positions here."""
        return False

    def reads_result(self) -> bool:
        """Return True if the stage reads the buffer that it writes."""
        operator = self.operator
        read = {load.access.buffer for load in operator.reads()}
        return operator.accumulate or operator.out.buffer in read

    @property
    def fills_lanes(self) -> bool:
        """True if, in a frame whose rows are divided among warps, all lanes of a warp compute the
        same."""
        return False

    def record_result(self, value: Term, lanes: int, rank: int, warps: int = 0) -> None:
        """Record the name of the result in its frame, for later stages."""
        signature = tuple((dim.grid, dim.size) for dim in self.lane_dims())
        frame, made = self.frame, ResultFrame(signature, lanes, rank, warps)
        if frame is None or not frame.is_like(made):
            frame = self.frame = made
        out = self.operator.out
        if not out.offset.is_affine or self.operator.accumulate:
            return
        dtype = out.buffer.dtype
        if dtype in HALVES or dtype is not self.result_dtype:
            value = self.scalars.name(cast_term(value, self.result_dtype, dtype))
        frame.values[out.buffer, self.places.of(out.offset)] = value
        frame.writers[out.buffer] = self.operator

    # ---- joining -----------------------------------------------------------------------------
    def join(self, dims: list[BoxDim]) -> list[BoxDim]:
        """Join neighbours that all accesses walk as one, and replace their variables."""
        done: list[BoxDim] = []
        for dim in dims:
            if done and self._walked_as_one(done[-1], dim):
                outer = done.pop()
                dim = self._joined(outer, dim)
            done.append(dim)
        return done

    def _walked_as_one(self, outer: BoxDim, inner: BoxDim) -> bool:
        if not isinstance(inner.size, int) or inner.count or inner.first:
            return False
        if not isinstance(outer.size, int):
            return False
        a, b = outer.number, inner.number
        found = [_offsets(operator) for operator in (self.operator, *self.epilogue_operators)]
        if any(offsets is None for offsets in found):
            return False
        for offset in (offset for offsets in found for offset in offsets or ()):
            if any({a, b} & Index.of(t).vars() for t, _ in offset.terms if not isinstance(t, Var)):
                return False
            if offset.coefficient(Var(a)) != offset.coefficient(Var(b)) * inner.size:
                return False
        return True

    def _joined(self, outer: BoxDim, inner: BoxDim) -> BoxDim:
        """Return one dim in place of two; its steps are those of the inner one."""
        size = inner.size
        assert isinstance(size, int) and isinstance(outer.size, int)
        self.scalars.variables[outer.number] = Coordinate()
        first = outer.first and outer.first * size
        count = outer.count and outer.count * size
        limit = None if outer.limit is None else outer.limit * size
        names = (*outer.vars, *inner.vars)
        return BoxDim(names, first, outer.size * size, count, outer.low * size, limit)

    # ---- lanes -------------------------------------------------------------------------------
    @contextmanager
    def lanes(
        self, printer: LanePrinter, dims: list[BoxDim], axis: int
    ) -> Generator[tuple[LanePrinter, Term, Term | None]]:
        """Map the dims to an axis of the block, in a loop over chunks if they are longer than the
        axis.

        Yields the printer inside, the number of each lane, and the start of the chunk (None without
        a loop).
        """
        with self.loop(dims, printer.shape[axis]) as start:
            inside = printer.inner()
            yield inside, self.place(inside, dims, axis, start), start

    @contextmanager
    def loop(self, dims: list[BoxDim], block: int) -> Generator[Term | None]:
        """Emit a loop over chunks of `block` lanes if there are several; yields the start of each
        (None without a loop)."""
        size = total_size(dims)
        if isinstance(size, int) and size <= block:
            yield None
            return
        start = self.scalars.fresh("c")
        with self.out.within(CountedLoop(start, literal(0), literal(size), literal(block))):
            yield start

    def place(
        self,
        printer: LanePrinter,
        dims: list[BoxDim],
        axis: int,
        start: Term | int | None = None,
        lanes: Term | None = None,
        block: int = 0,
    ) -> Term:
        """Bind the dims to the lanes along an axis, from `start` on; return the number of each
        lane. lanes: the numbers, if they are not those of the axis alone; `block` of them, if
        they are more than the axis has, all of which are valid where `start` is a term."""
        size = total_size(dims)
        lane = printer.name(lanes or printer.numbers(axis), "x")
        masks: list[Term] = []
        if block and isinstance(start, Term):
            size = block
        block = block or printer.shape[axis]
        if isinstance(start, int):
            assert isinstance(size, int)
            size, start = min(size - start, block), literal(start) if start else None
        if isinstance(size, int) and size < block:
            masks = [infix(lane, "<", size)]
        elif not isinstance(size, int) or size % block:
            masks = [infix((start or literal(0)) + lane, "<", size)]
        if len(dims) == 1 and start is not None:
            # The start of the chunk stays a scalar: it is added to the pointer.
            dim = dims[0]
            first = total(dim.first, start)
            printer.variables[dim.number] = Coordinate(first, lane, _interval(dim), block)
            position = start + lane
            if dim.count is not None:
                masks = [infix(position, "<", dim.count)]
        else:
            position = lane if start is None else printer.name(start + lane, "x")
            masks += self._split(printer, dims, position, max(block, *printer.shape))
        mask = every(*masks)
        if mask is not None:
            printer.masks[axis] = printer.name(mask, "m")
        return position

    def _split(
        self, printer: LanePrinter, dims: list[BoxDim], position: Term, block: int
    ) -> list[Term]:
        """Bind each dim to its part of a lane's number, which may exceed the dims by up to one
        block; return masks of the valid lanes."""
        masks: list[Term] = []
        rest = position
        for place in range(len(dims) - 1, -1, -1):
            dim = dims[place]
            part = rest
            if place:
                part = printer.name(infix(rest, "%", dim.size), "i")
                rest = printer.name(infix(rest, "//", dim.size), "i")
            reach = dim.size if isinstance(dim.size, int) else None
            if place == 0 and reach is not None:
                reach += block
            printer.variables[dim.number] = Coordinate(dim.first, part, _interval(dim), reach)
            if dim.count is not None:
                masks.append(infix(part, "<", dim.count))
        return masks

    @contextmanager
    def each(self, printer: LanePrinter, dims: list[BoxDim]) -> Generator[LanePrinter]:
        """Emit loops over dims one value at a time, in row-major order."""
        if not dims:
            yield printer
            return
        dim, *rest = dims
        name = self.scalars.fresh("n")
        with self.out.within(CountedLoop(name, literal(0), literal(dim.count or dim.size))):
            inside = printer.inner()
            inside.variables[dim.number] = Coordinate(total(dim.first, name), None, _interval(dim))
            with self.each(inside, rest) as inner:
                yield inner

    def block(self, *shape: int, warps: int = 0) -> LanePrinter:
        """Return a printer for blocks of this shape; variables of dims of size 1 are bound."""
        return replace(self.scalars.inner(), shape=shape, warps=warps)

    def filled(
        self, dims: list[BoxDim], rows: int, warps: int, start: Term | None = None
    ) -> LanePrinter:
        """Return a printer for rows that are divided among warps, where all lanes of a warp
        compute the same."""
        printer = replace(self.block(rows, WARP, warps=warps), alike=True)
        self.place(printer, dims, 0, start, call("stretto_filled", warps, rows // warps).along(3))
        return printer

    def by_stride(self, dims: list[BoxDim], offset: Index) -> list[BoxDim]:
        """Sort the dims by the distance of their elements in memory, the nearest last."""

        products = [atom.factors for atom, _ in offset.terms if isinstance(atom, Product)]

        def distance(dim: BoxDim) -> tuple[int, int, int]:
            dynamic = not isinstance(dim.size, int)
            sizes = max((len(f) for f in products if Var(dim.number) in f), default=0)
            return sizes, int(dynamic), abs(offset.coefficient(Var(dim.number)))

        return sorted(dims, key=distance, reverse=True)


def task_bounds(
    grid: tuple[TileDim, ...], names: Naming, out: StatementBuilder
) -> tuple[GridBound, ...]:
    """Emit the computation of the task's position in each grid dim, and return its bounds."""
    bounds: list[GridBound] = []
    rest = TASK
    for number, dim in reversed(list(enumerate(grid))):
        if isinstance(dim.extent, int) and dim.tiles <= 1:
            bounds.append(GridBound(None, dim.extent, None, dim.extent))
            continue
        extent, tiles = extent_term(dim.extent, names), tile_count(dim, names)
        assert dim.parts is None, "on a GPU the width of a tile is a constant"
        tile = dim.tile
        first, count = variable(f"g{number}"), None
        out.assign(first, (infix(rest, "%", tiles) if number else rest) * tile)
        if not isinstance(dim.extent, int) or dim.extent % dim.tile:
            count = variable(f"e{number}")
            out.assign(count, call("tl.minimum", extent - first, tile))
        if number:
            out.assign(variable(f"t{number}"), infix(rest, "//", tiles))
            rest = variable(f"t{number}")
        bounds.append(GridBound(first, tile, count, dim.extent))
    return tuple(reversed(bounds))


def tile_count(dim: TileDim, names: Naming) -> Term:
    """Return the number of tiles along a grid dim."""
    if isinstance(dim.extent, int):
        return literal(dim.tiles)
    return infix(extent_term(dim.extent, names) + (dim.tile - 1), "//", dim.tile)


def extent_term(extent: Extent, names: Naming) -> Term:
    """Return the size of a dim."""
    if isinstance(extent, int):
        return literal(extent)
    return names.reg(extent) if isinstance(extent, Reg) else size_term(extent, names.reg)


def _interval(dim: BoxDim) -> tuple[int, int] | None:
    return None if dim.limit is None else (dim.low, max(dim.limit, dim.low + 1))


def total_size(dims: list[BoxDim]) -> int | Term:
    """Return the number of lanes that the dims need; a dim of which the last tile is partial
    counts as full."""
    if all(isinstance(dim.size, int) for dim in dims):
        return prod((dim.size for dim in dims if isinstance(dim.size, int)), start=1)
    return reduce(mul, (literal(dim.size) for dim in dims))


def _offsets(operator: Operator) -> list[Index] | None:
    """Return all positions in memory; None if a position is also used as a value."""
    if _has_positions(operator.value):
        return None
    found = [load.access.offset for load in operator.reads()]
    return [*found, operator.out.offset]


def _has_positions(expr: Expr) -> bool:
    match expr:
        case Position():
            return bool(expr.index.vars())
        case Apply(_, args, _):
            return any(_has_positions(arg) for arg in args)
        case Load(access):
            return any(index.vars() and not index.is_affine for index in access.index)
        case _:
            return False
