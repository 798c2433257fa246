"""Convolutions, without a copy of all patches in memory. The header conv.h has the code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from stretto.device.expr import Access, Index, Var
from stretto.device.operator import Operator, Stage
from stretto.ir.sizes import Size
from stretto.kernels.contraction import (
    Convolution,
    convolution_of,
    flat_stride,
    image_start,
    loads_of,
    stride,
)
from stretto.kernels.groups import Member
from stretto.kernels.panels import PanelRead, PanelTemplate, channel_read, constant_layout, static
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import ZERO, CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    TemplateCandidate,
    TemplateRequest,
    required,
)
from stretto.machines.statements import Assign, Raw
from stretto.machines.terms import (
    Operand,
    Term,
    call,
    filled,
    infix,
    joined,
    literal,
    variable,
)

PIXEL, CHANNEL, GROUP, FIRST, LAST, SCRATCH, GEOMETRY = map(
    variable, ("p", "c", "g", "c0", "c1", "scratch", "s")
)


@dataclass(frozen=True, slots=True)
class Conv(PanelTemplate, CpuTemplate):
    """Products of slabs of `rows` channels of packed weights and patches of `columns` pixels."""

    name: ClassVar[str] = "conv"
    header: ClassVar[str] = "conv.h"
    rows: int
    columns: int
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"convolution": required(convolution_of(operator), "convolution")}

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        kind = VALUE_TYPES[stage.operator.out.buffer.dtype]
        macro = "STRETTO_SHARED_" + ("IMAGE" if self.convolution.is_pointwise else "PANEL")
        return (Shared(self.header, macro, (kind, str(self.rows), str(self.columns))),)

    def write(self, nest: CppNestPrinter) -> None:
        with _each_image(nest, self.convolution) as image:
            self._products(nest, image)

    def _products(self, nest: CppNestPrinter, image: Image) -> None:
        kind, channels = image.kind, image.channels
        weights = nest.names.buffer(self.panels)
        member = self.read(nest.operator).member
        if member != Index():
            weights = weights + nest.index(member)
        height, lanes = self.rows, self.columns
        memory = f"alignas(64) {kind} scratch[stretto::conv_scratch<{kind}, S, {lanes}> + 1];"
        nest.out.add(Raw(literal(memory), SCRATCH))
        top, bottom = (row * image.member("OW") for row in image.rows)
        per_group = self.convolution.per_group
        template = f"conv_tile<{kind}, S, {height}, {lanes}>"
        pixels = call("int", PIXEL), call("int", bottom)
        first, last = channels
        if self.convolution.groups == 1:
            nest.out.add(Assign(FIRST, first, "const int64_t"), Assign(LAST, last, "const int64_t"))
            out, count = _out_pointer(nest, image, FIRST, PIXEL), call("int", LAST - FIRST)
            with nest.loop(PIXEL, top, bottom, step=lanes):
                panels = weights + FIRST * literal("S::K")
                arguments = image.start, panels, SCRATCH, out, image.member("pixels"), count
                nest.call(template, *arguments, *pixels, last=image.last)
            return
        slabs = -(-per_group // height) * height
        first, last = (infix(bound, "/", per_group) for bound in channels)
        with nest.loop(GROUP, first, last):
            out = _out_pointer(nest, image, GROUP * per_group, PIXEL)
            with nest.loop(PIXEL, top, bottom, step=lanes):
                group = image.start + GROUP * image.area("S::C * ")
                panels = weights + GROUP * literal(f"({slabs} * S::K)")
                arguments = group, panels, SCRATCH, out, image.member("pixels"), per_group
                nest.call(template, *arguments, *pixels, last=image.last)

    def read(self, operator: Operator) -> PanelRead:
        return channel_read(operator, self.panels, self.convolution, 1)


@dataclass(frozen=True, slots=True)
class Depthwise(CpuTemplate):
    """Convolution in which every channel has its own image and taps."""

    name: ClassVar[str] = "depthwise"
    header: ClassVar[str] = "conv.h"
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"convolution": required(convolution_of(operator), "convolution")}

    def write(self, nest: CppNestPrinter) -> None:
        with _each_image(nest, self.convolution) as image:
            self._channels(nest, image)

    def _channels(self, nest: CppNestPrinter, image: Image) -> None:
        top, bottom = image.rows
        with nest.loop(CHANNEL, *image.channels):
            weights = nest.pointer(loads_of(nest.operator)[0], {})
            nest.call(
                f"conv_depthwise{'_sized' if image.is_sized else ''}<{image.kind}, S>",
                image.start + CHANNEL * image.area(),
                weights + CHANNEL * literal("S::taps"),
                _out_pointer(nest, image, CHANNEL, top * image.member("OW")),
                call("int", top),
                call("int", bottom - top),
                last=image.last,
            )


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, member = request.operator, request.member
    conv = convolution_of(operator)
    if conv is None or conv.in_channels * prod(conv.kernel) == 0:
        return None
    weight = loads_of(operator)[0]
    if constant_layout(operator, weight) is None:
        return None
    if conv.groups > 1 and any(box[1].offset % conv.per_group for box in member.boxes):
        return None
    sizes = [request.costs.size(extent) for extent in operator.dims[2:]]
    height, width = (1, *sizes) if len(sizes) == 1 else sizes
    seconds = request.product_seconds
    if conv.is_depthwise:
        if not _taps_are_dense(operator, conv):
            return None
        multiples = (1, 1, *_spatial_multiples(len(operator.dims), height, width, 1))
        return TemplateCandidate(Depthwise(conv), multiples, seconds)
    pixels = _pixel_lanes(height * width, conv.per_group, request.units)
    channels = _slab_height(member, 6 if pixels == 64 else 12)
    apart = static(stride(weight, 1))
    columns = (conv.per_group, apart)
    groups = ((conv.groups, conv.per_group * apart),) if conv.groups > 1 else ()
    panels = request.packings.add(operator, weight, groups, columns, channels)
    step = conv.per_group if conv.groups > 1 else channels
    multiples = (1, step, *_spatial_multiples(len(operator.dims), height, width, pixels))
    template = Conv(panels, channels, pixels, conv)
    return TemplateCandidate(
        template, multiples, seconds, last=1, repeated=request.costs.patch_channels
    )


def _taps_are_dense(operator: Operator, conv: Convolution) -> bool:
    """True if the weights of each channel are contiguous, and follow those of the previous one."""
    weight, rank = loads_of(operator)[0], len(operator.dims)
    taps = [(rank + n, extent) for n, extent in enumerate(operator.reduce) if extent != 1]
    return flat_stride(weight, taps) == 1 and stride(weight, 1) == prod(conv.kernel)


def _slab_height(member: Member, height: int) -> int:
    """Return the channels per slab of packed weights: every box must begin at a slab."""
    offsets = [box[1].offset for box in member.boxes]
    return next(h for h in (height, 6, 4, 2, 1) if all(offset % h == 0 for offset in offsets))


def _pixel_lanes(pixels: int, channels: int, units: int) -> int:
    """Return the pixels per panel: four vectors, or fewer if that gives every unit the same share
    of an image.

    Splitting channels instead balances only if there are many blocks of them, and packs patches
    twice.
    """
    if pixels < 32:
        return 16
    few_channels = channels < 48 * units
    return 32 if pixels < 64 or (few_channels and pixels < 64 * units) else 64


def _spatial_multiples(rank: int, out_h: int, out_w: int, lanes: int) -> tuple[int, ...]:
    """Return tile multiples of the spatial dims: whole rows, as few as fill panels to 94 % (0: the
    whole image)."""
    if rank == 3:
        return (0,)
    for rows in range(1, out_h):
        pixels = rows * out_w
        if -(-pixels // lanes) * lanes <= 1.06 * pixels:
            return (rows, 0)
    return (0, 0)


FAMILY = CpuTemplateFamily((Conv, Depthwise), _candidate, rank=0)


# ---- Printing --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """The part of one image that a task computes. `rows`, `channels`: its bounds (first, last).

    is_sized: its height or width is known only at the call; they are then in the object `s`, which
    functions take as their last argument.
    """

    start: Term
    kind: str
    channels: tuple[Term, Term]
    rows: tuple[Term, Term]
    is_sized: bool

    def member(self, name: str) -> Term:
        """Return a number of the geometry."""
        return element_of(GEOMETRY, name) if self.is_sized else literal(f"S::{name}")

    def area(self, factor: str = "") -> Term:
        """Return the elements of a channel of the image, times a factor."""
        height, width = self.member("H"), self.member("W")
        return filled(f"({factor}{{}} * {{}})", height, width)

    @property
    def last(self) -> tuple[Operand, ...]:
        return (GEOMETRY,) if self.is_sized else ()


def element_of(variable: Term, name: str) -> Term:
    return joined(variable, f".{name}")


@contextmanager
def _each_image(nest: CppNestPrinter, found: Convolution) -> Generator[Image]:
    """Open a loop over the images of a batch."""
    operator, box = nest.operator, nest.stage.box
    pairs = (found.kernel, found.step, found.padding, found.dilation)
    image = [found.height, found.width]
    is_sized = any(isinstance(size, Size) for size in image)
    sizes = [found.in_channels, *(() if is_sized else image), *(n for pair in pairs for n in pair)]
    shape = ", ".join(str(size) for size in sizes)
    name = "SizedConv" if is_sized else "Conv"
    nest.out.add(Raw(literal(f"using S = stretto::{name}<{shape}>;")))
    if is_sized:
        height, width = (nest.named(Index.of(size)) for size in image)
        nest.out.assign(GEOMETRY, call("S", height, width), "const S")
    rows = nest.bounds(box[2]) if len(operator.dims) == 4 else (ZERO, literal(1))
    with nest.loop(iteration(0), *nest.bounds(box[0])):
        first = image_start(operator)
        start = nest.names.buffer(first.buffer) + nest.index(first.offset)
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        yield Image(start, kind, nest.bounds(box[1]), rows, is_sized)


def _out_pointer(nest: CppNestPrinter, image: Image, channel: Term, pixel: Term) -> Term:
    """Return a pointer to a pixel of a channel of the result."""
    out = nest.operator.out
    first = tuple(_at_zero(index) for index in out.index)
    start = nest.pointer(Access(out.buffer, out.shape, first), {0: iteration(0)})
    return start + channel * image.member("pixels") + pixel


def _at_zero(index: Index) -> Index:
    """Return the index at 0 of its variable, unless that is the batch."""
    if index.vars() <= {0}:
        return index
    return index + Index.of(Var(next(iter(index.vars())))) * -1
