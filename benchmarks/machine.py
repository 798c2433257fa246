"""The machine and the versions that a record was made with."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "onnxruntime", "openvino", "onnx", "jax", "jaxlib", "numpy", "stretto")
VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")


def machine_line(threads: int) -> str:
    """One line: processor, processors available, vector extensions, caches, system."""
    info = _cpu_info()
    name = info.get("model name") or platform.processor() or platform.machine()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    vectors = " ".join(flag for flag in VECTOR_FLAGS if flag in flags)
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in cache_sizes().items())
    return (
        f"{name}, {cpu_count()} CPUs ({threads} used), {vectors or 'no known vectors'}, "
        f"{caches or 'caches unknown'}, {platform.system()} {platform.release()}"
    )


def cpu_count() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_sizes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of each data cache of the first processor, as L1, L2, L3; empty where unknown."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and match:
            unit = {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
            sizes[f"L{level}"] = int(match[1]) << unit
    return sizes


def versions() -> dict[str, str]:
    """Python, the C++ compiler, and each package that is installed."""
    found = {"python": platform.python_version()}
    compiler = _output([os.environ.get("CXX", "g++"), "--version"])
    if compiler:
        found["compiler"] = compiler.splitlines()[0]
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The checkout's commit, marked `-dirty` with uncommitted changes; None outside of git."""
    folder = str(Path(__file__).parent)
    return _output(["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40"]) or None


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
