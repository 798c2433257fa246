"""Convolutions by minimal filtering, on images whose channels are contiguous.

The template `winograd` is for 3 x 3 taps with steps of 1: tiles of 2 x 2 pixels take 16
multiplications instead of 36, tiles of 4 x 4 take 36 instead of 144. The header winograd.h has the
code, and the digits that it loses. Tiles with values that are not finite are computed from the
untransformed weights.

The template `winograd_lines` filters along one dim, for other taps, and steps across the lines:
lines of 4 pixels take 6 multiplications for each group of three taps instead of 12, lines of 2 take
4 instead of 6. Its code is in the header lines.h.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, isqrt, prod
from typing import ClassVar

from stretto.device.expr import Buffer, Index, Var
from stretto.device.operator import Operator, Stage
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import Convolution, loads_of
from stretto.kernels.panels import PackedTemplate, static
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    TemplateCandidate,
    TemplateRequest,
)
from stretto.machines.cpu.templates.pixels import GROUP, VECTOR, ImageTile
from stretto.machines.terms import Term, infix, joined, separated

SIDES = {4: (7, 1.5), 2: (4, 1.0)}
"""Pixels of the result along a side of a tile, or along a line, with the costs of transforming a
tile and a line, as the number of channels of the other side whose products cost as much."""
FEWEST, MOST = 16, 1024
"""Limits on input channels: with fewer, transforming takes longer than multiplying; with more, too
few tiles are multiplied at once."""
PANELS = {32: (4, 3, 5, 6, 7, 2, 1), 16: (2, 1)}
"""Vectors of output channels per panel of weights, the better ones first, for each number of
registers."""
UNEVEN = 1 / 8
"""Share of channels that a unit may have more than another one for a better panel."""
REPEATED = 6
"""Cost, in channels, of transforming the pixels again for the channels of each task."""
TILES, LINES, DOWN = 0, (3, 2), 2
"""Tiles, the dims of the weights along which lines can run, and the one that runs down the
image."""
LINE_BYTES, APART, FEWEST_TILES = 2560 << 10, 16, 8
"""Limit on the bytes of the transformed lines of a block, and the elements between lines (both as
in lines.h); number of tiles that must fit."""
EVEN = 8
"""Number of tiles of a line per unit from which it hardly matters if units get different
numbers."""


@dataclass(frozen=True, slots=True)
class _Filtered(PackedTemplate, CpuTemplate):
    """Tiles or lines of pixels, transformed so that a product with the transformed weights is a
    position of them.

    It computes the operator by other products, so it is no `PanelTemplate`. `macro` makes an
    instance of `function`, which computes the channels of a task or of a group.
    """

    macro: ClassVar[str]
    function: ClassVar[str]
    convolution: Convolution

    @property
    @abstractmethod
    def constants(self) -> tuple[str, ...]:
        """The arguments of the function template after the element type."""

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        kind = VALUE_TYPES[stage.operator.out.buffer.dtype]
        return (Shared(self.header, self.macro, (kind, *self.constants)),)

    def write(self, nest: CppNestPrinter) -> None:
        conv, panels = self.convolution, self.panels
        place = ImageTile.of(nest, conv, static(panels.shape[-1]))
        first, last = place.channels
        kind = VALUE_TYPES[nest.operator.out.buffer.dtype]
        plain = nest.names.buffer(weights_of(nest.operator))
        sizes = nest.names.buffer(panels), panels.elements // static(panels.shape[0]), plain
        filters = joined(f"stretto::Filters<{kind}>{{", separated(sizes), "}")

        def call(image: Term, begin: Term, end: Term, of_group: Term | int) -> None:
            place.call(self.function, image, filters, begin, end, of_group, *self.constants)

        with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
            size = conv.per_group
            if conv.groups == 1:
                call(place.image, first, last, first)
                return
            with nest.loop(GROUP, infix(first, "/", size), infix(last, "/", size)):
                begin = GROUP * size
                call(place.image + GROUP * conv.in_channels, begin, begin + size, begin)


@dataclass(frozen=True, slots=True)
class Winograd(_Filtered):
    """Tiles of pixels."""

    name: ClassVar[str] = "winograd"
    header: ClassVar[str] = "winograd.h"
    macro: ClassVar[str] = "STRETTO_SHARED_WINOGRAD"
    function: ClassVar[str] = "winograd_pixels"

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = filtered_convolution_of(operator)
        if found is None or not _has_tiles(found):
            raise ValueError("the operator is no convolution of 3 x 3 taps by constant weights")
        return {"convolution": found}

    @property
    def constants(self) -> tuple[str, ...]:
        return (str(isqrt(static(self.panels.shape[0])) - 2),)


@dataclass(frozen=True, slots=True)
class WinogradLines(_Filtered):
    """Lines of pixels. `line`: the dim of the weights along which lines run: 2, down the image, or
    3."""

    name: ClassVar[str] = "winograd_lines"
    header: ClassVar[str] = "lines.h"
    macro: ClassVar[str] = "STRETTO_SHARED_LINES"
    function: ClassVar[str] = "winograd_lines"
    line: int

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = filtered_convolution_of(operator)
        if found is None or not any(_suits(found, line) for line in LINES):
            raise ValueError("the operator is no convolution that lines of pixels can compute")
        return {"convolution": found}

    @property
    def constants(self) -> tuple[str, ...]:
        side = static(self.panels.shape[0]) - 2
        return str(side), "true" if self.line == DOWN else "false"


def weights_of(operator: Operator) -> Buffer:
    return loads_of(operator)[0].buffer


def filtered_convolution_of(operator: Operator) -> Convolution | None:
    """Return the convolution that an operator is, if its images have two dims and enough channels,
    and its weights are a whole constant, with whole vectors of channels in each group. Else
    None."""
    conv = pixel_convolution_of(operator)
    if conv is None or len(operator.dims) != 4 or 1 in operator.dims[1:3]:
        return None
    if not FEWEST <= conv.in_channels <= MOST:
        return None
    if conv.in_channels % VECTOR or conv.per_group % VECTOR:
        return None
    weight = loads_of(operator)[0]
    whole = (conv.out_channels, conv.in_channels, *conv.kernel)
    sizes = (*operator.dims, *operator.reduce)
    places = tuple(Index.of(Var(n)) if sizes[n] != 1 else Index() for n in (3, 6, 4, 5))
    if weight.buffer.kind != "constant" or weight.index != places:
        return None
    return conv if weight.buffer.shape == weight.shape == whole else None


def _has_tiles(conv: Convolution) -> bool:
    return (conv.kernel, conv.step, conv.dilation) == ((3, 3), (1, 1), (1, 1))


def _suits(conv: Convolution, line: int) -> bool:
    """True if lines can run along a dim of the weights, and a line needs few enough values. Tiles
    save more than lines."""
    along, across = line - 2, 3 - line
    if conv.dilation != (1, 1) or conv.step[along] != 1 or conv.kernel[along] < 2:
        return False
    if _has_tiles(conv):
        return False
    groups, taps = -(-conv.kernel[along] // 3), conv.kernel[across]
    tile = 8 * (groups * conv.in_channels + APART)  # Bytes, for the widest element type.
    return FEWEST_TILES * taps * tile * (max(SIDES) + 2) <= LINE_BYTES


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    """Return the tiles or lines that take least time, if they take less than the products of all
    taps."""
    operator, costs = request.operator, request.costs
    conv = filtered_convolution_of(operator)
    if conv is None:
        return None
    weights, best = weights_of(operator), None
    least = max(request.product_seconds, costs.reading_seconds(weights.nbytes))
    lines = (TILES,) if _has_tiles(conv) else [line for line in LINES if _suits(conv, line)]
    for line, side in product(lines, SIDES):
        computing, reading = _seconds(request, conv, side, line)
        if side <= costs.most_filtered and max(computing, reading) <= least:
            best, least = (line, side, computing, reading), max(computing, reading)
    if best is None:
        return None
    line, side, computing, reading = best
    panel, step = panel_of(conv, request.units, PANELS[costs.registers])
    if any(box[3].offset % step for box in request.member.boxes):
        return None
    if line == TILES:
        panels, rows = request.packings.add_filters(weights, panel, side), side
    else:
        panels = request.packings.add_lines(weights, panel, side, line)
        rows = _rows(request, conv, side) if line == DOWN else 1
    return TemplateCandidate(
        Winograd(panels, conv) if line == TILES else WinogradLines(panels, conv, line),
        (1, rows, 0, step),
        max(computing, panels.nbytes / costs.bandwidth),
        last=3,
        repeated=REPEATED,
        rows=(0, 1, 2),
        reading=reading,
    )


def _seconds(
    request: TemplateRequest, conv: Convolution, side: int, line: int
) -> tuple[float, float]:
    """Return the seconds of computing with tiles or lines of this size, and of reading the weights
    from memory."""
    sizes = [request.costs.size(extent) for extent in request.operator.dims[1:3]]
    inputs, outputs = conv.in_channels, conv.per_group
    if line == TILES:
        size, taps = prod(sizes), prod(conv.kernel)
        tiles, positions = prod(ceil(n / side) for n in sizes), (side + 2) ** 2
    else:
        size, taps = sizes[line - 2], conv.kernel[line - 2]
        parts = request.units if line == DOWN and _rows(request, conv, side) == 1 else 1
        tiles, positions = parts * ceil(ceil(size / parts) / side), (side + 2) * ceil(taps / 3)
        inputs, outputs = inputs * taps, outputs * conv.kernel[3 - line]
    transforms = SIDES[side][line != TILES] * (1 / inputs + 1 / outputs)
    share = positions * tiles / max(taps * size, 1)
    nbytes = weights_of(request.operator).nbytes * positions // taps
    seconds = request.product_seconds * share * (1 + transforms)
    return seconds, request.costs.reading_seconds(nbytes)


def panel_of(conv: Convolution, units: int, panels: Sequence[int]) -> tuple[int, int]:
    """Return the output channels per panel of transformed weights, and the multiple of channels
    per tile: each unit has its own panels or groups, with nearly the same number of channels."""
    if conv.groups > 1:
        vectors = conv.per_group // VECTOR
        return next(n for n in panels if vectors % n == 0) * VECTOR, conv.per_group
    share = ceil(conv.out_channels / VECTOR / units)
    width = next(n for n in panels if ceil(share / n) * n - share <= share * UNEVEN)
    return width * VECTOR, ceil(share / width) * width * VECTOR


def _rows(request: TemplateRequest, conv: Convolution, side: int) -> int:
    """Return what the rows of a task are multiples of, if lines run down: whole tiles for long
    lines; whole lines (0) for short ones, if the channels can be cut; else 1, so that units
    have equal numbers of rows."""
    if request.costs.size(request.operator.dims[1]) >= EVEN * side * request.units:
        return side
    _, step = panel_of(conv, request.units, PANELS[request.costs.registers])
    can_cut = all(box[3].grid is not None for box in request.member.boxes)
    return 0 if can_cut and conv.out_channels >= step * request.units else 1


FAMILY = CpuTemplateFamily((Winograd, WinogradLines), _candidate, rank=-2)
