"""The installed Triton, and the targets that it compiles for."""

from __future__ import annotations

import linecache
import re
import sys
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from stretto.errors import BuildError
from stretto.locks import ForkSafeLock
from stretto.runtime.cache import content_key
from stretto.simulator.devices import MI300X, Device, gpu_like

INSTALL = "pip install 'stretto[cuda]'"
SUPPORTED = ((3, 6), (3, 8))
"""Versions from the first up to, not including, the second: those that the tests ran with. The
interpreted language uses internal parts of Triton that other versions may have elsewhere."""

TRITON_LOCK = ForkSafeLock()
"""Held while Triton's language is replaced for an interpreted launch, and while it compiles."""


def file_name(text: str) -> str:
    """Return the name under which tracebacks and `inspect` find the lines of a printed module."""
    name = f"<triton program {content_key(text)[:12]}>"
    if name not in linecache.cache:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Resources of one multiprocessor (SM), shared by its thread blocks.

    CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    """

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65536
    register_unit: int = 256
    """Registers are allocated to a warp in multiples of this."""
    shared_unit: int = 128
    reserved_shared_bytes: int = 1024
    """Shared memory that the system reserves for each block."""

    @property
    def most_shared_bytes(self) -> int:
        """Shared memory that one block may have if it is alone."""
        return self.shared_bytes - self.reserved_shared_bytes


_CUDA = {
    80: Multiprocessor(64, 32, 164 * 1024),
    86: Multiprocessor(48, 16, 100 * 1024),
    89: Multiprocessor(48, 24, 100 * 1024),
    90: Multiprocessor(64, 32, 228 * 1024),
    100: Multiprocessor(64, 32, 228 * 1024),
    103: Multiprocessor(64, 32, 228 * 1024),
    110: Multiprocessor(48, 24, 228 * 1024),
    120: Multiprocessor(48, 24, 100 * 1024),
    121: Multiprocessor(48, 24, 100 * 1024),
}
_HIP = {"gfx942": 64}
_MULTIPROCESSORS = {
    "sm_80": 108,  # A100
    "sm_86": 84,  # A40, RTX A6000
    "sm_89": 142,  # L40S
    "sm_90": 132,  # H100 (SXM), H200
    "sm_100": 132,  # a B200 has 148; 132 compares with sm_90
    "sm_103": 148,  # B300; a GB300 has 152
    "sm_110": 20,  # Jetson Thor
    "sm_120": 170,  # RTX 5090
    "sm_121": 48,  # DGX Spark (GB10)
    "gfx942": 304,  # MI300X
}
TARGETS = (*(f"sm_{arch}" for arch in _CUDA), *_HIP)
"""Names that GpuTarget.parse knows."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A machine to compile for, such as `sm_90` or `gfx942`.

    multiprocessor: None for machines that are only compiled for.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    multiprocessor: Multiprocessor | None

    @staticmethod
    def parse(name: str) -> GpuTarget:
        """Return the target of that name. Raises ValueError for an unknown one."""
        match = re.fullmatch(r"sm_(\d+)a?", name)
        if match and (arch := int(match[1])) in _CUDA:
            return GpuTarget(f"sm_{arch}", "cuda", arch, 32, _CUDA[arch])
        if name in _HIP:
            return GpuTarget(name, "hip", name, _HIP[name], None)
        raise ValueError(f"no target {name!r}; there are {', '.join(TARGETS)}")

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of a usual GPU of this kind."""
        return _MULTIPROCESSORS[self.name]

    @property
    def usual_gpu(self) -> Device:
        """Performance figures of a usual GPU of this kind."""
        return gpu_like("", divmod(self.arch, 10)) if isinstance(self.arch, int) else MI300X

    @property
    def binary(self) -> str:
        """Triton's name for the machine code of this target."""
        return "cubin" if self.backend == "cuda" else "hsaco"


@cache
def require_triton() -> str:
    """Return the version of Triton. Raises BuildError if it is missing or not supported."""
    try:
        import triton
    except ImportError as error:
        raise BuildError(
            f"Triton cannot be imported: {error}",
            remedy=INSTALL
            if sys.platform == "linux"
            else "Triton exists for Linux only; use the backend cpu here",
        ) from error
    version: str = triton.__version__
    found = re.match(r"(\d+)\.(\d+)", version)
    low, high = SUPPORTED
    if not found or not low <= (int(found[1]), int(found[2])) < high:
        wanted = f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"
        raise BuildError(
            f"Triton {version} is not supported, only {wanted}",
            remedy=f"pip install 'triton{wanted}'",
        )
    return version


def require_greenlet() -> ModuleType:
    """Return the package greenlet, which switches between the units of an interpreted launch.
    Raises BuildError if it is missing."""
    try:
        import greenlet
    except ImportError as error:
        raise BuildError(
            f"greenlet cannot be imported: {error}", remedy="pip install 'stretto[emulated]'"
        ) from error
    return greenlet
