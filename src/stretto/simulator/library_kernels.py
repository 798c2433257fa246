"""Run times of kernels of torch's libraries on a GPU: a roofline with a table of efficiencies.

A call takes as long as its arithmetic, at a part of the peak of the units that it uses, or
as its bytes, whichever is more. **All figures of `KERNELS` are estimates; nothing was
measured here.** They follow what is published for large problems: cuBLAS reaches 0.7 to
0.85 of the peak of tensor cores with f16 and bf16 and 0.85 to 0.9 of that of f32
arithmetic, cuDNN's implicit products about 0.6 with many channels, and FlashAttention-2,
which torch calls, 0.35 (H100) to 0.7 (A100) of the peak (Dao 2023; Shah et al. 2024). Small
problems lose for three reasons: there are fewer tiles than units, a tile that is not full
is computed in full, and a short sum has no time to fill the pipeline (`ramp`).

f32 numbers are multiplied as torch is configured: products in f32 and convolutions in TF32
unless `torch.backends.cuda.matmul.allow_tf32` and `torch.backends.cudnn.allow_tf32` are set
otherwise. Our own kernels always sum three products of TF32, which is as accurate as f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall
from stretto.device.regions import call_buffers
from stretto.ir.types import DType
from stretto.simulator.devices import BlockNeeds, Device

# ---- Work of a library call, by its operator and the shapes of its operands: an estimate, since
# the library chooses its kernels itself.


_MATRIX = {"mm": 0, "bmm": 0, "matmul": 0, "linear": 0, "mv": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices, with the number of the left argument."""
_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution")
_ATTENTION = "scaled_dot_product_attention"


class ComputationKind(Enum):
    """The kind of computation of a call, which decides the kernels that the library uses."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LibraryWork:
    """The work of a call. operations: of the whole call. results: elements of the result. depth:
    products summed for each element; 0 for a call that multiplies no matrices."""

    operations: float
    results: int
    depth: int = 0
    kind: ComputationKind = ComputationKind.OTHER


def library_work(call: LibraryCall, costs: CostModel) -> LibraryWork:
    """Return the work of a call; a multiplication and an addition are two operations."""
    name = call.target.removeprefix("aten.").split(".")[0].lstrip("_")
    results = max((costs.points(out.shape) for out in call.outs), default=1)
    left = call.args[_MATRIX[name]] if name in _MATRIX else None
    if isinstance(left, Buffer):
        depth = costs.size(left.shape[-1])
        return LibraryWork(2.0 * results * depth, results, depth, ComputationKind.PRODUCT)
    weights = call.args[1] if name in _CONVOLUTIONS else None
    if isinstance(weights, Buffer):
        depth = costs.points(weights.shape[1:])
        return LibraryWork(2.0 * results * depth, results, depth, ComputationKind.CONVOLUTION)
    keys = call.args[1] if name.startswith(_ATTENTION) else None
    if isinstance(keys, Buffer):
        length, depth = costs.size(keys.shape[-2]), costs.size(keys.shape[-1])
        return LibraryWork(4.0 * results * length, results, depth, ComputationKind.ATTENTION)
    read = max((costs.points(buffer.shape) for buffer in call_buffers(call)), default=1)
    return LibraryWork(float(max(results, read)), max(results, read))


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """Kernels of one kind for one kind of numbers.

    efficiency: part of the peak, for problems that are large in every dim. ramp: the length of
    a sum at which half of that is reached. tile: results along either dim that are computed
    together, on a multiprocessor or on several that share their loads; smaller ones are used if
    there would be fewer of them than units. needs: of a block. passes: additional moves of the
    largest operand and the result, beyond the one that is counted for all, since the library
    converts images to another layout and back.
    """

    efficiency: float
    ramp: int
    tile: int
    needs: BlockNeeds
    passes: int = 0


_LARGE = BlockNeeds(256, 168, 96 << 10)
_USUAL = BlockNeeds(128, 168, 48 << 10)
_OTHER = BlockNeeds(128, 64, 2 << 10)

KERNELS = {
    (ComputationKind.PRODUCT, "half"): LibraryKernel(0.75, 96, 256, _LARGE),
    (ComputationKind.PRODUCT, "tf32"): LibraryKernel(0.7, 96, 256, _LARGE),
    (ComputationKind.PRODUCT, "single"): LibraryKernel(0.85, 32, 128, _USUAL),
    (ComputationKind.PRODUCT, "double"): LibraryKernel(0.85, 32, 64, _USUAL),
    (ComputationKind.CONVOLUTION, "half"): LibraryKernel(0.6, 96, 256, _LARGE, 1),
    (ComputationKind.CONVOLUTION, "tf32"): LibraryKernel(0.6, 96, 256, _LARGE, 1),
    (ComputationKind.CONVOLUTION, "single"): LibraryKernel(0.65, 64, 128, _USUAL),
    (ComputationKind.CONVOLUTION, "double"): LibraryKernel(0.5, 64, 64, _USUAL),
    (ComputationKind.ATTENTION, "half"): LibraryKernel(0.4, 32, 128, _LARGE),
    (ComputationKind.ATTENTION, "tf32"): LibraryKernel(0.4, 32, 64, _LARGE),
    (ComputationKind.ATTENTION, "single"): LibraryKernel(0.5, 32, 64, _LARGE),
    (ComputationKind.ATTENTION, "double"): LibraryKernel(0.3, 32, 64, _USUAL),
}
"""By kind and number format; `numbers_of` returns the format of a call."""

LEAST_TILE = 64
"""Smallest tile along either dim."""
ELEMENTS = 1024
"""Results per block of any other kernel, which computes at `Device.functions`."""
LEAST_DEPTH = 128
"""Least length of the partial sums of a product. If there are fewer tiles than units, longer sums
are split; a second kernel then adds the parts."""


@dataclass(frozen=True, slots=True)
class LibraryEstimate:
    """Estimate of a call. blocks, needs: of its main kernel. overhead: seconds in which nothing is
    computed. compute: seconds of all its arithmetic on one multiprocessor. moved: bytes by
    buffer name. near: additional bytes that it reads from the cache. operations: of the call."""

    blocks: int
    needs: BlockNeeds
    overhead: float
    compute: float
    moved: tuple[tuple[str, float], ...]
    near: float
    operations: float

    def seconds(self, device: Device) -> float:
        """Return the seconds of the call by itself, with all operands in memory, without the
        overhead."""
        units = min(self.blocks, device.units)
        nbytes = sum(count for _, count in self.moved)
        bandwidth = min(device.memory_bandwidth, device.unit_bandwidth * units)
        near = self.near / min(device.cache_bandwidth, 2 * device.unit_bandwidth * units)
        return max(self.compute / units, nbytes / bandwidth, near)


def library_estimate(call: LibraryCall, device: Device, costs: CostModel) -> LibraryEstimate:
    """Return the estimate of a call on a GPU."""
    work = library_work(call, costs)
    moved = {buffer.name: _nbytes(buffer, costs) for buffer in {*call_buffers(call), *call.outs}}
    start = device.start_seconds + device.latency_seconds
    if work.kind is ComputationKind.OTHER:
        blocks = max(-(-work.results // ELEMENTS), 1)
        compute = work.operations / (device.functions * device.efficiency / device.units)
        return LibraryEstimate(blocks, _OTHER, start, compute, _sorted(moved), 0.0, work.operations)
    dtype = call.outs[0].dtype
    numbers = numbers_of(work.kind, dtype, device)
    kernel = KERNELS[work.kind, numbers]
    tiles = _tiles(kernel.tile, work, dtype, device)
    parts = 1
    if work.kind is ComputationKind.PRODUCT:
        parts = max(min(device.units // tiles.count, work.depth // LEAST_DEPTH), 1)
    rate = _peak(numbers, device) * kernel.efficiency / device.units
    rate *= max(tiles.length, 1) / (max(tiles.length, 1) + kernel.ramp)
    near = max(tiles.nbytes - sum(moved.values()), 0.0)
    for name in _images(call) if kernel.passes else ():
        moved[name] *= 1 + 2 * kernel.passes
    further = kernel.passes * 2 + (parts > 1)
    return LibraryEstimate(
        tiles.count * parts,
        kernel.needs,
        start * (1 + further) + further * device.next_launch_seconds / 2,
        work.operations * tiles.waste / rate,
        _sorted(moved),
        near,
        work.operations,
    )


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of a call. count: of its results. length: of the sums of each. nbytes: loaded by
    all of them. waste: ratio of operations on full tiles to operations on results."""

    count: int
    length: int
    nbytes: float
    waste: float


def _tiles(tile: int, work: LibraryWork, dtype: DType, device: Device) -> _Tiles:
    """Return the largest tiles of which there are enough for all units. A tile of an attention is
    a number of rows of queries, which are all multiplied with all keys and values."""
    rows, side = work.kind is ComputationKind.ATTENTION, tile
    while side > LEAST_TILE and work.results < side * (work.depth if rows else side) * device.units:
        side //= 2
    across = work.depth if rows else side
    count = max(-(-work.results // (side * across)), 1)
    length = max(int(work.operations / (4 * max(work.results, 1))), 1) if rows else work.depth
    nbytes = float(count * length * (2 * across if rows else 2 * side) * dtype.itemsize)
    # Products of few rows have their own kernels, which do not compute full tiles.
    waste = min(count * side * across / max(work.results, 1), 2.0)
    return _Tiles(count, length, nbytes, waste)


def numbers_of(kind: ComputationKind, dtype: DType, device: Device) -> str:
    """Return the number format in which a call multiplies, as torch is configured now."""
    if dtype is DType.F64:
        return "double"
    if dtype in (DType.F16, DType.BF16):
        return "half"
    backends = torch.backends
    allowed = backends.cudnn if kind is ComputationKind.CONVOLUTION else backends.cuda.matmul
    return "tf32" if device.has_tf32 and allowed.allow_tf32 else "single"


def _peak(numbers: str, device: Device) -> float:
    match numbers:
        case "double":
            return device.double_flops
        case "half":
            return device.half_flops
        case "tf32":
            return 3 * device.tensor_flops
        case _:
            return device.flops


def _images(call: LibraryCall) -> tuple[str, str]:
    """Return the names of the image that a convolution reads, and of its result."""
    image = call.args[0]
    assert isinstance(image, Buffer)
    return image.name, call.outs[0].name


def _nbytes(buffer: Buffer, costs: CostModel) -> float:
    return float(costs.points(buffer.shape) * buffer.dtype.itemsize)


def _sorted(moved: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(moved.items()))
