"""Convolutions of images whose channels are contiguous. The header pixels.h has the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar

from stretto.device.expr import Access, Index, Var
from stretto.device.operator import Operator, Stage
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import (
    Convolution,
    contraction_of,
    image_start,
    loads_of,
    stride,
)
from stretto.kernels.panels import PanelRead, PanelTemplate, channel_read, constant_layout, static
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    Strip,
    TemplateCandidate,
    TemplateRequest,
    required,
)
from stretto.machines.statements import Do, Raw
from stretto.machines.terms import Operand, Term, call, infix, joined, separated, variable

PANELS = {32: (64, 80, 48), 16: (16,)}
"""Output channels per panel of packed weights, for each number of registers: the first that
divides them, or the first."""
WIDEST = 128
"""Output channels up to which those that the first panel does not divide are one panel."""
VECTOR = 16
"""Output channels that tiles are multiples of: the lanes of the widest vectors."""
BROADCASTS = 6
"""Cost, in channels, of reading the pixels again for the channels of each task: a task of one
vector of channels takes as long as one of 22, measured."""
GROUPED = (4, 8)
"""Channels of groups of which a vector holds several."""
DEPTHWISE_FACTOR = 4.0
"""Factor by which a multiplication takes longer than in a product if every channel has its own
taps, which are read with it."""
SHALLOW = 256
"""Products per value up to which a value is cheap, so that its transfer to the next stage
matters."""
STRIP_BYTES, STRIP_PIXELS = 24 << 10, 48
"""Bytes of a strip of results, and its smallest number of pixels."""
GROUP, GEOMETRY = variable("g"), variable("s")


@dataclass(frozen=True, slots=True)
class _OnPixels(PanelTemplate, CpuTemplate):
    """Base of the templates for images with contiguous channels."""

    header: ClassVar[str] = "pixels.h"
    convolution: Convolution

    macro: ClassVar[str]

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = pixel_convolution_of(operator)
        return {"convolution": required(found, "convolution of images with contiguous channels")}

    @property
    def panel(self) -> int:
        """The channels of a panel of packed weights."""
        return static(self.panels.shape[-1])

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        kind = VALUE_TYPES[stage.operator.out.buffer.dtype]
        return (Shared(self.header, self.macro, (kind, *self.constants)),)

    @property
    def constants(self) -> tuple[str, ...]:
        """The arguments of the function template after the element type."""
        return ()

    def strip(self, stage: Stage) -> Strip | None:
        """Return strips of rows of the result if a value takes few products: then the next stage
        matters."""
        conv, operator = self.convolution, stage.operator
        span, width, channels = stage.box[1], operator.dims[-2], operator.dims[-1]
        if len(operator.dims) != 4 or span.grid is None or span.extent == 1:
            return None
        if not isinstance(width, int) or not isinstance(channels, int):
            return None
        if conv.in_channels * prod(conv.kernel) > SHALLOW:
            return None
        pixels = max(STRIP_BYTES // (channels * operator.out.buffer.dtype.itemsize), STRIP_PIXELS)
        return Strip(span.grid, max(pixels // width, 1))

    def read(self, operator: Operator) -> PanelRead:
        channel = Index.of(Var(len(operator.dims) - 1))
        return PanelRead(operator, self.panels, loads_of(operator)[0], (), channel)

    def weights(self, nest: CppNestPrinter) -> Term:
        """Return a pointer to the first of the packed weights."""
        weights, member = nest.names.buffer(self.panels), self.read(nest.operator).member
        return weights if member == Index() else weights + nest.index(member)


@dataclass(frozen=True, slots=True)
class Pixels(_OnPixels):
    """Vectors of output channels for a few pixels at a time, which are read in place."""

    name: ClassVar[str] = "pixels"
    macro: ClassVar[str] = "STRETTO_SHARED_PIXELS"

    def write(self, nest: CppNestPrinter) -> None:
        conv, place = self.convolution, ImageTile.of(nest, self.convolution, self.panel)
        weights = self.weights(nest)
        depth = conv.in_channels * conv.kernel[0] * conv.kernel[1]
        first, last = place.channels
        with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
            if conv.groups == 1:
                place.call("conv_pixels", place.image, weights, first, last, first)
                return
            size, slabs = conv.per_group, -(-conv.per_group // self.panel) * self.panel
            with nest.loop(GROUP, infix(first, "/", size), infix(last, "/", size)):
                image = place.image + GROUP * conv.in_channels
                panels = weights + GROUP * (slabs * depth)
                place.call("conv_pixels", image, panels, GROUP * size, GROUP * size + size, 0)

    def read(self, operator: Operator) -> PanelRead:
        return channel_read(operator, self.panels, self.convolution, len(operator.dims) - 1)


@dataclass(frozen=True, slots=True)
class DepthwisePixels(_OnPixels):
    """Every channel has its own taps: vectors of channels, pixel by pixel."""

    name: ClassVar[str] = "depthwise_pixels"
    macro: ClassVar[str] = "STRETTO_SHARED_DEPTHWISE"

    def write(self, nest: CppNestPrinter) -> None:
        place = ImageTile.of(nest, self.convolution, self.panel)
        weights = self.weights(nest)
        first, last = place.channels
        with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
            place.call("depthwise_pixels", place.image + first, weights + first, first, last)


@dataclass(frozen=True, slots=True)
class GroupPixels(_OnPixels):
    """Vectors of output channels of several groups."""

    name: ClassVar[str] = "group_pixels"
    macro: ClassVar[str] = "STRETTO_SHARED_GROUPS"

    @property
    def constants(self) -> tuple[str, ...]:
        return (str(self.convolution.in_channels),)

    def write(self, nest: CppNestPrinter) -> None:
        place = ImageTile.of(nest, self.convolution, self.panel)
        weights, (first, last) = self.weights(nest), place.channels
        with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
            place.call("group_pixels", place.image, weights, first, last, first, *self.constants)


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    conv, channel = pixel_convolution_of(operator), len(operator.dims) - 1
    if conv is None:
        return None
    offsets = [box[channel].offset for box in request.member.boxes]
    if _is_product(operator, conv, PANELS[costs.registers][0], offsets):
        return None
    weight = loads_of(operator)[0]
    if constant_layout(operator, weight) is None:
        return None
    pixels = prod(costs.size(extent) for extent in operator.dims[1:-1])
    kind, step, lanes = _choice(conv, pixels, request.units, PANELS[costs.registers])
    if any(offset % step for offset in offsets):
        if kind is not Pixels or conv.groups > 1:
            return None
        step = lanes = common_panel(gcd(conv.out_channels, *offsets))
        if lanes < VECTOR:
            return None
    size, groups = (conv.per_group, conv.groups) if kind is Pixels else (conv.out_channels, 1)
    apart = static(stride(weight, channel))
    outer = ((groups, size * apart),) if groups > 1 else ()
    panels = request.packings.add(operator, weight, outer, (size, apart), lanes)
    rows = len(operator.dims) == 4 and operator.dims[1] != 1
    multiples = (1, 1, 0, step) if rows else (*(1 for _ in operator.dims[1:]), step)
    packed = panels.nbytes
    seconds = max(request.product_seconds, packed / costs.bandwidth)
    if kind is DepthwisePixels:
        seconds *= DEPTHWISE_FACTOR
    return TemplateCandidate(
        kind(panels, conv),
        multiples,
        seconds,
        last=channel,
        repeated=BROADCASTS,
        rows=tuple(range(channel)),
        reading=costs.reading_seconds(packed),
    )


def _is_product(operator: Operator, conv: Convolution, panel: int, offsets: Sequence[int]) -> bool:
    """True if the convolution is a product of matrices, with whole panels of channels for each box
    of the result; the boxes begin at `offsets`. It needs no pointers to pixels."""
    whole = not any(size % panel for size in (conv.out_channels, *offsets))
    pointwise = conv.is_pointwise and conv.groups == 1
    return whole and pointwise and contraction_of(operator) is not None


def _choice(
    conv: Convolution, pixels: int, units: int, panels: Sequence[int]
) -> tuple[type[_OnPixels], int, int]:
    """Return the template, the multiple of output channels per tile, and the channels per panel of
    packed weights."""
    if conv.is_depthwise:
        return DepthwisePixels, VECTOR, conv.out_channels
    if conv.groups == 1:
        panel = panel_width(conv.out_channels, pixels, units, panels)
        count = -(-conv.out_channels // panel)
        return Pixels, VECTOR if pixels == 1 or count % units else panel, panel
    if conv.in_channels == conv.per_group in GROUPED and conv.out_channels % VECTOR == 0:
        return GroupPixels, VECTOR, VECTOR
    return Pixels, conv.per_group, panel_width(conv.per_group, pixels, 1, panels)


def panel_width(channels: int, pixels: int, units: int, panels: Sequence[int]) -> int:
    """Return the output channels per panel, so that few lanes are unused and each unit has whole
    panels."""
    whole = -(-channels // VECTOR) * VECTOR
    if whole <= panels[0]:
        return whole
    if pixels > 1 and whole <= WIDEST and whole % panels[0]:
        return whole
    return next((n for n in panels if pixels > 1 and whole % (n * units) == 0), panels[0])


def common_panel(channels: int) -> int:
    """Return the output channels per panel if convolutions of `channels` channels each are joined
    into one: the largest divisor up to the widest panel."""
    return next(n for n in range(min(channels, WIDEST), 0, -1) if channels % n == 0)


FAMILY = CpuTemplateFamily((Pixels, DepthwisePixels, GroupPixels), _candidate, rank=-1)


# ---- Printing --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImageTile:
    """The part of an image that a task computes. `image`: pointer to the image. `pixels`,
    `channels`: bounds (first, last) of its part of the result."""

    nest: CppNestPrinter
    image: Term
    pixels: tuple[Term, Term]
    channels: tuple[Term, Term]

    @staticmethod
    def of(nest: CppNestPrinter, conv: Convolution, panel: int) -> ImageTile:
        """Return the part of a task, and declare the geometry."""
        operator, box = nest.operator, nest.stage.box
        *spatial, width = operator.dims[1:-1]
        column = len(operator.dims) - 2
        pixels = nest.bounds(box[column])
        if spatial and spatial[0] != 1:
            top, bottom = nest.bounds(box[1])
            pixels = top * nest.extent(width), bottom * nest.extent(width)
        first = image_start(operator)
        image = nest.names.buffer(first.buffer) + nest.index(first.offset)
        _declare(nest, conv, column, panel)
        return ImageTile(nest, image, pixels, nest.bounds(box[-1]))

    def call(
        self,
        function: str,
        image: Term,
        weights: Term,
        first: Term,
        last: Term,
        channel: Operand | None = None,
        *constants: str,
    ) -> None:
        """Call a function of the header for the channels first .. last - 1."""
        nest = self.nest
        out = nest.operator.out
        zero = tuple(i if i.vars() <= {0} else _without_variables(i) for i in out.index)
        start = nest.pointer(Access(out.buffer, out.shape, zero), {0: iteration(0)}) + first
        types = ", ".join((VALUE_TYPES[out.buffer.dtype], *constants))
        more = () if channel is None else (channel,)
        arguments = GEOMETRY, image, weights, start, *self.pixels, *more, call("int", last - first)
        nest.out.add(Do(call(f"stretto::{function}<{types}>", *arguments)))


def _without_variables(index: Index) -> Index:
    """Return the index with its variables set to 0."""
    return Index(tuple((a, c) for a, c in index.terms if not isinstance(a, Var)), index.const)


def _declare(nest: CppNestPrinter, conv: Convolution, column: int, panel: int) -> None:
    """Declare the geometry, as an object of the stage."""
    operator = nest.operator
    width = operator.dims[column]
    out_pixel = stride(operator.out, column)
    if width == 1:
        out_pixel = stride(operator.out, 1) if operator.dims[1] != 1 else 0
    sizes: list[Operand] = [
        nest.number(conv.height),
        nest.number(conv.width),
        nest.extent(width),
        *(n for pair in (conv.kernel, conv.step, conv.padding, conv.dilation) for n in pair),
        conv.in_channels,
        conv.in_channels * conv.groups,
        nest.number(out_pixel),
        panel,
    ]
    text = joined("const stretto::Pixels s = {", separated(sizes), "};")
    nest.out.add(Raw(text, GEOMETRY))
