"""The machine that a worker measures: a GPU, or in a dry run the CPU with stretto emulated."""

import platform
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from ..machine import git_commit
from .gpu import Gpu

PACKAGES = ("torch", "triton", "numpy", "jax", "jaxlib", "cuda-bindings", "matplotlib", "pytest")
DRY_UNITS = 3
TOLERANCE = 1e-4
"""Largest error of float32 relative to an output's largest value, against float64."""


@dataclass(frozen=True)
class Bench:
    """Where rows run. dry_run: everything is tiny, runs on the CPU, and times mean nothing."""

    dry_run: bool = False

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.dry_run else torch.device("cuda", 0)

    @property
    def backend(self) -> str:
        return "cuda-emulated" if self.dry_run else "cuda"

    @cached_property
    def units(self) -> int:
        """Execution units: one per multiprocessor."""
        if self.dry_run:
            return DRY_UNITS
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    @cached_property
    def target(self) -> str:
        """What kernels are compiled for."""
        if self.dry_run:
            return "sm_90"
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"sm_{major}{minor}"

    def size(self, full: int, dry: int) -> int:
        return dry if self.dry_run else full

    def synchronize(self) -> None:
        if not self.dry_run:
            torch.cuda.synchronize(self.device)

    def stream(self) -> int:
        return 0 if self.dry_run else torch.cuda.current_stream(self.device).cuda_stream

    def place(
        self, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return module.to(self.device), tuple(x.to(self.device) for x in inputs)

    def is_broken(self) -> bool:
        """Has an error made the GPU unusable for this process?"""
        if self.dry_run or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize(self.device)
            return bool((torch.ones(1, device=self.device) + 1).item() != 2.0)
        except Exception:
            return True


def plain_math() -> None:
    """Full float32 in every system: the accuracy gate is closed to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def about(gpu: Gpu | None, commit: str | None) -> dict[str, Any]:
    """What a record says of where its numbers come from; without a GPU, that it is a dry run."""
    device = "dry run: no GPU, figures mean nothing" if gpu is None else gpu.line
    return {
        "commit": commit or git_commit(),
        "device": device,
        "compute_mode": "none" if gpu is None else gpu.mode_name,
        "host": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    if torch.backends.cudnn.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
