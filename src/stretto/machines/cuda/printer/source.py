"""What the Triton printer hands to those who compile, launch or emulate a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.user_kernels import UserKernel

ENTRY = "stretto_run"
"""The kernel's name in the text."""
NAMES = "# for "
"""How the line before a function begins that names the kernel it was made for."""

ERROR = 0
"""Word of the control block: a Status, 0 while nothing went wrong. It stays until the host clears
it, and a launch that finds it set does nothing."""
DETAIL = 1
"""Word of the control block: what belongs to the status."""
HOST = 2
"""Word of the control block: the address of a word of host memory, where a program that fails
stores its status too, so that the host sees it without asking the GPU; 0 is none."""
PROGRESS = 16
"""Word of the control block where the progress counters of the units begin, one word a unit."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the kernel, in order. `type` is that of Triton's signatures.

    kind:
        "control": *i64, words as above, PROGRESS + units of them, all 0 before the first launch;
        "arena": the intermediate values, once per element type that is used, all the same address;
        "buffer": the external buffer at `place` of `TritonSource.arguments`;
        "limit": i64, how many items the list at that place has room for;
        "size": i64, the value of the program's symbol at that place;
        "words": *i64, registers that come in or go out, a word each: an integer or bool as a
            number, a float by its bits (those of an f32 in the lower half); and addresses;
        "tables": *i32, `TritonSource.tables`;
        "stack": *i64, `stack_words` words for every unit, one unit after the other;
        "stack_words", "arena_bytes", "max_depth": i64;
        "polls": i64, looks at a counter after which a wait gives up.
    Addresses are multiples of 16.
    """

    name: str
    type: str
    kind: str
    place: int = 0

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A Python module with one Triton kernel `stretto_run` and all that it calls.

    text: the module; it needs nothing but triton. arguments: the external buffers that the
    kernel has parameters for, constants last. kernels: names, numbered as the program numbers
    them. recursive: it needs a stack. user_kernels: those whose functions the text has. joint:
    units wait for each other, so all of them must be resident at once. busy: where they do not,
    only so many have tasks. kept: bytes of constants that loops hold in the registers of a unit.
    lacking: bytes that they would hold besides if there were room for them. shares: by kernel
    and constant, the part of what a task loads that loops hold, in registers or shared memory.
    shared_bytes: of a unit's shared memory, at its end, for constants that loops keep there; a
    launch has to ask for them in addition to what Triton needs. shared_reads: by kernel, the bytes
    that a task reads from there.
    """

    text: str
    parameters: tuple[Parameter, ...]
    arguments: tuple[Buffer, ...]
    units: int
    warps: int
    tables: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    recursive: bool = False
    user_kernels: tuple[UserKernel, ...] = ()
    joint: bool = True
    busy: int = 0
    kept: int = 0
    lacking: int = 0
    shares: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict[str, Mapping[str, float]], hash=False
    )
    shared_bytes: int = 0
    shared_reads: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)

    @property
    def blocks(self) -> int:
        """Thread blocks of a launch, a unit each."""
        return self.units if self.joint else self.busy
