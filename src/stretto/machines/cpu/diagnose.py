"""What `stretto doctor` finds out about this host as a machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from stretto.errors import BuildError
from stretto.machines.machine import Diagnosis
from stretto.options import Options
from stretto.runtime.compiler import build_flags, cpu, find_compiler
from stretto.runtime.memory_watch import tracks_pages

VECTORS = (
    *("avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile"),
    *("avx2", "fma", "f16c", "avx_vnni", "asimd", "bf16", "asimddp", "sve"),
)


def diagnoses(options: Options) -> Iterator[Diagnosis]:
    yield check_compiler()
    yield check_vectors(cpu())
    yield check_cores(options)
    yield check_weights(options)


def check_compiler() -> Diagnosis:
    try:
        found = find_compiler()
    except BuildError as error:
        return Diagnosis("compiler", "fail", error.message, error.remedy or "")
    version = found.version.splitlines()[0]
    flags = " ".join(flag for flag in build_flags(trace=False) if flag.startswith(("-O", "-m")))
    return Diagnosis("compiler", "ok", f"{shlex.join(found.command)} ({version}), {flags}")


def check_vectors(processor: str) -> Diagnosis:
    """The vector extensions that generated code can use."""
    words = set(processor.replace("'", " ").split())
    found = [name for name in VECTORS if name in words]
    if "avx512f" in found or "avx2" in found or "asimd" in found:
        return Diagnosis("vectors", "ok", " ".join(found))
    remedy = "programs run, but slowly: use a processor with AVX2, AVX-512 or NEON"
    return Diagnosis("vectors", "warn", "none of AVX-512, AVX2, NEON", remedy)


def check_cores(options: Options) -> Diagnosis:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    units = options.unit_count()
    detail = f"{cpus} CPUs for this process, {units} execution units by default"
    return Diagnosis("cores", "ok", detail)


def check_weights(options: Options) -> Diagnosis:
    """How a program learns that its weights were written."""
    try:
        tracked = tracks_pages(options)
    except BuildError as error:
        return Diagnosis("weights", "fail", error.message, error.remedy or "see above")
    if tracked:
        return Diagnosis("weights", "ok", "the system tells which pages of them were written")
    detail = "the system does not tell what was written: packed weights are read at each call"
    remedy = "use Linux 6.7 or later, and allow userfaultfd (containers: in the seccomp profile)"
    return Diagnosis("weights", "warn", detail, remedy)
