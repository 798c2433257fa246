"""The GPU as the parent process sees it, without holding a context on it.

In exclusive-process mode a context of the parent would exclude every worker. So the first
worker looks, and its row describes the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
"""Names of CUcomputemode values."""


class NoGpu(Exception):
    """Raised if there is no GPU that this process may use, with the reason."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. line: a description for display. capability: such as (9, 0). mode: CUcomputemode."""

    line: str
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    mode: int

    @property
    def target(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def exclusive(self) -> bool:
        return self.mode == 3

    @property
    def mode_name(self) -> str:
        return MODES.get(self.mode, f"number {self.mode}")


def why_no_gpu() -> str:
    """Return why torch has no GPU to use; empty if it has one."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch (built for CUDA {torch.version.cuda}) finds no GPU that it can use"
    return ""


def found() -> Gpu:
    """Return the GPU of this process. Raises NoGpu for one that no process may use."""
    from stretto.machines.cuda.driver import COMPUTE_MODE, MODE_PROHIBITED, load_driver

    mode = load_driver().attribute(0, COMPUTE_MODE)
    if mode == MODE_PROHIBITED:
        raise NoGpu("its compute mode is prohibited")
    properties = torch.cuda.get_device_properties(0)
    line = (
        f"{properties.name}, {properties.multi_processor_count} multiprocessors, "
        f"{properties.total_memory / 2**30:.0f} GiB, "
        f"L2 {getattr(properties, 'L2_cache_size', 0) >> 20} MiB"
    )
    capability = (properties.major, properties.minor)
    return Gpu(line, properties.name, capability, properties.multi_processor_count, mode)
