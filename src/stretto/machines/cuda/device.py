"""GPUs that programs can run on, and executables for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stretto.device.forms import ProgramInterface
from stretto.device.plan import Plan
from stretto.errors import BuildError
from stretto.machines.cuda.driver import (
    BUSY_REMEDY,
    COMPUTE_MODE,
    MODE_EXCLUSIVE_PROCESS,
    MODE_PROHIBITED,
    CudaError,
    load_driver,
)
from stretto.machines.cuda.graphs.graph_builder import Arrangements
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.launch import CompiledKernel, load_kernel, require_resident
from stretto.machines.cuda.launcher import GpuLauncher, InterpretedLauncher, Launcher, TorchMemory
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.toolchain import require_greenlet, require_triton
from stretto.machines.machine import Diagnosis
from stretto.options import Options

LEAST_CAPABILITY = (8, 0)
EMULATED_UNITS = 5
"""Execution units when none are requested and there is no GPU: few, and an odd number."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU. capability: (8, 0), (9, 0), ..."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)


def find_gpu(device: torch.device) -> Gpu:
    """Return the GPU of a torch device. Raises BuildError if torch or stretto cannot use it."""
    built: str | None = getattr(torch.version, "cuda", None)
    if built is None:
        raise BuildError(
            f"torch {torch.__version__} is built without CUDA",
            remedy="install a build with CUDA: https://pytorch.org/get-started/locally",
        )
    load_driver()
    if not torch.cuda.is_available():
        raise BuildError(
            f"torch (built for CUDA {built}) finds no GPU that it can use",
            remedy="check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the driver is new enough",
        )
    named = str(device) != "cuda"
    try:
        index = device.index if named else torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
    except RuntimeError as error:  # e.g. exclusive-process mode, held by another process
        reason = str(error).strip().splitlines()[0]
        raise BuildError(f"torch cannot use {device}: {reason}", remedy=BUSY_REMEDY) from error
    capability = (properties.major, properties.minor)
    gpu = Gpu(index, properties.name, capability, properties.multi_processor_count)
    require_capability(gpu)
    return gpu


def require_capability(gpu: Gpu) -> None:
    """Raise BuildError for a GPU that is too old."""
    if gpu.capability < LEAST_CAPABILITY:
        shown, least = (".".join(map(str, c)) for c in (gpu.capability, LEAST_CAPABILITY))
        raise BuildError(
            f"cuda:{gpu.index} ({gpu.name}) has compute capability {shown}; programs need {least}",
            remedy="use an NVIDIA GPU of the Ampere generation or later, or move the module "
            "with .cpu()",
        )


def is_capturing_stream() -> bool:
    """Return True if the current stream is being captured. (torch without CUDA cannot be asked.)"""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def resident_units(compiled: CompiledKernel, device: torch.device) -> int:
    """Return the number of thread blocks of a kernel that the device holds at once: the most units
    it may have."""
    gpu = find_gpu(device)
    kernel = load_kernel(load_driver(), gpu.index, compiled, 1)
    return kernel.resident * gpu.multiprocessors


def launcher_for(
    device: torch.device, compiled: Sequence[CompiledKernel], sources: Sequence[TritonSource]
) -> GpuLauncher:
    """Load the kernels of a program on a GPU. Raises BuildError if it cannot hold at once all
    blocks of a launch that wait for each other: see `resident_units`."""
    gpu, driver = find_gpu(device), load_driver()
    kernels = [
        load_kernel(driver, gpu.index, kernel, source.blocks, joint=source.joint)
        for kernel, source in zip(compiled, sources, strict=True)
    ]
    for kernel in kernels:
        require_resident(kernel, gpu.multiprocessors)
    return GpuLauncher(gpu.device, driver, TorchMemory(gpu.device), kernels)


def cuda_executable(
    plan: Plan,
    sources: Sequence[TritonSource],
    compiled: Sequence[CompiledKernel],
    interface: ProgramInterface,
    options: Options,
    device: torch.device,
    arranged: Arrangements | None = None,
) -> PlanExecutable:
    """Return a program on a GPU. arranged: run it as captured graphs. Raises BuildError as
    `launcher_for`."""
    launcher = launcher_for(device, compiled, sources)
    return _executable(plan, sources, interface, options, launcher, arranged)


def emulated_cuda_executable(
    plan: Plan,
    sources: Sequence[TritonSource],
    interface: ProgramInterface,
    options: Options,
    arranged: Arrangements | None = None,
) -> PlanExecutable:
    """Return the same program on CPU tensors; the text of its kernels is interpreted."""
    kernels = [InterpretedKernel(source, options.debug.seed) for source in sources]
    launcher = InterpretedLauncher(kernels, options.debug.seed)
    return _executable(plan, sources, interface, options, launcher, arranged)


def _executable(
    plan: Plan,
    sources: Sequence[TritonSource],
    interface: ProgramInterface,
    options: Options,
    launcher: Launcher,
    arranged: Arrangements | None,
) -> PlanExecutable:
    if arranged is None:
        return PlanExecutable(plan, sources, interface, options, launcher)
    return GraphExecutable(plan, sources, interface, options, launcher, arranged)


# ---- Checks of `stretto doctor` of GPUs and their compiler.


def diagnoses() -> Iterator[Diagnosis]:
    yield check_gpu()
    yield from check_mode()
    yield check_triton()


def check_gpu() -> Diagnosis:
    """Diagnose the GPU that programs would run on."""
    try:
        gpu = find_gpu(torch.device("cuda"))
    except BuildError as error:
        return _only_for_gpus("gpu", error)
    capability, driver = (".".join(map(str, v)) for v in (gpu.capability, load_driver().version()))
    others = torch.cuda.device_count() - 1
    more = f", {others} more" if others else ""
    return Diagnosis(
        "gpu",
        "ok",
        f"{gpu.device}: {gpu.name}, compute capability {capability}, {gpu.multiprocessors} "
        f"multiprocessors; driver for CUDA {driver}, torch for {torch.version.cuda}{more}",
    )


def check_mode() -> Iterator[Diagnosis]:
    """Diagnose the compute mode: which processes may use the GPU. Nothing without a driver."""
    try:
        mode = load_driver().attribute(0, COMPUTE_MODE)
    except (BuildError, CudaError):
        return
    name = "compute mode"
    match mode:
        case number if number == MODE_EXCLUSIVE_PROCESS:
            detail = "exclusive process: one process at a time can use the GPU"
            yield Diagnosis(name, "warn", detail, f"for a second process: {BUSY_REMEDY}")
        case number if number == MODE_PROHIBITED:
            detail = "prohibited: no process can use the GPU"
            remedy = "`nvidia-smi --compute-mode=DEFAULT`, as administrator"
            yield Diagnosis(name, "warn", detail, remedy)
        case _:
            yield Diagnosis(name, "ok", "default: several processes can use the GPU")


def check_triton() -> Diagnosis:
    """Diagnose Triton, which compiles without a GPU too, and the emulator's requirements."""
    try:
        version = require_triton()
    except BuildError as error:
        return _only_for_gpus("triton", error)
    try:
        found = f"greenlet {require_greenlet().__version__}: backend cuda-emulated works"
    except BuildError:
        found = "no greenlet, which backend cuda-emulated needs: pip install 'stretto[emulated]'"
    return Diagnosis("triton", "ok", f"{version}; {found}")


def _only_for_gpus(name: str, error: BuildError) -> Diagnosis:
    return Diagnosis(name, "warn", error.message, f"for programs on a GPU only: {error.remedy}")
