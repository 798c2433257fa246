"""Compiles a printed Triton program ahead of time; it needs no GPU.

Results lie in the build cache. Triton's own cache is not used: it would keep every stage of every
program in the user's home folder.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import BuildError, SourceLocation
from stretto.machines.cuda.call_memory import REPORT
from stretto.machines.cuda.printer.source import ENTRY, NAMES, Parameter, TritonSource
from stretto.machines.cuda.resources import Resources, function_usage, resources, spilled_bytes
from stretto.machines.cuda.toolchain import TRITON_LOCK, Target, file_name, require_triton
from stretto.machines.cuda.triton_stages import Assembled, quick_stages
from stretto.machines.cuda.user_source import rejected
from stretto.machines.cuda.vector_layouts import vectors_are_neighbours
from stretto.options import Options
from stretto.runtime.cache import DiskCache, content_key, without_names

_SUFFIX = ".triton"
_FORMAT = "3"
"""Of the cache entries; another one, other keys."""
SHARED_ALIGNMENT = 16
"""Where the program's own part of shared memory ends, of which vectors of 16 bytes are read."""


@dataclass(frozen=True, slots=True)
class CompiledTriton:
    """Machine code and what a launcher must know.

    binary: a cubin or hsaco. entry: the kernel's name in it. parameters: those of the source, in
    order, after which the binary has `scratch_parameters` more pointers, null unless
    `scratch_bytes` is more than 0 (by launch and unit). shared_bytes: dynamic shared memory of a
    unit, that of Triton and behind it that of the source. seconds: of a processor that the
    compilation took, whenever that was; so that what is tried next does not depend on what else the
    machine does.
    """

    binary: bytes
    target: str
    entry: str
    parameters: tuple[Parameter, ...]
    scratch_parameters: int
    scratch_bytes: int
    shared_bytes: int
    warps: int
    resources: Resources
    seconds: float
    from_cache: bool


def compile_source(source: TritonSource, target: str, options: Options) -> CompiledTriton:
    """Compiles for `target`, one of those that Target.parse knows, unless the cache has it.

    Raises ValueError for another target, and BuildError: Triton is missing or not a supported
    version, it rejects the program, or the result cannot be stored.
    """
    machine = Target.parse(target)
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


def _compile(source: TritonSource, target: Target) -> tuple[bytes, dict[str, Any]]:
    """The binary and the fields of CompiledTriton that come from the compiler."""
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
            raise BuildError("ptxas has not said what the kernel needs")
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
    source: TritonSource, target: Target, assembled: Assembled, *, vectors: bool = True
) -> Any:
    """Compiles a program with the barriers that Triton leaves out across calls. Each turn adds
    some, so the turns end. Raises BuildError where a barrier does not help, and where a call
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
    """Of this thread, and of the tools that were run."""
    tools = os.times()
    return time.thread_time() + tools.children_user + tools.children_system


@contextmanager
def _no_tensor_memory(target: Target) -> Generator[None]:
    """Blackwell's products without its tensor memory, which Triton 3.6 refuses in functions that
    are called: "add support for function calls using tmem"."""
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


def _run_triton(source: TritonSource, target: Target, *, vectors: bool = True) -> Any:
    """vectors: whether blocks in shared memory are read by fours, where they are deep enough."""
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
    """The innermost of Triton's errors, at its line of the printed text, or at the user's."""
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
    """The line of an error of Triton. Some give a function with the line of another, its caller."""
    function: str | None = getattr(error, "src", None)
    line: int | None = getattr(getattr(error, "node", None), "lineno", None)
    if function is None or line is None or line > len(function.splitlines()):
        return None
    place = text.find(function)
    if place < 0:
        return None
    name = function.removeprefix("def ").partition("(")[0]
    return SourceLocation(file_name(text), text.count("\n", 0, place) + line, function=name)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _cuobjdump() -> str:
    from triton import knobs

    return knobs.nvidia.cuobjdump.path
