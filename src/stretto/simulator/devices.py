"""Figures of devices, from their data sheets and, for memory and caches, from published
measurements; all other figures are estimates, as comments state."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from stretto.device.costs import HOST_COSTS, CostModel
from stretto.ir.types import DType

_Costs = TypeVar("_Costs", bound=CostModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The figures of a device. Rates are per second and of the whole device; `_seconds` are
    seconds, `_bytes` bytes.

    units: multiprocessors of a GPU, cores of a CPU; a program may use fewer or more of them.
    trusts_estimates: the kernels' own estimates are for this device, so a task computes for
    `Kernel.seconds`; otherwise for the time of its operations at `efficiency` of the peak.
    """

    name: str
    units: int
    flops: float
    """f32 operations."""
    double_flops: float
    tensor_flops: float
    """f32 operations of products on tensor cores."""
    half_flops: float
    """f16 and bf16 operations of products on tensor cores."""
    functions: float
    """Scalar functions of pointwise work, such as tanh or a division."""
    memory_bandwidth: float
    """Rate that reads of all units together reach."""
    unit_bandwidth: float
    """Rate at which one unit alone can read from memory or from the shared cache."""
    on_chip_bandwidth: float = inf
    """Rate at which one unit reads from its own shared memory."""
    kept_registers: int = 0
    """Bytes of a unit's registers that may hold weights over a loop, in addition to the registers
    that the loop needs."""
    kept_shared: int = 0
    """Bytes of a unit's shared memory that may hold weights over a loop."""
    cache_bytes: int
    """Size of the last cache that all units share."""
    cache_bandwidth: float
    efficiency: float = 1.0
    trusts_estimates: bool = False
    start_seconds: float
    """From the end of a task to the beginning of the next one's work."""
    stage_seconds: float = 0.0
    """A barrier within a unit: between two stages of a task, and before a signal."""
    latency_seconds: float = 0.0
    """The first loads of a task, and those of a register statement."""
    wait_seconds: float
    """From a signal until a waiting unit continues."""
    wake_seconds: float = 0.0
    """From the start of a launch until units other than the first begin."""
    launch_seconds: float = 0.0
    """From the call until the first unit begins; on a GPU a library call also costs this."""
    next_launch_seconds: float = 0.0
    """From the end of a launch until the next one begins, which the host has enqueued meanwhile."""
    call_seconds: float
    """Least time of a library call."""
    target: str = ""
    """The architecture that the CUDA machine compiles for; empty for a CPU."""

    @property
    def has_tf32(self) -> bool:
        """True if its tensor cores multiply f32 as TF32; that peak is three `tensor_flops`."""
        return self.tensor_flops != self.flops

    def peak(self, dtype: DType, on_tensor_cores: bool) -> float:
        """Return the operations per second on numbers of `dtype`."""
        if dtype is DType.F64:
            return self.double_flops
        if not on_tensor_cores:
            return self.flops
        return self.half_flops if dtype in (DType.F16, DType.BF16) else self.tensor_flops


REACHED = 0.88
"""Part of a data sheet's bandwidth that copies and reads of large tensors reach: published are 3.0
of 3.35 TB/s for an H100 and 4.3 of 4.8 for machines like the H200."""
CACHE_REACHED = 2 / 3
"""Part of the second-level cache's bandwidth by width and clock that reads reach: 2.16 of 3.1 TB/s
on a V100 (Jia et al., table 3.1)."""

# Latencies of GPUs are estimates. Waits: two trips through the second-level cache, which take about
# 200 cycles each (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking",
# 2018, table 3.1: 193 for V100), and the polling in between. Tensor cores compute f32 products as
# three products of TF32, so `tensor_flops` is a third of the peak of TF32. A unit alone reads about
# three times its share of the bandwidth. Scalar functions: 16 per cycle and multiprocessor (CUDA
# C++ Programming Guide, throughput of native arithmetic instructions), and several other
# instructions for each. Shared memory delivers 128 bytes per cycle (CUDA C++ Programming Guide: 32
# banks of 4 bytes), at the clock of the f32 peak. Launches follow each other no faster than the
# host enqueues them, some 2 us each. Weights: 136 of 256 KiB of registers are what ptxas leaves for
# them in recurrent models; of shared memory, everything that a block may have (CUDA C++ Programming
# Guide, "Technical Specifications per Compute Capability") except 32 KiB that Triton usually needs.

H200 = Device(
    # NVIDIA H200 SXM data sheet: 67 TFLOPS f32, 34 f64, 989 TF32 and 1,979 f16 with sparsity (half
    # without), 141 GB at 4.8 TB/s. NVIDIA H100 architecture white paper: 132 multiprocessors, 50 MB
    # of second-level cache. Its bandwidth is that published for an H100, 5.5 to 5.7 TB/s.
    name="h200",
    units=132,
    flops=67e12,
    double_flops=34e12,
    tensor_flops=494.5e12 / 3,
    half_flops=989.5e12,
    functions=2e13,
    memory_bandwidth=REACHED * 4.8e12,
    unit_bandwidth=1.1e11,
    on_chip_bandwidth=128 * 1.98e9,
    kept_registers=136 << 10,
    kept_shared=195 << 10,
    cache_bytes=50 << 20,
    cache_bandwidth=5.6e12,
    efficiency=0.6,
    start_seconds=5e-8,
    stage_seconds=2e-7,
    latency_seconds=7e-7,
    wait_seconds=1e-6,
    launch_seconds=5e-6,
    next_launch_seconds=2e-6,
    call_seconds=5e-6,
    target="sm_90",
)

H100 = replace(
    # NVIDIA H100 SXM data sheet: same as the H200, except for 80 GB at 3.35 TB/s.
    H200,
    name="h100",
    memory_bandwidth=REACHED * 3.35e12,
    unit_bandwidth=8e10,
)

A100 = Device(
    # NVIDIA A100 80GB SXM data sheet: 19.5 TFLOPS f32, 9.7 f64, 156 TF32, 312 f16, 2,039 GB/s.
    # NVIDIA A100 architecture white paper: 108 multiprocessors, 40 MB of second-level cache at
    # 5,120 bytes per clock of 1.41 GHz.
    name="a100",
    units=108,
    flops=19.5e12,
    double_flops=9.7e12,
    tensor_flops=156e12 / 3,
    half_flops=312e12,
    functions=1.2e13,
    memory_bandwidth=REACHED * 2.039e12,
    unit_bandwidth=6e10,
    on_chip_bandwidth=128 * 1.41e9,
    kept_registers=136 << 10,
    kept_shared=131 << 10,
    cache_bytes=40 << 20,
    cache_bandwidth=CACHE_REACHED * 7.2e12,
    efficiency=0.6,
    start_seconds=5e-8,
    stage_seconds=2.5e-7,
    latency_seconds=8e-7,
    wait_seconds=1.2e-6,
    launch_seconds=5e-6,
    next_launch_seconds=2e-6,
    call_seconds=5e-6,
    target="sm_80",
)

V100 = Device(
    # NVIDIA V100 SXM2 data sheet: 15.7 TFLOPS f32, 7.8 f64, 125 f16, 900 GB/s. NVIDIA V100
    # architecture white paper: 80 multiprocessors, 6 MB of second-level cache; 2,048 bytes per
    # clock of 1.53 GHz (A100 white paper). Its tensor cores have no TF32: f32 products run on
    # the others. Triton compiles for no sm_70; tasks and schedule are those of sm_80.
    name="v100",
    units=80,
    flops=15.7e12,
    double_flops=7.8e12,
    tensor_flops=15.7e12,
    half_flops=125e12,
    functions=1e13,
    memory_bandwidth=REACHED * 9e11,
    unit_bandwidth=3.4e10,
    on_chip_bandwidth=128 * 1.53e9,
    kept_registers=136 << 10,
    kept_shared=64 << 10,
    cache_bytes=6 << 20,
    cache_bandwidth=CACHE_REACHED * 3.1e12,
    efficiency=0.6,
    start_seconds=6e-8,
    stage_seconds=2.5e-7,
    latency_seconds=8e-7,
    wait_seconds=1.2e-6,
    launch_seconds=6e-6,
    next_launch_seconds=2.5e-6,
    call_seconds=6e-6,
    target="sm_80",
)

RTX4090 = Device(
    # NVIDIA Ada GPU architecture white paper: 128 multiprocessors, 82.6 TFLOPS f32, 1.29 f64, 82.6
    # TF32 and 165.2 f16 (with f32 sums) on tensor cores, 1,008 GB/s, 72 MB of second-level cache.
    # Its bandwidth is an estimate.
    name="rtx4090",
    units=128,
    flops=82.6e12,
    double_flops=1.29e12,
    tensor_flops=82.6e12 / 3,
    half_flops=165.2e12,
    functions=2.5e13,
    memory_bandwidth=REACHED * 1.008e12,
    unit_bandwidth=2.4e10,
    on_chip_bandwidth=128 * 2.52e9,
    kept_registers=136 << 10,
    kept_shared=67 << 10,
    cache_bytes=72 << 20,
    cache_bandwidth=5e12,
    efficiency=0.6,
    start_seconds=5e-8,
    stage_seconds=2e-7,
    latency_seconds=7e-7,
    wait_seconds=1e-6,
    launch_seconds=5e-6,
    next_launch_seconds=2e-6,
    call_seconds=5e-6,
    target="sm_89",
)

MI300X = Device(
    # AMD Instinct MI300X data sheet: 304 compute units, 163.4 TFLOPS f32 and 81.7 f64 (vector),
    # 653.7 TF32, 1,307.4 f16, 5.3 TB/s, 256 MB of Infinity Cache at 17.2 TB/s.
    name="mi300x",
    units=304,
    flops=163.4e12,
    double_flops=81.7e12,
    tensor_flops=653.7e12 / 3,
    half_flops=1307.4e12,
    functions=2.5e13,
    memory_bandwidth=REACHED * 5.3e12,
    unit_bandwidth=5e10,
    on_chip_bandwidth=128 * 2.1e9,
    kept_registers=136 << 10,
    cache_bytes=256 << 20,
    cache_bandwidth=CACHE_REACHED * 17.2e12,
    efficiency=0.5,
    start_seconds=5e-8,
    stage_seconds=2.5e-7,
    latency_seconds=9e-7,
    wait_seconds=2e-6,
    launch_seconds=8e-6,
    next_launch_seconds=4e-6,
    call_seconds=8e-6,
    target="gfx942",
)

CPU = Device(
    # A core complex of AMD's EPYC 9004: 32 MB of third-level cache for 8 cores; a socket has 12
    # channels of DDR5-4800, 460.8 GB/s (data sheet). Arithmetic takes what kernels estimate for
    # themselves, which includes the third-level cache. `cpu_device` fills in the rest.
    name="cpu:1",
    units=1,
    flops=220e9,
    double_flops=110e9,
    tensor_flops=220e9,
    half_flops=220e9,
    functions=8e9,
    memory_bandwidth=460.8e9,
    unit_bandwidth=HOST_COSTS.stream_bandwidth,
    cache_bytes=32 << 20,
    cache_bandwidth=inf,
    trusts_estimates=True,
    start_seconds=HOST_COSTS.start_seconds,
    wait_seconds=HOST_COSTS.wait_seconds,
    wake_seconds=HOST_COSTS.wake_seconds,
    call_seconds=HOST_COSTS.call_seconds,
)

GPUS = {device.name: device for device in (H200, H100, A100, V100, RTX4090, MI300X)}
NAMES = (*GPUS, "cpu:N")


def cpu_device(cores: int, costs: CostModel = HOST_COSTS) -> Device:
    """Return a CPU of `cores` cores whose tasks, waits and wakes take the times of a machine's
    costs."""
    return replace(
        CPU,
        name=f"cpu:{cores}",
        units=cores,
        flops=CPU.flops * cores,
        double_flops=CPU.double_flops * cores,
        tensor_flops=CPU.tensor_flops * cores,
        half_flops=CPU.half_flops * cores,
        functions=CPU.functions * cores,
        memory_bandwidth=min(CPU.memory_bandwidth, costs.stream_bandwidth * cores),
        unit_bandwidth=costs.stream_bandwidth,
        start_seconds=costs.start_seconds,
        wait_seconds=costs.wait_seconds,
        wake_seconds=costs.wake_seconds,
        launch_seconds=costs.launch_seconds,
        call_seconds=costs.call_seconds,
    )


_PRODUCTS = {"h200": H200, "h100": H100, "a100": A100, "v100": V100, "rtx 4090": RTX4090}
"""Words in NVIDIA's names of GPUs."""


def gpu_like(name: str, capability: tuple[int, int]) -> Device:
    """Return the device of an NVIDIA GPU's name or, if there are no figures for it, the one with
    the most similar architecture."""
    words = " ".join(re.findall(r"[a-z0-9]+", name.lower()))
    for product, device in _PRODUCTS.items():
        if f" {product} " in f" {words} ":
            return device
    if capability < (8, 0):
        return V100
    if capability == (8, 0):
        return A100
    return H200 if capability[0] in (9, 10) else RTX4090


def device_for(costs: CostModel, units: int) -> Device:
    """Return the device on which choices between programs are simulated: the GPU or CPU that the
    costs are for."""
    return GPUS.get(costs.gpu, H200) if costs.uniform else cpu_device(units, costs)


SHARES = {
    "flops": "flops",
    "double_flops": "double_flops",
    "tensor_flops": "tensor_flops",
    "half_flops": "half_flops",
    "functions": "functions",
    "bandwidth": "memory_bandwidth",
    "shared_bandwidth": "cache_bandwidth",
}
"""Figures of a GPU machine's costs that are a unit's share of a rate of the device."""
_LATENCIES = ("start_seconds", "stage_seconds", "latency_seconds", "wait_seconds")


def costs_on(device: Device, costs: _Costs) -> _Costs:
    """Return the costs of a GPU machine, which are for one device, converted to another: rates by
    the ratio of the units' shares, latencies as the device has them."""
    usual = GPUS.get(costs.gpu, H200)
    figures = {name: getattr(device, name) for name in _LATENCIES}
    figures["shared_bytes"] = device.cache_bytes
    for name, rate in SHARES.items():
        share = getattr(device, rate) / device.units
        figures[name] = getattr(costs, name) * share / (getattr(usual, rate) / usual.units)
    figures["element_seconds"] = 1 / figures["functions"]
    return replace(costs, gpu=device.name, **figures)


def find_device(name: str, costs: CostModel = HOST_COSTS) -> Device:
    """Return the device of a name. costs: of the CPU machine. Raises ValueError for an unknown
    name."""
    if name in GPUS:
        return GPUS[name]
    if match := re.fullmatch(r"cpu:([1-9]\d*)", name):
        return cpu_device(int(match[1]), costs)
    raise ValueError(f"unknown device {name!r}; known are {', '.join(NAMES)}")


# ---- Resources of a multiprocessor that thread blocks need: threads, registers, shared memory.
#
# The figures of devices are those of the CUDA C++ Programming Guide, "Technical Specifications
# per Compute Capability"; those of MI300X are of AMD's CDNA 3 white paper (512 KB of vector
# registers, 64 KB of local memory, and 32 waves of 64 threads for each compute unit).


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Resources of one multiprocessor for the blocks that it holds at the same time."""

    threads: int
    registers: int
    shared_bytes: int
    blocks: int


_HOPPER = UnitLimits(2048, 65536, 228 << 10, 32)
LIMITS = {
    "h200": _HOPPER,
    "h100": _HOPPER,
    "a100": UnitLimits(2048, 65536, 164 << 10, 32),
    "v100": UnitLimits(2048, 65536, 96 << 10, 32),
    "rtx4090": UnitLimits(1536, 65536, 100 << 10, 24),
    "mi300x": UnitLimits(2048, 131072, 64 << 10, 32),
}


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """Resources that one block needs. registers: of each of its threads."""

    threads: int
    registers: int
    shared_bytes: int = 0

    def amounts(self) -> tuple[int, int, int, int]:
        """Threads, registers, bytes of shared memory, blocks."""
        return self.threads, self.threads * self.registers, self.shared_bytes, 1

    def per_unit(self, limits: UnitLimits) -> int:
        """Return the number of such blocks that one multiprocessor holds; at least 1, even for one
        that does not fit."""
        pairs = zip(unit_amounts(limits), self.amounts(), strict=True)
        return max(min(has // needs for has, needs in pairs if needs), 1)

    def share(self, limits: UnitLimits) -> float:
        """Return the part of a multiprocessor that one block takes, by the resource that it needs
        most of."""
        pairs = zip(unit_amounts(limits), self.amounts(), strict=True)
        return min(max(needs / has for has, needs in pairs), 1.0)


def unit_amounts(limits: UnitLimits) -> tuple[int, int, int, int]:
    return limits.threads, limits.registers, limits.shared_bytes, limits.blocks


def limits_of(device: Device) -> UnitLimits:
    """Return the limits of a device; those of an H200 if it has no figures."""
    return LIMITS.get(device.name, _HOPPER)


class Room:
    """Free resources of all multiprocessors of a device, added up: blocks are not placed on single
    ones, so the free room for a block may be fragmented in reality."""

    def __init__(self, device: Device) -> None:
        self._limits = limits_of(device)
        self._units = device.units
        self._free = [amount * device.units for amount in unit_amounts(self._limits)]

    def fits(self, needs: BlockNeeds, running: int) -> int:
        """Return the number of further blocks that could begin while `running` of them run."""
        most = needs.per_unit(self._limits) * self._units - running
        pairs = zip(self._free, self._capped(needs), strict=True)
        return max(min(most, *(free // need for free, need in pairs if need)), 0)

    def take(self, needs: BlockNeeds, count: int) -> None:
        """Take room for blocks; a negative count returns it."""
        for kind, need in enumerate(self._capped(needs)):
            self._free[kind] -= need * count

    def _capped(self, needs: BlockNeeds) -> tuple[int, ...]:
        pairs = zip(needs.amounts(), unit_amounts(self._limits), strict=True)
        return tuple(min(need, has) for need, has in pairs)
