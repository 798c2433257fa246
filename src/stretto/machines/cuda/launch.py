"""Launches of one kernel on a GPU, in an order in which no two programs wait for each other.

All thread blocks of a launch must be resident at once where they wait for each other. Two such
programs that start beside each other could each get a part of the multiprocessors and wait for the
rest for ever. So

(a) launches are cooperative. CUDA promises that all blocks of such a grid run at once, and refuses
    one that cannot fit. A second grid starts when there is room for all of it. A kernel node of a
    graph keeps the attribute, so that replays on several streams cannot starve each other either;
(b) a launch on another stream than the device's launch before first makes its stream wait for that
    one, so that two programs do not share a GPU at all. Replays are torch's, so this cannot see
    them: (a) holds for them alone;
(c) a wait gives up after a number of looks, so that whatever goes wrong ends in an error.

A launch whose blocks wait for nobody needs none of this: it may run beside any other.

Where blocks wait for each other and there is one for each multiprocessor, each is on one of its
own: it asks for half of the multiprocessor's shared memory at least, and the system keeps some for
each block, so two do not fit on one. Else two could be where a launch before has left room last,
and the whole program would wait for these.

A device without cooperative launches is refused, and so is the per-thread default stream: its one
handle is another stream in each thread, of which (b) would know nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from stretto.errors import BuildError, RunError
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
"""Of a kernel: a tensor for a pointer, or a number."""

WARP = 32


class CompiledKernel(Protocol):
    """What launches need of triton_compile.CompiledTriton."""

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
    """A kernel with its arguments, launched over and over. For one thread at a time."""

    def set(self, place: int, argument: Argument) -> None: ...
    def reach(self, memory: Sequence[torch.Tensor]) -> None:
        """Tells what words of the arguments point to, beside the arguments."""
        ...

    @property
    def launch(self) -> Launch: ...
    @property
    def joint(self) -> bool:
        """Whether its blocks wait for each other."""
        ...

    @property
    def count(self) -> int:
        """Parameters."""
        ...

    def words_at(self, places: Sequence[int]) -> tuple[int, ...]:
        """Some arguments, as words: numbers, and addresses of tensors."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel on a device. scratch_parameters: pointers after those of the program, null.
    resident: blocks that one multiprocessor holds at once. cooperative: all blocks of a launch run
    at once."""

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
    """Loads a kernel for launches of that many blocks. joint: they wait for each other; if there is
    one for each multiprocessor, no two share one. Raises BuildError where the driver refuses it,
    and for a device that starts no grid as a whole."""
    if compiled.scratch_bytes:
        raise BuildError("Triton compiled the program with scratch memory, which nobody provides")
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
            remedy="use a whole GPU: some virtual ones and old drivers have no such launches",
        )
    scratch = compiled.scratch_parameters
    return LoadedKernel(
        driver, context, function, blocks, threads, shared, scratch, resident, joint
    )


def require_resident(kernel: LoadedKernel, multiprocessors: int) -> None:
    """Raises BuildError where the device cannot hold all blocks of a launch at once that wait for
    each other."""
    room = kernel.resident * multiprocessors
    if kernel.cooperative and kernel.blocks > room:
        raise BuildError(
            f"the program has {kernel.blocks} execution units, but the GPU holds only {room} of "
            f"its thread blocks at once ({kernel.resident} on each of {multiprocessors} "
            "multiprocessors)",
            remedy="use fewer units",
        )


class CudaInvocation:
    """Arguments as one block of words that launches read."""

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
        """A GPU finds memory by its address."""

    @property
    def count(self) -> int:
        return len(self.words)

    def words_at(self, places: Sequence[int]) -> tuple[int, ...]:
        words = self.words
        return tuple(words[place] for place in places)

    def set(self, place: int, argument: Argument) -> None:
        self.words[place] = argument if isinstance(argument, int) else argument.data_ptr()


class Replay(Protocol):
    """A graph that can be replayed. joint: blocks of one of its launches wait for each other."""

    @property
    def joint(self) -> bool: ...
    def launch(self, stream: int) -> None: ...


class LaunchOrder:
    """The order of all launches on one device, by all programs and threads of the process.

    Costs nothing while one stream is used. A capture has an order of its own; its replays have none
    with other launches, except that of their streams.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}
        self._events: list[int] = []

    def launch(self, invocation: Invocation, stream: int, capture: int) -> None:
        """Raises CudaError, and RunError for a stream whose order nobody can know."""
        _require_one_stream(stream)
        if invocation.joint:
            self._enqueue(invocation.launch, stream, capture)
        else:
            invocation.launch(stream)

    def replay(self, graph: Replay, stream: int) -> None:
        """As `launch`, of a graph."""
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
            return  # captured since then: before a capture torch waits for the device
        if not self._events:
            self._events.append(driver.event())
        try:
            driver.record(self._events[0], last)
        except CudaError as error:
            if error.code != INVALID_HANDLE:
                raise
            driver.synchronize(None)  # the stream is gone, but what was on it may still run
            return
        driver.wait(stream, self._events[0])


def _require_one_stream(stream: int) -> None:
    if stream == PER_THREAD_STREAM:
        raise RunError(
            "a program cannot run on the per-thread default stream, which is another stream in "
            "each thread but has one handle",
            remedy="call it under `torch.cuda.stream(torch.cuda.Stream())`",
        )


@cache
def order_of(device: int, driver: Driver) -> LaunchOrder:
    """The one order of launches on a device."""
    return LaunchOrder(driver)
