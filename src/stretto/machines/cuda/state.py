"""State shared by the launches on one stream, and the kernel arguments filled from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from stretto.errors import RunError
from stretto.machines.cuda.launch import Argument, Invocation
from stretto.machines.cuda.launcher import Launcher, Words, words_of
from stretto.machines.cuda.printer.source import DETAIL, ERROR, HOST, PROGRESS, TritonSource
from stretto.runtime.call_sizes import Values
from stretto.runtime.results import ProgramStopped, Status, stopped
from stretto.text import bytes_text

ALIGNMENT = 16
"""Alignment in bytes of addresses that are passed to programs."""


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of a state's arena, and of the stack of all units."""

    arena: int
    stack: int

    def joined(self, other: StateSizes) -> StateSizes:
        """Return the larger of both in each respect."""
        return StateSizes(max(self.arena, other.arena), max(self.stack, other.stack))


NO_SIZES = StateSizes(0, 0)


@dataclass(slots=True)
class LaunchState:
    """State of the launches on one stream, or in one capture, which run one after the other.

    error: the host's view of the control block's error. words: registers that are passed in or out,
    in memory that both sides access. arena, stack: None until allocated, for a capture at each
    launch. invocations: of each kernel, once it was launched. graphs: captured from the plan
    (graphs/graph_executable.py). wanted: sizes that the running call needs in addition to those of
    the executable.
    """

    stream: int
    capture: int
    control: torch.Tensor
    error: Words
    words: Words
    shared: tuple[torch.Tensor, torch.Tensor]
    arena: torch.Tensor | None = None
    stack: torch.Tensor | None = None
    invocations: dict[int, Invocation] = field(default_factory=dict[int, Invocation])
    graphs: object = None
    wanted: StateSizes = NO_SIZES
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failed(self) -> bool:
        return self.error[ERROR] != 0

    @property
    def sizes(self) -> StateSizes:
        arena, stack = self.arena, self.stack
        return StateSizes(
            0 if arena is None else arena.numel(), 0 if stack is None else stack.numel()
        )


def make_state(
    launcher: Launcher, stream: int, capture: int, units: int, words: int
) -> LaunchState:
    """Return a new state. It is made outside of any capture: a graph's memory is written at every
    replay, zeroing the counters must not be part of a replay, and a capture by another thread
    must not be disturbed. Raises RunError if memory is exhausted."""

    def make() -> LaunchState:
        control, error = launcher.control(PROGRESS + units)
        host = launcher.host(words + 1)  # never empty
        return LaunchState(stream, capture, control, words_of(error), words_of(host), (error, host))

    try:
        return launcher.aside(make)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raise _no_memory(8 * (PROGRESS + units), "the counters", _FREE_SOME) from error


def failure(launcher: Launcher, state: LaunchState, max_depth: int) -> ProgramStopped:
    """Return why a state stopped, and reset it for the next launch. No launch may be running."""

    def reset() -> tuple[int, int]:
        control = state.control
        status, detail = (int(control[word]) for word in (ERROR, DETAIL))
        control[:HOST] = 0
        control[PROGRESS:] = 0
        return status, detail

    status, detail = launcher.aside(reset)
    state.error[ERROR] = 0
    return stopped(Status(status), detail, max_depth, state.sizes.arena)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a program, enqueued on a stream.

    memory: by slot, a tensor for every buffer but the constants. capacities: of lists, by their
    number. sizes: the values of symbols.
    """

    state: LaunchState
    memory: Mapping[int, torch.Tensor]
    capacities: Mapping[int, int]
    sizes: Values
    stream: int


@dataclass(frozen=True, slots=True)
class ParameterPlaces:
    """Positions of the parameters that change from launch to launch.

    buffers: pairs of slot and parameter; limits: of list number and parameter; sizes: of symbol
    number and parameter.
    """

    buffers: tuple[tuple[int, int], ...]
    limits: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...]
    arenas: tuple[int, ...]
    words: tuple[int, ...]

    @property
    def changing(self) -> tuple[int, ...]:
        """Parameters that change from call to call, on one state."""
        return tuple(sorted(n for _, n in (*self.buffers, *self.limits, *self.sizes)))

    @staticmethod
    def of(source: TritonSource) -> ParameterPlaces:
        def where(kind: str) -> list[tuple[int, int]]:
            found = enumerate(source.parameters)
            return [(p.place, number) for number, p in found if p.kind == kind]

        slots = [(source.arguments[place], number) for place, number in where("buffer")]
        return ParameterPlaces(
            tuple((buffer.slot, number) for buffer, number in slots if buffer.kind != "constant"),
            tuple(where("limit")),
            tuple(where("size")),
            tuple(number for _, number in where("arena")),
            tuple(number for _, number in where("words")),
        )

    def fill(
        self,
        invocation: Invocation,
        job: Job,
        frame: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Set the arguments of one launch. frame: arena and words, if not the state's."""
        if frame is not None:
            for number in self.arenas:
                invocation.set(number, frame[0])
            for number in self.words:
                invocation.set(number, frame[1])
        for slot, number in self.buffers:
            invocation.set(number, job.memory[slot])
        for place, number in self.limits:
            invocation.set(number, job.capacities[place])
        for place, number in self.sizes:
            invocation.set(number, job.sizes[place])


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills the parameters of kernels that are the same for all launches on a state.

    tables: of each kernel. constants: tensors by slot.
    """

    launcher: Launcher
    sources: tuple[TritonSource, ...]
    constants: Mapping[int, torch.Tensor]
    tables: tuple[torch.Tensor, ...]
    max_depth: int

    def arguments(self, number: int, state: LaunchState, sizes: StateSizes) -> list[Argument]:
        """Return an argument for each parameter of a kernel; null for those that
        `ParameterPlaces.fill` sets. Allocates arena and stack of those sizes if the state has
        none yet."""
        source = self.sources[number]
        made = self._made(source, state, sizes)
        arguments: list[Argument] = []
        for parameter in source.parameters:
            match parameter.kind:
                case "buffer":
                    buffer = source.arguments[parameter.place]
                    arguments.append(self.constants.get(buffer.slot, 0))
                case "limit" | "size":
                    arguments.append(0)
                case "tables":
                    arguments.append(self.tables[number])
                case kind:
                    arguments.append(made[kind]())
        return arguments

    def _made(
        self, source: TritonSource, state: LaunchState, sizes: StateSizes
    ) -> dict[str, Callable[[], Argument]]:
        def arena() -> torch.Tensor:
            return self.arena(state, sizes)

        def stack() -> torch.Tensor:
            if state.stack is None:
                state.stack = self.memory(sizes.stack)
            return state.stack

        return {
            "control": lambda: state.control,
            "words": lambda: state.shared[1],
            "arena": arena,
            "arena_bytes": lambda: arena().numel(),
            "stack": stack,
            "stack_words": lambda: stack().numel() // (8 * source.units),
            "max_depth": lambda: self.max_depth,
            "polls": lambda: self.launcher.polls,
        }

    def arena(self, state: LaunchState, sizes: StateSizes) -> torch.Tensor:
        """Return a state's memory for local buffers, allocated at first use. Raises as `memory`."""
        if state.arena is None:
            state.arena = self.memory(sizes.arena)
        return state.arena

    def memory(self, count: int) -> torch.Tensor:
        """Allocate bytes for a program itself. Raises RunError if there is not enough memory."""
        try:
            return self.launcher.empty((max(count, ALIGNMENT),), torch.uint8)
        except torch.OutOfMemoryError as error:
            recursive = any(source.recursive for source in self.sources)
            remedy = "check that the recursion reaches its base case" if recursive else _FREE_SOME
            raise _no_memory(count, "the intermediate values", remedy) from error

    def output(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate memory for a result, of the stream or of the capture's graph. Raises RunError
        if there is not enough memory."""
        try:
            return self.launcher.result(shape, dtype)
        except torch.OutOfMemoryError as error:
            raise _no_memory(prod(shape) * dtype.itemsize, "a result", _FREE_SOME) from error


_FREE_SOME = "free memory of the GPU, or use smaller inputs"


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return True if memory is exhausted; for pinned host memory torch raises a plain
    RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def _no_memory(nbytes: int, what: str, remedy: str) -> RunError:
    return RunError(
        f"the GPU has no {bytes_text(nbytes)} left for {what} of the program", remedy=remedy
    )


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of addresses."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
