"""The device that measurements hold for."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

from stretto.errors import BuildError
from stretto.options import Options, available_cpus
from stretto.runtime.cache import content_key
from stretto.runtime.compiler import build_flags, cpu, find_compiler, instruction_sets


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """name: for people. key: equal only where processor, instruction sets, processors that this
    process may use, compiler and its flags are equal. threads: execution units."""

    name: str
    key: str
    threads: int


@cache
def _compiler() -> str:
    try:
        found = find_compiler()
    except BuildError:
        return "no compiler"
    return f"{' '.join(found.command)} {found.version}"


def this_cpu(options: Options) -> MeasuredDevice:
    """This host, with as many units as the options ask for."""
    cores, threads = len(available_cpus()), options.unit_count()
    compiler = _compiler()
    flags = " ".join(build_flags(trace=False))
    vectors = "AVX-512" if "avx512f" in instruction_sets() else platform.machine()
    name = f"{_model()}, {vectors}, {cores} processors, {threads} units"
    return MeasuredDevice(name, content_key(cpu(), str(cores), compiler, flags), threads)


def _model() -> str:
    _, _, rest = cpu().partition("'model name': '")
    return rest.partition("'")[0] or platform.processor() or platform.machine()
