"""Launches of one kernel on a GPU, ordered so that no two programs wait for each other.

All thread blocks of a launch must be resident at once if they wait for each other. Two such
programs that start concurrently could each get a part of the multiprocessors and wait for the rest
for ever. Therefore

(a) launches are cooperative. CUDA guarantees that all blocks of such a grid run at once, and
    rejects one that cannot fit. A second grid starts when there is room for all of it. A kernel
    node of a graph keeps the attribute, so that replays on several streams cannot starve each other
    either;
(b) a launch on a stream other than that of the device's previous launch first makes its stream wait
    for that launch, so that two programs never share a GPU. Replays are torch's, so this cannot see
    them: only (a) holds for them;
(c) a wait gives up after a number of polls, so that any failure ends in an error.

A launch whose blocks do not wait for each other needs none of this: it may run beside any other.

If blocks wait for each other and there is one for each multiprocessor, each gets a multiprocessor
of its own: it requests at least half of the multiprocessor's shared memory, and the system reserves
some for each block, so two do not fit on one. Otherwise two could share the multiprocessor that an
earlier launch has left last, and the whole program would wait for them.

A device without cooperative launches is rejected, and so is the per-thread default stream: its one
handle is a different stream in each thread, which (b) could not track.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stretto.errors import BuildError, RunError
from stretto.locks import single
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.driver import (
    COOPERATIVE_LAUNCH,
    INVALID_HANDLE,
    MULTIPROCESSORS,
    PER_THREAD_STREAM,
    SHARED_MEMORY_PER_MULTIPROCESSOR,
    CudaError,
    Driver,
    Launch,
    build_error,
)

Argument = torch.Tensor | int
"""Argument of a kernel: a tensor for a pointer, or a number."""


class CompiledKernel(Protocol):
    """The fields of compile.CompiledTriton that launches need."""

    @property
    def binary(self) -> bytes: ...
    @property
    def entry(self) -> str: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def scratch_parameters(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...


class Invocation(Protocol):
    """A kernel with its arguments, which can be launched repeatedly. For one thread at a time."""

    def set(self, place: int, argument: Argument) -> None: ...
    def reach(self, memory: Sequence[torch.Tensor]) -> None:
        """Set the memory that words of the arguments point to, besides the arguments."""
        ...

    @property
    def launch(self) -> Launch: ...
    @property
    def joint(self) -> bool:
        """True if its blocks wait for each other."""
        ...

    @property
    def count(self) -> int:
        """Number of parameters."""
        ...

    def words_at(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return some arguments as words: numbers, and addresses of tensors."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel on a device. scratch_parameters: null pointers after the program's own parameters.
    resident: blocks that one multiprocessor holds at once. cooperative: True if all blocks of a
    launch must run at once."""

    driver: Driver
    context: int
    function: int
    blocks: int
    threads: int
    shared: int
    scratch_parameters: int
    resident: int
    cooperative: bool = True

    def bind(self, arguments: Sequence[Argument]) -> Invocation:
        return CudaInvocation(self, arguments)


def load_kernel(
    driver: Driver, device: int, compiled: CompiledKernel, blocks: int, *, joint: bool = True
) -> LoadedKernel:
    """Load a kernel for launches of that many blocks. joint: True if they wait for each other;
    then, if there is one for each multiprocessor, no two share one. Raises BuildError if the
    driver rejects the kernel or the device has no cooperative launches."""
    if compiled.scratch_bytes:
        raise BuildError(
            "Triton compiled the program with global scratch memory, which stretto does not provide"
        )
    threads, shared = compiled.warps * WARP, compiled.shared_bytes
    try:
        refused = joint and not driver.attribute(device, COOPERATIVE_LAUNCH)
        if joint and blocks == driver.attribute(device, MULTIPROCESSORS):
            shared = max(shared, driver.attribute(device, SHARED_MEMORY_PER_MULTIPROCESSOR) // 2)
        context = driver.context(device)
        with driver.active(context), driver.relaxed():
            function = driver.load(compiled.binary, compiled.entry)
            if shared:
                driver.allow_shared(function, shared)
            resident = driver.resident_blocks(function, threads, shared)
    except CudaError as error:
        raise build_error(error, f"the kernel cannot be loaded on cuda:{device}") from error
    if refused:
        raise BuildError(
            f"cuda:{device} has no cooperative launches, so the thread blocks of a program, which "
            "wait for each other, might not all run at once",
            remedy="use a whole GPU: some virtual GPUs and old drivers lack cooperative launches",
        )
    scratch = compiled.scratch_parameters
    return LoadedKernel(
        driver, context, function, blocks, threads, shared, scratch, resident, joint
    )


def require_resident(kernel: LoadedKernel, multiprocessors: int) -> None:
    """Raise BuildError if blocks of a launch wait for each other and the device cannot hold all at
    once."""
    room = kernel.resident * multiprocessors
    if kernel.cooperative and kernel.blocks > room:
        raise BuildError(
            f"the program has {kernel.blocks} execution units, but the GPU holds only {room} of "
            f"its thread blocks at once ({kernel.resident} on each of {multiprocessors} "
            "multiprocessors)",
            remedy="use fewer units",
        )


class CudaInvocation:
    """A kernel with its arguments as one block of words that launches read."""

    def __init__(self, kernel: LoadedKernel, arguments: Sequence[Argument]) -> None:
        self.words = (ctypes.c_uint64 * (len(arguments) + kernel.scratch_parameters))()
        for place, argument in enumerate(arguments):
            self.set(place, argument)
        self.launch = kernel.driver.launch(
            kernel.function,
            kernel.blocks,
            kernel.threads,
            kernel.shared,
            self.words,
            cooperative=kernel.cooperative,
        )
        self.kernel = kernel
        self.joint = kernel.cooperative

    def reach(self, memory: Sequence[torch.Tensor]) -> None:
        """Do nothing: a GPU finds memory by its address."""

    @property
    def count(self) -> int:
        return len(self.words)

    def words_at(self, places: Sequence[int]) -> tuple[int, ...]:
        words = self.words
        return tuple(words[place] for place in places)

    def set(self, place: int, argument: Argument) -> None:
        self.words[place] = argument if isinstance(argument, int) else argument.data_ptr()


class Replayable(Protocol):
    """A graph that can be replayed. joint: True if blocks of one of its launches wait for each
    other."""

    @property
    def joint(self) -> bool: ...
    def launch(self, stream: int) -> None:
        """Enqueue a replay."""
        ...


class LaunchOrder:
    """The order of all launches on one device, by all programs and threads of the process.

    It costs nothing while only one stream is used. A capture has a separate order; its replays are
    ordered with other launches only by their streams.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}
        self._events: list[int] = []

    def launch(self, invocation: Invocation, stream: int, capture: int) -> None:
        """Enqueue a launch. Raises CudaError, and RunError for the per-thread stream, whose order
        is unknown."""
        _require_one_stream(stream)
        if invocation.joint:
            self._enqueue(invocation.launch, stream, capture)
        else:
            invocation.launch(stream)

    def replay(self, graph: Replayable, stream: int) -> None:
        """As `launch`, for a graph."""
        _require_one_stream(stream)
        if graph.joint:
            self._enqueue(graph.launch, stream, 0)
        else:
            graph.launch(stream)

    def _enqueue(self, enqueue: Launch, stream: int, capture: int) -> None:
        with self._lock:
            last = self._last.get(capture, stream)
            if last != stream:
                self._follow(last, stream, capture)
            enqueue(stream)
            self._last[capture] = stream

    def _follow(self, last: int, stream: int, capture: int) -> None:
        driver = self._driver
        if driver.capture(last) != capture:
            return  # its capture began since then: torch waits for the device before a capture
        if not self._events:
            self._events.append(driver.event())
        try:
            driver.record(self._events[0], last)
        except CudaError as error:
            if error.code != INVALID_HANDLE:
                raise
            driver.synchronize(None)  # the stream was destroyed, but its work may still run
            return
        driver.wait(stream, self._events[0])


def _require_one_stream(stream: int) -> None:
    if stream == PER_THREAD_STREAM:
        raise RunError(
            "a program cannot run on the per-thread default stream, which is another stream in "
            "each thread but has one handle",
            remedy="call it under `torch.cuda.stream(torch.cuda.Stream())`",
        )


@single
def order_of(device: int, driver: Driver) -> LaunchOrder:
    """Return the one order of launches on a device."""
    return LaunchOrder(driver)
