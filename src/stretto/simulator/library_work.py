"""What a library call does, by its operator and the shapes of its operands: an estimate, since the
library chooses its kernels itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall
from stretto.device.regions import call_buffers

_MATRIX = {"mm": 0, "bmm": 0, "matmul": 0, "linear": 0, "mv": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices, and which argument is the left one."""
_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution")
_ATTENTION = "scaled_dot_product_attention"


class Kind(Enum):
    """What a call computes, as far as it decides which kernels of the library do so."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LibraryWork:
    """operations: of the whole call. results: elements that it makes. depth: how many products
    each of them sums; 0 for a call that multiplies no matrices."""

    operations: float
    results: int
    depth: int = 0
    kind: Kind = Kind.OTHER


def library_work(call: LibraryCall, costs: CostModel) -> LibraryWork:
    """The work of a call; a multiplication and an addition are two operations."""
    name = call.target.removeprefix("aten.").split(".")[0].lstrip("_")
    results = max((costs.points(out.shape) for out in call.outs), default=1)
    left = call.args[_MATRIX[name]] if name in _MATRIX else None
    if isinstance(left, Buffer):
        depth = costs.size(left.shape[-1])
        return LibraryWork(2.0 * results * depth, results, depth, Kind.PRODUCT)
    weights = call.args[1] if name in _CONVOLUTIONS else None
    if isinstance(weights, Buffer):
        depth = costs.points(weights.shape[1:])
        return LibraryWork(2.0 * results * depth, results, depth, Kind.CONVOLUTION)
    keys = call.args[1] if name.startswith(_ATTENTION) else None
    if isinstance(keys, Buffer):
        length, depth = costs.size(keys.shape[-2]), costs.size(keys.shape[-1])
        return LibraryWork(4.0 * results * length, results, depth, Kind.ATTENTION)
    read = max((costs.points(buffer.shape) for buffer in call_buffers(call)), default=1)
    return LibraryWork(float(max(results, read)), max(results, read))
