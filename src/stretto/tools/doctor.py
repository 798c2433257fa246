"""`stretto doctor`: what this machine has, what will work, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

import stretto
from stretto.errors import BuildError, StrettoError
from stretto.machines.cuda.device import find_gpu
from stretto.machines.cuda.driver import load_driver
from stretto.machines.cuda.toolchain import require_greenlet, require_triton
from stretto.options import Options
from stretto.runtime.compiler import build_flags, cpu, find_compiler
from stretto.runtime.memory_watch import tracks_pages
from stretto.text import bytes_text
from stretto.tools.cache import CacheFolder

Status = Literal["ok", "warn", "fail"]

TORCH_FROM, TORCH_BEFORE = (2, 11), (2, 14)
"""The versions of torch that stretto is made for, as in pyproject.toml."""

VECTORS = ("avx512f", "avx512_bf16", "amx_tile", "avx2", "fma", "asimd", "sve")
PEERS = ("onnxruntime", "onnx", "onnxscript", "jax")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `remedy` says what to do where the status is not "ok"."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def checks(options: Options) -> Iterator[Check]:
    """All checks, one after the other, so that each can be shown when it is done."""
    yield check_python()
    yield check_torch(torch.__version__)
    yield check_stretto()
    yield check_compiler()
    yield check_vectors(cpu())
    yield check_cores(options)
    yield check_weights(options)
    yield check_cache(CacheFolder(options.cache_path()))
    yield check_gpu()
    yield check_triton()
    yield check_peers()
    yield check_run(options)


def check_python() -> Check:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Check("python", "warn", found, "stretto is tested on Linux; the rest may work")
    return Check("python", "ok", found)


def check_torch(version: str) -> Check:
    """Whether this version of torch is one that stretto is made for."""
    low, high = (".".join(map(str, bound)) for bound in (TORCH_FROM, TORCH_BEFORE))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if TORCH_FROM <= numbers < TORCH_BEFORE:
        return Check("torch", "ok", version)
    remedy = f"pip install 'torch>={low},<{high}'"
    return Check("torch", "warn", f"{version}, made for {low} up to below {high}", remedy)


def check_stretto() -> Check:
    return Check("stretto", "ok", f"{stretto.__version__} in {Path(stretto.__file__).parent}")


def check_compiler() -> Check:
    try:
        found = find_compiler()
    except BuildError as error:
        return Check("compiler", "fail", error.message, error.remedy or "")
    version = found.version.splitlines()[0]
    flags = " ".join(flag for flag in build_flags(trace=False) if flag.startswith(("-O", "-m")))
    return Check("compiler", "ok", f"{shlex.join(found.command)} ({version}), {flags}")


def check_vectors(processor: str) -> Check:
    """The vector extensions that generated code can use."""
    words = set(processor.replace("'", " ").split())
    found = [name for name in VECTORS if name in words]
    if "avx512f" in found or "avx2" in found or "asimd" in found:
        return Check("vectors", "ok", " ".join(found))
    remedy = "programs run, but slowly: use a processor with AVX2, AVX-512 or NEON"
    return Check("vectors", "warn", "none of AVX-512, AVX2, NEON", remedy)


def check_cores(options: Options) -> Check:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    units = options.unit_count()
    detail = f"{cpus} CPUs for this process, {units} execution units by default"
    return Check("cores", "ok", detail)


def check_weights(options: Options) -> Check:
    """How a program learns that its weights were written."""
    try:
        tracked = tracks_pages(options)
    except BuildError as error:
        return Check("weights", "fail", error.message, error.remedy or "see above")
    if tracked:
        return Check("weights", "ok", "the system tells which pages of them were written")
    detail = "the system does not tell what was written: packed weights are read at each call"
    remedy = "use Linux 6.7 or later, and allow userfaultfd (containers: in the seccomp profile)"
    return Check("weights", "warn", detail, remedy)


def check_cache(folder: CacheFolder) -> Check:
    detail = f"{folder.path}, {folder.entries} programs, {bytes_text(folder.nbytes)}"
    problem = _write_problem(folder.path)
    if problem is None:
        return Check("cache", "ok", detail)
    remedy = "set STRETTO_CACHE or Options(cache_dir=...) to a folder that can be written"
    return Check("cache", "warn", f"{detail}: {problem}; programs are kept for one process", remedy)


def _write_problem(folder: Path) -> str | None:
    """Why no file can be made in the folder; None where one can. The folder may come into being."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def check_gpu() -> Check:
    """The GPU that programs would run on."""
    try:
        gpu = find_gpu(torch.device("cuda"))
    except BuildError as error:
        return _only_for_gpus("gpu", error)
    capability, driver = (".".join(map(str, v)) for v in (gpu.capability, load_driver().version()))
    others = torch.cuda.device_count() - 1
    more = f", {others} more" if others else ""
    return Check(
        "gpu",
        "ok",
        f"{gpu.device}: {gpu.name}, compute capability {capability}, {gpu.multiprocessors} "
        f"multiprocessors; driver for CUDA {driver}, torch for {torch.version.cuda}{more}",
    )


def check_triton() -> Check:
    """The compiler of programs for GPUs, which works without one, and what emulates a GPU."""
    try:
        version = require_triton()
    except BuildError as error:
        return _only_for_gpus("triton", error)
    try:
        found = f"greenlet {require_greenlet().__version__}: backend cuda-emulated works"
    except BuildError:
        found = "no greenlet, which backend cuda-emulated needs: pip install 'stretto[emulated]'"
    return Check("triton", "ok", f"{version}; {found}")


def _only_for_gpus(name: str, error: BuildError) -> Check:
    return Check(name, "warn", error.message, f"for programs on a GPU only: {error.remedy}")


def check_peers() -> Check:
    """Systems that `stretto bench` compares with, all of them optional."""
    found: list[str] = []
    missing: list[str] = []
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    detail = ", ".join(found) or "none"
    if not missing:
        return Check("peers", "ok", detail)
    remedy = f"for `stretto bench` only: pip install {' '.join(missing)}"
    return Check("peers", "warn", f"{detail}; not installed: {', '.join(missing)}", remedy)


def check_run(options: Options) -> Check:
    """Compiles a small loop and compares it with eager."""

    def small(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(x @ x) + 0.5
        return x

    return run_check(small, torch.linspace(-1.0, 1.0, 64).view(8, 8), options)


def run_check(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, options: Options
) -> Check:
    """Whether the function gives the same compiled for the CPU machine as eager."""
    try:
        with torch.no_grad():
            fast = stretto.compile(function, backend="cpu", options=options)
            found, wanted = fast(x), function(x)
    except StrettoError as error:
        return Check("compile and run", "fail", error.message, error.remedy or "see above")
    error = float((found - wanted).abs().max())
    if error > 1e-4:
        detail = f"differs from eager by {error:.1e}"
        return Check("compile and run", "fail", detail, "please report this with `stretto doctor`")
    return Check("compile and run", "ok", f"a loop of 8 trips, within {error:.1e} of eager")
