"""What `stretto doctor` finds out about GPUs and their compiler."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stretto.errors import BuildError
from stretto.machines.cuda.device import find_gpu
from stretto.machines.cuda.driver import (
    BUSY_REMEDY,
    COMPUTE_MODE,
    MODE_EXCLUSIVE_PROCESS,
    MODE_PROHIBITED,
    CudaError,
    load_driver,
)
from stretto.machines.cuda.toolchain import require_greenlet, require_triton
from stretto.machines.machine import Diagnosis


def diagnoses() -> Iterator[Diagnosis]:
    yield check_gpu()
    yield from check_mode()
    yield check_triton()


def check_gpu() -> Diagnosis:
    """The GPU that programs would run on."""
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
    """Who may use the GPU; nothing where there is no driver to say so."""
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
    """The compiler of programs for GPUs, which works without one, and what emulates a GPU."""
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
