"""Pointwise operators: each lane of a block computes and stores one element, `block` at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import ClassVar

from stretto.device.expr import ComputedPosition, Index, Var
from stretto.ir.types import DType
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.cuda.printer.stage_frame import ResultFrame, Signature
from stretto.machines.cuda.printer.stage_nest import BoxDim, TritonNestPrinter, total_size
from stretto.machines.cuda.printer.triton_terms import LanePrinter
from stretto.machines.cuda.template import (
    CudaTemplate,
    CudaTemplateFamily,
    Parts,
    Stencil,
    TemplateChoice,
    power,
    traffic,
)
from stretto.machines.terms import Term

MAP_BLOCK = 2048

ATOMIC = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Dtypes with an atomic addition in memory."""


@dataclass(frozen=True, slots=True)
class Map(CudaTemplate):
    """Pointwise operators, `block` elements at a time."""

    name: ClassVar[str] = "map"
    block: int

    def printer(self, parts: Parts) -> TritonNestPrinter:
        return MapPrinter(*parts, block_size=self.block)


def _choice(stencil: Stencil, sizes: tuple[int, ...]) -> TemplateChoice | None:
    if stencil.operator.combine:
        return None
    points, costs = prod(sizes), stencil.costs
    block = min(max(power(points), 32), MAP_BLOCK)
    seconds = max(
        traffic(stencil, sizes) / costs.bandwidth,
        points * stencil.applies / costs.functions,
        (ceil(points / block) - 1) * costs.latency_seconds / 2,
    )
    latency = costs.latency_seconds if stencil.loads else 0.0
    return TemplateChoice(Map(block), latency + seconds, seconds)


FAMILY = CudaTemplateFamily(Map, _choice)


# ---- printing --------------------------------------------------------------------------------


@dataclass(slots=True)
class MapPrinter(TritonNestPrinter):
    """Prints operators without a reduction.

    Elements that may be added to the same position are added by atomics, or else stored in order:
    dims that decide a computed position become loops, the others stay lanes.
    """

    block_size: int = field(kw_only=True)

    def print(self) -> None:
        ordered = self.ordered_dims()
        if not ordered and self.loads_in_registers():
            self.framed()
        elif not ordered:
            self.plain()
        elif self.operator.accumulate and self.operator.out.buffer.dtype in ATOMIC:
            self.chunks(self.scalars, self.dims, atomic=True)
        else:
            rest = [dim for dim in self.dims if dim not in ordered]
            with self.each(self.scalars, ordered) as inside:
                if self.reads_result():
                    self.out.add(BARRIER)
                self.chunks(inside, rest)

    def plain(self) -> None:
        dims = self.join(self.by_stride(self.dims, self.operator.out.offset))
        value = self.chunks(self.scalars, dims)
        total = total_size(dims)
        if value is not None and isinstance(total, int) and total <= self.block_size:
            self.record_result(value, self.block_size if dims else 0, 1)

    # ---- with results of earlier stages ------------------------------------------------------
    def lane_dims(self) -> list[BoxDim]:
        """Return the frame's dims if the stage is in a frame, else all dims by stride."""
        if self.frame is not None:
            matched = match(self.frame.signature, self.dims)
            if matched is not None:
                return matched
        return self.by_stride(self.dims, self.operator.out.offset)

    def fits(self, frame: ResultFrame) -> bool:
        matched = match(frame.signature, self.dims)
        if matched is None or self.ordered_dims():
            return False
        if frame.warps and self.reads_result():  # all lanes of a warp store it
            return False
        return frame.rank == 2 or len(matched) == len(self.dims)

    @property
    def fills_lanes(self) -> bool:
        return len(self.lane_dims()) == len(self.dims)

    def framed(self) -> None:
        """Print with the frame's dims along axis 0, and any others along axis 1."""
        frame = self.frame
        assert frame is not None
        known = self.loads_in_registers()
        lanes = self.lane_dims()
        rest = [dim for dim in self.dims if dim not in lanes]
        rest = self.join(self.by_stride(rest, self.operator.out.offset))
        if frame.warps and not rest:
            printer = self.filled(lanes, frame.lanes, frame.warps)
            printer.known |= {((), load): value for load, value in known.items()}
            value = printer.expr(self.operator.value)
            self.store(printer, value, atomic=False)
            self.record_result(value, frame.lanes, frame.rank, frame.warps)
            return
        total = total_size(rest)
        wide = max(self.block_size // max(frame.lanes, 1), 1)
        if isinstance(total, int):
            wide = min(wide, power(total))
        shape = (frame.lanes, wide) if frame.rank == 2 else (frame.lanes,)
        printer = self.scalars.inner()
        if frame.lanes:
            printer = self.block(*shape, warps=frame.warps)
        if frame.lanes:
            self.place(printer, lanes, 0)
        printer.known |= {((), load): value for load, value in known.items()}
        if not rest:
            value = printer.expr(self.operator.value)
            self.store(printer, value, atomic=False)
            self.record_result(value, frame.lanes, frame.rank)
            return
        with self.lanes(printer, rest, 1) as (inside, _, _):
            self.store(inside, inside.expr(self.operator.value), atomic=False)

    def ordered_dims(self) -> list[BoxDim]:
        """Return the dims along which two stores may write one element."""
        computed: set[int] = set()
        for index in self.operator.out.index:
            for atom in index.atoms():
                if isinstance(atom, ComputedPosition):
                    computed |= Index.of(atom).vars()
        dynamic = any(
            isinstance(atom, ComputedPosition)
            for index in self.operator.out.index
            for atom in index.atoms()
        )
        if not dynamic and not self.operator.accumulate:
            return []
        offset = self.operator.out.offset
        return [
            dim
            for dim in self.dims
            if dim.number in computed or offset.coefficient(Var(dim.number)) == 0
        ]

    def chunks(self, outer: LanePrinter, dims: list[BoxDim], atomic: bool = False) -> Term | None:
        """Compute and store; return the value, which is valid only if there is no loop."""
        if not dims:
            inside = outer.inner()
            value = inside.expr(self.operator.value)
            self.store(inside, value, atomic)
            return value
        printer = self.block(self.block_size)
        printer.variables |= outer.variables
        with self.lanes(printer, dims, 0) as (inside, _, _):
            value = inside.expr(self.operator.value)
            self.store(inside, value, atomic)
        return value

    def store(self, printer: LanePrinter, value: Term, atomic: bool) -> None:
        operator = self.operator
        dtype = operator.value.dtype
        if atomic:
            printer.add(operator.out, value, dtype)
        else:
            printer.store(operator.out, value, dtype, operator.accumulate)


def match(signature: Signature, dims: list[BoxDim]) -> list[BoxDim] | None:
    """Return the dims that represent those of a frame, one each; None if one is missing."""
    found: list[BoxDim] = []
    for place in signature:
        fitting = [d for d in dims if (d.grid, d.size) == place and d not in found]
        if not fitting:
            return None
        found.append(fitting[0])
    return found
