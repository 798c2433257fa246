"""Convolutions of 3 x 3 taps by minimal filtering, on images whose channels are contiguous.

The header winograd.h has the code: 16 multiplications for four pixels instead of 36, and what it
costs in digits. Tiles with values that are not finite are computed from the weights as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
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
from stretto.machines.cpu.templates.pixels import VECTOR, Place
from stretto.machines.terms import joined, separated

SIDE = 2
"""Pixels of the result along a side of a tile."""
POSITIONS = (SIDE + 2) ** 2
FEWEST, MOST = 32, 1024
"""Input channels: with fewer, transforming counts for more than multiplying; of more, too few tiles
are multiplied at once."""
PANELS = (4, 3, 5, 6, 7, 2, 1)
"""Vectors of output channels per panel of weights, the better ones first."""
UNEVEN = 1 / 8
"""The share of channels that a unit may have more than another for a better panel."""
TRANSFORMS = 4
"""What transforming a tile takes, in the products with as many channels of the other side."""
REPEATED = 6
"""What transforming the pixels once more for the channels of each task costs, in channels."""


@dataclass(frozen=True, slots=True)
class Winograd(PackedTemplate, CpuTemplate):
    """Tiles of pixels, transformed so that a product with the transformed weights is a position of
    the tile. It computes the operator by other products, so it is no `PanelTemplate`.
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
        return (Shared(self.header, "STRETTO_SHARED_WINOGRAD", (kind,)),)

    def write(self, nest: NestPrinter) -> None:
        lanes = static(self.panels.shape[-1])
        place = Place.of(nest, self.convolution, lanes)
        first, last = place.channels
        kind = VALUE_TYPES[nest.operator.out.buffer.dtype]
        plain = nest.names.buffer(weights_of(nest.operator))
        sizes = nest.names.buffer(self.panels), self.panels.elements // POSITIONS, plain
        filters = joined(f"stretto::Filters<{kind}>{{", separated(sizes), "}")
        with nest.loop(iteration(0), *nest.bounds(nest.stage.box[0])):
            place.call("winograd_pixels", place.image, filters, first, last, first)


def weights_of(operator: Operator) -> Buffer:
    return loads_of(operator)[0].buffer


def filtered_convolution_of(operator: Operator) -> Convolution | None:
    """The convolution that an operator is, if tiles of pixels compute it: 3 x 3 taps, steps of 1,
    whole vectors of channels, and weights that are a whole constant."""
    conv = pixel_convolution_of(operator)
    if conv is None or len(operator.dims) != 4 or operator.dims[1] == 1 or operator.dims[2] == 1:
        return None
    if (conv.kernel, conv.step, conv.dilation) != ((3, 3), (1, 1), (1, 1)) or conv.groups != 1:
        return None
    if not FEWEST <= conv.in_channels <= MOST:
        return None
    if conv.in_channels % VECTOR or conv.out_channels % VECTOR:
        return None
    weight = loads_of(operator)[0]
    whole = (conv.out_channels, conv.in_channels, *conv.kernel)
    places = tuple(Index.of(Var(n)) for n in (3, 6, 4, 5))
    if weight.buffer.kind != "constant" or weight.index != places:
        return None
    return conv if weight.buffer.shape == weight.shape == whole else None


def _candidate(request: Request) -> Candidate | None:
    operator, costs = request.operator, request.costs
    conv = filtered_convolution_of(operator)
    if conv is None:
        return None
    height, width = (costs.size(extent) for extent in operator.dims[1:3])
    tiles = ceil(height / SIDE) * ceil(width / SIDE)
    share = POSITIONS * tiles / max(prod((*conv.kernel, height, width)), 1)
    transforms = 1 + TRANSFORMS / conv.in_channels + TRANSFORMS / conv.out_channels
    computing = request.product_seconds * share * transforms
    size = weights_of(operator)
    reading = _reading(size.nbytes * POSITIONS // prod(conv.kernel), costs)
    if max(computing, reading) > max(request.product_seconds, _reading(size.nbytes, costs)):
        return None
    panel, step = _panel(conv.out_channels, request.units)
    panels = request.packings.add_filters(size, panel)
    if any(box[3].offset % step for box in request.member.boxes):
        return None
    return Candidate(
        Winograd(panels, conv),
        (1, SIDE, 0, step),
        max(computing, panels.nbytes / costs.bandwidth),
        last=3,
        repeated=REPEATED,
        rows=(0, 1, 2),
        reading=reading,
    )


def _panel(channels: int, units: int) -> tuple[int, int]:
    """(output channels per panel of transformed weights, what tiles of channels are multiples of):
    each unit has panels of its own, of nearly as many channels as any."""
    share = ceil(channels / VECTOR / units)
    width = next(n for n in PANELS if ceil(share / n) * n - share <= share * UNEVEN)
    return width * VECTOR, ceil(share / width) * width * VECTOR


def _reading(size: int, costs: CpuCosts) -> float:
    """The seconds in which weights of a size come from beyond the second-level cache."""
    return size / costs.memory_bandwidth if size > costs.cache_bytes else 0.0


FAMILY = Family((Winograd,), _candidate, rank=-2)
