"""The machine that a worker measures: a GPU, or in a dry run the CPU with a replacement of the
driver."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from stretto.options import Options

if TYPE_CHECKING:
    from stretto.machines.cuda.compile import CompiledTriton
    from stretto.machines.cuda.launch import Argument, Invocation
    from stretto.machines.cuda.launcher import GpuLauncher
    from stretto.machines.cuda.printer.source import TritonSource

    from .rehearsal import Rehearsal

PACKAGES = ("torch", "triton", "numpy", "jax", "jaxlib", "cuda-bindings", "matplotlib", "pytest")
DRY_UNITS = 3
TOLERANCE = 1e-4
"""Largest allowed error of float32 against float64, relative to an output's largest value."""


@dataclass(frozen=True)
class Bench:
    """The machine of the rows. dry_run: everything is tiny and runs on the CPU, and times mean
    nothing. scratch: a folder, for a dry run's replacement of the driver."""

    dry_run: bool = False
    scratch: Path = Path("build/lease")

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The replacement of the GPU, in a dry run only."""
        from . import rehearsal

        assert self.dry_run
        return rehearsal.start(self.scratch / "driver")

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.dry_run else torch.device("cuda", 0)

    @property
    def backend(self) -> str:
        if not self.dry_run:
            return "cuda"
        assert self.rehearsal is not None  # this registers the backend
        return "cuda-rehearsed"

    def compiled(self, source: TritonSource, folder: str) -> CompiledTriton | None:
        """Return a kernel's machine code, from the cache in `folder` if it is there; None in a dry
        run, which interprets the text."""
        if self.dry_run:
            return None
        from stretto.machines.cuda.compile import compile_source

        return compile_source(source, self.target, Options(cache_dir=folder))

    def launcher(
        self, sources: Sequence[TritonSource], compiled: Sequence[CompiledTriton | None]
    ) -> GpuLauncher:
        """Load kernels for launches."""
        if self.dry_run:
            return self.rehearsal.launcher(sources)
        from stretto.machines.cuda.device import launcher_for

        return launcher_for(self.device, [kernel for kernel in compiled if kernel], sources)

    def bind(
        self, launcher: GpuLauncher, arguments: Sequence[Argument], number: int = 0
    ) -> Invocation:
        """Bind arguments to a kernel of a launcher."""
        if self.dry_run:
            known = [argument for argument in arguments if isinstance(argument, Tensor)]
            self.rehearsal.machines[launcher.kernels[number].function].fake.know(*known)
        return launcher.bind(number, arguments)

    @cached_property
    def units(self) -> int:
        """Execution units: one per multiprocessor."""
        if self.dry_run:
            return DRY_UNITS
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    @cached_property
    def target(self) -> str:
        """The target that kernels are compiled for, such as `sm_90`."""
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
        """Return True if an error has made the GPU unusable for this process."""
        if self.dry_run or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize(self.device)
            return bool((torch.ones(1, device=self.device) + 1).item() != 2.0)
        except Exception:
            return True


@dataclass(frozen=True)
class Home(Bench):
    """A machine that compiles for a GPU that is elsewhere: sizes are those of the GPU, tensors are
    on this host."""

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cpu")


def plain_math() -> None:
    """Use full float32 in every system: the accuracy gate does not admit TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


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
