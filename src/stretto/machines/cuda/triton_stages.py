"""Changes to Triton's compilation of a printed program, to save time and to add missing barriers.

A printed program is one kernel with hundreds of calls, branches and variables, for which Triton was
not designed. The following do not change the machine code:

- Before each arm of a branch Triton's code generator makes a copy of every variable, and of the
  type of each: half of the seconds of a large program. A shallow copy is enough.
- Lines of the text are not recorded: they are a third of the program, and of no use, since the text
  is not a file.
- ptxas reports spills when it compiles. Triton drops its log, and ptxas would have to run again.

In addition, barriers that Triton omits between a caller's and a callee's accesses to shared memory
(hazards.py) are inserted into Triton's module.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import BuildError
from stretto.machines.cuda import machine_code as ptx_text
from stretto.machines.cuda.hazards import Hazard, analysed

# ---- Shared memory across the calls of a program, in Triton's own module of it.
#
# Triton 3.6 and 3.7 begin the shared memory of every function at one address, and have two defects.
# They omit barriers between a caller's and a callee's accesses (hazards.py), which are inserted
# here. And a block that a function holds in shared memory over a call is overwritten if the callee
# uses shared memory (triton-lang/triton pull request 11267): such calls are found here.
#
#     %b = ttg.local_alloc %x       a block in shared memory
#     tt.call @callee(...)          the caller holds %b over this call
#     %y = ttg.local_load %b


REPORT = "please report it, with the program's text (Options(debug=Debug(dump_dir=...)))"
_LOOPS = ("scf.for", "scf.while")
_BLOCK = "!ttg.memdesc"


@dataclass(frozen=True, slots=True)
class MissingBarriers:
    """Barriers to insert into a program: before, and after, all calls that a function makes of
    another one. A pair is the caller and the callee, by their names in PTX."""

    before: frozenset[tuple[str, str]] = frozenset()
    after: frozenset[tuple[str, str]] = frozenset()

    def against(self, hazards: Iterable[Hazard]) -> MissingBarriers:
        """Add barriers that order the accesses of `hazards`: after the call that makes the first
        access, or, if the caller makes that itself, before the call that makes the second.
        Raises BuildError if such barriers exist already."""
        hazards = tuple(hazards)
        after = {(one.caller, one.first) for one in hazards if one.first}
        before = {(one.caller, one.second) for one in hazards if not one.first}
        if before & self.before or after & self.after:
            raise BuildError(
                f"barriers do not order shared memory across calls: {'; '.join(map(str, hazards))}",
                remedy=REPORT,
            )
        return MissingBarriers(self.before | before, self.after | after)

    def place(self, module: Any) -> None:
        """Insert the barriers into Triton's module."""
        from triton._C.libtriton import ir

        walk = walked(module)
        builder = ir.builder(module.context)
        for function in walk.functions:
            for call in function.calls:
                pair = function.name, call.callee
                if pair in self.before:
                    if call.previous is None:
                        builder.set_insertion_point_to_start(call.operation.get_block())
                    else:
                        builder.set_insertion_point_after(call.previous)
                    builder.create_barrier()
                if pair in self.after:
                    builder.set_insertion_point_after(call.operation)
                    builder.create_barrier()


NO_BARRIERS = MissingBarriers()


@dataclass(frozen=True, slots=True)
class TritonCall:
    """A call. place: the number of its operation. callee: its name in PTX. previous: the operation
    before it in its block."""

    place: int
    callee: str
    operation: Any
    previous: Any


@dataclass(frozen=True, slots=True)
class _TritonFunction:
    """A function. operations: the numbers of its operations."""

    name: str
    operations: range
    calls: tuple[TritonCall, ...]


@dataclass(slots=True)
class _ModuleWalk:
    """A walk that numbers the operations of a module, nested ones before the operation that
    contains them.

    made: by value in shared memory, the operation and the region that make it. used: value,
    operation and region of each use. outer: the parent of each region. loops: for each repeated
    region, the number of its loop operation, where it ends. last: the latest operation of each
    block.
    """

    functions: list[_TritonFunction] = field(default_factory=list[_TritonFunction])
    made: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    used: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    outer: dict[int, int] = field(default_factory=dict[int, int])
    loops: dict[int, int] = field(default_factory=dict[int, int])
    last: dict[int, Any] = field(default_factory=dict[int, Any])
    calls: list[TritonCall] = field(default_factory=list[TritonCall])
    count: int = 0
    begin: int = 0

    def see(self, operation: Any) -> None:
        """Record the next operation of the walk."""
        name: str = operation.get_name()
        if name == "builtin.module":
            return
        place, self.count = self.count, self.count + 1
        if name == "tt.func":
            self._function(operation)
            return
        region, block = self._region(operation), operation.get_block().id()
        if name in _LOOPS:
            for number in range(operation.get_num_regions()):
                self.loops[operation.get_region(number).id()] = place
        elif name == "tt.call":
            callee = in_ptx(operation.get_flat_symbol_ref_attr("callee"))
            self.calls.append(TritonCall(place, callee, operation, self.last.get(block)))
        self.last[block] = operation
        for number in range(operation.get_num_operands()):
            value = operation.get_operand(number)
            if _is_block(value):
                self.used.append((value.id(), place, region))
        for number in range(operation.get_num_results()):
            value = operation.get_result(number)
            if _is_block(value):
                self.made[value.id()] = place, region

    def _function(self, operation: Any) -> None:
        name = in_ptx(operation.get_str_attr("sym_name"))
        operations = range(self.begin, self.count)
        self.functions.append(_TritonFunction(name, operations, tuple(self.calls)))
        self.calls, self.begin = [], self.count

    def _region(self, operation: Any) -> int:
        region = operation.get_block().get_parent()
        number = region.id()
        if number not in self.outer:
            around = region.get_parent_region()
            self.outer[number] = around.id() if around is not None else number
        return number

    def around(self, region: int) -> list[int]:
        """Return the region, and those that contain it."""
        found = [region]
        while (region := self.outer.get(region, region)) not in found:
            found.append(region)
        return found


def walked(module: Any) -> _ModuleWalk:
    walk = _ModuleWalk()
    module.walk(walk.see)
    return walk


def held_over_calls(module: Any) -> Iterator[tuple[str, str]]:
    """Yield the caller and the callee of each call in Triton's module over which a function holds
    a block in shared memory: one made before the call and used after it, or used anywhere in a
    loop around the call if made before the loop. An argument of a region counts as made at the
    beginning of the function."""
    walk = walked(module)
    for function in walk.functions:
        lives: list[tuple[int, int]] = []
        for value, place, region in walk.used:
            if place in function.operations:
                begin, home = walk.made.get(value, (function.operations.start - 1, 0))
                inside = {*walk.around(region)} - {*walk.around(home)}
                ends = [walk.loops[one] for one in inside if one in walk.loops]
                lives.append((begin, max((place, *ends))))
        for call in function.calls:
            if any(begin < call.place < end for begin, end in lives):
                yield function.name, call.callee


def in_ptx(name: str) -> str:
    """Return the name that LLVM gives a function in PTX."""
    return name.replace(".", "_$_")


def _is_block(value: Any) -> bool:
    return str(value.get_type()).startswith(_BLOCK)


Stage = Callable[[Any, dict[str, Any]], Any]
"""A stage of Triton: a function of the previous stage's result and of the metadata of the
kernel."""
DECLARATION = re.compile(r"^\.extern \.shared .*global_smem\[", re.MULTILINE)
CLONE = "_clone_triton_value"
"""Function of Triton 3.6's code generator that copies a variable. Triton 3.7 copies none."""


_UNKNOWN_GPU = "is not defined for option 'gpu-name'"
"""Part of ptxas's error for a GPU that is newer than itself."""


@dataclass(slots=True)
class Assembled:
    """State of the compilation of one program.

    log: ptxas's output about its functions. barriers: those inserted so far. hazards: those that
    remain; if there are any, ptxas does not run. held: caller and callee of each call over which
    the caller holds a block in shared memory. overwritten: those whose callee uses shared memory.
    """

    log: str = ""
    barriers: MissingBarriers = NO_BARRIERS
    hazards: tuple[Hazard, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    overwritten: tuple[tuple[str, str], ...] = ()

    def prepare(self, module: Any) -> None:
        """Insert barriers, before Triton allocates shared memory."""
        self.held = tuple(held_over_calls(module))
        self.barriers.place(module)

    def assemble(self, ptx: str, options: Any, architecture: int) -> bytes:
        """Assemble PTX. Raises BuildError with the output of ptxas. Returns no bytes if there are
        hazards."""
        ptx = _declared(ptx)
        calls = analysed(ptx_text.functions(ptx))
        self.hazards = tuple(calls.hazards)
        touching = {name for name, one in calls.summaries.items() if one.touches}
        self.overwritten = tuple(one for one in self.held if one[1] in touching)
        return b"" if self.hazards else self._assembled(ptx, options, architecture)

    def _assembled(self, ptx: str, options: Any, architecture: int) -> bytes:
        from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

        with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
            source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            source.write_text(ptx)
            command = [get_ptxas(architecture).path, "-v"]
            command += [] if options.enable_fp_fusion else ["--fmad=false"]
            command += options.ptx_options.split() if options.ptx_options else []
            command += [f"--gpu-name={sm_arch_from_capability(architecture)}", str(source)]
            command += ["-o", str(binary)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.log = done.stdout + done.stderr
            if _UNKNOWN_GPU in self.log:
                raise BuildError(
                    f"ptxas of the installed Triton does not know this GPU: {self.log.strip()}",
                    remedy="install a newer Triton: that of 3.7 knows sm_110",
                )
            if done.returncode:
                raise BuildError(
                    f"ptxas fails with {done.returncode}: {self.log.strip()}",
                    remedy=REPORT,
                )
            return binary.read_bytes()


def _declared(ptx: str) -> str:
    """Add the declaration of shared memory, which LLVM omits if only inline assembly
    (printer/library/shared.py) uses it."""
    if "global_smem" not in ptx or DECLARATION.search(ptx):
        return ptx
    head, size, rest = ptx.partition(".address_size 64\n")
    return f"{head}{size}.extern .shared .align 16 .b8 global_smem[];\n{rest}"


@contextmanager
def quick_stages() -> Generator[Assembled]:
    """Change Triton's compilation as described above, inside a `with`. One thread at a time."""
    from triton import knobs
    from triton.compiler import code_generator
    from triton.language import tensor

    assembled = Assembled()
    names: dict[str, Any] = code_generator.__dict__
    clone: Callable[[Any], Any] | None = names.get(CLONE)

    def copied(value: Any) -> Any:
        assert clone is not None
        if type(value) is not tensor:
            return clone(value)
        copy = object.__new__(tensor)
        copy.__dict__.update(value.__dict__)
        return copy

    def inspect(*given: Any) -> tuple[str, str]:
        """Triton calls it with a backend, its stages and its options; Triton 3.7 first without
        arguments, for parts of its cache key."""
        if given:
            backend, stages, options, *_ = given
            _assemble_here(backend, stages, options, assembled)
        return "stretto", "stretto"

    hook: Any = inspect  # its declared type is that of neither version
    with knobs.runtime.scope(), knobs.compilation.scope():
        knobs.runtime.add_stages_inspection_hook = hook
        knobs.compilation.disable_line_info = True
        if clone is not None:
            names[CLONE] = copied
        try:
            yield assembled
        finally:
            if clone is not None:
                names[CLONE] = clone


def _assemble_here(
    backend: Any, stages: dict[str, Stage], options: Any, assembled: Assembled
) -> None:
    if "cubin" in stages:
        arch, lower = backend.target.arch, stages["llir"]

        def lowered(module: Any, facts: dict[str, Any]) -> Any:
            assembled.prepare(module)
            return lower(module, facts)

        stages["llir"] = lowered
        stages["cubin"] = lambda ptx, _: assembled.assemble(ptx, options, arch)
