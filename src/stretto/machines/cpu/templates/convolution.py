"""Convolutions, without a copy of all patches in memory. The header conv.h has the code."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from stretto.device.expr import Buffer, Index, Var
from stretto.device.operator import Operator, Template
from stretto.kernels.contraction import (
    Convolution,
    convolution_of,
    flat_stride,
    loads_of,
    stride,
)
from stretto.kernels.groups import Member
from stretto.kernels.panels import PackedTemplate, PanelRead
from stretto.machines.cpu.templates.candidate import Candidate, Request
from stretto.machines.cpu.templates.contraction import (
    constant_layout,
    depth_dims,
    static,
)


@dataclass(frozen=True, slots=True)
class Conv(PackedTemplate):
    """Products of slabs of `rows` channels of packed weights and patches of `columns` pixels."""

    name: ClassVar[str] = "conv"
    rows: int
    columns: int
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"convolution": known(operator)}

    def read(self, operator: Operator) -> PanelRead:
        channel, size = Index.of(Var(1)), self.convolution.per_group
        outer, column = ((channel // size,), channel % size)
        if self.convolution.groups == 1:
            outer, column = (), channel
        return PanelRead(operator, self.panels, loads_of(operator)[0], outer, column)


@dataclass(frozen=True, slots=True)
class Depthwise(Template):
    """Every channel has an image and taps of its own."""

    name: ClassVar[str] = "depthwise"
    convolution: Convolution

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"convolution": known(operator)}


def known(operator: Operator) -> Convolution:
    found = convolution_of(operator)
    if found is None:
        raise ValueError("the operator is no convolution")
    return found


def convolution_candidate(request: Request) -> Candidate | None:
    operator, member = request.operator, request.member
    conv = convolution_of(operator)
    if conv is None or conv.in_channels * prod(conv.kernel) == 0:
        return None
    weight = loads_of(operator)[0]
    if constant_layout(operator, weight) is None:
        return None
    if conv.groups > 1 and any(box[1].offset % conv.per_group for box in member.boxes):
        return None
    sizes = [static(extent) for extent in operator.dims[2:]]
    height, width = (1, *sizes) if len(sizes) == 1 else sizes
    seconds = request.product_seconds
    if conv.is_depthwise:
        if not _taps_are_dense(operator, conv):
            return None
        multiples = (1, 1, *_spatial_multiples(len(operator.dims), height, width, 1))
        return Candidate(Depthwise(conv), multiples, seconds)
    pixels = _pixel_lanes(height * width, conv.per_group, request.units)
    channels = _slab_height(member, 6 if pixels == 64 else 12)
    panels = _panels(request, conv, channels)
    step = conv.per_group if conv.groups > 1 else channels
    multiples = (1, step, *_spatial_multiples(len(operator.dims), height, width, pixels))
    template = Conv(panels, channels, pixels, conv)
    return Candidate(template, multiples, seconds, last=1, repeated=request.costs.patch_channels)


def _panels(request: Request, conv: Convolution, channels: int) -> Buffer:
    operator = request.operator
    weight = loads_of(operator)[0]
    layout = constant_layout(operator, weight)
    assert layout is not None
    outer = tuple((dim.size, dim.step) for dim in layout.stack)
    if conv.groups > 1:
        outer = (*outer, (conv.groups, conv.per_group * stride(weight, 1)))
    columns = (conv.per_group, stride(weight, 1))
    depth = depth_dims(operator, weight)
    return request.packings.add(weight.buffer, layout.start, outer, columns, depth, channels)


def _taps_are_dense(operator: Operator, conv: Convolution) -> bool:
    """Whether the weights of a channel follow each other, and those of the next one follow them."""
    weight, rank = loads_of(operator)[0], len(operator.dims)
    taps = [(rank + n, extent) for n, extent in enumerate(operator.reduce) if extent != 1]
    return flat_stride(weight, taps) == 1 and stride(weight, 1) == prod(conv.kernel)


def _slab_height(member: Member, height: int) -> int:
    """Channels per slab of packed weights: every box must begin at the start of a slab."""
    offsets = [box[1].offset for box in member.boxes]
    return next(h for h in (height, 6, 4, 2, 1) if all(offset % h == 0 for offset in offsets))


def _pixel_lanes(pixels: int, channels: int, units: int) -> int:
    """Pixels per panel: four vectors, or fewer where that gives every unit the same share of an
    image.

    Splitting channels instead balances only when there are many blocks of them, and packs patches
    twice.
    """
    if pixels < 32:
        return 16
    few_channels = channels < 48 * units
    return 32 if pixels < 64 or (few_channels and pixels < 64 * units) else 64


def _spatial_multiples(rank: int, out_h: int, out_w: int, lanes: int) -> tuple[int, ...]:
    """Whole rows, as few as fill panels to 94 % (0: the whole image)."""
    if rank == 3:
        return (0,)
    for rows in range(1, out_h):
        pixels = rows * out_w
        if -(-pixels // lanes) * lanes <= 1.06 * pixels:
            return (rows, 0)
    return (0, 0)
