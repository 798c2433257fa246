"""Users' kernels: the user's Triton function is part of the program, and a stage calls it for
blocks of the part of the result that a task computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite, prod
from typing import ClassVar

from stretto.device.expr import Const, Expr, Position
from stretto.device.operator import Combine, Operator
from stretto.device.user_kernels import UserKernel, kernel_of
from stretto.extending.kernel_tensors import UserCall, UserView
from stretto.ir.types import DType
from stretto.machines.cuda.printer.stage_nest import BoxDim, TritonNestPrinter
from stretto.machines.cuda.printer.triton_terms import INDEX_LIMIT, LanePrinter
from stretto.machines.cuda.template import (
    CudaTemplate,
    CudaTemplateFamily,
    Parts,
    Stencil,
    TemplateChoice,
    power,
)
from stretto.machines.statements import CountedLoop, Do
from stretto.machines.terms import Term, call, joined, literal, total

MOST_LANES = 2048
"""Lanes of a block at most, including those along dims without an index."""
MOST_INNER = 64
"""Values of dims without an index that a function is expected to process at once."""


@dataclass(frozen=True, slots=True)
class CudaUserKernel(CudaTemplate):
    """A user's kernel. lanes: the product of the blocks of the indices, unless `multiples` require
    more."""

    name: ClassVar[str] = "user"
    lanes: int
    kernel: UserKernel

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"kernel": kernel_of(operator)}

    def printer(self, parts: Parts) -> TritonNestPrinter:
        return UserPrinter(*parts, template=self)


def _choice(stencil: Stencil, sizes: tuple[int, ...]) -> TemplateChoice | None:
    operator, costs = stencil.operator, stencil.costs
    if operator.combine is not Combine.KERNEL:
        return None
    kernel = kernel_of(operator)
    leads = len(sizes) - len(kernel.write.parts)
    inner = prod(costs.points((extent,)) for extent in operator.reduce)
    whole = zip(kernel.write.parts, sizes[leads:], strict=True)
    inner = max(inner, prod(size for part, size in whole if part.start is None))
    lanes = MOST_LANES // min(power(inner), MOST_INNER)
    tiles = [
        size
        for part, size in zip(kernel.write.parts, sizes[leads:], strict=True)
        if part.start is not None
    ]
    counts = (ceil(t / b) for t, b in zip(tiles, block_sizes(kernel, tiles, lanes), strict=True))
    calls = prod(sizes[:leads]) * prod(counts)
    seconds = costs.latency_seconds + max(
        prod(sizes) * costs.user_seconds(operator), calls * costs.latency_seconds / 2
    )
    return TemplateChoice(CudaUserKernel(lanes, kernel), seconds, seconds)


def block_sizes(kernel: UserKernel, tiles: Sequence[int | None], lanes: int) -> tuple[int, ...]:
    """Return the block of each index, a power of two: as long as its tile (None: not known) if
    their product allows, and at least its multiple."""
    wanted = dict(kernel.multiples)
    names = [part.start.name for part in kernel.write.parts if part.start is not None]
    least = [power(wanted.get(name or "", 1)) for name in names]
    found = [
        max(lanes if tile is None else power(tile), low)
        for tile, low in zip(tiles, least, strict=True)
    ]
    while prod(found) > lanes:
        longest = max(range(len(found)), key=lambda n: found[n] if found[n] > least[n] else 0)
        if found[longest] == least[longest]:
            break
        found[longest] //= 2
    return tuple(found)


FAMILY = CudaTemplateFamily(CudaUserKernel, _choice)


# ---- printing --------------------------------------------------------------------------------


@dataclass(slots=True)
class UserPrinter(TritonNestPrinter):
    """Calls of the function: for each position along the leading dims, and block by block along
    the indices."""

    template: CudaUserKernel = field(kw_only=True)

    def print(self) -> None:
        found = UserCall.of(self.operator)
        leads = [dim for dim in self.dims if dim.number < found.leads]
        tiles = [self._tile(dim) for dim in found.indices]
        known = [tile.size if isinstance(tile.size, int) else None for tile in tiles]
        blocks = block_sizes(found.kernel, known, self.template.lanes)
        with self.each(self.scalars, leads) as printer:
            self._blocks(found, printer, list(zip(tiles, blocks, strict=True)), [])

    def _tile(self, number: int) -> BoxDim:
        """Return the range of an index that the task computes."""
        for dim in self.dims:
            if dim.number == number:
                return dim
        first = self.scalars.variables[number].first
        return BoxDim((number,), first, 1)

    def _blocks(
        self,
        found: UserCall,
        printer: LanePrinter,
        tiles: list[tuple[BoxDim, int]],
        ranges: list[Term],
    ) -> None:
        """Emit loops over the blocks of each index, then the call."""
        if not tiles:
            self._call(found, printer, ranges)
            return
        (dim, block), *rest = tiles
        last = total(dim.first, literal(dim.count or dim.size)) or literal(0)
        first = dim.first or literal(0)
        if isinstance(dim.size, int) and dim.size <= block:
            self._blocks(found, printer, rest, [*ranges, _range(found, first, last, block)])
            return
        start = self.scalars.fresh("c")
        end = call("tl.minimum", start + block, last)
        with self.out.within(CountedLoop(start, first, last, literal(block))):
            self._blocks(found, printer, rest, [*ranges, _range(found, start, end, block)])

    def _call(self, found: UserCall, printer: LanePrinter, ranges: list[Term]) -> None:
        code = found.kernel.triton
        assert code is not None
        inside = printer.inner()
        wide = any(view.buffer.dtype is DType.F64 for view in (*found.reads, found.result))
        numbers = [_number(inside, number, wide) for number in found.numbers]
        views = [self._view(view, inside) for view in (*found.reads, found.result)]
        *reads, result = views
        self.out.add(Do(call(code.entry, *ranges, *reads, *numbers, result, effect=True)))

    def _view(self, view: UserView, printer: LanePrinter) -> Term:
        scalar, lanes = printer.position(view.start)
        assert lanes is None
        pointer = total(self.names.buffer(view.buffer), scalar)
        assert pointer is not None
        sizes = (_number(printer, size, False) for size in view.sizes)
        steps = (printer.whole(step) for step in view.steps)
        return call("stretto_View", pointer, _tuple(sizes), _tuple(steps))


def _tuple(terms: Iterable[Term]) -> Term:
    return joined("(", *(joined(term, ", ") for term in terms), ")")


def _range(found: UserCall, first: Term, last: Term, block: int) -> Term:
    kind = "tl.int32" if _is_short(found) else "tl.int64"
    bounds = (call("tl.cast", bound, kind) for bound in (first, last))
    return call("stretto_Range", *bounds, block)


def _is_short(found: UserCall) -> bool:
    """Return True if 32 bits hold the positions in each tensor."""
    return all(_reach(view) < INDEX_LIMIT // 2 for view in (*found.reads, found.result))


def _reach(view: UserView) -> int:
    """Return an upper bound of the last element's distance from the first; the limit if it is not
    known."""
    known = 0
    for size, step in zip(view.sizes, view.steps, strict=True):
        extent = _known(size)
        if extent is None or not step.is_const:
            return INDEX_LIMIT
        known += (extent + MOST_LANES) * abs(step.const)
    return known


def _known(size: Expr) -> int | None:
    match size:
        case Const(int(value), _):
            return value
        case Position(index) if index.is_const:
            return index.const
        case _:
            return None


def number_text(value: bool | int | float) -> str:
    return repr(value) if isfinite(value) else f'float("{value}")'


def _number(printer: LanePrinter, number: Expr, wide: bool) -> Term:
    """Return a number as a literal if it is known; otherwise a scalar, in 32 bits if it is a float
    and no tensor is f64."""
    if isinstance(number, Const):
        return literal(number_text(number.value))
    known = _known(number)
    if known is not None:
        return literal(known)
    value = printer.expr(number)
    return call("tl.cast", value, "tl.float32") if number.dtype.is_float and not wide else value
