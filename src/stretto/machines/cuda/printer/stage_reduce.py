"""Prints reductions and scans: rows of results down a block, what is reduced across it.

Every lane keeps its own total over the chunks of the reduction; the lanes of a row are combined
once, at the end. Dims that the template unrolls become totals of their own, which share the loads
that do not depend on them: the rows of a product with few rows read their weights once.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import product

from stretto.device.expr import Expr, Index, Var, substitute_vars
from stretto.ir.types import DType
from stretto.machines.cuda.printer.expr import Coordinate, ExprPrinter, Text
from stretto.machines.cuda.printer.scalar import VALUE_TYPES
from stretto.machines.cuda.printer.stage_frame import Frame
from stretto.machines.cuda.printer.stage_nest import BoxDim, NestPrinter, total_size
from stretto.machines.cuda.templates.reduction import Reduce

FAR = 2**31 - 1
"""The position of a lane that has seen nothing."""
OWN = 1000
"""Variables of unrolled points are numbered from multiples of this on."""


@dataclass(slots=True)
class ReducePrinter(NestPrinter):
    """Operators with a reduction, by rows of `rows` and chunks of `depth` lanes."""

    @property
    def template(self) -> Reduce:
        found = self.stage.template
        return found if isinstance(found, Reduce) else Reduce(4, 256)

    @property
    def combine(self) -> str:
        return self.operator.combine

    @property
    def dtype(self) -> DType:
        return self.operator.value.dtype

    def unrolled(self) -> list[BoxDim]:
        return [d for d in self.dims if self.template.unroll >> d.number & 1]

    def lane_dims(self) -> list[BoxDim]:
        rest = [d for d in self.dims if d not in self.unrolled()]
        return self.by_stride(rest, self.operator.out.offset)

    def fits(self, frame: Frame) -> bool:
        signature = tuple((dim.grid, dim.size) for dim in self.lane_dims())
        lanes = self.template.rows
        return (frame.signature, frame.lanes, frame.rank) == (signature, lanes, 2)

    @property
    def is_one_block(self) -> bool:
        """All rows at once? Then the loads of several stages may come before their results."""
        total = total_size(self.lane_dims())
        return isinstance(total, int) and total <= self.template.rows

    def reduce(self) -> Generator[None]:
        """Prints in two phases: the totals of the lanes; the results."""
        unrolled, known = self.unrolled(), self.forwarded()
        rest = self.join(self.lane_dims())
        if self.combine not in ("argmax", "argmin"):
            self.depths = self.join(self.depths)
        printer = self.block(self.template.rows, self.template.depth)
        printer.known |= {((), load): text for load, text in known.items()}
        with self.lanes(printer, rest, 0) as (inside, _, _):
            copies = [self.copy(inside, unrolled, point) for point in self.points(unrolled)]
            totals = [self.start() for _ in copies]
            with self.lanes(inside, self.depths, 1) as (inner, position, _):
                for (printer, value), total in zip(copies, totals, strict=True):
                    inner.conditions = printer.conditions
                    inner.variables |= printer.variables | inner.variables
                    self.step(inner, value, total, position)
            yield
            for (printer, _), total in zip(copies, totals, strict=True):
                result = self.finish(total)
                out = self.operator.out
                printer.store(out, result, self.result_dtype, self.operator.accumulate)
                if len(copies) == 1 and self.is_one_block:
                    self.remember(result, self.template.rows, 2)

    @property
    def result_dtype(self) -> DType:
        return DType.I64 if self.combine in ("argmax", "argmin") else self.dtype

    def points(self, unrolled: list[BoxDim]) -> list[tuple[int, ...]]:
        sizes = [range(dim.size) for dim in unrolled if isinstance(dim.size, int)]
        return list(product(*sizes))

    def copy(
        self, printer: ExprPrinter, unrolled: list[BoxDim], point: tuple[int, ...]
    ) -> tuple[ExprPrinter, Expr]:
        """A printer for one point of the unrolled dims, and the value with variables of its own.

        What does not depend on those is the same expression at every point, and is printed once.
        """
        copy = printer.inner()
        own: dict[int, int] = {}
        for dim, place in zip(unrolled, point, strict=True):
            first = f"({dim.first} + {place})" if dim.first else str(place)
            span = (dim.low, dim.limit) if dim.limit is not None else None
            own[dim.number] = (place + 1) * OWN + dim.number
            copy.variables[dim.number] = Coordinate(first, None, span)
            copy.variables[own[dim.number]] = copy.variables[dim.number]
            if dim.count and place:
                test = copy.name(f"{place} < {dim.count}")
                copy.conditions = (*copy.conditions, test)
        last = len(self.operator.dims) + len(self.operator.reduce)
        values = tuple(Index.of(Var(own.get(n, n))) for n in range(last))
        return copy, substitute_vars(self.operator.value, values)

    # ---- totals ------------------------------------------------------------------------------
    def start(self) -> tuple[str, str]:
        """Names of a total and, for a position, of where it was found."""
        number = self.counter[0]
        self.counter[0] += 1
        shape = f"[{self.template.rows}, {self.template.depth}]"
        kind = self.key_type if self.combine in ("argmax", "argmin") else VALUE_TYPES[self.dtype]
        self.out.write(f"a{number} = tl.full({shape}, {self.identity()}, {kind})")
        if self.combine in ("argmax", "argmin"):
            self.out.write(f"p{number}_ = tl.full({shape}, {FAR}, tl.int32)")
        return f"a{number}", f"p{number}_"

    @property
    def key_type(self) -> str:
        return "tl.int64" if self.dtype in (DType.F64, DType.I64) else "tl.int32"

    def identity(self) -> str:
        match self.combine:
            case "sum" | "any" | "argmax" | "argmin" | "cumsum":
                return "False" if self.dtype is DType.BOOL and self.combine == "any" else "0"
            case "prod" | "all" | "cumprod":
                return "True" if self.dtype is DType.BOOL else "1"
            case "max":
                return lowest(self.dtype)
            case _:
                return highest(self.dtype)

    def step(
        self, printer: ExprPrinter, element: Expr, total: tuple[str, str], position: Text
    ) -> None:
        name, found = total
        value = printer.expr(element)
        mask = printer.masks.get(1)
        if self.combine in ("argmax", "argmin"):
            key = printer.name(f"stretto_{self.combine}_key({value.text})", value.axes)
            inside = f"{mask} & " if mask else ""
            better = f"{inside}(({key.text} > {name}) | ({found} == {FAR}))"
            test = printer.name(better, 3)
            self.out.write(f"{name} = tl.where({test.text}, {key.text}, {name})")
            self.out.write(f"{found} = tl.where({test.text}, {position.text}, {found})")
            return
        text = value.text
        if mask:
            text = f"tl.where({mask}, {text}, {literal_text(self.identity(), self.dtype)})"
        self.out.write(f"{name} = {self.combined(name, text)}")

    def combined(self, total: str, text: str) -> str:
        match self.combine:
            case "sum":
                return f"{total} + {text}"
            case "prod":
                return f"{total} * {text}"
            case "any":
                return f"{total} | {text}"
            case "all":
                return f"{total} & {text}"
            case "max":
                return f"stretto_maximum({total}, {text})"
            case _:
                return f"stretto_minimum({total}, {text})"

    def finish(self, total: tuple[str, str]) -> Text:
        """The lanes of each row combined."""
        name, found = total
        number = self.counter[0]
        self.counter[0] += 1
        if self.combine in ("argmax", "argmin"):
            text = f"stretto_first_position({name}, {found})"
        else:
            text = f"stretto_row_{self.combine}({name})"
        self.out.write(f"s{number} = {text}")
        return Text(f"s{number}", 1)

    # ---- scans -------------------------------------------------------------------------------
    def scan(self) -> None:
        """A running sum or product along the one reduced dim, with what was before as a carry."""
        dims = self.join(self.by_stride(self.dims, self.operator.out.offset))
        printer = self.block(self.template.rows, self.template.depth)
        rows, depth = printer.shape
        sign = "+" if self.combine == "cumsum" else "*"
        with self.lanes(printer, dims, 0) as (inside, _, _):
            number = self.counter[0]
            self.counter[0] += 1
            carry, kind = f"a{number}", VALUE_TYPES[self.dtype]
            self.out.write(f"{carry} = tl.full([{rows}, 1], {self.identity()}, {kind})")
            with self.lanes(inside, self.depths, 1) as (inner, _, start):
                value = inner.expr(self.operator.value)
                text = f"{value.text} + {inner.zeros(3, kind)}"
                mask = inner.masks.get(1)
                if mask:
                    identity = literal_text(self.identity(), self.dtype)
                    text = f"tl.where({mask}, {text}, {identity})"
                scanned = inner.name(f"{carry} {sign} tl.{self.combine}({text}, 1)", 3)
                scanned = inner.name(f"tl.cast({scanned.text}, {kind})", 3)
                inner.store(self.operator.out, scanned, self.dtype)
                if start:
                    last = f"tl.arange(0, {depth})[None, :] == {depth - 1}"
                    picked = f"tl.where({last}, {scanned.text}, 0)"
                    total = f"tl.sum({picked}, 1, keep_dims=True)"
                    self.out.write(f"{carry} = tl.cast({total}, {kind})")


def literal_text(identity: str, dtype: DType) -> str:
    return f"tl.full([], {identity}, {VALUE_TYPES[dtype]})"


def lowest(dtype: DType) -> str:
    if dtype.is_float:
        return 'float("-inf")'
    bits = 8 * dtype.itemsize
    return "False" if dtype is DType.BOOL else str(0 if dtype is DType.U8 else -(2 ** (bits - 1)))


def highest(dtype: DType) -> str:
    if dtype.is_float:
        return 'float("inf")'
    bits = 8 * dtype.itemsize
    return "True" if dtype is DType.BOOL else str(255 if dtype is DType.U8 else 2 ** (bits - 1) - 1)
