"""How Triton compiles a printed program: what is done otherwise than by default, to save time.

A printed program is one kernel with hundreds of calls, branches and variables, for which Triton was
not made. Machine code is what it would be without this.

- Before each arm of a branch Triton's code generator makes a copy of every variable, and of the
  type of each: half of the seconds of a large program. A copy of the object is as good.
- No lines of the text are recorded: of a third of the program nobody would read them, since the
  text is no file.
- ptxas says what spills when it compiles. Triton drops that, and ptxas would have to run again.

And one thing is done that Triton leaves out: barriers between a caller's and a callee's accesses to
shared memory (machine_code/hazards.py). Triton's builder puts them into its module
(call_memory.py).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import BuildError
from stretto.machines.cuda import ptx as ptx_text
from stretto.machines.cuda.call_memory import NO_BARRIERS, REPORT, Barriers, held_over_calls
from stretto.machines.cuda.hazards import Hazard, analysed

Stage = Callable[[Any, dict[str, Any]], Any]
"""A stage of Triton: from what the one before it has made, and what is known of the kernel."""
DECLARATION = re.compile(r"^\.extern \.shared .*global_smem\[", re.MULTILINE)
CLONE = "_clone_triton_value"
"""Triton 3.6's function that copies a variable, in its code generator. Triton 3.7 copies none."""


_UNKNOWN_GPU = "is not defined for option 'gpu-name'"
"""Text by which ptxas reports a GPU that is newer than itself."""


@dataclass(slots=True)
class Assembled:
    """log: what ptxas has said about the functions of the program. barriers: those that Triton is
    given for it. hazards: those that are left; where there are some, ptxas does not run.
    held: the caller and the callee of each call over which the caller holds a block in shared
    memory. overwritten: those whose callee uses shared memory."""

    log: str = ""
    barriers: Barriers = NO_BARRIERS
    hazards: tuple[Hazard, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    overwritten: tuple[tuple[str, str], ...] = ()

    def prepare(self, module: Any) -> None:
        """Before Triton allots shared memory."""
        self.held = tuple(held_over_calls(module))
        self.barriers.place(module)

    def assemble(self, ptx: str, options: Any, architecture: int) -> bytes:
        """The binary of a program in PTX. Raises BuildError, with what ptxas said."""
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
    """The module with the declaration of shared memory, which LLVM leaves out where only assembly
    of the program (printer/parts/shared.py) uses it."""
    if "global_smem" not in ptx or DECLARATION.search(ptx):
        return ptx
    head, size, rest = ptx.partition(".address_size 64\n")
    return f"{head}{size}.extern .shared .align 16 .b8 global_smem[];\n{rest}"


@contextmanager
def quick_stages() -> Generator[Assembled]:
    """While it is open, Triton compiles as this module says. One thread at a time."""
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
        """Called with a backend, its stages and its options; by Triton 3.7 first without, for a
        part of the key of its cache, and for its hash."""
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
