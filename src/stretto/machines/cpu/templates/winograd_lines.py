"""Convolutions by minimal filtering along one dim of images whose channels are contiguous.

The header lines.h has the code: lines of 4 pixels take 6 multiplications for each group of three
taps instead of 12, lines of 2 take 4 instead of 6. It is for convolutions that the template
`winograd` does not compute: taps other than 3 x 3, and steps across the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from stretto.device.operator import Operator, Stage
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import Convolution
from stretto.kernels.panels import PackedTemplate, static
from stretto.machines.cpu.costs import CpuCosts
from stretto.machines.cpu.printer.expr import VALUE_TYPES
from stretto.machines.cpu.printer.nest import NestPrinter
from stretto.machines.cpu.template import Candidate, CpuTemplate, Family, Request, Shared
from stretto.machines.cpu.templates.winograd import (
    FEWEST,
    MOST,
    PANELS,
    REPEATED,
    SIDES,
    has_plain_weights,
    panel_of,
    reading_seconds,
    weights_of,
    write_filtered,
)

LINE_BYTES, APART, FEWEST_TILES = 2560 << 10, 16, 8
"""Limit on the bytes of the transformed lines of a block, and the elements between lines (both as
in lines.h); number of tiles that must fit."""
LINES, DOWN = (3, 2), 2
"""The dims of the weights along which lines can run, and the one that runs down the image."""
EVEN = 8
"""Number of tiles of a line per unit from which it hardly matters if units get different
numbers."""
TRANSFORMS = {4: 1.5, 2: 1.0}
"""Cost of transforming a tile along a line, as the number of channels of the other side whose
products cost as much."""


@dataclass(frozen=True, slots=True)
class WinogradLines(PackedTemplate, CpuTemplate):
    """Lines of pixels, transformed so that a product with the transformed weights is a position of
    the line.

    It computes the operator by other products, so it is no `PanelTemplate`. `line`: the dim of the
    weights along which lines run: 2, down the image, or 3.
    """

    name: ClassVar[str] = "winograd_lines"
    header: ClassVar[str] = "lines.h"
    line: int
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = lines_convolution_of(operator)
        if found is None:
            raise ValueError("the operator is no convolution that lines of pixels can compute")
        return {"convolution": found}

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        kind = VALUE_TYPES[stage.operator.out.buffer.dtype]
        return (Shared(self.header, "STRETTO_SHARED_LINES", (kind, *self.constants)),)

    @property
    def side(self) -> int:
        """Number of pixels of a line that are computed at once."""
        return static(self.panels.shape[0]) - 2

    @property
    def constants(self) -> tuple[str, ...]:
        return str(self.side), "true" if self.line == DOWN else "false"

    def write(self, nest: NestPrinter) -> None:
        write_filtered(nest, self.convolution, self.panels, "winograd_lines", self.constants)


def lines_convolution_of(operator: Operator) -> Convolution | None:
    """Return the convolution that an operator is, if lines of pixels along one of its dims can
    compute it, else None."""
    conv = pixel_convolution_of(operator)
    if conv is None or len(operator.dims) != 4 or 1 in operator.dims[1:3]:
        return None
    if not has_plain_weights(operator, conv):
        return None
    return conv if any(_suits(conv, line) for line in LINES) else None


def _suits(conv: Convolution, line: int) -> bool:
    """True if lines can run along a dim of the weights, and a line needs few enough values."""
    along, across = line - 2, 3 - line
    if conv.dilation != (1, 1) or conv.step[along] != 1 or conv.kernel[along] < 2:
        return False
    if (conv.kernel, conv.step) == ((3, 3), (1, 1)):  # The template winograd saves more.
        return False
    groups, taps = -(-conv.kernel[along] // 3), conv.kernel[across]
    tile = 8 * (groups * conv.in_channels + APART)  # Bytes, for the widest element type.
    return FEWEST_TILES * taps * tile * (max(SIDES) + 2) <= LINE_BYTES


def _candidate(request: Request) -> Candidate | None:
    """Return the lines that take least time, if they take less than the products of all taps."""
    operator, costs = request.operator, request.costs
    conv = lines_convolution_of(operator)
    if conv is None or not FEWEST <= conv.in_channels <= MOST:
        return None
    weights, best = weights_of(operator), None
    least = max(request.product_seconds, reading_seconds(weights.nbytes, costs))
    for line in LINES:
        for side in SIDES:
            if side > costs.most_filtered or not _suits(conv, line):
                continue
            computing, reading = _seconds(request, conv, side, line)
            if max(computing, reading) <= least:
                best, least = (side, line, computing, reading), max(computing, reading)
    if best is None:
        return None
    side, line, computing, reading = best
    panel, step = panel_of(conv, request.units, PANELS[costs.registers])
    if any(box[3].offset % step for box in request.member.boxes):
        return None
    panels = request.packings.add_lines(weights, panel, side, line)
    return Candidate(
        WinogradLines(panels, line, conv),
        (1, _rows(request, conv, side) if line == DOWN else 1, 0, step),
        max(computing, panels.nbytes / costs.bandwidth),
        last=3,
        repeated=REPEATED,
        rows=(0, 1, 2),
        reading=reading,
    )


def _seconds(request: Request, conv: Convolution, side: int, line: int) -> tuple[float, float]:
    """Return the seconds of computing with lines of this size, and of reading the weights from
    memory."""
    costs: CpuCosts = request.costs
    length = costs.size(request.operator.dims[line - 1])
    taps, across = conv.kernel[line - 2], conv.kernel[3 - line]
    parts = request.units if line == DOWN and _rows(request, conv, side) == 1 else 1
    tiles = parts * ceil(ceil(length / parts) / side)
    positions = (side + 2) * ceil(taps / 3)
    share = positions * tiles / max(taps * length, 1)
    transforms = TRANSFORMS[side] * (1 / (across * conv.per_group) + 1 / (conv.in_channels * taps))
    size = weights_of(request.operator).nbytes * positions // taps
    seconds = request.product_seconds * share * (1 + transforms)
    return seconds, reading_seconds(size, costs)


def _rows(request: Request, conv: Convolution, side: int) -> int:
    """Return what the rows of a task are multiples of, if lines run down: whole tiles for long
    lines; whole lines (0) for short ones, if the channels can be cut; else 1, so that units
    have equal numbers of rows."""
    if request.costs.size(request.operator.dims[1]) >= EVEN * side * request.units:
        return side
    _, step = panel_of(conv, request.units, PANELS[request.costs.registers])
    can_cut = all(box[3].grid is not None for box in request.member.boxes)
    return 0 if can_cut and conv.out_channels >= step * request.units else 1


FAMILY = Family((WinogradLines,), _candidate, rank=-2)
