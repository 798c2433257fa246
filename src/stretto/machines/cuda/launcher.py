"""Launchers: they launch the kernels of a GPU program, and provide memory and streams.

`GpuLauncher` uses a GPU, with torch's memory and the driver's launches. `InterpretedLauncher` runs
the same kernel text on CPU tensors, without a GPU; each launch has ended when it returns.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol, TypeVar

import torch

from stretto.machines.cuda.driver import CudaError, Driver, run_error
from stretto.machines.cuda.graphs.driver_graph import DriverGraph
from stretto.machines.cuda.graphs.graph_builder import (
    WAITS_IN_BODIES,
    EmulatedGraph,
    GraphBuilder,
    GraphCaptureError,
    Replay,
)
from stretto.machines.cuda.graphs.rehearsal import GraphCall
from stretto.machines.cuda.graphs.store import Pool, store_of
from stretto.machines.cuda.interpretation import Interpretation, KernelRunner
from stretto.machines.cuda.launch import Argument, Invocation, LoadedKernel, order_of
from stretto.machines.cuda.printer.source import HOST
from stretto.machines.machine import HOST as HOST_DEVICE
from stretto.runtime.memory_watch import usable_memory

# ---- Host memory of results that is reused once the caller has dropped it.
#
# torch's allocator of a GPU reuses memory by itself: the next result of a size gets the memory of a
# dropped one, so that a captured graph finds its arguments unchanged. The host's allocator does
# not, and emulated graphs would have to be patched in every call.
#
# A program works on its own tensor over a block; the caller gets another one over the same bytes.
# The storage of that tensor, and of all its views, keeps an array alive: the block is reused only
# after that array is gone.


KEPT_CALLS = 4
"""Number of calls without use after which a block is released."""


@dataclass(eq=False, slots=True)
class _Block:
    """memory: its bytes. call: the last call that it was taken for. callers: the arrays kept alive
    by tensors that callers hold. result: the tensor that was handed out last."""

    memory: torch.Tensor
    call: int
    callers: list[weakref.ref[Any]] = field(default_factory=list[weakref.ref[Any]])
    result: weakref.ref[torch.Tensor] | None = None

    def is_free(self, call: int) -> bool:
        return self.call != call and all(caller() is None for caller in self.callers)


class ReusedBlocks:
    """The blocks of one program, which runs one call at a time."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._call = 0

    def begin(self) -> None:
        """Begin a call. Blocks that the previous one took and did not hand out are free again."""
        self._call += 1
        self._blocks = [b for b in self._blocks if self._call - b.call <= KEPT_CALLS]

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised memory of this call for a result."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return torch.empty(tuple(shape), dtype=dtype)
        for block in self._blocks:
            if block.memory.nbytes == nbytes and block.is_free(self._call):
                block.call, block.result = self._call, None
                block.callers.clear()
                break
        else:
            block = _Block(torch.empty(nbytes, dtype=torch.uint8), self._call)
            self._blocks.append(block)
        return block.memory.view(dtype).view(tuple(shape))

    def hand_out(self, result: torch.Tensor) -> torch.Tensor:
        """Return a tensor for the caller over the bytes that `take` returned; the same tensor
        again if it is a result twice."""
        place = result.data_ptr()
        found = (b for b in self._blocks if b.call == self._call and b.memory.data_ptr() == place)
        block = next(found, None)
        if block is None or not result.nbytes:
            return result
        known = None if block.result is None else block.result()
        if known is not None and known.dtype == result.dtype and known.shape == result.shape:
            return known
        array = block.memory.numpy()[:]
        block.callers.append(weakref.ref(array))
        storage = torch.from_numpy(array).untyped_storage()
        made = torch.empty(0, dtype=result.dtype)
        made.set_(storage, 0, result.shape, result.stride())
        block.result = weakref.ref(made)
        return made


POLLS = 1 << 25
"""Polls of a counter after which a wait gives up: at least some ten seconds on a GPU."""

Words = ctypes.Array[ctypes.c_int64]
T = TypeVar("T")


class Launcher(Protocol):
    """Launches kernels on a device. Streams are ints, 0 is the default one.

    device: of the tensors of programs. polls: the limit of waits. synchronous: True if a launch has
    ended when it returns. cuda: the latest CUDA version that the driver supports.
    """

    device: torch.device
    polls: int
    synchronous: bool
    cuda: tuple[int, int]

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which every other method is called; afterwards the thread's state is
        restored."""
        ...

    def stream(self) -> int:
        """Return the calling thread's current stream on the device."""
        ...

    def capture(self, stream: int) -> int:
        """Return the id of the capture that records the stream's work, 0 if none does."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate memory of the current stream, or of the capture's graph."""
        ...

    def begin_results(self) -> None:
        """Note that a call begins, before it allocates memory for its results."""
        ...

    def result(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As `empty`, for a result: in the memory of the last call's result if the caller has
        dropped it."""
        ...

    def hand_out(self, result: torch.Tensor) -> torch.Tensor:
        """Return the tensor that the caller gets for such memory."""
        ...

    def relaxed(self) -> AbstractContextManager[object]:
        """Allow this thread to allocate and wait inside a `with` while another stream is being
        captured."""
        ...

    def aside(self, make: Callable[[], T]) -> T:
        """Run `make` outside of any capture, and wait for its work. Memory that it allocates never
        belongs to a graph, which would overwrite it at every replay."""
        ...

    def control(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a new control block, and host memory whose first word becomes the status of a
        launch that fails. Call it within `aside`."""
        ...

    def host(self, words: int) -> torch.Tensor:
        """Return zeroed words that the host and programs can access. Call it within `aside`."""
        ...

    def bind(self, number: int, arguments: Sequence[Argument]) -> Invocation:
        """Prepare launches of a kernel with these arguments, which can be changed later."""
        ...

    def launch(self, invocation: Invocation, stream: int, capture: int) -> None:
        """Enqueue a kernel after the previous launch, whatever stream that was on."""
        ...

    def graph(self) -> GraphBuilder:
        """Return an empty graph."""
        ...

    def numbers(self, words: Sequence[int]) -> torch.Tensor:
        """Return words in the memory of the device."""
        ...

    def write(self, target: torch.Tensor, words: Sequence[int]) -> None:
        """Enqueue a change of such words on the current stream."""
        ...

    def replay(self, graph: Replay, stream: int) -> None:
        """Enqueue a replay after the previous launch, whatever stream that was on."""
        ...

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for all if it is None."""
        ...

    def memory(self) -> int:
        """Return the bytes of memory that programs may use at most."""
        ...


class DeviceMemory(Protocol):
    """Source of a GPU's memory and streams: torch, except in tests."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...
    def pinned(self, words: int) -> torch.Tensor: ...
    def stream(self) -> int: ...
    def on_side_stream(self) -> AbstractContextManager[object]: ...
    def new_pool(self) -> object: ...
    def captured(self, run: Callable[[], None], pool: Pool) -> tuple[int, object]: ...
    def words(self, words: Sequence[int]) -> torch.Tensor: ...
    def total(self) -> int: ...


class TorchMemory:
    """DeviceMemory by torch's caching allocators."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = torch.cuda.Stream(device)
        current: Callable[[int | None], int] = torch._C._cuda_getCurrentRawStream  # pyright: ignore
        self.current = current

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def pinned(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64, pin_memory=True)

    def words(self, words: Sequence[int]) -> torch.Tensor:
        return torch.tensor(words, dtype=torch.int64, device=self.device)

    def stream(self) -> int:
        return self.current(self.device.index)

    def on_side_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.side)

    def new_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def captured(self, run: Callable[[], None], pool: Pool) -> tuple[int, object]:
        """Capture the work that `run` enqueues as a CUDA graph; return it, and the object that
        keeps it alive. pool: graphs of one pool share memory, so they must not run
        concurrently. Raises GraphCaptureError, and torch.OutOfMemoryError if the pool cannot
        grow."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        handle: Any = pool.handle
        before = torch.cuda.memory_reserved(self.device)
        try:
            with torch.cuda.stream(self.side):
                _forget_workspaces()
                graph.capture_begin(handle, capture_error_mode="thread_local")
                try:
                    run()
                except BaseException:
                    with suppress(RuntimeError):  # the first error says more
                        graph.capture_end()
                    raise
                graph.capture_end()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise GraphCaptureError(str(error)) from error
        finally:
            _forget_workspaces()
        pool.nbytes += max(torch.cuda.memory_reserved(self.device) - before, 0)
        return graph.raw_cuda_graph(), graph

    def total(self) -> int:
        return torch.cuda.get_device_properties(self.device).total_memory


def _forget_workspaces() -> None:
    """Release cuBLAS's workspaces. torch keeps one per stream, and all captures are on one stream:
    without this, products of two pools would use the workspace of the first, and race if they
    run concurrently."""
    clear: Callable[[], None]
    clear = torch._C._cuda_clearCublasWorkspaces  # pyright: ignore[reportPrivateUsage]
    clear()


class _Rehearsed(threading.local):
    """Keys of the library calls that this thread has run before capturing them; per thread, since
    torch has handles of cuBLAS and cuDNN for each thread."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()


class GpuLauncher:
    """One GPU and the kernels of a program on it."""

    def __init__(
        self,
        device: torch.device,
        driver: Driver,
        memory: DeviceMemory,
        kernels: Sequence[LoadedKernel],
    ) -> None:
        self.device = device
        self.polls = POLLS
        self.synchronous = False
        self.driver = driver
        self.cuda = driver.version()
        self.kernels = tuple(kernels)
        self.torch = memory
        self.order = order_of(device.index, driver)
        self.rehearsed = _Rehearsed()
        self.empty = memory.empty
        self.stream = memory.stream

    def begin_results(self) -> None:
        """Do nothing: torch's allocator reuses dropped memory by itself."""

    def result(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.empty(shape, dtype)

    def hand_out(self, result: torch.Tensor) -> torch.Tensor:
        return result

    def active(self) -> AbstractContextManager[object]:
        try:
            return self.driver.active(self.context)
        except CudaError as error:
            raise run_error(error, "the GPU cannot be used") from error

    def capture(self, stream: int) -> int:
        try:
            return self.driver.capture(stream)
        except CudaError as error:
            raise run_error(error, "the stream cannot be used") from error

    def relaxed(self) -> AbstractContextManager[object]:
        return self.driver.relaxed()

    def aside(self, make: Callable[[], T]) -> T:
        with self.relaxed(), self.torch.on_side_stream():
            made = make()
            self.synchronize(self.torch.stream())
        return made

    def control(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        block, host = self.torch.empty((words,), torch.int64).zero_(), self.host(1)
        block[HOST] = host.data_ptr()  # pinned memory has one address on both sides
        return block, host

    def host(self, words: int) -> torch.Tensor:
        return self.torch.pinned(words)

    def bind(self, number: int, arguments: Sequence[Argument]) -> Invocation:
        return self.kernels[number].bind(arguments)

    def launch(self, invocation: Invocation, stream: int, capture: int) -> None:
        try:
            self.order.launch(invocation, stream, capture)
        except CudaError as error:
            raise run_error(error, "the program cannot be launched") from error

    @property
    def context(self) -> int:
        return self.kernels[0].context

    def graph(self) -> GraphBuilder:
        return DriverGraph.empty(self)

    def captured(self, call: GraphCall, lane: Hashable) -> tuple[int, object, Pool]:
        if call.key not in self.rehearsed.keys:
            self.aside(lambda: call.rehearse(self.empty))
            self.rehearsed.keys.add(call.key)
        store = store_of(self.device, self.memory())
        with store.pool(lane, self.torch.new_pool) as pool:
            return (*self.torch.captured(call.run, pool), pool)

    def numbers(self, words: Sequence[int]) -> torch.Tensor:
        """Return words in the memory of the device."""
        return self.aside(lambda: self.torch.words(words))

    def write(self, target: torch.Tensor, words: Sequence[int]) -> None:
        # Pinned memory, which torch reuses only when the copy has ended.
        source = self.torch.pinned(len(words))
        source.copy_(torch.tensor(words))
        target.copy_(source, non_blocking=True)

    def replay(self, graph: Replay, stream: int) -> None:
        try:
            self.order.replay(graph, stream)
        except CudaError as error:
            raise run_error(error, "the graph cannot be replayed") from error

    def synchronize(self, stream: int | None = None) -> None:
        try:
            self.driver.synchronize(stream)
        except CudaError as error:
            raise run_error(error, "the GPU stopped") from error

    def memory(self) -> int:
        return self.torch.total()


class InterpretedLauncher:
    """Launcher without a GPU: there is one stream, torch captures nothing, a launch has ended when
    it returns. seed: draws the order in which nodes of graphs run."""

    def __init__(self, kernels: Sequence[KernelRunner], seed: int = 0) -> None:
        self.seed = seed
        self.device = HOST_DEVICE
        self.polls = POLLS
        self.synchronous = True
        self.cuda: tuple[int, int] = WAITS_IN_BODIES
        self.kernels = tuple(kernels)
        self.blocks = ReusedBlocks()
        self.begin_results = self.blocks.begin
        self.result = self.blocks.take
        self.hand_out = self.blocks.hand_out

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stream(self) -> int:
        return 0

    def capture(self, stream: int) -> int:
        return 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def relaxed(self) -> AbstractContextManager[object]:
        return nullcontext()

    def aside(self, make: Callable[[], T]) -> T:
        return make()

    def control(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        block = self.host(words)
        return block, block

    def host(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64)

    def bind(self, number: int, arguments: Sequence[Argument]) -> Invocation:
        return Interpretation(self.kernels[number], arguments)

    def launch(self, invocation: Invocation, stream: int, capture: int) -> None:
        invocation.launch(stream)

    def graph(self) -> GraphBuilder:
        return EmulatedGraph(self.seed)

    def numbers(self, words: Sequence[int]) -> torch.Tensor:
        return torch.tensor(words, dtype=torch.int64)

    def write(self, target: torch.Tensor, words: Sequence[int]) -> None:
        target.copy_(torch.tensor(words))

    def replay(self, graph: Replay, stream: int) -> None:
        graph.launch(stream)

    def synchronize(self, stream: int | None = None) -> None:
        pass

    def memory(self) -> int:
        return usable_memory()


def words_of(tensor: torch.Tensor) -> Words:
    """Return the words of a CPU tensor as an array that is faster to read. The caller keeps the
    tensor alive."""
    return (ctypes.c_int64 * tensor.numel()).from_address(tensor.data_ptr())
