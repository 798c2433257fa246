"""Result of the Triton printer, for the code that compiles, launches or emulates a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.user_kernels import UserKernel

ENTRY = "stretto_run"
"""Name of the kernel in the text."""
NAMES = "# for "
"""Prefix of the comment before a function that names the kernel it was made for."""

ERROR = 0
"""Word of the control block: a Status, 0 while no failure has occurred. It is kept until the host
clears it; a launch that finds it set does nothing."""
DETAIL = 1
"""Word of the control block: detail of the status."""
HOST = 2
"""Word of the control block: the address of a word of host memory in which a failing program stores
its status too, so that the host sees it without a transfer from the GPU; 0 if there is none."""
PROGRESS = 16
"""First word of the progress counters in the control block, one word per unit."""


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One parameter of the kernel. `type` is that of Triton's signatures.

    kind:
        "control": *i64, words as above, PROGRESS + units of them, all 0 before the first launch;
        "arena": the local buffers, once per element type that is used, all the same address;
        "buffer": the external buffer at `place` of `TritonSource.arguments`;
        "limit": i64, the capacity in items of the list at that place;
        "size": i64, the value of the program's symbol at that place;
        "words": *i64, registers that are passed in or out, a word each: an integer or bool as a
            number, a float by its bits (those of an f32 in the lower half); and addresses;
        "tables": *i32, `TritonSource.tables`;
        "stack": *i64, `stack_words` words for every unit, one unit after the other;
        "stack_words", "arena_bytes", "max_depth": i64;
        "polls": i64, number of polls of a counter after which a wait gives up.
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
    """A Python module with one Triton kernel `stretto_run` and everything that it calls.

    text: the module; it imports only triton. arguments: the external buffers that the kernel has
    parameters for, constants last. kernels: names, in the program's order. recursive: True if it
    needs a stack. user_kernels: those whose functions the text contains. joint: True if units wait
    for each other, so that all of them must be resident at once. busy: if not joint, the number of
    units that have tasks. kept: bytes of constants that loops hold in the registers of a unit.
    lacking: bytes that they would also hold if there were room. shares: by kernel and constant, the
    fraction of a task's loads that loops hold in registers or shared memory. shared_bytes: bytes at
    the end of a unit's shared memory for constants that loops hold there; a launch has to request
    them in addition to what Triton needs. shared_reads: by kernel, the bytes that a task reads from
    there.
    """

    text: str
    parameters: tuple[KernelParameter, ...]
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
        """Thread blocks of a launch, one per unit."""
        return self.units if self.joint else self.busy
