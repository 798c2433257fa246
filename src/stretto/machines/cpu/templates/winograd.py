"""Convolutions of 3 x 3 taps by minimal filtering, on images whose channels are contiguous.

The header winograd.h has the code, and the digits that it loses: tiles of 2 x 2 pixels take 16
multiplications instead of 36, tiles of 4 x 4 take 36 instead of 144. Tiles with values that are not
finite are computed from the untransformed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt, prod
from typing import ClassVar

from stretto.device.expr import Buffer, Index, Var
from stretto.device.operator import Operator, Stage
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import Convolution, loads_of
from stretto.kernels.panels import PackedTemplate, static
from stretto.machines.cpu.costs import CpuCosts
from stretto.machines.cpu.printer.expr import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import NestPrinter
from stretto.machines.cpu.template import Candidate, CpuTemplate, Family, Request, Shared
from stretto.machines.cpu.templates.pixels import GROUP, VECTOR, Place
from stretto.machines.terms import infix, joined, separated

SIDES = {4: 7, 2: 4}
"""Pixels of the result along a side of a tile, with the cost of transforming a tile, as the number
of channels of the other side whose products cost as much."""
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


@dataclass(frozen=True, slots=True)
class Winograd(PackedTemplate, CpuTemplate):
    """Tiles of pixels, transformed so that a product with the transformed weights is a position of
    the tile.

    It computes the operator by other products, so it is no `PanelTemplate`.
    """

    name: ClassVar[str] = "winograd"
    header: ClassVar[str] = "winograd.h"
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = filtered_convolution_of(operator)
        if found is None:
            raise ValueError("the operator is no convolution of 3 x 3 taps by constant weights")
        return {"convolution": found}

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        kind = VALUE_TYPES[stage.operator.out.buffer.dtype]
        return (Shared(self.header, "STRETTO_SHARED_WINOGRAD", (kind, str(self.side))),)

    @property
    def positions(self) -> int:
        """Number of products of a tile for each pair of channels."""
        return static(self.panels.shape[0])

    @property
    def side(self) -> int:
        return isqrt(self.positions) - 2

    def write(self, nest: NestPrinter) -> None:
        write_filtered(nest, self.convolution, self.panels, "winograd_pixels", (str(self.side),))


def write_filtered(
    nest: NestPrinter,
    conv: Convolution,
    panels: Buffer,
    function: str,
    constants: Sequence[str],
) -> None:
    """Call a function of a header for the channels of a task, or for those of each group."""
    place = Place.of(nest, conv, static(panels.shape[-1]))
    first, last = place.channels
    kind = VALUE_TYPES[nest.operator.out.buffer.dtype]
    plain = nest.names.buffer(weights_of(nest.operator))
    sizes = nest.names.buffer(panels), panels.elements // static(panels.shape[0]), plain
    filters = joined(f"stretto::Filters<{kind}>{{", separated(sizes), "}")
    with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
        size = conv.per_group
        if conv.groups == 1:
            place.call(function, place.image, filters, first, last, first, *constants)
            return
        with nest.loop(GROUP, infix(first, "/", size), infix(last, "/", size)):
            image, begin = place.image + GROUP * conv.in_channels, GROUP * size
            place.call(function, image, filters, begin, begin + size, begin, *constants)


def weights_of(operator: Operator) -> Buffer:
    return loads_of(operator)[0].buffer


def filtered_convolution_of(operator: Operator) -> Convolution | None:
    """Return the convolution that an operator is, if tiles of pixels can compute it: 3 x 3 taps,
    steps of 1, whole vectors of channels in each group, and weights that are a whole constant.
    Else None."""
    conv = pixel_convolution_of(operator)
    if conv is None or len(operator.dims) != 4 or operator.dims[1] == 1 or operator.dims[2] == 1:
        return None
    if (conv.kernel, conv.step, conv.dilation) != ((3, 3), (1, 1), (1, 1)):
        return None
    if not FEWEST <= conv.in_channels <= MOST:
        return None
    return conv if has_plain_weights(operator, conv) else None


def has_plain_weights(operator: Operator, conv: Convolution) -> bool:
    """True if the weights are a whole constant, with whole vectors of channels in each group."""
    if conv.in_channels % VECTOR or conv.per_group % VECTOR:
        return False
    weight = loads_of(operator)[0]
    whole = (conv.out_channels, conv.in_channels, *conv.kernel)
    sizes = (*operator.dims, *operator.reduce)
    places = tuple(Index.of(Var(n)) if sizes[n] != 1 else Index() for n in (3, 6, 4, 5))
    if weight.buffer.kind != "constant" or weight.index != places:
        return False
    return weight.buffer.shape == weight.shape == whole


def _candidate(request: Request) -> Candidate | None:
    """Return the tiles that take least time, if they take less than the products of all taps."""
    operator, costs = request.operator, request.costs
    conv = filtered_convolution_of(operator)
    if conv is None:
        return None
    weights, best = weights_of(operator), None
    least = max(request.product_seconds, reading_seconds(weights.nbytes, costs))
    for side in SIDES:
        computing, reading = _seconds(request, conv, side)
        if side <= costs.most_filtered and max(computing, reading) <= least:
            best, least = (side, computing, reading), max(computing, reading)
    if best is None:
        return None
    side, computing, reading = best
    panel, step = panel_of(conv, request.units, PANELS[costs.registers])
    if any(box[3].offset % step for box in request.member.boxes):
        return None
    panels = request.packings.add_filters(weights, panel, side)
    return Candidate(
        Winograd(panels, conv),
        (1, side, 0, step),
        max(computing, panels.nbytes / costs.bandwidth),
        last=3,
        repeated=REPEATED,
        rows=(0, 1, 2),
        reading=reading,
    )


def _seconds(request: Request, conv: Convolution, side: int) -> tuple[float, float]:
    """Return the seconds of computing with tiles of this size, and of reading the weights from
    memory."""
    height, width = (request.costs.size(extent) for extent in request.operator.dims[1:3])
    tiles, positions = ceil(height / side) * ceil(width / side), (side + 2) ** 2
    share = positions * tiles / max(prod((*conv.kernel, height, width)), 1)
    transforms = SIDES[side] * (1 / conv.in_channels + 1 / conv.per_group)
    size = weights_of(request.operator).nbytes * positions // prod(conv.kernel)
    seconds = request.product_seconds * share * (1 + transforms)
    return seconds, reading_seconds(size, request.costs)


def panel_of(conv: Convolution, units: int, panels: Sequence[int]) -> tuple[int, int]:
    """Return the output channels per panel of transformed weights, and the multiple of channels
    per tile: each unit has its own panels or groups, with nearly the same number of channels."""
    if conv.groups > 1:
        vectors = conv.per_group // VECTOR
        return next(n for n in panels if vectors % n == 0) * VECTOR, conv.per_group
    share = ceil(conv.out_channels / VECTOR / units)
    width = next(n for n in panels if ceil(share / n) * n - share <= share * UNEVEN)
    return width * VECTOR, ceil(share / width) * width * VECTOR


def reading_seconds(size: int, costs: CpuCosts) -> float:
    """Return the seconds of reading weights of this size from beyond the second-level cache; 0 if
    they fit."""
    return size / costs.memory_bandwidth if size > costs.cache_bytes else 0.0


FAMILY = Family((Winograd,), _candidate, rank=-2)
