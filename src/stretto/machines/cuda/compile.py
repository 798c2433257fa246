"""Compile a printed Triton program ahead of time; no GPU is needed.

Results are stored in the build cache. Triton's own cache is not used: it would store every stage of
every program in the user's home folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import BuildError, SourceLocation
from stretto.extending.triton_source import rejected
from stretto.machines.cuda.printer.source import ENTRY, NAMES, KernelParameter, TritonSource
from stretto.machines.cuda.toolchain import (
    TRITON_LOCK,
    GpuTarget,
    Multiprocessor,
    file_name,
    require_triton,
)
from stretto.machines.cuda.triton_stages import REPORT, Assembled, quick_stages
from stretto.options import Options
from stretto.runtime.cache import DiskCache, content_key, without_names

# ---- Check that Triton's layouts let a thread load four neighbours of shared memory at once.
#
# `tl.inline_asm_elementwise(pack=4)` passes an instruction four elements that are consecutive in
# the registers of a thread. Which elements those are depends on the layout of the block, which the
# language does not specify. So this module reads the program that Triton has made: along the first
# axis of each such block a thread must hold a multiple of four elements, and its registers must be
# ordered along that axis first.


_VECTOR = re.compile(r"elementwise_inline_asm .*(?:ld|st)\.shared::cta\.v4")
_TYPE = re.compile(r"-> tensor<\d+(?:x\d+)*xi32, (#\w+)>")
_LAYOUT = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[(\d+)[^]]*\].*order = \[(\d+)[^]]*\]",
    re.MULTILINE,
)


def vectors_are_neighbours(ttgir: str) -> bool:
    """Return True if all vectors of a program in Triton's GPU dialect hold neighbours. Unknown
    instructions and layouts count as False."""
    good = {
        name
        for name, each, order in _LAYOUT.findall(ttgir)
        if int(each) % 4 == 0 and int(order) == 0
    }
    found = [line for line in ttgir.splitlines() if ".shared::cta.v4" in line]
    return all(
        _VECTOR.search(line) is not None
        and (layout := _TYPE.search(line)) is not None
        and layout[1] in good
        for line in found
    )


# ---- Resources of a compiled kernel, and the number of its units that fit on a multiprocessor.


_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one unit (thread block) and all functions that it calls.

    registers: of one thread. spill_bytes: bytes of registers spilled to memory, stores and loads of
    all functions together. stack_bytes: the largest frame of one function; without spills it holds
    values saved over calls. units_per_sm: number of units that one multiprocessor holds at once;
    `limit` is the resource that limits it: registers, shared memory, threads or blocks. They are 0
    and "unknown" for targets that are only compiled for.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    warps: int
    units_per_sm: int
    limit: str


def resources(
    usage: dict[str, tuple[int, int]],
    spill_bytes: int,
    shared_bytes: int,
    warps: int,
    machine: Multiprocessor | None,
) -> Resources:
    """Return the resources of a unit. usage: registers and stack bytes by function."""
    registers = max((registers for registers, _ in usage.values()), default=0)
    stack = max((stack for _, stack in usage.values()), default=0)
    units, limit = 0, "unknown"
    if machine is not None:
        units, limit = units_per_multiprocessor(registers, shared_bytes, warps, machine)
    return Resources(registers, shared_bytes, spill_bytes, stack, warps, units, limit)


def units_per_multiprocessor(
    registers: int, shared_bytes: int, warps: int, machine: Multiprocessor
) -> tuple[int, str]:
    """Return the number of thread blocks that fit, and the resource that limits it (CUDA's
    occupancy calculator). 0 if not even one fits."""
    per_warp = _up(max(registers, 1) * 32, machine.register_unit)
    # A warp's registers are in one of the four partitions of a multiprocessor.
    with_registers = machine.registers // 4 // per_warp * 4
    shared = _up(shared_bytes + machine.reserved_shared_bytes, machine.shared_unit)
    limits = {
        "registers": with_registers // warps,
        "shared memory": machine.shared_bytes // shared,
        "threads": machine.warps // warps,
        "blocks": machine.blocks,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def function_usage(cubin: bytes, cuobjdump: str) -> dict[str, tuple[int, int]]:
    """Return registers and stack bytes of each function of a binary, the kernel itself included."""
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        output = _run([cuobjdump, "-res-usage", str(file)])
    usage = {
        name: (int(registers), int(stack) + int(local))
        for name, registers, stack, _, local in _USAGE.findall(output)
    }
    if not usage:
        raise BuildError(f"cuobjdump reports no resources of the kernel:\n{output.strip()}")
    return usage


def spilled_bytes(log: str) -> int:
    """Return the bytes that all functions together spill to memory and reload, from the log of
    `ptxas -v`."""
    return sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(log))


def _run(command: list[str]) -> str:
    """Return the output of one of Triton's tools on both streams."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise BuildError(
            f"{command[0]} cannot read the resources of the kernel: {detail.strip()}",
            remedy="reinstall Triton, which includes these CUDA tools",
        ) from error
    return result.stdout + result.stderr


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


_SUFFIX = ".triton"
_FORMAT = "3"
"""Version of the cache entries; part of their keys."""
SHARED_ALIGNMENT = 16
"""Alignment of the program's own part of shared memory, which is read in vectors of 16 bytes."""


@dataclass(frozen=True, slots=True)
class CompiledTriton:
    """Machine code and the facts that a launcher needs.

    binary: a cubin or hsaco. entry: the kernel's name in it. parameters: those of the source, in
    order, after which the binary has `scratch_parameters` more pointers, null unless
    `scratch_bytes` is more than 0 (per launch and unit). shared_bytes: dynamic shared memory of a
    unit, Triton's followed by the source's. seconds: processor time of the compilation, also for
    cached results, so that decisions based on it do not depend on the load of the machine.
    """

    binary: bytes
    target: str
    entry: str
    parameters: tuple[KernelParameter, ...]
    scratch_parameters: int
    scratch_bytes: int
    shared_bytes: int
    warps: int
    resources: Resources
    seconds: float
    from_cache: bool


def compile_source(source: TritonSource, target: str, options: Options) -> CompiledTriton:
    """Compile for `target`, a name that GpuTarget.parse knows, unless the cache has it.

    Raises ValueError for another target, and BuildError if Triton is missing or its version is
    not supported, if it rejects the program, or if the result cannot be stored.
    """
    machine = GpuTarget.parse(target)
    version = require_triton()
    signature = json.dumps([(parameter.name, parameter.type) for parameter in source.parameters])
    text = without_names(source.text, NAMES)
    sizes = str(source.warps), str(source.shared_bytes)
    key = content_key(_FORMAT, text, signature, *sizes, machine.name, version)

    def build(product: Path) -> None:
        binary, facts = _compile(source, machine)
        product.write_bytes(json.dumps(facts).encode() + b"\n" + binary)

    path, from_cache = DiskCache(options.cache_path()).get_or_put(key, _SUFFIX, build)
    header, _, binary = path.read_bytes().partition(b"\n")
    facts = json.loads(header)
    facts["resources"] = Resources(**facts["resources"])
    return CompiledTriton(
        binary=binary,
        target=machine.name,
        parameters=source.parameters,
        warps=source.warps,
        from_cache=from_cache,
        **facts,
    )


def _compile(source: TritonSource, target: GpuTarget) -> tuple[bytes, dict[str, Any]]:
    """Return the binary and the fields of CompiledTriton that come from the compiler."""
    start = _processor_seconds()
    with TRITON_LOCK, quick_stages() as assembled:
        compiled = _ordered(source, target, assembled)
        if not vectors_are_neighbours(compiled.asm["ttgir"]):
            compiled = _ordered(source, target, assembled, vectors=False)
    metadata = compiled.metadata
    binary: bytes = compiled.asm[target.binary]
    usage: dict[str, tuple[int, int]] = {}
    spills = 0
    scratch = 0
    if target.backend == "cuda":
        if not assembled.log:
            raise BuildError("ptxas has reported no resources of the kernel")
        usage = function_usage(binary, _cuobjdump())
        spills = spilled_bytes(assembled.log)
        scratch = 2
    own = _up(metadata.shared, SHARED_ALIGNMENT) if source.shared_bytes else metadata.shared
    shared = own + source.shared_bytes
    needs = resources(usage, spills, shared, source.warps, target.multiprocessor)
    facts = {
        "entry": metadata.name,
        "scratch_parameters": scratch,
        "scratch_bytes": getattr(metadata, "global_scratch_size", 0),
        "shared_bytes": shared,
        "resources": asdict(needs),
        "seconds": _processor_seconds() - start,
    }
    return binary, facts


def _ordered(
    source: TritonSource, target: GpuTarget, assembled: Assembled, *, vectors: bool = True
) -> Any:
    """Compile a program with the barriers that Triton omits across calls, adding some each round
    until no hazard is left. Raises BuildError if a barrier does not help, or if a call
    overwrites what its caller holds in shared memory."""
    while True:
        compiled = _run_triton(source, target, vectors=vectors)
        if assembled.overwritten:
            caller, callee = assembled.overwritten[0]
            raise BuildError(
                f"{callee} overwrites shared memory that its caller {caller} uses afterwards",
                remedy=REPORT,
            )
        if not assembled.hazards:
            return compiled
        assembled.barriers = assembled.barriers.against(assembled.hazards)


def _processor_seconds() -> float:
    """Return the processor time of this thread and of the tools that were run."""
    tools = os.times()
    return time.thread_time() + tools.children_user + tools.children_system


@contextmanager
def _no_tensor_memory(target: GpuTarget) -> Generator[None]:
    """Disable Blackwell's tensor memory for products, since Triton 3.6 rejects it in functions
    that are called: "add support for function calls using tmem"."""
    name, before = "DISABLE_MMA_V5", os.environ.get("DISABLE_MMA_V5")
    if isinstance(target.arch, int) and target.arch >= 100:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _run_triton(source: TritonSource, target: GpuTarget, *, vectors: bool = True) -> Any:
    """Compile with Triton. vectors: True if blocks in shared memory may be read by fours, where
    they are deep enough."""
    import triton.language as tl
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, CompilationError
    from triton.compiler import compile as triton_compile

    if knobs.runtime.interpret:
        raise BuildError(
            "Triton does not compile in this process: TRITON_INTERPRET is set",
            remedy="unset the environment variable TRITON_INTERPRET",
        )
    module: dict[str, Any] = {"__name__": "triton_program"}
    exec(compile(source.text, file_name(source.text), "exec"), module)
    if "PORTABLE" in module:
        module["PORTABLE"] = tl.constexpr(target.backend != "cuda")
        module["VECTORS"] = tl.constexpr(vectors)
    program = ASTSource(
        fn=module[ENTRY],
        signature={parameter.name: parameter.type for parameter in source.parameters},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, parameter in enumerate(source.parameters)
            if parameter.is_pointer
        },
    )
    machine = GPUTarget(target.backend, target.arch, target.warp_size)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="stretto-") as folder,
            knobs.cache.scope(),
            _no_tensor_memory(target),
        ):
            knobs.cache.dir = folder
            return triton_compile(program, target=machine, options={"num_warps": source.warps})
    except CompilationError as error:
        raise _rejected(error, source) from error
    except BuildError:
        raise
    except Exception as error:  # Triton raises any class, those of its passes and of LLVM included
        raise BuildError(
            f"Triton cannot compile the program for {target.name}: {error}",
            remedy=REPORT,
        ) from error


def _rejected(error: BaseException, source: TritonSource) -> BuildError:
    """Return the innermost of Triton's errors, at its line of the printed text or of the user's
    source."""
    location = _place(error, source.text)
    while error.__cause__ is not None and hasattr(error.__cause__, "node"):
        error = error.__cause__
        location = _place(error, source.text) or location
    reason = getattr(error, "error_message", None) or str(error.__cause__ or error)
    if location is not None:
        found = rejected(reason, source.text, location.line, source.user_kernels)
        if found is not None:
            return found
    return BuildError(
        f"Triton rejects the program: {reason}",
        location=location,
        remedy="this is an error of stretto's; please report it",
    )


def _place(error: BaseException, text: str) -> SourceLocation | None:
    """Return the line of an error of Triton; None if the error gives one function with the line of
    another, its caller."""
    function: str | None = getattr(error, "src", None)
    line: int | None = getattr(getattr(error, "node", None), "lineno", None)
    if function is None or line is None or line > len(function.splitlines()):
        return None
    place = text.find(function)
    if place < 0:
        return None
    name = function.removeprefix("def ").partition("(")[0]
    return SourceLocation(file_name(text), text.count("\n", 0, place) + line, function=name)


def _cuobjdump() -> str:
    from triton import knobs

    return knobs.nvidia.cuobjdump.path
